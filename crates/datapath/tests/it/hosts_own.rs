//! What the host asks by itself, or masquerades, from a port that is a frontend's: nf_nat gives any, a node port, too.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{CASES, Case, NODE_PORT, cases, tcp};
use crate::entries::age;
use crate::node::{Device, Node, TC_UNSPEC, XDP_PASS, web};

/// Of a server that the host asks.
const SERVED: u16 = 443;
/// By which hook the host asks, and by which it is answered.
const WAYS: [(Hook, Device, &[(Hook, u32)]); 2] = [
    (Hook::NicOut, Device::Eth0, &[(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)]),
    (Hook::PodOut, Device::Pod1, &[(Hook::PodIn, TC_UNSPEC)]),
];

/// Who is asked.
fn server(device: Device) -> Pair {
    if matches!(device, Device::Pod1) { address::pod(1, 7) } else { CLIENT }
}

/// The first packet that the host sends from a frontend's port.
fn question(case: Case, device: Device) -> Packet {
    case.first(case.at(address::node(1), NODE_PORT), case.at(server(device), SERVED))
}

fn answers(case: Case, question: &Packet) -> Vec<Packet> {
    let (from, to) = (question.destination_socket(), question.source_socket());
    let agreed = tcp(from, to, TcpHeader { syn: true, ack: true, ..TcpHeader::default() });
    let end = tcp(from, to, TcpHeader { fin: true, ack: true, ..TcpHeader::default() });
    let later = case.later(from, to);
    if case.protocol == Protocol::Tcp { vec![agreed, later, end] } else { vec![later] }
}

#[track_caller]
fn asks(node: &Node, case: Case, hook: Hook, device: Device) -> Packet {
    let question = question(case, device);
    let frame = question.to_bytes();
    node.run(hook, device, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &frame);
    question
}

#[track_caller]
fn is_left_to_the_host(node: &Node, hook: Hook, device: Device, verdict: u32, answer: &Packet) {
    let frame = answer.to_bytes();
    node.run(hook, device, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
}

#[test]
fn answers_to_what_the_host_asks_from_a_frontends_port_are_the_hosts() {
    let Some(mut node) = Node::new("the host's own from a node port") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for (out, device, ways) in WAYS {
            let question = asks(&node, case, out, device);
            for answer in answers(case, &question) {
                for (hook, verdict) in ways {
                    is_left_to_the_host(&node, *hook, device, *verdict, &answer);
                }
            }
            // Who asks there is served, the same server, too.
            let (peer, port) = (server(device), node.client_port());
            let first = case.first(case.at(peer, port), case.at(address::node(1), NODE_PORT));
            assert_eq!(node.send(ways[0].0, device, &first).reason, abi::REASON_TO_LOCAL, "{case:?}");
        }
    }
}

#[test]
fn a_connection_from_the_same_ports_is_a_clients() {
    let Some(mut node) = Node::new("a client's from where the host has asked") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let question = asks(&node, case, Hook::NicOut, Device::Eth0);
        let (from, to) = (question.destination_socket(), question.source_socket());
        for packet in [case.first(from, to), case.later(from, to)] {
            assert_eq!(node.send(Hook::NicIn, Device::Eth0, &packet).reason, abi::REASON_TO_LOCAL);
        }
    }
}

#[test]
fn what_nobody_has_gone_on_with_for_long_is_the_hosts_no_more() {
    let Some(mut node) = Node::new("the host's own that is over") else { return };
    node.serve(web(), &[(1, 1)]);
    let config = node.datapath.config().unwrap();
    for case in cases(Protocol::Udp) {
        let question = asks(&node, case, Hook::NicOut, Device::Eth0);
        let answer = &answers(case, &question)[0];
        let flows = if case.family == Family::V4 { "flows4" } else { "flows6" };
        // What comes prolongs it.
        for ticks in [config.udp_idle, config.udp_idle] {
            age(&node, flows, offset_of!(abi::Flow, last_seen), ticks);
            is_left_to_the_host(&node, Hook::NicIn, Device::Eth0, TC_UNSPEC, answer);
        }
        age(&node, flows, offset_of!(abi::Flow, last_seen), config.udp_idle + 2);
        assert_eq!(node.send(Hook::NicIn, Device::Eth0, answer).reason, abi::REASON_TO_LOCAL, "{case:?}");
    }
}

/// Endpoints that are processes of the node answer from its addresses, too.
#[test]
fn answers_of_a_flow_make_nothing_the_hosts() {
    let Some(mut node) = Node::new("answers from a frontend's port") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let (client, frontend) = (case.at(CLIENT, node.client_port()), case.at(address::node(1), NODE_PORT));
        let first = case.first(client, frontend);
        let before = node.send(Hook::NicIn, Device::Eth0, &first).packet().destination;
        // As if its answers had lost their entry, and left with the frontend's name.
        node.send(Hook::NicOut, Device::Eth0, &case.first(frontend, client));
        assert_eq!(node.send(Hook::NicIn, Device::Eth0, &first).packet().destination, before, "{case:?}");
    }
}
