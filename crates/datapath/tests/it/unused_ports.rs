//! Ports of a cluster IP that no service has: refused, since nobody else answers there.

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service};
use weir_core::ops::MapOp;
use weir_datapath::{Hook, MapStore};
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Fragment, Packet, Transport};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, PORT, TARGET_PORT, cases, tcp};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, web};
use crate::refusals::{CLIENTS, refusal};

fn node(what: &str) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(1, 2)]);
    Some(node)
}

#[test]
fn tc_answers_for_an_unused_port_and_xdp_leaves_it_to_tc() {
    let Some(node) = node("unused ports") else { return };
    node.refuses();
    for case in CASES {
        for port in [0, 1, PORT + 1, u16::MAX] {
            for (hook, device, client) in CLIENTS {
                let sent = case.first(case.at(client, node.client_port()), case.at(CLUSTER_IP, port));
                let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
                outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
                let outcome = node.send(hook, device, &sent);
                outcome.is(TC_REDIRECT, abi::REASON_UNUSED_PORT, &refusal(&sent));
            }
        }
    }
    assert!(node.view.flows().unwrap().is_empty(), "no flow began");
}

#[test]
fn a_reset_to_an_unused_port_is_not_answered() {
    let Some(node) = node("resets to unused ports") else { return };
    for case in cases(Protocol::Tcp) {
        let header = TcpHeader { rst: true, ..TcpHeader::default() };
        let sent = tcp(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT + 1), header);
        for (hook, verdict) in [(Hook::Xdp, XDP_DROP), (Hook::NicIn, TC_SHOT)] {
            node.send(hook, Device::Eth0, &sent).is_untouched(verdict, abi::REASON_STALE, &sent.to_bytes());
        }
    }
}

#[test]
fn other_addresses_of_a_service_are_not_its_own_and_their_ports_are_left_alone() {
    let Some(node) = node("unused ports of other addresses") else { return };
    for case in CASES {
        for address in [address::node(1), BALANCER_IP, EXTERNAL_IP] {
            let frame = case.first(case.at(CLIENT, node.client_port()), case.at(address, PORT + 1)).to_bytes();
            for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC), (Hook::PodIn, TC_UNSPEC)] {
                node.run(hook, Device::Eth0, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
            }
        }
    }
}

/// What one client sends, whatever it is.
fn packets(node: &Node, case: Case, to: Pair) -> Vec<Packet> {
    let from = case.at(CLIENT, node.client_port());
    let kind = if case.family == Family::V4 { 8 } else { 128 };
    let echo = Transport::Icmp { kind, code: 0, rest: [0, 1, 0, 1], body: vec![7; 33] };
    let mut piece = case.first(from, case.at(to, PORT + 1));
    piece.fragment = Some(Fragment { offset: 185, more: false });
    vec![case.first(from, case.at(to, PORT + 1)), Packet::new(case.ip(CLIENT), case.ip(to), echo), piece]
}

#[test]
fn what_leaves_where_it_came_in_goes_no_further_if_it_is_to_an_address_of_services() {
    let Some(node) = node("packets that come round") else { return };
    for case in CASES {
        // The node is not told which networks cluster IPs are of.
        for address in [CLUSTER_IP, BALANCER_IP, EXTERNAL_IP] {
            for packet in packets(&node, case, address) {
                let outcome = node.forward(Device::Eth0, Device::Eth0, &packet);
                outcome.is_for(TC_SHOT, abi::REASON_NO_SERVICE);
            }
        }
    }
}

#[track_caller]
fn leaves(node: &Node, came_by: Device, packet: &Packet) {
    let outcome = node.forward(came_by, Device::Eth0, packet);
    outcome.is_untouched(TC_UNSPEC, outcome.reason, &packet.to_bytes());
    assert!(outcome.reason < abi::REASON_TO_LOCAL, "{outcome:?}");
}

#[test]
fn what_leaves_elsewhere_is_left_alone_and_so_is_what_nodes_or_nobody_of_ours_has() {
    let Some(mut node) = node("packets that are forwarded") else { return };
    // As some load balancers have it: the nodes' own addresses.
    node.serve(Service { load_balancer_ips: address::node(2).both().to_vec(), ..web() }, &[(1, 2)]);
    node.direct(&[]);
    for case in CASES {
        for packet in packets(&node, case, EXTERNAL_IP) {
            leaves(&node, Device::Eth1, &packet);
            leaves(&node, Device::Pod1, &packet);
        }
        for address in [address::node(2), address::node(3), address::pod(2, 1), BALANCER_IP] {
            for packet in packets(&node, case, address) {
                leaves(&node, Device::Eth0, &packet);
            }
        }
    }
}

#[test]
fn beside_another_proxy_what_comes_round_is_left_to_it() {
    let Some(node) = node("packets that come round beside another proxy") else { return };
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flags: config.flags | abi::CONFIG_BESIDE, ..config }).unwrap();
    for case in CASES {
        packets(&node, case, EXTERNAL_IP).iter().for_each(|packet| leaves(&node, Device::Eth0, packet));
    }
}

#[test]
fn a_flow_to_a_port_that_was_removed_goes_on_while_new_ones_are_refused() {
    let Some(mut node) = node("a port that was removed") else { return };
    node.refuses();
    for case in CASES {
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &case.first(from, to)).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let (key, _) = node.frontend(to, case.protocol);
        node.datapath.store().apply(&[MapOp::DeleteFrontend { key }]).unwrap();
        let sent = case.later(from, to);
        let expected = sent.clone().with_destination(case.at(address::pod(1, 2), TARGET_PORT));
        node.send(Hook::Xdp, Device::Eth0, &sent).is(XDP_PASS, abi::REASON_TO_LOCAL, &expected);
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &expected);
        let sent = case.first(case.at(CLIENT, node.client_port()), to);
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_REDIRECT, abi::REASON_UNUSED_PORT, &refusal(&sent));
    }
}

#[test]
fn an_address_that_is_given_up_is_left_alone() {
    let Some(mut node) = node("a cluster IP that was given up") else { return };
    let frontends = node.view.dump().unwrap().frontends;
    let removals: Vec<_> = frontends.into_iter().map(|(key, _)| MapOp::DeleteFrontend { key }).collect();
    node.datapath.store().apply(&removals).unwrap();
    for case in CASES {
        let frame = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT + 1)).to_bytes();
        for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)] {
            node.run(hook, Device::Eth0, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
        }
    }
}
