//! Pinned maps as they were at first: tests that come after each other on the same maps must not see what the others left there.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fs, io};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_map_info, bpf_map_type};

use crate::bpffs::pinned;
use crate::prog_run::{bpf, info, unset};
use crate::{Error, Result};

/// So many entries in an LRU table, and nobody else gets it: what was removed lies ready for one CPU, and the kernel has others' entries go
/// before it asks there.
const FEW_ENTRIES: usize = 512;

/// Maps of a directory, and what their arrays held.
#[derive(Debug)]
pub struct Pristine {
    maps: Vec<Map>,
}

impl Pristine {
    /// Reads the maps that are pinned in a directory. Tables of keys are taken for empty.
    ///
    /// # Errors
    /// When one cannot be opened or read.
    pub fn of(directory: &Path) -> Result<Self> {
        let entries = fs::read_dir(directory).map_err(Error::file("read", directory))?;
        let maps = entries.map(|entry| Map::open(entry.map_err(Error::file("read", directory))?.path()));
        Ok(Self { maps: maps.collect::<Result<_>>()? })
    }

    /// Empties all tables, and has arrays hold what they held. Returns whether others may have the maps: no LRU table was full.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn restore(&self) -> Result<bool> {
        let mut most = 0;
        for map in &self.maps {
            let removed = map.restore().map_err(Error::file("restore", &map.pin))?;
            if map.kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH {
                most = most.max(removed);
            }
        }
        Ok(most <= FEW_ENTRIES)
    }
}

/// An open map.
#[derive(Debug)]
struct Map {
    pin: PathBuf,
    fd: OwnedFd,
    kind: bpf_map_type,
    key_size: usize,
    /// As the kernel hands it out: of all CPUs, where each has its own.
    value_size: usize,
    /// Of an array, one value after the other.
    values: Vec<u8>,
}

impl Map {
    fn open(pin: PathBuf) -> Result<Self> {
        let failed = |source| Error::file("open", &pin)(source);
        let fd = pinned(&pin).map_err(failed)?;
        let info: bpf_map_info = info(fd.as_fd()).map_err(failed)?;
        let kind = kind_of(&info).ok_or_else(|| failed(io::Error::other(format!("maps of type {}", info.type_))))?;
        let sizes = (info.key_size as usize, info.value_size as usize);
        let cpus = if kind == bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY { possible_cpus()? } else { 0 };
        let value_size = if cpus == 0 { sizes.1 } else { sizes.1.next_multiple_of(8) * cpus };
        let mut map = Self { fd, kind, key_size: sizes.0, value_size, values: Vec::new(), pin };
        if map.is_array() {
            let values = (0..info.max_entries).map(|index| map.value(index)).collect::<io::Result<Vec<_>>>();
            map.values = values.map_err(Error::file("read", &map.pin))?.concat();
        }
        Ok(map)
    }

    const fn is_array(&self) -> bool {
        matches!(self.kind, bpf_map_type::BPF_MAP_TYPE_ARRAY | bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY)
    }

    /// Returns how many entries of a table are gone.
    fn restore(&self) -> io::Result<usize> {
        // What sockets hold is gone with them.
        if self.kind == bpf_map_type::BPF_MAP_TYPE_SK_STORAGE {
            return Ok(0);
        }
        if !self.is_array() {
            return self.clear();
        }
        for (index, before) in (0..).zip(self.values.chunks(self.value_size)) {
            if self.value(index)? != before {
                self.write(index, before)?;
            }
        }
        Ok(0)
    }

    fn clear(&self) -> io::Result<usize> {
        let mut removed = 0;
        while let Some(key) = self.first_key()? {
            match self.element(bpf_cmd::BPF_MAP_DELETE_ELEM, &key, 0) {
                // The kernel was sooner.
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
                Ok(()) | Err(_) => removed += 1,
            }
        }
        Ok(removed)
    }

    fn first_key(&self) -> io::Result<Option<Vec<u8>>> {
        let mut key = vec![0u8; self.key_size];
        let mut attr = self.attr();
        attr.__bindgen_anon_2.__bindgen_anon_1.next_key = key.as_mut_ptr() as u64;
        match bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut attr) {
            Ok(_) => Ok(Some(key)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn value(&self, index: u32) -> io::Result<Vec<u8>> {
        let mut value = vec![0u8; self.value_size];
        self.element(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &index.to_ne_bytes(), value.as_mut_ptr() as u64)?;
        Ok(value)
    }

    fn write(&self, index: u32, value: &[u8]) -> io::Result<()> {
        self.element(bpf_cmd::BPF_MAP_UPDATE_ELEM, &index.to_ne_bytes(), value.as_ptr() as u64)
    }

    fn element(&self, command: bpf_cmd, key: &[u8], value: u64) -> io::Result<()> {
        let mut attr = self.attr();
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value;
        bpf(command, &mut attr).map(drop)
    }

    fn attr(&self) -> bpf_attr {
        let mut attr = unset();
        attr.__bindgen_anon_2.map_fd = self.fd.as_raw_fd().unsigned_abs();
        attr
    }
}

/// Arrays, and tables whose entries have keys.
fn kind_of(info: &bpf_map_info) -> Option<bpf_map_type> {
    let kinds = [
        bpf_map_type::BPF_MAP_TYPE_ARRAY,
        bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY,
        bpf_map_type::BPF_MAP_TYPE_SK_STORAGE,
        bpf_map_type::BPF_MAP_TYPE_HASH,
        bpf_map_type::BPF_MAP_TYPE_LRU_HASH,
        bpf_map_type::BPF_MAP_TYPE_LPM_TRIE,
        bpf_map_type::BPF_MAP_TYPE_DEVMAP_HASH,
    ];
    kinds.into_iter().find(|kind| *kind as u32 == info.type_)
}

/// CPUs that the kernel keeps values for.
fn possible_cpus() -> Result<usize> {
    let path = Path::new("/sys/devices/system/cpu/possible");
    let list = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let last = list.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    let last = last.ok_or_else(|| Error::file("understand", path)(io::Error::other(list.clone())))?;
    Ok(last + 1)
}
