//! Direct server return, at the node that a client comes to: what goes wrapped to another node, as it is, and what does not.

use std::mem::offset_of;
use std::net::IpAddr;
use std::time::Duration;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Packet, Transport};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT, cases, tcp};
use crate::entries::age;
use crate::icmp::{self, ROUTER, assert_told};
use crate::network::nic;
use crate::node::{
    Device, ETH0_MAC, ETH1_MAC, NODE2_MAC, NODE3_MAC, Node, TC_REDIRECT, TC_UNSPEC, XDP_PASS, XDP_REDIRECT, XDP_TX, web,
};
use crate::talk::wait;

/// Both ends that send to another node, with what they answer the kernel for one on the same device.
const HOOKS: [(Hook, u32); 2] = [(Hook::Xdp, XDP_TX), (Hook::NicIn, TC_REDIRECT)];

/// Bytes of the header that is put around a packet.
pub(crate) const fn wrapper(family: Family) -> usize {
    match family {
        Family::V4 => 20,
        Family::V6 => 40,
    }
}

/// A packet with another one in it, as one node sends it to an endpoint of the next.
pub(crate) fn wrapped(from: IpAddr, to: IpAddr, inner: &Packet) -> Packet {
    let protocol = if from.is_ipv4() { 4 } else { 41 };
    let outer = Packet::new(from, to, Transport::Other { protocol, bytes: inner.ip_bytes() });
    Packet { identification: 0, traffic_class: inner.traffic_class & !3, ..outer }
}

/// What goes to a pod of another node: the packet as it was sent, a hop older.
pub(crate) fn as_it_is(case: Case, sent: &Packet, pod: (u8, u8)) -> Packet {
    let inner = Packet { ttl: sent.ttl - 1, ..sent.clone() };
    let (from, to) = (case.ip(address::node(1)), case.ip(address::pod(pod.0, pod.1)));
    let Packet { source_mac, destination_mac, .. } = sent.clone();
    Packet { source_mac, destination_mac, ..wrapped(from, to, &inner) }
}

fn first(node: &Node, case: Case, frontend: Pair, port: u16) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(frontend, port))
}

/// The next packet of a client.
pub(crate) fn later(case: Case, first: &Packet) -> Packet {
    case.later(first.source_socket(), first.destination_socket())
}

/// A node that serves a pod of another one, which answers clients itself.
fn serving(what: &str, pods: &[(u8, u8)]) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), pods);
    let nodes: Vec<u8> = pods.iter().map(|(node, _)| *node).collect();
    node.direct(&nodes);
    Some(node)
}

#[test]
fn what_a_client_sends_to_any_frontend_goes_as_it_is_to_a_node_that_takes_it_so() {
    let Some(node) = serving("wrapped packets", &[(2, 1)]) else { return };
    for case in CASES {
        for (frontend, port) in
            [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (BALANCER_IP, PORT), (EXTERNAL_IP, PORT)]
        {
            for (hook, verdict) in HOOKS {
                let sent = Packet { traffic_class: 0xbb, ..first(&node, case, frontend, port) };
                for sent in [sent.clone(), later(case, &sent)] {
                    let mut expected = as_it_is(case, &sent, (2, 1));
                    if hook == Hook::Xdp {
                        (expected.source_mac, expected.destination_mac) = (ETH0_MAC, NODE2_MAC);
                    }
                    node.send(hook, Device::Eth0, &sent).is(verdict, abi::REASON_DIRECT, &expected);
                }
            }
        }
    }
    assert_eq!(node.view.replies4().unwrap().len() + node.view.replies6().unwrap().len(), 0, "nothing comes back here");
}

#[test]
fn xdp_redirects_wrapped_packets_to_a_node_behind_another_device_and_leaves_those_without_a_neighbour_to_tc() {
    let Some(mut node) = serving("wrapped packets on another device", &[(3, 1)]) else { return };
    for case in CASES {
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        let mut expected = as_it_is(case, &sent, (3, 1));
        (expected.source_mac, expected.destination_mac) = (ETH1_MAC, NODE3_MAC);
        node.send(Hook::Xdp, Device::Eth0, &sent).is(XDP_REDIRECT, abi::REASON_DIRECT, &expected);
    }
    node.serve(web(), &[(5, 1)]);
    node.direct(&[5]);
    for case in CASES {
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
        outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
        let expected = as_it_is(case, &sent, (5, 1));
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_REDIRECT, abi::REASON_DIRECT, &expected);
    }
}

#[test]
fn a_flow_keeps_the_way_that_it_began_on_when_the_node_takes_no_more_or_begins_to() {
    let Some(mut node) = serving("the way of a flow", &[(2, 1)]) else { return };
    for case in CASES {
        for (hook, _) in HOOKS {
            node.direct(&[2]);
            let wrapped = first(&node, case, EXTERNAL_IP, PORT);
            assert_eq!(node.send(hook, Device::Eth0, &wrapped).reason, abi::REASON_DIRECT);
            node.direct(&[]);
            let translated = first(&node, case, EXTERNAL_IP, PORT);
            for (first, reason) in [(&wrapped, abi::REASON_DIRECT), (&translated, abi::REASON_TO_REMOTE)] {
                assert_eq!(node.send(hook, Device::Eth0, &later(case, first)).reason, reason, "{case:?} at {hook}");
            }
            node.direct(&[2]);
            assert_eq!(node.send(hook, Device::Eth0, &later(case, &translated)).reason, abi::REASON_TO_REMOTE);
        }
    }
}

#[test]
fn clients_that_are_nodes_and_endpoints_behind_a_tunnel_are_reached_in_this_nodes_name() {
    let Some(mut node) = serving("no wrapped packets", &[(2, 1)]) else { return };
    for case in CASES {
        for (hook, verdict) in HOOKS {
            let sent = case.first(case.at(address::node(3), node.client_port()), case.at(EXTERNAL_IP, PORT));
            node.send(hook, Device::Eth0, &sent).is_for(verdict, abi::REASON_TO_REMOTE);
        }
    }
    // By eth2, which is no interface of the node for clients and nodes, but as good as a tunnel.
    node.serve(web(), &[(4, 1)]);
    node.direct(&[4]);
    for case in CASES {
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
    }
    // Pods keep their address anyway.
    for case in CASES {
        let sent = case.first(case.at(address::pod(1, 1), node.client_port()), case.at(EXTERNAL_IP, PORT));
        node.send(Hook::PodIn, Device::Pod1, &sent).is_for(TC_UNSPEC, abi::REASON_TO_REMOTE);
    }
}

#[test]
fn a_syn_that_comes_again_goes_where_the_first_one_went_and_nobody_is_counted_as_silent() {
    let Some(node) = serving("SYNs that come again, wrapped", &[(2, 1), (2, 2), (2, 3)]) else { return };
    for case in cases(Protocol::Tcp) {
        for (hook, verdict) in HOOKS {
            let sent = first(&node, case, EXTERNAL_IP, PORT);
            let seen = node.send(hook, Device::Eth0, &sent).packet();
            let flow = node.flow_of(&sent);
            for _ in 0..4 {
                // Of a flow whose answers come by here it would be one that nobody has answered.
                wait(&node, case, Duration::from_secs(1));
                node.send(hook, Device::Eth0, &sent).is(verdict, abi::REASON_DIRECT, &seen);
            }
            let counters = node.view.backend_counters(flow.backend).unwrap();
            assert_eq!((counters.unanswered, counters.refused, counters.answered), (0, 0, 0));
        }
    }
}

#[test]
fn a_flow_goes_on_when_its_client_does_and_ends_when_its_client_says_so() {
    let Some(node) = serving("the life of a wrapped flow", &[(2, 1)]) else { return };
    for case in cases(Protocol::Tcp) {
        for (hook, _) in HOOKS {
            let sent = first(&node, case, EXTERNAL_IP, PORT);
            node.send(hook, Device::Eth0, &sent);
            let flow = node.flow_of(&sent);
            assert_eq!(flow.flags & (abi::FLOW_OPENING | abi::FLOW_DIRECT), abi::FLOW_OPENING | abi::FLOW_DIRECT);
            let open = node.view.backend_counters(flow.backend).unwrap().balance;
            for still_begins in [true, false] {
                node.send(hook, Device::Eth0, &later(case, &sent));
                assert_eq!(node.flow_of(&sent).flags & abi::FLOW_OPENING != 0, still_begins);
            }
            let header = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
            let fin = tcp(sent.source_socket(), sent.destination_socket(), header);
            assert_eq!(node.send(hook, Device::Eth0, &fin).reason, abi::REASON_DIRECT);
            assert_eq!(node.flow_of(&sent).flags & abi::FLOW_ENDED, abi::FLOW_ENDED);
            assert_eq!(open - node.view.backend_counters(flow.backend).unwrap().balance, 1);
            node.send(hook, Device::Eth0, &sent);
            assert_eq!(node.flow_of(&sent).flags & (abi::FLOW_ENDED | abi::FLOW_OPENING), abi::FLOW_OPENING);
        }
    }
}

#[test]
fn a_wrapped_flow_whose_client_has_closed_its_direction_goes_on_as_long_as_that_acknowledges_what_it_gets() {
    let Some(node) = serving("downloads of wrapped flows", &[(2, 1)]) else { return };
    for case in cases(Protocol::Tcp) {
        for (hook, _) in HOOKS {
            let sent = first(&node, case, EXTERNAL_IP, PORT);
            let header = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
            let fin = tcp(sent.source_socket(), sent.destination_socket(), header);
            let acknowledge =
                || assert_eq!(node.send(hook, Device::Eth0, &later(case, &sent)).reason, abi::REASON_DIRECT);
            node.send(hook, Device::Eth0, &sent);
            acknowledge();
            acknowledge();
            let slot = node.flow_of(&sent).backend;
            let open = || {
                let abi::BackendCounters { balance, going, gone_on, .. } = node.view.backend_counters(slot).unwrap();
                (balance, going, gone_on)
            };
            let before = open();
            for _ in 0..2 {
                node.send(hook, Device::Eth0, &fin);
                // It may be the last one of all.
                acknowledge();
                let flags = node.flow_of(&sent).flags;
                assert_eq!(flags & (abi::FLOW_ENDED | abi::FLOW_OPENING), abi::FLOW_ENDED | abi::FLOW_OPENING);
                assert_eq!(open(), (before.0 - 1, before.1 - 1, before.2));
                let flows = if case.family == Family::V4 { "flows4" } else { "flows6" };
                age(&node, flows, offset_of!(abi::Flow, last_seen), 1);
                acknowledge();
                let flags = node.flow_of(&sent).flags;
                assert_eq!(flags & (abi::FLOW_ENDED | abi::FLOW_OPENING), 0, "{case:?} at {hook}");
                assert_eq!(before, open(), "it goes on, and counts once");
            }
            // A SYN from its port is that of another connection.
            node.send(hook, Device::Eth0, &sent);
            assert_eq!(node.flow_of(&sent).flags & (abi::FLOW_CLOSING | abi::FLOW_OPENING), abi::FLOW_OPENING);
        }
    }
}

#[test]
fn a_wrapped_flow_of_which_the_clients_end_is_seen_first_has_ended_and_is_counted_once() {
    let Some(node) = serving("wrapped flows that begin with their end", &[(2, 1)]) else { return };
    for case in cases(Protocol::Tcp) {
        for (hook, _) in HOOKS {
            let begun = first(&node, case, EXTERNAL_IP, PORT);
            let header = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
            let fin = tcp(begun.source_socket(), begun.destination_socket(), header);
            let open = || node.view.backend_counters(node.flow_of(&fin).backend).unwrap().balance;
            node.send(hook, Device::Eth0, &fin);
            assert_eq!(node.flow_of(&fin).flags & abi::FLOW_ENDED, abi::FLOW_ENDED, "{case:?} at {hook}");
            assert_eq!(open(), 0, "{case:?} at {hook}");
            node.send(hook, Device::Eth0, &fin);
            assert_eq!(open(), 0, "sent again: {case:?} at {hook}");
        }
    }
}

/// A packet with so many bytes of IP.
fn sized(case: Case, length: usize, from: &Packet) -> Packet {
    let headers = wrapper(case.family) + if case.protocol == Protocol::Udp { 8 } else { 20 };
    let payload = vec![0x5a; length - headers];
    let (from, to) = (from.source_socket(), from.destination_socket());
    match case.protocol {
        Protocol::Udp => Packet::udp(from, to, &payload),
        Protocol::Tcp | Protocol::Sctp => {
            Packet::tcp(from, to, TcpHeader { ack: true, ..TcpHeader::default() }, &payload)
        }
    }
}

#[test]
fn a_packet_that_does_not_fit_with_its_wrapper_tells_its_sender_what_does() {
    let Some(node) = serving("wrapped packets that are too big", &[(2, 1)]) else { return };
    node.refuses();
    for case in CASES {
        let fits = 1500 - wrapper(case.family);
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        for (hook, verdict) in HOOKS {
            node.send(hook, Device::Eth0, &sent).is_for(verdict, abi::REASON_DIRECT);
            let outcome = node.send(hook, Device::Eth0, &sized(case, fits, &sent));
            assert_eq!((outcome.reason, outcome.frame.len()), (abi::REASON_DIRECT, 14 + 1500));
        }
        let large = sized(case, fits + 1, &sent);
        let outcome = node.send(Hook::Xdp, Device::Eth0, &large);
        outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &large.to_bytes());
        let outcome = node.send(Hook::NicIn, Device::Eth0, &large);
        outcome.is_for(TC_REDIRECT, abi::REASON_TOO_BIG_TOLD);
        let told = outcome.packet();
        assert_eq!((told.source, told.destination), (sent.destination, sent.source));
        let Transport::Icmp { rest, .. } = told.transport else { panic!("{outcome:?}") };
        assert_eq!(u32::from_be_bytes(rest) as usize, fits);
    }
}

#[test]
fn where_what_every_sender_may_send_does_not_fit_with_its_wrapper_a_flow_goes_in_this_nodes_name() {
    let Some(node) = serving("ways that are too narrow for wrapped packets", &[(3, 1)]) else { return };
    for (mtu, goes_direct) in [(1319, false), (1320, true)] {
        for (net, gateway) in address::pod_cidrs(3).into_iter().zip(nic(1, 13).both()) {
            node.netns.ip(&format!("route replace {net} via {gateway} mtu lock {mtu}")).unwrap();
        }
        for case in CASES {
            // By IPv4 whoever sends more is told what fits.
            let is_direct = goes_direct || case.family == Family::V4;
            let reason = if is_direct { abi::REASON_DIRECT } else { abi::REASON_TO_REMOTE };
            for (hook, verdict) in [(Hook::Xdp, XDP_REDIRECT), (Hook::NicIn, TC_REDIRECT)] {
                let sent = first(&node, case, EXTERNAL_IP, PORT);
                node.send(hook, Device::Eth0, &sent).is_for(verdict, reason);
                node.send(hook, Device::Eth0, &sized(case, 1280, &sent)).is_for(verdict, reason);
            }
        }
    }
}

#[test]
fn segments_are_measured_one_by_one() {
    let Some(node) = serving("wrapped segments", &[(2, 1)]) else { return };
    for case in cases(Protocol::Tcp) {
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_DIRECT);
        let headers = wrapper(case.family) + 20;
        let large = sized(case, 3000, &sent).to_bytes();
        let fits = 1500 - wrapper(case.family) - headers;
        for (segment, is_told) in [(fits, false), (fits + 1, true)] {
            let (_, moved) =
                node.run_counted(Hook::NicIn, Device::Eth0, &large, u32::try_from(segment).unwrap()).unwrap();
            // What fits goes no further in a test run, in which segments are of no protocol.
            let reason = if is_told { abi::REASON_TOO_BIG_TOLD } else { abi::REASON_REWRITE_FAILED };
            assert!(moved.iter().any(|(moved, _)| *moved == reason), "{moved:?} of segments of {segment}");
        }
    }
}

#[test]
fn all_pieces_of_a_datagram_are_wrapped_alike() {
    let Some(node) = serving("wrapped pieces", &[(2, 1)]) else { return };
    for case in CASES {
        let whole = crate::fragments::large(case, &node, CLIENT, EXTERNAL_IP);
        for piece in whole.cut(crate::fragments::PIECE) {
            let expected = as_it_is(case, &piece, (2, 1));
            node.send(Hook::NicIn, Device::Eth0, &piece).is(TC_REDIRECT, abi::REASON_DIRECT, &expected);
        }
    }
}

#[test]
fn an_error_about_an_endpoints_own_answer_reaches_it_in_this_nodes_name() {
    let Some(node) = serving("ICMP errors about answers that do not come by", &[(2, 1)]) else { return };
    for case in CASES {
        for (frontend, port) in [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT)] {
            let sent = first(&node, case, frontend, port);
            node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_DIRECT);
            let answer = |from| case.later(from, sent.source_socket());
            let told = icmp::error(case, case.ip(ROUTER), &answer(sent.destination_socket()));
            let outcome = node.send(Hook::NicIn, Device::Eth0, &told);
            outcome.is_for(TC_REDIRECT, abi::REASON_ERROR_TOLD);
            let sent_by_the_pod = answer(case.at(address::pod(2, 1), TARGET_PORT));
            assert_told(&outcome.packet(), case.ip(address::node(1)), &sent_by_the_pod);
            assert_eq!(outcome.packet().ttl, told.ttl - 1);
        }
    }
}
