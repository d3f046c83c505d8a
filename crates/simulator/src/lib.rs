//! Clusters in virtual time. Every node runs the agent's own controller and policies against a stated model of
//! servers, distances and late data; an exact solver that knows everything says how well it could be done.
//!
//! Nothing here has a clock or touches a network: the same scenario, policy and seed give the same numbers. What is
//! modelled and what is not: docs/simulator.md.

pub mod arrivals;
mod brain;
pub mod catalogue;
pub mod chart;
pub mod crowd;
pub mod feed;
mod flows;
pub mod optimum;
pub mod plot;
mod record;
pub mod report;
mod run;
pub mod scenario;
pub mod server;
pub mod world;

pub use record::{Moment, Outcome};
pub use run::{RunError, run, run_against};
pub use scenario::Scenario;
