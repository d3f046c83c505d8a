//! What the host asks by itself, or masquerades, from a port that is a frontend's: nf_nat gives any, a node port, too.

use std::mem::offset_of;

use etherparse::TcpHeader;
use nix::time::{ClockId, clock_gettime};
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::{FlowEntry, Hook, IdleFlows, tick_clock};
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, cases, tcp};
use crate::entries::{age, calm, evict};
use crate::node::{Device, Node, TC_UNSPEC, XDP_PASS, web};
use crate::openings::stay_on_one_cpu;

/// Of a server that the host asks.
const SERVED: u16 = 443;
/// By which hook the host asks, and by which it is answered, with the verdict that lets a packet go on.
type Asked = (Hook, Device, &'static [(Hook, u32)]);
const WAYS: [Asked; 2] = [
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
fn who_asks_everybody_from_a_frontends_port_takes_no_places_of_connections() {
    const ASKED: u16 = 300;
    let Some(mut node) = Node::new("a pod that asks everybody") else { return };
    node.serve(web(), &[(1, 1)]);
    stay_on_one_cpu();
    for case in CASES {
        calm(&node);
        for port in 0..ASKED {
            let question = case.first(case.at(address::node(1), NODE_PORT), case.at(CLIENT, 1 + port));
            assert_eq!(node.send(Hook::NicOut, Device::Eth0, &question).reason, abi::REASON_NO_REPLY);
        }
        let is_own = |entry: &FlowEntry| entry.flow.flags & abi::FLOW_OWN != 0;
        let own = node.view.flows().unwrap().iter().filter(|entry| is_own(entry)).count();
        assert!((1..usize::from(ASKED / 3)).contains(&own), "{case:?}: {own}");
        ["flows4", "flows6"].iter().for_each(|table| evict(&node, table));
    }
}

#[test]
fn a_connection_that_nobody_has_answered_is_taken_out_and_one_that_is_answered_stays() {
    let Some(mut node) = Node::new("the host's own connections") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let flows = if case.family == Family::V4 { "flows4" } else { "flows6" };
        let take_out = || {
            let tick = tick_clock().unwrap().at(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into());
            IdleFlows::open(node.pin_dir()).unwrap().take_out(tick).unwrap()
        };
        for (answered, taken) in [(false, 1), (true, 0)] {
            let question = asks(&node, case, Hook::NicOut, Device::Eth0);
            if answered {
                let answer = &answers(case, &question)[0];
                is_left_to_the_host(&node, Hook::NicIn, Device::Eth0, TC_UNSPEC, answer);
            }
            assert_eq!(take_out(), 0, "{case:?}");
            age(&node, flows, offset_of!(abi::Flow, last_seen), 132);
            assert_eq!(take_out(), taken, "{case:?}, answered: {answered}");
        }
        age(&node, flows, offset_of!(abi::Flow, last_seen), node.datapath.config().unwrap().tcp_idle);
        assert_eq!(take_out(), 1, "{case:?}: long since");
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
        // What the host sends prolongs it.
        for _ in 0..2 {
            age(&node, flows, offset_of!(abi::Flow, last_seen), config.udp_idle);
            is_left_to_the_host(&node, Hook::NicIn, Device::Eth0, TC_UNSPEC, answer);
            asks(&node, case, Hook::NicOut, Device::Eth0);
        }
        age(&node, flows, offset_of!(abi::Flow, last_seen), config.udp_idle);
        is_left_to_the_host(&node, Hook::NicIn, Device::Eth0, TC_UNSPEC, answer);
        age(&node, flows, offset_of!(abi::Flow, last_seen), 2);
        assert_eq!(node.send(Hook::NicIn, Device::Eth0, answer).reason, abi::REASON_TO_LOCAL, "{case:?}");
    }
}

/// Of a client's that goes on: an answer that has lost its entry leaves from there, too.
#[test]
fn a_clients_flow_that_goes_on_is_not_the_hosts_whatever_leaves_from_its_frontend() {
    let Some(mut node) = Node::new("answers from a frontend's port") else { return };
    for case in CASES {
        node.serve_anew(web(), &[(1, 1)]);
        let (client, frontend) = (case.at(CLIENT, node.client_port()), case.at(address::node(1), NODE_PORT));
        let served = |node: &Node, packet: &Packet| node.send(Hook::NicIn, Device::Eth0, packet).reason;
        assert_eq!(served(&node, &case.first(client, frontend)), abi::REASON_TO_LOCAL);
        node.send(Hook::NicOut, Device::Eth0, &case.first(frontend, client));
        assert_eq!(served(&node, &case.later(client, frontend)), abi::REASON_TO_LOCAL, "{case:?}");
        // Nor where its endpoint is gone: it is to be reset, or to select anew.
        node.serve_anew(web(), &[(1, 2)]);
        node.send(Hook::NicOut, Device::Eth0, &case.first(frontend, client));
        if case.protocol == Protocol::Udp {
            assert_eq!(served(&node, &case.later(client, frontend)), abi::REASON_TO_LOCAL, "{case:?}");
        }
        assert_eq!(node.flow_of(&case.first(client, frontend)).flags & abi::FLOW_OWN, 0, "{case:?}");
    }
}

#[test]
fn what_the_host_asks_is_its_own_although_a_client_was_there_before() {
    let Some(mut node) = Node::new("the host's own after a client") else { return };
    node.serve(web(), &[(1, 1)]);
    let idle = node.datapath.config().unwrap().udp_idle + 2;
    for case in CASES {
        let question = question(case, Device::Eth0);
        let (from, to) = (question.destination_socket(), question.source_socket());
        let seen = node.send(Hook::NicIn, Device::Eth0, &case.first(from, to)).packet();
        if case.protocol == Protocol::Tcp {
            let header = TcpHeader { rst: true, ack: true, ..TcpHeader::default() };
            let refused = tcp(seen.destination_socket(), seen.source_socket(), header);
            assert_eq!(node.send(Hook::NicOut, Device::Eth0, &refused).reason, abi::REASON_BACK);
        } else {
            let openings = if case.family == Family::V4 { "openings4" } else { "openings6" };
            age(&node, openings, offset_of!(abi::Flow, last_seen), idle);
        }
        asks(&node, case, Hook::NicOut, Device::Eth0);
        for answer in answers(case, &question) {
            is_left_to_the_host(&node, Hook::NicIn, Device::Eth0, TC_UNSPEC, &answer);
        }
    }
}

/// Nobody has them, so that whoever sends from there is somebody else, and not asked by the host.
#[test]
fn what_comes_from_an_address_that_is_not_the_nodes_is_not_noted() {
    let Some(mut node) = Node::new("packets in a service's name") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for address in [CLUSTER_IP, EXTERNAL_IP] {
            let (pod, frontend) = (case.at(address::pod(1, 7), node.client_port()), case.at(address, PORT));
            node.send(Hook::PodOut, Device::Pod1, &case.first(frontend, pod));
            let asked = node.send(Hook::PodIn, Device::Pod1, &case.first(pod, frontend));
            assert_eq!(asked.reason, abi::REASON_TO_LOCAL, "{case:?}");
        }
    }
    assert!(node.view.flows().unwrap().iter().all(|entry| entry.flow.flags & abi::FLOW_OWN == 0));
}

/// An agent that takes over forgets flows of datagrams that are to another Service than they were.
#[test]
fn a_restart_leaves_the_hosts_own() {
    let Some(mut node) = Node::new("the host's own and a restart") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        let question = asks(&node, case, Hook::NicOut, Device::Eth0);
        node.datapath.store().forget_strange_flows().unwrap();
        is_left_to_the_host(&node, Hook::NicIn, Device::Eth0, TC_UNSPEC, &answers(case, &question)[0]);
    }
}
