//! Interfaces that packets may take past the host's stack, and which pods are behind them.

use std::collections::BTreeMap;

use weir_abi as abi;

use crate::error::Result;
use crate::map::Table;
use crate::pins::PinDir;

/// The maps, open for writing.
#[derive(Debug)]
pub(crate) struct Shortcuts {
    shortcuts: Table<u32, abi::Shortcut>,
    /// The interface of each pod's MAC address: programs write it.
    pod_macs: Table<u64, u32>,
}

impl Shortcuts {
    /// Opens the maps.
    ///
    /// # Errors
    /// No pin there, no right to open it, or another layout.
    pub(crate) fn open(pins: &PinDir, flags: u32) -> Result<Self> {
        Ok(Self { shortcuts: pins.table("shortcuts", flags)?, pod_macs: pins.table("pod_macs", flags)? })
    }

    /// Makes the map hold exactly these, by index, and forgets the pods behind those that leave.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub(crate) fn replace(&self, wanted: &BTreeMap<u32, abi::Shortcut>) -> Result<()> {
        for (index, _) in self.shortcuts.entries()? {
            if !wanted.contains_key(&index) {
                self.shortcuts.remove(&index)?;
            }
        }
        for (mac, index) in self.pod_macs.entries()? {
            if !wanted.contains_key(&index) {
                self.pod_macs.remove(&mac)?;
            }
        }
        wanted.iter().try_for_each(|(index, shortcut)| self.shortcuts.put(index, shortcut, 0))
    }

    /// All of them, by index.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn entries(&self) -> Result<Vec<(u32, abi::Shortcut)>> {
        self.shortcuts.entries()
    }

    /// MAC addresses of pods, in a number's first bytes, each with the index of the interface that its frames came from last.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn pod_macs(&self) -> Result<Vec<(u64, u32)>> {
        self.pod_macs.entries()
    }
}
