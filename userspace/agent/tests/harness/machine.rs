//! Control groups with a CPU quota: nodes, and pods, as many as a test needs, on one real machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_testbed::process::Process;

/// Patience with a group that is to be gone.
const GONE: Duration = Duration::from_secs(10);

/// The control group that is a node, or a pod: a twentieth of a CPU.
pub(crate) struct Machine {
    name: String,
    hierarchies: &'static [&'static str],
    busy: Option<Process>,
}

/// Hierarchies of version 1 that a node is in, and one more that a pod is in.
const HIERARCHIES: &[&str] = &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/memory"];
/// Of 100 ms, in microseconds: so little that a busy loop gets it on a machine that is busy with other tests.
const QUOTA: &str = "5000";

impl Machine {
    pub(crate) fn require(what: &str) -> bool {
        let found = HIERARCHIES.iter().all(|root| Path::new(root).join("cgroup.procs").exists());
        if !found {
            println!("SKIPPED: {what}: no hierarchies of cgroup v1 for CPU time and its quota");
        }
        found
    }

    /// A node's group.
    pub(crate) fn create(name: &str) -> Self {
        Self::within(name, &HIERARCHIES[..2])
    }

    /// A pod's group; `name` is a path.
    pub(crate) fn of_pod(name: &str) -> Self {
        Self::within(name, HIERARCHIES)
    }

    fn within(name: &str, hierarchies: &'static [&'static str]) -> Self {
        // What a killed test leaves is swept by this name (`weir_testbed::Cgroup`).
        let name = format!("weir-{}-{name}", std::process::id());
        for root in hierarchies {
            let group = Path::new(root).join(&name);
            fs::create_dir_all(&group).unwrap();
            let quota = group.join("cpu.cfs_quota_us");
            if quota.exists() {
                fs::write(quota, QUOTA).unwrap();
            }
        }
        Self { name, hierarchies, busy: None }
    }

    /// Its path below the roots of the hierarchies.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Keeps all of its CPU busy from now on.
    pub(crate) fn work(&mut self) {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let log = std::env::temp_dir().join(format!("{}.log", self.name.replace('/', "-")));
        let process = Process::start(command, "busy loop", &log).unwrap();
        let _ = fs::remove_file(log);
        for root in self.hierarchies {
            fs::write(Path::new(root).join(&self.name).join("cgroup.procs"), process.id().to_string()).unwrap();
        }
        self.busy = Some(process);
    }

    /// And idle again.
    pub(crate) fn rest(&mut self) {
        if let Some(process) = self.busy.take() {
            process.kill().unwrap();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rest();
        for root in self.hierarchies {
            let group = Path::new(root).join(&self.name);
            // What was in it takes a moment to be gone.
            let end = Instant::now() + GONE;
            while group.exists() && fs::remove_dir(&group).is_err() && Instant::now() < end {
                std::thread::yield_now();
            }
            // Those that were made for it alone.
            let above = Path::new(&self.name).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            above.for_each(|above| drop(fs::remove_dir(Path::new(root).join(above))));
        }
    }
}
