//! TCP as its two ends have it: who has closed, what may still come, and when somebody else may have the place of its answers.
//! Each test is a row of the table in docs/adr/0029-when-a-connection-is-over.md.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_testbed::address::Pair;

use crate::case::{BALANCER_IP, CLUSTER_IP, EXTERNAL_IP, PORT};
use crate::entries::{age, evict};
use crate::node::SNAT_PORTS;
use crate::talk::{Talk, each_way};

/// Ticks, as [`Node::configure`](crate::node::Node::configure) has them.
const IDLE: u32 = 7200;
const HALF_CLOSED: u32 = 3600;
pub(crate) const LINGER: u32 = 3;
/// Ticks for which an endpoint may remember a connection that is over.
pub(crate) const REMEMBERED: u32 = (LINGER + 1) * abi::TIME_WAIT_LINGERS;
/// A tick may pass while a test runs.
const SPARE: u32 = 1;

pub(crate) fn fin() -> TcpHeader {
    TcpHeader { fin: true, ack: true, sequence_number: 1006, acknowledgment_number: 5005, ..TcpHeader::default() }
}

pub(crate) fn rst() -> TcpHeader {
    TcpHeader { rst: true, sequence_number: 5005, ..TcpHeader::default() }
}

fn ack() -> TcpHeader {
    TcpHeader { ack: true, sequence_number: 1006, acknowledgment_number: 5006, ..TcpHeader::default() }
}

/// So many ticks pass without a packet.
pub(crate) fn pass(talk: &Talk<'_>, ticks: u32) {
    age(talk.node, talk.flows(), offset_of!(abi::Flow, created), ticks);
    age(talk.node, talk.flows(), offset_of!(abi::Flow, last_seen), ticks);
    age(talk.node, talk.replies(), offset_of!(abi::Reply, last_seen), ticks);
}

/// The client and the endpoint have talked, long ago and now.
pub(crate) fn establish(talk: &Talk<'_>) {
    talk.accept();
    talk.client_goes_on();
    talk.endpoint_goes_on();
    pass(talk, 100);
    talk.client_goes_on();
    talk.endpoint_goes_on();
    assert_eq!(talk.flow().flags & abi::FLOW_OPENING, 0);
}

pub(crate) fn client_sends(talk: &Talk<'_>, header: TcpHeader) {
    talk.client_sends(&talk.client_tcp(header));
}

pub(crate) fn endpoint_sends(talk: &Talk<'_>, header: TcpHeader) {
    talk.endpoint_sends(&talk.endpoint_tcp(header));
}

fn in_the_nodes_name(talk: &Talk<'_>) -> bool {
    talk.seen.source_socket() != talk.first.source_socket()
}

/// Whether a new connection to a frontend gets the place that this one's answers have: of one in the node's name the source
/// port, when it is its turn; else the client's port, towards the same endpoint.
fn is_taken(talk: &Talk<'_>, frontend: Pair, ports: &[u16]) -> bool {
    let (node, case, place) = (talk.node, talk.case, talk.seen.source_socket());
    let client = if in_the_nodes_name(talk) {
        node.datapath.set_source_ports(&ports.iter().copied().collect()).unwrap();
        case.at(talk.way.client, node.client_port())
    } else {
        talk.first.source_socket()
    };
    let outcome = node.insist(talk.way.to.0, talk.way.to.1, &case.first(client, case.at(frontend, PORT)));
    node.datapath.set_source_ports(&(SNAT_PORTS.0..=SNAT_PORTS.1).collect()).unwrap();
    matches!(outcome.reason, abi::REASON_TO_LOCAL | abi::REASON_TO_REMOTE) && outcome.packet().source_socket() == place
}

/// Nobody gets the place, not even if there is no other one.
#[track_caller]
fn assert_kept(talk: &Talk<'_>) {
    assert!(!is_taken(talk, BALANCER_IP, &[talk.seen.source_socket().port()]), "{:?} {:?}", talk.case, talk.way);
}

#[track_caller]
fn assert_free(talk: &Talk<'_>) {
    assert!(is_taken(talk, EXTERNAL_IP, &[talk.seen.source_socket().port()]), "{:?} {:?}", talk.case, talk.way);
}

/// Whether one of two new connections gets this one's source port, where there is another one for both.
fn is_taken_in_turn(talk: &Talk<'_>) -> bool {
    let port = talk.seen.source_socket().port();
    (0..2).any(|_| is_taken(talk, CLUSTER_IP, &[port - 1, port]))
}

#[test]
fn a_client_that_has_closed_gets_for_as_long_as_it_takes_what_its_backend_still_sends() {
    each_way("connections that their client has closed", Protocol::Tcp, |talk| {
        establish(talk);
        client_sends(talk, fin());
        for _ in 0..3 {
            pass(talk, HALF_CLOSED - SPARE);
            talk.endpoint_goes_on();
            client_sends(talk, ack());
        }
        pass(talk, HALF_CLOSED - SPARE);
        assert_kept(talk);
        pass(talk, SPARE + 1);
        assert_free(talk);
    });
}

#[test]
fn a_backend_that_has_closed_gets_for_as_long_as_it_takes_what_its_client_still_sends() {
    each_way("connections that their backend has closed", Protocol::Tcp, |talk| {
        establish(talk);
        endpoint_sends(talk, fin());
        for _ in 0..3 {
            pass(talk, HALF_CLOSED - SPARE);
            talk.client_goes_on();
            endpoint_sends(talk, ack());
        }
        pass(talk, HALF_CLOSED - SPARE);
        assert_kept(talk);
        pass(talk, SPARE + 1);
        assert_free(talk);
    });
}

/// What comes late passes, and the place is given away only after a silence, if there is another one.
fn lingers(what: &str, end: impl Fn(&Talk<'_>)) {
    each_way(what, Protocol::Tcp, |talk| {
        establish(talk);
        end(talk);
        for _ in 0..3 {
            pass(talk, LINGER - SPARE);
            endpoint_sends(talk, fin());
            client_sends(talk, ack());
            client_sends(talk, fin());
            endpoint_sends(talk, ack());
        }
        if in_the_nodes_name(talk) {
            pass(talk, REMEMBERED - SPARE);
            assert!(!is_taken_in_turn(talk), "{:?} {:?}", talk.case, talk.way);
            pass(talk, SPARE + 1);
            assert!(is_taken_in_turn(talk), "{:?} {:?}", talk.case, talk.way);
        } else {
            assert_free(talk);
        }
    });
}

#[test]
fn after_the_client_and_then_the_backend_has_closed_late_packets_pass_and_the_place_lingers() {
    lingers("connections that the client closes first", |talk| {
        client_sends(talk, fin());
        endpoint_sends(talk, ack());
        endpoint_sends(talk, fin());
        client_sends(talk, ack());
    });
}

#[test]
fn after_the_backend_and_then_the_client_has_closed_late_packets_pass_and_the_place_lingers() {
    lingers("connections that the backend closes first", |talk| {
        endpoint_sends(talk, fin());
        client_sends(talk, fin());
        endpoint_sends(talk, ack());
    });
}

#[test]
fn after_a_reset_by_the_client_late_packets_pass_and_the_place_lingers() {
    lingers("connections that the client resets", |talk| client_sends(talk, rst()));
}

#[test]
fn after_a_reset_by_the_backend_late_packets_pass_and_the_place_lingers() {
    lingers("connections that the backend resets", |talk| endpoint_sends(talk, rst()));
}

#[test]
fn a_connection_that_goes_on_after_a_reset_which_its_ends_did_not_believe_keeps_its_place() {
    each_way("forged resets", Protocol::Tcp, |talk| {
        establish(talk);
        client_sends(talk, rst());
        endpoint_sends(talk, rst());
        for _ in 0..5 {
            pass(talk, LINGER - SPARE);
            talk.client_goes_on();
            talk.endpoint_goes_on();
        }
        assert!(!in_the_nodes_name(talk) || !is_taken_in_turn(talk), "{:?} {:?}", talk.case, talk.way);
        talk.client_goes_on();
        talk.endpoint_goes_on();
    });
}

/// Whether a flow has gone back to where it began, so that a flood may take its place.
fn is_retired(talk: &Talk<'_>) -> bool {
    talk.flow().flags & abi::FLOW_OPENING != 0
}

/// The end that came second may be lost behind us, and comes again to the same endpoint: RFC 9293, 3.6.
#[test]
fn a_connection_goes_on_until_the_second_end_is_acknowledged_whatever_else_is_said_meanwhile() {
    type Sends = fn(&Talk<'_>, TcpHeader);
    let client: (&str, [Sends; 2]) = ("the client", [endpoint_sends, client_sends]);
    for (second, [first_sends, second_sends]) in [client, ("the endpoint", [client_sends, endpoint_sends])] {
        each_way("ends that are lost", Protocol::Tcp, |talk| {
            establish(talk);
            first_sends(talk, fin());
            second_sends(talk, fin());
            // It has not arrived: the other side goes on asking, and gets the acknowledgement of its own.
            first_sends(talk, fin());
            second_sends(talk, ack());
            second_sends(talk, fin());
            assert!(!is_retired(talk), "{second} has closed second: {:?} {:?}", talk.case, talk.way);
            first_sends(talk, ack());
            assert!(is_retired(talk), "{second} has closed second: {:?} {:?}", talk.case, talk.way);
        });
    }
}

/// Whether the client's SYN, sent again, begins another flow. Either way it reaches the endpoint.
pub(crate) fn begins_anew(talk: &Talk<'_>) -> bool {
    let before = talk.counters().flows;
    let again = Talk::open_with(talk.node, talk.case, talk.way, talk.first.clone());
    assert_eq!(again.seen.destination_socket(), talk.seen.destination_socket());
    let anew = talk.counters().flows != before;
    assert!(
        !anew || talk.flow().flags & (abi::FLOW_OPENING | abi::FLOW_CLOSING | abi::FLOW_ENDED) == abi::FLOW_OPENING
    );
    anew
}

#[test]
fn a_client_port_that_is_used_again_after_the_end_has_a_new_flow_at_once() {
    let ends: [fn(&Talk<'_>); 3] = [
        |talk| {
            client_sends(talk, fin());
            endpoint_sends(talk, fin());
        },
        |talk| {
            client_sends(talk, rst());
            pass(talk, LINGER + 1);
        },
        |talk| endpoint_sends(talk, rst()),
    ];
    for end in ends {
        each_way("client ports that are used again", Protocol::Tcp, |talk| {
            establish(talk);
            end(talk);
            assert!(begins_anew(talk));
            assert!(!begins_anew(talk), "a SYN that was sent twice");
        });
    }
}

/// RFC 9293, 3.10.7.4: who knows of the connection acknowledges what it expects, and a client that does not know resets it.
#[test]
fn a_syn_in_an_open_connection_is_for_its_backend_to_judge_and_so_it_is_soon_after_the_clients_reset() {
    each_way("SYNs in open connections", Protocol::Tcp, |talk| {
        establish(talk);
        for _ in 0..2 {
            assert!(!begins_anew(talk));
            endpoint_sends(talk, ack());
            pass(talk, LINGER + 1);
        }
        client_sends(talk, rst());
        assert!(!begins_anew(talk));
        talk.accept();
        talk.client_goes_on();
        assert_eq!(talk.flow().flags & (abi::FLOW_OPENING | abi::FLOW_CLOSING | abi::FLOW_ENDED), 0);
    });
}

/// RFC 5961, 3.2: its backend alone knows that the reset has not the number that comes next.
#[test]
fn a_reset_that_somebody_sends_in_the_clients_name_takes_nothing_from_a_connection_that_goes_on() {
    each_way("resets in the client's name", Protocol::Tcp, |talk| {
        establish(talk);
        let before = talk.flow();
        for syn_too in [false, true] {
            let open = talk.counters().balance;
            client_sends(talk, rst());
            assert_eq!(talk.counters().balance + 1, open);
            assert!(!syn_too || !begins_anew(talk));
            talk.endpoint_goes_on();
            talk.client_goes_on();
            let after = talk.flow();
            assert_eq!((after.flags, after.snat_port, after.created), (before.flags, before.snat_port, before.created));
            assert_eq!(talk.counters().balance, open);
        }
        let open = talk.counters().balance;
        client_sends(talk, rst());
        endpoint_sends(talk, rst());
        talk.client_goes_on();
        assert_eq!(talk.counters().balance + 1, open, "its backend has ended it");
    });
}

/// An endpoint answers a SYN as its TIME_WAIT has it, where the client's port was used before for something else.
#[test]
fn a_client_that_resets_what_is_for_an_earlier_connection_goes_on_asking_the_same_backend() {
    each_way("resets of earlier connections", Protocol::Tcp, |talk| {
        endpoint_sends(talk, ack());
        client_sends(talk, rst());
        assert!(!begins_anew(talk));
        talk.accept();
        client_sends(talk, rst());
        pass(talk, LINGER + 1);
        assert_eq!(begins_anew(talk), !in_the_nodes_name(talk), "who was accepted and resets ends it");
    });
}

/// What a client has closed somebody else may have closed in its name.
#[test]
fn so_it_is_in_a_half_closed_one_unless_its_backend_has_closed_it_and_it_is_at_rest() {
    let closes: [fn(&Talk<'_>); 2] = [|talk| client_sends(talk, fin()), |talk| endpoint_sends(talk, fin())];
    for (close, by_backend) in closes.into_iter().zip([false, true]) {
        each_way("SYNs in half-closed connections", Protocol::Tcp, |talk| {
            establish(talk);
            close(talk);
            assert!(!begins_anew(talk));
            endpoint_sends(talk, ack());
            pass(talk, LINGER + 1);
            assert_eq!(begins_anew(talk), by_backend);
        });
    }
}

#[test]
fn an_idle_connection_keeps_its_place_from_one_keepalive_to_the_next() {
    each_way("keepalives", Protocol::Tcp, |talk| {
        establish(talk);
        for _ in 0..3 {
            pass(talk, IDLE - SPARE);
            client_sends(talk, ack());
            endpoint_sends(talk, ack());
        }
        // Whoever listens only is there all the same.
        for _ in 0..2 {
            pass(talk, IDLE - SPARE);
            endpoint_sends(talk, ack());
        }
        pass(talk, IDLE - SPARE);
        assert_kept(talk);
        pass(talk, SPARE + 1);
        assert_free(talk);
    });
}

#[test]
fn the_middle_of_a_connection_of_which_nothing_is_known_is_adopted_and_a_reset_dropped() {
    each_way("connections without entries", Protocol::Tcp, |talk| {
        establish(talk);
        evict(talk.node, talk.flows());
        evict(talk.node, talk.replies());
        let (hook, device) = talk.way.to;
        assert_eq!(talk.node.send(hook, device, &talk.client_tcp(rst())).reason, abi::REASON_STALE);
        let later = talk.case.later(talk.first.source_socket(), talk.first.destination_socket());
        let adopted = talk.node.send(hook, device, &later).packet();
        assert_eq!(adopted.destination_socket(), talk.seen.destination_socket());
        // In the node's name, too: the client's port has kept the source port.
        assert_eq!(adopted.source_socket(), talk.seen.source_socket());
        talk.endpoint_goes_on();
        talk.client_goes_on();
    });
}

#[test]
fn one_that_is_adopted_with_its_clients_fin_is_half_closed_and_ends_with_its_backends() {
    each_way("connections that are adopted with a FIN", Protocol::Tcp, |talk| {
        establish(talk);
        let before = talk.counters().balance;
        evict(talk.node, talk.flows());
        evict(talk.node, talk.replies());
        let adopted = Talk::open_with(talk.node, talk.case, talk.way, talk.client_tcp(fin()));
        let is = |flags: u16| adopted.flow().flags & (abi::FLOW_CLOSING | abi::FLOW_ENDED) == flags;
        assert!(is(abi::FLOW_CLOSING), "{:?} {:?}", talk.case, talk.way);
        assert_eq!(adopted.counters().balance, before + 1);
        endpoint_sends(&adopted, fin());
        assert!(is(abi::FLOW_CLOSING | abi::FLOW_ENDED), "{:?} {:?}", talk.case, talk.way);
        assert_eq!(adopted.counters().balance, before);
        client_sends(&adopted, fin());
        endpoint_sends(&adopted, ack());
        assert_eq!(adopted.counters().balance, before, "what comes again counts once");
    });
}
