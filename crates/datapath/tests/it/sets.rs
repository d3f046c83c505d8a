//! Sets of flows that begin, on a node that has a single one: who goes when all of its places are taken
//! (docs/adr/0037-sets-of-flows-that-begin.md).

use std::mem::offset_of;

use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_core::ops::Capacity;

use crate::case::{CASES, Case};
use crate::entries::{age, age_births, evict, write_more};
use crate::node::{Node, web};
use crate::pins::SMALL;
use crate::talk::{Talk, WAYS};

const PLACES: usize = abi::OPENING_WAYS;

/// Clients whose flows have begun, in that order, in a table with places for the first of them only.
struct Clients<'a> {
    node: &'a Node,
    case: Case,
    talks: Vec<Talk<'a>>,
}

impl<'a> Clients<'a> {
    /// One more begins.
    fn open(&mut self) {
        self.talks.push(Talk::open(self.node, self.case, WAYS[0]));
    }

    /// The other port of the service, whose flows are in the same tables.
    fn other(&self) -> Case {
        let protocol = if self.case.protocol == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
        Case { protocol, ..self.case }
    }

    /// Begins with these in an empty table.
    fn begin_with(&mut self, cases: [Case; PLACES]) {
        empty(self.node);
        self.talks = cases.into_iter().map(|case| Talk::open(self.node, case, WAYS[0])).collect();
    }

    /// A tick passes.
    fn pass(&self) {
        let (flows, replies, sets) = match self.case.family {
            Family::V4 => ("flows4", "replies4", ["openings4", "awaited4"]),
            Family::V6 => ("flows6", "replies6", ["openings6", "awaited6"]),
        };
        age(self.node, flows, offset_of!(abi::Flow, last_seen), 1);
        age(self.node, replies, offset_of!(abi::Reply, last_seen), 1);
        sets.iter().for_each(|set| age_births(self.node, set, 1));
    }

    fn answer(&self, number: usize) {
        match self.case.protocol {
            Protocol::Tcp => self.talks[number].accept(),
            Protocol::Udp | Protocol::Sctp => self.talks[number].endpoint_goes_on(),
        }
    }

    /// Which clients have a client port that is among these.
    fn with(&self, ports: &[u16]) -> Vec<usize> {
        let known = |talk: &Talk<'_>| ports.contains(&talk.first.source_socket().port());
        (0..self.talks.len()).filter(|number| known(&self.talks[*number])).collect()
    }

    /// Whose flows are remembered.
    fn remembered(&self) -> Vec<usize> {
        let flows = self.node.view.flows().unwrap();
        let begins = flows.iter().filter(|entry| entry.flow.flags & abi::FLOW_OPENING != 0);
        self.with(&begins.map(|entry| entry.client_port).collect::<Vec<_>>())
    }

    /// Whose answers are awaited.
    fn awaited(&self) -> Vec<usize> {
        let v4 = self.node.view.replies4().unwrap().into_iter().map(|(_, reply)| reply);
        let v6 = self.node.view.replies6().unwrap().into_iter().map(|(_, reply)| reply);
        let begins = v4.chain(v6).filter(|reply| reply.flags & abi::FLOW_OPENING != 0);
        self.with(&begins.map(|reply| reply.client_port.get()).collect::<Vec<_>>())
    }

    /// Whose flows are remembered and whose answers are awaited.
    #[track_caller]
    fn both(&self) -> Vec<usize> {
        let remembered = self.remembered();
        assert_eq!(remembered, self.awaited(), "{:?}: both tables hold the same", self.case);
        remembered
    }

    /// Opens flows, and looks after each of them who is left.
    #[track_caller]
    fn are_left(&mut self, look: impl Fn(&Self) -> Vec<usize>, expected: [[usize; PLACES]; 4]) {
        for left in expected {
            self.open();
            assert_eq!(look(self), left, "{:?}", self.case);
        }
    }
}

fn empty(node: &Node) {
    ["flows4", "flows6", "replies4", "replies6"].iter().for_each(|table| evict(node, table));
}

/// Each family and protocol, as many clients as there are places, and none to spare.
fn full(what: &str, test: impl Fn(&mut Clients<'_>)) {
    let openings = u32::try_from(PLACES).unwrap();
    let Some(mut node) = Node::with_capacity(what, Capacity { openings, ..SMALL }) else { return };
    node.serve(web(), &[WAYS[0].endpoint]);
    for case in CASES {
        // TCP's and UDP's flows share tables.
        empty(&node);
        let mut clients = Clients { node: &node, case, talks: Vec::new() };
        (0..PLACES).for_each(|_| clients.open());
        assert_eq!(clients.both(), (0..PLACES).collect::<Vec<_>>(), "{case:?}");
        test(&mut clients);
    }
}

#[test]
fn of_a_full_set_the_flow_that_was_written_longest_ago_goes() {
    full("a full set", |clients| {
        for last in PLACES..3 * PLACES {
            clients.open();
            assert_eq!(clients.both(), (last + 1 - PLACES..=last).collect::<Vec<_>>(), "{:?}", clients.case);
        }
    });
}

#[test]
fn those_that_lose_their_place_soon_after_their_last_packet_are_counted_and_those_that_were_silent_for_long_are_not() {
    full("entries that are displaced", |clients| {
        let displaced = |clients: &Clients<'_>| {
            let all = clients.node.view.displaced_openings().unwrap();
            let family = clients.case.family.number();
            [format!("openings{family}"), format!("awaited{family}")].map(|table| all[table.as_str()])
        };
        assert_eq!(displaced(clients), [0, 0], "places were free");
        clients.open();
        assert_eq!(displaced(clients), [1, 1]);
        (0..=abi::OPENING_IDLE).for_each(|_| clients.pass());
        clients.open();
        assert_eq!(displaced(clients), [1, 1], "it had been given up");
    });
}

#[test]
fn one_whose_client_has_sent_since_is_passed_over_once() {
    full("a set with a flow that was used since", |clients| {
        clients.pass();
        clients.talks[0].client_goes_on();
        clients.are_left(Clients::remembered, [[0, 2, 3, 4], [0, 3, 4, 5], [0, 4, 5, 6], [4, 5, 6, 7]]);
    });
}

#[test]
fn what_an_answer_must_look_like_is_passed_over_once_where_one_came_since() {
    full("a set with an entry that was answered since", |clients| {
        clients.pass();
        clients.answer(0);
        clients.are_left(Clients::awaited, [[0, 2, 3, 4], [0, 3, 4, 5], [0, 4, 5, 6], [4, 5, 6, 7]]);
    });
}

#[test]
fn a_client_that_only_ever_sends_keeps_its_flow_and_of_datagrams_the_entry_of_their_answers() {
    full("a flow that nobody answers", |clients| {
        for _ in 0..3 * PLACES {
            clients.pass();
            clients.talks[0].client_goes_on();
            clients.open();
            assert!(clients.remembered().contains(&0), "{:?} {:?}", clients.case, clients.remembered());
            if clients.case.protocol == Protocol::Udp {
                assert!(clients.awaited().contains(&0), "{:?} {:?}", clients.case, clients.awaited());
            }
        }
    });
}

#[test]
fn where_all_were_used_since_the_one_whose_turn_it_is_goes() {
    full("a set of flows that were all used since", |clients| {
        clients.pass();
        clients.talks.iter().for_each(Talk::client_goes_on);
        for last in PLACES..2 * PLACES {
            clients.open();
            assert_eq!(clients.remembered(), (last + 1 - PLACES..=last).collect::<Vec<_>>(), "{:?}", clients.case);
        }
    });
}

#[test]
fn a_place_that_is_free_is_taken_before_anybody_goes() {
    full("a set with a free place", |clients| {
        clients.answer(2);
        clients.talks[2].client_goes_on();
        assert_eq!(clients.remembered(), [0, 1, 3], "one that goes on has left: {:?}", clients.case);
        clients.open();
        assert_eq!(clients.both(), [0, 1, 3, 4]);
    });
}

#[test]
fn who_has_taken_a_free_place_goes_when_those_before_have_gone() {
    full("a set whose free place was taken", |clients| {
        clients.answer(2);
        clients.talks[2].client_goes_on();
        clients.are_left(Clients::both, [[0, 1, 3, 4], [1, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]);
    });
}

#[test]
fn one_that_begins_anew_is_the_last_to_go() {
    full("a set with a flow that has begun anew", |clients| {
        if clients.case.protocol != Protocol::Tcp {
            return;
        }
        clients.talks[0].refuse();
        clients.talks[0] = Talk::open_with(clients.node, clients.case, WAYS[0], clients.talks[0].first.clone());
        clients.are_left(Clients::both, [[0, 2, 3, 4], [0, 3, 4, 5], [0, 4, 5, 6], [4, 5, 6, 7]]);
    });
}

#[test]
fn a_flood_to_one_service_takes_the_places_of_its_own_flows() {
    full("a flood to one of two services", |clients| {
        let (flood, other) = (clients.case, clients.other());
        clients.begin_with([other, flood, flood, flood]);
        clients.are_left(Clients::both, [[0, 2, 3, 4], [0, 3, 4, 5], [0, 4, 5, 6], [0, 5, 6, 7]]);
        clients.begin_with([other, other, flood, flood]);
        clients.are_left(Clients::both, [[0, 1, 3, 4], [0, 1, 4, 5], [0, 1, 5, 6], [0, 1, 6, 7]]);
    });
}

#[test]
fn a_flow_beside_a_flood_to_another_service_stays_however_many_are_written() {
    full("a long flood to one of two services", |clients| {
        let (flood, other) = (clients.case, clients.other());
        clients.begin_with([other, flood, flood, flood]);
        // Numbers of entries that were written go round twice, as far as they are compared.
        for _ in 0..64 {
            let tables = ["openings4", "openings6", "awaited4", "awaited6"];
            tables.iter().for_each(|table| write_more(clients.node, table, 1 << 11));
            clients.open();
            assert!(clients.both().contains(&0), "{:?}", clients.case);
        }
    });
}

#[test]
fn who_begins_in_anothers_flood_takes_the_places_of_the_flood() {
    full("a client beside a flood", |clients| {
        let flood = clients.other();
        clients.begin_with([flood; PLACES]);
        // One is always found; from half of the set on they take each other's.
        clients.are_left(Clients::both, [[1, 2, 3, 4], [2, 3, 4, 5], [2, 3, 5, 6], [2, 3, 6, 7]]);
    });
}

#[test]
fn what_anothers_flows_were_long_ago_spares_them_nothing() {
    full("flows of long ago", |clients| {
        let other = clients.other();
        clients.begin_with([clients.case, clients.case, other, other]);
        (0..=abi::OPENING_IDLE).for_each(|_| clients.pass());
        clients.are_left(Clients::both, [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]);
    });
}
