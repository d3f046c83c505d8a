//! Who is where in a scenario: clients, endpoints, and addresses that nobody has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_abi as abi;
use weir_core::model::Family;
use weir_testbed::address::{self, Pair};

/// Another client outside.
pub(super) const STRANGER: Pair =
    Pair { v4: Ipv4Addr::new(198, 51, 100, 3), v6: Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 3) };
pub(super) const SHARED_IP: Pair =
    Pair { v4: Ipv4Addr::new(203, 0, 113, 7), v6: Ipv6Addr::new(0x2001, 0xdb8, 0x203, 0, 0, 0, 0, 7) };
pub(super) const LOCALHOST: Pair = Pair { v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST };

pub(super) fn of(family: Family, pair: Pair) -> IpAddr {
    match family {
        Family::V4 => pair.v4.into(),
        Family::V6 => pair.v6.into(),
    }
}

/// Address and flags of an endpoint. Those of several services are the same.
pub(super) fn place(family: Family, endpoint: usize) -> (IpAddr, u8) {
    let here = abi::BACKEND_LOCAL;
    let host = abi::BACKEND_HOST_NETWORK;
    let (pair, flags) = match endpoint {
        0 => (address::pod(1, 1), here),
        1 => (address::pod(1, 2), here),
        2 => (address::node(1), here | host),
        3 => (address::pod(2, 1), 0),
        4 => (address::pod(3, 1), 0),
        5 => (address::pod(4, 1), 0),
        6 => (address::pod(5, 1), 0),
        _ => (address::node(2), host),
    };
    (of(family, pair), flags)
}

/// The ends of a wrapper: another node, or somebody who is none; and an endpoint, here or elsewhere.
pub(super) fn wrapper(family: Family, from: usize, to: usize) -> (IpAddr, IpAddr) {
    let from = if from == 0 { STRANGER } else { address::node(2) };
    let to = [address::pod(1, 1), address::pod(1, 2), address::node(1), address::pod(2, 1)][to % 4];
    (of(family, from), of(family, to))
}

/// Number of the first client whose address is no single host's, and how many of them there are.
pub(super) const ODD_CLIENT: usize = 8;
pub(super) const ODD_CLIENTS: usize = 3;

/// Number of the client that is another node.
const OTHER_NODE: usize = 5;

/// The port from which a client sends: another node does so from those that nodes give out, which are so many further on.
pub(super) fn client_port(number: usize, port: u16) -> u16 {
    if number == OTHER_NODE && port != 0 { port + 10_000 } else { port }
}

/// Clients that are no single host of the network's: of the link alone, of many, and an IPv4 address as programs have it in IPv6.
const LINK_LOCAL: Pair = Pair { v4: Ipv4Addr::new(169, 254, 7, 3), v6: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x100, 3) };
const ALL_ROUTERS: Pair = Pair { v4: Ipv4Addr::new(224, 0, 0, 2), v6: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2) };
const BROADCAST_OR_MAPPED: Pair =
    Pair { v4: Ipv4Addr::BROADCAST, v6: Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0xc633, 0x6403) };

/// Who sends: two clients outside, two pods (of which the first one is an endpoint), two nodes, and addresses that nobody has, or that are no single
/// host's (from `ODD_CLIENT` on).
pub(super) fn client(family: Family, number: usize) -> IpAddr {
    let unspecified = Pair { v4: Ipv4Addr::UNSPECIFIED, v6: Ipv6Addr::UNSPECIFIED };
    let pairs = [
        address::CLIENT,
        STRANGER,
        address::pod(1, 1),
        address::pod(1, 3),
        address::node(1),
        address::node(2),
        LOCALHOST,
        unspecified,
        LINK_LOCAL,
        ALL_ROUTERS,
        BROADCAST_OR_MAPPED,
    ];
    of(family, pairs[number % pairs.len()])
}

/// Who tells of an error: a router mostly, or anybody who might.
pub(super) fn teller(family: Family, number: usize) -> IpAddr {
    let others = [address::pod(1, 1), address::pod(2, 1), address::node(1), address::node(2), STRANGER];
    of(family, others.get(number.wrapping_sub(1)).copied().unwrap_or(address::ROUTER_OUTSIDE))
}
