//! The brain of Weir: what the cluster looks like, which endpoints each service may use, and what the maps must say.
//!
//! Everything here is a plain function or a plain value: no I/O, no clock, no runtime. [`cluster`] holds the snapshot that
//! watches or the static file feed; [`plan`] turns one service of it into a plan; [`tables`] turns plans into the
//! smallest list of map operations; [`select`] is the reference model of the selection that the kernel runs.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod conntrack;
pub mod controller;
pub mod departures;
pub mod ejection;
pub mod endpoint_checks;
pub mod endpoints;
pub mod flow_pressure;
pub mod health;
pub mod interfaces;
mod intern;
pub mod kernel_features;
mod last_resort;
pub mod lines;
pub mod load;
pub mod local_endpoints;
pub mod model;
pub mod node_address;
pub mod ops;
pub mod plan;
pub mod pod_sockets;
pub mod policies;
pub mod quantity;
pub mod select;
pub mod service_networks;
pub mod service_series;
pub mod settings;
pub mod shortcuts;
pub mod sockets;
pub mod source_ports;
pub mod stage;
pub mod steering;
pub mod table_sizes;
pub mod tables;
