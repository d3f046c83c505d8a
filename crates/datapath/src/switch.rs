//! From maps of one size to those of another, while traffic goes on: what happens around the moment in which links get the programs of the new ones.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tracing::warn;
use weir_abi as abi;
use weir_core::ops::Capacity;

use crate::error::{Error, Result};
use crate::flow_table;
use crate::flows::Flows;
use crate::going::GoingFilter;
use crate::layout::{Fit, MAPS, MapSpec};
use crate::load::Datapath;
use crate::map::Mapped;
use crate::pins::{PinDir, READ_ONLY};
use crate::replaced;
use crate::resize::{self, Moment};
use crate::sys;

/// How long new flows are held back at most, where the agent ends in the midst of a switch: longer than the largest table takes to be copied, before
/// each of which it begins anew. Whose SYN was dropped at first sends it again after 1, 3 and 7 seconds.
const HOLD_MOST: Duration = Duration::from_secs(10);

impl Datapath {
    /// To be called before the links get the new programs, where maps were replaced: new flows are held back, and those
    /// that began since the first copy follow. Nothing to do otherwise. Where the agent ends from here on the next one goes on with the new maps.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub fn begin_switch(&self) -> Result<()> {
        if self.resized.is_empty() {
            return Ok(());
        }
        // What an agent before has switched writes to the new maps.
        let copied = self.copy_flows(if self.half_switched { Moment::BehindLinks } else { Moment::BeforeLinks });
        // Whatever could be copied, the links change.
        replaced::switch(&self.pins)?;
        copied
    }

    /// To be called when every link runs the new programs: flows that are on their way follow, and new ones are let in.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub fn finish_switch(&mut self) -> Result<()> {
        if self.resized.is_empty() {
            return Ok(());
        }
        let seed = self.config.get(0)?.hash_seed;
        let copied = self.copy_flows(Moment::BehindLinks).and_then(|()| resize::forget_ended(&self.pins, seed));
        self.resized.clear();
        self.half_switched = false;
        self.store.former_flows = Flows::default();
        set_hold(&self.config, false)?;
        copied.and(replaced::forget(&self.pins))
    }

    fn copy_flows(&self, moment: Moment) -> Result<()> {
        let seed = self.config.get(0)?.hash_seed;
        // Of those that begin some are added to the others.
        let (begin, others): (Vec<_>, Vec<_>) =
            self.resized.iter().partition(|(spec, _)| flow_table::is_opening(spec.name));
        let mut all = others.into_iter().chain(begin);
        let copied = all.try_for_each(|(spec, old)| {
            set_hold(&self.config, true)?;
            resize::copy(&self.pins, spec, old.as_fd(), moment, seed)
        });
        set_hold(&self.config, true)?;
        // Nobody has noted what was copied, nor in the filter that was made in between.
        GoingFilter::forget(&self.pins).and(copied)
    }
}

/// Holds new flows back from now on, or lets them in.
fn set_hold(config: &Mapped<abi::Config>, hold: bool) -> Result<()> {
    let known = config.get(0)?;
    let flags = known.flags & !abi::CONFIG_HOLD;
    if !hold {
        return config.set(0, &abi::Config { flags, held_until: 0, ..known });
    }
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|e| Error::io("cannot read the clock", e.into()))?;
    let held_until = u64::try_from((Duration::from(now) + HOLD_MOST).as_nanos()).unwrap_or(u64::MAX);
    config.set(0, &abi::Config { flags: flags | abi::CONFIG_HOLD, held_until, ..known })
}

/// Lets new flows in that an agent has held back which ended before a switch.
fn let_in(pins: &PinDir) -> Result<()> {
    // One of another layout is not ours to write.
    pins.mapped("config", 0).map_or(Ok(()), |config| set_hold(&config, false))
}

/// The former maps of a switch in whose midst an agent has ended: some links run programs on the new ones. New flows stay held back until it is over.
/// Where the new ones are to be replaced, too, what the former ones have goes there first, and is all that is left of them.
///
/// # Errors
/// When a map cannot be read or written.
pub(crate) fn unfinished(pins: &PinDir, capacity: &Capacity) -> Result<Vec<(MapSpec, OwnedFd)>> {
    let former = replaced::half_switched(pins)?;
    if former.is_empty() {
        let_in(pins)?;
        return Ok(former);
    }
    warn!("an agent has ended while it switched to maps of another size; going on with that");
    let config = pins.mapped::<abi::Config>("config", 0)?;
    set_hold(&config, true)?;
    if MAPS.iter().all(|spec| !is_resized(pins, spec, capacity)) {
        return Ok(former);
    }
    let seed = config.get(0)?.hash_seed;
    let mut all = former.iter();
    all.try_for_each(|(spec, old)| resize::copy(pins, spec, old.as_fd(), Moment::BehindLinks, seed))?;
    replaced::forget(pins)?;
    Ok(Vec::new())
}

fn is_resized(pins: &PinDir, spec: &MapSpec, capacity: &Capacity) -> bool {
    let path = pins.map(spec.name);
    let found = sys::obj_get(&path, READ_ONLY).ok().and_then(|fd| MapSpec::info(fd.as_fd(), &path).ok());
    found.is_some_and(|found| spec.fit(&found, Some(capacity)) == Fit::Resized)
}
