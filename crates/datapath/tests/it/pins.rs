//! A pin directory of one test, removed afterwards, or emptied for the next one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use weir_core::model::Service;
use weir_core::ops::Capacity;
use weir_datapath::{Datapath, Hook, PinDir, Result};
use weir_prepared::Prepared;
use weir_testbed::address::CLIENT;
use weir_testbed::{bpffs, require_root};

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

/// Removes all pins when dropped, whether or not the test passed, or leaves them to the next one.
#[derive(Debug)]
pub(crate) struct Pins {
    pub(crate) dir: PinDir,
    prepared: Option<Prepared>,
}

impl Pins {
    /// None, with a message, if this machine cannot run the test.
    pub(crate) fn new(what: &str) -> Option<Self> {
        if !require_root(what) {
            return None;
        }
        let root = bpffs::ensure_mounted().unwrap().join(unique_name());
        Some(Self { dir: PinDir::new(root), prepared: None })
    }

    /// The same, with programs on maps of the sizes of [`SMALL`], in which nothing is; another test may have made them.
    pub(crate) fn reused(what: &str) -> Option<Self> {
        let mut pins = Self::new(what)?;
        pins.prepare(&SMALL);
        Some(pins)
    }

    /// Has whoever opens them in the calling thread's namespace find programs on empty maps of these sizes.
    pub(crate) fn prepare(&mut self, capacity: &Capacity) {
        self.prepared = Some(Prepared::at(&self.dir, capacity).unwrap());
    }

    /// What the next test would find is not what this one has found.
    pub(crate) fn keep_from_others(&mut self) {
        self.prepared = None;
    }

    pub(crate) fn open(&self) -> Result<Datapath> {
        self.open_with(&SMALL)
    }

    pub(crate) fn open_with(&self, capacity: &Capacity) -> Result<Datapath> {
        Datapath::open(self.dir.clone(), capacity)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let found = self.prepared.take().filter(|_| !thread::panicking());
        let left = Prepared::leave(found, &self.dir);
        assert!(left.is_ok() || thread::panicking(), "{left:?}");
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
