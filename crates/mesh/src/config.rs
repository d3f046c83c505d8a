//! How often, how many, how much.

use std::time::Duration;

use crate::budget::{self, Budget};
use crate::packet::MIN_PACKET;

/// The settings of a mesh. [`Config::default`] is what the design asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Between two exchanges with a near peer, give or take a tenth. 100 ms to 10 s. Two that are near to each other take
    /// turns to begin one, so that each measures the way every two intervals.
    pub interval: Duration,
    /// How many of the nearest peers are probed every interval. 1 or more.
    pub nearest: usize,
    /// How many of the others, in turn, are probed every interval. 1 or more.
    pub sample: usize,
    /// The most that is sent to one peer, probes and replies with their IP and UDP headers, in bytes per second.
    pub bytes_per_second: u32,
    /// How far two nodes' clocks may be apart, up to 10 minutes. Also how long a captured packet is worth anything.
    pub skew: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // With what peers wait to publish and to look, reports and distances stay younger than a second.
            interval: Duration::from_millis(400),
            nearest: 16,
            sample: 3,
            bytes_per_second: 1000,
            skew: Duration::from_secs(30),
        }
    }
}

/// A setting out of its range.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("mesh: {setting} is out of range: set it to {range}")]
pub struct ConfigError {
    setting: &'static str,
    range: &'static str,
}

impl Config {
    /// The settings themselves if each one is within its range.
    ///
    /// # Errors
    /// [`ConfigError`] for the first that is not.
    pub fn checked(self) -> Result<Self, ConfigError> {
        let Self { interval, nearest, sample, bytes_per_second, skew } = self;
        let range = |fits: bool, setting, range| if fits { Ok(()) } else { Err(ConfigError { setting, range }) };
        let millis = interval.as_millis();
        range((100..=10_000).contains(&millis), "the probe interval", "100 ms to 10 s")?;
        range((1..=256).contains(&nearest), "the number of nearest peers", "1 to 256")?;
        range((1..=64).contains(&sample), "the number of sampled peers", "1 to 64")?;
        range((1..=600_000).contains(&skew.as_millis()), "the clock skew", "1 ms to 10 min")?;
        // A probe and a reply of the least size each interval must be within the budget, or nothing is ever known.
        let least = 2 * 1000 * (MIN_PACKET + budget::HEADERS_V6) as u128 / millis;
        let enough = u128::from(bytes_per_second) >= least && bytes_per_second <= Budget::MAX_RATE;
        range(enough, "the budget per peer", "at least two small packets per interval, 1 MB/s at most")?;
        Ok(self)
    }
}
