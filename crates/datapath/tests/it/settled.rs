//! A connection that goes on stays where it began for the rest of that tick: most are over by then, and need not move. No flow that
//! begins takes its place.

use std::mem::offset_of;
use std::net::SocketAddr;

use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_core::ops::Capacity;

use crate::case::{CLUSTER_IP, Case, PORT, cases};
use crate::clock::await_the_better_part_of_a_tick;
use crate::ended::{ack, fin, reset};
use crate::entries::{age, evict, write_more};
use crate::node::{Node, TC_UNSPEC, web};
use crate::openings::{allow, begins, open_in_flood};
use crate::pins::SMALL;
use crate::talk::{Talk, WAYS, Way, each_way};

/// Flags of a connection's flow, and of the entry of its answers.
fn flags(talk: &Talk<'_>) -> [u16; 2] {
    let port = talk.first.source_socket().port();
    let is_its = |reply: &abi::Reply| reply.client_port.get() == port;
    let view = &talk.node.view;
    let v4 = view.replies4().unwrap().into_iter().map(|(_, reply)| reply);
    let v6 = view.replies6().unwrap().into_iter().map(|(_, reply)| reply);
    let replies: Vec<_> = if talk.case.family == Family::V4 { v4.collect() } else { v6.collect() };
    [talk.flow().flags, replies.iter().find(|reply| is_its(reply)).unwrap().flags]
}

/// Whether both say that it has settled; they have to agree.
#[track_caller]
fn has_settled(talk: &Talk<'_>) -> bool {
    let [flow, reply] = flags(talk).map(|flags| flags & abi::FLOW_SETTLED != 0);
    assert_eq!(flow, reply, "{:x?}", flags(talk));
    flow
}

/// As if it had begun a tick earlier.
pub(crate) fn wait_for_a_tick(talk: &Talk<'_>) {
    age(talk.node, talk.flows(), offset_of!(abi::Flow, created), 1);
}

/// A connection of which the endpoint has heard, and the client, in the tick that it began in: a clock that beats meanwhile begins another.
fn established(node: &Node, case: Case, way: Way) -> Talk<'_> {
    loop {
        let talk = Talk::open(node, case, way);
        talk.accept();
        let begun = talk.flow().created;
        talk.client_goes_on();
        if talk.flow().last_seen == begun {
            return talk;
        }
    }
}

pub(crate) fn each_settled_way(what: &str, test: impl Fn(&Talk<'_>)) {
    each_way(what, Protocol::Tcp, |talk| {
        talk.node.settle();
        await_the_better_part_of_a_tick();
        test(&established(talk.node, talk.case, talk.way));
    });
}

#[test]
fn a_connection_stays_for_its_first_tick_and_moves_with_its_clients_next_packet() {
    each_settled_way("connections that have settled", |talk| {
        assert!(begins(talk) && has_settled(talk));
        talk.endpoint_goes_on();
        assert!(begins(talk) && has_settled(talk));
        wait_for_a_tick(talk);
        talk.endpoint_goes_on();
        assert!(begins(talk) && has_settled(talk), "its client has said nothing since");
        talk.client_goes_on();
        assert!(!begins(talk) && !has_settled(talk));
        talk.endpoint_goes_on();
        talk.client_goes_on();
        assert!(!begins(talk));
    });
}

#[test]
fn a_connection_moves_after_its_tick_however_much_its_client_has_got() {
    each_settled_way("connections with large answers", |talk| {
        wait_for_a_tick(talk);
        talk.client_sends(&talk.client_tcp(ack(1 << 20)));
        assert!(!begins(talk) && !has_settled(talk));
    });
}

#[test]
fn a_connection_whose_client_says_much_moves_at_once() {
    each_settled_way("connections with many requests", |talk| {
        while has_settled(talk) {
            let said = talk.flow().bytes;
            assert!(said < abi::SETTLED_BYTES + 1500, "{said}");
            talk.client_goes_on();
        }
        // The clock may have been sooner.
        let flow = talk.flow();
        assert!(!begins(talk) && (flow.bytes >= abi::SETTLED_BYTES || flow.last_seen != flow.created), "{flow:?}");
        talk.endpoint_goes_on();
        talk.client_goes_on();
    });
}

#[test]
fn a_connection_that_has_settled_is_over_where_it_is() {
    each_settled_way("connections that their clients close first", |talk| {
        let open = talk.counters().balance;
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        assert!(has_settled(talk), "the last ACK is still to come");
        talk.client_sends(&talk.client_tcp(ack(1)));
        assert!(begins(talk) && !has_settled(talk));
        assert!(flags(talk).iter().all(|flags| flags & abi::FLOW_ENDED != 0));
        assert_eq!(talk.counters().balance + 1, open);
        // What comes again gets through, and moves nothing.
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        talk.client_sends(&talk.client_tcp(ack(1)));
        assert!(begins(talk) && !has_settled(talk));
    });
    each_settled_way("connections that their endpoints close first", |talk| {
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        talk.client_sends(&talk.client_tcp(fin()));
        assert!(has_settled(talk), "the last ACK is still to come");
        talk.endpoint_sends(&talk.endpoint_tcp(ack(1)));
        assert!(begins(talk) && !has_settled(talk));
    });
}

#[test]
fn a_reset_ends_a_connection_that_has_settled() {
    each_settled_way("connections that their clients reset", |talk| {
        let open = talk.counters().balance;
        talk.client_sends(&talk.client_tcp(reset()));
        assert!(begins(talk) && !has_settled(talk));
        assert_eq!(talk.counters().balance + 1, open);
    });
    each_settled_way("connections that their endpoints reset", |talk| {
        talk.endpoint_sends(&talk.endpoint_tcp(reset()));
        assert!(begins(talk) && !has_settled(talk));
        assert_ne!(talk.flow().flags & abi::FLOW_ENDED, 0);
    });
}

#[test]
fn a_connection_that_began_in_a_flood_settles_and_moves_as_any() {
    let Some(mut node) = Node::new("connections that began in a flood") else { return };
    node.settle();
    for case in cases(Protocol::Tcp) {
        for way in [WAYS[0], WAYS[1]] {
            node.serve_anew(web(), &[way.endpoint]);
            allow(&node, 1);
            await_the_better_part_of_a_tick();
            let talk = open_in_flood(&node, case, way);
            // Its client goes on after the flood.
            allow(&node, u32::MAX);
            talk.accept();
            talk.client_goes_on();
            assert!(begins(&talk) && has_settled(&talk));
            wait_for_a_tick(&talk);
            talk.client_goes_on();
            assert!(!begins(&talk) && !has_settled(&talk));
            talk.endpoint_goes_on();
        }
    }
}

#[test]
fn what_comes_late_of_a_connection_that_is_over_does_not_settle() {
    let Some(mut node) = Node::new("late packets of connections that are over") else { return };
    node.settle();
    for case in cases(Protocol::Tcp) {
        for way in [WAYS[0], WAYS[1]] {
            node.serve_anew(web(), &[way.endpoint]);
            let talk = established(&node, case, way);
            talk.endpoint_sends(&talk.endpoint_tcp(fin()));
            talk.client_sends(&talk.client_tcp(fin()));
            talk.endpoint_sends(&talk.endpoint_tcp(ack(1)));
            evict(&node, talk.flows());
            // Nothing is known of it but what was answered.
            talk.client_sends(&talk.client_tcp(ack(1)));
            assert!(begins(&talk) && !has_settled(&talk));
            wait_for_a_tick(&talk);
            talk.client_sends(&talk.client_tcp(ack(1)));
            assert!(begins(&talk) && !has_settled(&talk));
        }
    }
}

#[test]
fn its_port_of_the_nodes_is_no_other_flows() {
    let Some(mut node) = Node::new("source ports of connections that have settled") else { return };
    // As many ports as connections, and one for whoever comes on top.
    node.configure((50_000, 50_003), true);
    node.settle();
    for case in cases(Protocol::Tcp) {
        for way in [WAYS[2], WAYS[3]] {
            node.serve_anew(web(), &[way.endpoint]);
            let talks: Vec<_> = (0..3).map(|_| established(&node, case, way)).collect();
            assert!(talks.iter().all(has_settled));
            for _ in 0..20 {
                // Takes the port that is left, over and over.
                let first = case.first(case.at(way.client, node.client_port()), case.at(CLUSTER_IP, PORT));
                node.send(way.to.0, way.to.1, &first);
            }
            assert!(talks.iter().all(has_settled), "each has the entry of its answers");
            talks.iter().for_each(Talk::endpoint_goes_on);
        }
    }
}

/// One set of four places.
const ONE_SET: Capacity = Capacity { openings: 4, ..SMALL };

#[test]
fn no_flow_that_begins_takes_the_place_of_one_that_has_settled() {
    let Some(mut node) = Node::with_capacity("a flood beside connections that have settled", ONE_SET) else { return };
    node.settle();
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve_anew(web(), &[way.endpoint]);
            let two = [established(&node, case, way), established(&node, case, way)];
            let third = established(&node, case, way);
            assert!(two.iter().all(|talk| begins(talk) && has_settled(talk)));
            assert!(!begins(&third), "half of a set is for those that begin");
            for written in 0..400 {
                // Numbers of entries that were written go round, as far as they are compared.
                if written % 4 == 0 {
                    let tables = ["openings4", "openings6", "awaited4", "awaited6"];
                    tables.iter().for_each(|table| write_more(&node, table, 1 << 10));
                }
                let from: SocketAddr = case.at(way.client, node.client_port());
                node.insist(way.to.0, way.to.1, &case.first(from, two[0].first.destination_socket()));
            }
            for talk in two.iter().chain([&third]) {
                talk.endpoint_goes_on();
                wait_for_a_tick(talk);
                talk.client_goes_on();
                assert!(!begins(talk));
            }
        }
    }
}

#[test]
fn connections_that_have_settled_stay_open_where_tables_become_smaller() {
    let two_sets = Capacity { openings: 8, ..SMALL };
    for case in cases(Protocol::Tcp) {
        let Some(mut node) = Node::with_capacity("smaller tables", two_sets) else { return };
        let way = WAYS[0];
        node.settle();
        node.serve(web(), &[way.endpoint]);
        // As many as both sets may have, and more that begin than there is room for.
        let mut open = Vec::new();
        while open.len() < abi::OPENING_WAYS {
            let talk = established(&node, case, way);
            if has_settled(&talk) {
                open.push((talk.first.clone(), talk.seen.clone()));
            }
        }
        (0..8).for_each(|_| drop(Talk::open(&node, case, way)));
        let node = node.resized(ONE_SET);
        for (first, seen) in &open {
            assert_eq!(node.flow_of(first).flags & (abi::FLOW_OPENING | abi::FLOW_SETTLED), 0);
            let answer = case.later(seen.destination_socket(), seen.source_socket());
            node.send(way.back.0, way.back.1, &answer).is_for(TC_UNSPEC, abi::REASON_BACK);
            let next = case.later(first.source_socket(), first.destination_socket());
            assert_eq!(node.send(way.to.0, way.to.1, &next).packet().destination, seen.destination);
        }
    }
}

#[test]
fn one_that_nobody_has_heard_of_for_long_gives_its_place() {
    let Some(mut node) = Node::with_capacity("connections that have settled and are silent", ONE_SET) else { return };
    node.settle();
    for case in cases(Protocol::Tcp) {
        let way = WAYS[0];
        node.serve_anew(web(), &[way.endpoint]);
        let talk = established(&node, case, way);
        let idle = node.datapath.config().unwrap().tcp_idle;
        let flood = |count| {
            for _ in 0..count {
                let from: SocketAddr = case.at(way.client, node.client_port());
                node.insist(way.to.0, way.to.1, &case.first(from, talk.first.destination_socket()));
            }
        };
        // A tick may pass while this runs.
        age(&node, talk.flows(), offset_of!(abi::Flow, last_seen), idle - 1);
        flood(20);
        assert!(has_settled(&talk), "it is open");
        age(&node, talk.flows(), offset_of!(abi::Flow, last_seen), 2);
        flood(20);
        let port = talk.first.source_socket().port();
        assert!(node.view.flows().unwrap().iter().all(|entry| entry.client_port != port));
    }
}
