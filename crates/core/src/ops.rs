//! Operations on the maps: what planning asks of the datapath, in the order in which they must be applied.

use std::net::IpAddr;

use ipnet::IpNet;
use weir_abi as abi;

/// The key of a frontend, in either family.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FrontendKey {
    /// Address that clients connect to.
    pub address: IpAddr,
    /// Port that clients connect to.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

/// A range of clients that the load balancer addresses of a service admit.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SourceRange {
    /// Slot in `services`.
    pub service: u32,
    /// The range, in the service's family and without host bits.
    pub net: IpNet,
}

/// One write. A list of them is applied in order; every prefix of the list leaves maps that serve correctly.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MapOp {
    /// Store a backend. Flows to the slot's former endpoint are stale when the generation differs.
    PutBackend {
        /// Slot in `backends`.
        id: u32,
        /// Its content.
        backend: abi::Backend,
    },
    /// Set a backend's counters to zero; a slot that changes hands starts to count anew.
    ResetBackendCounters {
        /// Slot in `backend_counters`.
        id: u32,
    },
    /// Say what a backend's balance of connections would be without an open flow. What programs count stays as it is.
    PutBase {
        /// Slot in `backend_counters`.
        id: u32,
        /// `abi::BackendCounters::base`.
        base: u32,
    },
    /// Store a weighted line.
    PutLine {
        /// Slot in `lines`.
        id: u32,
        /// Its content.
        line: Box<abi::Line>,
    },
    /// Store a service.
    PutService {
        /// Slot in `services`.
        id: u32,
        /// Its content.
        service: abi::Service,
    },
    /// Set a service's counters to zero.
    ResetServiceCounters {
        /// Slot in `service_counters`.
        id: u32,
    },
    /// Name a service.
    PutServiceName {
        /// Key in `service_names`.
        id: u32,
        /// The name.
        name: Box<abi::ServiceName>,
    },
    /// Forget a service's name.
    DeleteServiceName {
        /// Key in `service_names`.
        id: u32,
    },
    /// Name a node.
    PutNodeName {
        /// Key in `node_names`.
        id: u32,
        /// The name.
        name: Box<abi::NodeName>,
    },
    /// Forget a node's name.
    DeleteNodeName {
        /// Key in `node_names`.
        id: u32,
    },
    /// Let a frontend lead to a service.
    PutFrontend {
        /// Key in `frontends4` or `frontends6`.
        key: FrontendKey,
        /// Its content.
        frontend: abi::Frontend,
    },
    /// Remove a frontend.
    DeleteFrontend {
        /// Key in `frontends4` or `frontends6`.
        key: FrontendKey,
    },
    /// Forget the UDP flows to a frontend that were sent on by another service than the one that has it now, if any. A
    /// flow follows its backend for as long as that lives, and one of UDP never ends by itself. Connections of TCP and
    /// SCTP go on, as with kube-proxy, which cleans up after UDP alone.
    ForgetFlows {
        /// What the flows go to; of UDP.
        key: FrontendKey,
    },
    /// Admit clients of a range.
    PutSourceRange {
        /// Key in `source_ranges`.
        range: SourceRange,
    },
    /// No longer admit them.
    DeleteSourceRange {
        /// Key in `source_ranges`.
        range: SourceRange,
    },
}

/// Names operations for metrics: the map of each, or one for either family, and what is done to it.
macro_rules! names {
    ($($operation:ident: [$($map:literal),+] $what:literal,)+) => {
        impl MapOp {
            /// All that [`MapOp::names`] may say.
            pub const NAMES: &[(&'static str, &'static str)] = &[$($(($map, $what)),+),+];

            /// Which map it changes, and how, as metrics call it.
            #[must_use]
            pub const fn names(&self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$operation { .. } => (self.of_family(&[$($map),+]), $what),)+
                }
            }
        }
    };
}

names! {
    PutBackend: ["backends"] "put",
    ResetBackendCounters: ["backend_counters"] "reset",
    PutBase: ["backend_counters"] "put",
    PutLine: ["lines"] "put",
    PutService: ["services"] "put",
    ResetServiceCounters: ["service_counters"] "reset",
    PutServiceName: ["service_names"] "put",
    DeleteServiceName: ["service_names"] "delete",
    PutNodeName: ["node_names"] "put",
    DeleteNodeName: ["node_names"] "delete",
    PutFrontend: ["frontends4", "frontends6"] "put",
    DeleteFrontend: ["frontends4", "frontends6"] "delete",
    ForgetFlows: ["flows4", "flows6"] "forget",
    PutSourceRange: ["source_ranges"] "put",
    DeleteSourceRange: ["source_ranges"] "delete",
}

impl MapOp {
    /// The last of its maps if it is about a frontend of IPv6, else the first one.
    const fn of_family(&self, maps: &[&'static str]) -> &'static str {
        match self {
            Self::PutFrontend { key, .. } | Self::DeleteFrontend { key } | Self::ForgetFlows { key }
                if key.address.is_ipv6() =>
            {
                maps[maps.len() - 1]
            }
            _ => maps[0],
        }
    }
}

/// Everything the control plane has written: read back at a start so that slots keep their owners.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Dump {
    /// Used slots of `services`.
    pub services: Vec<(u32, abi::Service)>,
    /// Used slots of `backends`, and the generation of the free ones that were used before.
    pub backends: Vec<(u32, abi::Backend)>,
    /// Lines that a service refers to.
    pub lines: Vec<(u32, abi::Line)>,
    /// All frontends.
    pub frontends: Vec<(FrontendKey, abi::Frontend)>,
    /// All names of services.
    pub service_names: Vec<(u32, abi::ServiceName)>,
    /// All names of nodes.
    pub node_names: Vec<(u32, abi::NodeName)>,
    /// All source ranges.
    pub source_ranges: Vec<SourceRange>,
}

/// Sizes of the maps, in entries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capacity {
    /// `services` and `service_counters`: one per service port and family.
    pub services: u32,
    /// `backends` and `backend_counters`: one per endpoint of each service port.
    pub backends: u32,
    /// `lines`.
    pub lines: u32,
    /// `frontends4` and `frontends6`, each.
    pub frontends: u32,
    /// `node_names`.
    pub nodes: u32,
    /// `flows4`, `flows6`, `replies4` and `replies6`, each.
    pub flows: u32,
    /// `openings4`, `openings6`, `awaited4` and `awaited6`, each.
    pub openings: u32,
    /// `socket_peers`.
    pub sockets: u32,
    /// `affinities`.
    pub affinities: u32,
    /// `source_ranges`.
    pub source_ranges: u32,
    /// `held_pieces`; below `abi::HELD_REGION` none is held.
    pub held_pieces: u32,
}

impl Capacity {
    /// What does not follow from the machine's memory, and for the rest what a machine of 8 GiB has: see
    /// [`crate::table_sizes`].
    pub const DEFAULT: Self = Self {
        services: 32_768,
        backends: 262_144,
        lines: 65_536,
        frontends: 131_072,
        nodes: 8192,
        flows: 131_072,
        openings: 65_536,
        sockets: 65_536,
        affinities: 65_536,
        source_ranges: 16_384,
        held_pieces: 512,
    };
}

impl Default for Capacity {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_to_a_frontend_is_named_by_its_family() {
        let named = |address: &str| {
            let key = FrontendKey { address: address.parse().unwrap(), port: 80, protocol: 17 };
            [MapOp::DeleteFrontend { key }, MapOp::ForgetFlows { key }].map(|op| op.names())
        };
        assert_eq!(named("10.96.0.1"), [("frontends4", "delete"), ("flows4", "forget")]);
        assert_eq!(named("fd00:96::1"), [("frontends6", "delete"), ("flows6", "forget")]);
        assert_eq!(MapOp::DeleteNodeName { id: 1 }.names(), ("node_names", "delete"));
    }
}
