//! What the programs tell of a backend: answers, failures, delays and bytes of its flows.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_abi::ticks;
use weir_core::model::{Family, Protocol, Service, ServicePort};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};

use crate::case::{CASES, CLUSTER_IP, Case, PORT, SCTP_ABORT, SCTP_INIT, SCTP_INIT_ACK, cases, sctp};
use crate::entries::age;
use crate::node::{Device, Node, web};
use crate::talk::{NIC_IN, Talk, WAYS, Way, each_way};

/// So long a SYN must be under way until the same once more was sent again.
const SYN_AGAIN: Duration = Duration::from_millis(100);

/// What happened between two readings of a backend's counters.
fn grown(before: abi::BackendCounters, after: abi::BackendCounters) -> abi::BackendCounters {
    abi::BackendCounters {
        flows: after.flows - before.flows,
        answered: after.answered.wrapping_sub(before.answered),
        delay: after.delay - before.delay,
        refused: after.refused.wrapping_sub(before.refused),
        gone_on: after.gone_on.wrapping_sub(before.gone_on),
        going: after.going.wrapping_sub(before.going),
        unanswered: after.unanswered - before.unanswered,
        failed_over: after.failed_over - before.failed_over,
        bytes_to: after.bytes_to - before.bytes_to,
        bytes_from: after.bytes_from - before.bytes_from,
        balance: after.balance.wrapping_sub(before.balance),
        base: after.base.wrapping_sub(before.base),
    }
}

/// The endpoint's counters have one flow with an answer, all of its bytes, and no connection that goes on.
#[track_caller]
fn assert_told_of_one_answered(talk: &Talk<'_>) {
    let counters = talk.counters();
    let expected = abi::BackendCounters {
        flows: 1,
        answered: 1,
        delay: counters.delay,
        gone_on: 1,
        bytes_to: talk.bytes_to.get(),
        bytes_from: talk.bytes_from.get(),
        ..abi::BackendCounters::default()
    };
    assert_eq!(counters, expected, "{:?} {:?}", talk.case, talk.way);
}

#[test]
fn a_connection_is_answered_once_and_all_its_bytes_are_told_when_it_ends() {
    each_way("signals of a connection", Protocol::Tcp, |talk| {
        talk.accept();
        for _ in 0..40 {
            talk.client_goes_on();
            talk.endpoint_goes_on();
        }
        talk.accept();
        talk.client_sends(&talk.client_tcp(TcpHeader { fin: true, ack: true, ..TcpHeader::default() }));
        talk.endpoint_sends(&talk.endpoint_tcp(TcpHeader { fin: true, ack: true, ..TcpHeader::default() }));
        talk.client_goes_on();
        talk.endpoint_goes_on();
        assert_told_of_one_answered(talk);
    });
}

#[test]
fn the_balance_is_of_connections_that_began_and_have_not_ended() {
    each_way("the balance of connections", Protocol::Tcp, |talk| {
        let other = Talk::open(talk.node, talk.case, talk.way);
        talk.client_sends(&talk.first);
        assert_eq!(talk.counters().balance, 2);
        let fin = || TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
        talk.client_sends(&talk.client_tcp(fin()));
        other.endpoint_sends(&other.endpoint_tcp(fin()));
        assert_eq!(talk.counters().balance, 2, "the other side of each may go on");
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        assert_eq!(talk.counters().balance, 1);
        talk.client_sends(&talk.client_tcp(TcpHeader { rst: true, ..TcpHeader::default() }));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        assert_eq!(talk.counters().balance, 1, "each ends once");
        other.client_sends(&other.client_tcp(fin()));
        assert_eq!(talk.counters().balance, 0);
        let reset = Talk::open(talk.node, talk.case, talk.way);
        assert_eq!(talk.counters().balance, 1);
        reset.refuse();
        assert_eq!(talk.counters().balance, 0);
    });
}

#[test]
fn what_counters_lack_of_a_connection_that_goes_on_is_in_its_entry_until_another_tick() {
    each_way("bytes held back", Protocol::Tcp, |talk| {
        talk.accept();
        for _ in 0..40 {
            talk.client_goes_on();
            assert_eq!(talk.counters().bytes_to + u64::from(talk.flow().held), talk.bytes_to.get());
        }
        age(talk.node, talk.flows(), offset_of!(abi::Flow, last_seen), 1);
        talk.client_goes_on();
        assert_eq!(talk.counters().bytes_to, talk.bytes_to.get());
        for _ in 0..40 {
            talk.endpoint_goes_on();
        }
        age(talk.node, talk.replies(), offset_of!(abi::Reply, last_seen), 1);
        talk.endpoint_goes_on();
        assert_eq!(talk.counters().bytes_from, talk.bytes_from.get());
    });
}

#[test]
fn the_first_answer_to_a_datagram_counts_and_few_datagrams_are_told_at_once() {
    each_way("signals of datagrams", Protocol::Udp, |talk| {
        for _ in 0..3 {
            talk.endpoint_goes_on();
        }
        for _ in 0..12 {
            talk.client_goes_on();
        }
        assert_told_of_one_answered(talk);
        for _ in 0..100 {
            talk.client_goes_on();
            let (told, sent) = (talk.counters().bytes_to, talk.bytes_to.get());
            assert!(told <= sent && sent - told <= sent / 16, "{told} of {sent} bytes");
        }
    });
}

#[test]
fn the_delay_is_from_the_first_packet_to_its_answer() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        each_way("delays", protocol, |talk| {
            let waited = Duration::from_millis(20);
            talk.wait(waited);
            match protocol {
                Protocol::Tcp => talk.accept(),
                Protocol::Udp | Protocol::Sctp => talk.endpoint_goes_on(),
            }
            let delay = ticks::delay(talk.counters().delay);
            // Both ends are rounded to units.
            let rounding = ticks::delay(2);
            let most = waited + talk.opened.elapsed();
            assert!(delay + rounding >= waited && delay <= most + rounding, "{delay:?}, at most {most:?}");
        });
    }
}

#[test]
fn a_reset_in_answer_to_a_syn_is_a_refusal_and_one_later_is_not() {
    each_way("refusals", Protocol::Tcp, |talk| {
        talk.refuse();
        talk.refuse();
        assert_eq!((talk.counters().refused, talk.counters().answered, talk.counters().delay), (1, 0, 0));

        let accepted = Talk::open(talk.node, talk.case, talk.way);
        accepted.accept();
        accepted.refuse();
        assert_eq!((accepted.counters().refused, accepted.counters().answered), (1, 1));
    });
}

#[test]
fn a_client_that_is_refused_and_tries_again_from_the_same_port_has_a_new_flow() {
    each_way("refused twice", Protocol::Tcp, |talk| {
        talk.refuse();
        let again = Talk::open_with(talk.node, talk.case, talk.way, talk.first.clone());
        again.refuse();
        let counters = again.counters();
        assert_eq!((counters.flows, counters.refused, counters.unanswered), (2, 2, 0));
    });
}

#[test]
fn a_syn_that_comes_again_without_an_answer_is_counted_and_its_answer_is_timed() {
    each_way("unanswered SYNs", Protocol::Tcp, |talk| {
        for times in 1..4 {
            talk.wait(SYN_AGAIN);
            talk.client_sends(&talk.first);
            assert_eq!(talk.counters().unanswered, times);
        }
        talk.wait(Duration::from_secs(3));
        talk.client_sends(&talk.first);
        talk.accept();
        talk.client_sends(&talk.first);
        let counters = talk.counters();
        assert_eq!((counters.flows, counters.unanswered, counters.answered, counters.refused), (1, 4, 1, 0));
        assert!(ticks::delay(counters.delay) < Duration::from_secs(3), "{counters:?}");
    });
}

#[test]
fn a_syn_that_xdp_leaves_to_tc_is_one_syn() {
    let Some(mut node) = Node::new("signals of what XDP leaves to tc") else { return };
    // Behind a device that XDP does not know.
    node.serve(web(), &[(4, 1)]);
    for case in cases(Protocol::Tcp) {
        let started = Instant::now();
        let first = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        assert_eq!(node.send(Hook::Xdp, Device::Eth0, &first).reason, abi::REASON_LEFT_TO_TC);
        let way = Way { client: CLIENT, endpoint: (4, 1), to: NIC_IN, back: NIC_IN };
        let talk = Talk::open_with(&node, case, way, first);
        let counters = talk.counters();
        assert_eq!((counters.flows, counters.bytes_to), (1, talk.bytes_to.get()));
        assert!(counters.unanswered == 0 || started.elapsed() >= SYN_AGAIN, "{counters:?}");
    }
}

#[test]
fn a_connection_that_was_there_before_us_says_nothing_of_its_backend_but_that_it_ends() {
    let Some(mut node) = Node::new("signals of adopted connections") else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            node.serve(web(), &[way.endpoint]);
            let middle = case.later(case.at(way.client, node.client_port()), case.at(CLUSTER_IP, PORT));
            let talk = Talk::open_with(&node, case, way, middle);
            let before = talk.counters();
            talk.refuse();
            let grown = grown(before, talk.counters());
            let bytes_from = talk.bytes_from.get();
            let balance = 0_u32.wrapping_sub(1);
            assert_eq!(grown, abi::BackendCounters { bytes_from, balance, ..abi::BackendCounters::default() });
        }
    }
}

#[test]
fn late_answers_of_an_endpoint_that_is_gone_are_not_its_successors() {
    let Some(mut node) = Node::new("signals of a slot's former owner") else { return };
    for case in CASES {
        node.serve(web(), &[(1, 1)]);
        let first = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        let seen = node.send(Hook::NicIn, Device::Eth0, &first).packet();
        let slots = |node: &Node| {
            let used = |(id, backend): &(u32, abi::Backend)| (backend.flags & abi::BACKEND_USED != 0).then_some(*id);
            node.view.dump().unwrap().backends.iter().filter_map(used).collect::<Vec<_>>()
        };
        let former = slots(&node);
        node.serve(web(), &[]);
        node.release();
        node.release();
        node.serve(web(), &[(1, 2)]);
        assert_eq!(slots(&node), former, "the fixture's slots are taken again");
        let late = case.later(seen.destination_socket(), seen.source_socket());
        assert_eq!(node.send(Hook::NicOut, Device::Eth0, &late).reason, abi::REASON_BACK);
        for slot in former {
            assert_eq!(node.view.backend_counters(slot).unwrap(), abi::BackendCounters::default(), "{case:?}");
        }
    }
}

/// RFC 9293, 3.10.7.1: to what it takes for the middle of a connection it has no number to acknowledge.
#[test]
fn a_reset_that_does_not_answer_a_syn_refuses_nothing() {
    each_way("resets of forged middles", Protocol::Tcp, |talk| {
        let later = talk.case.later(talk.first.source_socket(), talk.first.destination_socket());
        talk.client_sends(&later);
        talk.endpoint_sends(&talk.endpoint_tcp(TcpHeader { rst: true, sequence_number: 5000, ..TcpHeader::default() }));
        let abi::BackendCounters { answered, refused, .. } = talk.counters();
        assert_eq!((answered, refused), (0, 0), "{:?}", talk.way);
    });
}

#[test]
fn an_sctp_association_is_answered_by_an_init_ack_and_refused_by_an_abort() {
    let Some(mut node) = Node::new("signals of SCTP") else { return };
    let port = ServicePort { name: "sctp".into(), protocol: Protocol::Sctp, port: PORT, node_port: None };
    for family in [Family::V4, Family::V6] {
        let case = Case { family, protocol: Protocol::Sctp };
        for way in WAYS {
            node.serve(Service { ports: vec![port.clone()], ..web() }, &[way.endpoint]);
            for (chunk, outcome) in [(SCTP_INIT_ACK, (1, 0)), (SCTP_ABORT, (0, 1))] {
                let client = case.at(way.client, node.client_port());
                let known = if way.endpoint.0 == 1 { client.ip() } else { case.ip(address::node(1)) };
                let answered = (known, client.port()).into();
                node.send(way.to.0, way.to.1, &sctp(client, case.at(CLUSTER_IP, PORT), SCTP_INIT));
                let entry = node.view.flows().unwrap().into_iter().find(|flow| flow.client_port == client.port());
                let slot = entry.unwrap().flow.backend;
                let before = node.view.backend_counters(slot).unwrap();
                let pod = case.at(address::pod(way.endpoint.0, way.endpoint.1), PORT);
                assert_eq!(node.send(way.back.0, way.back.1, &sctp(pod, answered, chunk)).reason, abi::REASON_BACK);
                let grown = grown(before, node.view.backend_counters(slot).unwrap());
                assert_eq!((grown.answered, grown.refused), outcome, "{case:?} {way:?}");
            }
        }
    }
}
