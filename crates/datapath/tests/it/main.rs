//! The programs and maps in the running kernel. All of it needs root and skips loudly without.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backends;
mod case;
mod forward;
mod headers;
mod model;
mod node;
mod pins;
mod pods;
mod refusals;
mod snat;
mod store;
mod untouched;
