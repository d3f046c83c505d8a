//! The BPF file system, where maps and links are pinned.

use std::fs::File;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::{Error, Result};

/// Where every tool expects it.
pub const PATH: &str = "/sys/fs/bpf";

/// Mounts bpffs at [`PATH`] unless it is there, and leaves it mounted.
///
/// # Errors
/// When the kernel has no BPF file system or the process may not mount.
pub fn ensure_mounted() -> Result<&'static Path> {
    let path = Path::new(PATH);
    if is_mounted(path)? {
        return Ok(path);
    }
    // A second mount on top would hide what others have pinned: the directory's lock makes tests take turns.
    let directory = File::open(path).map_err(Error::file("open", path))?;
    directory.lock().map_err(Error::file("lock", path))?;
    if !is_mounted(path)? {
        mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
            .map_err(Error::nix(format!("mount bpffs at {PATH}")))?;
    }
    Ok(path)
}

fn is_mounted(path: &Path) -> Result<bool> {
    let status = statfs(path).map_err(Error::nix(format!("look at {}", path.display())))?;
    Ok(status.filesystem_type() == BPF_FS_MAGIC)
}
