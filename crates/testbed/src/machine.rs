//! The machine of a node: a control group with a CPU quota that pods' processes run in. So nodes of one real machine have
//! capacities of their own, and what drives or serves them is not in it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cgroup::{self, Cgroup};
use crate::{Error, Result};

/// The time that a quota is of. Short, since a pod that has used it up sleeps for the rest.
const PERIOD: Duration = Duration::from_millis(10);

/// The group of all pods, as kubelet calls it.
const PODS: &str = "kubepods";

/// Files of v1's `cpu` and `cpuacct`.
const V1_PERIOD: &str = "cpu.cfs_period_us";
const V1_QUOTA: &str = "cpu.cfs_quota_us";
const V1_USAGE: &str = "cpuacct.usage";

/// A node's machine. On drop what runs in it is killed and it is removed; what a killed process leaves,
/// [`Cgroup::sweep`] removes.
#[derive(Debug)]
pub struct Machine {
    cgroup: Cgroup,
    controllers: Controllers,
}

/// Where CPU time is limited and counted.
#[derive(Debug)]
enum Controllers {
    /// The node's group in each hierarchy that matters, `cpu` and `cpuacct` among them.
    V1 { quota: PathBuf, usage: PathBuf, all: Vec<PathBuf> },
    /// The node's group.
    V2(PathBuf),
}

impl Machine {
    /// Makes the machine with this many cores; its group is `weir-PID-NAME`.
    ///
    /// # Errors
    /// When the name is taken, or the kernel has no controller of CPU time for us.
    pub fn create(name: &str, cores: f64) -> Result<Self> {
        let cgroup = Cgroup::create_for_node(name)?;
        let controllers = Controllers::find(&cgroup)?;
        let machine = Self { cgroup, controllers };
        machine.set_cores(cores)?;
        Ok(machine)
    }

    /// Changes its capacity at once.
    ///
    /// # Errors
    /// When the kernel refuses: a quota is at least a millisecond in ten.
    pub fn set_cores(&self, cores: f64) -> Result<()> {
        let (period, quota) = (PERIOD.as_micros(), PERIOD.mul_f64(cores).as_micros());
        match &self.controllers {
            Controllers::V1 { quota: group, .. } => {
                write(&group.join(V1_PERIOD), &period.to_string())?;
                write(&group.join(V1_QUOTA), &quota.to_string())
            }
            Controllers::V2(group) => write(&group.join("cpu.max"), &format!("{quota} {period}")),
        }
    }

    /// The path of its group below the root of every hierarchy. Groups of pods are in it where kubelet puts them if this
    /// is its `--cgroup-root`.
    #[must_use]
    pub fn group(&self) -> String {
        self.cgroup.name()
    }

    /// Its directory in the v2 hierarchy, for attaching programs.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.cgroup.path()
    }

    /// Makes a command start as a process of the pod with this uid.
    ///
    /// # Errors
    /// When the pod's group cannot be made.
    pub fn attach(&self, pod: &str, command: &mut Command) -> Result<()> {
        let group = Path::new(PODS).join(format!("pod{pod}"));
        let places = match &self.controllers {
            Controllers::V1 { all, .. } => {
                // In v2 it is where the machine's end finds and kills it.
                self.cgroup.attach(command)?;
                all.iter().map(|root| root.join(&group)).collect()
            }
            Controllers::V2(root) => vec![root.join(&group)],
        };
        for place in places {
            fs::create_dir_all(&place).map_err(Error::file("create cgroup", &place))?;
            if let (Controllers::V2(_), Some(pods)) = (&self.controllers, place.parent()) {
                write(&pods.join("cgroup.subtree_control"), "+cpu +memory")?;
            }
            let members = place.join("cgroup.procs");
            let file = File::options().write(true).open(&members).map_err(Error::file("open", &members))?;
            // "0" is the process that writes, here the child.
            let join = move || (&file).write_all(b"0");
            // SAFETY: between fork and exec the closure makes one system call on an open file and allocates nothing.
            unsafe { command.pre_exec(join) };
        }
        Ok(())
    }

    /// The CPU time that its pods have used so far.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn cpu_time(&self) -> Result<Duration> {
        let (path, field, unit) = match &self.controllers {
            Controllers::V1 { usage, .. } => (usage.join(V1_USAGE), "", Duration::from_nanos(1)),
            Controllers::V2(group) => (group.join("cpu.stat"), "usage_usec ", Duration::from_micros(1)),
        };
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<u64>().ok());
        let value =
            value.ok_or_else(|| Error::Invalid(format!("{} does not tell CPU time: {text:?}", path.display())))?;
        Ok(Duration::from_nanos(value.saturating_mul(u64::try_from(unit.as_nanos()).unwrap_or(1))))
    }
}

impl Controllers {
    fn find(cgroup: &Cgroup) -> Result<Self> {
        let mut all = cgroup.twins()?;
        let with = |all: &[PathBuf], file: &str| all.iter().find(|group| group.join(file).exists()).cloned();
        if let (Some(quota), Some(usage)) = (with(&all, V1_QUOTA), with(&all, V1_USAGE)) {
            // Others, such as `cpuset`, take nobody before they are set up.
            all.retain(|group| [V1_QUOTA, V1_USAGE, "memory.usage_in_bytes"].iter().any(|f| group.join(f).exists()));
            return Ok(Self::V1 { quota, usage, all });
        }
        let root = cgroup::root()?;
        for group in [root.as_path(), cgroup.path()] {
            write(&group.join("cgroup.subtree_control"), "+cpu +memory")?;
        }
        Ok(Self::V2(cgroup.path().to_owned()))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::file("write", path))
}
