//! Signals from trees of files as kernels and kubelets make them, good and bad, and from this machine.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod build;
mod cgroups;
mod cpu;
mod fallback;
mod gauge;
mod memory;
mod metrics_api;
mod network;
mod node;
mod open_flows;
mod pace;
mod parsers;
mod pods;
mod pressure;
mod this_machine;
