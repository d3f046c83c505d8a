//! The page's model and its server.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod history;
mod server;
mod stream;
mod view;
mod world;
