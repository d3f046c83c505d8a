//! What Weir tells about itself: [`logging`], [`metrics`] and the [`server`] that health checks and scrapers ask.
//!
//! Nothing here is global but the log's subscriber, which [`logging::init`] installs.
#![forbid(unsafe_code)]

pub mod logging;
pub mod metrics;
pub mod server;
