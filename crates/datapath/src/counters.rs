//! What the programs count, and how large the maps are: all that a scrape needs, without mapping any memory.

use std::collections::BTreeMap;

use aya_obj::generated::bpf_map_type;
use weir_abi as abi;
use weir_core::flow_pressure::was_flooded;

use crate::attach::link_kinds;
use crate::error::Result;
use crate::layout::MAPS;
use crate::map::Table;
use crate::pins::{PinDir, READ_ONLY};

/// What a map can hold.
#[derive(Clone, Copy, Debug)]
pub struct MapUse {
    /// Name of the map.
    pub name: &'static str,
    /// Type, as bpftool calls it.
    pub kind: &'static str,
    /// Limit.
    pub max_entries: u32,
    /// Bytes of a key and of a value.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
}

/// The counters by hook and reason, open for reading.
#[derive(Debug)]
pub struct Counters {
    pins: PinDir,
    counters: Table<u32, abi::Counter>,
    paces: Table<u32, abi::Pace>,
    cpus: usize,
}

impl Counters {
    /// Opens the map.
    ///
    /// # Errors
    /// No pins there, no right to read them, or another layout.
    pub fn open(pins: PinDir) -> Result<Self> {
        let counters = pins.table("counters", READ_ONLY)?;
        let paces = pins.table("paces", READ_ONLY)?;
        Ok(Self { pins, counters, paces, cpus: aya::util::nr_cpus().unwrap_or(1) })
    }

    /// Possible CPUs: so many values has an entry of a per-CPU map.
    pub(crate) const fn cpus(&self) -> usize {
        self.cpus
    }

    /// A hook's counter of a reason, summed over all CPUs.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn counter(&self, hook: usize, reason: usize) -> Result<abi::Counter> {
        let index = u32::try_from(hook * abi::REASON_COUNT + reason).unwrap_or(u32::MAX);
        let all = self.counters.get_per_cpu(&index, self.cpus)?.unwrap_or_default();
        Ok(all.iter().fold(abi::Counter { packets: 0, bytes: 0 }, |sum, one| abi::Counter {
            packets: sum.packets.wrapping_add(one.packets),
            bytes: sum.bytes.wrapping_add(one.bytes),
        }))
    }

    /// Entries of flows that go on which a full table had evicted, as far as it was seen: those for answers, which a client's
    /// packet brings back before long. Entries of flows themselves are not among them.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn lost(&self) -> Result<u64> {
        self.paces(|pace| pace.lost)
    }

    /// Connections that were met in their middle, of which no table knew, and got an endpoint by their hash, or by what a flood had left of them. In one, in which
    /// no SYN is remembered, these are all that begin.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn adopted(&self) -> Result<u64> {
        self.paces(|pace| pace.adopted)
    }

    /// CPUs that had more new flows in one of the last ticks than anybody's clients make, at a tick of flows' times.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn flooded(&self, tick: u32) -> Result<u64> {
        self.paces(|pace| u64::from(was_flooded(pace, tick)))
    }

    /// A number of all CPUs' paces, added up.
    fn paces(&self, number: impl Fn(&abi::Pace) -> u64) -> Result<u64> {
        let all = self.paces.get_per_cpu(&0, self.cpus)?.unwrap_or_default();
        Ok(all.iter().fold(0, |sum, pace| sum.wrapping_add(number(pace))))
    }

    /// How many links each kind of hook has, by the name of its program without `weir_`; those without any included.
    ///
    /// # Errors
    /// When the directory of links cannot be read.
    pub fn links(&self) -> Result<BTreeMap<&'static str, u32>> {
        let mut links: BTreeMap<&str, u32> = link_kinds().map(|kind| (kind, 0)).collect();
        for pin in self.pins.link_names()? {
            // Those of interfaces have its index behind their name.
            let kind = pin.rsplit_once('-').map_or(pin.as_str(), |(kind, _)| kind);
            if let Some(count) = links.get_mut(kind) {
                *count += 1;
            }
        }
        Ok(links)
    }

    /// Name, limit and sizes of every map, but for those whose entries are in sockets.
    ///
    /// # Errors
    /// When a pin cannot be opened.
    pub fn maps(&self) -> Result<Vec<MapUse>> {
        MAPS.iter()
            .filter(|spec| spec.is_listed())
            .map(|spec| {
                let (_, max_entries) = self.pins.open_map(spec, READ_ONLY)?;
                let (key, value) = (u32::try_from(spec.key), u32::try_from(spec.value));
                Ok(MapUse {
                    name: spec.name,
                    kind: kind_name(spec.kind),
                    max_entries: max_entries * spec.ways,
                    key_size: key.unwrap_or(u32::MAX),
                    value_size: value.unwrap_or(u32::MAX),
                })
            })
            .collect()
    }
}

const fn kind_name(kind: bpf_map_type) -> &'static str {
    match kind {
        bpf_map_type::BPF_MAP_TYPE_ARRAY => "array",
        bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY => "percpu_array",
        bpf_map_type::BPF_MAP_TYPE_HASH => "hash",
        bpf_map_type::BPF_MAP_TYPE_LRU_HASH => "lru_hash",
        bpf_map_type::BPF_MAP_TYPE_LPM_TRIE => "lpm_trie",
        bpf_map_type::BPF_MAP_TYPE_DEVMAP_HASH => "devmap_hash",
        _ => "other",
    }
}
