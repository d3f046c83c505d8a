//! Programs on empty maps, which one test after the other finds pinned: the kernel takes seconds to check all programs, which is most
//! of what a test would take.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use weir_core::ops::Capacity;
use weir_datapath::{COMPILER, Datapath, PinDir};
use weir_testbed::{Pristine, bpffs};

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
    /// Programs are made of what the kernel tells of its compiler, too: where it does not tell, an agent would load them anew.
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
        let kind = Kind { capacity: *capacity, knows_compiler: COMPILER.iter().any(|path| Path::new(path).exists()) };
        if let Some(at) = Self::take(kind, dir)? {
            return Ok(at);
        }
        drop(Datapath::open(dir.clone(), capacity)?);
        let pristine = Pristine::of(&dir.maps())?;
        Ok(Self { dir: dir.clone(), kind, pristine, directories: dir.entries()? })
    }

    /// One that is idle, moved to a directory.
    fn take(kind: Kind, dir: &PinDir) -> Result<Option<Self>> {
        let mut idle = idle();
        let Some(at) = idle.iter().position(|idle| idle.kind == kind) else { return Ok(None) };
        fs::rename(idle[at].dir.root(), dir.root())?;
        Ok(Some(Self { dir: dir.clone(), ..idle.swap_remove(at) }))
    }

    /// Leaves what a test has found in a directory to the next one, if maps and programs are still the same; else, and if it was nothing, removes
    /// what is there.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn leave(found: Option<Self>, dir: &PinDir) -> Result<()> {
        let given = found.map_or(Ok(false), Self::give_back);
        if !matches!(given, Ok(true)) {
            dir.remove_all(false)?;
        }
        given.map(drop)
    }

    /// Whether it did.
    fn give_back(self) -> Result<bool> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !self.dir.root().exists() {
            return Ok(false);
        }
        for link in self.dir.link_names()? {
            bpffs::detach(&self.dir.links().join(link))?;
        }
        // A mark: an agent has served.
        for mark in self.dir.entries()?.into_iter().filter(|name| !self.directories.contains(name)) {
            let _ = fs::remove_dir(self.dir.root().join(mark));
        }
        if self.dir.entries()? != self.directories || !self.pristine.restore()? {
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

/// Whether programs of a directory run by filters in place of links. These stay with the interfaces, and would write to the maps for as long
/// as these are there: nobody else may have them.
#[must_use]
pub fn has_filters(dir: &PinDir) -> bool {
    let links = dir.link_names().unwrap_or_default();
    !links.is_empty() && !links.iter().any(|link| link.starts_with("nic_in-"))
}

extern "C" fn remove_idle() {
    for Prepared { dir, .. } in idle().drain(..) {
        if let Err(error) = dir.remove_all(false) {
            eprintln!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_abi as abi;
    use weir_testbed::require_root;

    use super::*;

    /// Each test has a size of its own, so that nobody else takes what it leaves.
    fn small(openings: u32) -> Capacity {
        Capacity { backends: 256, frontends: 64, flows: 1024, sockets: 64, openings, ..Capacity::DEFAULT }
    }

    fn dir(name: &str) -> PinDir {
        PinDir::new(bpffs::ensure_mounted().unwrap().join(format!("w{}-prepared-{name}", std::process::id())))
    }

    /// The seed that an agent finds when it opens the maps, before it writes this one.
    fn seed_before(dir: &PinDir, capacity: &Capacity, seed: u64) -> u64 {
        let datapath = Datapath::open(dir.clone(), capacity).unwrap();
        assert!(datapath.adopted());
        let before = datapath.config().unwrap();
        datapath.configure(&abi::Config { hash_seed: seed, ..before }).unwrap();
        before.hash_seed
    }

    #[test]
    fn the_next_test_finds_the_same_programs_on_maps_that_are_empty_again() {
        if !require_root("programs that one test after the other finds") {
            return;
        }
        let (one, other, capacity) = (dir("one"), dir("other"), small(256));
        let found = Prepared::at(&one, &capacity).unwrap();
        let first = seed_before(&one, &capacity, 77);
        // What programs are made of, the numbers of their maps among it, is in the name of their directory.
        let programs = one.entries().unwrap();
        Prepared::leave(Some(found), &one).unwrap();
        assert!(!one.root().exists());

        let found = Prepared::at(&other, &capacity).unwrap();
        assert_eq!(other.entries().unwrap(), programs);
        assert_eq!(seed_before(&other, &capacity, 78), first);
        Prepared::leave(Some(found), &other).unwrap();
        assert!(!other.root().exists());
    }

    #[test]
    fn what_is_not_as_it_was_is_removed_and_nobody_finds_it() {
        if !require_root("programs that no other test finds") {
            return;
        }
        let (dir, capacity) = (dir("changed"), small(128));
        let found = Prepared::at(&dir, &capacity).unwrap();
        let programs = dir.entries().unwrap();
        fs::remove_file(dir.map("config")).unwrap();
        drop(Datapath::open(dir.clone(), &capacity).unwrap());
        assert_ne!(dir.entries().unwrap(), programs);
        Prepared::leave(Some(found), &dir).unwrap();
        assert!(!dir.root().exists() && idle().iter().all(|idle| idle.kind.capacity != capacity));
    }
}
