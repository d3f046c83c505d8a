//! The clocks of the programs. That of flows counts ticks of `2^TICK_SHIFT` jiffies, about a quarter of a second to two
//! and a half; that of delays units of `2^DELAY_SHIFT` nanoseconds, which costs a program 15 ns.
//!
//! A program reads jiffies at no cost. From outside they follow from the monotonic clock and the length of a jiffy, which
//! is the resolution of the coarse clocks (`clock_getres(CLOCK_MONOTONIC_COARSE)`).

use core::time::Duration;

use crate::{DELAY_SHIFT, TICK_SHIFT};

/// Jiffies begin so long before they reach 2^32 (`INITIAL_JIFFIES` of include/linux/jiffies.h).
const WRAP_AFTER: Duration = Duration::from_secs(300);

/// A time of the programs' clock of delays: that of `backend_counters`, for example.
#[must_use]
pub const fn delay(units: u64) -> Duration {
    Duration::from_nanos(units.saturating_mul(1 << DELAY_SHIFT))
}

/// Converts between ticks and time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TickClock {
    jiffy: Duration,
}

impl TickClock {
    /// A clock of a kernel whose jiffy has this length; at least a nanosecond.
    #[must_use]
    pub const fn new(jiffy: Duration) -> Self {
        Self { jiffy: if jiffy.is_zero() { Duration::from_nanos(1) } else { jiffy } }
    }

    const fn jiffies(self, time: Duration) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "64 bits of nanoseconds are 584 years")]
        let jiffies = (time.as_nanos() / self.jiffy.as_nanos()) as u64;
        jiffies
    }

    /// The tick at a time of the monotonic clock.
    #[must_use]
    pub const fn at(self, monotonic: Duration) -> u32 {
        let initial = (1 << 32) - self.jiffies(WRAP_AFTER);
        #[expect(clippy::cast_possible_truncation, reason = "the programs keep the same 32 bits")]
        let tick = ((initial + self.jiffies(monotonic)) >> TICK_SHIFT) as u32;
        tick
    }

    /// How many ticks a time takes.
    #[must_use]
    pub const fn ticks(self, time: Duration) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "time-outs are hours at most")]
        let ticks = (self.jiffies(time) >> TICK_SHIFT) as u32;
        ticks
    }

    /// How long ticks take.
    #[must_use]
    pub const fn duration(self, ticks: u32) -> Duration {
        #[expect(clippy::cast_possible_truncation, reason = "a jiffy is 10 ms at most")]
        let jiffy = self.jiffy.as_nanos() as u64;
        Duration::from_nanos(((ticks as u64) << TICK_SHIFT).saturating_mul(jiffy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ_250: TickClock = TickClock::new(Duration::from_millis(4));

    #[test]
    fn a_tick_of_a_kernel_with_250_jiffies_a_second_is_a_little_more_than_a_second() {
        assert_eq!(HZ_250.duration(1), Duration::from_millis(1024));
        assert_eq!(HZ_250.ticks(Duration::from_secs(120)), 117);
    }

    #[test]
    fn jiffies_reach_two_to_the_power_of_32_five_minutes_after_boot() {
        assert_eq!(HZ_250.at(Duration::from_secs(300)), 1 << (32 - TICK_SHIFT));
    }
}
