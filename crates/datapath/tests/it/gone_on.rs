//! What counts as load: connections whose clients go on after the answer, which nobody does who sends in another's name; and all flows that no packet tells this of.

use etherparse::TcpHeader;
use nix::time::{ClockId, clock_gettime};
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::{Hook, tick_clock};
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::Packet;

use crate::case::{CLUSTER_IP, Case, PORT, TARGET_PORT, cases, tcp};
use crate::direct::later;
use crate::ended::{fin, reset};
use crate::node::{Device, Node, web};
use crate::openings::{allow, begins, open_in_flood};
use crate::settled::{each_settled_way, wait_for_a_tick};
use crate::talk::{Talk, WAYS, each_way};
use crate::unwrap::by_entry;

/// Flows of the Service that went on: on the node, and away from it; and those of the endpoint.
fn gone_on(node: &Node, flow: &abi::Flow) -> (u64, u64, u32) {
    let abi::ServiceCounters { local_gone_on, remote_gone_on, .. } = node.view.service_counters(flow.service).unwrap();
    (local_gone_on, remote_gone_on, node.view.backend_counters(flow.backend).unwrap().gone_on)
}

/// What is counted of a conversation's flows.
#[track_caller]
fn assert_gone_on(talk: &Talk<'_>, flows: u32) {
    let here = talk.way.endpoint.0 == 1;
    let (local, remote) = if here { (flows, 0) } else { (0, flows) };
    let expected = (local.into(), remote.into(), flows);
    assert_eq!(gone_on(talk.node, &talk.flow()), expected, "{:?} {:?}", talk.case, talk.way);
}

#[test]
fn a_connection_counts_once_when_its_client_goes_on_after_the_answer() {
    each_way("connections that go on", Protocol::Tcp, |talk| {
        talk.client_sends(&talk.first);
        talk.client_goes_on();
        assert_gone_on(talk, 0);
        talk.accept();
        talk.client_sends(&talk.first);
        assert_gone_on(talk, 0);
        talk.client_goes_on();
        assert_gone_on(talk, 1);
        talk.endpoint_goes_on();
        talk.client_goes_on();
        assert_gone_on(talk, 1);
        assert_eq!(talk.flow().flags & abi::FLOW_GONE_ON, abi::FLOW_GONE_ON);
        let next = Talk::open(talk.node, talk.case, talk.way);
        next.accept();
        assert_gone_on(&next, 1);
        next.client_goes_on();
        assert_gone_on(&next, 2);
    });
}

#[test]
fn a_connection_that_settled_where_it_began_counts_once_when_it_moves_later() {
    each_settled_way("connections that settle", |talk| {
        assert_gone_on(talk, 1);
        wait_for_a_tick(talk);
        talk.client_goes_on();
        assert!(!begins(talk));
        assert_gone_on(talk, 1);
    });
}

#[test]
fn what_goes_on_is_open_until_it_ends_and_again_where_it_had_only_seemed_to() {
    each_way("the balance of what goes on", Protocol::Tcp, |talk| {
        let going = || {
            let abi::BackendCounters { balance, going, gone_on, .. } = talk.counters();
            (balance, going, gone_on)
        };
        let other = Talk::open(talk.node, talk.case, talk.way);
        talk.accept();
        assert_eq!(going(), (2, 0, 0));
        talk.client_goes_on();
        assert_eq!(going(), (2, 1, 1));
        talk.client_sends(&talk.client_tcp(reset()));
        assert_eq!(going(), (1, 0, 1));
        talk.client_goes_on();
        assert_eq!(going(), (2, 1, 1), "somebody else has sent that, as it goes on");
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        assert_eq!(going(), (1, 0, 1));
        other.refuse();
        assert_eq!(going(), (0, 0, 1));
    });
}

#[test]
fn what_an_endpoint_says_to_somebody_who_sends_in_anothers_name_counts_for_nothing() {
    each_way("connections in others' names", Protocol::Tcp, |talk| {
        talk.accept();
        talk.client_sends(&talk.client_tcp(reset()));
        assert_gone_on(talk, 0);
        let ended = Talk::open(talk.node, talk.case, talk.way);
        ended.accept();
        ended.client_sends(&ended.client_tcp(fin()));
        assert_gone_on(&ended, 0);
        let refused = Talk::open(talk.node, talk.case, talk.way);
        refused.refuse();
        assert_gone_on(&refused, 0);
    });
}

#[test]
fn datagrams_count_as_they_begin_and_associations_when_they_go_on() {
    each_way("datagrams that go on", Protocol::Udp, |talk| {
        assert_gone_on(talk, 1);
        for _ in 0..3 {
            talk.endpoint_goes_on();
            talk.client_goes_on();
        }
        assert_gone_on(talk, 1);
    });
    each_way("associations that go on", Protocol::Sctp, |talk| {
        assert_gone_on(talk, 0);
        talk.endpoint_goes_on();
        talk.client_goes_on();
        assert_gone_on(talk, 1);
    });
}

#[test]
fn in_a_flood_a_client_that_goes_on_counts_and_no_forged_first_packet_does() {
    let Some(mut node) = Node::new("load in a flood") else { return };
    for case in cases(Protocol::Tcp) {
        node.serve_anew(web(), &[(1, 1)]);
        allow(&node, 1);
        let talk = open_in_flood(&node, case, WAYS[0]);
        for _ in 0..20 {
            node.send(Hook::NicIn, Device::Eth0, &first(&node, case));
        }
        talk.accept();
        talk.client_goes_on();
        assert_gone_on(&talk, 1);
        assert!(node.view.service_counters(talk.flow().service).unwrap().local > 20);
        allow(&node, u32::MAX);
    }
}

fn first(node: &Node, case: Case) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT))
}

#[test]
fn what_is_answered_directly_counts_at_the_clients_second_word_where_it_was_asked() {
    let Some(mut node) = Node::new("load of direct server return") else { return };
    for case in cases(Protocol::Tcp) {
        node.serve_anew(web(), &[(2, 1)]);
        node.direct(&[2]);
        let sent = first(&node, case);
        for (packet, flows) in [(sent.clone(), 0), (later(case, &sent), 0), (later(case, &sent), 1)] {
            assert_eq!(node.send(Hook::NicIn, Device::Eth0, &packet).reason, abi::REASON_DIRECT);
            assert_eq!(gone_on(&node, &node.flow_of(&sent)), (0, flows.into(), flows), "{case:?}");
        }
        node.serve_anew(web(), &[(1, 1)]);
        let sent = first(&node, case);
        let pod = case.at(address::pod(1, 1), TARGET_PORT);
        node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &sent));
        let header = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
        node.send(Hook::NicOut, Device::Eth0, &tcp(pod, sent.source_socket(), header));
        node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &later(case, &sent)));
        assert_eq!(gone_on(&node, &node.flow_of(&sent)), (0, 0, 1), "{case:?}");
    }
}

#[test]
fn a_flow_takes_no_room_that_others_may_not_have_once_its_endpoint_is_gone_or_nobody_answers_its_datagrams() {
    let Some(mut node) = Node::new("room that is taken") else { return };
    let tick = || tick_clock().unwrap().at(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into());
    let open = |node: &Node, later: u32| {
        let uses = node.view.flow_uses(tick().wrapping_add(later)).unwrap();
        uses.values().map(|used| used.open).sum::<u32>()
    };
    for case in cases(Protocol::Tcp) {
        node.serve_anew(web(), &[(1, 1)]);
        let before = open(&node, 0);
        let talk = Talk::open(&node, case, WAYS[0]);
        talk.accept();
        talk.client_goes_on();
        assert_eq!(open(&node, 0), before + 1, "{case:?}");
        drop(talk);
        node.serve_anew(web(), &[(1, 2)]);
        assert_eq!(open(&node, 0), 0, "{case:?}");
    }
    for case in cases(Protocol::Udp) {
        node.serve_anew(web(), &[(1, 1)]);
        Talk::open(&node, case, WAYS[0]);
        assert_eq!([0, abi::OPENING_IDLE + 2].map(|later| open(&node, later)), [1, 0], "{case:?}");
    }
}
