//! The servers, asked over real sockets.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod listeners;
mod server;
mod service_health;
mod shared;
