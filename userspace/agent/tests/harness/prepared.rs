//! Programs on empty maps, which one agent after the other finds pinned: the kernel takes more than a second to check them all, which is most
//! of what a node costs.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use weir_core::ops::Capacity;
use weir_core::table_sizes::TableSizes;
use weir_datapath::{Datapath, PinDir};
use weir_testbed::{Netns, Pristine, bpffs};

/// Few entries: tests have few of anything, and the maps of many nodes are in memory at a time.
pub(super) fn sizes() -> Capacity {
    let TableSizes { flows, openings, sockets: _, affinities } = TableSizes::beside(16_384);
    Capacity {
        services: 4096,
        backends: 16_384,
        lines: 8192,
        frontends: 16_384,
        flows,
        openings,
        sockets: 4096,
        affinities,
        ..Capacity::DEFAULT
    }
}

/// Those of the sizes that do not follow from others, as options of an agent.
pub(super) fn options() -> [String; 6] {
    let Capacity { services, backends, lines, frontends, flows, sockets, .. } = sizes();
    [
        format!("--max-services={services}"),
        format!("--max-backends={backends}"),
        format!("--max-lines={lines}"),
        format!("--max-frontends={frontends}"),
        format!("--max-flows={flows}"),
        format!("--max-sockets={sockets}"),
    ]
}

/// What lies where an agent has its pins, as it was at first.
#[derive(Debug)]
pub(super) struct Prepared {
    pristine: Pristine,
    /// Names of the directories, by which other maps and programs are told from these.
    directories: Vec<OsString>,
}

/// Those that no agent has, and where they are meanwhile.
static IDLE: Mutex<Vec<(PathBuf, Prepared)>> = Mutex::new(Vec::new());

impl Prepared {
    /// Has an agent in a namespace find programs on empty maps at `pins`.
    pub(super) fn at(pins: &Path, netns: &Netns) -> Self {
        static AT_EXIT: Once = Once::new();
        // SAFETY: the function lives as long as the process, and does not unwind.
        AT_EXIT.call_once(|| assert_eq!(unsafe { nix::libc::atexit(remove_idle) }, 0));
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some((place, prepared)) = idle {
            fs::rename(place, pins).unwrap();
            return prepared;
        }
        let dir = PinDir::new(pins);
        // What the kernel tells of its compiler it tells in one namespace alone.
        drop(netns.enter(|| Datapath::open(dir.clone(), &sizes())).unwrap());
        Self { pristine: Pristine::of(&dir.maps()).unwrap(), directories: dir.entries().unwrap() }
    }

    /// Leaves them to the next agent, if maps and programs are still the same. Returns whether it did.
    pub(super) fn give_back(self, pins: &Path) -> Result<bool, Box<dyn Error>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = PinDir::new(pins);
        let links = dir.link_names()?;
        // Filters in place of links stay with the interfaces, and would write to the maps for as long as these are there.
        let filters = !links.is_empty() && !links.iter().any(|link| link.starts_with("nic_in-"));
        for link in links {
            bpffs::detach(&dir.links().join(link))?;
        }
        // A mark: an agent has served.
        for mark in dir.entries()?.into_iter().filter(|name| !self.directories.contains(name)) {
            let _ = fs::remove_dir(pins.join(mark));
        }
        if filters || dir.entries()? != self.directories || !self.pristine.restore()? {
            return Ok(false);
        }
        let name = format!("w{}-idle-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let place = pins.with_file_name(name);
        fs::rename(pins, &place)?;
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push((place, self));
        Ok(true)
    }
}

extern "C" fn remove_idle() {
    for (place, _) in IDLE.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        if let Err(error) = PinDir::new(place).remove_all(false) {
            eprintln!("{error}");
        }
    }
}
