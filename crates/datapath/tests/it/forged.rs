//! What others send in a client's name, or in the node's, who know no more of a connection than its ends: it costs nobody anything.

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address;
use weir_testbed::packet::Packet;

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, PORT, TARGET_PORT, cases};
use crate::node::{Device, Node, SNAT_PORTS, TC_SHOT, TC_UNSPEC, XDP_PASS, web};
use crate::talk::{Talk, WAYS, each_way};
use crate::tcp_state::{LINGER, begins_anew, client_sends, endpoint_sends, establish, pass};

/// What the endpoint has acknowledged last.
const HEARD: u32 = 1_000_000_000;
/// In bytes.
const FAR: u32 = (abi::HEARD_FAR as u32) << abi::HEARD_SHIFT;

fn is_over(talk: &Talk<'_>) -> bool {
    talk.flow().flags & (abi::FLOW_CLOSING | abi::FLOW_ENDED) != 0
}

/// A connection that goes on, of which the endpoint has acknowledged so much.
fn heard(talk: &Talk<'_>) {
    establish(talk);
    endpoint_sends(talk, TcpHeader { ack: true, acknowledgment_number: HEARD, ..TcpHeader::default() });
}

#[test]
fn an_end_that_is_nowhere_near_what_the_endpoint_has_acknowledged_ends_nothing() {
    for (fin, rst) in [(true, false), (false, true)] {
        each_way("ends in the client's name", Protocol::Tcp, |talk| {
            heard(talk);
            let open = talk.counters().balance;
            for number in [0, HEARD - (1 << 20), HEARD + FAR + (1 << 20), HEARD + (1 << 31)] {
                client_sends(talk, TcpHeader { fin, rst, ack: true, sequence_number: number, ..TcpHeader::default() });
                assert!(!is_over(talk), "{number} {:?}", talk.way);
            }
            assert_eq!(talk.counters().balance, open);
            pass(talk, 10 * LINGER);
            assert!(!begins_anew(talk), "{:?}", talk.way);
        });
    }
}

/// Only the first piece has the number. What it says may come in pieces where a router cuts.
#[test]
fn a_later_piece_of_an_answer_does_not_make_forget_what_the_endpoint_has_acknowledged() {
    each_way("ends in the client's name beside pieces", Protocol::Tcp, |talk| {
        // XDP leaves pieces to tc.
        if talk.way.back.0 == Hook::Xdp {
            return;
        }
        heard(talk);
        let header = TcpHeader { ack: true, acknowledgment_number: HEARD, ..TcpHeader::default() };
        let ends = (talk.seen.destination_socket(), talk.seen.source_socket());
        for piece in Packet::tcp(ends.0, ends.1, header, &[0; 400]).cut(200) {
            talk.endpoint_sends(&piece);
        }
        client_sends(talk, TcpHeader { rst: true, sequence_number: HEARD / 2, ..TcpHeader::default() });
        assert!(!is_over(talk), "{:?}", talk.way);
    });
}

#[test]
fn its_clients_own_end_is_one_however_much_of_what_it_has_sent_is_yet_to_be_acknowledged() {
    for (fin, rst) in [(true, false), (false, true)] {
        for ahead in [0, 5, 64 << 10, FAR] {
            each_way("ends of the client", Protocol::Tcp, |talk| {
                heard(talk);
                let header = TcpHeader { fin, rst, ack: true, sequence_number: HEARD + ahead, ..TcpHeader::default() };
                client_sends(talk, header);
                assert!(is_over(talk), "{ahead} {:?}", talk.way);
            });
        }
    }
}

/// It would have to know the client's numbers of before that.
#[test]
fn the_first_end_after_a_connection_has_begun_is_believed() {
    each_way("ends of connections that have only just begun", Protocol::Tcp, |talk| {
        talk.accept();
        talk.client_goes_on();
        client_sends(talk, TcpHeader { rst: true, sequence_number: 3_000_000_000, ..TcpHeader::default() });
        assert!(is_over(talk), "{:?}", talk.way);
    });
}

/// To an acknowledgement of what it has not sent an endpoint says that without one of its own (RFC 9293, 3.10.7.2), and awaits its client's as before.
#[test]
fn what_an_endpoint_says_to_a_forged_acknowledgement_does_not_end_the_connection_that_begins() {
    each_way("resets of what nobody has sent", Protocol::Tcp, |talk| {
        let forge = || {
            let number = 3_000_000_000;
            client_sends(talk, TcpHeader { ack: true, acknowledgment_number: number, ..TcpHeader::default() });
            endpoint_sends(talk, TcpHeader { rst: true, sequence_number: number, ..TcpHeader::default() });
            assert!(!is_over(talk), "{:?}", talk.way);
        };
        (0..2).for_each(|_| forge());
        talk.accept();
        (0..2).for_each(|_| forge());
        assert_eq!(talk.counters().answered, 1, "{:?}", talk.way);
        talk.client_goes_on();
        assert_eq!(talk.flow().flags & abi::FLOW_OPENING, 0, "{:?}", talk.way);
        pass(talk, 10 * LINGER);
        talk.endpoint_goes_on();
    });
}

#[test]
fn a_forged_reset_does_not_give_a_connections_place_to_another_frontend() {
    each_way("places of connections that somebody has reset", Protocol::Tcp, |talk| {
        heard(talk);
        client_sends(talk, TcpHeader { rst: true, sequence_number: HEARD / 2, ..TcpHeader::default() });
        let other = talk.case.first(talk.first.source_socket(), talk.case.at(BALANCER_IP, PORT));
        talk.node.send(talk.way.to.0, talk.way.to.1, &other);
        let answer = talk.case.later(talk.seen.destination_socket(), talk.seen.source_socket());
        let back = talk.node.send(talk.way.back.0, talk.way.back.1, &answer).packet();
        assert_eq!(back.source_socket(), talk.first.destination_socket(), "{:?}", talk.way);
        pass(talk, 1);
        talk.client_goes_on();
    });
}

/// The host drops such a packet, but only after the programs.
#[test]
fn whoever_sends_in_the_nodes_own_name_gets_nothing_of_what_others_are_answered() {
    let Some(mut node) = Node::new("packets in the node's own name") else { return };
    node.serve(web(), &[(2, 1)]);
    let untouched = |case: Case, hook, device, forged: &Packet| {
        let verdict = if hook == Hook::Xdp { XDP_PASS } else { TC_UNSPEC };
        node.send(hook, device, forged).is_untouched(verdict, abi::REASON_NO_FRONTEND, &forged.to_bytes());
        assert!(!node.view.flows().unwrap().iter().any(|entry| entry.client == forged.source.into()), "{case:?}");
    };
    for case in CASES {
        let talk = Talk::open(&node, case, WAYS[2]);
        talk.endpoint_goes_on();
        talk.client_goes_on();
        let own = talk.seen.source_socket();
        for forged in [case.first(own, case.at(CLUSTER_IP, PORT)), case.later(own, case.at(CLUSTER_IP, PORT))] {
            untouched(case, Hook::PodIn, Device::Pod1, &forged);
            untouched(case, Hook::NicIn, Device::Eth0, &forged);
            untouched(case, Hook::Xdp, Device::Eth0, &forged);
        }
        talk.endpoint_goes_on();
        talk.client_goes_on();
    }
}

/// A client of another node's has such a port there, and an endpoint here; nothing is known of it here, and what the endpoint says to that node is not ours.
#[test]
fn who_sends_in_another_nodes_name_from_a_port_that_nodes_give_out_does_not_get_what_is_for_that_nodes_client() {
    let Some(mut node) = Node::new("forged addresses of nodes") else { return };
    node.serve(web(), &[(1, 1)]);
    node.direct(&[]);
    for case in [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(cases) {
        // A flow of each hook's own.
        for (hook, device, port) in
            [(Hook::NicIn, Device::Eth0, SNAT_PORTS.0), (Hook::PodIn, Device::Pod1, SNAT_PORTS.1)]
        {
            let theirs = case.at(address::node(2), port);
            let said = case.later(case.at(address::pod(1, 1), TARGET_PORT), theirs);
            let outcome = node.send(hook, device, &case.first(theirs, case.at(CLUSTER_IP, PORT)));
            assert_eq!(outcome.reason, abi::REASON_TO_LOCAL, "{case:?}");
            let seen = outcome.packet().source_socket();
            assert_eq!(seen.ip(), theirs.ip(), "{case:?}: network policies see who asks");
            assert!(!(SNAT_PORTS.0..=SNAT_PORTS.1).contains(&seen.port()), "{case:?}: {seen} is none of that node's");
            let outcome = node.send(Hook::NicOut, Device::Eth0, &said);
            outcome.is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &said.to_bytes());
        }
        // A process of that node has another one, and keeps its address.
        let process = case.first(case.at(address::node(2), SNAT_PORTS.1 + 1), case.at(CLUSTER_IP, PORT));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &process);
        assert_eq!(outcome.packet().source_socket(), process.source_socket(), "{case:?}");
    }
    // Where nodes give out all of them there is none for it.
    node.configure((1024, u16::MAX), true);
    for case in [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(cases) {
        let forged = case.first(case.at(address::node(2), SNAT_PORTS.1 + 2), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &forged).is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
    }
}
