//! A pin directory of one test, removed afterwards.

use std::sync::atomic::{AtomicU32, Ordering};

use weir_datapath::{Datapath, PinDir, Result};
use weir_testbed::{bpffs, require_root};

use weir_core::ops::Capacity;

/// Few entries, so that opening is fast.
pub(crate) const SMALL: Capacity = Capacity {
    services: 64,
    backends: 4096,
    lines: 4096,
    frontends: 256,
    nodes: 16,
    flows: 8192,
    openings: 4096,
    sockets: 64,
    affinities: 1024,
    source_ranges: 64,
    held_pieces: 128,
};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test of this or another run has.
pub(crate) fn unique_name() -> String {
    format!("weir-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Removes all pins when dropped, whether or not the test passed.
#[derive(Debug)]
pub(crate) struct Pins {
    pub(crate) dir: PinDir,
}

impl Pins {
    /// None, with a message, if this machine cannot run the test.
    pub(crate) fn new(what: &str) -> Option<Self> {
        if !require_root(what) {
            return None;
        }
        let root = bpffs::ensure_mounted().unwrap().join(unique_name());
        Some(Self { dir: PinDir::new(root) })
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
        if let Err(error) = self.dir.remove_all(false) {
            eprintln!("{error}");
        }
    }
}
