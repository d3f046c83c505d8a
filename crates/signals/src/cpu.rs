//! The machine's CPUs, from /proc/stat: proc_stat(5).

use std::path::Path;
use std::time::Instant;

use weir_core::load::Share;

use crate::meter::{Meter, SHORTEST_WINDOW, number};
use crate::source::{Failure, Source};
use crate::text::{TextFile, integer, lines, words};

/// Times in `USER_HZ` (hundredths of a second) since the start, summed over all CPUs, and how many of those there are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CpuTimes {
    /// Running something, or taken by the hypervisor: either way it cannot be had.
    pub busy: u64,
    /// Idle.
    pub idle: u64,
    /// Idle while something waits for a disk. "The value in this field will decrease in certain conditions".
    pub iowait: u64,
    /// CPUs that are online.
    pub cores: u32,
}

/// Reads the content of /proc/stat. `None` if the line of all CPUs or all lines of single ones are missing, or if
/// nothing follows them: the file was cut.
#[must_use]
pub fn parse(text: &[u8]) -> Option<CpuTimes> {
    let mut lines = lines(text);
    let mut fields = words(lines.next()?);
    if fields.next()? != b"cpu" {
        return None;
    }
    let mut field = || fields.next().and_then(integer);
    // Guests' time is part of user and nice.
    let [user, nice, system, idle, iowait, irq, softirq, steal] =
        [field()?, field()?, field()?, field()?, field()?, field()?, field()?, field()?];
    let busy = [user, nice, system, irq, softirq, steal].into_iter().try_fold(0_u64, u64::checked_add)?;
    let mut lines = lines.peekable();
    let mut cores = 0;
    while lines.next_if(|line| line.starts_with(b"cpu")).is_some() {
        cores += 1;
    }
    let complete = cores > 0 && lines.next().is_some();
    complete.then_some(CpuTimes { busy, idle, iowait, cores })
}

/// How much of some CPUs is in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuUse {
    /// Of `capacity`.
    pub share: Share,
    /// Cores that there are.
    pub capacity: f64,
}

/// The machine's CPUs. In 100 ms a core counts 10: the coarseness is for who uses it to smooth.
#[derive(Debug)]
pub struct MachineCpu {
    file: TextFile,
    meter: Meter<2>,
    /// The most seen: it goes back by itself.
    iowait: u64,
}

impl MachineCpu {
    /// Of the machine whose /proc this is.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        Self { file: TextFile::new(proc.join("stat")), meter: Meter::new(SHORTEST_WINDOW), iowait: 0 }
    }
}

impl Source for MachineCpu {
    type Value = CpuUse;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn read(&mut self, now: Instant) -> Result<Option<CpuUse>, Failure> {
        let CpuTimes { busy, idle, iowait, cores } = self.file.parse("times of all CPUs", parse)?;
        self.iowait = self.iowait.max(iowait);
        let step = self.meter.advance([busy, idle.saturating_add(self.iowait)], now).map_err(|gap| {
            self.iowait = iowait;
            self.meter.restart([busy, idle.saturating_add(iowait)], now);
            gap.failure(self.file.object())
        })?;
        let Some(step) = step else { return Ok(None) };
        let [busy, idle] = step.by.map(number);
        if busy + idle <= 0.0 {
            return Err(Failure::Stalled { object: self.file.object(), silence: step.over });
        }
        Ok(Some(CpuUse { share: Share::clamped(busy / (busy + idle)), capacity: f64::from(cores) }))
    }
}
