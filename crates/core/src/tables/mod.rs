//! The ledger of slots: which service port owns which slot of which map, and what the maps hold.
//!
//! Pure: it answers with the operations that take the maps from what they hold to what a plan says, in an order in
//! which every prefix serves correctly. Additions go from what is referred to up to the frontends, removals the other
//! way. A slot that was given up rests until [`Tables::release`] was called twice.

mod adopt;
mod bases;
mod commit;
mod departing;
mod direct;
mod fitting;
mod frontends;
mod names;
mod pool;
mod prune;
mod replace;
mod source_ranges;
mod steer;
mod tiers;
mod uses;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ipnet::IpNet;
use thiserror::Error;
use weir_abi as abi;

use crate::lines::{self, MAX_ENTRIES};
use crate::model::{Family, ObjectName, Protocol};
use crate::ops::{Capacity, FrontendKey, MapOp, SourceRange};
pub use departing::Departing;
pub use direct::DirectNodes;
use frontends::Frontends;
use names::NodeNumbers;
use pool::Pool;
pub use source_ranges::MAX_SOURCE_RANGES;

/// Why a plan cannot be written, or not all of it: see [`Update::shortage`].
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum TablesError {
    /// A map has no free entry. Slots that rest until the next releases count as used.
    #[error("map {map} is full ({size} entries): raise {option}")]
    Full {
        /// The map.
        map: &'static str,
        /// Its size in entries.
        size: u32,
        /// The option that sets the size.
        option: &'static str,
    },
    /// A tier has more weighted endpoints than lines can hold.
    #[error(
        "{service} port {port_name:?}: {endpoints} endpoints in one tier, and the kernel selects among {MAX_ENTRIES} \
         at most: split the service"
    )]
    TooManyEndpoints {
        /// The service.
        service: ObjectName,
        /// Name of its port.
        port_name: Arc<str>,
        /// Endpoints with a weight in the tier.
        endpoints: usize,
    },
    /// A port has more source ranges than one may take of the map that all services share.
    #[error(
        "{service} port {port_name:?}: {ranges} source ranges of one family, and one port may have \
         {MAX_SOURCE_RANGES} at most: merge ranges, or let a firewall filter"
    )]
    TooManySourceRanges {
        /// The service.
        service: ObjectName,
        /// Name of its port.
        port_name: Arc<str>,
        /// Ranges of the port, in one family.
        ranges: usize,
    },
}

impl TablesError {
    /// Whether there would be room on a node with larger maps: all else is the service's own.
    #[must_use]
    pub const fn is_of_room(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::TooManyEndpoints { .. } | Self::TooManySourceRanges { .. } => false,
        }
    }
}

/// A frontend that two services claim.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct FrontendConflict {
    /// The frontend.
    pub key: FrontendKey,
    /// The service that has it: the first that claimed it, or the one whose cluster IP it is.
    pub kept_by: ObjectName,
    /// The service that gets it when the other one lets go.
    pub refused: ObjectName,
}

/// The answer to a new plan.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Update {
    /// What to write, in this order.
    pub ops: Vec<MapOp>,
    /// Frontends that the service claims from now on but did not get, and those that others lost to it. Within a batch
    /// they may be temporary: [`Tables::conflicts`] tells which ones lasted.
    pub conflicts: Vec<FrontendConflict>,
    /// Why its source ranges could not be written: then its ports with ranges are without their load balancer
    /// addresses, which would be open to all, and everything else is as planned. To be reported, and tried again with
    /// the same plans.
    pub shortage: Option<TablesError>,
    /// Why some tiers have fewer endpoints than planned: there was no room for their lines or for new endpoints, maybe only for as long as
    /// those that they replace have to rest. To be reported, and tried again with the same plans.
    pub thinned: Option<TablesError>,
    /// Why the nodes of some endpoints are told as unknown. To be reported.
    pub unnumbered: Option<TablesError>,
}

/// The ledger. See the module's description.
#[derive(Debug)]
pub struct Tables {
    capacity: Capacity,
    /// By slot in `services`.
    ports: HashMap<u32, Port>,
    /// Slots in `services` by service.
    slots: HashMap<ObjectName, Vec<u32>>,
    port_pool: Pool,
    /// What `backends` holds, by slot; the generations of free slots included.
    backends: Vec<abi::Backend>,
    backend_pool: Pool,
    /// What `lines` holds, as far as services refer to it.
    lines: HashMap<u32, Box<abi::Line>>,
    line_pool: Pool,
    nodes: NodeNumbers,
    direct: direct::Direct,
    frontends: Frontends,
    /// How many `source_ranges` holds.
    source_ranges: u32,
    orphans: Orphans,
}

/// One port of a service in one family: the owner of a slot in `services`.
#[derive(Clone, Debug)]
struct Port {
    service: ObjectName,
    port_name: Arc<str>,
    protocol: Protocol,
    family: Family,
    port: u16,
    /// Seconds since boot.
    created: u32,
    content: abi::Service,
    /// Slots in `backends`, sorted by address and port.
    backends: Box<[u32]>,
    /// Frontends that it claims, whether it owns them or waits for them.
    claims: Box<[FrontendKey]>,
    /// Sorted.
    source_ranges: Box<[IpNet]>,
    /// Its tiers have fewer endpoints than planned, for want of lines.
    thin: bool,
}

/// What an earlier writer left that belongs to no known service. Reserved until it is pruned.
#[derive(Debug, Default)]
struct Orphans {
    services: BTreeSet<u32>,
    names: BTreeSet<u32>,
    backends: BTreeSet<u32>,
    lines: BTreeSet<u32>,
    source_ranges: BTreeSet<SourceRange>,
}

const NO_BACKEND: abi::Backend = abi::Backend {
    addr: abi::Addr::UNSET,
    port: abi::Be16::new(0),
    proto: 0,
    flags: 0,
    generation: 0,
    service: 0,
    node: 0,
};

const NO_SERVICE: abi::Service = abi::Service {
    tiers: [abi::Tiers { spill: 0, local: 0, remote: 0, pad: 0 }; abi::CLASS_COUNT],
    endpoints: 0,
    flags: 0,
    affinity: 0,
    pad: 0,
};

impl Tables {
    /// The ledger of empty maps.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        let none = BTreeSet::new();
        Self {
            capacity,
            ports: HashMap::new(),
            slots: HashMap::new(),
            port_pool: Pool::new(1, capacity.services, &none),
            backends: Vec::new(),
            backend_pool: Pool::new(1, capacity.backends, &none),
            lines: HashMap::new(),
            line_pool: Pool::new(0, capacity.lines, &none),
            nodes: NodeNumbers::new(capacity.nodes, &none),
            direct: direct::Direct::default(),
            frontends: Frontends::new(capacity.frontends),
            source_ranges: 0,
            orphans: Orphans::default(),
        }
    }

    /// Tells that a grace period has passed: every packet that was on its way at the previous call has left. Slots
    /// given up before that call become free.
    pub fn release(&mut self) {
        let Self {
            capacity: _,
            ports: _,
            slots: _,
            port_pool,
            backends: _,
            backend_pool,
            lines: _,
            line_pool,
            nodes,
            direct: _,
            frontends: _,
            source_ranges: _,
            orphans: _,
        } = self;
        port_pool.release();
        backend_pool.release();
        line_pool.release();
        nodes.release_resting();
    }

    /// Whether the maps hold a service: it was replaced with plans, or adopted, and not removed since.
    #[must_use]
    pub fn holds(&self, service: &ObjectName) -> bool {
        self.slots.contains_key(service)
    }

    /// Whether new flows from outside may go to endpoints of this node, as the maps have it.
    #[must_use]
    pub fn has_local(&self, service: &ObjectName) -> bool {
        let here = abi::BACKEND_LOCAL | abi::BACKEND_CLASS << abi::CLASS_EXTERNAL;
        let ports = self.slots.get(service).into_iter().flatten().filter_map(|slot| self.ports.get(slot));
        ports.flat_map(|port| &port.backends).any(|id| self.backend(*id).flags & here == here)
    }

    /// All frontends that more than one service claims, sorted.
    #[must_use]
    pub fn conflicts(&self) -> Vec<FrontendConflict> {
        let mut conflicts = Vec::new();
        for (key, owner, waiting) in self.frontends.conflicts() {
            let waiting = waiting.iter().map(|claim| claim.slot);
            conflicts.extend(waiting.filter_map(|slot| self.conflict(key, owner, slot)));
        }
        conflicts.sort_unstable();
        conflicts
    }

    fn conflict(&self, key: FrontendKey, owner: u32, waiting: u32) -> Option<FrontendConflict> {
        let service = |slot| self.ports.get(&slot).map(|port| port.service.clone());
        Some(FrontendConflict { key, kept_by: service(owner)?, refused: service(waiting)? })
    }

    /// What `backends` holds in a slot.
    fn backend(&self, slot: u32) -> abi::Backend {
        self.backends.get(slot as usize).copied().unwrap_or(NO_BACKEND)
    }

    fn set_backend(&mut self, slot: u32, backend: abi::Backend) {
        let index = slot as usize;
        if index >= self.backends.len() {
            self.backends.resize(index + 1, NO_BACKEND);
        }
        self.backends[index] = backend;
    }

    /// Empties a backend's slot. The address stays: a packet that selected it a moment ago still reads it.
    fn vacate_backend(&mut self, slot: u32) -> MapOp {
        let old = self.backend(slot);
        let backend = abi::Backend { flags: 0, generation: old.generation.wrapping_add(1), ..old };
        self.set_backend(slot, backend);
        self.backend_pool.retire(slot);
        MapOp::PutBackend { id: slot, backend }
    }

    /// Slots of the lines below a reference, in the order in which they were taken.
    fn line_slots(&self, reference: u32) -> Option<Vec<u32>> {
        let mut slots = Vec::new();
        let get = |slot| self.lines.get(&slot).map(Box::as_ref);
        lines::walk(reference, &get, &mut |slot, _| slots.push(slot)).then_some(slots)
    }
}

/// The references of a service to its tiers, empty ones included.
fn roots(service: &abi::Service) -> impl Iterator<Item = u32> {
    service.tiers.iter().flat_map(|tiers| [tiers.local, tiers.remote])
}

/// Identity of a backend within its service port, and its sort order.
fn endpoint(backend: &abi::Backend) -> ([u8; 16], u16) {
    (backend.addr.octets(), backend.port.get())
}
