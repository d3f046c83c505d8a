//! The command line against real maps, terminals and sockets. One binary: tests share programs that the kernel takes seconds to check.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod admin_socket;
mod cli;
mod config;
mod doctor;
mod exit_codes;
mod kubectl;
mod migrate;
mod node;
mod status;
mod top;
mod trace;
mod transcripts;
