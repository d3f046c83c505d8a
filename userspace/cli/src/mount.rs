//! `weir mount`: the file systems that Weir needs, on nodes that have not mounted them. Elsewhere it does nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use serde::Serialize;

use crate::exit::Answer;
use crate::output::{Kind, Output, Row};

/// What this process sees mounted.
pub(crate) const MOUNTS: &str = "/proc/self/mounts";

/// The number of the root's directory in a cgroup hierarchy: `cgroup_setup_root` in kernel/cgroup/cgroup.c insists on it.
const ROOT_INODE: u64 = 1;

/// Options of `mount`.
#[derive(Args, Debug)]
pub(crate) struct MountArgs {
    /// Where the BPF file system belongs
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf")]
    bpffs_at: PathBuf,
    /// Where cgroup v2 is mounted if it is mounted nowhere; the directory is made
    #[arg(long, value_name = "DIR", default_value = "/run/weir/cgroup2")]
    cgroup_at: PathBuf,
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct MountRow {
    file_system: &'static str,
    path: PathBuf,
    action: &'static str,
}

impl MountRow {
    const fn new(file_system: &'static str, path: PathBuf, mounted_now: bool) -> Self {
        Self { file_system, path, action: if mounted_now { "mounted" } else { "was mounted" } }
    }
}

impl Row for MountRow {
    const KIND: Kind = Kind::MountList;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["FILE-SYSTEM", "PATH", "ACTION"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        vec![self.file_system.to_owned(), self.path.display().to_string(), self.action.to_owned()]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.file_system, self.path.display())
    }
}

/// Runs the command.
pub(crate) fn run(args: &MountArgs, output: &Output) -> Result<Answer> {
    let rows = [bpffs(&args.bpffs_at)?, cgroup2(&args.cgroup_at)?];
    output.print(&output.list(&rows)?)?;
    Ok(Answer::Yes)
}

fn bpffs(at: &Path) -> Result<MountRow> {
    let found =
        statfs(at).with_context(|| format!("cannot look at {}: is this kernel built with BPF?", at.display()))?;
    let missing = found.filesystem_type() != BPF_FS_MAGIC;
    if missing {
        // As systemd mounts it: what is pinned is root's.
        mount_at("bpf", at, Some("mode=0700"))?;
    }
    Ok(MountRow::new("bpf", at.to_owned(), missing))
}

fn cgroup2(at: &Path) -> Result<MountRow> {
    let mounts = fs::read_to_string(MOUNTS).with_context(|| format!("cannot read {MOUNTS}"))?;
    if let Some(there) = mounted_cgroup2(&mounts) {
        return Ok(MountRow::new("cgroup2", there, false));
    }
    fs::create_dir_all(at).with_context(|| format!("cannot make {}", at.display()))?;
    mount_at("cgroup2", at, None)?;
    let root = fs::metadata(at).with_context(|| format!("cannot look at {}", at.display()))?;
    if root.ino() != ROOT_INODE {
        umount2(at, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {} again", at.display()))?;
        bail!(
            "what this process can mount is not the root of the node's cgroups but a part of it: run it outside of cgroup \
             namespaces, on the host or in a privileged container"
        );
    }
    Ok(MountRow::new("cgroup2", at.to_owned(), true))
}

/// The first place in a table of mounts where cgroup v2 is mounted.
pub(crate) fn mounted_cgroup2(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, target, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(target))
    })
}

fn mount_at(kind: &str, at: &Path, options: Option<&str>) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some(kind), at, Some(kind), flags, options).with_context(|| {
        format!("cannot mount {kind} at {}: run it as root on the node, or in a privileged container", at.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_v2_is_found_beside_v1_and_not_taken_for_it() {
        let v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        assert_eq!(mounted_cgroup2(v1), None);
        let hybrid = format!("{v1}cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n");
        assert_eq!(mounted_cgroup2(&hybrid), Some("/sys/fs/cgroup/unified".into()));
    }
}
