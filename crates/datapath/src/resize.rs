//! Copies what a map holds into its successor of another size.

use std::os::fd::BorrowedFd;

use aya_obj::generated::bpf_map_type;
use weir_abi as abi;

use crate::error::{Error, Result};
use crate::flow_key::{FlowKey, Kept};
use crate::flow_table::FlowTable;
use crate::layout::MapSpec;
use crate::sys;

const NOEXIST: u64 = 1;
const BATCH: usize = 1024;

/// Flows that begin have another place where there are more or fewer sets; `seed` is that of the configuration.
fn copy_openings<K: FlowKey, V: Kept>(
    spec: &MapSpec,
    old: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
    seed: u64,
) -> Result<()> {
    let open = |fd: BorrowedFd<'_>, writable| {
        let fd = fd.try_clone_to_owned().map_err(|e| Error::io(format!("cannot open map {}", spec.name), e))?;
        FlowTable::<K, V>::new(spec.name, fd, writable)
    };
    open(new, true)?.add_openings(&open(old, false)?, seed)
}

/// Copies entries. The first time all of them; afterwards only those of the kernel's own tables that are not there yet.
///
/// # Errors
/// When a map cannot be read or written; entries for which the new map has no room are left out.
pub(crate) fn copy(spec: &MapSpec, old: BorrowedFd<'_>, new: BorrowedFd<'_>, first: bool, seed: u64) -> Result<()> {
    match spec.name {
        "openings4" => return copy_openings::<abi::FlowKey4, abi::Flow>(spec, old, new, seed),
        "openings6" => return copy_openings::<abi::FlowKey6, abi::Flow6>(spec, old, new, seed),
        "awaited4" => return copy_openings::<abi::FlowKey4, abi::Reply>(spec, old, new, seed),
        "awaited6" => return copy_openings::<abi::FlowKey6, abi::Reply>(spec, old, new, seed),
        _ => {}
    }
    let failed = |e| Error::io(format!("cannot copy map {}", spec.name), e);
    let kernels_own = spec.kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH;
    if !first && !kernels_own {
        return Ok(());
    }
    let flags = if first { 0 } else { NOEXIST };
    let mut keys = vec![0u8; spec.key * BATCH];
    let mut values = vec![0u8; spec.value * BATCH];
    let mut token = None;
    loop {
        let (count, next) = sys::lookup_batch_bytes(old, token, &mut keys, &mut values, BATCH).map_err(failed)?;
        for (key, value) in keys.chunks_exact(spec.key).zip(values.chunks_exact(spec.value)).take(count) {
            match sys::update(new, &key[0], &value[0], flags) {
                Err(e) if !matches!(e.raw_os_error(), Some(libc::EEXIST | libc::E2BIG | libc::ENOSPC)) => {
                    return Err(failed(e));
                }
                Ok(()) | Err(_) => {}
            }
        }
        match next {
            Some(next) => token = Some(next),
            None => return Ok(()),
        }
    }
}
