//! A client that asks one endpoint from one port by two frontends: the second flow gets another port, as the endpoint could not tell it from the first.
//! The address stays, and the packet goes its usual way, so that network policies of this node see who asks.

use std::net::SocketAddr;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT, cases, tcp};
use crate::entries::evict;
use crate::icmp::{ROUTER, assert_told, error};
use crate::node::{Device, Node, TC_UNSPEC, XDP_PASS, web};

const NIC_IN: (Hook, Device) = (Hook::NicIn, Device::Eth0);
const NIC_OUT: (Hook, Device) = (Hook::NicOut, Device::Eth0);

/// The second flow of a client: its first packet as it was sent, and as the endpoint sees it.
struct Second {
    case: Case,
    client: SocketAddr,
    sent: Packet,
    seen: Packet,
}

impl Second {
    /// After a first one to the cluster IP.
    fn open(node: &Node, case: Case, (hook, device): (Hook, Device), client: Pair, to: (Pair, u16)) -> Self {
        let client = case.at(client, node.client_port());
        let first = case.first(client, case.at(CLUSTER_IP, PORT));
        assert_eq!(node.send(hook, device, &first).packet().source_socket(), client, "{case:?}");
        Self::open_beside(node, case, (hook, device), client, to)
    }

    fn open_beside(node: &Node, case: Case, at: (Hook, Device), client: SocketAddr, to: (Pair, u16)) -> Self {
        let sent = case.first(client, case.at(to.0, to.1));
        let outcome = node.send(at.0, at.1, &sent);
        assert_eq!(outcome.verdict, TC_UNSPEC, "{case:?}: the host sends it on");
        let second = Self { case, client, sent, seen: outcome.packet() };
        let from = second.from();
        assert!(from.ip() == client.ip() && from.port() >= 1024 && from != client, "{case:?}: {from}");
        second
    }

    /// Whom the endpoint sees.
    fn from(&self) -> SocketAddr {
        self.seen.source_socket()
    }

    /// What the endpoint answers, and what the client gets of it.
    fn answer(&self) -> [Packet; 2] {
        let answer = self.case.later(self.seen.destination_socket(), self.from());
        let got = answer.clone().with_source(self.sent.destination_socket()).with_destination(self.client);
        [answer, got]
    }
}

#[test]
fn one_client_port_to_one_backend_through_two_frontends_gets_two_ways_back() {
    let Some(mut node) = Node::new("two frontends, one backend") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for frontend in [(BALANCER_IP, PORT), (EXTERNAL_IP, PORT), (address::node(1), NODE_PORT)] {
            let second = Second::open(&node, case, NIC_IN, CLIENT, frontend);
            let endpoint = case.at(address::pod(1, 1), TARGET_PORT);
            let expected = second.sent.clone().with_source(second.from()).with_destination(endpoint);
            assert_eq!(second.seen.to_bytes(), expected.to_bytes(), "{case:?}");
            let [answer, got] = second.answer();
            node.send(NIC_OUT.0, NIC_OUT.1, &answer).is(TC_UNSPEC, abi::REASON_BACK, &got);
            // The first one's go on, too.
            let answer = case.later(endpoint, second.client);
            let got = answer.clone().with_source(case.at(CLUSTER_IP, PORT));
            node.send(NIC_OUT.0, NIC_OUT.1, &answer).is(TC_UNSPEC, abi::REASON_BACK, &got);
        }
    }
}

#[test]
fn a_pod_that_asks_an_endpoint_on_another_node_twice_keeps_its_address_too() {
    let Some(mut node) = Node::new("two frontends, one backend on another node") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let second = Second::open(&node, case, (Hook::PodIn, Device::Pod1), address::pod(1, 1), (BALANCER_IP, PORT));
        assert_eq!(second.seen.destination_socket(), case.at(address::pod(2, 1), TARGET_PORT));
        let [answer, got] = second.answer();
        node.send(Hook::PodOut, Device::Pod1, &answer).is(TC_UNSPEC, abi::REASON_BACK, &got);
    }
}

#[test]
fn xdp_leaves_its_packets_to_tc_which_goes_on_from_the_same_port() {
    let Some(mut node) = Node::new("two frontends, one backend, XDP") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let client = case.at(CLIENT, node.client_port());
        node.send(Hook::Xdp, Device::Eth0, &case.first(client, case.at(CLUSTER_IP, PORT)));
        let to = case.at(BALANCER_IP, PORT);
        let mut seen = Vec::new();
        for sent in [case.first(client, to), case.later(client, to)] {
            let left = node.send(Hook::Xdp, Device::Eth0, &sent);
            left.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
            let outcome = node.send(NIC_IN.0, NIC_IN.1, &sent);
            outcome.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
            seen.push(outcome.packet().source_socket());
        }
        assert!(seen[0] == seen[1] && seen[0] != client && seen[0].ip() == client.ip(), "{case:?}: {seen:?}");
    }
}

#[test]
fn a_connection_that_no_table_knows_any_more_gets_the_same_port_again() {
    let Some(mut node) = Node::new("other ports that were forgotten") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let before = Second::open(&node, case, NIC_IN, CLIENT, (BALANCER_IP, PORT));
        let tables = match case.family {
            Family::V4 => ["flows4", "replies4"],
            Family::V6 => ["flows6", "replies6"],
        };
        tables.iter().for_each(|map| evict(&node, map));
        node.send(NIC_IN.0, NIC_IN.1, &case.first(before.client, case.at(CLUSTER_IP, PORT)));
        let later = case.later(before.client, before.sent.destination_socket());
        let seen = node.send(NIC_IN.0, NIC_IN.1, &later).packet();
        assert_eq!(seen.source_socket(), before.from(), "{case:?}");
    }
}

#[test]
fn icmp_errors_about_it_are_told_to_each_side_as_that_side_knows_it() {
    let Some(mut node) = Node::new("ICMP errors about other ports") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let second = Second::open(&node, case, NIC_IN, CLIENT, (EXTERNAL_IP, PORT));
        let [answer, got] = second.answer();
        let outcome = node.send(NIC_IN.0, NIC_IN.1, &error(case, case.ip(ROUTER), &got));
        outcome.is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
        assert_told(&outcome.packet(), case.ip(ROUTER), &answer);
        let outcome = node.send(NIC_OUT.0, NIC_OUT.1, &error(case, case.ip(address::node(1)), &second.seen));
        outcome.is_for(TC_UNSPEC, abi::REASON_ERROR_TOLD);
        assert_told(&outcome.packet(), case.ip(EXTERNAL_IP), &second.sent);
    }
}

/// The next one from there would find its port taken by nobody.
#[test]
fn a_reset_of_either_side_ends_it() {
    let Some(mut node) = Node::new("resets of flows with other ports") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        for by_client in [true, false] {
            let second = Second::open(&node, case, NIC_IN, CLIENT, (BALANCER_IP, PORT));
            let ([answer, _], to) = (second.answer(), second.sent.destination_socket());
            let agreed = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
            let (endpoint, known) = (answer.source_socket(), answer.destination_socket());
            node.send(NIC_OUT.0, NIC_OUT.1, &tcp(endpoint, known, agreed));
            node.send(NIC_IN.0, NIC_IN.1, &case.later(second.client, to));
            let reset = TcpHeader { rst: true, ack: true, ..TcpHeader::default() };
            if by_client {
                node.send(NIC_IN.0, NIC_IN.1, &tcp(second.client, to, reset));
            } else {
                node.send(NIC_OUT.0, NIC_OUT.1, &tcp(endpoint, known, reset));
            }
            let flow = node.flow_of(&second.sent);
            assert_ne!(flow.flags & abi::FLOW_ENDED, 0, "{case:?}, by its client: {by_client}");
            let again = Second::open_beside(&node, case, NIC_IN, second.client, (BALANCER_IP, PORT));
            assert_eq!(again.from(), second.from(), "{case:?}");
        }
    }
}
