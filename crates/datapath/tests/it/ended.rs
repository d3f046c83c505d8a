//! A flow that has ended goes back to the tables that it began in, and one that only seems to go on never leaves them: neither
//! evicts one that goes on.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::ops::Capacity;
use weir_testbed::address::CLIENT;
use weir_testbed::packet::Packet;

use crate::case::{CLUSTER_IP, PORT, cases};
use crate::entries::{age, evict};
use crate::fragments::{PIECE, answer, large};
use crate::node::{Node, TC_UNSPEC, web};
use crate::openings::begins;
use crate::pins::SMALL;
use crate::talk::{Talk, WAYS, each_way};
use crate::tcp_state::{client_sends, endpoint_sends};

pub(crate) fn fin() -> TcpHeader {
    TcpHeader { fin: true, ack: true, ..TcpHeader::default() }
}

pub(crate) fn ack(number: u32) -> TcpHeader {
    TcpHeader { ack: true, acknowledgment_number: number, ..TcpHeader::default() }
}

pub(crate) fn reset() -> TcpHeader {
    TcpHeader { rst: true, ack: true, ..TcpHeader::default() }
}

#[track_caller]
fn establish(talk: &Talk<'_>) {
    talk.accept();
    talk.client_goes_on();
    assert!(!begins(talk));
}

#[test]
fn the_last_packet_takes_a_connection_back() {
    each_way("connections that their clients close first", Protocol::Tcp, |talk| {
        establish(talk);
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        assert!(!begins(talk), "the last ACK is still to come");
        talk.client_sends(&talk.client_tcp(ack(1)));
        assert!(begins(talk));
    });
    each_way("connections that their endpoints close first", Protocol::Tcp, |talk| {
        establish(talk);
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        talk.client_sends(&talk.client_tcp(fin()));
        assert!(!begins(talk), "the last ACK is still to come");
        talk.endpoint_sends(&talk.endpoint_tcp(ack(1)));
        assert!(begins(talk));
    });
}

#[test]
fn a_reset_takes_a_connection_back_at_once() {
    each_way("connections that their clients reset", Protocol::Tcp, |talk| {
        establish(talk);
        talk.client_sends(&talk.client_tcp(reset()));
        assert!(begins(talk));
    });
    each_way("connections that their endpoints reset", Protocol::Tcp, |talk| {
        establish(talk);
        talk.endpoint_sends(&talk.endpoint_tcp(reset()));
        assert!(begins(talk));
    });
}

#[test]
fn what_comes_late_or_again_still_gets_through_and_moves_nothing() {
    each_way("packets after an end", Protocol::Tcp, |talk| {
        establish(talk);
        let open = talk.counters().balance;
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        talk.client_sends(&talk.client_tcp(ack(1)));
        let flow = talk.flow();
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        talk.client_sends(&talk.client_tcp(ack(1)));
        talk.endpoint_goes_on();
        talk.client_goes_on();
        assert!(begins(talk));
        let after = talk.flow();
        assert_eq!((after.backend, after.snat_port, after.created), (flow.backend, flow.snat_port, flow.created));
        assert_eq!(talk.counters().balance + 1, open, "it ended once");
    });
}

#[test]
fn connections_that_ended_evict_none_that_goes_on() {
    let small = Capacity { flows: 1024, openings: 512, ..SMALL };
    let what = "more connections than the tables hold, one after the other";
    let Some(mut node) = Node::with_capacity(what, small) else { return };
    for case in cases(Protocol::Tcp) {
        for way in [WAYS[0], WAYS[3]] {
            node.serve(web(), &[way.endpoint]);
            let talks: Vec<_> = (0..20).map(|_| Talk::open(&node, case, way)).collect();
            talks.iter().for_each(establish);
            for _ in 0..small.flows * 5 / 4 {
                let brief = Talk::open(&node, case, way);
                brief.accept();
                brief.client_goes_on();
                brief.endpoint_sends(&brief.endpoint_tcp(fin()));
                brief.client_sends(&brief.client_tcp(fin()));
                brief.endpoint_sends(&brief.endpoint_tcp(ack(1)));
            }
            for talk in &talks {
                assert!(!begins(talk));
                talk.endpoint_goes_on();
                talk.client_goes_on();
            }
        }
    }
}

#[test]
fn a_connection_that_was_refused_never_goes_on() {
    each_way("connections that were refused", Protocol::Tcp, |talk| {
        talk.refuse();
        talk.client_goes_on();
        talk.client_goes_on();
        assert!(begins(talk), "a flood in others' names may go on like that");
    });
}

#[test]
fn who_has_not_heard_of_the_answer_does_not_go_on() {
    const BEGINS: u32 = 0x7fff_fff0;
    each_way("connections in others' names", Protocol::Tcp, |talk| {
        let accepts = TcpHeader { syn: true, sequence_number: BEGINS, ..ack(0) };
        talk.endpoint_sends(&talk.endpoint_tcp(accepts));
        for guess in [0, BEGINS - (1 << 18), BEGINS.wrapping_add(1 << 19), BEGINS ^ 1 << 31] {
            talk.client_sends(&talk.client_tcp(ack(guess)));
            assert!(begins(talk), "{guess:#x}");
        }
        // Some data has come with it, and the number is past a border.
        talk.client_sends(&talk.client_tcp(ack(BEGINS + 20_000)));
        assert!(!begins(talk));
    });
}

#[test]
fn one_answer_in_pieces_is_one_answer() {
    let Some(mut node) = Node::new("large answers to small questions") else { return };
    for case in cases(Protocol::Udp) {
        let way = WAYS[0];
        node.serve(web(), &[way.endpoint]);
        let talk = Talk::open(&node, case, way);
        let seen = Packet { identification: 7, ..large(case, &node, CLIENT, CLUSTER_IP) }
            .with_source(talk.seen.source_socket())
            .with_destination(talk.seen.destination_socket());
        let pieces = answer(&seen, 7).cut(PIECE);
        assert!(pieces.len() > 2);
        pieces.iter().for_each(|piece| talk.endpoint_sends(piece));
        assert!(begins(&talk), "one question and one answer, port {PORT}");
        talk.client_goes_on();
        assert!(!begins(&talk));
    }
}

/// Makes it look as if nothing had been said for so many ticks.
pub(crate) fn silent_since(talk: &Talk<'_>, ticks: u32) {
    age(talk.node, talk.flows(), offset_of!(abi::Flow, last_seen), ticks);
    age(talk.node, talk.replies(), offset_of!(abi::Reply, last_seen), ticks);
}

#[track_caller]
fn is_of_the_endpoint_itself(talk: &Talk<'_>, answer: &Packet) {
    let outcome = talk.node.send(talk.way.back.0, talk.way.back.1, answer);
    outcome.is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &answer.to_bytes());
}

#[test]
fn who_asks_an_endpoint_itself_from_a_port_of_an_earlier_connection_to_the_service_hears_from_the_endpoint() {
    for is_lost in [false, true] {
        for answer in [TcpHeader { syn: true, ack: true, ..TcpHeader::default() }, reset()] {
            each_way("connections from ports that the service knew", Protocol::Tcp, |talk| {
                // In this node's name nobody is the client.
                if talk.seen.source != talk.first.source {
                    return;
                }
                establish(talk);
                talk.client_sends(&talk.client_tcp(fin()));
                talk.endpoint_sends(&talk.endpoint_tcp(fin()));
                talk.client_sends(&talk.client_tcp(ack(1)));
                if is_lost {
                    evict(talk.node, talk.flows());
                }
                silent_since(talk, talk.node.view.config().unwrap().tcp_linger + 1);
                is_of_the_endpoint_itself(talk, &talk.endpoint_tcp(answer.clone()));
            });
        }
    }
}

/// The ACK of a TIME_WAIT stands in the way of such a connection: its client has to see who says so.
#[test]
fn what_an_endpoint_says_at_a_connection_that_is_over_is_its_own_unless_its_client_was_heard_of_lately() {
    each_way("a TIME_WAIT that stands in the way", Protocol::Tcp, |talk| {
        if talk.seen.source != talk.first.source {
            return;
        }
        let silence = talk.node.view.config().unwrap().tcp_linger + 1;
        establish(talk);
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        talk.client_sends(&talk.client_tcp(ack(1)));
        silent_since(talk, silence);
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(ack(1)));
        silent_since(talk, silence);
        // It may not have got the last ACK.
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        silent_since(talk, silence);
        is_of_the_endpoint_itself(talk, &talk.endpoint_tcp(ack(1)));
    });
}

/// It goes on sending what its client has not acknowledged, with longer and longer pauses.
#[test]
fn what_an_endpoint_sends_again_after_both_ends_is_translated_as_long_as_its_end_was_not_acknowledged() {
    each_way("a last answer that is sent again", Protocol::Tcp, |talk| {
        establish(talk);
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        for _ in 0..3 {
            silent_since(talk, talk.node.view.config().unwrap().tcp_linger + 1);
            talk.endpoint_goes_on();
        }
    });
}

#[test]
fn datagrams_of_an_endpoint_long_after_those_of_a_flow_that_was_lost_are_its_own() {
    each_way("datagrams of a flow that was lost", Protocol::Udp, |talk| {
        if talk.seen.source != talk.first.source {
            return;
        }
        talk.endpoint_goes_on();
        evict(talk.node, talk.flows());
        talk.endpoint_goes_on();
        silent_since(talk, talk.node.view.config().unwrap().udp_idle + 1);
        is_of_the_endpoint_itself(talk, &talk.case.later(talk.seen.destination_socket(), talk.seen.source_socket()));
    });
}

/// The client's port is used again, and the endpoint has not heard the last of the connection before.
#[test]
fn an_end_that_comes_again_from_the_connection_before_closes_nothing_of_the_next_one() {
    each_way("ends that come again before a connection is agreed to", Protocol::Tcp, |talk| {
        endpoint_sends(talk, fin());
        talk.accept();
        talk.client_goes_on();
        client_sends(talk, fin());
        assert_eq!(talk.flow().flags & abi::FLOW_ENDED, 0, "{:?}: its endpoint has said nothing of an end", talk.way);
        endpoint_sends(talk, fin());
        assert_ne!(talk.flow().flags & abi::FLOW_ENDED, 0, "{:?}", talk.way);
    });
}
