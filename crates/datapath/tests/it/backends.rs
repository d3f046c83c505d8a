//! Endpoints that come and go while flows use them.

use std::mem::offset_of;
use std::net::SocketAddr;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::Packet;

use crate::case::{CASES, CLUSTER_IP, Case, PORT, TARGET_PORT, cases, tcp};
use crate::entries::age;
use crate::node::{Device, Node, SNAT_PORTS, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, web};
use crate::talk::{Talk, WAYS};

const OLD: (u8, u8) = (1, 1);
const NEW: (u8, u8) = (1, 2);

fn ends(node: &Node, case: Case) -> [SocketAddr; 2] {
    [case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT)]
}

fn pod(case: Case, pod: (u8, u8)) -> SocketAddr {
    case.at(address::pod(pod.0, pod.1), TARGET_PORT)
}

/// Opens a flow to the only endpoint there is and returns its ends.
fn open_flow(node: &mut Node, case: Case, endpoint: (u8, u8)) -> [SocketAddr; 2] {
    node.serve(web(), &[endpoint]);
    let [from, to] = ends(node, case);
    let seen = node.send(Hook::NicIn, Device::Eth0, &case.first(from, to)).packet();
    assert_eq!(seen.destination_socket(), pod(case, endpoint));
    [from, to]
}

#[test]
fn a_flow_stays_with_its_backend_when_others_join() {
    let Some(mut node) = Node::new("flows stay") else { return };
    for case in CASES {
        let mut joined = vec![OLD];
        let [from, to] = open_flow(&mut node, case, OLD);
        for n in 2..20 {
            joined.push((1, n));
            node.serve(web(), &joined);
            for hook in [Hook::Xdp, Hook::NicIn] {
                let seen = node.send(hook, Device::Eth0, &case.later(from, to)).packet();
                assert_eq!(seen.destination_socket(), pod(case, OLD));
            }
        }
    }
}

#[test]
fn udp_selects_anew_at_once_when_its_backend_is_gone() {
    let Some(mut node) = Node::new("stale UDP") else { return };
    for case in cases(Protocol::Udp) {
        for hook in [Hook::Xdp, Hook::NicIn] {
            let [from, to] = open_flow(&mut node, case, OLD);
            node.serve(web(), &[NEW]);
            let sent = case.later(from, to);
            let outcome = node.send(hook, Device::Eth0, &sent);
            assert_eq!(outcome.packet(), sent.with_destination(pod(case, NEW)));
            assert_eq!(outcome.reason, abi::REASON_TO_LOCAL);
        }
    }
}

/// Datagrams of one side are enough to keep a flow: a stream, for example, that its client only listens to.
#[test]
fn udp_of_a_silent_client_stays_as_long_as_its_backend_sends_and_no_longer() {
    for way in WAYS {
        let Some(mut node) = Node::new("UDP of silent clients") else { return };
        for case in cases(Protocol::Udp) {
            let other = (way.endpoint.0, way.endpoint.1 + 2);
            node.serve(web(), &[way.endpoint]);
            let talk = Talk::open(&node, case, way);
            talk.endpoint_goes_on();
            talk.endpoint_goes_on();
            let later = case.later(talk.first.source_socket(), talk.first.destination_socket());
            let answer = case.later(talk.seen.destination_socket(), talk.seen.source_socket());
            let (flows, replies) = (talk.flows(), talk.replies());
            // New flows go to another one from now on.
            node.serve_draining(web(), &[other], &[way.endpoint]);
            let sends = || node.send(way.to.0, way.to.1, &later).packet().destination_socket();
            for _ in 0..2 {
                age(&node, flows, offset_of!(abi::Flow, last_seen), 1000);
                assert_eq!(sends(), pod(case, way.endpoint), "{way:?}");
                node.send(way.back.0, way.back.1, &answer);
            }
            age(&node, flows, offset_of!(abi::Flow, last_seen), 1000);
            age(&node, replies, offset_of!(abi::Reply, last_seen), 1000);
            assert_eq!(sends(), pod(case, other), "both are silent: {way:?}");
        }
    }
}

#[test]
fn a_backend_that_returns_to_its_old_slot_does_not_revive_old_flows() {
    let Some(mut node) = Node::new("slots that return") else { return };
    node.refuses();
    for case in cases(Protocol::Tcp) {
        let [from, to] = open_flow(&mut node, case, OLD);
        node.serve(web(), &[]);
        node.release();
        node.release();
        node.serve(web(), &[NEW]);
        node.send(Hook::NicIn, Device::Eth0, &case.later(from, to)).is_for(TC_REDIRECT, abi::REASON_STALE_RESET);
    }
}

/// The reset that answers a packet: from what the client talks to, out of the interface that the packet came in by.
fn reset(answered: &Packet, sequence: u32, acknowledge: Option<u32>) -> Packet {
    let header = TcpHeader {
        sequence_number: sequence,
        acknowledgment_number: acknowledge.unwrap_or(0),
        ack: acknowledge.is_some(),
        rst: true,
        ..TcpHeader::default()
    };
    let (from, to) = (answered.destination_socket(), answered.source_socket());
    let packet = tcp(from, to, header);
    let (source_mac, destination_mac) = (answered.destination_mac, answered.source_mac);
    Packet { source_mac, destination_mac, identification: 0, ..packet }
}

#[test]
fn tcp_to_a_backend_that_is_gone_is_reset_by_tc_and_left_to_it_by_xdp() {
    let Some(mut node) = Node::new("stale TCP") else { return };
    node.refuses();
    for case in cases(Protocol::Tcp) {
        let [from, to] = open_flow(&mut node, case, OLD);
        node.serve(web(), &[NEW]);
        let sent = case.later(from, to);
        let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
        outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
        // RFC 9293: the reset of a segment with ACK takes its sequence number from there.
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        outcome.is(TC_REDIRECT, abi::REASON_STALE_RESET, &reset(&sent, 5000, None));
        // Without ACK it acknowledges all of the segment: five bytes and the FIN.
        let header = TcpHeader { sequence_number: 7000, fin: true, ..TcpHeader::default() };
        let sent = Packet::tcp(from, to, header, b"hello");
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        outcome.is(TC_REDIRECT, abi::REASON_STALE_RESET, &reset(&sent, 0, Some(7006)));
    }
}

#[test]
fn a_pod_is_reset_in_its_own_interface() {
    let Some(mut node) = Node::new("stale TCP of a pod") else { return };
    node.refuses();
    for case in cases(Protocol::Tcp) {
        node.serve(web(), &[OLD]);
        let (from, to) = (case.at(address::pod(1, 2), node.client_port()), case.at(CLUSTER_IP, PORT));
        node.send(Hook::PodIn, Device::Pod1, &case.first(from, to)).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        node.serve(web(), &[NEW]);
        let sent = case.later(from, to);
        let outcome = node.send(Hook::PodIn, Device::Pod1, &sent);
        outcome.is(TC_REDIRECT, abi::REASON_STALE_RESET, &reset(&sent, 5000, None));
    }
}

#[test]
fn tcp_to_a_backend_that_is_gone_is_dropped_if_resets_are_off() {
    let Some(mut node) = Node::new("stale TCP without resets") else { return };
    node.configure(SNAT_PORTS, false);
    for case in cases(Protocol::Tcp) {
        let [from, to] = open_flow(&mut node, case, OLD);
        node.serve(web(), &[NEW]);
        for (hook, verdict) in [(Hook::Xdp, XDP_DROP), (Hook::NicIn, TC_SHOT)] {
            let outcome = node.send(hook, Device::Eth0, &case.later(from, to));
            outcome.is_untouched(verdict, abi::REASON_STALE, &case.later(from, to).to_bytes());
        }
    }
}

#[test]
fn a_reset_is_never_answered_with_a_reset() {
    let Some(mut node) = Node::new("resets of stale flows") else { return };
    for case in cases(Protocol::Tcp) {
        let [from, to] = open_flow(&mut node, case, OLD);
        node.serve(web(), &[NEW]);
        let header = TcpHeader { rst: true, ..TcpHeader::default() };
        for (hook, verdict) in [(Hook::Xdp, XDP_DROP), (Hook::NicIn, TC_SHOT)] {
            node.send(hook, Device::Eth0, &tcp(from, to, header.clone())).is_for(verdict, abi::REASON_STALE);
        }
    }
}

#[test]
fn a_new_connection_after_the_backend_is_gone_selects_anew() {
    let Some(mut node) = Node::new("SYN after the backend is gone") else { return };
    for case in cases(Protocol::Tcp) {
        let [from, to] = open_flow(&mut node, case, OLD);
        node.serve(web(), &[NEW]);
        let sent = case.first(from, to);
        let expected = sent.clone().with_destination(pod(case, NEW));
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &expected);
    }
}

/// Takes OLD out of the new flows, but keeps its old ones, as a plan with other weights does.
fn steer_to_new(node: &mut Node) {
    node.serve_draining(web(), &[NEW], &[OLD]);
}

#[test]
fn a_syn_after_both_fins_selects_anew_and_one_without_does_not() {
    let Some(mut node) = Node::new("SYN after FIN") else { return };
    for case in cases(Protocol::Tcp) {
        for hook in [Hook::Xdp, Hook::NicIn] {
            let [from, to] = open_flow(&mut node, case, OLD);
            steer_to_new(&mut node);
            let seen = node.send(hook, Device::Eth0, &case.first(from, to)).packet();
            assert_eq!(seen.destination_socket(), pod(case, OLD), "a retransmitted SYN");

            let fin = TcpHeader { sequence_number: 1006, fin: true, ack: true, ..TcpHeader::default() };
            let seen = node.send(hook, Device::Eth0, &tcp(from, to, fin)).packet();
            assert_eq!(seen.destination_socket(), pod(case, OLD), "the FIN itself");
            let fin = TcpHeader { sequence_number: 5000, fin: true, ack: true, ..TcpHeader::default() };
            let back = node.send(Hook::NicOut, Device::Eth0, &tcp(pod(case, OLD), from, fin));
            back.is_for(TC_UNSPEC, abi::REASON_BACK);
            let seen = node.send(hook, Device::Eth0, &case.later(from, to)).packet();
            assert_eq!(seen.destination_socket(), pod(case, OLD), "the end of the old connection");

            let seen = node.send(hook, Device::Eth0, &case.first(from, to)).packet();
            assert_eq!(seen.destination_socket(), pod(case, NEW), "a new connection");
            let seen = node.send(hook, Device::Eth0, &case.later(from, to)).packet();
            assert_eq!(seen.destination_socket(), pod(case, NEW), "and the rest of it");
        }
    }
}

#[test]
fn a_draining_backend_keeps_its_flows_and_gets_no_new_ones() {
    let Some(mut node) = Node::new("draining") else { return };
    for case in CASES {
        let [from, to] = open_flow(&mut node, case, OLD);
        steer_to_new(&mut node);
        let seen = node.send(Hook::NicIn, Device::Eth0, &case.later(from, to)).packet();
        assert_eq!(seen.destination_socket(), pod(case, OLD));
        let [from, to] = ends(&node, case);
        let seen = node.send(Hook::NicIn, Device::Eth0, &case.first(from, to)).packet();
        assert_eq!(seen.destination_socket(), pod(case, NEW));
    }
}

#[test]
fn answers_of_a_backend_that_drains_still_find_their_client() {
    let Some(mut node) = Node::new("answers while draining") else { return };
    for case in CASES {
        let [from, to] = open_flow(&mut node, case, OLD);
        steer_to_new(&mut node);
        let answer = case.later(pod(case, OLD), from);
        let expected = answer.clone().with_source(to);
        node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &expected);
    }
}
