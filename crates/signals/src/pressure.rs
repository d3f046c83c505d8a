//! Pressure stall information: the share of time in which some task waited for CPU (Documentation/accounting/psi.rst).
//!
//! The kernel computes its means every two seconds. Where PSI is compiled in but off, the file is there and cannot be
//! read.

use std::path::PathBuf;
use std::time::Instant;

use weir_core::load::{Lie, Share};

use crate::source::{Failure, Source};
use crate::text::{TextFile, fraction, lines, words};

/// Reads `avg10` of the line `some`, in percent: whatever number is there. `None` if there is none, or the line was
/// cut.
#[must_use]
pub fn parse(text: &[u8]) -> Option<f64> {
    let line = lines(text).find(|line| line.starts_with(b"some "))?;
    words(line).find_map(|word| word.strip_prefix(b"avg10=")).and_then(fraction)
}

/// Pressure on the CPUs of the machine or of a cgroup.
#[derive(Debug)]
pub struct Pressure {
    file: TextFile,
}

impl Pressure {
    /// From /proc/pressure/cpu, or from a cgroup's `cpu.pressure`.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { file: TextFile::new(path) }
    }
}

impl Source for Pressure {
    type Value = Share;

    fn name(&self) -> &'static str {
        "pressure"
    }

    fn read(&mut self, _now: Instant) -> Result<Option<Share>, Failure> {
        let percent = self.file.parse("line \"some\" with avg10", parse)?;
        let share = Share::new(percent / 100.0).map(Some);
        share.map_err(|cause: Lie| Failure::Lie { object: self.file.object(), cause })
    }
}
