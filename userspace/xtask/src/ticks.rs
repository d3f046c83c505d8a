//! The programs' clock, as seen from outside.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use weir_datapath::tick_clock;

/// The tick that it is.
///
/// # Errors
/// When a clock cannot be read.
pub(crate) fn now() -> Result<u32> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("cannot read the clock")?;
    Ok(tick_clock()?.at(now.into()))
}
