//! What planning promises, module by module.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod build;
mod cluster;
mod endpoints;
mod frontends;
mod lines;
mod maps;
mod plan;
mod random;
mod restart;
mod select;
mod tables;
