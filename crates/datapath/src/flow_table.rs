//! A table of flows or of their answers, of either kind: the kernel's own, or sets of those that begin.

use std::os::fd::{AsFd, OwnedFd};

use aya_obj::generated::bpf_map_type;
use weir_abi as abi;

use crate::error::{Error, Result};
use crate::flow_key::{FlowKey, Kept};
use crate::layout::spec;
use crate::map::Table;
use crate::openings::Openings;
use crate::pins::{PinDir, READ_ONLY};
use crate::sys;

/// A table by name.
#[derive(Debug)]
pub(crate) struct FlowTable<K, V> {
    name: &'static str,
    entries: Entries<K, V>,
}

#[derive(Debug)]
enum Entries<K, V> {
    Going(Table<K, V>),
    Opening(Openings<K, V>),
}

impl<K: FlowKey, V: Kept> FlowTable<K, V> {
    /// Opens the pinned tables of what goes on and of what begins.
    ///
    /// # Errors
    /// As [`FlowTable::open`].
    pub(crate) fn open_both(pins: &PinDir, writable: bool) -> Result<[Self; 2]> {
        let [going, opening] = V::tables::<K>();
        Ok([Self::open(pins, going, writable)?, Self::open(pins, opening, writable)?])
    }

    /// Opens a pinned table.
    ///
    /// # Errors
    /// No pin there, no right to open it, or another layout.
    pub(crate) fn open(pins: &PinDir, name: &'static str, writable: bool) -> Result<Self> {
        // The kernel maps memory only of descriptors that may write.
        let flags = if writable || is_opening(name) { 0 } else { READ_ONLY };
        Self::new(name, pins.open_map(&spec(name), flags)?.0, writable)
    }

    /// Wraps a map; the caller has checked its layout.
    ///
    /// # Errors
    /// When the memory of sets cannot be mapped.
    pub(crate) fn new(name: &'static str, fd: OwnedFd, writable: bool) -> Result<Self> {
        let entries = if is_opening(name) {
            let info = sys::map_info(fd.as_fd()).map_err(|e| Error::io(format!("cannot inspect map {name}"), e))?;
            Entries::Opening(Openings::new(name, &fd, info.max_entries, writable)?)
        } else {
            Entries::Going(Table::new(name, fd))
        };
        Ok(Self { name, entries })
    }

    /// Name of the map.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// How many entries of a table of flows that begin have lost their place soon after their last packet; of others nobody knows.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub(crate) fn displaced(&self) -> Result<Option<u64>> {
        match &self.entries {
            Entries::Going(_) => Ok(None),
            Entries::Opening(openings) => openings.displaced().map(Some),
        }
    }

    /// Reads an entry. `seed` is that of the configuration.
    ///
    /// # Errors
    /// When the map cannot be read; a missing entry is `None`.
    pub(crate) fn get(&self, key: &K, seed: u64) -> Result<Option<V>> {
        match &self.entries {
            Entries::Going(table) => table.get(key),
            Entries::Opening(openings) => openings.get(key, seed),
        }
    }

    /// Shows all entries to `visit`, in no order. Entries that come and go meanwhile may be missed.
    ///
    /// # Errors
    /// When the map cannot be read, after some entries were visited.
    pub(crate) fn visit(&self, visit: impl FnMut(&K, &V)) -> Result<()> {
        match &self.entries {
            Entries::Going(table) => table.visit(visit),
            Entries::Opening(openings) => openings.visit(visit),
        }
    }

    /// All entries, as [`FlowTable::visit`].
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>> {
        let mut all = Vec::new();
        self.visit(|key, value| all.push((*key, *value)))?;
        Ok(all)
    }

    /// Removes the entries for which `gone` says so.
    ///
    /// # Errors
    /// When the map cannot be read or written; some entries may be removed then.
    pub(crate) fn remove(&self, gone: impl Fn(&K, &V) -> bool) -> Result<()> {
        match &self.entries {
            Entries::Going(table) => {
                // Of a table that may be large only what is to go is kept in memory.
                let mut doomed = Vec::new();
                table.visit(|key, value| {
                    if gone(key, value) {
                        doomed.push(*key);
                    }
                })?;
                doomed.iter().try_for_each(|key| table.remove(key).map(drop))
            }
            Entries::Opening(openings) => openings.remove(gone),
        }
    }

    /// Writes an entry, where a table of flows that begin has room for it and none with the same key. `seed` is that of the
    /// configuration.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(crate) fn put(&self, key: &K, value: &V, seed: u64) -> Result<()> {
        match &self.entries {
            Entries::Going(table) => table.put(key, value, 0),
            Entries::Opening(openings) => openings.add(key, value, seed).map(drop),
        }
    }

    /// Adds what another table of flows that begin has; `going` is that of those that go on. To that one goes what has settled, as its
    /// client's next packet would have it: a set of another table may have no room for all that had settled in two. Of the rest what
    /// finds no room is left out, what has ended before the others.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub(crate) fn add_openings(&self, from: &Self, going: &Self, seed: u64) -> Result<()> {
        let (Entries::Opening(to), Entries::Going(going)) = (&self.entries, &going.entries) else { return Ok(()) };
        let (settled, begin): (Vec<_>, Vec<_>) =
            from.entries()?.into_iter().partition(|(_, value)| value.has(abi::FLOW_SETTLED));
        settled.into_iter().try_for_each(|(key, value)| going.add(&key, &value.gone_on()).map(drop))?;
        let (ended, open): (Vec<_>, Vec<_>) = begin.into_iter().partition(|(_, value)| value.has(abi::FLOW_ENDED));
        open.iter().chain(&ended).try_for_each(|(key, value)| to.add(key, value, seed).map(drop))
    }

    /// Of a table of flows that begin: takes what has ended in it out of `going`, that of those that go on. `seed` is that of the
    /// configuration.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub(crate) fn forget_ended(&self, going: &Self, seed: u64) -> Result<()> {
        let (Entries::Opening(openings), Entries::Going(going)) = (&self.entries, &going.entries) else {
            return Ok(());
        };
        let mut ended = Vec::new();
        openings.visit(|key, value| {
            if value.has(abi::FLOW_ENDED) {
                ended.push(*key);
            }
        })?;
        // Its client may have it go on meanwhile.
        let still = |key: &K| Ok(openings.get(key, seed)?.is_some_and(|value| value.has(abi::FLOW_ENDED)));
        ended.iter().try_for_each(|key| if still(key)? { going.remove(key).map(drop) } else { Ok(()) })
    }
}

/// Whether a table is one of sets.
pub(crate) fn is_opening(name: &'static str) -> bool {
    spec(name).kind == bpf_map_type::BPF_MAP_TYPE_ARRAY
}
