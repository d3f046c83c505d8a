//! The ways from the node, for the model: `Node` has the same in the kernel.

use std::net::IpAddr;

use weir_model::Network;
use weir_testbed::address;

use crate::network::nic;
use crate::node::{ETH0_MAC, Node};

const MTU: u32 = 1500;

/// The node's devices, and what is behind them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Devices {
    pub(super) eth: [u32; 3],
    pub(super) pod: u32,
}

impl Devices {
    pub(super) fn of(node: &Node) -> Self {
        let index = |name: &str| nix::net::if_::if_nametoindex(name).unwrap();
        node.netns.enter(|| Self { eth: ["eth0", "eth1", "eth2"].map(index), pod: index("pod1") })
    }

    fn route_by_eth(&self, number: u8, neighbour: Option<u8>) -> weir_model::Route {
        weir_model::Route {
            device: self.eth[usize::from(number)],
            mtu: MTU,
            neighbour: neighbour.map(|last| [2, 0, 0, 0, 2, last]),
            mac: mac_of_eth(number),
            has_xdp: number < 2,
            is_nic: number < 2,
        }
    }
}

/// The neighbours whom the node knows: whose network, the host there, and the last byte of its MAC address.
const NEIGHBOURS: [(u8, u8, u8); 4] = [(0, 1, 1), (0, 12, 2), (1, 13, 3), (2, 14, 4)];

/// The card in whose network an address is.
fn on_link(to: IpAddr) -> Option<u8> {
    (0..3).find(|device| match (nic(*device, 11).like(to), to) {
        (IpAddr::V4(own), IpAddr::V4(to)) => own.octets()[..3] == to.octets()[..3],
        (IpAddr::V6(own), IpAddr::V6(to)) => own.octets()[..8] == to.octets()[..8],
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    })
}

/// Whether an address in a card's network is no single neighbour's: of all hosts (IPv4), or of any router (IPv6).
fn is_of_many(to: IpAddr) -> bool {
    match to {
        IpAddr::V4(to) => to.octets()[3] == u8::MAX,
        IpAddr::V6(to) => to.octets()[8..] == [0; 8],
    }
}

const fn mac_of_eth(number: u8) -> [u8; 6] {
    if number == 0 { ETH0_MAC.0 } else { [2, 0, 0, 0, 1, number] }
}

impl Network for Devices {
    fn mac(&self, device: u32) -> [u8; 6] {
        let cards = (0..).zip(self.eth);
        cards
            .into_iter()
            .find(|(_, index)| *index == device)
            .map_or([2, 0, 0, 0, 1, 3], |(number, _)| mac_of_eth(number))
    }

    fn route(&self, to: IpAddr) -> Option<weir_model::Route> {
        let is = |pair: address::Pair| pair.like(to) == to;
        let in_node = |node: u8| address::pod_cidrs(node).iter().any(|net| net.contains(&to));
        // The node's links have no addresses of the link alone.
        let is_of_link = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
        if to.is_loopback() || to.is_multicast() || to.is_unspecified() || is_of_link {
            return None;
        }
        if let Some(card) = on_link(to) {
            let known = NEIGHBOURS.iter().find(|(at, host, _)| *at == card && is(nic(card, *host)));
            let is_own = is(nic(card, 11)) || is_of_many(to);
            return (!is_own).then(|| self.route_by_eth(card, known.map(|(.., last)| *last)));
        }
        if is(address::pod(1, 1)) {
            let (device, mac) = (self.pod, [2, 0, 0, 0, 1, 3]);
            let neighbour = Some([2, 0, 0, 0, 2, 0x11]);
            return Some(weir_model::Route { device, mtu: MTU, neighbour, mac, has_xdp: false, is_nic: false });
        }
        Some(match to {
            _ if in_node(2) => self.route_by_eth(0, Some(2)),
            _ if in_node(3) => self.route_by_eth(1, Some(3)),
            _ if in_node(4) => self.route_by_eth(2, Some(4)),
            _ if in_node(5) => self.route_by_eth(0, None),
            _ => self.route_by_eth(0, Some(1)),
        })
    }
}
