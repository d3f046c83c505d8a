//! The clocks of the programs. That of flows counts ticks of so many jiffies that they are nearly a second, a power of two;
//! that of delays units of `2^DELAY_SHIFT` nanoseconds, which costs a program 15 ns.
//!
//! A program reads jiffies at no cost. From outside they follow from the monotonic clock and the length of a jiffy, which
//! is the resolution of the coarse clocks (`clock_getres(CLOCK_MONOTONIC_COARSE)`).

use core::time::Duration;

use crate::DELAY_SHIFT;

/// Jiffies begin so long before they reach 2^32 (`INITIAL_JIFFIES` of include/linux/jiffies.h).
const WRAP_AFTER: Duration = Duration::from_secs(300);

/// A tick is no shorter: the least power of two in jiffies that is as long. That makes 0.85 to 1.28 seconds with kernels of 100 to 1000 jiffies a second.
const LEAST_TICK: Duration = Duration::from_millis(750);

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

    /// How many jiffies a tick is, as a power of two: `tick_shift` of the programs.
    #[must_use]
    pub const fn shift(self) -> u32 {
        let mut shift = 0;
        while self.jiffy.as_nanos() << shift < LEAST_TICK.as_nanos() {
            shift += 1;
        }
        shift
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
        let tick = ((initial + self.jiffies(monotonic)) >> self.shift()) as u32;
        tick
    }

    /// How many ticks a time takes.
    #[must_use]
    pub const fn ticks(self, time: Duration) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "time-outs are hours at most")]
        let ticks = (self.jiffies(time) >> self.shift()) as u32;
        ticks
    }

    /// How long ticks take.
    #[must_use]
    pub const fn duration(self, ticks: u32) -> Duration {
        #[expect(clippy::cast_possible_truncation, reason = "a jiffy is 10 ms at most")]
        let jiffy = self.jiffy.as_nanos() as u64;
        Duration::from_nanos(((ticks as u64) << self.shift()).saturating_mul(jiffy))
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
    fn a_tick_is_nearly_a_second_however_long_a_jiffy_is() {
        let tick = |jiffy| TickClock::new(Duration::from_nanos(jiffy)).duration(1).as_millis();
        // 1000, 300, 250 and 100 a second.
        assert_eq!([1_000_000, 3_333_333, 4_000_000, 10_000_000].map(tick), [1024, 853, 1024, 1280]);
    }

    #[test]
    fn jiffies_reach_two_to_the_power_of_32_five_minutes_after_boot() {
        assert_eq!(HZ_250.at(Duration::from_secs(300)), 1 << (32 - HZ_250.shift()));
    }
}
