//! Read-only access to the pinned maps: for people and for metrics, whether or not an agent runs.

mod raw;

use std::collections::BTreeMap;

pub use raw::RawEntry;
use weir_abi as abi;
use weir_core::flow_pressure::{IdleLimits, TableUse, is_kept};
use weir_core::ops::Dump;
use weir_core::source_ports::PortSet;

use crate::counters::Counters;
use crate::error::Result;
use crate::flow_key::{Client, FlowKey};
use crate::flow_table::FlowTable;
use crate::flows::{Flows, displaced};
use crate::layout::spec;
use crate::map::{Mapped, Table};
use crate::pins::{PinDir, READ_ONLY};
use crate::shortcuts::Shortcuts;
use crate::source_ports::SourcePorts;
use crate::store::{KernelStore, MapStore};

/// A flow with both of its sides, addresses in either family.
#[derive(Clone, Copy, Debug)]
pub struct FlowEntry {
    /// Client.
    pub client: abi::Addr,
    /// Client's port.
    pub client_port: u16,
    /// What the client connected to.
    pub frontend: abi::Addr,
    /// Its port.
    pub frontend_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// The entry.
    pub flow: abi::Flow,
}

/// The pinned maps, open for reading.
#[derive(Debug)]
pub struct View {
    pins: PinDir,
    store: KernelStore,
    config: Mapped<abi::Config>,
    counters: Counters,
    replies4: [FlowTable<abi::FlowKey4, abi::Reply>; 2],
    replies6: [FlowTable<abi::FlowKey6, abi::Reply>; 2],
    affinities: Table<abi::AffinityKey, abi::Affinity>,
    fragments: Table<abi::FragmentKey, abi::Fragment>,
    held_pieces: Mapped<abi::HeldPiece>,
    sockets: Table<abi::SocketKey, abi::SocketPeer>,
    hooked_pods: Table<u64, abi::HookedPod>,
    devices: Table<u32, abi::Device>,
    nics: Table<u32, u32>,
    other_nodes: Table<abi::Addr, abi::OtherNode>,
    source_ports: SourcePorts,
    shortcuts: Shortcuts,
}

impl View {
    /// Opens the maps.
    ///
    /// # Errors
    /// No pins there, no right to read them, or another layout.
    pub fn open(pins: PinDir) -> Result<Self> {
        Ok(Self {
            store: KernelStore::open(&pins, READ_ONLY)?,
            config: pins.mapped("config", READ_ONLY)?,
            counters: Counters::open(pins.clone())?,
            replies4: FlowTable::open_both(&pins, false)?,
            replies6: FlowTable::open_both(&pins, false)?,
            affinities: pins.table("affinities", READ_ONLY)?,
            fragments: pins.table("fragments", READ_ONLY)?,
            held_pieces: pins.mapped("held_pieces", READ_ONLY)?,
            sockets: pins.table("socket_peers", READ_ONLY)?,
            hooked_pods: pins.table("hooked_pods", READ_ONLY)?,
            devices: pins.table("devices", READ_ONLY)?,
            nics: pins.table("nics", READ_ONLY)?,
            other_nodes: pins.table("other_nodes", READ_ONLY)?,
            source_ports: SourcePorts::open(&pins, READ_ONLY)?,
            shortcuts: Shortcuts::open(&pins, READ_ONLY)?,
            pins,
        })
    }

    /// The pin directory.
    #[must_use]
    pub const fn pins(&self) -> &PinDir {
        &self.pins
    }

    /// What the control plane wrote.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn dump(&self) -> Result<Dump> {
        self.store.dump()
    }

    /// The node's configuration.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn config(&self) -> Result<abi::Config> {
        self.config.get(0)
    }

    /// The ports that new flows to other nodes may take as their source.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn source_ports(&self) -> Result<PortSet> {
        self.source_ports.usable()
    }

    /// A slot of the services, used or not.
    ///
    /// # Errors
    /// For a slot that does not exist.
    pub fn service(&self, id: u32) -> Result<abi::Service> {
        self.store.services.get(id)
    }

    /// Who has which slot of the services, with names cut to what the maps hold.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn service_names(&self) -> Result<Vec<(u32, abi::ServiceName)>> {
        self.store.service_names.entries()
    }

    /// What a backend's `node` stands for, with its zone; None of a number that is not given out.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn node_name(&self, number: u32) -> Result<Option<abi::NodeName>> {
        self.store.node_names.get(&number)
    }

    /// Counters of a service.
    ///
    /// # Errors
    /// For a slot that does not exist.
    pub fn service_counters(&self, id: u32) -> Result<abi::ServiceCounters> {
        self.store.service_counters.get(id)
    }

    /// Counters of a backend: memory, no system call. They begin at 0 when another endpoint takes the slot.
    ///
    /// # Errors
    /// For a slot that does not exist.
    pub fn backend_counters(&self, id: u32) -> Result<abi::BackendCounters> {
        self.store.backend_counters.get(id)
    }

    /// Shows all endpoints to `visit`, with their slots and counters: memory, no system call.
    ///
    /// # Errors
    /// None as long as the maps have the same size, which they have when they are opened.
    pub fn visit_endpoints(&self, mut visit: impl FnMut(u32, &abi::Backend, &abi::BackendCounters)) -> Result<()> {
        for slot in 0..self.store.backends.len() {
            let backend = self.store.backends.get(slot)?;
            if backend.flags & abi::BACKEND_USED != 0 {
                visit(slot, &backend, &self.store.backend_counters.get(slot)?);
            }
        }
        Ok(())
    }

    /// The counters by hook and reason.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Shows all flows of both families to `visit`, in no order, those that are over included, each with its IP protocol number. A
    /// system call for each 4096 of them: ADR 18 says what that takes.
    ///
    /// # Errors
    /// When a map cannot be read, after some flows were visited.
    pub fn visit_flows(&self, mut visit: impl FnMut(u8, &abi::Flow)) -> Result<()> {
        self.store.flows.visit(|_, Client { protocol, .. }, flow| visit(protocol, flow))
    }

    /// Shows all flows to `visit` with both of their sides, as [`View::visit_flows`].
    ///
    /// # Errors
    /// When a map cannot be read, after some flows were visited.
    pub fn visit_flow_entries(&self, mut visit: impl FnMut(&FlowEntry)) -> Result<()> {
        self.store.flows.visit(|_, Client { from, to, protocol }, flow| {
            visit(&FlowEntry {
                client: from.ip().into(),
                client_port: from.port(),
                frontend: to.ip().into(),
                frontend_port: to.port(),
                protocol,
                flow: *flow,
            });
        })
    }

    /// How long the programs take silent flows for open ones.
    ///
    /// # Errors
    /// Never in practice; the slot exists.
    pub fn idle_limits(&self) -> Result<IdleLimits> {
        Ok(IdleLimits::of(&self.config()?))
    }

    /// How many entries each flow table has and may have, at a tick of flows' times. Takes as long as [`View::visit_flows`].
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn flow_uses(&self, tick: u32) -> Result<BTreeMap<&'static str, TableUse>> {
        let limits = self.idle_limits()?;
        let mut uses = BTreeMap::new();
        for name in Flows::names() {
            let (_, entries) = self.pins.open_map(&spec(name), READ_ONLY)?;
            uses.insert(name, TableUse { capacity: entries * spec(name).ways, ..TableUse::default() });
        }
        self.store.flows.visit(|table, Client { protocol, .. }, flow| {
            // Of an endpoint that is gone nobody needs it.
            let backend = self.store.backends.get(flow.backend);
            let is_there = backend.is_ok_and(|backend| backend.generation == flow.generation);
            uses.entry(table).or_default().count(is_there && limits.keeps_its_place(protocol, flow, tick));
        })?;
        Ok(uses)
    }

    /// How many clients keep an endpoint by session affinity at a tick, how many entries are of clients that no longer do, and how
    /// many there may be. A system call for each 4096 of them.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn affinity_use(&self, tick: u32) -> Result<TableUse> {
        let (_, capacity) = self.pins.open_map(&spec("affinities"), READ_ONLY)?;
        let mut used = TableUse { capacity, ..TableUse::default() };
        self.affinities.visit(|key, affinity| {
            let limit = self.store.services.get(key.service).map_or(0, |service| service.affinity);
            let backend = self.store.backends.get(affinity.backend);
            used.count(backend.is_ok_and(|backend| is_kept(affinity, &backend, limit, tick)));
        })?;
        Ok(used)
    }

    /// How many entries of flows that begin, and of their answers, have lost their place to others within [`abi::OPENING_IDLE`] ticks
    /// of their last packet, by table, since the tables were made. Memory, no system call.
    ///
    /// # Errors
    /// None as long as the maps have the same size, which they have when they are opened.
    pub fn displaced_openings(&self) -> Result<BTreeMap<&'static str, u64>> {
        let mut all = self.store.flows.displaced()?;
        all.append(&mut displaced(&self.replies4)?);
        all.append(&mut displaced(&self.replies6)?);
        Ok(all)
    }

    /// All flows, in order of client, port and frontend.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn flows(&self) -> Result<Vec<FlowEntry>> {
        let mut all = Vec::new();
        self.visit_flow_entries(|entry| all.push(*entry))?;
        all.sort_by_key(|e| (e.client.octets(), e.client_port, e.frontend.octets(), e.frontend_port, e.protocol));
        Ok(all)
    }

    /// All reply entries of IPv4, those of flows that begin included.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn replies4(&self) -> Result<Vec<(abi::FlowKey4, abi::Reply)>> {
        all_of(&self.replies4)
    }

    /// All reply entries of IPv6, those of flows that begin included.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn replies6(&self) -> Result<Vec<(abi::FlowKey6, abi::Reply)>> {
        all_of(&self.replies6)
    }

    /// All clients that keep a backend.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn affinities(&self) -> Result<Vec<(abi::AffinityKey, abi::Affinity)>> {
        self.affinities.entries()
    }

    /// All datagrams in pieces that were seen, also those of long ago.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn fragments(&self) -> Result<Vec<(abi::FragmentKey, abi::Fragment)>> {
        self.fragments.entries()
    }

    /// Pieces of datagrams that came before the first one and wait for it, by slot; also those that nothing will follow, until
    /// others take their place.
    ///
    /// # Errors
    /// Never in practice; the slots exist.
    pub fn held_pieces(&self) -> Result<Vec<(u32, abi::HeldPiece)>> {
        let all = (0..self.held_pieces.len()).map(|slot| Ok((slot, self.held_pieces.get(slot)?)));
        let used = |entry: &Result<(u32, abi::HeldPiece)>| {
            entry.as_ref().map_or(true, |(_, piece)| piece.state == abi::HELD_USED)
        };
        all.filter(used).collect()
    }

    /// All sockets that were translated.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn sockets(&self) -> Result<Vec<(abi::SocketKey, abi::SocketPeer)>> {
        self.sockets.entries()
    }

    /// Pods whose connections are translated when they are made, by the ids of their cgroups.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn hooked_pods(&self) -> Result<Vec<(u64, abi::HookedPod)>> {
        self.hooked_pods.entries()
    }

    /// Interfaces that packets may take past the host's stack, by index.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn shortcuts(&self) -> Result<Vec<(u32, abi::Shortcut)>> {
        self.shortcuts.entries()
    }

    /// MAC addresses of pods, in a number's first bytes, with the index of the interface that their frames came from last;
    /// noted only with [`abi::CONFIG_HOST_BYPASS`].
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn pod_macs(&self) -> Result<Vec<(u64, u32)>> {
        self.shortcuts.pod_macs()
    }

    /// This node's endpoints, as they are found for what other nodes have wrapped.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn local_endpoints(&self) -> Result<Vec<(abi::LocalKey, abi::LocalEndpoint)>> {
        self.store.local_endpoints.entries()
    }

    /// The nodes whose wrapped packets are opened, by address.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn other_nodes(&self) -> Result<Vec<(abi::Addr, abi::OtherNode)>> {
        self.other_nodes.entries()
    }

    /// The node's interfaces by which wrapped packets may leave, in ascending order of their indexes.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn nics(&self) -> Result<Vec<u32>> {
        let mut indexes: Vec<u32> = self.nics.entries()?.into_iter().map(|(index, _)| index).collect();
        indexes.sort_unstable();
        Ok(indexes)
    }

    /// Interfaces that XDP may redirect to, in ascending order of their indexes. `program` is an id when read.
    ///
    /// # Errors
    /// When the map or the directory of links cannot be read.
    pub fn devices(&self) -> Result<Vec<abi::Device>> {
        // Device maps have no batches; the agent enters an interface exactly when it pins an XDP link.
        let links = self.pins.link_names()?;
        let mut indexes: Vec<u32> = links.iter().filter_map(|name| name.strip_prefix("xdp-")?.parse().ok()).collect();
        indexes.sort_unstable();
        let mut present = Vec::new();
        for index in indexes {
            present.extend(self.devices.get(&index)?);
        }
        Ok(present)
    }
}

fn all_of<K: FlowKey>([going, opening]: &[FlowTable<K, abi::Reply>; 2]) -> Result<Vec<(K, abi::Reply)>> {
    Ok([going.entries()?, opening.entries()?].concat())
}
