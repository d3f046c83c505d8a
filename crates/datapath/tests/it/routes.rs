//! What the kernel has said of a route counts for packets with the same ends, and for the jiffy in which it was asked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;

use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues};
use nix::sys::socket::AddressFamily;
use nix::time::{ClockId, clock_gettime};
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::{Mac, Packet};

use crate::case::{CASES, CLUSTER_IP, Case, PORT, cases};
use crate::network::nic;
use crate::node::{Device, NODE2_MAC, Node, TC_REDIRECT, XDP_PASS, XDP_REDIRECT, XDP_TX, web};
use crate::openings::stay_on_one_cpu;
use crate::too_big::enlarged;

/// So many that some meet in a place.
const FLOWS: usize = 600;
/// Tries, of which some are within one jiffy.
const TRIES: usize = 20;

/// A client's first packet, and one that goes on with that.
fn begin(node: &Node, case: Case) -> (Packet, Packet) {
    let (client, service) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
    (case.first(client, service), case.later(client, service))
}

/// From now on no jiffy is the one of any packet before.
fn await_jiffy() {
    let now = || clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    let before = now();
    while now() == before {
        thread::yield_now();
    }
}

/// `route_place()` of bpf/lib/route.h for a packet as it leaves.
fn place(case: Case, seen: &Packet) -> u64 {
    let half = |port: u16| u64::from(u16::from_le_bytes(port.to_be_bytes()));
    let address = |ip: IpAddr| -> Vec<u64> {
        let bytes = match ip {
            IpAddr::V4(ip) => [&ip.octets()[..], &[0; 12]].concat(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word).into()).collect()
    };
    let family = if case.family == Family::V4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let first = family as u64 | u64::from(case.protocol.number()) << 8 | half(seen.source_socket().port()) << 16;
    let mut ends = (first ^ half(seen.destination_socket().port())) << 32;
    let words = [address(seen.source), address(seen.destination)].concat();
    for (at, pair) in (4_u64..).step_by(2).zip(words.chunks_exact(2)) {
        ends = ends.wrapping_add((pair[0] ^ pair[1] << 7).wrapping_mul(2 * at + 1));
    }
    let golden = 0x9e37_79b9_7f4a_7c15;
    ends = ends.wrapping_mul(golden);
    (ends ^ ends >> 32).wrapping_mul(golden) >> (64 - abi::ROUTE_BITS)
}

const ROUTE: usize = size_of::<abi::Route>() / size_of::<u64>();

/// Changes what all CPUs remember in a place.
fn change_place(node: &Node, place: u64, change: impl Fn(&mut [u64; ROUTE])) {
    let pinned = MapData::from_pin(node.pin("routes")).unwrap();
    let mut routes: PerCpuArray<_, [u64; ROUTE]> = Map::from_map_data(pinned).unwrap().try_into().unwrap();
    let place = u32::try_from(place).unwrap();
    let mut values = routes.get(&place, 0).unwrap().to_vec();
    values.iter_mut().for_each(change);
    routes.set(place, PerCpuValues::try_from(values).unwrap(), 0).unwrap();
}

#[test]
fn what_was_found_for_a_packet_counts_for_the_next_one_in_its_jiffy_and_for_none_in_another() {
    /// The last bytes of an answer: the neighbour's address.
    const OTHER: Mac = Mac([2, 0, 0, 0, 7, 7]);
    let Some(mut node) = Node::new("routes that are remembered") else { return };
    stay_on_one_cpu();
    node.serve(web(), &[(2, 1)]);
    for case in cases(Protocol::Tcp) {
        let (first, later) = begin(&node, case);
        let place = place(case, &node.insist(Hook::Xdp, Device::Eth0, &first).packet());
        let to = || node.send(Hook::Xdp, Device::Eth0, &later).packet().destination_mac;
        let remembered = (0..TRIES).filter(|_| {
            assert_eq!(to(), NODE2_MAC);
            change_place(&node, place, |route| {
                let bytes = &mut route[ROUTE - 1].to_ne_bytes();
                bytes[2..].copy_from_slice(&OTHER.0);
                route[ROUTE - 1] = u64::from_ne_bytes(*bytes);
            });
            let seen = to();
            await_jiffy();
            seen == OTHER
        });
        assert!(remembered.count() > 0, "{case:?}: the kernel was asked each time");
    }
}

#[test]
fn flows_that_share_a_place_go_their_own_ways() {
    let Some(mut node) = Node::new("routes that share a place") else { return };
    stay_on_one_cpu();
    node.serve(web(), &[(2, 1), (3, 1)]);
    for case in cases(Protocol::Tcp) {
        // Flows to the node behind this device, and to the one behind the other, by their places.
        let mut flows: [BTreeMap<u64, Packet>; 2] = Default::default();
        for _ in 0..FLOWS {
            let (first, later) = begin(&node, case);
            let seen = node.insist(Hook::Xdp, Device::Eth0, &first).packet();
            let is_far = seen.destination == case.ip(address::pod(3, 1));
            flows[usize::from(is_far)].insert(place(case, &seen), later);
        }
        let pairs: Vec<_> = flows[0].iter().filter_map(|(place, near)| Some((near, flows[1].get(place)?))).collect();
        assert!(pairs.len() > TRIES, "of {FLOWS} flows only {} pairs meet", pairs.len());
        for (near, far) in pairs {
            node.send(Hook::Xdp, Device::Eth0, near).is_for(XDP_TX, abi::REASON_TO_REMOTE);
            node.send(Hook::Xdp, Device::Eth0, far).is_for(XDP_REDIRECT, abi::REASON_TO_REMOTE);
        }
    }
}

#[test]
fn a_packet_that_is_too_long_for_a_route_is_noticed_behind_one_that_fits() {
    let Some(mut node) = Node::new("long packets behind short ones") else { return };
    stay_on_one_cpu();
    node.refuses();
    node.serve(web(), &[(3, 1)]);
    for (net, gateway) in address::pod_cidrs(3).into_iter().zip(nic(1, 13).both()) {
        node.netns.ip(&format!("route replace {net} via {gateway} mtu lock 1300")).unwrap();
    }
    for case in CASES {
        let (first, later) = begin(&node, case);
        let long = enlarged(later.clone(), 1400);
        node.insist(Hook::Xdp, Device::Eth0, &first);
        for _ in 0..TRIES {
            node.send(Hook::Xdp, Device::Eth0, &later).is_for(XDP_REDIRECT, abi::REASON_TO_REMOTE);
            node.send(Hook::Xdp, Device::Eth0, &long).is_for(XDP_PASS, abi::REASON_LEFT_TO_TC);
            node.send(Hook::NicIn, Device::Eth0, &later).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            node.send(Hook::NicIn, Device::Eth0, &long).is_for(TC_REDIRECT, abi::REASON_TOO_BIG_TOLD);
        }
    }
}

#[test]
fn a_route_that_has_changed_counts_from_the_next_jiffy_on() {
    let Some(mut node) = Node::new("routes that change") else { return };
    stay_on_one_cpu();
    node.serve(web(), &[(2, 1)]);
    for case in cases(Protocol::Tcp) {
        let (first, later) = begin(&node, case);
        node.insist(Hook::Xdp, Device::Eth0, &first);
        let net = address::pod_cidrs(2)[usize::from(case.family == Family::V6)];
        for (gateway, way) in [(nic(1, 13), XDP_REDIRECT), (nic(0, 12), XDP_TX)] {
            node.netns.ip(&format!("route replace {net} via {}", case.ip(gateway))).unwrap();
            await_jiffy();
            node.send(Hook::Xdp, Device::Eth0, &later).is_for(way, abi::REASON_TO_REMOTE);
        }
        node.netns.ip(&format!("route del {net}\nroute add unreachable {net}")).unwrap();
        await_jiffy();
        node.send(Hook::NicIn, Device::Eth0, &later).is_for(crate::node::TC_SHOT, abi::REASON_NO_ROUTE);
        node.netns.ip(&format!("route del unreachable {net}\nroute add {net} via {}", case.ip(nic(0, 12)))).unwrap();
    }
}
