//! Which addresses of the node answer at node ports, and where their health checks listen.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use weir_core::interfaces::Interface;
use weir_core::model::Family;

/// What kube-proxy in mode ipvs keeps the addresses of Services on, as long as its rules are there. They are none of the node's.
const SERVICES: &str = "kube-ipvs0";

/// One item of `--nodeport-addresses`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NodePortAddresses {
    /// The node's own addresses, as the cluster names them.
    Primary,
    /// All addresses of its interfaces but loopback and link-local ones.
    All,
    /// 127.0.0.1 and ::1, for processes on the host.
    Localhost,
    /// Addresses of its interfaces within a range, and those of [`NodePortAddresses::Localhost`] that are.
    Within(IpNet),
}

/// The addresses of the host that its own processes alone reach.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

impl NodePortAddresses {
    /// Whether some of these are for processes on the host.
    pub(crate) fn names_loopback(self) -> bool {
        match self {
            Self::Localhost => true,
            Self::Within(cidr) => LOOPBACK.iter().any(|ip| cidr.contains(ip)),
            Self::Primary | Self::All => false,
        }
    }

    /// The addresses that answer. `node` are the node's own ones.
    fn addresses(self, node: &[IpAddr], interfaces: &[Interface]) -> Vec<IpAddr> {
        let of_node = of_node(interfaces);
        let of_cards = of_node.clone().filter(|i| !i.loopback).flat_map(|i| &i.addresses);
        let is_outside = |ip: &IpAddr| !ip.is_loopback() && !is_link_local(*ip);
        match self {
            Self::Primary => node.to_vec(),
            Self::All => of_cards.copied().filter(is_outside).collect(),
            Self::Localhost => LOOPBACK.to_vec(),
            Self::Within(cidr) => {
                let carried = of_node.flat_map(|i| &i.addresses).filter(|ip| !ip.is_loopback());
                carried.chain(&LOOPBACK).copied().filter(|ip| cidr.contains(ip)).collect()
            }
        }
    }
}

impl fmt::Display for NodePortAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::All => f.write_str("all"),
            Self::Localhost => f.write_str("localhost"),
            Self::Within(cidr) => cidr.fmt(f),
        }
    }
}

impl FromStr for NodePortAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "primary" => Ok(Self::Primary),
            "all" => Ok(Self::All),
            "localhost" => Ok(Self::Localhost),
            cidr => cidr
                .parse()
                .map(Self::Within)
                .map_err(|e| format!("{cidr:?} is neither `primary`, `all`, `localhost` nor a CIDR: {e}")),
        }
    }
}

/// Interfaces whose addresses are the node's.
fn of_node(interfaces: &[Interface]) -> impl Iterator<Item = &Interface> + Clone {
    interfaces.iter().filter(|interface| interface.name != SERVICES)
}

/// All addresses that the node's interfaces carry, but those of Services. What is down carries none.
pub(crate) fn carried(interfaces: &[Interface]) -> BTreeSet<IpAddr> {
    of_node(interfaces).filter(|interface| interface.up).flat_map(|interface| &interface.addresses).copied().collect()
}

/// The addresses that answer, sorted. `node` are the node's own ones.
pub(crate) fn served(items: &[NodePortAddresses], node: &[IpAddr], interfaces: &[Interface]) -> Vec<IpAddr> {
    let mut served: Vec<IpAddr> = items.iter().flat_map(|item| item.addresses(node, interfaces)).collect();
    served.sort_unstable();
    served.dedup();
    served
}

/// The items for which the node has no address.
pub(crate) fn unmatched(
    items: &[NodePortAddresses],
    node: &[IpAddr],
    interfaces: &[Interface],
) -> Vec<NodePortAddresses> {
    items.iter().copied().filter(|item| item.addresses(node, interfaces).is_empty()).collect()
}

/// Where health checks of node ports listen: as kube-proxy has it, at every address of a family rather than at each of
/// them where all answer. A family without addresses is left out: the kernel may not know it.
pub(crate) fn listening(items: &[NodePortAddresses], served: &[IpAddr]) -> Vec<IpAddr> {
    if !items.contains(&NodePortAddresses::All) {
        return served.to_vec();
    }
    let wildcards = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let has = |family| served.iter().any(|ip| !ip.is_loopback() && Family::of(*ip) == family);
    wildcards.into_iter().filter(|wildcard| has(Family::of(*wildcard))).collect()
}

const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn items(text: &str) -> Vec<NodePortAddresses> {
        text.split(',').map(|item| item.parse().unwrap()).collect()
    }

    fn interfaces() -> Vec<Interface> {
        let with = |name: &str, loopback, addresses: &[&str]| Interface {
            name: name.to_owned(),
            loopback,
            addresses: ips(addresses),
            ..Interface::default()
        };
        vec![
            with("lo", true, &["127.0.0.1", "10.9.9.9", "::1"]),
            with("eth0", false, &["192.0.2.10", "169.254.1.1", "2001:db8::10", "fe80::1"]),
            with("eth1", false, &["198.51.100.7"]),
            with("kube-ipvs0", false, &["10.96.0.1", "fd00:96::1"]),
        ]
    }

    fn served_with(options: &str) -> Vec<IpAddr> {
        served(&items(options), &ips(&["192.0.2.10", "2001:db8::10"]), &interfaces())
    }

    /// The kernel takes nothing for its own by an interface that is down.
    #[test]
    fn the_node_carries_the_addresses_of_interfaces_that_are_up_but_those_of_services() {
        let without =
            |down: &str| interfaces().into_iter().map(|i| Interface { up: i.name != down, ..i }).collect::<Vec<_>>();
        let carries = |down: &str, address: &str| carried(&without(down)).contains(&ips(&[address])[0]);
        assert!(carries("eth0", "198.51.100.7") && !carries("eth1", "198.51.100.7"));
        assert!(!carries("eth0", "10.96.0.1"));
    }

    #[test]
    fn primary_is_what_the_cluster_calls_the_nodes_addresses() {
        assert_eq!(served_with("primary"), ips(&["192.0.2.10", "2001:db8::10"]));
    }

    #[test]
    fn all_is_every_address_of_the_interfaces_but_loopback_and_link_local_ones() {
        assert_eq!(served_with("all"), ips(&["192.0.2.10", "198.51.100.7", "2001:db8::10"]));
    }

    #[test]
    fn addresses_of_services_are_none_of_the_nodes_wherever_kube_proxy_keeps_them() {
        assert_eq!(served_with("10.96.0.0/16,fd00:96::/112"), ips(&[]));
    }

    #[test]
    fn a_range_takes_addresses_of_loopback_too_where_it_has_them() {
        assert_eq!(served_with("10.9.9.0/24"), ips(&["10.9.9.9"]));
        assert_eq!(served_with("127.0.0.0/8,::1/128"), served_with("localhost"));
        let loopback = |text: &str| items(text)[0].names_loopback();
        assert_eq!(["127.0.0.0/8", "localhost", "0.0.0.0/0"].map(loopback), [true; 3]);
        assert_eq!(["10.9.9.0/24", "all", "primary"].map(loopback), [false; 3]);
    }

    #[test]
    fn a_range_that_the_node_has_nothing_of_is_named() {
        let unmatched = unmatched(&items("primary,10.8.0.0/16,fd00:9::/64"), &[], &interfaces());
        assert_eq!(
            unmatched.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["primary", "10.8.0.0/16", "fd00:9::/64"]
        );
    }

    #[test]
    fn localhost_is_one_address_of_each_family() {
        assert_eq!(served_with("localhost"), ips(&["127.0.0.1", "::1"]));
    }

    #[test]
    fn items_add_up_and_repeat_no_address() {
        assert_eq!(served_with("primary,192.0.2.0/24,198.51.100.0/24"), served_with("all"));
        assert_eq!(served_with("all,localhost").len(), 5);
    }

    #[test]
    fn health_checks_listen_where_node_ports_answer() {
        let served = served_with("primary,localhost");
        assert_eq!(listening(&items("primary,localhost"), &served), served);
    }

    #[test]
    fn health_checks_listen_everywhere_where_all_addresses_answer() {
        assert_eq!(listening(&items("localhost,all"), &served_with("all,localhost")), ips(&["0.0.0.0", "::"]));
    }

    #[test]
    fn health_checks_leave_out_a_family_that_the_node_lacks() {
        assert_eq!(listening(&items("all,localhost"), &ips(&["127.0.0.1", "192.0.2.10", "::1"])), ips(&["0.0.0.0"]));
    }

    #[test]
    fn anything_else_is_refused_with_what_would_do() {
        let error = "some".parse::<NodePortAddresses>().unwrap_err();
        assert!(error.contains("neither `primary`, `all`, `localhost` nor a CIDR"), "{error}");
    }
}
