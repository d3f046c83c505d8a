//! Copies what a map holds into its successor of another size.

use std::collections::HashSet;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};

use aya_obj::generated::bpf_map_type;
use weir_abi as abi;

use crate::error::{Error, Result};
use crate::flow_key::{FlowKey, Kept};
use crate::flow_table::FlowTable;
use crate::layout::MapSpec;
use crate::pins::PinDir;
use crate::sys;

const BATCH: usize = 1024;

/// Flows that begin have another place where there are more or fewer sets; `seed` is that of the configuration.
fn copy_openings<K: FlowKey, V: Kept>(pins: &PinDir, old: BorrowedFd<'_>, moment: Moment, seed: u64) -> Result<()> {
    let [going, opening] = FlowTable::<K, V>::open_both(pins, true)?;
    // What was copied first may be another flow's by now, between the same ends. No program uses the table yet.
    if moment == Moment::BeforeLinks {
        opening.remove(|_, _| true)?;
    }
    let old = old.try_clone_to_owned().map_err(|e| Error::io(format!("cannot open map {}", opening.name()), e))?;
    opening.add_openings(&FlowTable::new(opening.name(), old, false)?, &going, seed)
}

/// Takes out of the tables of those that go on what is known to have ended where it began: it went there before it was copied, or while the
/// links were switched, and would hold its source port until it is idle.
///
/// # Errors
/// When a map cannot be read or written.
pub(crate) fn forget_ended(pins: &PinDir, seed: u64) -> Result<()> {
    fn forget<K: FlowKey, V: Kept>(pins: &PinDir, seed: u64) -> Result<()> {
        let [going, opening] = FlowTable::<K, V>::open_both(pins, true)?;
        opening.forget_ended(&going, seed)
    }
    forget::<abi::FlowKey4, abi::Flow>(pins, seed)?;
    forget::<abi::FlowKey6, abi::Flow6>(pins, seed)?;
    forget::<abi::FlowKey4, abi::Reply>(pins, seed)?;
    forget::<abi::FlowKey6, abi::Reply>(pins, seed)
}

fn is_of_answers(map: &str) -> bool {
    [abi::FlowKey4::REPLIES, abi::FlowKey6::REPLIES].concat().contains(&map)
}

/// When a map is copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Moment {
    /// While its programs are loaded: all of it.
    Loaded,
    /// Before any link runs them: what has changed, or gone, in tables of flows since then.
    BeforeLinks,
    /// When all links run them: what is not there yet. What is there may be newer.
    BehindLinks,
}

/// Copies entries to the map of the same name that is pinned by now.
///
/// # Errors
/// When a map cannot be read or written; entries for which the new map has no room are left out.
pub(crate) fn copy(pins: &PinDir, spec: &MapSpec, old: BorrowedFd<'_>, moment: Moment, seed: u64) -> Result<()> {
    match spec.name {
        "openings4" => return copy_openings::<abi::FlowKey4, abi::Flow>(pins, old, moment, seed),
        "openings6" => return copy_openings::<abi::FlowKey6, abi::Flow6>(pins, old, moment, seed),
        "awaited4" => return copy_openings::<abi::FlowKey4, abi::Reply>(pins, old, moment, seed),
        "awaited6" => return copy_openings::<abi::FlowKey6, abi::Reply>(pins, old, moment, seed),
        // By the number of sets they would be others'. What is there is over in seconds; of the kept ports in a minute.
        "displaced" | "first_syns" | "snat_kept" => return Ok(()),
        // The hooks of sockets run the new programs by then, which have written what is newer.
        "socket_peers" if moment == Moment::BeforeLinks => return Ok(()),
        _ => {}
    }
    let (new, _) = pins.open_map(spec, 0)?;
    let (new, failed) = (new.as_fd(), |e| Error::io(format!("cannot copy map {}", spec.name), e));
    let kernels_own = spec.kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH;
    if moment != Moment::Loaded && !kernels_own {
        return Ok(());
    }
    let is_affinity = spec.name == "affinities";
    let flags = if moment == Moment::BehindLinks { sys::NOEXIST } else { 0 };
    let mut copied = HashSet::new();
    visit(spec, old, |key, value| {
        if is_of_answers(spec.name) {
            // By the time that the copy is in force their clients may have sent any amount of data.
            value[offset_of!(abi::Reply, heard)..][..size_of::<u16>()].fill(0);
        }
        if moment == Moment::BeforeLinks {
            if is_affinity && has_newer(new, key, value)? {
                return Ok(());
            }
            copied.insert(key.to_vec());
        }
        match sys::update(new, &key[0], &value[0], flags) {
            Err(e) if !sys::is_left_out(&e) => Err(e),
            Ok(()) | Err(_) => Ok(()),
        }
    })
    .map_err(failed)?;
    if moment != Moment::BeforeLinks || is_affinity {
        return Ok(());
    }
    // A connection that has ended is elsewhere by now: here it would hold its port until it is idle.
    let mut gone = Vec::new();
    visit(spec, new, |key, _| {
        if !copied.contains(key) {
            gone.push(key.to_vec());
        }
        Ok(())
    })
    .map_err(failed)?;
    gone.iter().try_for_each(|key| sys::delete(new, &key[0]).map(drop)).map_err(failed)
}

/// Whether a client has got a backend by the new map since the one that a copy would write: the hooks of sockets run the new programs
/// before the links do.
fn has_newer(new: BorrowedFd<'_>, key: &[u8], copy: &[u8]) -> io::Result<bool> {
    const LAST_SEEN: usize = offset_of!(abi::Affinity, last_seen);
    let tick =
        |value: &[u8]| value.get(LAST_SEEN..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_ne_bytes);
    let mut there = [0; size_of::<abi::Affinity>()];
    let found = sys::lookup(new, &key[0], &mut there)?;
    Ok(found.is_some() && tick(&there).wrapping_sub(tick(copy)).cast_signed() >= 0)
}

/// Shows all entries of a map.
fn visit(
    spec: &MapSpec,
    map: BorrowedFd<'_>,
    mut visit: impl FnMut(&[u8], &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (mut keys, mut values) = (vec![0u8; spec.key * BATCH], vec![0u8; spec.value * BATCH]);
    let mut token = None;
    loop {
        let (count, next) = sys::lookup_batch_bytes(map, token, &mut keys, &mut values, BATCH)?;
        let entries = keys.chunks_exact(spec.key).zip(values.chunks_exact_mut(spec.value)).take(count);
        for (key, value) in entries {
            visit(key, value)?;
        }
        match next {
            Some(next) => token = Some(next),
            None => return Ok(()),
        }
    }
}
