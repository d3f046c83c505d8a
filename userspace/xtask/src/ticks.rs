//! The programs' clock, as seen from outside.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getres, clock_gettime};
use weir_abi::ticks::TickClock;

/// How ticks follow from the monotonic clock.
///
/// # Errors
/// When the kernel does not tell how long a jiffy is.
pub(crate) fn clock() -> Result<TickClock> {
    let jiffy = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).context("cannot read the length of a jiffy")?;
    Ok(TickClock::new(jiffy.into()))
}

/// The tick that it is.
///
/// # Errors
/// When a clock cannot be read.
pub(crate) fn now() -> Result<u32> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("cannot read the clock")?;
    Ok(clock()?.at(now.into()))
}
