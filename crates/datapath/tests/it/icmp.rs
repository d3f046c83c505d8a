//! ICMP errors about packets of flows are told to who sent the packet, as that one knows it.

use std::net::IpAddr;

use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service, TrafficPolicy};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Fragment, Packet, Transport};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT};
use crate::failover::SECOND;
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_PASS, web};
use crate::talk::wait;

/// A router on somebody's way.
pub(crate) const ROUTER: Pair = address::node(3);
const FRONTENDS: [(Pair, u16); 4] =
    [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (BALANCER_IP, PORT), (EXTERNAL_IP, PORT)];
/// Bytes of the transport header that are quoted at least: both ports and four more, and of UDP the checksum.
pub(crate) const QUOTED: usize = 8;

/// Type, code and MTU of "too big" in both families.
pub(crate) const fn too_big(family: Family) -> (u8, u8, [u8; 4]) {
    match family {
        Family::V4 => (3, 4, [0, 0, 5, 0]),
        Family::V6 => (2, 0, [0, 0, 5, 0]),
    }
}

fn icmp(from: IpAddr, to: IpAddr, (kind, code, rest): (u8, u8, [u8; 4]), body: Vec<u8>) -> Packet {
    Packet::new(from, to, Transport::Icmp { kind, code, rest, body })
}

pub(crate) fn quote(packet: &Packet) -> Vec<u8> {
    let bytes = packet.ip_bytes();
    let headers = if packet.source.is_ipv4() { 20 } else { 40 };
    bytes[..headers + QUOTED].to_vec()
}

/// An error that somebody tells the sender of a packet.
pub(crate) fn error(case: Case, from: IpAddr, about: &Packet) -> Packet {
    icmp(from, about.source, too_big(case.family), quote(about))
}

/// Asserts that an error comes out as told by one about a packet, whose checksums but that of its transport are right.
#[track_caller]
pub(crate) fn assert_told(told: &Packet, from: IpAddr, about: &Packet) {
    assert_eq!((told.source, told.destination), (from, about.source));
    let Transport::Icmp { body, .. } = &told.transport else { panic!("{told:?}") };
    let expected = quote(about);
    let compared = expected.len() - 2;
    assert_eq!(body[..compared], expected[..compared], "the quoted packet");
}

/// A flow from a client, as it was sent and as its backend saw it.
struct Flow {
    sent: Packet,
    seen: Packet,
}

impl Flow {
    fn open(node: &Node, case: Case, (hook, device): (Hook, Device), client: Pair, to: (Pair, u16)) -> Self {
        let sent = case.first(case.at(client, node.client_port()), case.at(to.0, to.1));
        let seen = node.send(hook, device, &sent).packet();
        Self { sent, seen }
    }

    /// An answer as the client gets it, and as the backend sends it.
    fn answers(&self, case: Case) -> [Packet; 2] {
        [&self.sent, &self.seen].map(|packet| case.later(packet.destination_socket(), packet.source_socket()))
    }
}

const NIC: (Hook, Device) = (Hook::NicIn, Device::Eth0);

#[test]
fn an_error_about_an_answer_reaches_the_local_endpoint_that_sent_it() {
    let Some(mut node) = Node::new("ICMP errors to a local endpoint") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for frontend in FRONTENDS {
            let flow = Flow::open(&node, case, NIC, CLIENT, frontend);
            let [got, answered] = flow.answers(case);
            let outcome = node.send(Hook::NicIn, Device::Eth0, &error(case, case.ip(ROUTER), &got));
            outcome.is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
            assert_told(&outcome.packet(), case.ip(ROUTER), &answered);
        }
    }
}

#[test]
fn an_error_about_an_answer_reaches_the_endpoint_on_another_node_in_this_nodes_name() {
    let Some(mut node) = Node::new("ICMP errors to a remote endpoint") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let flow = Flow::open(&node, case, NIC, CLIENT, (EXTERNAL_IP, PORT));
        let [got, answered] = flow.answers(case);
        let sent = error(case, case.ip(ROUTER), &got);
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        outcome.is_for(TC_REDIRECT, abi::REASON_ERROR_TOLD);
        assert_told(&outcome.packet(), case.ip(address::node(1)), &answered);
        assert_eq!(outcome.packet().ttl, sent.ttl - 1);
    }
}

#[test]
fn an_error_about_a_packet_to_another_node_reaches_the_client_in_the_services_name() {
    let Some(mut node) = Node::new("ICMP errors from the way to a remote endpoint") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let flow = Flow::open(&node, case, NIC, CLIENT, (CLUSTER_IP, PORT));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &error(case, case.ip(ROUTER), &flow.seen));
        outcome.is_for(TC_REDIRECT, abi::REASON_ERROR_TOLD);
        // On its way it has passed this node.
        let sent = Packet { ttl: flow.seen.ttl, ..flow.sent };
        assert_told(&outcome.packet(), case.ip(CLUSTER_IP), &sent);
    }
}

#[test]
fn an_error_of_a_local_endpoint_or_of_the_node_leaves_in_the_services_name() {
    let Some(mut node) = Node::new("ICMP errors of a local endpoint") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for teller in [address::pod(1, 1), address::node(1)] {
            let flow = Flow::open(&node, case, NIC, CLIENT, (CLUSTER_IP, PORT));
            let outcome = node.send(Hook::NicOut, Device::Eth0, &error(case, case.ip(teller), &flow.seen));
            outcome.is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
            assert_told(&outcome.packet(), case.ip(CLUSTER_IP), &flow.sent);
        }
    }
}

#[test]
fn a_pod_tells_and_is_told_in_terms_of_the_service() {
    let Some(mut node) = Node::new("ICMP errors of and to a client pod") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let client = address::pod(1, 1);
        let flow = Flow::open(&node, case, (Hook::PodIn, Device::Pod1), client, (CLUSTER_IP, PORT));
        let [got, answered] = flow.answers(case);
        let outcome = node.send(Hook::PodIn, Device::Pod1, &error(case, case.ip(client), &got));
        outcome.is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
        assert_told(&outcome.packet(), case.ip(client), &answered);

        let outcome = node.send(Hook::PodOut, Device::Pod1, &error(case, case.ip(ROUTER), &flow.seen));
        outcome.is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
        assert_told(&outcome.packet(), case.ip(CLUSTER_IP), &flow.sent);
    }
}

#[test]
fn every_kind_of_error_is_told_and_nothing_else_is_touched() {
    let Some(mut node) = Node::new("kinds of ICMP") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let errors: &[u8] = if case.family == Family::V4 { &[3, 11, 12] } else { &[1, 2, 3, 4] };
        let flow = Flow::open(&node, case, NIC, CLIENT, (CLUSTER_IP, PORT));
        let [got, _] = flow.answers(case);
        for kind in 0..=u8::MAX {
            let sent = icmp(case.ip(ROUTER), got.source, (kind, 0, [0; 4]), quote(&got));
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            if errors.contains(&kind) {
                outcome.is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
            } else {
                outcome.is_untouched(TC_UNSPEC, abi::REASON_NOT_TRANSPORT, &sent.to_bytes());
            }
        }
        let sent = error(case, case.ip(ROUTER), &got);
        node.send(Hook::Xdp, Device::Eth0, &sent).is_untouched(XDP_PASS, abi::REASON_NOT_TRANSPORT, &sent.to_bytes());
    }
}

#[test]
fn an_error_to_somebody_else_than_the_sender_of_what_it_quotes_passes() {
    let Some(mut node) = Node::new("ICMP errors to others") else { return };
    node.serve(web(), &[(1, 1), (2, 1)]);
    let others = [address::node(4), address::pod(1, 2), CLIENT];
    for case in CASES {
        for frontend in FRONTENDS {
            let flow = Flow::open(&node, case, NIC, CLIENT, frontend);
            let [got, _] = flow.answers(case);
            for (about, hooks) in [(got, [Hook::NicIn, Hook::PodIn]), (flow.seen, [Hook::NicIn, Hook::NicOut])] {
                for other in others.map(|other| case.ip(other)).into_iter().filter(|other| *other != about.source) {
                    let sent = Packet { destination: other, ..error(case, case.ip(ROUTER), &about) };
                    for hook in hooks {
                        let outcome = node.send(hook, Device::Eth0, &sent);
                        outcome.is_untouched(TC_UNSPEC, abi::REASON_NOT_TRANSPORT, &sent.to_bytes());
                    }
                }
            }
        }
    }
}

#[test]
fn errors_about_others_packets_or_that_quote_too_little_pass() {
    let Some(mut node) = Node::new("ICMP errors of others") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let flow = Flow::open(&node, case, NIC, CLIENT, (CLUSTER_IP, PORT));
        let [got, _] = flow.answers(case);
        let stranger = got.clone().with_destination(case.at(CLIENT, 1));
        let elsewhere = got.clone().with_source(case.at(address::pod(2, 9), PORT));
        for about in [stranger, elsewhere] {
            let sent = error(case, case.ip(ROUTER), &about);
            for hook in [Hook::NicIn, Hook::NicOut, Hook::PodIn, Hook::PodOut] {
                let outcome = node.send(hook, Device::Eth0, &sent);
                outcome.is_untouched(TC_UNSPEC, abi::REASON_NOT_TRANSPORT, &sent.to_bytes());
            }
        }
        let body = quote(&got);
        for length in 0..body.len() - QUOTED + 4 {
            let sent = icmp(case.ip(ROUTER), got.source, too_big(case.family), body[..length].to_vec());
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            assert_eq!((outcome.verdict, &outcome.frame), (TC_UNSPEC, &sent.to_bytes()), "{length} bytes");
        }
        let piece = Packet { fragment: Some(Fragment { offset: 0, more: true }), ..error(case, case.ip(ROUTER), &got) };
        let outcome = node.send(Hook::NicIn, Device::Eth0, &piece);
        assert_eq!((outcome.verdict, &outcome.frame), (TC_UNSPEC, &piece.to_bytes()));
    }
}

#[test]
fn a_client_is_not_told_of_a_syn_that_goes_to_another_endpoint_when_it_comes_again() {
    let Some(mut node) = Node::new("ICMP errors about SYNs that nobody got") else { return };
    for case in CASES.into_iter().filter(|case| case.protocol == Protocol::Tcp) {
        let nobody: &[(u8, u8)] = if case.family == Family::V4 { &[(3, 0), (3, 1)] } else { &[(1, 0), (1, 3)] };
        let word: (u8, u8) = if case.family == Family::V4 { (3, 3) } else { (1, 4) };
        let about = |flow: &Flow, (kind, code): (u8, u8)| {
            icmp(case.ip(ROUTER), flow.seen.source, (kind, code, [0; 4]), quote(&flow.seen))
        };
        for (number, hook) in [(1, Hook::NicOut), (2, Hook::NicIn)] {
            node.serve(web(), &[(number, 1), (number, 2)]);
            let flow = Flow::open(&node, case, NIC, CLIENT, (CLUSTER_IP, PORT));
            for kind in nobody {
                node.send(hook, Device::Eth0, &about(&flow, *kind)).is_for(TC_SHOT, abi::REASON_STALE);
            }
            let told = if number == 1 { TC_UNSPEC } else { TC_REDIRECT };
            node.send(hook, Device::Eth0, &about(&flow, word)).is_for(told, abi::REASON_ERROR_TOLD);

            node.serve(web(), &[(number, 1)]);
            let flow = Flow::open(&node, case, NIC, CLIENT, (CLUSTER_IP, PORT));
            node.send(hook, Device::Eth0, &about(&flow, nobody[0])).is_for(told, abi::REASON_ERROR_TOLD);
        }
    }
}

/// Endpoints of the service are on other nodes, where the policy lets nobody go.
#[test]
fn a_client_is_told_of_a_syn_that_no_other_endpoint_can_have() {
    let Some(mut node) = Node::new("ICMP errors about SYNs that stay") else { return };
    node.serve(Service { external_policy: TrafficPolicy::Local, ..web() }, &[(1, 1), (2, 1), (2, 2)]);
    for case in CASES.into_iter().filter(|case| case.protocol == Protocol::Tcp) {
        let nobody: (u8, u8) = if case.family == Family::V4 { (3, 1) } else { (1, 3) };
        let flow = Flow::open(&node, case, NIC, CLIENT, (EXTERNAL_IP, PORT));
        let error = icmp(case.ip(ROUTER), flow.seen.source, (nobody.0, nobody.1, [0; 4]), quote(&flow.seen));
        let told = || node.send(Hook::NicOut, Device::Eth0, &error);
        // It is not known yet.
        told().is_for(TC_SHOT, abi::REASON_STALE);
        wait(&node, case, SECOND);
        assert_eq!(node.send(Hook::NicIn, Device::Eth0, &flow.sent).packet().destination, flow.seen.destination);
        told().is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
    }
}
