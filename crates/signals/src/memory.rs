//! The machine's memory, from /proc/meminfo: what cannot be had without swapping.

use std::path::Path;
use std::time::Instant;

use weir_core::load::Share;

use crate::meter::number;
use crate::source::{Failure, Source};
use crate::text::{TextFile, integer_after};

/// What there is, in KiB.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What new programs could have: `MemAvailable`, which counts reclaimable caches.
    pub available: u64,
}

/// Reads the content of /proc/meminfo. `None` if one of the two lines is missing.
#[must_use]
pub fn parse(text: &[u8]) -> Option<Memory> {
    let [total, available] = [integer_after(text, b"MemTotal:")?, integer_after(text, b"MemAvailable:")?];
    Some(Memory { total, available })
}

/// The machine's memory.
#[derive(Debug)]
pub struct MachineMemory {
    file: TextFile,
}

impl MachineMemory {
    /// Of the machine whose /proc this is.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        Self { file: TextFile::new(proc.join("meminfo")) }
    }
}

impl Source for MachineMemory {
    type Value = Share;

    fn name(&self) -> &'static str {
        "memory"
    }

    fn read(&mut self, _now: Instant) -> Result<Option<Share>, Failure> {
        let Memory { total, available } = self.file.parse("MemTotal and MemAvailable", parse)?;
        // Nothing of nothing is no number, more available than there is is negative: both are refused.
        let used = (number(total) - number(available)) / number(total);
        Share::new(used).map(Some).map_err(|cause| Failure::Lie { object: self.file.object(), cause })
    }
}
