//! What planning promises, module by module.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod affinity;
mod api_server;
mod build;
mod cluster;
mod conflicts;
mod endpoints;
mod frontends;
mod health;
mod lines;
mod load;
mod maps;
mod migration;
mod plan;
mod policies;
mod policies_build;
mod policies_controller;
mod policies_ejection;
mod policies_level;
mod policies_loop;
mod policies_papers;
mod policies_waterfill;
mod random;
mod restart;
mod sctp;
mod select;
mod service_networks;
mod settings;
mod size;
mod source_ranges;
mod steering;
mod tables;
mod tables_steer;
mod udp;
mod unused_ports;
