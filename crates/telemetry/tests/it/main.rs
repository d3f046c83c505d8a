//! The servers, asked over real sockets.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod admin;
mod listeners;
mod promql;
mod queries;
mod reference;
mod server;
mod service_health;
mod shared;
