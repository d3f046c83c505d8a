//! How often the programs ran, and for how long, as far as the kernel measures it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kept;
use crate::load::Datapath;
use crate::sys;

/// What became of a program since it was loaded. Both are 0 unless the kernel counts: `sysctl kernel.bpf_stats_enabled=1`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProgramUse {
    /// Its name.
    pub name: String,
    /// How often it ran.
    pub runs: u64,
    /// How long, all together, on all CPUs.
    pub time: Duration,
}

/// The loaded programs, by the directory that they are kept in: some come later than others.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Datapath {
    /// The programs that this process attaches. Other ones of a process before are gone by the time that these are attached.
    #[must_use]
    pub fn programs(&self) -> Programs {
        Programs(self.kept.clone())
    }
}

impl Programs {
    /// All of them, in the order of their names.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn uses(&self) -> Result<Vec<ProgramUse>> {
        let used = |(name, fd): (String, OwnedFd)| {
            let info = sys::program_info(fd.as_fd());
            let info = info.map_err(|e| Error::io(format!("cannot inspect program {name}"), e))?;
            let time = Duration::from_nanos(info.run_time_ns);
            Ok(ProgramUse { name, runs: info.run_cnt, time })
        };
        kept::open(&self.0)?.into_iter().map(used).collect()
    }
}
