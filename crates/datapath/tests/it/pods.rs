//! Clients that are pods of this node.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address;
use weir_testbed::packet::Packet;

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT, cases, tcp};
use crate::entries::age;
use crate::node::{Device, Node, SNAT_PORTS, TC_REDIRECT, TC_UNSPEC, web};

fn from_pod(node: &Node, case: Case, pod: (u8, u8)) -> Packet {
    case.first(case.at(address::pod(pod.0, pod.1), node.client_port()), case.at(CLUSTER_IP, PORT))
}

#[test]
fn a_pod_reaches_a_backend_here_or_elsewhere_with_its_own_address_and_gets_its_answers_back() {
    let Some(mut node) = Node::new("pod to ClusterIP") else { return };
    for (pod, reason) in [((1, 2), abi::REASON_TO_LOCAL), ((2, 1), abi::REASON_TO_REMOTE)] {
        node.serve(web(), &[pod]);
        for case in CASES {
            let sent = from_pod(&node, case, (1, 1));
            let expected = sent.clone().with_destination(case.at(address::pod(pod.0, pod.1), TARGET_PORT));
            node.send(Hook::PodIn, Device::Pod1, &sent).is(TC_UNSPEC, reason, &expected);

            let answer = case.later(expected.destination_socket(), expected.source_socket());
            let expected = answer.clone().with_source(sent.destination_socket());
            node.send(Hook::PodOut, Device::Pod1, &answer).is(TC_UNSPEC, abi::REASON_BACK, &expected);
        }
    }
}

#[test]
fn a_pod_may_use_every_endpoint_of_a_service_with_a_local_external_policy() {
    let Some(mut node) = Node::new("short circuit") else { return };
    let mut service = web();
    service.external_policy = weir_core::model::TrafficPolicy::Local;
    node.serve(service, &[(2, 1)]);
    for case in CASES {
        for (frontend, port) in [(address::node(1), NODE_PORT), (EXTERNAL_IP, PORT)] {
            let from = case.at(address::pod(1, 1), node.client_port());
            let sent = case.first(from, case.at(frontend, port));
            let expected = sent.clone().with_destination(case.at(address::pod(2, 1), TARGET_PORT));
            node.send(Hook::PodIn, Device::Pod1, &sent).is(TC_UNSPEC, abi::REASON_TO_REMOTE, &expected);
        }
    }
}

#[test]
fn a_pod_that_meets_itself_sees_the_node_as_its_client() {
    let Some(mut node) = Node::new("hairpin") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let sent = from_pod(&node, case, (1, 1));
        let outcome = node.send(Hook::PodIn, Device::Pod1, &sent);
        let seen = outcome.packet();
        let port = seen.source_socket().port();
        assert!((SNAT_PORTS.0..=SNAT_PORTS.1).contains(&port), "port {port}");
        let mut expected = sent
            .clone()
            .with_source(case.at(address::node(1), port))
            .with_destination(case.at(address::pod(1, 1), TARGET_PORT));
        expected.ttl -= 1;
        outcome.is(TC_REDIRECT, abi::REASON_HAIRPIN, &expected);

        let answer = case.later(seen.destination_socket(), seen.source_socket());
        let mut expected = answer.clone().with_source(sent.destination_socket()).with_destination(sent.source_socket());
        expected.ttl -= 1;
        node.send(Hook::PodIn, Device::Pod1, &answer).is(TC_REDIRECT, abi::REASON_BACK, &expected);
    }
}

#[test]
fn an_endpoint_that_a_pod_connects_to_itself_answers_as_itself() {
    let Some(mut node) = Node::new("pod to endpoint, past the service") else { return };
    node.serve(web(), &[(1, 2)]);
    for case in cases(Protocol::Tcp) {
        let sent = from_pod(&node, case, (1, 1));
        let (pod, endpoint) = (sent.source_socket(), case.at(address::pod(1, 2), TARGET_PORT));
        let accepted = tcp(endpoint, pod, TcpHeader { syn: true, ack: true, ..TcpHeader::default() });
        node.send(Hook::PodIn, Device::Pod1, &sent).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        node.send(Hook::PodOut, Device::Pod1, &accepted).is_for(TC_UNSPEC, abi::REASON_BACK);
        let fin = tcp(pod, sent.destination_socket(), TcpHeader { fin: true, ack: true, ..TcpHeader::default() });
        node.send(Hook::PodIn, Device::Pod1, &fin).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let fin = tcp(endpoint, pod, TcpHeader { fin: true, ack: true, ..TcpHeader::default() });
        node.send(Hook::PodOut, Device::Pod1, &fin).is_for(TC_UNSPEC, abi::REASON_BACK);

        for packet in [accepted, case.later(endpoint, pod)] {
            let frame = packet.to_bytes();
            node.run(Hook::PodOut, Device::Pod1, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &frame);
        }
    }
}

#[test]
fn datagrams_of_an_endpoint_are_its_own_once_the_flow_through_the_service_is_idle() {
    let Some(mut node) = Node::new("datagrams past the service") else { return };
    node.serve(web(), &[(1, 2)]);
    let idle = node.datapath.config().unwrap().udp_idle + 1;
    for case in cases(Protocol::Udp) {
        let sent = from_pod(&node, case, (1, 1));
        let answer = case.later(case.at(address::pod(1, 2), TARGET_PORT), sent.source_socket());
        let frame = answer.to_bytes();
        let (flows, replies) = match case.family {
            Family::V4 => ("flows4", "replies4"),
            Family::V6 => ("flows6", "replies6"),
        };
        node.send(Hook::PodIn, Device::Pod1, &sent).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        node.send(Hook::PodOut, Device::Pod1, &answer).is_for(TC_UNSPEC, abi::REASON_BACK);
        age(&node, replies, offset_of!(abi::Reply, last_seen), idle);
        // Only the endpoint was silent.
        node.send(Hook::PodOut, Device::Pod1, &answer).is_for(TC_UNSPEC, abi::REASON_BACK);
        age(&node, replies, offset_of!(abi::Reply, last_seen), idle);
        age(&node, flows, offset_of!(abi::Flow, last_seen), idle);
        node.run(Hook::PodOut, Device::Pod1, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &frame);
    }
}

#[test]
fn what_a_pod_sends_to_others_is_not_ours() {
    let Some(mut node) = Node::new("pod to others") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let from = case.at(address::pod(1, 1), TARGET_PORT);
        let frame = case.first(from, case.at(address::pod(2, 1), 5000)).to_bytes();
        node.run(Hook::PodIn, Device::Pod1, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_FRONTEND, &frame);
    }
}
