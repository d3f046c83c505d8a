//! Maps as typed values: hashes by system call, arrays as memory.

use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use weir_abi as abi;

use crate::error::{Error, Result};
use crate::flow_key::{FlowKey, Kept};
use crate::layout::spec;
use crate::sys;

/// Entries that one system call reads.
const BATCH: usize = 4096;

/// A type that may be read from and written to a map byte by byte.
///
/// # Safety
/// `repr(C)`, valid for every bit pattern, and without padding, or else undefined bytes would reach the kernel.
pub unsafe trait Pod: Copy + 'static {}

macro_rules! pod {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: integers, or ABI structs; crates/abi compares each of the latter with the BTF of the objects.
            unsafe impl Pod for $name {}
        )*
    };
}

pod!(
    u32,
    u64,
    abi::Addr,
    abi::Affinity,
    abi::AffinityKey,
    abi::Backend,
    abi::BackendCounters,
    abi::Config,
    abi::Counter,
    abi::Device,
    abi::FilterWord,
    abi::GoingFilter,
    abi::Flow,
    abi::Flow6,
    abi::FlowKey4,
    abi::FlowKey6,
    abi::Fragment,
    abi::FragmentKey,
    abi::Frontend,
    abi::FirstSyns,
    abi::FrontendKey4,
    abi::FrontendKey6,
    abi::HeldPiece,
    abi::HookedPod,
    abi::Line,
    abi::LocalEndpoint,
    abi::LocalKey,
    abi::NodeName,
    abi::OtherNode,
    abi::Pace,
    abi::Reply,
    abi::Service,
    abi::ServiceCounters,
    abi::ServiceName,
    abi::Shortcut,
    abi::SnatCounter,
    abi::SnatKept,
    abi::Displaced,
    abi::SnatNext,
    abi::SnatPorts,
    abi::SocketKey,
    abi::SocketPeer,
    abi::SourceRange,
    abi::SourceRangeKey,
);

// SAFETY: whole words without padding; crates/abi compares each of the four kinds that there are.
unsafe impl<K: FlowKey, V: Kept> Pod for abi::OpeningSet<K, V> {}

/// A zeroed value, for the kernel to fill in.
fn blank<T: Pod>() -> T {
    // SAFETY: Pod types are valid for every bit pattern.
    unsafe { std::mem::zeroed() }
}

/// A hash map, or an array that is read by system call.
#[derive(Debug)]
pub struct Table<K, V> {
    name: &'static str,
    fd: OwnedFd,
    types: PhantomData<(K, V)>,
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// Wraps a map; the caller has checked its layout.
    pub(crate) const fn new(name: &'static str, fd: OwnedFd) -> Self {
        Self { name, fd, types: PhantomData }
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// When the system call fails; a missing entry is `None`.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let mut value = [blank::<V>()];
        let found = sys::lookup(self.fd.as_fd(), key, &mut value).map_err(|e| self.error("read", e))?;
        Ok(found.map(|()| value[0]))
    }

    /// Reads an entry of a per-CPU map: one value for each possible CPU.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_per_cpu(&self, key: &K, cpus: usize) -> Result<Option<Vec<V>>> {
        let mut values = vec![blank::<V>(); cpus];
        let found = sys::lookup(self.fd.as_fd(), key, &mut values).map_err(|e| self.error("read", e))?;
        Ok(found.map(|()| values))
    }

    /// Writes an entry. `flags`: 0, or `BPF_NOEXIST` to keep one that is there.
    ///
    /// # Errors
    /// [`Error::MapFull`] where an option can help; else when the system call fails.
    pub fn put(&self, key: &K, value: &V, flags: u64) -> Result<()> {
        sys::update(self.fd.as_fd(), key, value, flags).map_err(|e| {
            let option = spec(self.name).option;
            match (e.raw_os_error(), sys::map_info(self.fd.as_fd())) {
                (Some(libc::E2BIG | libc::ENOSPC), Ok(info)) if !option.is_empty() => {
                    Error::MapFull { map: self.name, size: info.max_entries, option }
                }
                _ => self.error("write", e),
            }
        })
    }

    /// Writes an entry unless there is one with its key. Says whether it did: there may be no room, too.
    ///
    /// # Errors
    /// When the system call fails.
    pub(crate) fn add(&self, key: &K, value: &V) -> Result<bool> {
        match sys::update(self.fd.as_fd(), key, value, sys::NOEXIST) {
            Ok(()) => Ok(true),
            Err(e) if sys::is_left_out(&e) => Ok(false),
            Err(e) => Err(self.error("write", e)),
        }
    }

    /// Removes an entry; says whether there was one.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn remove(&self, key: &K) -> Result<bool> {
        let found = sys::delete(self.fd.as_fd(), key).map_err(|e| self.error("delete from", e))?;
        Ok(found.is_some())
    }

    /// Reads all entries, in no order. Entries that come and go meanwhile may be missed.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn entries(&self) -> Result<Vec<(K, V)>> {
        let mut entries = Vec::new();
        self.visit(|key, value| entries.push((*key, *value)))?;
        Ok(entries)
    }

    /// Shows all entries to `visit`, as [`Table::entries`] but without keeping them.
    ///
    /// # Errors
    /// When the system call fails, after some entries were visited.
    pub fn visit(&self, mut visit: impl FnMut(&K, &V)) -> Result<()> {
        let mut keys = vec![blank::<K>(); BATCH];
        let mut values = vec![blank::<V>(); BATCH];
        let mut token = None;
        loop {
            let (count, next) = match sys::lookup_batch(self.fd.as_fd(), token, &mut keys, &mut values) {
                Ok(read) => read,
                // One bucket holds more than fits: a larger buffer, from where the last batch ended.
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                    keys.resize(keys.len() * 2, blank());
                    values.resize(keys.len(), blank());
                    continue;
                }
                Err(e) => return Err(self.error("list", e)),
            };
            keys.iter().zip(&values).take(count).for_each(|(key, value)| visit(key, value));
            match next {
                Some(next) => token = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn error(&self, verb: &str, source: io::Error) -> Error {
        Error::io(format!("cannot {verb} map {}", self.name), source)
    }
}

/// An mmapable array: a read or a write is a load or a store.
#[derive(Debug)]
pub struct Mapped<T> {
    name: &'static str,
    memory: NonNull<T>,
    bytes: NonZeroUsize,
    len: u32,
}

// SAFETY: the memory is shared with the kernel anyway; all access is by atomic words.
unsafe impl<T: Pod> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Sync for Mapped<T> {}

impl<T: Pod> Mapped<T> {
    /// Maps an array of `len` values, of which the kernel keeps `size_of::<T>()` a multiple of 8.
    pub(crate) fn new(name: &'static str, fd: &OwnedFd, len: u32, writable: bool) -> Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        let protection = if writable { ProtFlags::PROT_READ | ProtFlags::PROT_WRITE } else { ProtFlags::PROT_READ };
        let bytes =
            NonZeroUsize::new(size_of::<T>() * len as usize).ok_or(Error::NoSlot { map: name, slot: 0, size: 0 })?;
        // SAFETY: a new mapping of a map that we hold open; nobody else knows its address.
        let memory = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, fd, 0) }
            .map_err(|e| Error::io(format!("cannot map the memory of {name}"), e.into()))?;
        Ok(Self { name, memory: memory.cast(), bytes, len })
    }

    /// Number of slots.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no slot; never, as the kernel refuses such maps.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A slot as the words that it is made of.
    ///
    /// # Errors
    /// [`Error::NoSlot`] beyond the end.
    pub(crate) fn words(&self, slot: u32) -> Result<&[AtomicU32]> {
        if slot >= self.len {
            return Err(Error::NoSlot { map: self.name, slot, size: self.len });
        }
        // SAFETY: slot is inside of the mapping, which lives as long as self; T is a whole number of aligned words, and
        // everybody who shares the memory accesses it by words.
        Ok(unsafe {
            std::slice::from_raw_parts(
                self.memory.as_ptr().add(slot as usize).cast(),
                size_of::<T>() / size_of::<u32>(),
            )
        })
    }

    /// Reads a slot. Words that the kernel writes meanwhile may be of different moments.
    ///
    /// # Errors
    /// [`Error::NoSlot`] beyond the end.
    pub fn get(&self, slot: u32) -> Result<T> {
        let words = self.words(slot)?;
        let mut value = blank::<T>();
        let target = (&raw mut value).cast::<u32>();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: value has as many words as the slot.
            unsafe { target.add(i).write(word.load(Ordering::Relaxed)) };
        }
        Ok(value)
    }

    /// Writes a slot, each word by one store, and only those that differ.
    ///
    /// # Errors
    /// [`Error::NoSlot`] beyond the end.
    pub fn set(&self, slot: u32, value: &T) -> Result<()> {
        let words = self.words(slot)?;
        let source = (value as *const T).cast::<u32>();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: value has as many words as the slot.
            let new = unsafe { source.add(i).read() };
            if word.load(Ordering::Relaxed) != new {
                word.store(new, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Writes one word of a slot, `offset` bytes from its beginning: the others may be somebody else's.
    ///
    /// # Errors
    /// [`Error::NoSlot`] beyond the end of the map or of the slot.
    pub fn set_word(&self, slot: u32, offset: usize, value: u32) -> Result<()> {
        let word = self.words(slot)?.get(offset / size_of::<u32>());
        let word = word.ok_or(Error::NoSlot { map: self.name, slot, size: self.len })?;
        word.store(value, Ordering::Relaxed);
        Ok(())
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives self.
        let unmapped = unsafe { munmap(self.memory.cast(), self.bytes.get()) };
        debug_assert!(unmapped.is_ok(), "{}: {unmapped:?}", self.name);
    }
}
