//! What each map must look like. aya reuses any pin of the right name, so the comparison is made here, before it gets to.

use std::mem::size_of;
use std::os::fd::BorrowedFd;
use std::path::Path;

use aya_obj::generated::{bpf_map_info, bpf_map_type};
use weir_abi as abi;
use weir_core::ops::Capacity;

use crate::error::{Error, Result};
use crate::sys;

const MMAPABLE: u32 = 1 << 10;
const NO_PREALLOC: u32 = 1;

/// The definition of a map, as `bpf/lib/maps.h` has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapSpec {
    pub(crate) name: &'static str,
    pub(crate) kind: bpf_map_type,
    pub(crate) key: usize,
    pub(crate) value: usize,
    flags: u32,
    /// Entries for a capacity; `None` where the object's own number stands.
    size: Option<fn(&Capacity) -> u32>,
    /// The agent's option that sets the size.
    pub(crate) option: &'static str,
    /// What people count as entries, in one of the kernel's.
    pub(crate) ways: u32,
}

const fn array<V>(name: &'static str, size: Option<fn(&Capacity) -> u32>, option: &'static str) -> MapSpec {
    let kind = bpf_map_type::BPF_MAP_TYPE_ARRAY;
    MapSpec { name, kind, key: size_of::<u32>(), value: size_of::<V>(), flags: MMAPABLE, size, option, ways: 1 }
}

const fn hash<K, V>(name: &'static str, size: fn(&Capacity) -> u32, option: &'static str) -> MapSpec {
    let kind = bpf_map_type::BPF_MAP_TYPE_HASH;
    MapSpec {
        name,
        kind,
        key: size_of::<K>(),
        value: size_of::<V>(),
        flags: NO_PREALLOC,
        size: Some(size),
        option,
        ways: 1,
    }
}

const fn lru<K, V>(name: &'static str, size: Option<fn(&Capacity) -> u32>, option: &'static str) -> MapSpec {
    let kind = bpf_map_type::BPF_MAP_TYPE_LRU_HASH;
    MapSpec { name, kind, key: size_of::<K>(), value: size_of::<V>(), flags: 0, size, option, ways: 1 }
}

const fn per_cpu<V>(name: &'static str) -> MapSpec {
    let kind = bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY;
    MapSpec { name, kind, key: size_of::<u32>(), value: size_of::<V>(), flags: 0, size: None, option: "", ways: 1 }
}

/// Longest prefix match; the kernel has no other kind than one without preallocation.
const fn lpm<K, V>(name: &'static str, size: fn(&Capacity) -> u32, option: &'static str) -> MapSpec {
    const { assert!(size_of::<K>() <= size_of::<sys::BatchToken>(), "the kernel writes a key there") };
    MapSpec { kind: bpf_map_type::BPF_MAP_TYPE_LPM_TRIE, ..hash::<K, V>(name, size, option) }
}

/// Of a size that no option sets.
const fn fixed<K, V>(name: &'static str, kind: bpf_map_type, flags: u32) -> MapSpec {
    MapSpec { name, kind, key: size_of::<K>(), value: size_of::<V>(), flags, size: None, option: "", ways: 1 }
}

/// Flows that begin, a few in each element.
const fn sets<K, V>(name: &'static str) -> MapSpec {
    MapSpec { ways: WAYS, ..array::<abi::OpeningSet<K, V>>(name, Some(SETS.0), SETS.1) }
}

#[expect(clippy::cast_possible_truncation, reason = "it is 4")]
const WAYS: u32 = abi::OPENING_WAYS as u32;
const SETS: (fn(&Capacity) -> u32, &str) = (|c| c.openings.div_ceil(WAYS).max(1), "--max-openings");
const FLOWS: (fn(&Capacity) -> u32, &str) = (|c| c.flows, "--max-flows");
const FRONTENDS: (fn(&Capacity) -> u32, &str) = (|c| c.frontends, "--max-frontends");
const SERVICES: (fn(&Capacity) -> u32, &str) = (|c| c.services, "--max-services");
const BACKENDS: (fn(&Capacity) -> u32, &str) = (|c| c.backends, "--max-backends");

/// All maps.
pub(crate) const MAPS: [MapSpec; 43] = [
    array::<abi::Config>("config", None, ""),
    array::<abi::FilterWord>("frontend_filter", None, ""),
    array::<abi::GoingFilter>("going_filter", None, ""),
    array::<abi::Service>("services", Some(SERVICES.0), SERVICES.1),
    array::<abi::Backend>("backends", Some(BACKENDS.0), BACKENDS.1),
    array::<abi::Line>("lines", Some(|c| c.lines), "--max-lines"),
    array::<abi::ServiceCounters>("service_counters", Some(SERVICES.0), SERVICES.1),
    array::<abi::BackendCounters>("backend_counters", Some(BACKENDS.0), BACKENDS.1),
    array::<abi::SnatCounter>("snat_counters", None, ""),
    array::<abi::SnatNext>("snat_next", None, ""),
    array::<abi::SnatPorts>("snat_ports", None, ""),
    hash::<abi::FrontendKey4, abi::Frontend>("frontends4", FRONTENDS.0, FRONTENDS.1),
    hash::<abi::FrontendKey6, abi::Frontend>("frontends6", FRONTENDS.0, FRONTENDS.1),
    hash::<u32, abi::ServiceName>("service_names", SERVICES.0, SERVICES.1),
    hash::<u32, abi::NodeName>("node_names", |c| c.nodes, "--max-nodes"),
    lpm::<abi::SourceRangeKey, abi::SourceRange>("source_ranges", |c| c.source_ranges, "--max-source-ranges"),
    lru::<abi::FlowKey4, abi::Flow>("flows4", Some(FLOWS.0), FLOWS.1),
    lru::<abi::FlowKey6, abi::Flow6>("flows6", Some(FLOWS.0), FLOWS.1),
    lru::<abi::FlowKey4, abi::Reply>("replies4", Some(FLOWS.0), FLOWS.1),
    lru::<abi::FlowKey6, abi::Reply>("replies6", Some(FLOWS.0), FLOWS.1),
    sets::<abi::FlowKey4, abi::Flow>("openings4"),
    sets::<abi::FlowKey6, abi::Flow6>("openings6"),
    sets::<abi::FlowKey4, abi::Reply>("awaited4"),
    sets::<abi::FlowKey6, abi::Reply>("awaited6"),
    array::<abi::FirstSyns>("first_syns", Some(SETS.0), SETS.1),
    array::<abi::SnatKept>("snat_kept", Some(SETS.0), SETS.1),
    array::<abi::Displaced>("displaced", Some(SETS.0), SETS.1),
    lru::<abi::AffinityKey, abi::Affinity>("affinities", Some(|c| c.affinities), "--max-affinities"),
    lru::<abi::FragmentKey, abi::Fragment>("fragments", None, ""),
    // A map without entries cannot be made.
    array::<abi::HeldPiece>("held_pieces", Some(|c| c.held_pieces.max(1)), "--max-held-pieces"),
    per_cpu::<abi::HeldPiece>("first_pieces"),
    lru::<abi::SocketKey, abi::SocketPeer>("socket_peers", Some(|c| c.sockets), "--max-sockets"),
    fixed::<i32, abi::ConnectionPeer>("connection_peers", bpf_map_type::BPF_MAP_TYPE_SK_STORAGE, NO_PREALLOC),
    fixed::<u64, abi::HookedPod>("hooked_pods", bpf_map_type::BPF_MAP_TYPE_HASH, NO_PREALLOC),
    fixed::<u32, abi::Shortcut>("shortcuts", bpf_map_type::BPF_MAP_TYPE_HASH, NO_PREALLOC),
    // All may be this node's. Only what is there takes memory.
    hash::<abi::LocalKey, abi::LocalEndpoint>("local_endpoints", BACKENDS.0, BACKENDS.1),
    hash::<abi::Addr, abi::OtherNode>("other_nodes", |c| c.nodes.saturating_mul(2), "--max-nodes"),
    fixed::<u32, u32>("nics", bpf_map_type::BPF_MAP_TYPE_HASH, NO_PREALLOC),
    lru::<u64, u32>("pod_macs", None, ""),
    per_cpu::<abi::Counter>("counters"),
    per_cpu::<abi::Route>("routes"),
    per_cpu::<abi::Pace>("paces"),
    // The kernel adds BPF_F_RDONLY_PROG to every device map.
    fixed::<u32, abi::Device>("devices", bpf_map_type::BPF_MAP_TYPE_DEVMAP_HASH, 1 << 7),
];

/// The definition of a map by name.
pub(crate) fn spec(name: &'static str) -> MapSpec {
    MAPS.into_iter().find(|spec| spec.name == name).expect("the names that this crate asks for are in the table")
}

/// How a map compares to its definition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fit {
    /// The same.
    Same,
    /// The same entries, another number of them.
    Resized,
    /// Something else.
    Foreign,
}

impl MapSpec {
    /// Whether somebody can ask for its entries, and for their number: those of sockets can only be had by a descriptor of each.
    pub(crate) fn is_listed(&self) -> bool {
        self.kind != bpf_map_type::BPF_MAP_TYPE_SK_STORAGE
    }

    /// Entries for a capacity.
    pub(crate) fn entries(&self, capacity: &Capacity) -> Option<u32> {
        self.size.map(|size| size(capacity))
    }

    /// Type, sizes and flags of a map that is pinned at the path.
    pub(crate) fn info(fd: BorrowedFd<'_>, path: &Path) -> Result<bpf_map_info> {
        sys::map_info(fd).map_err(|e| Error::io(format!("cannot inspect {}", path.display()), e))
    }

    /// Compares a map with this definition.
    pub(crate) fn fit(&self, info: &bpf_map_info, capacity: Option<&Capacity>) -> Fit {
        let same = (info.type_, info.key_size, info.value_size, info.map_flags)
            == (self.kind as u32, to_u32(self.key), to_u32(self.value), self.flags);
        let wanted = capacity.and_then(|capacity| self.entries(capacity));
        match (same, wanted) {
            (false, _) => Fit::Foreign,
            (true, Some(wanted)) if wanted != info.max_entries => Fit::Resized,
            (true, _) => Fit::Same,
        }
    }

    /// An error unless the map has this definition's layout, of whatever size.
    pub(crate) fn require(&self, info: &bpf_map_info, path: &Path) -> Result<()> {
        if self.fit(info, None) == Fit::Same {
            return Ok(());
        }
        Err(Error::Layout {
            path: path.to_owned(),
            found: shape(info.type_, info.key_size, info.value_size, info.map_flags),
            expected: shape(self.kind as u32, to_u32(self.key), to_u32(self.value), self.flags),
        })
    }
}

fn shape(kind: u32, key: u32, value: u32, flags: u32) -> String {
    format!("type {kind}, key {key}, value {value}, flags {flags:#x}")
}

fn to_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
