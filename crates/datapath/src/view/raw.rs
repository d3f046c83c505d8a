//! Any map as bytes, for people.

use std::os::fd::AsFd;

use aya_obj::generated::bpf_map_type;
use weir_abi as abi;

use super::View;
use crate::error::{Error, Result};
use crate::layout::{MAPS, MapSpec};
use crate::openings;
use crate::pins::READ_ONLY;
use crate::sys;

/// Entries that one system call reads.
const BATCH: usize = 1024;

/// Key and value of an entry as they lie in memory.
pub type RawEntry = (Vec<u8>, Vec<u8>);

impl View {
    /// All entries of a map as bytes, in the kernel's order; `None` if there is no such map, or one whose entries are in sockets. The value of a per-CPU map
    /// has a part for each possible CPU.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn raw(&self, name: &str) -> Result<Option<Vec<RawEntry>>> {
        let Some(spec) = MAPS.iter().find(|spec| spec.name == name && spec.is_listed()) else { return Ok(None) };
        if matches!(spec.kind, bpf_map_type::BPF_MAP_TYPE_DEVMAP_HASH) {
            let bytes = |device: abi::Device| {
                let abi::Device { ifindex, program } = device;
                (ifindex.to_ne_bytes().to_vec(), [ifindex.to_ne_bytes(), program.to_ne_bytes()].concat())
            };
            return Ok(Some(self.devices()?.into_iter().map(bytes).collect()));
        }
        let value = match spec.kind {
            bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY => spec.value.next_multiple_of(8) * self.counters.cpus(),
            _ => spec.value,
        };
        let entries = self.raw_entries(spec, value)?;
        Ok(Some(if spec.ways == 1 { entries } else { openings::raw(name, &entries) }))
    }

    fn raw_entries(&self, spec: &MapSpec, value_size: usize) -> Result<Vec<RawEntry>> {
        let (fd, _) = self.pins.open_map(spec, READ_ONLY)?;
        let (mut batch, mut token, mut entries) = (BATCH, None, Vec::new());
        loop {
            let (mut keys, mut values) = (vec![0; spec.key * batch], vec![0; value_size * batch]);
            let (count, next) = match sys::lookup_batch_bytes(fd.as_fd(), token, &mut keys, &mut values, batch) {
                Ok(read) => read,
                // One bucket holds more than fits.
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                    batch *= 2;
                    continue;
                }
                Err(e) => return Err(Error::io(format!("cannot list map {}", spec.name), e)),
            };
            let pairs = keys.chunks_exact(spec.key).zip(values.chunks_exact(value_size)).take(count);
            entries.extend(pairs.map(|(key, value)| (key.to_vec(), value.to_vec())));
            match next {
                Some(next) => token = Some(next),
                None => return Ok(entries),
            }
        }
    }
}
