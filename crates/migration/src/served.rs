//! What a proxy serves: addresses and ports that clients connect to, and the endpoints behind each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use weir_abi as abi;
use weir_core::model::Family;
use weir_core::ops::Dump;

/// Where clients connect to.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Place {
    /// An address of a Service.
    Address(IpAddr),
    /// The node's own addresses of a family, at a node port. Which of them answer is each proxy's own setting.
    Node(Family),
}

/// An address and port that clients connect to.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Frontend {
    /// Where.
    pub place: Place,
    /// Port.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Address(address) => write!(f, "{}", SocketAddr::new(address, self.port))?,
            Place::Node(Family::V4) => write!(f, "node port {} (IPv4)", self.port)?,
            Place::Node(Family::V6) => write!(f, "node port {} (IPv6)", self.port)?,
        }
        match protocol_name(self.protocol) {
            Some(name) => write!(f, "/{}", name.to_uppercase()),
            None => write!(f, "/{}", self.protocol),
        }
    }
}

const PROTOCOLS: [(&str, u8); 3] = [("tcp", 6), ("udp", 17), ("sctp", 132)];

pub(crate) fn protocol_name(number: u8) -> Option<&'static str> {
    PROTOCOLS.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

/// The number of a protocol that Services have, from its name or its number.
#[must_use]
pub fn protocol_number(text: &str) -> Option<u8> {
    let number = text.parse().ok();
    PROTOCOLS.iter().find(|(name, known)| *name == text || Some(*known) == number).map(|(_, known)| *known)
}

/// By frontend: endpoints that a connection may get, none where it is refused.
pub type Served = BTreeMap<Frontend, BTreeSet<SocketAddr>>;

/// What Weir's maps say of a frontend.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Programmed {
    /// All endpoints of the service's port.
    pub known: BTreeSet<SocketAddr>,
    /// Those that new flows of some traffic class get.
    pub chosen: BTreeSet<SocketAddr>,
    /// Those that new flows from inside the cluster get at a cluster IP; at other addresses none, since the proxies put into
    /// effect there what a traffic policy says, each in its own way.
    pub inside: BTreeSet<SocketAddr>,
}

/// By frontend what Weir's maps say of it. Ports that are only refused or answered for are none.
pub type Ours = BTreeMap<Frontend, Programmed>;

/// Reads Weir's maps: looks each frontend up as a packet would, through the service's tiers and lines to endpoints.
#[must_use]
pub fn ours(dump: &Dump) -> Ours {
    let maps = Maps::new(dump);
    let mut ours = Ours::new();
    for (key, frontend) in &dump.frontends {
        let place = match frontend.kind {
            abi::KIND_NODE_PORT => Place::Node(Family::of(key.address)),
            abi::KIND_CLUSTER_IP | abi::KIND_LOAD_BALANCER | abi::KIND_EXTERNAL_IP => Place::Address(key.address),
            _ => continue,
        };
        let found = ours.entry(Frontend { place, port: key.port, protocol: key.protocol }).or_default();
        found.known.extend(maps.of_service(frontend.service));
        let Some(service) = maps.services.get(&frontend.service) else { continue };
        for (class, tiers) in service.tiers.iter().enumerate() {
            let chosen = maps.endpoints(&[tiers.local, tiers.remote]);
            if class == abi::CLASS_INTERNAL && frontend.kind == abi::KIND_CLUSTER_IP {
                found.inside.extend(&chosen);
            }
            found.chosen.extend(chosen);
        }
    }
    ours
}

/// The maps by slot.
struct Maps<'a> {
    services: HashMap<u32, &'a abi::Service>,
    lines: HashMap<u32, &'a abi::Line>,
    backends: HashMap<u32, &'a abi::Backend>,
    by_service: HashMap<u32, Vec<SocketAddr>>,
}

impl<'a> Maps<'a> {
    fn new(dump: &'a Dump) -> Self {
        let used = dump.backends.iter().filter(|(_, backend)| backend.flags & abi::BACKEND_USED != 0);
        let backends: HashMap<_, _> = used.map(|(id, backend)| (*id, backend)).collect();
        let mut by_service: HashMap<u32, Vec<SocketAddr>> = HashMap::new();
        for backend in backends.values() {
            by_service.entry(backend.service).or_default().push(socket(backend));
        }
        Self {
            services: dump.services.iter().map(|(id, service)| (*id, service)).collect(),
            lines: dump.lines.iter().map(|(id, line)| (*id, line)).collect(),
            backends,
            by_service,
        }
    }

    fn of_service(&self, service: u32) -> impl Iterator<Item = SocketAddr> {
        self.by_service.get(&service).into_iter().flatten().copied()
    }

    /// Endpoints that references lead to.
    fn endpoints(&self, references: &[u32]) -> BTreeSet<SocketAddr> {
        let mut open = references.to_vec();
        let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
        while let Some(reference) = open.pop() {
            if reference == 0 || !seen.insert(reference) {
                continue;
            }
            if reference & abi::REF_LINE != 0 {
                open.extend(self.lines.get(&(reference & !abi::REF_LINE)).iter().flat_map(|line| line.r#ref));
            } else {
                found.extend(self.backends.get(&reference).map(|backend| socket(backend)));
            }
        }
        found
    }
}

fn socket(backend: &abi::Backend) -> SocketAddr {
    SocketAddr::new(backend.addr.ip(), backend.port.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_reads_as_people_write_it() {
        let at = |place, protocol| Frontend { place, port: 80, protocol }.to_string();
        assert_eq!(at(Place::Address("fd00::1".parse().unwrap()), 17), "[fd00::1]:80/UDP");
        assert_eq!(at(Place::Node(Family::V6), 6), "node port 80 (IPv6)/TCP");
        assert_eq!(at(Place::Address("10.0.0.1".parse().unwrap()), 1), "10.0.0.1:80/1");
    }

    #[test]
    fn protocols_have_names_and_numbers() {
        assert_eq!(["tcp", "17", "sctp", "icmp", "1"].map(protocol_number), [Some(6), Some(17), Some(132), None, None]);
    }
}
