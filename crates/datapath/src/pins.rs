//! The pin directory: `maps-v<ABI_VERSION>/NAME` and `links/HOOK-TARGET` below one root, which one writer holds at a time.
//!
//! Maps of another ABI version live in another directory, so they are never mistaken for ours. Links do not depend on
//! the version: their program is replaced in one step, and with it the maps that it uses; or they are moved aside for a while
//! (`former.rs`), to `former-links-v<ABI_VERSION>/HOOK-TARGET`; so are maps while others of another size take their place (`replaced.rs`), to
//! `replaced-maps-v<ABI_VERSION>/NAME`, then `switched-maps-v<ABI_VERSION>/NAME`. An empty directory `serving-v<ABI_VERSION>` says whose programs serve.
//! Programs are kept in `programs-<MADE_OF>/NAME` (`kept.rs`).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use weir_abi::ABI_VERSION;

use crate::error::{Error, Result};
use crate::layout::{MapSpec, spec};
use crate::map::{Mapped, Pod, Table};
use crate::sys;

/// Where pins live unless told otherwise.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/weir";

/// Name of the directory of links, and what those of maps begin with.
const LINKS: &str = "links";
const MAPS: &str = "maps-v";

/// What the names of directories of former links begin with; the version of the agent that has found them follows.
const FORMER_LINKS: &str = "former-links-v";

/// The same of directories of maps that copies of another size replace; the version of the maps follows.
const REPLACED_MAPS: &str = "replaced-maps-v";

/// The same, once links run programs on the copies.
const SWITCHED_MAPS: &str = "switched-maps-v";

/// The same, once they are replaced: nobody needs them any more.
const UNUSED_MAPS: &str = "unused-maps-v";

/// What the names of marks begin with; the version whose programs serve follows.
const SERVING: &str = "serving-v";

/// What the names of directories of programs begin with; what they are made of follows.
const PROGRAMS: &str = "programs-";

/// `BPF_F_RDONLY`: a descriptor that reads a map and does not write it.
pub(crate) const READ_ONLY: u32 = 1 << 3;

/// The directory that holds everything that must outlive the agent.
#[derive(Clone, Debug)]
pub struct PinDir {
    root: PathBuf,
}

/// Exclusive right to write below a pin directory, until dropped.
#[derive(Debug)]
pub struct PinLock {
    _file: Flock<File>,
}

impl PinDir {
    /// The directory, whether or not it exists.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of the maps of this ABI version.
    #[must_use]
    pub fn maps(&self) -> PathBuf {
        self.root.join(format!("{MAPS}{ABI_VERSION}"))
    }

    /// Pin of a map.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Directory of maps that copies of another size replace. It is there until no link runs programs on them.
    pub(crate) fn replaced_maps(&self) -> PathBuf {
        self.root.join(format!("{REPLACED_MAPS}{ABI_VERSION}"))
    }

    /// The same, once the first link runs programs on those copies.
    pub(crate) fn switched_maps(&self) -> PathBuf {
        self.root.join(format!("{SWITCHED_MAPS}{ABI_VERSION}"))
    }

    /// The same, once none does.
    pub(crate) fn unused_maps(&self) -> PathBuf {
        self.root.join(format!("{UNUSED_MAPS}{ABI_VERSION}"))
    }

    /// Directory of the links.
    #[must_use]
    pub fn links(&self) -> PathBuf {
        self.root.join(LINKS)
    }

    /// Directory of links of an agent of another ABI version, whose programs go on behind those of this version. It is there while
    /// they do.
    #[must_use]
    pub fn former_links(&self) -> PathBuf {
        self.root.join(format!("{FORMER_LINKS}{ABI_VERSION}"))
    }

    /// Directory of the programs that are kept, by what they are made of.
    pub(crate) fn programs(&self, made_of: u64) -> PathBuf {
        self.root.join(format!("{PROGRAMS}{made_of:016x}"))
    }

    /// Where programs are until all of them are pinned.
    pub(crate) fn unfinished_programs(&self) -> PathBuf {
        self.root.join(format!("{PROGRAMS}unfinished"))
    }

    /// All directories of programs.
    ///
    /// # Errors
    /// As [`PinDir::entries`].
    pub(crate) fn all_programs(&self) -> Result<Vec<PathBuf>> {
        self.called(PROGRAMS)
    }

    /// What is there while programs of this ABI version serve, and no others do in front of them.
    fn serving(&self) -> PathBuf {
        self.root.join(format!("{SERVING}{ABI_VERSION}"))
    }

    /// What lies in the root under such a name.
    fn called(&self, kind: &str) -> Result<Vec<PathBuf>> {
        let entries = self.entries()?.into_iter();
        let such = entries.filter(|name| name.as_encoded_bytes().starts_with(kind.as_bytes()));
        Ok(such.map(|name| self.root.join(name)).collect())
    }

    /// The same, of other ABI versions.
    fn of_others(&self, kind: &str, own: &Path) -> Result<Vec<PathBuf>> {
        Ok(self.called(kind)?.into_iter().filter(|path| path != own).collect())
    }

    /// Whether it is programs of this ABI version that serve, by their mark. Agents before there were marks left none, nor any maps
    /// but their own, unless there are two versions' in turn.
    ///
    /// # Errors
    /// As [`PinDir::entries`].
    pub(crate) fn is_ours(&self) -> Result<bool> {
        let others = self.of_others(SERVING, &self.serving())?;
        Ok(others.is_empty() && (self.serving().is_dir() || self.of_others(MAPS, &self.maps())?.is_empty()))
    }

    /// Notes that programs of this ABI version serve, and no others.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn begin_serving(&self) -> Result<()> {
        let others = self.of_others(SERVING, &self.serving())?;
        // In one step, so that at no time both seem to serve, or neither does.
        if !self.serving().is_dir()
            && let Some(mark) = others.first()
        {
            rename(mark, &self.serving())?;
        }
        make_directory(&self.serving())?;
        others.iter().try_for_each(|mark| remove_directory(mark))
    }

    /// Forgets maps of this ABI version that no program uses any more: another one's serve, and ours do not go on behind them. What
    /// they know of flows is of long ago.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn forget_stale_maps(&self) -> Result<()> {
        for directory in self.others_former_links()? {
            if !pin_names(&directory)?.is_empty() {
                return Ok(());
            }
        }
        if self.is_ours()? {
            return Ok(());
        }
        pin_names(&self.maps())?.iter().try_for_each(|name| remove_pin(&self.map(name)))
    }

    /// Directories of former links that other ABI versions have moved aside.
    ///
    /// # Errors
    /// As [`PinDir::entries`].
    pub(crate) fn others_former_links(&self) -> Result<Vec<PathBuf>> {
        self.of_others(FORMER_LINKS, &self.former_links())
    }

    /// Makes the directories, readable by root alone.
    ///
    /// # Errors
    /// [`Error::NoBpffs`] where no BPF file system is mounted, and the file system's own errors.
    pub fn create(&self) -> Result<()> {
        for dir in [self.root.clone(), self.maps(), self.links()] {
            let parent = dir.parent().unwrap_or(&dir);
            if parent.is_dir() && !on_bpffs(parent)? {
                return Err(Error::NoBpffs { path: self.root.clone() });
            }
            make_directory(&dir)?;
        }
        Ok(())
    }

    /// Whether the directory is there.
    ///
    /// # Errors
    /// [`Error::Capability`] where the caller may not look: what is hidden is not absent.
    pub fn exists(&self) -> Result<bool> {
        self.root.try_exists().map_err(|e| Error::io(format!("cannot look for {}", self.root.display()), e))
    }

    /// Names of all that lies in the directory, sorted; none where it is not there.
    ///
    /// # Errors
    /// As [`PinDir::exists`], and those of the file system.
    pub fn entries(&self) -> Result<Vec<OsString>> {
        if !self.exists()? {
            return Ok(Vec::new());
        }
        let failed = |e| Error::io(format!("cannot list {}", self.root.display()), e);
        let entries = fs::read_dir(&self.root).map_err(failed)?;
        let mut names: Vec<_> = entries.map(|entry| Ok(entry.map_err(failed)?.file_name())).collect::<Result<_>>()?;
        names.sort();
        Ok(names)
    }

    /// Takes the exclusive right to write.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has it.
    pub fn lock(&self) -> Result<PinLock> {
        let dir = File::open(&self.root).map_err(|e| Error::io(format!("cannot open {}", self.root.display()), e))?;
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(PinLock { _file: file }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(Error::Locked { path: self.root.clone() }),
            Err((_, e)) => Err(Error::io(format!("cannot lock {}", self.root.display()), e.into())),
        }
    }

    /// Opens a pinned map after a look at its layout, of whatever size; with it comes its number of entries.
    ///
    /// # Errors
    /// [`Error::NotSetUp`] if there is no such pin, [`Error::Layout`] if it is a map of another kind.
    pub(crate) fn open_map(&self, spec: &MapSpec, flags: u32) -> Result<(OwnedFd, u32)> {
        let path = self.map(spec.name);
        let fd = sys::obj_get(&path, flags).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOENT) => Error::NotSetUp { path: self.maps() },
            _ => Error::io(format!("cannot open {}", path.display()), e),
        })?;
        let info = MapSpec::info(std::os::fd::AsFd::as_fd(&fd), &path)?;
        spec.require(&info, &path)?;
        Ok((fd, info.max_entries))
    }

    /// Opens a pinned hash map by name, or an array that is read by system call. `flags`: 0, or [`READ_ONLY`].
    ///
    /// # Errors
    /// As [`PinDir::open_map`].
    pub(crate) fn table<K: Pod, V: Pod>(&self, name: &'static str, flags: u32) -> Result<Table<K, V>> {
        Ok(Table::new(name, self.open_map(&spec(name), flags)?.0))
    }

    /// Opens a pinned array by name as memory. `flags`: 0, or [`READ_ONLY`].
    ///
    /// # Errors
    /// As [`PinDir::open_map`], and when the memory cannot be mapped.
    pub(crate) fn mapped<T: Pod>(&self, name: &'static str, flags: u32) -> Result<Mapped<T>> {
        // The kernel maps memory only of descriptors that may write; whether we may is a matter of the mapping.
        let (fd, len) = self.open_map(&spec(name), 0)?;
        Mapped::new(name, &fd, len, flags == 0)
    }

    /// Names of the pins in the directory of links.
    ///
    /// # Errors
    /// Those of the file system; a missing directory is an empty one.
    pub fn link_names(&self) -> Result<Vec<String>> {
        pin_names(&self.links())
    }

    /// Whether a name in the root is one of ours, of whatever version.
    #[must_use]
    pub fn is_own(name: &str) -> bool {
        name == LINKS
            || [MAPS, FORMER_LINKS, REPLACED_MAPS, SWITCHED_MAPS, UNUSED_MAPS, SERVING, PROGRAMS]
                .iter()
                .any(|kind| name.starts_with(kind))
    }

    /// Whether a pin is one of a link, by the directory that it is in.
    #[must_use]
    pub fn is_link(&self, pin: &Path) -> bool {
        self.directory_of(pin).is_some_and(|name| name == LINKS || name.starts_with(FORMER_LINKS))
    }

    /// Whether a pin is one of a program, in the same way.
    #[must_use]
    pub fn is_program(&self, pin: &Path) -> bool {
        self.directory_of(pin).is_some_and(|name| name.starts_with(PROGRAMS))
    }

    fn directory_of<'a>(&self, pin: &'a Path) -> Option<&'a str> {
        pin.strip_prefix(&self.root).ok()?.iter().next().and_then(OsStr::to_str)
    }

    /// Removes every pin, links first, so that no program runs on maps that are half gone. Traffic is no longer served.
    /// Returns what was (or with `dry_run` would be) removed.
    ///
    /// # Errors
    /// [`Error::Capability`] where the caller may not look or not remove, and those of the file system.
    pub fn remove_all(&self, dry_run: bool) -> Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        if !self.exists()? {
            return Ok(removed);
        }
        let mut dirs = vec![self.links()];
        dirs.extend(self.entries()?.iter().map(|name| self.root.join(name)).filter(|path| *path != self.links()));
        for dir in dirs.into_iter().filter(|dir| dir.is_dir()) {
            let entries = fs::read_dir(&dir).map_err(|e| Error::io(format!("cannot list {}", dir.display()), e))?;
            let mut pins: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            pins.sort();
            for pin in pins {
                if !dry_run {
                    fs::remove_file(&pin).map_err(|e| Error::io(format!("cannot remove {}", pin.display()), e))?;
                }
                removed.push(pin);
            }
            if !dry_run {
                fs::remove_dir(&dir).map_err(|e| Error::io(format!("cannot remove {}", dir.display()), e))?;
            }
        }
        if !dry_run {
            fs::remove_dir(&self.root).map_err(|e| Error::io(format!("cannot remove {}", self.root.display()), e))?;
        }
        Ok(removed)
    }
}

/// Makes a directory for root alone, unless it is there.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io(format!("cannot make directory {}", path.display()), e))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io(format!("cannot move {} to {}", from.display(), to.display()), e))
}

/// Removes a pin, if it is there.
pub(crate) fn remove_pin(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove {}", path.display()), e))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes an empty directory, if it is there.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    match fs::remove_dir(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove {}", path.display()), e))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Names of the pins in a directory, sorted; none where it is not there.
pub(crate) fn pin_names(directory: &Path) -> Result<Vec<String>> {
    let mut names = match fs::read_dir(directory) {
        Ok(dir) => dir.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(Error::io(format!("cannot list {}", directory.display()), e)),
    };
    names.sort();
    Ok(names)
}

fn on_bpffs(path: &Path) -> Result<bool> {
    let stat = nix::sys::statfs::statfs(path)
        .map_err(|e| Error::io(format!("cannot inspect the file system of {}", path.display()), e.into()))?;
    Ok(stat.filesystem_type() == nix::sys::statfs::BPF_FS_MAGIC)
}
