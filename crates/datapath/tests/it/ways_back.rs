//! What an endpoint answers finds its way back for as long as its flow goes on, whatever the table of answers has lost; and what
//! was answered goes on, whatever the table of flows has lost meanwhile.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};

use crate::case::{BALANCER_IP, CLUSTER_IP, Case, NODE_PORT, PORT, TARGET_PORT, cases, on_host_network, tcp};
use crate::entries::{age, evict};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, web};
use crate::openings::{allow, begins, flows, open_in_flood};
use crate::talk::{NIC_IN, NIC_OUT, Talk, WAYS, Way, XDP, each_way};

/// More ticks than TCP flows may be idle.
const LONG: u32 = 7201;

/// Makes all flows look as if no packet had come for so many ticks, in either direction.
fn idle(node: &Node, talk: &Talk<'_>, ticks: u32) {
    age(node, talk.flows(), offset_of!(abi::Flow, last_seen), ticks);
    age(node, talk.replies(), offset_of!(abi::Reply, last_seen), ticks);
}

/// The client and the endpoint each get what the other one sends, as they know it.
#[track_caller]
fn assert_goes_on(talk: &Talk<'_>) {
    let (client, service) = (talk.first.source_socket(), talk.first.destination_socket());
    let (known, endpoint) = (talk.seen.source_socket(), talk.seen.destination_socket());
    let sent = talk.node.send(talk.way.to.0, talk.way.to.1, &talk.case.later(client, service)).packet();
    assert_eq!((sent.source_socket(), sent.destination_socket()), (known, endpoint));
    let answer = talk.node.send(talk.way.back.0, talk.way.back.1, &talk.case.later(endpoint, known));
    assert_eq!(answer.reason, abi::REASON_BACK);
    let answer = answer.packet();
    assert_eq!((answer.source_socket(), answer.destination_socket()), (service, client));
}

#[test]
fn a_syn_that_comes_again_after_its_answers_entry_was_lost_has_the_same_flow_and_is_answered() {
    each_way("SYNs whose answers' entry was lost", Protocol::Tcp, |talk| {
        evict(talk.node, talk.replies());
        let again = Talk::open_with(talk.node, talk.case, talk.way, talk.first.clone());
        assert_eq!(again.seen, talk.seen);
        again.accept();
        assert_eq!((again.counters().flows, again.counters().answered), (1, 1));
        assert_goes_on(talk);
    });
}

#[test]
fn an_entry_of_answers_that_was_lost_is_back_with_the_clients_first_packet_of_another_tick() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        each_way("lost entries of answers", protocol, |talk| {
            talk.endpoint_sends(&talk.case.later(talk.seen.destination_socket(), talk.seen.source_socket()));
            evict(talk.node, talk.replies());
            age(talk.node, talk.flows(), offset_of!(abi::Flow, last_seen), 1);
            assert_goes_on(talk);
            let answered = talk.counters().answered;
            assert_eq!(answered, u32::from(protocol == Protocol::Udp), "nothing new is awaited");
        });
    }
}

/// Whether a packet of the client's brings a lost entry of answers back, when the flow is so many ticks old and its last one came so many ago.
fn looks_after(talk: &Talk<'_>, old: u32, ago: u32) -> bool {
    for _ in 0..100 {
        evict(talk.node, talk.replies());
        let flow = talk.flow();
        let younger = flow.created.wrapping_sub(flow.last_seen);
        age(talk.node, talk.flows(), offset_of!(abi::Flow, created), old.wrapping_add(younger));
        age(talk.node, talk.flows(), offset_of!(abi::Flow, last_seen), ago);
        talk.client_goes_on();
        let flow = talk.flow();
        // A clock that has beaten meanwhile had it look at something else.
        if flow.last_seen.wrapping_sub(flow.created) == old {
            return !talk.node.view.raw(talk.replies()).unwrap().unwrap().is_empty();
        }
    }
    panic!("the clock beats at each packet");
}

const AGES: [u32; 6] = [3, 7, 8, 9, 15, 16];

/// A flow that goes on, of either kind.
fn go_on(talk: &Talk<'_>) {
    if talk.case.protocol == Protocol::Tcp {
        talk.accept();
    }
    (0..2).for_each(|_| {
        talk.endpoint_goes_on();
        talk.client_goes_on();
    });
    assert!(!begins(talk));
}

/// The look costs more than the rest of the packet, where many flows go on. Of datagrams either side may be all that is heard.
#[test]
fn of_a_client_that_speaks_all_the_time_one_packet_in_eight_ticks_looks_after_the_answers_and_of_datagrams_one_in_each()
{
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        each_way("looks after answers", protocol, |talk| {
            go_on(talk);
            let eighth = |age: u32| age.is_multiple_of(1 << abi::ANSWERS_SHIFT);
            let expected = AGES.map(|age| protocol == Protocol::Udp || eighth(age));
            assert_eq!(AGES.map(|age| looks_after(talk, age, 1)), expected);
        });
    }
}

#[test]
fn a_client_that_was_silent_for_two_ticks_looks_after_the_answers_of_its_connection() {
    each_way("looks after answers after a silence", Protocol::Tcp, |talk| {
        go_on(talk);
        assert_eq!(AGES.map(|age| looks_after(talk, age, 2)), AGES.map(|_| true));
    });
}

#[test]
fn a_connection_that_its_client_has_closed_looks_after_its_answers_in_each_tick() {
    each_way("looks after answers of what closes", Protocol::Tcp, |talk| {
        go_on(talk);
        talk.client_sends(&talk.client_tcp(TcpHeader { ack: true, fin: true, ..TcpHeader::default() }));
        assert!(!begins(talk));
        assert_eq!(AGES.map(|age| looks_after(talk, age, 1)), AGES.map(|_| true));
    });
}

/// A flood takes places one by one. What the endpoint says next would leave in its own name.
#[test]
fn a_lost_entry_of_answers_to_a_connection_that_begins_is_back_with_its_clients_next_packet() {
    each_way("lost entries of answers to connections that begin", Protocol::Tcp, |talk| {
        talk.accept();
        evict(talk.node, talk.replies());
        talk.client_goes_on();
        talk.endpoint_goes_on();
        talk.client_goes_on();
        assert_goes_on(talk);
    });
}

#[test]
fn an_entry_that_a_flow_which_goes_on_has_lost_is_counted_once() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        each_way("counted evictions", protocol, |talk| {
            talk.endpoint_sends(&talk.case.later(talk.seen.destination_socket(), talk.seen.source_socket()));
            (0..2).for_each(|_| assert_goes_on(talk));
            let before = talk.node.view.counters().lost().unwrap();
            evict(talk.node, talk.replies());
            age(talk.node, talk.flows(), offset_of!(abi::Flow, last_seen), 1);
            (0..2).for_each(|_| assert_goes_on(talk));
            assert_eq!(talk.node.view.counters().lost().unwrap() - before, 1);
        });
    }
}

#[test]
fn a_connection_whose_flow_was_lost_before_its_answer_came_goes_on_with_the_endpoint_that_has_answered() {
    each_way("flows that were lost before their answer", Protocol::Tcp, |talk| {
        let before = talk.flow();
        evict(talk.node, talk.flows());
        talk.accept();
        assert!(begins(talk));
        let after = talk.flow();
        let chosen = |flow: abi::Flow| (flow.backend, flow.generation, flow.service, flow.snat_port);
        assert_eq!(chosen(after), chosen(before));
        assert_goes_on(talk);
        assert!(!begins(talk));
        assert_eq!((talk.counters().flows, talk.counters().answered), (1, 1));
    });
}

#[test]
fn an_answer_that_comes_again_brings_a_lost_flow_back_too() {
    each_way("flows that were lost between two answers", Protocol::Tcp, |talk| {
        talk.accept();
        evict(talk.node, talk.flows());
        talk.accept();
        assert_goes_on(talk);
        assert!(!begins(talk));
    });
}

#[test]
fn in_a_flood_a_lost_flow_comes_back_by_its_answer_where_nothing_but_its_entry_tells_of_it() {
    let Some(mut node) = Node::new("lost flows in a flood") else { return };
    let far = Way { client: CLIENT, endpoint: (2, 1), to: XDP, back: XDP };
    for case in cases(Protocol::Tcp) {
        node.serve(web(), &[(2, 1)]);
        allow(&node, 1);
        for _ in 0..8 {
            let talk = Talk::open(&node, case, far);
            evict(&node, talk.flows());
            talk.accept();
            assert!(begins(&talk));
            assert_goes_on(&talk);
        }
        node.serve(web(), &[(1, 1)]);
        let talk = open_in_flood(&node, case, Way { endpoint: (1, 1), back: NIC_OUT, ..far });
        // The answer may come by a CPU that knows of no flood.
        allow(&node, u32::MAX);
        talk.accept();
        assert!(flows(&talk).is_empty(), "of a flood's SYNs nothing is written");
        assert_goes_on(&talk);
    }
}

#[test]
fn an_answer_to_a_syn_that_went_to_another_port_since_does_not_come_between() {
    let Some(mut node) = Node::new("answers to the SYN before") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in cases(Protocol::Tcp) {
        for hook in [NIC_IN, XDP] {
            let way = Way { client: CLIENT, endpoint: (2, 1), to: hook, back: hook };
            let lost = Talk::open(&node, case, way);
            evict(&node, lost.flows());
            let again = Talk::open_with(&node, case, way, lost.first.clone());
            assert_ne!(again.seen.source_socket(), lost.seen.source_socket());
            let late = lost.endpoint_tcp(TcpHeader { syn: true, ack: true, ..TcpHeader::default() });
            let dropped = if hook == XDP { XDP_DROP } else { TC_SHOT };
            node.send(hook.0, hook.1, &late).is_untouched(dropped, abi::REASON_STALE, &late.to_bytes());
            again.accept();
            assert_goes_on(&again);
        }
    }
}

/// Through which a client reaches the endpoint from the same port, after it was silent for long.
fn take_over(talk: &Talk<'_>) -> weir_testbed::packet::Packet {
    idle(talk.node, talk, LONG);
    let other = talk.case.first(talk.first.source_socket(), talk.case.at(BALANCER_IP, PORT));
    let outcome = talk.node.send(NIC_IN.0, NIC_IN.1, &other);
    outcome.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
    assert_eq!(outcome.packet().source_socket(), other.source_socket(), "it has the client's port for itself");
    other
}

fn talk_of(node: &Node, case: Case) -> Talk<'_> {
    let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
    Talk::open(node, case, way)
}

#[test]
fn a_syn_of_a_flow_whose_answers_belong_to_another_one_by_now_begins_anew() {
    let Some(mut node) = Node::new("SYNs of flows that were overtaken") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let talk = talk_of(&node, case);
        let other = take_over(&talk);
        let outcome = node.send(Hook::NicIn, Device::Eth0, &talk.first);
        outcome.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let seen = outcome.packet();
        let (from, client) = (seen.source_socket(), talk.first.source_socket());
        assert!(from.ip() == client.ip() && from != client, "the client's own port is taken at the endpoint: {from}");
        let back = node.send(Hook::NicOut, Device::Eth0, &case.later(seen.destination_socket(), from));
        assert_eq!(back.packet().destination_socket(), client);
        assert_eq!(back.packet().source_socket(), talk.first.destination_socket());
        let others = case.later(case.at(address::pod(1, 1), TARGET_PORT), other.source_socket());
        let back = node.send(Hook::NicOut, Device::Eth0, &others);
        assert_eq!(back.packet().source_socket(), other.destination_socket());
    }
}

#[test]
fn the_middle_of_a_flow_whose_answers_belong_to_another_one_by_now_is_reset() {
    let Some(mut node) = Node::new("flows that were overtaken") else { return };
    node.refuses();
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let talk = talk_of(&node, case);
        take_over(&talk);
        let late = case.later(talk.first.source_socket(), talk.first.destination_socket());
        let outcome = node.send(Hook::Xdp, Device::Eth0, &late);
        outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &late.to_bytes());
        node.send(Hook::NicIn, Device::Eth0, &late).is_for(TC_REDIRECT, abi::REASON_STALE_RESET);
        let fin = talk.client_tcp(TcpHeader { rst: true, ..TcpHeader::default() });
        node.send(Hook::NicIn, Device::Eth0, &fin).is_for(TC_SHOT, abi::REASON_STALE);
    }
}

/// There is one port for both at the process, so the answers go where the last packet came from.
#[test]
fn of_two_flows_of_datagrams_of_one_client_to_a_process_on_the_node_the_one_that_speaks_is_answered() {
    let Some(mut node) = Node::new("two flows to a process on the node") else { return };
    node.serve_changed(web(), &[(1, 1)], &[], on_host_network);
    for case in cases(Protocol::Udp) {
        let client = case.at(CLIENT, node.client_port());
        let frontends = [case.at(CLUSTER_IP, PORT), case.at(address::node(1), NODE_PORT)];
        let table = if client.is_ipv4() { "flows4" } else { "flows6" };
        for frontend in frontends {
            node.send(Hook::NicIn, Device::Eth0, &case.first(client, frontend)).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        }
        for frontend in frontends.into_iter().cycle().take(6) {
            age(&node, table, offset_of!(abi::Flow, last_seen), 1);
            let sent = node.send(Hook::NicIn, Device::Eth0, &case.later(client, frontend));
            sent.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
            assert_eq!(sent.packet().source_socket(), client);
            let answer = case.later(case.at(address::pod(1, 1), TARGET_PORT), client);
            let expected = answer.clone().with_source(frontend);
            node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &expected);
        }
    }
}

/// RFC 5961, 4: to the SYN the process would acknowledge what it expects of the first connection, and the client reset that.
#[test]
fn a_second_connection_from_a_clients_port_to_a_process_on_the_node_has_no_place_until_the_first_one_is_over() {
    let Some(mut node) = Node::new("two connections to a process on the node") else { return };
    node.serve_changed(web(), &[(1, 1)], &[], on_host_network);
    for case in cases(Protocol::Tcp) {
        let talk = Talk::open(&node, case, WAYS[0]);
        talk.accept();
        talk.client_goes_on();
        let first = case.first(talk.first.source_socket(), case.at(address::node(1), NODE_PORT));
        let later = case.later(first.source_socket(), first.destination_socket());
        for packet in [&first, &later] {
            let outcome = node.send(Hook::NicIn, Device::Eth0, packet);
            outcome.is_untouched(TC_SHOT, abi::REASON_FLOW_TABLE, &packet.to_bytes());
        }
        talk.endpoint_goes_on();
        talk.client_sends(&talk.client_tcp(TcpHeader { rst: true, sequence_number: 1006, ..TcpHeader::default() }));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &first);
        outcome.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        assert_eq!(outcome.packet().source_socket(), first.source_socket());
    }
}

/// Whether somebody has forged its SYN, or it was the client's own, long ago.
#[test]
fn what_was_there_before_a_connection_to_a_process_on_the_node_does_not_take_its_answers() {
    let Some(mut node) = Node::new("earlier connections to a process on the node") else { return };
    node.refuses();
    node.serve_changed(web(), &[(1, 1)], &[], on_host_network);
    for case in cases(Protocol::Tcp) {
        for ended in [false, true] {
            let client = case.at(CLIENT, node.client_port());
            let other = case.first(client, case.at(address::node(1), NODE_PORT));
            node.send(Hook::NicIn, Device::Eth0, &other).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
            if ended {
                let reset = TcpHeader { rst: true, ack: true, ..TcpHeader::default() };
                let refused = tcp(case.at(address::pod(1, 1), TARGET_PORT), client, reset);
                assert_eq!(node.send(Hook::NicOut, Device::Eth0, &refused).reason, abi::REASON_BACK);
            }
            // An unanswered one keeps nobody out.
            let talk = Talk::open_with(&node, case, WAYS[0], case.first(client, case.at(CLUSTER_IP, PORT)));
            talk.accept();
            talk.client_goes_on();
            let later = case.later(client, other.destination_socket());
            for forged in [&later, &other] {
                age(&node, talk.flows(), offset_of!(abi::Flow, last_seen), 1);
                let reason = node.send(Hook::NicIn, Device::Eth0, forged).reason;
                assert!(
                    [abi::REASON_STALE, abi::REASON_STALE_RESET, abi::REASON_FLOW_TABLE].contains(&reason),
                    "{reason}"
                );
                let answer = case.later(talk.seen.destination_socket(), client);
                let back = node.send(Hook::NicOut, Device::Eth0, &answer).packet();
                assert_eq!(back.source_socket(), talk.first.destination_socket());
            }
            talk.client_goes_on();
        }
    }
}
