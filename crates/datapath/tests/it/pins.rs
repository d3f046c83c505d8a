//! A pin directory of one test, removed afterwards, or emptied for the next one: the kernel takes more than a second to check all
//! programs, which is most of what a test would do.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use weir_core::model::Service;
use weir_core::ops::Capacity;
use weir_datapath::{Datapath, Hook, PinDir, Result};
use weir_testbed::address::CLIENT;
use weir_testbed::{Pristine, bpffs, require_root};

use crate::case::{CASES, CLUSTER_IP, PORT};
use crate::node::{Device, Node, web};
use crate::rehearsal::{Maps, maps};

/// Few entries, so that opening is fast; but before Linux 6.16 each CPU keeps 128 free ones of a table of the kernel's own to itself, and takes
/// used ones where others have none.
pub(crate) const SMALL: Capacity = Capacity {
    services: 64,
    backends: 4096,
    lines: 4096,
    frontends: 256,
    nodes: 16,
    flows: 8192,
    openings: 4096,
    sockets: 4096,
    affinities: 1024,
    source_ranges: 64,
    held_pieces: 128,
};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test of this or another run has.
pub(crate) fn unique_name() -> String {
    format!("weir-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Directories that no test uses, with programs on empty maps of the sizes of [`SMALL`].
static IDLE: Mutex<Vec<Reused>> = Mutex::new(Vec::new());

/// Pins that one test after the other has, and what their maps hold before each.
#[derive(Debug)]
struct Reused {
    dir: PinDir,
    pristine: Pristine,
}

/// Removes all pins when dropped, whether or not the test passed, or leaves them to the next one.
#[derive(Debug)]
pub(crate) struct Pins {
    pub(crate) dir: PinDir,
    pristine: Option<Pristine>,
}

impl Pins {
    /// None, with a message, if this machine cannot run the test.
    pub(crate) fn new(what: &str) -> Option<Self> {
        if !require_root(what) {
            return None;
        }
        let root = bpffs::ensure_mounted().unwrap().join(unique_name());
        Some(Self { dir: PinDir::new(root), pristine: None })
    }

    /// The same, with programs on maps of the sizes of [`SMALL`], in which nothing is; another test may have made them.
    pub(crate) fn reused(what: &str) -> Option<Self> {
        static AT_EXIT: Once = Once::new();
        // SAFETY: the function lives as long as the process, and does not unwind.
        AT_EXIT.call_once(|| assert_eq!(unsafe { libc::atexit(remove_idle) }, 0));
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(Reused { dir, pristine }) = idle {
            return Some(Self { dir, pristine: Some(pristine) });
        }
        let mut pins = Self::new(what)?;
        drop(pins.open().unwrap());
        pins.pristine = Some(Pristine::of(&pins.dir.maps()).unwrap());
        Some(pins)
    }

    /// What the next test would find is not what this one has found.
    pub(crate) fn keep_from_others(&mut self) {
        self.pristine = None;
    }

    pub(crate) fn open(&self) -> Result<Datapath> {
        self.open_with(&SMALL)
    }

    pub(crate) fn open_with(&self, capacity: &Capacity) -> Result<Datapath> {
        Datapath::open(self.dir.clone(), capacity)
    }

    /// Whether the next test may have them: nothing is attached, and nothing in the maps.
    fn empty(&self, pristine: &Pristine) -> bool {
        let links = self.dir.link_names().unwrap();
        links.iter().for_each(|link| fs::remove_file(self.dir.links().join(link)).unwrap());
        pristine.restore().unwrap()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Some(pristine) = self.pristine.take()
            && !thread::panicking()
            && self.empty(&pristine)
        {
            let reused = Reused { dir: self.dir.clone(), pristine };
            return IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(reused);
        }
        remove(&self.dir);
    }
}

extern "C" fn remove_idle() {
    for Reused { dir, pristine: _ } in IDLE.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        remove(&dir);
    }
}

fn remove(dir: &PinDir) {
    if let Err(error) = dir.remove_all(false) {
        eprintln!("{error}");
    }
}

#[test]
fn a_test_finds_nothing_in_maps_of_what_others_have_left() {
    let make = || Node::new("maps that tests have one after the other");
    let Some(mut node) = make() else { return };
    let before = maps(&node);
    node.echo_replies();
    node.serve(Service { affinity: Some(300), ..web() }, &[(1, 1), (2, 1)]);
    for case in CASES {
        let first = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &first);
    }
    let changed = |after: &Maps| before.iter().filter(|(name, entries)| after[*name] != **entries).count();
    let left = changed(&maps(&node));
    assert!(left >= 10, "{left} maps changed");
    drop(node);
    // Where another test was faster it is that one's maps.
    assert_eq!(changed(&maps(&make().unwrap())), 0);
}
