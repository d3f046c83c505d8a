//! Clients that send datagrams which nobody answers, more of them than a set has places: their flows stay where they began.

use std::mem::offset_of;
use std::net::SocketAddr;

use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_core::ops::Capacity;
use weir_testbed::packet::Packet;

use crate::case::{Case, cases};
use crate::entries::{age, age_births, age_displaced, evict};
use crate::node::{Node, web};
use crate::pins::SMALL;
use crate::talk::{Talk, WAYS, Way};

/// A single set, as clients with a set in common are rare otherwise.
const ONE_SET: Capacity = Capacity { openings: 4, ..SMALL };

/// As many as a set has places, and one.
const CLIENTS: usize = abi::OPENING_WAYS + 1;

/// So many seconds pass.
fn pass(node: &Node, family: Family, ticks: u32) {
    let (flows, replies, sets) = match family {
        Family::V4 => ("flows4", "replies4", ["openings4", "awaited4"]),
        Family::V6 => ("flows6", "replies6", ["openings6", "awaited6"]),
    };
    age(node, flows, offset_of!(abi::Flow, created), ticks);
    age(node, flows, offset_of!(abi::Flow, last_seen), ticks);
    age(node, replies, offset_of!(abi::Reply, last_seen), ticks);
    sets.iter().for_each(|set| age_births(node, set, ticks));
    age_displaced(node, ticks);
}

/// The client's next datagram.
fn next(case: Case, first: &Packet) -> Packet {
    case.later(first.source_socket(), first.destination_socket())
}

/// From where, and where, what the clients send arrives.
fn arrive(node: &Node, way: Way, packets: &[Packet]) -> Vec<(SocketAddr, SocketAddr)> {
    let seen = packets.iter().map(|packet| node.send(way.to.0, way.to.1, packet).packet());
    seen.map(|seen| (seen.source_socket(), seen.destination_socket())).collect()
}

/// New flows that endpoints have got.
fn counted(node: &Node) -> u64 {
    let backends = node.view.dump().unwrap().backends;
    backends.iter().map(|(slot, _)| node.view.backend_counters(*slot).unwrap().flows).sum()
}

/// Clients by each way to its endpoint that have sent their first datagrams: the next ones, and how the first ones arrived.
fn each_way(what: &str, mut test: impl FnMut(&mut Node, Way, Family, &[Packet], &[(SocketAddr, SocketAddr)])) {
    let Some(mut node) = Node::with_capacity(what, ONE_SET) else { return };
    for case in cases(Protocol::Udp) {
        for way in WAYS {
            ["flows4", "flows6", "replies4", "replies6"].iter().for_each(|table| evict(&node, table));
            node.serve(web(), &[way.endpoint]);
            let begun: Vec<_> = (0..CLIENTS).map(|_| Talk::open(&node, case, way)).collect();
            let packets: Vec<_> = begun.iter().map(|talk| next(case, &talk.first)).collect();
            let seen: Vec<_> =
                begun.iter().map(|talk| (talk.seen.source_socket(), talk.seen.destination_socket())).collect();
            test(&mut node, way, case.family, &packets, &seen);
        }
    }
}

/// Another endpoint on the node of a way's.
const fn later((node, _): (u8, u8)) -> (u8, u8) {
    (node, 3)
}

#[test]
fn clients_that_only_ever_send_keep_endpoint_and_source_port_whatever_the_weights_are_by_then() {
    each_way("datagrams of more clients than places", |node, way, family, packets, seen| {
        node.serve_draining(web(), &[later(way.endpoint)], &[way.endpoint]);
        let before = counted(node);
        for round in 0..3 {
            pass(node, family, 1);
            assert_eq!(arrive(node, way, packets), seen, "{way:?} {family:?}, {round}");
        }
        assert_eq!(counted(node), before, "{way:?} {family:?}: they have begun before");
    });
}

#[test]
fn who_sends_again_long_after_its_place_was_taken_goes_where_the_weights_say() {
    each_way("datagrams long after the first one", |node, way, family, packets, seen| {
        node.serve_draining(web(), &[later(way.endpoint)], &[way.endpoint]);
        pass(node, family, abi::OPENING_IDLE + 1);
        let arrived = arrive(node, way, packets);
        let anew = arrived.iter().zip(seen).filter(|(now, then)| now.1 != then.1).count();
        assert!(anew > 0, "{way:?} {family:?}: {arrived:?}");
    });
}
