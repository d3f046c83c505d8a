//! Cluster IPs that nobody has: what is still on its way to one when it leaves the node goes no further.

use std::net::IpAddr;

use weir_abi as abi;
use weir_core::model::Family;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Packet, Transport};

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, PORT, TARGET_PORT};
use crate::node::{Device, Node, TC_SHOT, TC_UNSPEC, web};

/// In the networks of [`guard`], and no service's.
const NOBODY: Pair = Pair {
    v4: std::net::Ipv4Addr::new(10, 111, 255, 254),
    v6: std::net::Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0xffff, 1),
};

/// The networks that hold the fixtures' cluster IPs, last of all that fit.
fn guard(node: &Node) {
    let elsewhere = network("192.0.2.0".parse().unwrap(), 24);
    let mut service_network = [elsewhere; abi::SERVICE_NETWORKS];
    service_network[abi::SERVICE_NETWORKS - 2] = network("10.96.0.0".parse().unwrap(), 12);
    service_network[abi::SERVICE_NETWORKS - 1] = network("fd00:96::".parse().unwrap(), 64);
    let config = node.datapath.config().unwrap();
    let service_networks = u32::try_from(abi::SERVICE_NETWORKS).unwrap();
    node.datapath.configure(&abi::Config { service_networks, service_network, ..config }).unwrap();
}

fn network(addr: IpAddr, prefix: u8) -> abi::Network {
    let bits = if addr.is_ipv4() { prefix + 96 } else { prefix };
    let mask = std::net::Ipv6Addr::from(u128::MAX << (128 - bits));
    abi::Network { addr: addr.into(), mask: IpAddr::from(mask).into() }
}

fn echo(case: Case, to: Pair) -> Packet {
    let kind = if case.family == Family::V4 { 8 } else { 128 };
    let echo = Transport::Icmp { kind, code: 0, rest: [0, 1, 0, 1], body: vec![7; 33] };
    Packet::new(case.ip(address::node(1)), case.ip(to), echo)
}

/// From the node, from a pod of it, and from outside, routed on.
fn to(node: &Node, case: Case, to: Pair) -> Vec<Packet> {
    let sources = [address::node(1), address::pod(1, 1), CLIENT];
    let transport = sources.map(|from| case.first(case.at(from, node.client_port()), case.at(to, PORT)));
    transport.into_iter().chain([echo(case, to)]).collect()
}

#[test]
fn packets_to_a_cluster_ip_that_no_service_has_do_not_leave_the_node() {
    let Some(mut node) = Node::new("unassigned cluster IPs") else { return };
    node.serve(web(), &[(1, 1)]);
    guard(&node);
    for case in CASES {
        for nobody in [NOBODY, CLUSTER_IP] {
            for packet in to(&node, case, nobody) {
                node.send(Hook::NicOut, Device::Eth0, &packet).is_for(TC_SHOT, abi::REASON_NO_SERVICE);
            }
        }
    }
}

#[test]
fn other_packets_leave_and_so_does_everything_while_no_networks_are_known() {
    let Some(mut node) = Node::new("packets that are not for cluster IPs") else { return };
    node.serve(web(), &[(1, 1)]);
    let assert_leaves = |node: &Node, packet: &Packet| {
        let frame = packet.to_bytes();
        let outcome = node.run(Hook::NicOut, Device::Eth0, &frame);
        outcome.is_untouched(TC_UNSPEC, outcome.reason, &frame);
        assert!(outcome.reason < abi::REASON_TO_LOCAL, "{outcome:?}");
    };
    for case in CASES {
        for packet in to(&node, case, NOBODY) {
            assert_leaves(&node, &packet);
        }
    }
    guard(&node);
    for case in CASES {
        for elsewhere in [EXTERNAL_IP, address::node(2), address::pod(2, 1), CLIENT] {
            for packet in to(&node, case, elsewhere) {
                assert_leaves(&node, &packet);
            }
        }
    }
}

#[test]
fn answers_and_clients_of_services_are_not_concerned() {
    let Some(mut node) = Node::new("services beside guarded networks") else { return };
    node.serve(web(), &[(1, 1)]);
    guard(&node);
    for case in CASES {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let answer = case.later(case.at(address::pod(1, 1), TARGET_PORT), sent.source_socket());
        node.send(Hook::NicOut, Device::Eth0, &answer).is_for(TC_UNSPEC, abi::REASON_BACK);
        // On its way in it is another node's or proxy's business what becomes of it.
        let nobody = case.first(case.at(CLIENT, node.client_port()), case.at(NOBODY, PORT));
        node.send(Hook::NicIn, Device::Eth0, &nobody).is_for(TC_UNSPEC, abi::REASON_NO_FRONTEND);
    }
}
