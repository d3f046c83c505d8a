//! Agents on the nodes of a cluster or with services from a file, against the real API server and real kube-proxy. One binary: what they
//! share takes longer to compile than any of them.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../harness/mod.rs"]
mod harness;

mod another_version;
mod bad_input;
mod bad_input_objects;
mod beside_kube_proxy;
mod changes;
mod changes_objects;
mod external_mode;
mod former_programs;
mod full_maps;
mod service_manager;
mod services;
mod services_attached;
mod services_refused;
mod services_spread;
mod survive_api_server;
