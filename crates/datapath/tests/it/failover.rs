//! A SYN that comes again without an answer goes to another backend: what a dead endpoint costs its clients is one
//! retransmission.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::net::SocketAddr;
use std::time::Duration;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service, ServicePort, TrafficPolicy};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::Packet;

use crate::case::{CLUSTER_IP, Case, EXTERNAL_IP, PORT, SCTP_INIT, SCTP_INIT_ACK, TARGET_PORT, cases, sctp, tcp};
use crate::entries::{age, evict};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, web};
use crate::talk::{NIC_IN, NIC_OUT, Talk, WAYS, Way, wait};

/// Clients send a SYN again after a second.
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// How often a SYN goes to another backend.
pub(crate) const RETRIES: u16 = abi::FLOW_RETRIES / abi::FLOW_RETRY;

/// The client's SYN comes again, so much later.
pub(crate) fn again<'a>(talk: &Talk<'a>) -> Talk<'a> {
    talk.wait(SECOND);
    Talk::open_with(talk.node, talk.case, talk.way, talk.first.clone())
}

fn syn_ack(seen: &Packet) -> Packet {
    let header = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
    tcp(seen.destination_socket(), seen.source_socket(), header)
}

pub(crate) fn open(node: &Node, case: Case, way: Way) -> Talk<'_> {
    Talk::open(node, case, way)
}

#[test]
fn a_syn_that_comes_again_goes_to_another_backend_and_late_answers_of_the_first_are_dropped() {
    let Some(mut node) = Node::new("SYNs that come again") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            let endpoints = [way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)];
            node.serve(web(), &endpoints);
            let dead = open(&node, case, way);
            let alive = again(&dead);
            assert_ne!(alive.seen.destination, dead.seen.destination, "{way:?}");

            let late = node.send(way.back.0, way.back.1, &syn_ack(&dead.seen));
            let dropped = if way.back.0 == Hook::Xdp { XDP_DROP } else { TC_SHOT };
            late.is_for(dropped, abi::REASON_STALE);
            let answer = node.send(way.back.0, way.back.1, &syn_ack(&alive.seen));
            assert_eq!(answer.reason, abi::REASON_BACK);
            assert_eq!(answer.packet().source_socket(), case.at(CLUSTER_IP, PORT));
            let seen =
                node.send(way.to.0, way.to.1, &case.later(dead.first.source_socket(), case.at(CLUSTER_IP, PORT)));
            assert_eq!(seen.packet().destination, alive.seen.destination, "the connection goes on there");
        }
    }
}

#[test]
fn each_backend_that_did_not_answer_has_it_counted_once_and_the_next_one_gets_a_new_flow() {
    let Some(mut node) = Node::new("counters of SYNs that come again") else { return };
    node.serve(web(), &[(1, 1), (1, 2)]);
    for case in cases(Protocol::Tcp) {
        let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
        let dead = open(&node, case, way);
        let (slot, before) = (dead.flow().backend, dead.counters());
        let alive = again(&dead);
        let after = node.view.backend_counters(slot).unwrap();
        assert_eq!((after.unanswered - before.unanswered, after.flows - before.flows), (1, 0));
        assert_ne!(alive.flow().backend, slot);
        assert_eq!(alive.flow().flags & abi::FLOW_RETRIES, abi::FLOW_RETRY);
    }
}

#[test]
fn a_flow_that_the_answer_to_its_syn_brings_back_has_gone_to_another_backend_as_often_as_before() {
    let Some(mut node) = Node::new("SYNs that come again, whose flow has lost its place") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            let endpoints = [way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)];
            node.serve(web(), &endpoints);
            let alive = again(&open(&node, case, way));
            let slot = alive.flow().backend;
            evict(&node, alive.flows());
            alive.accept();
            let flow = alive.flow();
            assert_eq!((flow.backend, flow.flags & abi::FLOW_RETRIES), (slot, abi::FLOW_RETRY), "{way:?}");
        }
    }
}

#[test]
fn the_only_endpoint_on_the_node_is_left_for_one_on_another_node_where_the_policy_allows_it() {
    let Some(mut node) = Node::new("SYNs that leave the node") else { return };
    let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
    for case in cases(Protocol::Tcp) {
        node.serve(web(), &[(1, 1), (2, 1)]);
        let dead = open(&node, case, way);
        assert_eq!(dead.seen.destination, case.ip(address::pod(1, 1)), "local first");
        dead.wait(SECOND);
        let outcome = node.send(Hook::NicIn, Device::Eth0, &dead.first);
        outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        assert_eq!(outcome.packet().destination_socket(), case.at(address::pod(2, 1), TARGET_PORT));

        node.serve(Service { external_policy: TrafficPolicy::Local, ..web() }, &[(1, 1), (2, 1)]);
        let to = case.at(EXTERNAL_IP, PORT);
        let first = case.first(case.at(CLIENT, node.client_port()), to);
        let dead = Talk::open_with(&node, case, way, first);
        assert_eq!(again(&dead).seen.destination, case.ip(address::pod(1, 1)));
    }
}

#[test]
fn a_syn_that_nobody_answers_is_refused_in_the_end_and_may_begin_anew() {
    let Some(mut node) = Node::new("SYNs that nobody answers") else { return };
    node.refuses();
    node.serve(web(), &[(1, 1), (1, 2), (1, 3)]);
    for case in cases(Protocol::Tcp) {
        let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
        let mut talk = open(&node, case, way);
        for _ in 0..RETRIES {
            let next = again(&talk);
            assert_ne!(next.seen.destination, talk.seen.destination);
            talk = next;
        }
        talk.wait(SECOND);
        let xdp = node.send(Hook::Xdp, Device::Eth0, &talk.first);
        xdp.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &talk.first.to_bytes());
        let refusal = node.send(Hook::NicIn, Device::Eth0, &talk.first);
        refusal.is_for(TC_REDIRECT, abi::REASON_UNANSWERED);
        let (from, to) = (talk.first.destination_socket(), talk.first.source_socket());
        assert_eq!(ends(&refusal.packet()), (from, to));
        node.send(Hook::NicIn, Device::Eth0, &talk.first).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        assert_eq!(talk.flow().flags & abi::FLOW_RETRIES, 0);
    }
}

/// A connection that went on and is idle, and then a SYN from the same port: its client has begun anew without a word.
fn begin_anew<'a>(node: &'a Node, case: Case, way: Way) -> Talk<'a> {
    let before = open(node, case, way);
    before.accept();
    before.client_goes_on();
    be_silent(&before);
    let next = Talk::open_with(node, case, way, before.first.clone());
    assert_eq!(next.seen.destination, before.seen.destination, "its endpoint tells whether it still knows of it");
    next
}

/// The endpoint says nothing for longer than it may limit what it says.
fn be_silent(talk: &Talk<'_>) {
    age(talk.node, talk.replies(), offset_of!(abi::Reply, last_seen), 2);
}

#[test]
fn an_endpoint_that_limits_what_it_says_to_syns_keeps_its_connection() {
    let Some(mut node) = Node::new("SYNs in the name of a client whose connection is idle") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve(web(), &[way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)]);
            let talk = begin_anew(&node, case, way);
            let before = talk.counters();
            for _ in 0..3 {
                // The second of these SYNs comes too soon after the answer to the first one: nothing is said (tcp_invalid_ratelimit).
                talk.endpoint_sends(&talk.endpoint_tcp(TcpHeader { ack: true, ..TcpHeader::default() }));
                talk.wait(SECOND / 3);
                let unheard = Talk::open_with(&node, case, way, talk.first.clone());
                talk.wait(SECOND);
                let next = Talk::open_with(&node, case, way, talk.first.clone());
                for asked in [unheard, next] {
                    assert_eq!(asked.seen.destination, talk.seen.destination, "{way:?}");
                }
            }
            assert_eq!(talk.counters().unanswered, before.unanswered);
        }
    }
}

#[test]
fn a_syn_that_closes_at_once_tells_nothing_of_endpoints_which_do_not_answer_it() {
    let Some(mut node) = Node::new("SYNs with FIN") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve_anew(web(), &[way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)]);
            let client = case.at(way.client, node.client_port());
            let header = TcpHeader { syn: true, fin: true, ..TcpHeader::default() };
            let first = Talk::open_with(&node, case, way, tcp(client, case.at(CLUSTER_IP, PORT), header));
            let next = again(&first);
            assert_eq!(next.seen.destination, first.seen.destination, "{way:?}");
            let counters = next.counters();
            assert_eq!((counters.unanswered, counters.answered), (0, 0));
        }
    }
}

#[test]
fn a_syn_whose_way_ends_here_tells_nothing_of_the_endpoint_that_it_was_for() {
    let Some(mut node) = Node::new("SYNs at the end of their way") else { return };
    node.refuses();
    node.serve(web(), &[(2, 1), (2, 2)]);
    for case in cases(Protocol::Tcp) {
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        let sent = Packet { ttl: 1, ..case.first(from, to) };
        let mut flows = (0..2).map(|_| {
            assert_ne!(node.send(Hook::NicIn, Device::Eth0, &sent).reason, abi::REASON_TO_REMOTE);
            wait(&node, case, SECOND);
            node.flow_of(&sent).backend
        });
        let (first, next) = (flows.next().unwrap(), flows.next().unwrap());
        assert_eq!(first, next);
        assert_eq!(node.view.backend_counters(first).unwrap().unanswered, 0);
    }
}

/// A host says nothing to a SYN with a wrong checksum, or with an option that it does not expect, whoever has sent it.
#[test]
fn a_connection_that_goes_on_is_not_taken_from_its_endpoint_by_syns_that_it_says_nothing_to() {
    let Some(mut node) = Node::new("SYNs in the name of a client, that nobody answers") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve(web(), &[way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)]);
            let mut talk = begin_anew(&node, case, way);
            let before = talk.counters();
            for _ in 0..4 {
                let next = again(&talk);
                assert_eq!(next.seen.destination, talk.seen.destination, "{way:?}");
                talk = next;
            }
            talk.endpoint_goes_on();
            talk.client_goes_on();
            let after = talk.counters();
            assert_eq!((after.balance, after.unanswered), (before.balance, before.unanswered), "{way:?}");
        }
    }
}

/// Somebody is half-open there from the same port, and is told what it has sent already.
#[test]
fn who_took_over_counts_against_the_silent_one_only_once_it_has_agreed_to_a_connection() {
    let Some(mut node) = Node::new("endpoints that say something else") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve_anew(web(), &[way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)]);
            for agrees in [false, true] {
                let silent = open(&node, case, way);
                let (left, before) = (silent.flow().backend, silent.counters().failed_over);
                let next = again(&silent);
                let ack = TcpHeader { syn: agrees, ack: true, ..TcpHeader::default() };
                next.endpoint_sends(&next.endpoint_tcp(ack));
                next.client_goes_on();
                let failed = node.view.backend_counters(left).unwrap().failed_over - before;
                assert_eq!(failed, u32::from(agrees), "{way:?}");
            }
        }
    }
}

#[test]
fn an_endpoint_that_says_anything_keeps_its_connection() {
    let Some(mut node) = Node::new("SYNs for connections that go on") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve(web(), &[way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)]);
            let mut talk = begin_anew(&node, case, way);
            let before = talk.counters();
            for _ in 0..3 {
                // RFC 5961, 4: a SYN in the middle of a connection is asked about.
                talk.endpoint_sends(&talk.endpoint_tcp(TcpHeader { ack: true, ..TcpHeader::default() }));
                let asked = Talk::open_with(&node, case, way, talk.first.clone());
                assert_eq!(asked.seen.destination, talk.seen.destination, "{way:?}");
                talk = asked;
            }
            let after = talk.counters();
            assert_eq!((after.answered, after.unanswered), (before.answered, before.unanswered));
        }
    }
}

#[test]
fn an_endpoint_that_knows_of_somebody_before_at_the_port_gets_the_syn_again() {
    let Some(mut node) = Node::new("SYNs that an earlier connection answers") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve(web(), &[way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)]);
            let talk = open(&node, case, way);
            talk.wait(SECOND);
            // RFC 9293, 3.10.7.4: it asks about the SYN, and 3.10.7.3: the client resets what it does not know.
            talk.endpoint_sends(&talk.endpoint_tcp(TcpHeader { ack: true, ..TcpHeader::default() }));
            talk.client_sends(&talk.client_tcp(TcpHeader { rst: true, ..TcpHeader::default() }));
            let asked = Talk::open_with(&node, case, way, talk.first.clone());
            assert_eq!(ends(&asked.seen), ends(&talk.seen), "{way:?}");
            asked.accept();
            asked.client_goes_on();
        }
    }
}

fn ends(packet: &Packet) -> (SocketAddr, SocketAddr) {
    (packet.source_socket(), packet.destination_socket())
}

#[test]
fn where_there_is_one_endpoint_it_is_asked_for_ever() {
    let Some(mut node) = Node::new("SYNs to the only endpoint") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve(web(), &[way.endpoint]);
            let mut talk = open(&node, case, way);
            let flows = talk.counters().flows;
            for _ in 0..=2 * RETRIES {
                talk = again(&talk);
                assert_eq!(talk.seen.destination, case.ip(address::pod(way.endpoint.0, way.endpoint.1)));
            }
            assert_eq!(talk.counters().flows, flows, "it is one flow");
            talk.accept();
        }
    }
}

#[test]
fn every_other_endpoint_has_its_chance_in_either_tier() {
    let Some(mut node) = Node::new("where SYNs that come again go") else { return };
    let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
    for case in cases(Protocol::Tcp) {
        for endpoints in [vec![(1, 1), (1, 2), (1, 3)], vec![(1, 1), (1, 2), (2, 1)], vec![(1, 1), (2, 1), (2, 2)]] {
            node.serve(web(), &endpoints);
            // Of so many clients all miss one with a chance of less than one in a million.
            let firsts: Vec<_> = (0..64).map(|_| open(&node, case, way)).collect();
            wait(&node, case, SECOND);
            let mut second = BTreeMap::<_, BTreeSet<_>>::new();
            for first in firsts {
                let again = node.send(Hook::NicIn, Device::Eth0, &first.first).packet();
                second.entry(first.seen.destination).or_default().insert(again.destination);
            }
            let all: BTreeSet<_> = endpoints.iter().map(|(node, pod)| case.ip(address::pod(*node, *pod))).collect();
            for (first, then) in second {
                let others: BTreeSet<_> = all.iter().copied().filter(|other| *other != first).collect();
                assert_eq!(then, others, "after {first} of {endpoints:?}");
            }
        }
    }
}

/// An association keeps its client's port, so another client may have the only one that there is at the other backend.
#[test]
fn a_flow_that_no_other_backend_can_have_stays_with_its_own() {
    let Some(mut node) = Node::new("SCTP that comes again") else { return };
    let port = ServicePort { name: "sctp".into(), protocol: Protocol::Sctp, port: PORT, node_port: None };
    node.serve(Service { ports: vec![port], ..web() }, &[(2, 1), (2, 2)]);
    for family in [Family::V4, Family::V6] {
        let case = Case { family, protocol: Protocol::Sctp };
        let client_port = node.client_port();
        let init = |client| {
            let sent = sctp(case.at(client, client_port), case.at(CLUSTER_IP, PORT), SCTP_INIT);
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            (sent, outcome)
        };
        let (sent, outcome) = init(CLIENT);
        let first = outcome.packet().destination;
        let taken = (5..=40u8).any(|n| {
            let (_, outcome) = init(address::node(n));
            outcome.reason == abi::REASON_TO_REMOTE && outcome.packet().destination != first
        });
        assert!(taken, "a client of 36 is sent to the other backend");
        for _ in 0..3 {
            wait(&node, case, SECOND);
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            assert_eq!(outcome.packet().destination, first);
        }
        let pod = SocketAddr::new(first, PORT);
        let answer = sctp(pod, case.at(address::node(1), client_port), SCTP_INIT_ACK);
        assert_eq!(node.send(Hook::NicIn, Device::Eth0, &answer).reason, abi::REASON_BACK);
    }
}
