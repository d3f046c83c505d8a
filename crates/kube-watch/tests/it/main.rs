//! What is read of the API server and of files, and what is told of objects there.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod api_server;
mod api_server_events;
mod api_server_pods;
mod client;
mod convert;
mod events;
mod follow;
mod settings_file;
mod static_file;
mod watch;
