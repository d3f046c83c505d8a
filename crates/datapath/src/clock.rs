//! The clock of this kernel's flows.

use nix::time::{ClockId, clock_getres};
use weir_abi::ticks::TickClock;

use crate::error::{Error, Result};

/// How ticks follow from the monotonic clock here.
///
/// # Errors
/// When the kernel does not tell how long a jiffy is.
pub fn tick_clock() -> Result<TickClock> {
    let jiffy = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE);
    let jiffy = jiffy.map_err(|e| Error::io("cannot read the length of a jiffy", e.into()))?;
    Ok(TickClock::new(jiffy.into()))
}
