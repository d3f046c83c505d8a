//! The address plan of a world. Nodes and pods count from 1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Most nodes in a world, and most pods made on a node: their numbers are a byte of an IPv4 address.
pub const MAX: u8 = 200;

/// The client outside the cluster.
pub const CLIENT: Pair = Pair { v4: Ipv4Addr::new(198, 51, 100, 2), v6: outside(2) };

/// The router on the client's side.
pub const ROUTER_OUTSIDE: Pair = Pair { v4: Ipv4Addr::new(198, 51, 100, 1), v6: outside(1) };

/// The router on the nodes' side.
pub const ROUTER_INSIDE: Pair = Pair { v4: Ipv4Addr::new(172, 30, 0, 1), v6: underlay(1) };

/// Cluster IPs of services.
#[must_use]
pub fn cluster_ips() -> [IpNet; 2] {
    [net4([10, 96, 0, 0], 16), net6([0xfd00, 0x96, 0, 0, 0, 0, 0, 0], 112)]
}

/// Load balancer and external IPs of services.
#[must_use]
pub fn external_ips() -> [IpNet; 2] {
    [net4([203, 0, 113, 0], 24), net6([0x2001, 0xdb8, 0x203, 0, 0, 0, 0, 0], 64)]
}

/// Where the pod CIDRs of all nodes come from.
#[must_use]
pub fn pod_ips() -> [IpNet; 2] {
    [net4([10, 244, 0, 0], 16), net6([0xfd00, 0x244, 0, 0, 0, 0, 0, 0], 32)]
}

/// The pod CIDRs of a node.
#[must_use]
pub fn pod_cidrs(node: u8) -> [IpNet; 2] {
    [net4([10, 244, node, 0], 24), net6([0xfd00, 0x244, as_written(node), 0, 0, 0, 0, 0], 64)]
}

/// The address of a node's NIC.
#[must_use]
pub const fn node(node: u8) -> Pair {
    Pair { v4: Ipv4Addr::new(172, 30, 0, 10 + node), v6: underlay(10 + node) }
}

/// The address of a node's pod bridge, the pods' gateway.
#[must_use]
pub const fn gateway(node: u8) -> Pair {
    host_in_pod_cidr(node, 1)
}

/// The address of a pod.
#[must_use]
pub const fn pod(node: u8, pod: u8) -> Pair {
    host_in_pod_cidr(node, 10 + pod)
}

/// An address in each family.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Pair {
    /// The IPv4 address.
    pub v4: Ipv4Addr,
    /// The IPv6 address.
    pub v6: Ipv6Addr,
}

impl Pair {
    /// Both, IPv4 first.
    #[must_use]
    pub const fn both(self) -> [IpAddr; 2] {
        [IpAddr::V4(self.v4), IpAddr::V6(self.v6)]
    }

    /// The one of the same family as `other`.
    #[must_use]
    pub const fn like(self, other: IpAddr) -> IpAddr {
        match other {
            IpAddr::V4(_) => IpAddr::V4(self.v4),
            IpAddr::V6(_) => IpAddr::V6(self.v6),
        }
    }
}

const fn host_in_pod_cidr(node: u8, host: u8) -> Pair {
    let v6 = Ipv6Addr::new(0xfd00, 0x244, as_written(node), 0, 0, 0, 0, as_written(host));
    Pair { v4: Ipv4Addr::new(10, 244, node, host), v6 }
}

const fn outside(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, as_written(host))
}

const fn underlay(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x30, 0, 0, 0, 0, 0, as_written(host))
}

/// The hexadecimal number that looks like the decimal one: fd00:30::11 belongs to 172.30.0.11.
const fn as_written(number: u8) -> u16 {
    let number = number as u16;
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
}

fn net4(address: [u8; 4], length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(address.into(), length))
}

fn net6(address: [u16; 8], length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(address.into(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_show_the_same_numbers() {
        assert_eq!(node(1).both().map(|ip| ip.to_string()), ["172.30.0.11", "fd00:30::11"]);
        assert_eq!(pod(12, 3).both().map(|ip| ip.to_string()), ["10.244.12.13", "fd00:244:12::13"]);
        assert!(pod_ips().iter().zip(pod_cidrs(MAX)).all(|(all, one)| all.contains(&one)));
        assert_eq!(pod_cidrs(200).map(|net| net.to_string()), ["10.244.200.0/24", "fd00:244:200::/64"]);
    }
}
