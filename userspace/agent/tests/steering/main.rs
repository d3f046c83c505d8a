//! Agents that steer: each is a node of a world with delays, with a key, and a control group with a CPU quota as its
//! machine. Services come from a file, so that nothing but the load changes anything; but where Kubernetes is told of it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../harness/mod.rs"]
mod harness;

mod above_the_level;
mod bed;
mod ejection;
mod events;
mod forged;
mod pods;
mod restart;
mod selectors;
