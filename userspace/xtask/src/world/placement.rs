//! On which CPUs client and servers run. Whether the scheduler puts them side by side or apart makes a sixth of what a connection costs, and it
//! changes its mind between measurements: at a fixed rate they are always apart, as two machines are.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// This thread.
const SELF: Pid = Pid::from_raw(0);

/// The threads that the calling one starts meanwhile run on the first CPU, and the servers on the last one; all on any of them after that.
pub(super) struct Apart {
    servers: Vec<Pid>,
    all: CpuSet,
}

impl Apart {
    /// # Errors
    /// When the kernel refuses it, as for a server that has ended.
    pub(super) fn keep(servers: Vec<Pid>) -> Result<Self> {
        let all = sched_getaffinity(SELF).context("cannot tell on which CPUs this program may run")?;
        let apart = Self { servers, all };
        let [first, last] = ends(&apart.all)?;
        place(SELF, &first)?;
        apart.servers.iter().try_for_each(|server| place(*server, &last))?;
        Ok(apart)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // Who has ended needs no place.
        let _ = place(SELF, &self.all);
        self.servers.iter().for_each(|server| drop(place(*server, &self.all)));
    }
}

/// The first and the last of some CPUs; the same one where there is one.
fn ends(all: &CpuSet) -> Result<[CpuSet; 2]> {
    let mut usable = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu).unwrap_or_default());
    let first = usable.next().context("this program may run on no CPU")?;
    let last = usable.next_back().unwrap_or(first);
    let only = |cpu| {
        let mut set = CpuSet::new();
        set.set(cpu).map(|()| set)
    };
    Ok([only(first)?, only(last)?])
}

fn place(whom: Pid, cpus: &CpuSet) -> Result<()> {
    sched_setaffinity(whom, cpus).with_context(|| format!("cannot choose the CPUs of process {whom}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu).unwrap());
        set
    }

    #[test]
    fn client_and_servers_are_on_the_first_and_the_last_cpu() {
        assert_eq!(ends(&set(&[1, 2, 5])).unwrap(), [set(&[1]), set(&[5])]);
        assert_eq!(ends(&set(&[3])).unwrap(), [set(&[3]), set(&[3])]);
        assert!(ends(&set(&[])).is_err());
    }

    #[test]
    fn threads_that_start_meanwhile_are_on_the_first_cpu_and_later_ones_on_any() {
        let own = || std::thread::spawn(|| sched_getaffinity(SELF).unwrap()).join().unwrap();
        let before = own();
        let apart = Apart::keep(Vec::new()).unwrap();
        assert_eq!(own(), ends(&before).unwrap()[0]);
        drop(apart);
        assert_eq!(own(), before);
    }
}
