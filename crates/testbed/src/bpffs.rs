//! The BPF file system, where maps and links are pinned.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::bpf_cmd;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::prog_run::{bpf, unset};
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

/// Detaches a pinned link from whatever its program runs for, and removes the pin. When it returns no packet meets the program any more; of a pin
/// that is only removed the kernel takes care later.
///
/// # Errors
/// When it is no pinned link, or cannot be detached.
pub fn detach(pin: &Path) -> Result<()> {
    let link = pinned(pin).map_err(Error::file("open", pin))?;
    let mut attr = unset();
    attr.link_detach.link_fd = link.as_raw_fd().unsigned_abs();
    match bpf(bpf_cmd::BPF_LINK_DETACH, &mut attr) {
        // The interface is gone.
        Err(error) if error.raw_os_error() != Some(libc::ENOLINK) => return Err(Error::file("detach", pin)(error)),
        Ok(_) | Err(_) => {}
    }
    std::fs::remove_file(pin).map_err(Error::file("remove", pin))
}

/// Opens what is pinned at a path.
pub(crate) fn pinned(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let mut attr = unset();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    let fd = bpf(bpf_cmd::BPF_OBJ_GET, &mut attr)?;
    // SAFETY: the kernel has just made the descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn is_mounted(path: &Path) -> Result<bool> {
    let status = statfs(path).map_err(Error::nix(format!("look at {}", path.display())))?;
    Ok(status.filesystem_type() == BPF_FS_MAGIC)
}
