//! Entries of the tables that the programs write, made older or taken away: what otherwise only time does.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use aya::maps::{Array, Map, MapData, PerCpuArray, PerCpuValues};
use weir_abi as abi;

use crate::node::Node;

fn bpftool(verb: &str, pin: &Path, parts: &[(&str, &[u8])]) {
    let mut command = Command::new("bpftool");
    command.args(["map", verb, "pinned"]).arg(pin);
    for (name, bytes) in parts {
        command.args([name, "hex"]).args(bytes.iter().map(|byte| format!("{byte:02x}")));
    }
    let status = command.status().expect("bpftool is installed");
    assert!(status.success(), "{command:?}");
}

/// A table of flows or replies with that of flows which begin; any other map alone.
fn stages(map: &str) -> impl Iterator<Item = &str> {
    let opening = match map {
        "flows4" => Some("openings4"),
        "flows6" => Some("openings6"),
        "replies4" => Some("awaited4"),
        "replies6" => Some("awaited6"),
        _ => None,
    };
    std::iter::once(map).chain(opening)
}

/// Makes all entries of a table look as if they were last seen so many ticks earlier. `last_seen`: offset of that field.
pub(crate) fn age(node: &Node, map: &str, last_seen: usize, ticks: u32) {
    edit(node, map, |value| make_earlier(&mut value[last_seen..last_seen + size_of::<u32>()], ticks));
}

/// Makes all answers that a table's entries await look as if they had been awaited for so much longer, in units of delay.
pub(crate) fn await_longer(node: &Node, map: &str, delay: u32) {
    edit(node, map, |reply| ask_earlier(&mut reply[offset_of!(abi::Reply, asked)..][..size_of::<u32>()], delay));
}

/// The time since when an answer is awaited, so much earlier. It is odd; whatever is not is no time.
pub(crate) fn ask_earlier(asked: &mut [u8], delay: u32) {
    if u32::from_ne_bytes((&*asked).try_into().unwrap()) & 1 == 1 {
        make_earlier(asked, delay & !1);
    }
}

/// The tick of an entry of answers in which the host has asked from its port, if it has, so much earlier.
pub(crate) fn lend_earlier(reply: &mut [u8], ticks: u32) {
    let at = |offset| offset..offset + size_of::<u16>();
    let word = |reply: &[u8], offset| u16::from_ne_bytes(reply[at(offset)].try_into().unwrap());
    let heard = offset_of!(abi::Reply, heard);
    if word(reply, offset_of!(abi::Reply, flags)) & abi::FLOW_LENT != 0 {
        let earlier = u32::from(word(reply, heard)).wrapping_sub(ticks) & u32::from(abi::HEARD_MASK);
        reply[at(heard)].copy_from_slice(&u16::try_from(earlier).unwrap().to_ne_bytes());
    }
}

/// Changes all entries of a table.
fn edit(node: &Node, map: &str, change: impl Fn(&mut [u8])) {
    for map in stages(map) {
        if is_of_sets(map) {
            edit_sets(node, map, &change);
            continue;
        }
        for (key, mut value) in node.view.raw(map).unwrap().unwrap() {
            change(&mut value);
            bpftool("update", &node.pin(map), &[("key", &key), ("value", &value)]);
        }
    }
}

/// Makes all entries of a table of flows that begin look as if they were written so many ticks earlier.
pub(crate) fn age_births(node: &Node, map: &str, ticks: u32) {
    let births = offset_of!(abi::OpeningHead, born);
    let births = births..births + size_of::<u32>() * abi::OPENING_WAYS;
    change_sets(node, map, |set, _| {
        set[births.clone()].chunks_exact_mut(size_of::<u32>()).for_each(|born| make_earlier(born, ticks));
    });
}

/// Makes it look as if so many entries had been written to each set of a table of flows that begin.
pub(crate) fn write_more(node: &Node, map: &str, count: u32) {
    let next = offset_of!(abi::OpeningHead, next);
    change_sets(node, map, |set, _| {
        let number = u32::from_ne_bytes(set[next..][..size_of::<u32>()].try_into().unwrap());
        set[next..][..size_of::<u32>()].copy_from_slice(&number.wrapping_add(count).to_ne_bytes());
    });
}

/// Makes it so many ticks longer ago that an endpoint's ports were taken from flows which had only just begun, and looked for long.
pub(crate) fn age_pressure(node: &Node, ticks: u32) {
    let times = [offset_of!(abi::SnatCounter, pressed), offset_of!(abi::SnatCounter, long_search)];
    change_each::<{ size_of::<abi::SnatCounter>() }>(node, "snat_counters", 0, |counter, _| {
        for time in times.map(|at| at..at + size_of::<u32>()) {
            if counter[time.clone()] != [0; 4] {
                make_earlier(&mut counter[time], ticks);
            }
        }
    });
}

/// Makes it so many ticks longer ago that connections lost their places, and forgets those of which their few bits would tell another time then.
pub(crate) fn age_displaced(node: &Node, ticks: u32) {
    let times = (1u32 << (abi::DISPLACED_TAG - abi::DISPLACED_TICK)) - 1;
    let when = u64::from(times) << abi::DISPLACED_TICK;
    let earlier = |entry: u64| entry & !when | entry.wrapping_sub(u64::from(ticks) << abi::DISPLACED_TICK) & when;
    let answered_earlier = |entry: u32| entry & !times | entry.wrapping_sub(ticks) & times;
    change_each::<{ size_of::<abi::Displaced>() }>(node, "displaced", 0, |line, _| {
        let (flows, rest) = line.split_at_mut(offset_of!(abi::Displaced, answers));
        for entry in flows.as_chunks_mut().0.iter_mut().filter(|entry| **entry != [0; 8]) {
            let old = if ticks > 2 * abi::OPENING_IDLE { 0 } else { earlier(u64::from_ne_bytes(*entry)) };
            *entry = old.to_ne_bytes();
        }
        for entry in rest.as_chunks_mut().0.iter_mut().filter(|entry| **entry != [0; 4]) {
            let old = if ticks > times / 2 { 0 } else { answered_earlier(u32::from_ne_bytes(*entry)) };
            *entry = old.to_ne_bytes();
        }
    });
}

/// Makes it so many ticks longer ago that pieces came before their first one.
pub(crate) fn age_held(node: &Node, ticks: u32) {
    let (state, last_seen) = (offset_of!(abi::HeldPiece, state), offset_of!(abi::HeldPiece, last_seen));
    change_each::<{ size_of::<abi::HeldPiece>() }>(node, "held_pieces", 0, |piece, _| {
        if piece[state..][..size_of::<u32>()] == abi::HELD_USED.to_ne_bytes() {
            make_earlier(&mut piece[last_seen..][..size_of::<u32>()], ticks);
        }
    });
}

/// Bytes of a CPU's pace.
pub(crate) const PACE: usize = size_of::<abi::Pace>();

/// Sets the first bytes of each CPU's pace to zero.
pub(crate) fn zero_paces(node: &Node, bytes: usize) {
    change_paces(node, |pace| pace[..bytes].fill(0));
}

fn change_paces(node: &Node, change: impl FnMut(&mut [u8; PACE])) {
    let pinned = MapData::from_pin(node.pin("paces")).unwrap();
    let mut paces: PerCpuArray<_, [u8; PACE]> = Map::from_map_data(pinned).unwrap().try_into().unwrap();
    let mut values: Vec<[u8; PACE]> = paces.get(&0, 0).unwrap().to_vec();
    values.iter_mut().for_each(change);
    paces.set(0, PerCpuValues::try_from(values).unwrap(), 0).unwrap();
}

/// No flow has begun or moved in this tick, and no error was told.
pub(crate) fn calm(node: &Node) {
    zero_paces(node, offset_of!(abi::Pace, flooded));
}

/// Makes it so many ticks longer ago that a CPU was flooded.
pub(crate) fn age_floods(node: &Node, ticks: u32) {
    change_paces(node, |pace| {
        let flooded = &mut pace[offset_of!(abi::Pace, flooded)..][..size_of::<u32>()];
        if flooded != [0; 4] {
            make_earlier(flooded, ticks);
        }
    });
}

/// Takes so many ticks off a time, as it lies in memory.
pub(crate) fn make_earlier(time: &mut [u8], ticks: u32) {
    let then = u32::from_ne_bytes((&*time).try_into().unwrap());
    time.copy_from_slice(&then.wrapping_sub(ticks).to_ne_bytes());
}

/// Removes all entries of a table, as the kernel does with the oldest ones of a full one.
pub(crate) fn evict(node: &Node, map: &str) {
    for map in stages(map) {
        if is_of_sets(map) {
            empty_sets(node, map);
            continue;
        }
        for (key, _) in node.view.raw(map).unwrap().unwrap() {
            bpftool("delete", &node.pin(map), &[("key", &key)]);
        }
    }
}

/// Whether a table of flows is one of those that begin.
pub(crate) fn is_of_sets(map: &str) -> bool {
    ["openings4", "openings6", "awaited4", "awaited6"].contains(&map)
}

/// Changes the values of a table of flows that begin.
pub(crate) fn edit_sets(node: &Node, map: &str, mut edit: impl FnMut(&mut [u8])) {
    change_sets(node, map, |set, values| {
        let size = (set.len() - values) / abi::OPENING_WAYS;
        let used: Vec<_> = set.chunks_exact(4).take(abi::OPENING_WAYS).map(|tag| tag != [0; 4]).collect();
        let values = set[values..].chunks_exact_mut(size).zip(used);
        values.filter(|(_, used)| *used).for_each(|(value, _)| edit(value));
    });
}

/// Removes all entries of a table of flows that begin.
pub(crate) fn empty_sets(node: &Node, map: &str) {
    change_sets(node, map, |set, _| set.fill(0));
}

/// Makes all places of a table of flows that begin look as if other CPUs were writing to them. [`empty_sets`] ends it.
pub(crate) fn keep_busy(node: &Node, map: &str) {
    let busy = abi::OPENING_BUSY.to_ne_bytes();
    change_all_sets(node, map, |set, _| {
        set.chunks_exact_mut(size_of::<u32>()).take(abi::OPENING_WAYS).for_each(|tag| tag.copy_from_slice(&busy));
    });
}

/// Shows `change` each set that is not empty, with where its values begin.
fn change_sets(node: &Node, map: &str, mut change: impl FnMut(&mut [u8], usize)) {
    let tags = ..size_of::<u32>() * abi::OPENING_WAYS;
    change_all_sets(node, map, |set, values| {
        if set[tags].iter().any(|byte| *byte != 0) {
            change(set, values);
        }
    });
}

/// Shows `change` each set, with where its values begin.
fn change_all_sets(node: &Node, map: &str, change: impl FnMut(&mut [u8], usize)) {
    match map {
        "openings4" => {
            change_each::<{ size_of::<abi::OpeningSet4>() }>(node, map, offset_of!(abi::OpeningSet4, value), change);
        }
        "openings6" => {
            change_each::<{ size_of::<abi::OpeningSet6>() }>(node, map, offset_of!(abi::OpeningSet6, value), change);
        }
        "awaited4" => {
            change_each::<{ size_of::<abi::AwaitedSet4>() }>(node, map, offset_of!(abi::AwaitedSet4, value), change);
        }
        "awaited6" => {
            change_each::<{ size_of::<abi::AwaitedSet6>() }>(node, map, offset_of!(abi::AwaitedSet6, value), change);
        }
        other => panic!("{other} has no sets"),
    }
}

fn change_each<const N: usize>(node: &Node, map: &str, values: usize, mut change: impl FnMut(&mut [u8], usize)) {
    let pinned = Map::from_map_data(MapData::from_pin(node.pin(map)).unwrap()).unwrap();
    let mut array: Array<_, [u8; N]> = pinned.try_into().unwrap();
    for slot in 0..array.len() {
        let mut set = array.get(&slot, 0).unwrap();
        let before = set;
        change(&mut set, values);
        if set != before {
            array.set(slot, set, 0).unwrap();
        }
    }
}
