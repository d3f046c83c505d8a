//! Whatever a flood has left in the flow tables, a pass over them takes no memory for each flow: a C library keeps what a thread
//! had once, and the agent that started over full tables would have twice as much as one that started before the flood.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use aya::maps::{HashMap, Map, MapData};
use peak_alloc::PeakAlloc;
use weir_core::ops::{Capacity, FrontendKey, MapOp};
use weir_datapath::{Datapath, MapStore, PinDir, View};
use weir_testbed::{bpffs, require_root};

/// Flows of each family.
const FLOWS: u32 = 30_000;
/// What a pass may take: buffers for a few thousand entries, and the filter.
const MOST: usize = 1 << 20;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// The most bytes that there were during `work` beyond those before.
fn peak(work: impl FnOnce()) -> usize {
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    work();
    ALLOCATED.peak_usage() - before
}

/// Pins that are removed on drop, whether or not the test passed.
struct Pinned(PinDir);

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_all(false) {
            eprintln!("{error}");
        }
    }
}

/// Writes flows of so many clients to one frontend, of which only the keys matter here.
fn fill<const KEY: usize, const FLOW: usize>(pins: &PinDir, map: &str) {
    let pinned = Map::from_map_data(MapData::from_pin(pins.map(map)).unwrap()).unwrap();
    let mut flows: HashMap<_, [u8; KEY], [u8; FLOW]> = pinned.try_into().unwrap();
    for client in 0..FLOWS {
        let mut key = [0; KEY];
        key[..4].copy_from_slice(&client.to_be_bytes());
        flows.insert(key, [0; FLOW], 0).unwrap();
    }
}

#[test]
fn a_pass_over_full_flow_tables_takes_no_memory_for_each_flow() {
    if !require_root("full flow tables") {
        return;
    }
    let root = bpffs::ensure_mounted().unwrap().join(format!("weir-test-memory-{}", std::process::id()));
    let pins = Pinned(PinDir::new(root));
    let capacity = Capacity { flows: 2 * FLOWS, openings: 4096, backends: 4096, lines: 4096, ..Capacity::DEFAULT };
    let mut datapath = Datapath::open(pins.0.clone(), &capacity).unwrap();
    let view = View::open(pins.0.clone()).unwrap();
    fill::<16, 32>(&pins.0, "flows4");
    fill::<40, 40>(&pins.0, "flows6");
    let uses = peak(|| {
        let uses = view.flow_uses(0).unwrap();
        assert_eq!(["flows4", "flows6"].map(|map| uses[map].open + uses[map].over), [FLOWS; 2]);
    });
    let filter = peak(|| datapath.rebuild_filter().unwrap());
    let forget = peak(|| {
        for address in ["10.96.0.1", "fd00:96::1"] {
            let key = FrontendKey { address: address.parse().unwrap(), port: 80, protocol: 17 };
            datapath.store().apply(&[MapOp::ForgetFlows { key }]).unwrap();
        }
    });
    for (pass, took) in [("counting", uses), ("the filter", filter), ("forgetting", forget)] {
        assert!(took < MOST, "{pass} took {took} bytes for {FLOWS} flows of each family");
    }
}
