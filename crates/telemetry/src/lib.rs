//! What Weir tells about itself: [`logging`], [`metrics`] and their [`catalogue`], the [`server`] that health checks and
//! scrapers ask, and [`service_health`] for the health-check node ports of Services. [`listeners`] carry both, and [`admin`] what only people
//! on this machine may ask.
//!
//! Nothing here is global but the log's subscriber, which [`logging::init`] installs.
#![forbid(unsafe_code)]

pub mod admin;
pub mod catalogue;
pub mod effective;
pub mod listeners;
pub mod logging;
pub mod metrics;
pub mod server;
pub mod service_health;
pub mod weights;
