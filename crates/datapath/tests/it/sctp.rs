//! SCTP: addresses are translated, ports and checksum stay as they are.

use std::mem::offset_of;

use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service, ServicePort};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Packet, Transport};

use crate::case::{
    BALANCER_IP, CLUSTER_IP, Case, EXTERNAL_IP, PORT, SCTP_ABORT, SCTP_DATA, SCTP_INIT, SCTP_INIT_ACK,
    SCTP_SHUTDOWN_COMPLETE, sctp,
};
use crate::entries::{age, evict};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, XDP_TX, web};

const CASES: [Case; 2] =
    [Case { family: Family::V4, protocol: Protocol::Sctp }, Case { family: Family::V6, protocol: Protocol::Sctp }];
const LOCAL: [(Hook, u32); 2] = [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)];
const REMOTE: [(Hook, u32); 2] = [(Hook::Xdp, XDP_TX), (Hook::NicIn, TC_REDIRECT)];

fn service() -> Service {
    let port = ServicePort { name: "sctp".into(), protocol: Protocol::Sctp, port: PORT, node_port: None };
    Service { ports: vec![port], ..web() }
}

fn node(what: &str, endpoints: &[(u8, u8)]) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(service(), endpoints);
    Some(node)
}

/// The packet between two other addresses. Ports are part of what does not change.
fn between(packet: &Packet, source: std::net::IpAddr, destination: std::net::IpAddr) -> Packet {
    Packet { source, destination, ..packet.clone() }
}

/// As [`between`], with what changes on the way through this node.
fn forwarded(packet: &Packet, seen: &Packet, source: std::net::IpAddr, destination: std::net::IpAddr) -> Packet {
    let Packet { source_mac, destination_mac, .. } = *seen;
    Packet { source_mac, destination_mac, ttl: packet.ttl - 1, ..between(packet, source, destination) }
}

fn opens(node: &Node, case: Case, client: Pair, to: Pair) -> Packet {
    sctp(case.at(client, node.client_port()), case.at(to, PORT), SCTP_INIT)
}

/// The answer to a packet, its ports exchanged.
fn answer(packet: &Packet) -> Packet {
    let Transport::Other { bytes, .. } = &packet.transport else { panic!("{packet:?}") };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    sctp((packet.destination, port(2)).into(), (packet.source, port(0)).into(), SCTP_DATA)
}

#[test]
fn a_local_backend_gets_the_packet_and_the_client_its_answer() {
    let Some(node) = node("SCTP to a local backend", &[(1, 1)]) else { return };
    for case in CASES {
        let pod = case.ip(address::pod(1, 1));
        for frontend in [CLUSTER_IP, BALANCER_IP, EXTERNAL_IP] {
            for (hook, verdict) in LOCAL {
                let sent = opens(&node, case, CLIENT, frontend);
                let expected = between(&sent, sent.source, pod);
                node.send(hook, Device::Eth0, &sent).is(verdict, abi::REASON_TO_LOCAL, &expected);
                let answer = answer(&expected);
                let back = between(&answer, sent.destination, sent.source);
                node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &back);
            }
        }
    }
}

#[test]
fn a_pod_reaches_a_backend_and_gets_its_answer() {
    let Some(node) = node("SCTP of a pod", &[(2, 1)]) else { return };
    for case in CASES {
        let sent = opens(&node, case, address::pod(1, 1), CLUSTER_IP);
        let expected = between(&sent, sent.source, case.ip(address::pod(2, 1)));
        node.send(Hook::PodIn, Device::Pod1, &sent).is(TC_UNSPEC, abi::REASON_TO_REMOTE, &expected);
        let answer = answer(&expected);
        let back = between(&answer, sent.destination, sent.source);
        node.send(Hook::PodOut, Device::Pod1, &answer).is(TC_UNSPEC, abi::REASON_BACK, &back);
    }
}

#[test]
fn a_remote_backend_sees_the_node_with_the_clients_port_and_answers_to_it() {
    let Some(node) = node("SCTP to a remote backend", &[(2, 1)]) else { return };
    for case in CASES {
        for (hook, verdict) in REMOTE {
            let sent = opens(&node, case, CLIENT, BALANCER_IP);
            let outcome = node.send(hook, Device::Eth0, &sent);
            let expected = forwarded(&sent, &outcome.packet(), case.ip(address::node(1)), case.ip(address::pod(2, 1)));
            outcome.is(verdict, abi::REASON_TO_REMOTE, &expected);

            let answer = answer(&expected);
            let outcome = node.send(hook, Device::Eth0, &answer);
            let back = forwarded(&answer, &outcome.packet(), sent.destination, sent.source);
            outcome.is(verdict, abi::REASON_BACK, &back);
        }
    }
}

#[test]
fn a_pod_that_meets_itself_sees_the_node_as_its_client() {
    let Some(node) = node("SCTP hairpin", &[(1, 1)]) else { return };
    for case in CASES {
        let sent = opens(&node, case, address::pod(1, 1), CLUSTER_IP);
        let outcome = node.send(Hook::PodIn, Device::Pod1, &sent);
        let expected = forwarded(&sent, &outcome.packet(), case.ip(address::node(1)), case.ip(address::pod(1, 1)));
        outcome.is(TC_REDIRECT, abi::REASON_HAIRPIN, &expected);
        let answer = answer(&expected);
        let outcome = node.send(Hook::PodIn, Device::Pod1, &answer);
        let back = forwarded(&answer, &outcome.packet(), sent.destination, sent.source);
        outcome.is(TC_REDIRECT, abi::REASON_BACK, &back);
    }
}

/// Two clients with one source port, of which the node has but one towards a backend.
fn rivals(node: &Node, case: Case) -> [Packet; 2] {
    let port = node.client_port();
    [CLIENT, address::node(4)].map(|client| sctp(case.at(client, port), case.at(CLUSTER_IP, PORT), SCTP_INIT))
}

fn chunk(of: &Packet, kind: u8) -> Packet {
    let mut packet = of.clone();
    let Transport::Other { bytes, .. } = &mut packet.transport else { panic!("{of:?}") };
    bytes[12] = kind;
    packet
}

fn source_port(of: &Packet) -> u16 {
    let Transport::Other { bytes, .. } = &of.transport else { panic!("{of:?}") };
    u16::from_be_bytes([bytes[0], bytes[1]])
}

#[test]
fn a_port_that_another_association_has_is_not_taken_from_it() {
    let Some(node) = node("SCTP port clash", &[(2, 1)]) else { return };
    for case in CASES {
        let [first, second] = rivals(&node, case);
        node.send(Hook::NicIn, Device::Eth0, &first).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        for (hook, verdict) in [(Hook::Xdp, XDP_DROP), (Hook::NicIn, TC_SHOT)] {
            let outcome = node.send(hook, Device::Eth0, &second);
            outcome.is_untouched(verdict, abi::REASON_FLOW_TABLE, &second.to_bytes());
        }
        node.send(Hook::NicIn, Device::Eth0, &chunk(&first, SCTP_DATA)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
    }
}

#[test]
fn an_association_whose_port_one_endpoint_knows_of_another_client_goes_to_the_next_one() {
    let Some(node) = node("SCTP port clash beside a free endpoint", &[(2, 1), (2, 2)]) else { return };
    for case in CASES {
        // Some two of them are chosen for the same endpoint.
        for _ in 0..16 {
            let seen = rivals(&node, case).map(|init| {
                let outcome = node.send(Hook::NicIn, Device::Eth0, &init);
                outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
                node.send(Hook::NicIn, Device::Eth0, &chunk(&init, SCTP_DATA))
                    .is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
                outcome.packet()
            });
            assert_ne!(seen[0].destination, seen[1].destination);
        }
        let backends = (0..8).map(|slot| node.view.backend_counters(slot).unwrap());
        let (began, open) = backends.fold((0, 0), |(began, open), of| (began + of.flows, open + of.balance));
        assert_eq!(open, if case.family == Family::V4 { 32 } else { 64 }, "of {began} that were chosen for");
    }
}

#[test]
fn the_port_of_an_association_that_ended_is_used_again() {
    let Some(node) = node("SCTP port of an ended association", &[(2, 1)]) else { return };
    for case in CASES {
        for end in [SCTP_ABORT, SCTP_SHUTDOWN_COMPLETE] {
            let [first, second] = rivals(&node, case);
            for packet in [first.clone(), chunk(&first, end), second] {
                node.send(Hook::NicIn, Device::Eth0, &packet).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            }
        }
    }
}

/// Of one that nobody has answered it is for as long as an answer to the INIT is awaited.
#[test]
fn the_port_of_an_association_that_is_idle_both_ways_is_used_again() {
    let Some(node) = node("SCTP port of an idle association", &[(2, 1)]) else { return };
    for (case, (answered, idle)) in
        CASES.into_iter().flat_map(|case| [(case, (false, abi::OPENING_IDLE)), (case, (true, 7200))])
    {
        let [first, second] = rivals(&node, case);
        let (flows, replies) = if case.family == Family::V4 { ("flows4", "replies4") } else { ("flows6", "replies6") };
        node.send(Hook::NicIn, Device::Eth0, &first).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        if answered {
            let pod = case.at(address::pod(2, 1), PORT);
            let agreed = sctp(pod, case.at(address::node(1), source_port(&first)), SCTP_INIT_ACK);
            node.send(Hook::NicIn, Device::Eth0, &agreed).is_for(TC_REDIRECT, abi::REASON_BACK);
            node.send(Hook::NicIn, Device::Eth0, &chunk(&first, SCTP_DATA)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        }
        age(&node, flows, offset_of!(abi::Flow, last_seen), idle + 1);
        node.send(Hook::NicIn, Device::Eth0, &second).is_for(TC_SHOT, abi::REASON_FLOW_TABLE);
        age(&node, replies, offset_of!(abi::Reply, last_seen), idle + 1);
        node.send(Hook::NicIn, Device::Eth0, &second).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
    }
}

#[test]
fn an_association_stays_with_its_backend_until_it_ends() {
    let Some(mut node) = node("SCTP stays", &[(1, 1)]) else { return };
    for case in CASES {
        node.serve(service(), &[(1, 1)]);
        let init = opens(&node, case, CLIENT, CLUSTER_IP);
        let to = |node: &Node, packet: &Packet| node.send(Hook::NicIn, Device::Eth0, packet).packet().destination;
        let (old, new) = (case.ip(address::pod(1, 1)), case.ip(address::pod(1, 2)));
        assert_eq!(to(&node, &init), old);
        node.serve_draining(service(), &[(1, 2)], &[(1, 1)]);
        assert_eq!(to(&node, &chunk(&init, SCTP_DATA)), old);
        assert_eq!(to(&node, &init), old, "INIT again");
        assert_eq!(to(&node, &chunk(&init, SCTP_SHUTDOWN_COMPLETE)), old);
        assert_eq!(to(&node, &init), new, "a new association");
    }
}

/// Anybody may send its first packet in a client's name; and the endpoint that has answered is the one to keep.
#[test]
fn a_client_keeps_the_endpoint_of_its_association_when_that_goes_on() {
    let Some(mut node) = node("affinity of SCTP", &[]) else { return };
    node.serve(Service { affinity: Some(600), ..service() }, &[(1, 1), (1, 2), (1, 3), (1, 4)]);
    for case in CASES {
        let init = opens(&node, case, CLIENT, CLUSTER_IP);
        let seen = node.send(Hook::NicIn, Device::Eth0, &init).packet();
        assert_eq!(node.view.affinities().unwrap().len(), 0, "{case:?}");
        let agreed = chunk(&answer(&seen), SCTP_INIT_ACK);
        node.send(Hook::NicOut, Device::Eth0, &agreed).is_for(TC_UNSPEC, abi::REASON_BACK);
        assert_eq!(
            node.send(Hook::NicIn, Device::Eth0, &chunk(&init, SCTP_DATA)).packet().destination,
            seen.destination
        );
        assert_eq!(node.view.affinities().unwrap().len(), 1, "{case:?}");
        for _ in 0..16 {
            let next = opens(&node, case, CLIENT, CLUSTER_IP);
            assert_eq!(node.send(Hook::NicIn, Device::Eth0, &next).packet().destination, seen.destination);
        }
        evict(&node, "affinities");
    }
}

#[test]
fn what_cannot_be_served_is_dropped_as_no_abort_can_be_made() {
    let Some(node) = node("SCTP refused", &[]) else { return };
    for case in CASES {
        let unused = sctp(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT + 1), SCTP_INIT);
        for (sent, reason) in [
            (opens(&node, case, CLIENT, CLUSTER_IP), abi::REASON_NO_ENDPOINTS),
            (opens(&node, case, CLIENT, BALANCER_IP), abi::REASON_NO_ENDPOINTS),
            (unused, abi::REASON_UNUSED_PORT),
        ] {
            let frame = sent.to_bytes();
            node.send(Hook::Xdp, Device::Eth0, &sent).is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &frame);
            for hook in [Hook::NicIn, Hook::PodIn] {
                node.send(hook, Device::Eth0, &sent).is_untouched(TC_SHOT, reason, &frame);
            }
        }
    }
}

#[test]
fn sctp_of_others_passes() {
    let Some(node) = node("SCTP of others", &[(1, 1)]) else { return };
    for case in CASES {
        let sent = opens(&node, case, CLIENT, address::node(1));
        let frame = sent.to_bytes();
        for (hook, verdict) in LOCAL {
            node.send(hook, Device::Eth0, &sent).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
        }
        let mut short = opens(&node, case, CLIENT, CLUSTER_IP);
        let Transport::Other { bytes, .. } = &mut short.transport else { panic!("{short:?}") };
        bytes.truncate(12);
        let frame = short.to_bytes();
        for (hook, verdict) in LOCAL {
            node.send(hook, Device::Eth0, &short).is_untouched(verdict, abi::REASON_MALFORMED, &frame);
        }
    }
}

/// The checksum covers the ports, which nobody here can change; the node's address would get it past network policies.
#[test]
fn an_association_from_the_port_of_another_one_to_the_same_endpoint_gets_no_place() {
    let Some(node) = node("SCTP by two frontends", &[(1, 1)]) else { return };
    for case in CASES {
        let client = case.at(CLIENT, node.client_port());
        let to = |frontend| sctp(client, case.at(frontend, PORT), SCTP_INIT);
        node.send(Hook::NicIn, Device::Eth0, &to(CLUSTER_IP)).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        node.send(Hook::NicIn, Device::Eth0, &to(BALANCER_IP)).is_for(TC_SHOT, abi::REASON_FLOW_TABLE);
    }
}
