//! What the control plane wrote: frontends, services, backends, and which source ports are the node's to give.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};

use weir_abi as abi;
use weir_abi::Addr;
use weir_core::model::Family;
use weir_core::ops::{FrontendKey, MapOp, SourceRange};
use weir_core::source_ports::PortSet;

use crate::packet::{End, Packet, ip_of};

/// A slot of `services` that was never written.
pub const UNUSED_SERVICE: abi::Service = abi::Service {
    tiers: [abi::Tiers { spill: 0, local: 0, remote: 0, pad: 0 }; abi::CLASS_COUNT],
    endpoints: 0,
    flags: 0,
    affinity: 0,
    pad: 0,
};

/// A slot of `backends` that was never written.
pub const UNUSED_BACKEND: abi::Backend =
    abi::Backend { addr: Addr::UNSET, port: abi::Be16::new(0), proto: 0, flags: 0, generation: 0, service: 0, node: 0 };

/// A slot of `lines` that was never written: it leads nowhere.
pub const UNUSED_LINE: abi::Line = abi::Line { cumulative: [0; abi::LINE_ENTRIES], r#ref: [0; abi::LINE_ENTRIES] };

/// What the programs only read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    frontends: HashMap<FrontendKey, abi::Frontend>,
    /// Places in the filter of all frontends that ever were.
    filter: HashSet<u32>,
    services: HashMap<u32, abi::Service>,
    backends: HashMap<u32, abi::Backend>,
    lines: HashMap<u32, abi::Line>,
    ranges: HashSet<SourceRange>,
    /// Source ports that new flows may take.
    usable: BTreeSet<u16>,
    /// Those that they ever could.
    answers: PortSet,
}

/// Who gets what arrives at a port of the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arrival {
    /// The host.
    Host,
    /// A flow of ours.
    Ours,
    /// A flow of ours while it lives, else the host.
    Left,
}

/// The place of a destination in the filter: two frontends may share one.
fn filter_place(to: End, protocol: u8) -> u32 {
    let address = u64::from(to.addr.word[3].raw());
    let word = address << 32 | u64::from(abi::Be16::new(to.port).raw()) << 16 | u64::from(protocol);
    let high = |word: u64, bits: u32| word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits);
    let part = high(address, abi::FILTER_BITS - abi::FILTER_NEAR_BITS) << abi::FILTER_NEAR_BITS;
    u32::try_from(part | high(word, abi::FILTER_NEAR_BITS)).unwrap_or_default()
}

impl Control {
    /// Does what the store does with the maps. Names are for people; who forgets flows deletes them himself.
    pub(crate) fn apply(&mut self, op: &MapOp) {
        match op {
            MapOp::PutBackend { id, backend } => drop(self.backends.insert(*id, *backend)),
            MapOp::PutLine { id, line } => drop(self.lines.insert(*id, **line)),
            MapOp::PutService { id, service } => drop(self.services.insert(*id, *service)),
            MapOp::PutFrontend { key, frontend } => {
                let to = End { addr: key.address.into(), port: key.port };
                // Of an address as such nobody asks on the way in.
                if frontend.kind != abi::KIND_ADDRESS {
                    self.filter.insert(filter_place(to, key.protocol));
                }
                self.frontends.insert(*key, *frontend);
            }
            MapOp::DeleteFrontend { key } => drop(self.frontends.remove(key)),
            MapOp::PutSourceRange { range } => drop(self.ranges.insert(*range)),
            MapOp::DeleteSourceRange { range } => drop(self.ranges.remove(range)),
            MapOp::ResetBackendCounters { .. }
            | MapOp::PutBase { .. }
            | MapOp::ResetServiceCounters { .. }
            | MapOp::PutServiceName { .. }
            | MapOp::DeleteServiceName { .. }
            | MapOp::PutNodeName { .. }
            | MapOp::DeleteNodeName { .. }
            | MapOp::ForgetFlows { .. } => {}
        }
    }

    pub(crate) fn set_source_ports(&mut self, usable: &PortSet) {
        self.answers.add(usable);
        self.usable = usable.iter().collect();
    }

    /// The first port from a number on that new flows may take, around the end.
    pub(crate) fn port_from(&self, number: u16) -> Option<u16> {
        self.usable.range(number..).chain(&self.usable).next().copied()
    }

    pub(crate) fn arrival(&self, port: u16) -> Arrival {
        match (self.answers.contains(port), self.usable.contains(&port)) {
            (false, _) => Arrival::Host,
            (true, true) => Arrival::Ours,
            (true, false) => Arrival::Left,
        }
    }

    /// False for what never was a frontend; true proves nothing.
    pub(crate) fn may_be_frontend(&self, to: End, protocol: u8) -> bool {
        self.filter.contains(&filter_place(to, protocol))
    }

    pub(crate) fn frontend_at(&self, family: Family, to: End, protocol: u8) -> Option<abi::Frontend> {
        self.frontends.get(&FrontendKey { address: ip_of(family, to.addr), port: to.port, protocol }).copied()
    }

    /// What a packet is sent to.
    pub(crate) fn frontend(&self, p: &Packet) -> Option<abi::Frontend> {
        self.frontend_at(p.family, p.destination(), p.protocol)
    }

    /// Whether an address is a cluster IP in use: all of its ports are ours.
    pub(crate) fn is_cluster_ip(&self, family: Family, addr: Addr) -> bool {
        let any = End { addr, port: 0 };
        self.may_be_frontend(any, 0)
            && self.frontend_at(family, any, 0).is_some_and(|any| any.kind == abi::KIND_UNUSED_PORT)
    }

    /// What an address of services is, whatever its ports are; none of what is none.
    pub(crate) fn rest_of(&self, family: Family, addr: Addr) -> Option<u32> {
        self.frontend_at(family, End { addr, port: 0 }, 0).map(|any| any.kind)
    }

    pub(crate) fn service(&self, id: u32) -> abi::Service {
        self.services.get(&id).copied().unwrap_or(UNUSED_SERVICE)
    }

    pub(crate) fn backend(&self, id: u32) -> abi::Backend {
        self.backends.get(&id).copied().unwrap_or(UNUSED_BACKEND)
    }

    pub(crate) fn line(&self, id: u32) -> abi::Line {
        self.lines.get(&id).copied().unwrap_or(UNUSED_LINE)
    }

    /// The slot of a service's endpoint on this node by its address.
    pub(crate) fn local_endpoint(&self, service: u32, addr: Addr) -> Option<u32> {
        let is_it = |backend: &abi::Backend| {
            let is_used = backend.flags & abi::BACKEND_USED != 0;
            is_used && is_local(backend) && (backend.service, backend.addr) == (service, addr)
        };
        self.backends.iter().filter(|(_, backend)| is_it(backend)).map(|(slot, _)| *slot).min()
    }

    pub(crate) fn admits(&self, service: u32, client: Addr) -> bool {
        // A v4-mapped client is one of IPv4, and of IPv6 as well.
        let both = [client.ip(), IpAddr::V6(Ipv6Addr::from(client.octets()))];
        self.ranges.iter().any(|range| range.service == service && both.iter().any(|ip| range.net.contains(ip)))
    }
}

pub(crate) fn backend_end(backend: &abi::Backend) -> End {
    End { addr: backend.addr, port: backend.port.get() }
}

pub(crate) const fn is_local(backend: &abi::Backend) -> bool {
    backend.flags & abi::BACKEND_LOCAL != 0
}

pub(crate) const fn is_in_host_network(backend: &abi::Backend) -> bool {
    backend.flags & abi::BACKEND_HOST_NETWORK != 0
}

/// Whether a backend is a process of this node itself.
pub(crate) const fn is_here(backend: &abi::Backend) -> bool {
    is_local(backend) && is_in_host_network(backend)
}
