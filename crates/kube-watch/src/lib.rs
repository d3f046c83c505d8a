//! What feeds the cluster snapshot: the Kubernetes API ([`watch`], [`client`], [`convert`]) or a file ([`static_file`]).
//!
//! Both send [`weir_core::cluster::Event`]s into a channel and publish how they fare in a [`status`]. What is wrong
//! with an object is told to its owner as a Kubernetes event ([`events`]). This crate decides nothing: which endpoints
//! may be used, and how, is the matter of `weir-core`. The agent's configuration is a file of its own ([`settings_file`]).
#![forbid(unsafe_code)]

pub mod client;
pub mod convert;
pub mod events;
mod file;
pub mod settings_file;
pub mod static_file;
pub mod status;
pub mod watch;
