//! CPU time of the whole machine, as /proc/stat tells it.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A machine that had less idle time than this part of all was the bottleneck of what was measured on it.
pub(crate) const SATURATED_IDLE: f64 = 0.02;

/// The unit of times in /proc, on every architecture that we run on.
pub(crate) fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(10))
}

/// What all CPUs have done since the start, at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTimes {
    at: Instant,
    cpus: u32,
    /// Waiting for work, for a disk, or for the machine below this one. The kernel takes these times from a clock; those of
    /// work it samples a hundred times a second, which misses short work.
    away: Duration,
}

impl CpuTimes {
    /// # Errors
    /// When the kernel does not tell.
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&text, Instant::now()).context("/proc/stat has no times of all CPUs")
    }

    /// proc_stat(5): a line for all CPUs, then one for each.
    fn parse(text: &str, at: Instant) -> Option<Self> {
        let words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let times: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        let [_user, _nice, _system, idle, disk, _interrupts, _soft, stolen] = times[..] else { return None };
        let cpus = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
        Some(Self { at, cpus: u32::try_from(cpus).ok()?, away: ticks(idle + disk + stolen) })
    }

    /// CPU time that was used since an earlier moment, by anybody and the kernel.
    pub(crate) fn busy_since(&self, before: &Self) -> Duration {
        self.all_since(before).saturating_sub(self.away.saturating_sub(before.away))
    }

    /// The part of all CPUs that nobody used, 0 to 1.
    pub(crate) fn idle_since(&self, before: &Self) -> f64 {
        let all = self.all_since(before).as_secs_f64().max(f64::MIN_POSITIVE);
        1.0 - self.busy_since(before).as_secs_f64() / all
    }

    fn all_since(&self, before: &Self) -> Duration {
        (self.at - before.at) * self.cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(at: Instant, line: &str) -> Option<CpuTimes> {
        CpuTimes::parse(&format!("{line}\ncpu0 1 2\ncpu1 3 4\nintr 1 2 3\n"), at)
    }

    #[test]
    fn who_waits_for_work_for_a_disk_or_for_the_machine_below_is_not_busy() {
        let begin = Instant::now();
        let before = times(begin, "cpu  100 0 50 800 50 0 0 10 30 0").unwrap();
        let after = times(begin + Duration::from_secs(2), "cpu  190 0 60 1000 80 0 0 30 120 0").unwrap();
        // Two CPUs for two seconds, of which they were away 2.5.
        assert_eq!(after.busy_since(&before), Duration::from_millis(1500));
        assert!((after.idle_since(&before) - 0.625).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_line_of_all_cpus_is_refused() {
        assert!(times(Instant::now(), "intr 1 2 3").is_none());
        assert!(times(Instant::now(), "cpu  100 0 50 800").is_none());
    }
}
