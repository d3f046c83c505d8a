//! How often the programs ran, and for how long, as far as the kernel measures it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::error::{Error, Result};
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

/// The loaded programs, open for questions.
#[derive(Debug)]
pub struct Programs(Vec<(String, OwnedFd)>);

impl Datapath {
    /// The programs that this process attaches, in the order of their names. Other ones of a process before are gone by the time that
    /// these are attached.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub fn programs(&self) -> Result<Programs> {
        let owned = |name: &String| {
            let program = self.program(name).expect("the name is from the list of programs");
            let fd = program.try_clone_to_owned();
            Ok((name.clone(), fd.map_err(|e| Error::io(format!("cannot keep program {name} open"), e))?))
        };
        self.programs.keys().map(owned).collect::<Result<_>>().map(Programs)
    }
}

impl Programs {
    /// All of them.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn uses(&self) -> Result<Vec<ProgramUse>> {
        let used = |(name, fd): &(String, OwnedFd)| {
            let info = sys::program_info(fd.as_fd());
            let info = info.map_err(|e| Error::io(format!("cannot inspect program {name}"), e))?;
            let time = Duration::from_nanos(info.run_time_ns);
            Ok(ProgramUse { name: name.clone(), runs: info.run_cnt, time })
        };
        self.0.iter().map(used).collect()
    }
}
