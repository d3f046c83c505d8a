//! kube-proxy's sets of addresses and ports, as `ipset save` prints them: kubernetes' `pkg/proxy/ipvs/ipset.go`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use weir_core::model::Family;

use super::At;
use crate::served::protocol_number;

/// How its names begin, those of IPv6 first. kube-router has sets that begin alike.
const PREFIXES: [(&str, Family); 2] = [("KUBE-6-", Family::V6), ("KUBE-", Family::V4)];

/// What a set tells of Services.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Holds {
    /// Addresses and ports of Services: `10.96.0.1,tcp:443`.
    Addresses,
    /// Node ports of a protocol: `30080`.
    Ports(u8),
    /// Node ports with the addresses of the node.
    NodeSockets,
    /// Nothing that is asked for.
    Else,
}

/// The kernel's limit of a name, to which kube-proxy cuts the longest ones.
const LONGEST: usize = 31;

/// The rest of each name, if it is not cut. The last two are of versions before 1.16.
const NAMES: [(&str, Holds); 19] = [
    ("LOOP-BACK", Holds::Else),
    ("CLUSTER-IP", Holds::Addresses),
    ("EXTERNAL-IP", Holds::Addresses),
    ("EXTERNAL-IP-LOCAL", Holds::Addresses),
    ("LOAD-BALANCER", Holds::Addresses),
    ("LOAD-BALANCER-FW", Holds::Else),
    ("LOAD-BALANCER-LOCAL", Holds::Addresses),
    ("LOAD-BALANCER-SOURCE-IP", Holds::Else),
    ("LOAD-BALANCER-SOURCE-CIDR", Holds::Else),
    ("NODE-PORT-TCP", Holds::Ports(6)),
    ("NODE-PORT-LOCAL-TCP", Holds::Ports(6)),
    ("NODE-PORT-UDP", Holds::Ports(17)),
    ("NODE-PORT-LOCAL-UDP", Holds::Ports(17)),
    ("NODE-PORT-SCTP-HASH", Holds::NodeSockets),
    ("NODE-PORT-LOCAL-SCTP-HASH", Holds::NodeSockets),
    ("HEALTH-CHECK-NODE-PORT", Holds::Else),
    ("IPVS-IPS", Holds::Else),
    ("NODE-PORT-SCTP", Holds::Ports(132)),
    ("NODE-PORT-LOCAL-SCTP", Holds::Ports(132)),
];

/// Its sets and what they hold.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sets {
    names: BTreeSet<String>,
    addresses: BTreeSet<At>,
    node_sockets: BTreeSet<At>,
    node_ports: BTreeSet<(Family, u8, u16)>,
}

impl Sets {
    /// Reads what `ipset save` prints. Sets of others, and elements of a form that tells nothing of Services, are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut sets = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(verb), Some(name)) = (words.next(), words.next()) else { continue };
            let Some((family, holds)) = kind(name) else { continue };
            match verb {
                "create" => _ = sets.names.insert(name.to_owned()),
                "add" => sets.add(family, holds, words.next().unwrap_or_default()),
                _ => {}
            }
        }
        sets
    }

    fn add(&mut self, family: Family, holds: Holds, element: &str) {
        match holds {
            Holds::Addresses => self.addresses.extend(at(element)),
            Holds::NodeSockets => self.node_sockets.extend(at(element)),
            Holds::Ports(protocol) => self.node_ports.extend(element.parse().map(|port| (family, protocol, port))),
            Holds::Else => {}
        }
    }

    /// Their names.
    #[must_use]
    pub const fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Whether an address and port are a Service's.
    pub(super) fn has_address(&self, at: At) -> bool {
        self.addresses.contains(&at)
    }

    /// Whether a port of the node is a node port.
    pub(super) fn has_node_port(&self, at: At) -> bool {
        let port = (Family::of(at.socket.ip()), at.protocol, at.socket.port());
        self.node_ports.contains(&port) || self.node_sockets.contains(&at)
    }
}

fn kind(name: &str) -> Option<(Family, Holds)> {
    PREFIXES.iter().find_map(|(prefix, family)| {
        let rest = name.strip_prefix(prefix)?;
        let is_it = |known: &str| known == rest || (name.len() == LONGEST && known.starts_with(rest));
        NAMES.iter().find(|(known, _)| is_it(known)).map(|(_, holds)| (*family, *holds))
    })
}

/// `10.96.0.1,tcp:443`.
fn at(element: &str) -> Option<At> {
    let (ip, rest) = element.split_once(',')?;
    let (protocol, port) = rest.split_once(':')?;
    let ip: IpAddr = ip.parse().ok()?;
    Some(At { socket: SocketAddr::new(ip, port.parse().ok()?), protocol: protocol_number(protocol)? })
}
