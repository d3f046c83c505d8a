//! How busy this node, its pods and the other nodes are, with the age of each sample.
//!
//! A [`Source`] reads one thing from one place: [`cpu`], [`memory`], [`network`] and [`pressure`] of the node from
//! /proc and /sys, [`cgroup`] of a quota or a pod, [`open_flows`] from the datapath's tables. A [`Gauge`] keeps what a
//! source said last and counts how it failed. [`Node`] and [`Pods`] put gauges together. [`metrics_api`] is the slow
//! fallback: remote, and of many nodes at once, hence no `Source`.
//!
//! Sources can be missing, lie or stall. That is counted and otherwise ignored: the last good sample stays, growing
//! old, and is forgotten after [`FORGET_AFTER`]. What is unknown is `None`, never 0. No clock is read here: who asks
//! says what time it is. Reads of /proc block for microseconds.
#![forbid(unsafe_code)]

pub mod cgroup;
pub mod cpu;
mod gauge;
pub mod memory;
mod meter;
pub mod metrics_api;
pub mod network;
mod node;
pub mod open_flows;
mod pods;
pub mod pressure;
mod source;
mod text;

pub use gauge::{FORGET_AFTER, Gauge};
pub use meter::{LONGEST_WINDOW, SHORTEST_WINDOW};
pub use node::{Node, NodeOptions};
pub use pods::{PodLoad, Pods};
pub use source::{Counts, Failure, FailureKind, Source};
