//! The programs' clock, as the kernel shows it: computed from another clock, a tick may be the one before or after.

use std::fs;
use std::path::Path;
use std::time::Duration;

use weir_datapath::tick_clock;
use weir_testbed::wait;

/// Where the kernel shows its jiffies.
const TIMERS: &str = "/proc/timer_list";

fn is_shown() -> bool {
    Path::new(TIMERS).exists()
}

/// Whether the kernel shows it; says that a test is skipped where it does not.
pub(crate) fn require_shown(what: &str) -> bool {
    if !is_shown() {
        eprintln!("SKIPPED: {what}: the kernel does not show its jiffies in {TIMERS}");
    }
    is_shown()
}

fn jiffies() -> u64 {
    let timers = fs::read_to_string(TIMERS).unwrap();
    timers.lines().find_map(|line| line.strip_prefix("jiffies: ")).unwrap().parse().unwrap()
}

/// The tick that the programs see.
pub(crate) fn tick() -> u32 {
    u32::try_from(jiffies() >> tick_clock().unwrap().shift()).unwrap()
}

/// Waits until a quarter of a tick is left, or more: what takes some milliseconds then happens in one. Where the kernel does not
/// show its jiffies it does not wait.
pub(crate) fn await_the_better_part_of_a_tick() {
    let tick = 1 << tick_clock().unwrap().shift();
    let is_early = || !is_shown() || jiffies() % tick < tick / 4 * 3;
    wait::until("a tick to begin", Duration::from_secs(2), is_early).unwrap();
}
