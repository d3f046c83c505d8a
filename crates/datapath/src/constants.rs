//! What programs have as constants, and only the loader knows.

use std::fs;

use aya::EbpfLoader;
use weir_abi as abi;

use crate::clock::tick_clock;
use crate::error::{Error, Result};

/// By their names in `bpf/lib`.
#[derive(Debug)]
pub(crate) struct Constants {
    opening_sets: u32,
    opening_step: u32,
    reorders_reads: u32,
    room_beside_tcp: u32,
    errors_told: u32,
    tick_shift: u32,
    remembers_routes: u32,
}

/// What `uname -v` says: how the kernel was built, in words.
const VERSION: &str = "/proc/sys/kernel/version";
/// That it interrupts nearly everything.
const REALTIME: &str = "PREEMPT_RT";
/// A CPU tells so many refusals in a tick in any case: a few clients' worth.
const LEAST_ERRORS_TOLD: u32 = 16;

impl Constants {
    /// For so many sets of flows that begin, and entries of a table of those that go on. Of these each CPU may fill so many with others than TCP's until
    /// they are idle and taken out that half of the table is for connections, which must not be lost. What a CPU may do is its part of what the node may, by the
    /// CPUs that run: a machine may have room for many more.
    ///
    /// # Errors
    /// When the kernel does not tell how long a jiffy is, or which CPUs run.
    pub(crate) fn new(opening_sets: u32, flows: u32) -> Result<Self> {
        let cpus = running_cpus()?;
        let room_beside_tcp = (flows / 2 / cpus).max(1);
        let errors_told = errors_told(cpus);
        let (opening_step, tick_shift) = (abi::opening_step(opening_sets), tick_clock()?.shift());
        // A processor of this kind reads memory in the order that a program says.
        let reorders_reads = (!cfg!(any(target_arch = "x86", target_arch = "x86_64"))).into();
        // Since Linux 6.18 such a kernel may let a program interrupt another one of its CPU (PREEMPT_RT_NEEDS_BH_LOCK).
        let version = fs::read_to_string(VERSION).map_err(|e| Error::io(format!("cannot read {VERSION}"), e))?;
        let remembers_routes = (!is_realtime(&version)).into();
        Ok(Self {
            opening_sets,
            opening_step,
            reorders_reads,
            room_beside_tcp,
            errors_told,
            tick_shift,
            remembers_routes,
        })
    }

    /// Has all objects of a loader have them. One that does not use a constant lacks it.
    pub(crate) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        let Self {
            opening_sets,
            opening_step,
            reorders_reads,
            room_beside_tcp,
            errors_told,
            tick_shift,
            remembers_routes,
        } = self;
        loader.override_global("opening_sets", opening_sets, false);
        loader.override_global("opening_step", opening_step, false);
        loader.override_global("reorders_reads", reorders_reads, false);
        loader.override_global("room_beside_tcp", room_beside_tcp, false);
        loader.override_global("errors_told", errors_told, false);
        loader.override_global("tick_shift", tick_shift, false);
        loader.override_global("remembers_routes", remembers_routes, false);
    }
}

/// By what [`VERSION`] says.
fn is_realtime(version: &str) -> bool {
    version.split_whitespace().any(|word| word == REALTIME)
}

/// Refusals that each of so many CPUs tells in a tick.
#[must_use]
pub fn errors_told(cpus: u32) -> u32 {
    (abi::ERRORS_TOLD / cpus).max(LEAST_ERRORS_TOLD)
}

/// How many CPUs run.
///
/// # Errors
/// When the kernel does not tell.
pub fn running_cpus() -> Result<u32> {
    let online = aya::util::online_cpus().map_err(|(of, e)| Error::io(of, e))?;
    Ok(u32::try_from(online.len()).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use weir_core::ops::Capacity;
    use weir_testbed::require_root;

    use super::*;
    use crate::layout::MAPS;
    use crate::objects::{self, TC, XDP};

    #[test]
    fn a_kernel_is_one_for_real_time_if_it_says_so() {
        assert!(is_realtime("#1 SMP PREEMPT_RT Debian 6.12.43-1 (2025-08-27)\n"));
        assert!(!is_realtime("#1 SMP PREEMPT_DYNAMIC Debian 6.12.43-1 (2025-08-27)\n"));
    }

    #[test]
    fn the_kernel_takes_programs_for_processors_that_reorder_reads() {
        if !require_root("programs for other processors") {
            return;
        }
        let small =
            Capacity { services: 64, backends: 64, frontends: 64, flows: 1024, openings: 1024, ..Capacity::DEFAULT };
        let constants = Constants {
            reorders_reads: 1,
            remembers_routes: 0,
            ..Constants::new(small.openings, small.flows).unwrap()
        };
        let mut loader = objects::loader();
        constants.set(&mut loader);
        // These have sets: an object that has no such constant is an error.
        loader.override_global("reorders_reads", &constants.reorders_reads, true);
        for (spec, entries) in MAPS.iter().filter_map(|spec| Some((spec, spec.entries(&small)?))) {
            loader.map_max_entries(spec.name, entries);
        }
        let mut loaded: Vec<_> =
            [&TC, &XDP].iter().map(|object| (object.name, object.load(&mut loader).unwrap())).collect();
        let all = loaded.iter_mut().flat_map(|(name, object)| object.programs_mut().map(|program| (*name, program)));
        objects::load_programs(all.collect()).unwrap();
    }
}
