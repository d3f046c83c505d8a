//! Active checks: where nobody tells which endpoints work, they are asked.
//!
//! Whom to ask and when, what the answers mean, and which endpoints may get new connections is decided here, in
//! [`EndpointChecks`]; the agent asks. An endpoint that fails is one that is not ready, no more: everything else of the
//! plan follows. Why it is as it is: docs/adr/0035-active-checks.md.

mod asking;
mod standing;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

pub use asking::{Asked, Counts, EndpointChecks, MOST_AT_ONCE, Turn};
pub use standing::Standing;

/// How the endpoints of a service are checked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Check {
    /// What is asked.
    pub question: Question,
    /// Where.
    pub port: AskedPort,
    /// From one question to the next; each comes up to a tenth of it earlier, so that not all come together.
    pub interval: Duration,
    /// For one answer, connecting included; not above `interval`.
    pub timeout: Duration,
    /// Answers in a row after which an endpoint that failed is used again, at least 1.
    pub rise: u32,
    /// Failures in a row after which an endpoint is not used any more, at least 1.
    pub fall: u32,
    /// What becomes of a service of which no endpoint passes.
    pub all_fail: AllFail,
}

impl Check {
    /// The longest that an endpoint which has just passed gets new connections after it has ceased to answer.
    #[must_use]
    pub fn longest_until_out(&self) -> Duration {
        self.interval.saturating_mul(self.fall).saturating_add(self.timeout)
    }
}

/// What an endpoint is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Question {
    /// Whether it takes a TCP connection.
    Connect,
    /// How it answers an HTTP request.
    Get(Get),
}

/// An HTTP/1.1 request without a body.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Get {
    /// Path and query, with a slash at the beginning.
    pub path: String,
    /// What its `Host` says; None: the address and port that are asked.
    pub host: Option<String>,
    /// Codes of answers that pass.
    pub statuses: RangeInclusive<u16>,
}

/// The port at which an endpoint is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AskedPort {
    /// This one, on all endpoints.
    Number(u16),
    /// Where the endpoint serves the service's port of this name.
    Named(Arc<str>),
}

/// What becomes of a service of which no endpoint passes in a family of addresses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AllFail {
    /// All are used, as if there were no check: the fault is more likely in the check, or between here and all of them.
    #[default]
    UseAll,
    /// New connections are refused.
    Refuse,
}
