//! A flood leaves little of a connection whose client has not been heard of since its SYN: where it goes, which is enough.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::Instant;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Protocol, Service};
use weir_core::ops::Capacity;
use weir_testbed::address;
use weir_testbed::packet::Packet;

use crate::case::{Case, cases};
use crate::entries::{age_displaced, evict};
use crate::failover::SECOND;
use crate::flood::kept;
use crate::node::{Node, TC_SHOT, web};
use crate::openings::{allow, begins, flood, flows, open_in_flood, stay_on_one_cpu};
use crate::pins::SMALL;
use crate::talk::{Talk, WAYS, Way, wait};

/// A table that few SYNs fill.
const FEW: Capacity = Capacity { openings: 256, ..SMALL };

/// The endpoint on the same node as a way's, to which connections go that begin later.
const fn later((node, _): (u8, u8)) -> (u8, u8) {
    (node, 3)
}

/// Clients keep the endpoint of their latest connection that went on.
fn service() -> Service {
    Service { affinity: Some(300), ..web() }
}

/// A connection by one way: the client's first packet, and how its endpoint saw it.
struct Begun {
    way: Way,
    first: Packet,
    seen: Packet,
}

impl Begun {
    fn talk<'a>(&self, node: &'a Node, case: Case) -> Talk<'a> {
        Talk {
            node,
            case,
            way: self.way,
            first: self.first.clone(),
            seen: self.seen.clone(),
            bytes_to: Cell::new(0),
            bytes_from: Cell::new(0),
            opened: Instant::now(),
        }
    }

    /// What an endpoint gets of a client's packet.
    fn sent(&self, node: &Node, packet: &Packet) -> Packet {
        node.send(self.way.to.0, self.way.to.1, packet).packet()
    }

    /// What an endpoint gets of the client's next packet.
    fn next(&self, node: &Node, case: Case) -> Packet {
        self.sent(node, &case.later(self.first.source_socket(), self.first.destination_socket()))
    }
}

/// Connections by a way to its endpoint, which may answer, and whose places a flood has before their clients are heard of.
fn displaced(node: &mut Node, case: Case, way: Way, floods: &mut u32, answer: fn(&Talk<'_>)) -> Vec<Begun> {
    node.serve(service(), &[way.endpoint]);
    let open = || {
        let talk = Talk::open(node, case, way);
        answer(&talk);
        talk
    };
    let talks: Vec<_> = (0..8).map(|_| open()).collect();
    let syns = 3 * FEW.openings;
    flood(node, case, *floods * syns..(*floods + 1) * syns);
    *floods += 1;
    let gone: Vec<_> = talks.iter().filter(|talk| flows(talk).is_empty()).collect();
    assert!(gone.len() > talks.len() / 2, "of most a flood leaves no entry: {} of {}", gone.len(), talks.len());
    gone.iter().map(|talk| Begun { way, first: talk.first.clone(), seen: talk.seen.clone() }).collect()
}

impl Begun {
    fn is_later(&self, packet: &Packet) -> bool {
        let (node, pod) = later(self.way.endpoint);
        address::pod(node, pod).both().contains(&packet.destination)
    }
}

/// Runs a test with connections of each way whose SYNs were answered. `draining`: their endpoints are still there, for what they have.
fn each_way(what: &str, draining: bool, test: impl FnMut(&Node, Case, Vec<Begun>)) {
    each_way_with(what, answered, draining, test);
}

fn answered(talk: &Talk<'_>) {
    talk.accept();
}

fn each_way_with(what: &str, answer: fn(&Talk<'_>), draining: bool, mut test: impl FnMut(&Node, Case, Vec<Begun>)) {
    let Some(mut node) = Node::with_capacity(what, FEW) else { return };
    let mut floods = 0;
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            let begun = displaced(&mut node, case, way, &mut floods, answer);
            let endpoints = [way.endpoint];
            node.serve_draining(service(), &[later(way.endpoint)], if draining { &endpoints } else { &[] });
            test(&node, case, begun);
        }
    }
}

#[test]
fn a_connection_that_a_flood_displaced_goes_on_where_it_began_whatever_the_weights_are_by_then() {
    let (mut on, mut anew) = (0, 0);
    each_way("connections that a flood displaced", true, |node, case, all| {
        for begun in all {
            let talk = begun.talk(node, case);
            let of_this = |packet: &Packet| counted(node, case, packet.destination);
            let before = of_this(&begun.seen);
            let (next, seen) = (begun.next(node, case), &begun.seen);
            // The flood may have taken the place of the memory, too.
            if begun.is_later(&next) {
                anew += 1;
                continue;
            }
            on += 1;
            assert_eq!(next.destination_socket(), seen.destination_socket(), "{:?}", begun.way);
            assert_eq!(next.source_socket(), seen.source_socket(), "{:?}", begun.way);
            assert_eq!(of_this(&next), before, "it was counted when it began");
            talk.endpoint_goes_on();
            talk.client_goes_on();
            assert!(!begins(&talk), "{:?}", begun.way);
        }
    });
    assert!(on > anew, "{on} went on, {anew} began anew");
}

/// New flows that an endpoint has got, and how many of its connections are open.
fn counted(node: &Node, case: Case, endpoint: IpAddr) -> (u64, u32) {
    let backends = node.view.dump().unwrap().backends;
    let is_it = |backend: &abi::Backend| {
        let used = backend.flags & abi::BACKEND_USED != 0 && backend.proto == case.protocol.number();
        used && backend.addr.ip() == endpoint
    };
    let (slot, _) = backends.iter().find(|(_, backend)| is_it(backend)).unwrap();
    let abi::BackendCounters { flows, balance, .. } = node.view.backend_counters(*slot).unwrap();
    (flows, balance)
}

/// All packets of these connections go where the weights say now.
#[track_caller]
fn assert_anew(node: &Node, case: Case, all: &[Begun]) {
    for begun in all {
        assert!(begun.is_later(&begun.next(node, case)), "{:?}", begun.way);
    }
}

#[test]
fn where_a_displaced_connection_went_is_remembered_for_as_long_as_a_client_asks() {
    each_way("connections that a flood displaced long ago", true, |node, case, all| {
        age_displaced(node, abi::OPENING_IDLE + 1);
        assert_anew(node, case, &all);
    });
}

#[test]
fn a_displaced_connection_without_its_endpoint_begins_anew() {
    each_way("connections that a flood displaced, whose endpoints are gone", false, |node, case, all| {
        assert_anew(node, case, &all);
    });
}

#[test]
fn a_client_of_a_displaced_connection_that_begins_another_one_goes_where_the_weights_say() {
    each_way("SYNs at the ports of connections that a flood displaced", true, |node, _, all| {
        for begun in all {
            assert!(begun.is_later(&begun.sent(node, &begun.first)), "{:?}", begun.way);
        }
    });
}

#[test]
fn a_connection_whose_syn_is_one_of_a_flood_goes_on_where_it_began_whatever_the_weights_are_by_then() {
    let Some(mut node) = Node::new("connections that begin in a flood") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS.into_iter().filter(|way| way.endpoint.0 == 1) {
            node.serve(web(), &[way.endpoint]);
            allow(&node, 1);
            let talk = open_in_flood(&node, case, way);
            talk.accept();
            let begun = Begun { way, first: talk.first.clone(), seen: talk.seen.clone() };
            node.serve_draining(web(), &[later(way.endpoint)], &[way.endpoint]);
            assert_eq!(begun.next(&node, case).destination_socket(), begun.seen.destination_socket(), "{way:?}");
            assert!(!begins(&begun.talk(&node, case)), "{way:?}");
            allow(&node, u32::MAX);
        }
    }
}

/// What endpoints say to SYNs whose entry is another's by now: how many do, and how many are dropped of those, to clients here and in the node's name.
struct Lost([(u32, u32); 2]);

impl Lost {
    /// Each endpoint says it once, with a number.
    fn add(&mut self, node: &Node, case: Case, all: &[Begun], number: u32) {
        let replies4 = node.view.replies4().unwrap().into_iter().map(|(_, reply)| reply);
        let replies6 = node.view.replies6().unwrap().into_iter().map(|(_, reply)| reply);
        let known: Vec<_> = replies4.chain(replies6).map(|reply| reply.client_port.get()).collect();
        for begun in all.iter().filter(|begun| !known.contains(&begun.first.source_socket().port())) {
            let header = TcpHeader { syn: true, ack: true, sequence_number: number, ..TcpHeader::default() };
            let answer = begun.talk(node, case).endpoint_tcp(header);
            let outcome = node.send(begun.way.back.0, begun.way.back.1, &answer);
            let (lost, dropped) = &mut self.0[usize::from(begun.way.endpoint.0) - 1];
            *lost += 1;
            *dropped += u32::from(outcome.reason == abi::REASON_STALE);
        }
    }

    /// The flood may have taken the place of the memory, too.
    #[track_caller]
    fn assert_dropped(&self) {
        let are_many = |(lost, dropped): (u32, u32)| dropped > lost / 3;
        assert!(self.0.into_iter().all(are_many), "{:?}", self.0);
    }

    #[track_caller]
    fn assert_left_alone(&self) {
        let are_none = |(lost, dropped): (u32, u32)| lost > 0 && dropped == 0;
        assert!(self.0.into_iter().all(are_none), "{:?}", self.0);
    }
}

/// Another one's, as of a connection of the same client to the endpoint itself.
const OTHER: u32 = 1 << 28;

/// Its client has never asked the endpoint, and would reset the connection; the node itself has not asked it, either.
#[test]
fn a_syn_ack_that_comes_again_after_a_flood_displaced_its_entry_leaves_in_nobodys_name() {
    let [mut soon, mut later, mut last, mut others] = [const { Lost([(0, 0); 2]) }; 4];
    each_way("SYN-ACKs that a flood displaced", true, |node, case, all| {
        others.add(node, case, &all, OTHER);
        soon.add(node, case, &all, 0);
        age_displaced(node, 60);
        later.add(node, case, &all, 0);
        age_displaced(node, 5);
        last.add(node, case, &all, 0);
    });
    soon.assert_dropped();
    later.assert_dropped();
    last.assert_left_alone();
    others.assert_left_alone();
}

#[test]
fn the_first_syn_ack_after_a_flood_displaced_its_entry_leaves_in_nobodys_name_whatever_its_number() {
    let [mut first, mut again, mut others] = [const { Lost([(0, 0); 2]) }; 3];
    each_way_with(
        "first SYN-ACKs that a flood displaced",
        |_| (),
        true,
        |node, case, all| {
            first.add(node, case, &all, OTHER);
            others.add(node, case, &all, 0);
            age_displaced(node, abi::OPENING_IDLE + 1);
            again.add(node, case, &all, OTHER);
        },
    );
    first.assert_dropped();
    again.assert_dropped();
    others.assert_left_alone();
}

#[test]
fn a_syn_ack_long_after_a_flood_displaced_what_nobody_had_answered_is_anothers() {
    let mut late = Lost([(0, 0); 2]);
    each_way_with(
        "late SYN-ACKs that a flood displaced",
        |_| (),
        true,
        |node, case, all| {
            age_displaced(node, abi::OPENING_IDLE + 1);
            late.add(node, case, &all, OTHER);
        },
    );
    late.assert_left_alone();
}

/// What the endpoint of a SYN says late is dropped, as its client has gone on to the later one.
#[track_caller]
fn assert_left(node: &Node, case: Case, begun: &Begun) {
    assert!(begun.is_later(&begun.sent(node, &begun.first)), "{:?}", begun.way);
    let dead = begun.talk(node, case);
    let late = dead.endpoint_tcp(TcpHeader { syn: true, ack: true, ..TcpHeader::default() });
    for _ in 0..2 {
        node.send(begun.way.back.0, begun.way.back.1, &late).is_for(TC_SHOT, abi::REASON_STALE);
    }
    assert!(begun.is_later(&begun.next(node, case)), "{:?}", begun.way);
}

/// By the weights of now it would be another endpoint's, and both might answer.
#[test]
fn a_syn_of_a_flood_that_comes_again_is_known_for_that_whatever_the_weights_are_by_then() {
    let Some(mut node) = Node::new("SYNs of a flood that come again by other weights") else { return };
    stay_on_one_cpu();
    for case in cases(Protocol::Tcp) {
        for way in WAYS.into_iter().filter(|way| way.endpoint.0 == 1) {
            node.serve(web(), &[way.endpoint]);
            allow(&node, 1);
            let talk = open_in_flood(&node, case, way);
            let begun = Begun { way, first: talk.first.clone(), seen: talk.seen.clone() };
            node.serve_draining(web(), &[later(way.endpoint)], &[way.endpoint]);
            let doubled = begun.sent(&node, &begun.first);
            assert_eq!(doubled.destination_socket(), begun.seen.destination_socket(), "{way:?}");
            wait(&node, case, SECOND);
            assert_left(&node, case, &begun);
            allow(&node, u32::MAX);
        }
    }
}

#[test]
fn the_late_answer_to_a_syn_that_went_elsewhere_unnoticed_is_dropped() {
    let Some(mut node) = Node::new("SYNs that come again, whose flow has lost its place") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS.into_iter().filter(|way| way.endpoint.0 == 1) {
            node.serve(web(), &[way.endpoint]);
            let talk = Talk::open(&node, case, way);
            evict(&node, talk.flows());
            let begun = Begun { way, first: talk.first.clone(), seen: talk.seen.clone() };
            node.serve_draining(web(), &[later(way.endpoint)], &[way.endpoint]);
            assert_left(&node, case, &begun);
        }
    }
}

#[test]
fn a_connection_that_begins_in_a_flood_at_the_port_of_a_displaced_one_goes_on_where_it_began() {
    each_way("connections at the ports of displaced ones", true, |node, case, all| {
        // In the node's name a flow is written in any flood.
        for begun in all.iter().filter(|begun| begun.way.endpoint.0 == 1) {
            allow(node, 1);
            // Of this tick it is the first one, and no flood's.
            open_in_flood(node, case, begun.way);
            assert!(begun.is_later(&begun.sent(node, &begun.first)), "{:?}", begun.way);
            assert!(begun.is_later(&begun.next(node, case)), "{:?}", begun.way);
            allow(node, u32::MAX);
        }
    });
}

/// An entry of the one before, which is over, is found before any memory.
#[test]
fn a_connection_that_begins_in_a_flood_at_the_port_of_one_that_is_over_goes_on_where_it_began() {
    let Some(mut node) = Node::new("ports that are used again in a flood") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS.into_iter().filter(|way| way.endpoint.0 == 1) {
            node.serve(web(), &[way.endpoint]);
            let over = Talk::open(&node, case, way);
            over.accept();
            over.client_goes_on();
            over.endpoint_sends(&over.endpoint_tcp(TcpHeader { rst: true, ..TcpHeader::default() }));
            let first = over.first.clone();
            node.serve_draining(web(), &[later(way.endpoint)], &[way.endpoint]);
            allow(&node, 1);
            open_in_flood(&node, case, way);
            let next = Talk::open_with(&node, case, way, first);
            next.accept();
            let begun = Begun { way, first: next.first.clone(), seen: next.seen.clone() };
            assert!(begun.is_later(&next.seen), "{way:?}");
            assert_eq!(begun.next(&node, case).destination_socket(), next.seen.destination_socket(), "{way:?}");
            allow(&node, u32::MAX);
        }
    }
}

#[test]
fn a_client_keeps_the_endpoint_of_its_latest_connection_whichever_displaced_one_goes_on_after_it() {
    each_way("connections that went on after later ones", true, |node, case, all| {
        age_displaced(node, 2);
        for begun in all {
            let latest = Talk::open(node, case, begun.way);
            latest.accept();
            latest.client_goes_on();
            let keeps = |packet: &Packet| kept(node, case, begun.way.client) == Some(packet.destination);
            assert!(begun.is_later(&latest.seen) && keeps(&latest.seen), "{:?}", begun.way);
            if !begun.is_later(&begun.next(node, case)) {
                let talk = begun.talk(node, case);
                talk.endpoint_goes_on();
                talk.client_goes_on();
            }
            assert!(keeps(&latest.seen), "{:?}", begun.way);
        }
    });
}
