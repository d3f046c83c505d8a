//! What the simulator promises, and what the policies do in it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod crowd;
mod optimum;
mod policies;
mod report;
mod server;
mod worlds;
