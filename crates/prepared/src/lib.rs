//! Programs on empty maps, which one test after the other finds pinned: the kernel takes seconds to check all programs, which is most
//! of what a test would take.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use weir_core::ops::Capacity;
use weir_datapath::{Datapath, PinDir};
use weir_testbed::{Pristine, bpffs};

/// Programs are made of what the kernel tells of its compiler, too, and that it tells in the first network namespace alone: an agent in
/// another one would load them anew.
const COMPILER: &str = "/proc/sys/net/core/bpf_jit_enable";

/// What went wrong: a test shows it and ends.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What lies in a pin directory, as it was at first.
#[derive(Debug)]
pub struct Prepared {
    dir: PinDir,
    /// For whom they are.
    kind: Kind,
    pristine: Pristine,
    /// Names of the directories, by which other maps and programs are told from these.
    directories: Vec<OsString>,
}

/// What must be the same for two to have the same programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Kind {
    capacity: Capacity,
    knows_compiler: bool,
}

/// Those that no test has, each where it lies meanwhile.
static IDLE: Mutex<Vec<Prepared>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<Prepared>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Prepared {
    /// Has whoever opens a directory that is not there yet, in the calling thread's network namespace, find programs on empty maps of
    /// these sizes.
    ///
    /// # Errors
    /// When the kernel refuses them.
    pub fn at(dir: &PinDir, capacity: &Capacity) -> Result<Self> {
        static AT_EXIT: Once = Once::new();
        // SAFETY: the function lives as long as the process, and does not unwind.
        AT_EXIT.call_once(|| assert_eq!(unsafe { libc::atexit(remove_idle) }, 0));
        let kind = Kind { capacity: *capacity, knows_compiler: fs::exists(COMPILER)? };
        let found = idle().extract_if(.., |idle| idle.kind == kind).next();
        if let Some(found) = found {
            fs::rename(found.dir.root(), dir.root())?;
            return Ok(Self { dir: dir.clone(), ..found });
        }
        drop(Datapath::open(dir.clone(), capacity)?);
        let pristine = Pristine::of(&dir.maps())?;
        Ok(Self { dir: dir.clone(), kind, pristine, directories: dir.entries()? })
    }

    /// Leaves them to the next test, if maps and programs are still the same. Returns whether it did: else what is there is
    /// the caller's to remove.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn give_back(self) -> Result<bool> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let links = self.dir.link_names()?;
        // Filters in place of links stay with the interfaces, and would write to the maps for as long as these are there.
        let filters = !links.is_empty() && !links.iter().any(|link| link.starts_with("nic_in-"));
        for link in links {
            bpffs::detach(&self.dir.links().join(link))?;
        }
        // A mark: an agent has served.
        for mark in self.dir.entries()?.into_iter().filter(|name| !self.directories.contains(name)) {
            let _ = fs::remove_dir(self.dir.root().join(mark));
        }
        if filters || self.dir.entries()? != self.directories || !self.pristine.restore()? {
            return Ok(false);
        }
        // `World::sweep` removes what has such a name if its process is gone.
        let name = format!("w{}-idle-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let place = PinDir::new(Path::new(bpffs::PATH).join(name));
        fs::rename(self.dir.root(), place.root())?;
        idle().push(Self { dir: place, ..self });
        Ok(true)
    }
}

extern "C" fn remove_idle() {
    for Prepared { dir, .. } in idle().drain(..) {
        if let Err(error) = dir.remove_all(false) {
            eprintln!("{error}");
        }
    }
}
