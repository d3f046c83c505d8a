//! A program of a rehearsal with its private maps: copies of those that programs write.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::ProgramFd;
use aya_obj::generated::bpf_map_type;
use weir_abi::{self as abi, Hook};

use crate::constants::Constants;
use crate::error::{Error, Result};
use crate::flow_key::{Client, FlowKey, Kept};
use crate::flow_table::FlowTable;
use crate::layout::{MAPS, spec};
use crate::map::{Mapped, Pod, Table};
use crate::objects::{self, TC, XDP, load_program};
use crate::pins::{PinDir, READ_ONLY};
use crate::variables::ConfigNow;

/// What programs write. `maps.h` says the same, and a test that no other map changes.
const WRITTEN: [&str; 22] = [
    "going_filter",
    "flows4",
    "flows6",
    "replies4",
    "replies6",
    "openings4",
    "openings6",
    "awaited4",
    "awaited6",
    "first_syns",
    "affinities",
    "fragments",
    "held_pieces",
    "first_pieces",
    "socket_peers",
    "pod_macs",
    "counters",
    "routes",
    "paces",
    "snat_counters",
    "snat_kept",
    "displaced",
];
/// The same, with a slot for each that the agent gives out: their copies have as many.
const WRITTEN_BY_SLOT: [&str; 2] = ["backend_counters", "service_counters"];
/// Entries of private tables: one client's flows are a handful.
const PRIVATE_ENTRIES: u32 = 1024;

/// An object of which one program is loaded.
pub(super) struct Private {
    object: Ebpf,
    /// Of the configuration: by it flows that begin have their place.
    seed: u64,
}

impl Private {
    /// Makes the private maps, empty, and loads the program of a hook on them and on the agent's.
    ///
    /// # Errors
    /// No pins, a missing right, or a kernel that refuses the program.
    pub(super) fn load(pins: &PinDir, hook: Hook) -> Result<(Self, ProgramFd)> {
        let wanted = if hook == Hook::Xdp { &XDP } else { &TC };
        let (_, sets) = pins.open_map(&spec("openings4"), READ_ONLY)?;
        let (_, flows) = pins.open_map(&spec("flows4"), READ_ONLY)?;
        let constants = Constants::new(sets, flows)?;
        let mut loader = objects::loader();
        constants.set(&mut loader);
        for spec in MAPS {
            let (_, entries) = pins.open_map(&spec, READ_ONLY)?;
            match (WRITTEN.contains(&spec.name), WRITTEN_BY_SLOT.contains(&spec.name)) {
                (true, _) if spec.kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH => {
                    loader.map_max_entries(spec.name, PRIVATE_ENTRIES)
                }
                (true, _) | (_, true) => loader.map_max_entries(spec.name, entries),
                (false, false) => loader.map_pin_path(spec.name, pins.map(spec.name)),
            };
        }
        let config = ConfigNow::read(pins)?;
        config.set(&mut loader);
        let mut object = wanted.load(&mut loader)?;
        let name = hook.program();
        let missing = || Error::Object { object: wanted.name, reason: format!("there is no program {name}") };
        let program = load_program(wanted.name, name, object.program_mut(name).ok_or_else(missing)?)?;
        let seed = pins.mapped::<abi::Config>("config", READ_ONLY)?.get(0)?.hash_seed;
        Ok((Self { object, seed }, program))
    }

    /// Copies what the kernel knows of a client.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub(super) fn bring_along(&self, pins: &PinDir, packet: Client) -> Result<()> {
        let client = abi::Addr::from(packet.from.ip());
        match packet.from.ip() {
            IpAddr::V4(_) => self.bring_flows::<abi::FlowKey4>(pins, packet)?,
            IpAddr::V6(_) => self.bring_flows::<abi::FlowKey6>(pins, packet)?,
        }
        self.bring(pins, "affinities", |key: &abi::AffinityKey, _: &abi::Affinity| key.client == client)?;
        self.bring(pins, "pod_macs", |_: &u64, _: &u32| true)?;
        // Open flows decide where least-conn is the policy; source ports go in turns, or are kept.
        self.bring_array::<abi::BackendCounters>(pins, "backend_counters")?;
        self.bring_array::<abi::SnatCounter>(pins, "snat_counters")?;
        self.bring_array::<abi::SnatKept>(pins, "snat_kept")?;
        self.bring_array::<abi::Displaced>(pins, "displaced")
    }

    /// A flow by its key.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub(super) fn flow<K: FlowKey>(&self, key: &K) -> Result<Option<abi::Flow>> {
        for name in K::FLOWS {
            if let Some(flow) = self.flow_table::<K, K::Flow>(name)?.get(key, self.seed)? {
                return Ok(Some(*flow.as_ref()));
            }
        }
        Ok(None)
    }

    /// A private map.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub(super) fn table<K: Pod, V: Pod>(&self, name: &'static str) -> Result<Table<K, V>> {
        Ok(Table::new(name, self.descriptor(name)?))
    }

    fn flow_table<K: FlowKey, V: Kept>(&self, name: &'static str) -> Result<FlowTable<K, V>> {
        FlowTable::new(name, self.descriptor(name)?, true)
    }

    fn bring_flows<K: FlowKey>(&self, pins: &PinDir, packet: Client) -> Result<()> {
        let Client { from, to, protocol: _ } = packet;
        let (client, port) = (abi::Addr::from(from.ip()), abi::Be16::new(from.port()));
        self.bring_kept(pins, |key: &K, _: &K::Flow| is_same(key.ends().from, from))?;
        self.bring_kept(pins, |key: &K, reply: &abi::Reply| {
            let ends = key.ends();
            // The packet may be an answer itself.
            let is_it = is_same(ends.from, from) && is_same(ends.to, to);
            is_it || reply.client == client && reply.client_port == port
        })
    }

    fn bring_kept<K: FlowKey, V: Kept>(&self, pins: &PinDir, ours: impl Fn(&K, &V) -> bool) -> Result<()> {
        for name in V::tables::<K>() {
            let mut found = Vec::new();
            FlowTable::open(pins, name, false)?.visit(|key: &K, value: &V| {
                if ours(key, value) {
                    found.push((*key, *value));
                }
            })?;
            let own = self.flow_table(name)?;
            found.iter().try_for_each(|(key, value)| own.put(key, value, self.seed))?;
        }
        Ok(())
    }

    fn bring<K: Pod, V: Pod>(&self, pins: &PinDir, name: &'static str, ours: impl Fn(&K, &V) -> bool) -> Result<()> {
        let mut found = Vec::new();
        pins.table(name, READ_ONLY)?.visit(|key: &K, value: &V| {
            if ours(key, value) {
                found.push((*key, *value));
            }
        })?;
        let own = self.table(name)?;
        found.iter().try_for_each(|(key, value)| own.put(key, value, 0))
    }

    fn bring_array<T: Pod>(&self, pins: &PinDir, name: &'static str) -> Result<()> {
        let from = pins.mapped::<T>(name, READ_ONLY)?;
        let to = Mapped::new(name, &self.descriptor(name)?, from.len(), true)?;
        (0..from.len()).try_for_each(|slot| to.set(slot, &from.get(slot)?))
    }

    fn descriptor(&self, name: &'static str) -> Result<OwnedFd> {
        let data = match self.object.map(name) {
            Some(Map::Array(data) | Map::LruHashMap(data) | Map::PerCpuArray(data)) => data,
            Some(_) | None => {
                let reason = format!("map {name} is not of a kind that programs write");
                return Err(Error::Object { object: "the rehearsal", reason });
            }
        };
        data.fd().as_fd().try_clone_to_owned().map_err(|e| Error::io(format!("cannot keep map {name}"), e))
    }
}

/// The scope of an address is not in a packet.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip(), one.port()) == (other.ip(), other.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_that_programs_write_is_one_of_ours_and_no_other_kind_is_written() {
        for name in WRITTEN.into_iter().chain(WRITTEN_BY_SLOT) {
            assert!(MAPS.iter().any(|spec| spec.name == name), "{name}");
        }
        for spec in MAPS.iter().filter(|spec| spec.kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH) {
            assert!(WRITTEN.contains(&spec.name), "{}: what the kernel evicts from is the programs' own", spec.name);
        }
    }
}
