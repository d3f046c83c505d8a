//! Packets to services that cannot serve them, and packets that may not go on.

use std::time::Duration;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol, TrafficPolicy};
use weir_datapath::{Hook, errors_told, running_cpus};
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Extension, Packet, Transport};
use weir_testbed::wait;

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, NODE_PORT, PORT, cases, tcp};
use crate::fragments::{PIECE, large};
use crate::icmp::{ROUTER, error};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, XDP_DROP, XDP_PASS, web};
use crate::openings::stay_on_one_cpu;

/// tc programs that clients meet first, with a client behind each.
pub(crate) const CLIENTS: [(Hook, Device, Pair); 2] =
    [(Hook::NicIn, Device::Eth0, CLIENT), (Hook::PodIn, Device::Pod1, address::pod(1, 1))];

/// What answers a packet in the service's name: port unreachable with the packet's headers, or a reset.
pub(crate) fn refusal(sent: &Packet) -> Packet {
    let transport = match &sent.transport {
        Transport::Tcp { header, payload } => {
            assert!(header.syn && !header.ack, "fixtures here refuse new connections");
            let length = u32::try_from(payload.len()).unwrap() + 1;
            let header = TcpHeader {
                source_port: header.destination_port,
                destination_port: header.source_port,
                acknowledgment_number: header.sequence_number.wrapping_add(length),
                ack: true,
                rst: true,
                ..TcpHeader::default()
            };
            Transport::Tcp { header, payload: Vec::new() }
        }
        Transport::Udp { .. } => {
            let (kind, code, headers) = if sent.source.is_ipv4() { (3, 3, 28) } else { (1, 4, 48) };
            Transport::Icmp { kind, code, rest: [0; 4], body: sent.ip_bytes()[..headers].to_vec() }
        }
        Transport::Icmp { .. } | Transport::Other { .. } => panic!("{sent:?} is not refused"),
    };
    let (source_mac, destination_mac) = (sent.destination_mac, sent.source_mac);
    let packet = Packet::new(sent.destination, sent.source, transport);
    Packet { source_mac, destination_mac, identification: 0, ..packet }
}

fn to_service(node: &Node, case: Case, client: Pair) -> Packet {
    case.first(case.at(client, node.client_port()), case.at(CLUSTER_IP, PORT))
}

#[test]
fn without_endpoints_tc_answers_out_of_the_same_interface_and_xdp_leaves_it_to_tc() {
    let Some(mut node) = Node::new("no endpoints") else { return };
    node.refuses();
    node.serve(web(), &[]);
    for case in CASES {
        for (frontend, port) in [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (BALANCER_IP, PORT)] {
            for (hook, device, client) in CLIENTS {
                let sent = case.first(case.at(client, node.client_port()), case.at(frontend, port));
                let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
                outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
                let outcome = node.send(hook, device, &sent);
                outcome.is(TC_REDIRECT, abi::REASON_NO_ENDPOINTS, &refusal(&sent));
            }
        }
    }
}

#[test]
fn a_cpu_tells_its_part_of_the_errors_in_a_tick_and_drops_what_more_there_are() {
    stay_on_one_cpu();
    let part = errors_told(running_cpus().unwrap());
    for case in cases(Protocol::Udp) {
        let Some(mut node) = Node::new("more errors than are told") else { return };
        node.refuses();
        node.serve(web(), &[]);
        let sent = to_service(&node, case, CLIENT);
        let refuse = || node.send(Hook::NicIn, Device::Eth0, &sent);
        let is_told = || refuse().reason == abi::REASON_NO_ENDPOINTS;
        let untold = (0..64 * part).map(|_| refuse()).find(|outcome| outcome.reason != abi::REASON_NO_ENDPOINTS);
        untold.unwrap().is_untouched(TC_SHOT, abi::REASON_UNTOLD, &sent.to_bytes());
        for connects in cases(Protocol::Tcp) {
            let sent = to_service(&node, connects, CLIENT);
            node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_REDIRECT, abi::REASON_NO_ENDPOINTS, &refusal(&sent));
        }
        wait::until("errors to be told again", Duration::from_secs(10), is_told).unwrap();
        let told = 1 + (0..64 * part).take_while(|_| is_told()).count();
        // The next tick may come meanwhile.
        assert!((part as usize..2 * part as usize).contains(&told), "{told}");
    }
}

#[test]
fn refusals_of_any_payload_length_have_right_checksums() {
    let Some(mut node) = Node::new("refused payloads") else { return };
    node.serve(web(), &[]);
    for length in [0, 1, 2, 8, 9, 500, 1399] {
        // Of what is not longer than the answer nothing is cut.
        if length > 0 {
            node.refuses();
        }
        for case in CASES {
            let mut sent = to_service(&node, case, CLIENT);
            match &mut sent.transport {
                Transport::Tcp { payload, .. } | Transport::Udp { payload, .. } => *payload = vec![0xa5; length],
                Transport::Icmp { .. } | Transport::Other { .. } => {}
            }
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            outcome.is(TC_REDIRECT, abi::REASON_NO_ENDPOINTS, &refusal(&sent));
        }
    }
}

#[test]
fn a_connection_with_options_and_extensions_is_refused_without_them() {
    let Some(mut node) = Node::new("refused options") else { return };
    node.refuses();
    node.serve(web(), &[]);
    for case in cases(Protocol::Tcp) {
        let mut header = TcpHeader { sequence_number: u32::MAX, syn: true, ..TcpHeader::default() };
        header.set_options_raw(&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]).unwrap();
        let mut sent = tcp(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT), header);
        match case.family {
            Family::V4 => sent.options = vec![148, 4, 0, 0],
            Family::V6 => sent.extensions = vec![Extension { kind: 60, data: vec![1, 4, 0, 0, 0, 0] }],
        }
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        outcome.is(TC_REDIRECT, abi::REASON_NO_ENDPOINTS, &refusal(&sent));
    }
}

#[test]
fn a_refused_datagram_with_options_or_extensions_is_quoted_up_to_its_ports() {
    let Some(mut node) = Node::new("quoted options") else { return };
    node.refuses();
    node.serve(web(), &[]);
    for case in cases(Protocol::Udp) {
        let mut sent = to_service(&node, case, CLIENT);
        match case.family {
            Family::V4 => sent.options = vec![1; 40],
            Family::V6 => sent.extensions = vec![Extension { kind: 60, data: vec![1, 4, 0, 0, 0, 0] }],
        }
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        outcome.is_for(TC_REDIRECT, abi::REASON_NO_ENDPOINTS);
        let Transport::Icmp { body, .. } = outcome.packet().transport else { panic!("{outcome:?}") };
        let headers = sent.ip_bytes().len() - 5;
        assert_eq!(body.get(..headers), Some(&sent.ip_bytes()[..headers]), "the quote of {sent:?}");
    }
}

#[test]
fn a_local_policy_without_local_endpoints_drops() {
    let Some(mut node) = Node::new("Local policies") else { return };
    let mut service = web();
    service.external_policy = TrafficPolicy::Local;
    service.internal_policy = TrafficPolicy::Local;
    node.serve(service, &[(2, 1)]);
    for case in CASES {
        for (frontend, port) in [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (BALANCER_IP, PORT)] {
            for (hook, verdict) in [(Hook::Xdp, XDP_DROP), (Hook::NicIn, TC_SHOT)] {
                let sent = case.first(case.at(CLIENT, node.client_port()), case.at(frontend, port));
                let outcome = node.send(hook, Device::Eth0, &sent);
                outcome.is_untouched(verdict, abi::REASON_NO_LOCAL_ENDPOINTS, &sent.to_bytes());
            }
        }
        let sent = to_service(&node, case, address::pod(1, 1));
        node.send(Hook::PodIn, Device::Pod1, &sent).is_for(TC_SHOT, abi::REASON_NO_LOCAL_ENDPOINTS);
    }
}

#[test]
fn a_packet_without_a_hop_left_does_not_go_to_another_node_and_its_sender_is_told_so() {
    let Some(mut node) = Node::new("time to live") else { return };
    node.serve(web(), &[(2, 1)]);
    node.refuses();
    for case in CASES {
        for ttl in [0, 1] {
            let sent = Packet { ttl, ..to_service(&node, case, CLIENT) };
            let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
            outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            outcome.is_for(TC_REDIRECT, abi::REASON_TTL_TOLD);
            let told = outcome.packet();
            assert_eq!((told.source, told.destination), (sent.destination, sent.source));
            let Transport::Icmp { kind, code, rest, body } = told.transport else { panic!("{outcome:?}") };
            let exceeded = if case.family == Family::V4 { 11 } else { 3 };
            assert_eq!((kind, code, rest), (exceeded, 0, [0; 4]));
            assert!(sent.ip_bytes().starts_with(&body), "{body:?} is what it quotes");
        }
        for hook in [Hook::Xdp, Hook::NicIn] {
            let sent = Packet { ttl: 2, ..to_service(&node, case, CLIENT) };
            assert_eq!(node.send(hook, Device::Eth0, &sent).packet().ttl, 1);
        }
    }
}

#[test]
fn nobody_is_told_that_a_later_piece_or_an_error_had_no_hop_left() {
    let Some(mut node) = Node::new("time to live of pieces and errors") else { return };
    node.serve(web(), &[(2, 1)]);
    node.refuses();
    for case in CASES {
        let whole = large(case, &node, CLIENT, CLUSTER_IP);
        for (piece, reason) in whole.cut(PIECE).into_iter().zip([abi::REASON_TTL_TOLD, abi::REASON_TTL_EXCEEDED]) {
            let sent = Packet { ttl: 1, ..piece };
            let verdict = if reason == abi::REASON_TTL_TOLD { TC_REDIRECT } else { TC_SHOT };
            node.send(Hook::NicIn, Device::Eth0, &sent).is_for(verdict, reason);
        }
        let first = to_service(&node, case, CLIENT);
        node.send(Hook::NicIn, Device::Eth0, &first);
        let answer = case.later(first.destination_socket(), first.source_socket());
        let sent = Packet { ttl: 1, ..error(case, case.ip(ROUTER), &answer) };
        node.send(Hook::NicIn, Device::Eth0, &sent).is_untouched(TC_SHOT, abi::REASON_TTL_EXCEEDED, &sent.to_bytes());
    }
}

#[test]
fn a_packet_without_a_hop_left_still_reaches_a_local_backend_through_the_stack() {
    let Some(mut node) = Node::new("time to live at a local backend") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let sent = Packet { ttl: 1, ..to_service(&node, case, CLIENT) };
        let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
        outcome.is_for(XDP_PASS, abi::REASON_TO_LOCAL);
        assert_eq!(outcome.packet().ttl, 1, "the stack counts this hop");
    }
}

#[test]
fn a_remote_backend_without_a_route_drops_in_tc_and_is_left_to_it_by_xdp() {
    let Some(mut node) = Node::new("no route") else { return };
    node.serve(web(), &[(2, 1)]);
    node.remove_routes_to(2);
    for case in CASES {
        let sent = to_service(&node, case, CLIENT);
        let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
        outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        outcome.is_untouched(TC_SHOT, abi::REASON_NO_ROUTE, &sent.to_bytes());
    }
}
