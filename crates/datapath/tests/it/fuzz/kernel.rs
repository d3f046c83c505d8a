//! The programs in the kernel: run on frames, their tables made older and emptied.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::AsFd;

use aya::maps::{Array, HashMap as KernelMap, Map, MapData, PerCpuArray};
use nix::errno::Errno;
use weir_abi as abi;
use weir_core::ops::MapOp;
use weir_datapath::{GoingFilter, MapStore, errors_told, running_cpus};
use weir_model::{HandOver, Hook, Place, Sizes, UNUSED_BACKEND, UNUSED_LINE, UNUSED_SERVICE};
use weir_testbed::Error;
use weir_testbed::prog_run::{Context, prog_run, prog_run_summed};

use super::world::{BACKENDS, LINES, SERVICES};
use crate::entries;
use crate::node::Node;
use crate::openings::stay_on_one_cpu;
use crate::pins::SMALL;

/// How many packets left for which reason: a frame, and what was cut off it, which has come again.
pub(super) type Reasons = BTreeMap<u32, u64>;

/// What a program did.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) reasons: Reasons,
    /// None: the card's sum of the packet is not that of what came out, which the kernel keeps to itself then.
    pub(super) left: Option<Left>,
}

/// How a frame left a program.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) verdict: u32,
    pub(super) frame: Vec<u8>,
    pub(super) hand_over: Option<HandOver>,
}

/// Tables with the offset of `last_seen`, and of `asked` and `created` if they have them.
const AGEING: [(&str, usize, Option<usize>, Option<usize>); 10] = [
    ("flows4", 20, None, Some(16)),
    ("flows6", 20, None, Some(16)),
    ("openings4", 20, None, Some(16)),
    ("openings6", 20, None, Some(16)),
    ("replies4", 48, Some(52), None),
    ("replies6", 48, Some(52), None),
    ("awaited4", 48, Some(52), None),
    ("awaited6", 48, Some(52), None),
    ("affinities", 8, None, None),
    ("fragments", 4, None, None),
];

pub(super) const FLOWS: [[&str; 2]; 4] =
    [["flows4", "flows6"], ["openings4", "openings6"], ["replies4", "replies6"], ["awaited4", "awaited6"]];

pub(super) fn program(hook: Hook) -> (&'static str, usize) {
    match hook {
        Hook::Xdp => ("weir_xdp", 0),
        Hook::NicIn => ("weir_nic_in", 1),
        Hook::NicOut => ("weir_nic_out", 2),
        Hook::PodIn => ("weir_pod_in", 3),
        Hook::PodOut => ("weir_pod_out", 4),
    }
}

fn map(node: &Node, name: &str) -> Map {
    Map::from_map_data(MapData::from_pin(node.pin(name)).unwrap()).unwrap()
}

/// Packets by reason that a hook has counted.
pub(super) fn counted(node: &Node, hook: usize) -> Vec<u64> {
    let all = node.view.raw("counters").unwrap().unwrap();
    let packets = |value: &[u8]| -> u64 {
        // One counter of packets and bytes for each CPU.
        value.chunks(16).map(|counter| u64::from_ne_bytes(counter[..8].try_into().unwrap())).sum()
    };
    all[hook * abi::REASON_COUNT..][..abi::REASON_COUNT].iter().map(|(_, value)| packets(value)).collect()
}

/// Reasons as they would be without the namespace's own reports of multicast listeners, which pass the same hooks when they please.
pub(super) fn without_reports(mut reasons: Reasons) -> Reasons {
    match (reasons.len(), reasons.get_mut(&abi::REASON_NOT_TRANSPORT)) {
        (1, Some(packets)) => *packets = 1,
        (_, Some(_)) => drop(reasons.remove(&abi::REASON_NOT_TRANSPORT)),
        (_, None) => {}
    }
    reasons
}

/// Runs a program on a frame of which a card has taken the sum, or has not. None: the kernel runs nothing on such a frame.
pub(super) fn run(node: &Node, place: &Place<'_>, frame: &[u8], is_summed: bool) -> Option<Ran> {
    let Place { hook, device, came_by, .. } = *place;
    let (name, number) = program(hook);
    let program = node.datapath.program(name).unwrap();
    let context = match hook {
        Hook::Xdp => Context::Xdp { ifindex: device },
        Hook::NicIn | Hook::NicOut | Hook::PodIn | Hook::PodOut => Context::Forwarded { ifindex: device, came_by },
    };
    let before = counted(node, number);
    let run = node.netns.enter(|| {
        // Asked each time: whoever changes a cpuset takes it back.
        stay_on_one_cpu();
        if is_summed {
            prog_run_summed(program.as_fd(), frame, context)
        } else {
            prog_run(program.as_fd(), frame, Some(context), 1)
        }
    });
    let left = match run {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::InvalidInput) => return None,
        Err(Error::Io { source, .. }) if source.raw_os_error() == Some(Errno::EBADMSG as i32) => None,
        run => Some(run.unwrap()),
    };
    let after = counted(node, number);
    let moved = (0..).zip(before.iter().zip(&after)).map(|(reason, (before, after))| (reason, after - before));
    let reasons: Reasons = moved.filter(|(_, packets)| *packets > 0).collect();
    assert!(!reasons.is_empty(), "no counter moves for {name}");
    let reasons = without_reports(reasons);
    let left = left.map(|run| Left { verdict: run.retval, frame: run.packet, hand_over: handed_over(&run.metadata) });
    Some(Ran { reasons, left })
}

/// What XDP's metadata says: a number that tells it from others', and `enum handover_kind` of `bpf/lib/ctx.h`.
fn handed_over(metadata: &[u8]) -> Option<HandOver> {
    let kind = metadata.last_chunk().map(|kind| u32::from_ne_bytes(*kind))?;
    match kind {
        1 => Some(HandOver::Done),
        2 => Some(HandOver::ToPod),
        other => panic!("tc is told of {other}"),
    }
}

/// Makes everything look as if it had happened so much earlier.
pub(super) fn age(node: &Node, ticks: u32, delay: u32) {
    for (name, last_seen, asked, created) in AGEING {
        let older = |value: &mut [u8]| {
            for at in created.into_iter().chain([last_seen]) {
                entries::make_earlier(&mut value[at..at + 4], ticks);
            }
            if let Some(at) = asked {
                entries::ask_earlier(&mut value[at..at + 4], delay);
                entries::lend_earlier(value, ticks);
            }
        };
        if entries::is_of_sets(name) {
            entries::edit_sets(node, name, older);
            continue;
        }
        for (key, mut value) in node.view.raw(name).unwrap().unwrap() {
            older(&mut value);
            put(node, name, &key, value.len(), Some(&value));
        }
    }
    entries::age_pressure(node, ticks);
    entries::age_displaced(node, ticks);
    entries::age_held(node, ticks);
    entries::calm(node);
    entries::age_floods(node, ticks);
    // As the agent does now and then: what follows is looked up with what it has found.
    GoingFilter::open(node.datapath.pins()).unwrap().rebuild().unwrap();
}

/// Entries that were missing and written anew, on any CPU.
pub(super) fn lost(node: &Node) -> u64 {
    let paces: PerCpuArray<_, [u8; entries::PACE]> = map(node, "paces").try_into().unwrap();
    let lost =
        |pace: &[u8; entries::PACE]| u64::from_ne_bytes(pace[offset_of!(abi::Pace, lost)..][..8].try_into().unwrap());
    paces.get(&0, 0).unwrap().iter().map(lost).sum()
}

/// Writes an entry of a table, or removes it.
fn write<const K: usize, const V: usize>(node: &Node, name: &str, key: &[u8], value: Option<&[u8]>) {
    let mut table: KernelMap<_, [u8; K], [u8; V]> = map(node, name).try_into().unwrap();
    let key: [u8; K] = key.try_into().unwrap();
    match value {
        Some(value) => table.insert(key, <[u8; V]>::try_from(value).unwrap(), 0).unwrap(),
        None => table.remove(&key).unwrap(),
    }
}

/// The same of a table whose sizes are found out.
fn put(node: &Node, name: &str, key: &[u8], size: usize, value: Option<&[u8]>) {
    let write = match (key.len(), size) {
        (16, 32) => write::<16, 32>,
        (40, 40) => write::<40, 40>,
        (16, 64) => write::<16, 64>,
        (40, 64) => write::<40, 64>,
        (24, 12) => write::<24, 12>,
        (40, 12) => write::<40, 12>,
        (32, 28) => write::<32, 28>,
        sizes => panic!("{name} has entries of {sizes:?}"),
    };
    write(node, name, key, value);
}

/// Removes all entries of a table.
pub(super) fn clear(node: &Node, name: &str) {
    if entries::is_of_sets(name) {
        return entries::empty_sets(node, name);
    }
    for (key, value) in node.view.raw(name).unwrap().unwrap() {
        put(node, name, &key, value.len(), None);
    }
}

/// Sets all slots of an array to zero that are not.
fn zero<const N: usize>(node: &Node, name: &str) {
    let mut array: Array<_, [u8; N]> = map(node, name).try_into().unwrap();
    for (key, value) in node.view.raw(name).unwrap().unwrap() {
        if value.iter().any(|byte| *byte != 0) {
            array.set(u32::from_ne_bytes(key.try_into().unwrap()), [0; N], 0).unwrap();
        }
    }
}

/// As if the node had just started: nothing is served, nothing remembered.
pub(super) fn reset(node: &mut Node) {
    for (name, ..) in AGEING {
        clear(node, name);
    }
    clear(node, "socket_peers");
    zero::<{ size_of::<abi::SnatCounter>() }>(node, "snat_counters");
    zero::<{ abi::FIRST_SYNS }>(node, "first_syns");
    zero::<{ size_of::<abi::SnatKept>() }>(node, "snat_kept");
    zero::<{ size_of::<abi::Displaced>() }>(node, "displaced");
    zero::<{ size_of::<abi::HeldPiece>() }>(node, "held_pieces");
    zero::<16>(node, "snat_ports");
    entries::zero_paces(node, entries::PACE);
    let dump = node.view.dump().unwrap();
    let mut ops: Vec<_> = dump.frontends.iter().map(|(key, _)| MapOp::DeleteFrontend { key: *key }).collect();
    ops.extend(dump.source_ranges.iter().map(|range| MapOp::DeleteSourceRange { range: *range }));
    for id in 0..SERVICES {
        ops.push(MapOp::PutService { id, service: UNUSED_SERVICE });
        ops.push(MapOp::ResetServiceCounters { id });
    }
    for id in 0..=BACKENDS {
        ops.push(MapOp::PutBackend { id, backend: UNUSED_BACKEND });
        ops.push(MapOp::ResetBackendCounters { id });
    }
    ops.extend((0..LINES).map(|id| MapOp::PutLine { id, line: Box::new(UNUSED_LINE) }));
    node.datapath.store().apply(&ops).unwrap();
    node.datapath.rebuild_filter().unwrap();
}

/// Flows that each backend has got.
pub(super) fn flows_of_backends(node: &Node) -> Vec<u64> {
    (0..BACKENDS).map(|slot| node.view.backend_counters(slot).unwrap().flows).collect()
}

/// The slots of those that have got some since.
pub(super) fn drawn_since(node: &Node, before: &[u64]) -> Vec<u32> {
    let after = flows_of_backends(node);
    (0..).zip(before.iter().zip(&after)).filter(|(_, (before, after))| before != after).map(|(slot, _)| slot).collect()
}

/// What the programs know of the tables' sizes.
pub(super) fn sizes(node: &Node) -> Sizes {
    let opening_sets = Array::<_, [u8; abi::FIRST_SYNS]>::try_from(map(node, "first_syns")).unwrap().len();
    let cpus = running_cpus().unwrap();
    Sizes { opening_sets, room_beside_tcp: (SMALL.flows / 2 / cpus).max(1), errors_told: errors_told(cpus) }
}
