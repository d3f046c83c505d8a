//! The kernel's clocks, and ages as kubectl writes them.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_datapath::tick_clock;

/// A moment on the clocks of the kernel, which do not count suspend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    monotonic: Duration,
    ticks: TickClock,
}

impl Now {
    /// This moment.
    pub(crate) fn read() -> Result<Self> {
        let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC).context("cannot read the clock")?.into();
        Ok(Self::new(monotonic, tick_clock()?))
    }

    /// A moment of the monotonic clock, and how ticks follow from it.
    pub(crate) const fn new(monotonic: Duration, ticks: TickClock) -> Self {
        Self { monotonic, ticks }
    }

    /// The tick that it is.
    pub(crate) fn tick(self) -> u32 {
        self.ticks.at(self.monotonic)
    }

    /// Seconds from a moment in seconds since boot until now.
    pub(crate) fn seconds_since(self, moment: u32) -> u32 {
        seconds(self.monotonic.saturating_sub(Duration::from_secs(moment.into())))
    }

    /// Seconds for which a client of a service keeps its endpoint; none without affinity. Rounded up: whoever made the
    /// ticks of seconds has rounded down.
    pub(crate) fn affinity(self, service: &abi::Service) -> Option<u32> {
        let time = self.ticks.duration(service.affinity);
        (service.affinity > 0).then(|| seconds(time).saturating_add(u32::from(time.subsec_nanos() > 0)))
    }

    /// Seconds, rounded, from a moment in ticks until now.
    pub(crate) fn seconds_since_tick(self, moment: u32) -> u32 {
        let ticks = self.ticks.at(self.monotonic).saturating_sub(moment);
        seconds(self.ticks.duration(ticks) + Duration::from_millis(500))
    }
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// An age: two units at most, and the second one only while it matters.
pub(crate) fn age(seconds: u32) -> String {
    const MINUTE: u32 = 60;
    const HOUR: u32 = 60 * MINUTE;
    const DAY: u32 = 24 * HOUR;
    const YEAR: u32 = 365 * DAY;
    let two = |big: u32, big_name, small: u32, small_name| match seconds % big / small {
        0 => format!("{}{big_name}", seconds / big),
        rest => format!("{}{big_name}{rest}{small_name}", seconds / big),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        _ => two(YEAR, "y", DAY, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_in_kubectl() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (14_460, "4h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
        ];
        for (seconds, text) in cases {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn a_time_out_reads_as_it_was_written() {
        let clock = TickClock::new(Duration::from_millis(4));
        let now = Now::new(Duration::from_secs(5000), clock);
        let service = crate::sample::dump().services[0].1;
        for seconds in [125, 10_800, 86_400] {
            let affinity = clock.ticks(Duration::from_secs(seconds.into()));
            assert_eq!(now.affinity(&abi::Service { affinity, ..service }), Some(seconds));
        }
        assert_eq!(now.affinity(&abi::Service { affinity: 0, ..service }), None);
    }

    #[test]
    fn moments_in_seconds_and_in_ticks_have_the_same_age() {
        let clock = TickClock::new(Duration::from_millis(4));
        let now = Now::new(Duration::from_secs(5000), clock);
        assert_eq!(now.seconds_since(4900), 100);
        let tick = clock.at(Duration::from_secs(4900));
        assert!(now.seconds_since_tick(tick).abs_diff(100) <= 1);
        assert_eq!((now.seconds_since(5001), now.seconds_since_tick(u32::MAX)), (0, 0));
    }
}
