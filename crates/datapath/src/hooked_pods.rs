//! Pods whose TCP connections the socket hooks translate.

use std::collections::BTreeMap;

use weir_abi as abi;

use crate::error::Result;
use crate::map::Table;
use crate::pins::PinDir;

/// The map, open for writing. It has one writer, which need not be that of all other maps.
#[derive(Debug)]
pub struct HookedPods(Table<u64, abi::HookedPod>);

impl HookedPods {
    /// Opens the map.
    ///
    /// # Errors
    /// No pin there, no right to open it, or another layout.
    pub fn open(pins: &PinDir) -> Result<Self> {
        Ok(Self(pins.table("hooked_pods", 0)?))
    }

    /// Makes it hold exactly these, by the ids of their cgroups. Those that leave go first, for the sake of the room.
    ///
    /// # Errors
    /// When the map cannot be read or written, or is full: the rest is translated by packet.
    pub fn replace(&self, pods: &BTreeMap<u64, abi::HookedPod>) -> Result<()> {
        let there: BTreeMap<_, _> = self.0.entries()?.into_iter().collect();
        for group in there.keys().filter(|group| !pods.contains_key(group)) {
            self.0.remove(group)?;
        }
        for (group, pod) in pods.iter().filter(|(group, pod)| there.get(group) != Some(pod)) {
            self.0.put(group, pod, 0)?;
        }
        Ok(())
    }
}
