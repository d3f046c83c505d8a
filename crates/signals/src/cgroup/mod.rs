//! Control groups of both versions: what a group uses of its limits.
//!
//! In v1 each controller has a hierarchy of its own, in v2 they share one; a machine may have some of each. A group is
//! named by its path below the root, which is the same in all of them.

mod cpu;
pub mod kubelet;
mod memory;

use std::fs;
use std::path::{Path, PathBuf};

pub use cpu::{GroupCpu, GroupCpuUse};
pub use memory::{GroupMemory, GroupMemoryUse};

use crate::source::Failure;
use crate::text::missing;

/// Every group has this file.
const PROCESSES: &str = "cgroup.procs";

/// Where the controllers of CPU and memory are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hierarchies {
    /// CPU time and its quota.
    pub cpu: CpuHierarchy,
    /// Memory.
    pub memory: MemoryHierarchy,
}

/// Where CPU time is counted and limited.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CpuHierarchy {
    /// Two controllers, most often in one hierarchy.
    V1 {
        /// Root of `cpu`.
        quota: PathBuf,
        /// Root of `cpuacct`.
        usage: PathBuf,
    },
    /// The root.
    V2(PathBuf),
}

/// Where memory is counted and limited.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MemoryHierarchy {
    /// Root of `memory`.
    V1(PathBuf),
    /// The root.
    V2(PathBuf),
}

impl Hierarchies {
    /// What is mounted at the usual place, /sys/fs/cgroup: v2 there or in `unified`, v1 in a directory for each
    /// controller.
    ///
    /// # Errors
    /// [`Failure::Missing`] or [`Failure::Malformed`] if a controller is nowhere.
    pub fn find(mount: &Path) -> Result<Self, Failure> {
        fs::metadata(mount).map_err(|cause| missing(mount, cause))?;
        let nowhere = |what| Failure::Malformed { object: mount.display().to_string(), what };
        let v1 = |controller: &str| Some(mount.join(controller)).filter(|root| root.join(PROCESSES).exists());
        let cpu = match (v2(mount, "cpu"), v1("cpu"), v1("cpuacct")) {
            (Some(root), ..) => CpuHierarchy::V2(root),
            (None, Some(quota), Some(usage)) => CpuHierarchy::V1 { quota, usage },
            (None, ..) => return Err(nowhere("cgroup controllers cpu and cpuacct")),
        };
        let memory = match (v2(mount, "memory"), v1("memory")) {
            (Some(root), _) => MemoryHierarchy::V2(root),
            (None, Some(root)) => MemoryHierarchy::V1(root),
            (None, None) => return Err(nowhere("cgroup controller memory")),
        };
        Ok(Self { cpu, memory })
    }

    /// CPU of a group.
    #[must_use]
    pub fn cpu(&self, group: &Path) -> GroupCpu {
        GroupCpu::new(&self.cpu, group)
    }

    /// Memory of a group.
    #[must_use]
    pub fn memory(&self, group: &Path) -> GroupMemory {
        GroupMemory::new(&self.memory, group)
    }

    /// The file of a group that tells the pressure on its CPUs. Only v2 has one.
    #[must_use]
    pub fn pressure(&self, group: &Path) -> Option<PathBuf> {
        match &self.cpu {
            CpuHierarchy::V1 { .. } => None,
            CpuHierarchy::V2(root) => Some(below(root, group).join("cpu.pressure")),
        }
    }

    /// The directory of a group in the hierarchy of its CPU time.
    pub(crate) fn directory(&self, group: &Path) -> PathBuf {
        match &self.cpu {
            CpuHierarchy::V1 { usage: root, .. } | CpuHierarchy::V2(root) => below(root, group),
        }
    }
}

/// The root of v2, if it has this controller: those that v1 has are not in the list.
fn v2(mount: &Path, controller: &str) -> Option<PathBuf> {
    let has = |root: &PathBuf| {
        let list = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        list.split_whitespace().any(|word| word == controller)
    };
    [mount.to_owned(), mount.join("unified")].into_iter().find(has)
}

/// A group's directory, whether or not its name begins with a slash.
fn below(root: &Path, group: &Path) -> PathBuf {
    root.join(group.strip_prefix("/").unwrap_or(group))
}
