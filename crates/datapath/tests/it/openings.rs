//! A flow begins in tables of its own, and moves to the others when its client goes on after an answer: a flood evicts no
//! flow that goes on.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use etherparse::TcpHeader;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::{FlowEntry, Hook, running_cpus, tick_clock};
use weir_testbed::address::CLIENT;
use weir_testbed::wait;

use crate::case::{CASES, CLUSTER_IP, Case, PORT, cases, on_host_network};
use crate::entries::{calm, empty_sets, keep_busy};
use crate::node::{Device, Node, TC_SHOT, XDP_DROP, web};
use crate::pins::SMALL;
use crate::talk::{NIC_IN, NIC_OUT, Talk, WAYS, Way, XDP, each_way};

const LOCAL: Way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };

pub(crate) fn flows(talk: &Talk<'_>) -> Vec<FlowEntry> {
    let port = talk.first.source_socket().port();
    let mut flows = talk.node.view.flows().unwrap();
    flows.retain(|entry| entry.client_port == port && entry.protocol == talk.case.protocol.number());
    flows
}

/// Both entries of the flow are in one pair of tables. Says whether it is that of flows which begin.
#[track_caller]
pub(crate) fn begins(talk: &Talk<'_>) -> bool {
    let flows = flows(talk);
    assert_eq!(flows.len(), 1, "{flows:?}");
    let opening = |flags: u16| flags & abi::FLOW_OPENING != 0;
    let is_of = |reply: &abi::Reply| reply.client_port.get() == talk.first.source_socket().port();
    let v4 = talk.node.view.replies4().unwrap().into_iter().map(|(_, reply)| reply);
    let v6 = talk.node.view.replies6().unwrap().into_iter().map(|(_, reply)| reply);
    let replies: Vec<_> = if talk.case.family == Family::V4 { v4.collect() } else { v6.collect() };
    let stages: Vec<_> = replies.iter().filter(|reply| is_of(reply)).map(|reply| opening(reply.flags)).collect();
    assert_eq!(stages, [opening(flows[0].flow.flags)]);
    stages[0]
}

#[test]
fn a_connection_moves_when_its_client_goes_on_after_the_answer() {
    each_way("connections that were answered", Protocol::Tcp, |talk| {
        assert!(begins(talk));
        talk.client_sends(&talk.first);
        talk.client_goes_on();
        assert!(begins(talk), "nobody has answered");
        talk.accept();
        talk.client_sends(&talk.first);
        assert!(begins(talk), "the client has not heard of the answer");
        talk.client_goes_on();
        assert!(!begins(talk));
        talk.endpoint_goes_on();
        talk.client_goes_on();
        assert!(!begins(talk));
    });
}

#[test]
fn a_client_that_ends_what_was_answered_moves_nothing() {
    each_way("connections of others' addresses", Protocol::Tcp, |talk| {
        talk.accept();
        talk.client_sends(&talk.client_tcp(TcpHeader { rst: true, ..TcpHeader::default() }));
        assert!(begins(talk));
    });
}

#[test]
fn datagrams_move_when_the_client_goes_on_after_an_answer() {
    each_way("datagrams that were answered", Protocol::Udp, |talk| {
        talk.client_goes_on();
        talk.endpoint_goes_on();
        assert!(begins(talk), "one question and one answer");
        talk.client_goes_on();
        assert!(!begins(talk));
    });
}

#[test]
fn datagrams_move_when_a_second_answer_comes() {
    each_way("datagrams that are answered twice", Protocol::Udp, |talk| {
        talk.endpoint_goes_on();
        talk.endpoint_goes_on();
        assert!(!begins(talk));
        talk.endpoint_goes_on();
        talk.client_goes_on();
    });
}

/// So many flows of datagrams may move at once.
const AT_ONCE: usize = 8;

/// Two in anybody's name make one that goes on, and so does a name server's client, whose flow is over by then.
#[test]
fn datagrams_that_go_on_faster_than_there_is_room_for_them_stay_where_they_began() {
    let Some(mut node) = Node::new("datagrams beside connections") else { return };
    node.serve(web(), &[LOCAL.endpoint]);
    stay_on_one_cpu();
    // So many fill the half of the table that is not for connections, until they are idle and taken out.
    let config = node.datapath.config().unwrap();
    let cpus = running_cpus().unwrap() as usize;
    let idle = (config.udp_idle + abi::IDLE_TAKEN_OUT) as usize;
    let each_tick = (SMALL.flows as usize / 2 / cpus / idle).max(1);
    for case in cases(Protocol::Udp) {
        let talks: Vec<_> = (0..300).map(|_| Talk::open(&node, case, LOCAL)).collect();
        // What the case before has had of this tick is its own.
        calm(&node);
        let go_on = || {
            for talk in &talks {
                talk.endpoint_goes_on();
                talk.client_goes_on();
            }
            talks.iter().filter(|talk| begins(talk)).count()
        };
        let tick = || tick_clock().unwrap().at(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into());
        let began = tick();
        let stay = go_on();
        assert!((200..297).contains(&stay), "{stay} of {}", talks.len());
        wait::until("some of them to move in another tick", Duration::from_secs(5), || go_on() < stay).unwrap();
        wait::until("a few ticks", Duration::from_secs(5), || tick().wrapping_sub(began) > 2).unwrap();
        let (moved, ticks) = (talks.len() - go_on(), tick().wrapping_sub(began) as usize);
        assert!(moved <= AT_ONCE + each_tick * ticks, "{moved} in {ticks} ticks");
    }
}

#[test]
fn an_association_moves_when_its_client_goes_on_after_the_answer() {
    each_way("associations that were answered", Protocol::Sctp, |talk| {
        assert!(begins(talk));
        talk.endpoint_goes_on();
        talk.client_goes_on();
        assert!(!begins(talk));
    });
}

#[test]
fn a_port_that_is_used_again_begins_anew() {
    each_way("ports that are used again", Protocol::Tcp, |talk| {
        talk.accept();
        talk.client_goes_on();
        let fin = || TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
        talk.client_sends(&talk.client_tcp(fin()));
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        assert!(!begins(talk));
        let next = Talk::open_with(talk.node, talk.case, talk.way, talk.first.clone());
        assert_eq!(flows(&next).len(), 1);
        assert_ne!(next.flow().flags & abi::FLOW_OPENING, 0);
        next.accept();
        next.client_goes_on();
        assert_eq!(next.flow().flags & (abi::FLOW_OPENING | abi::FLOW_CLOSING | abi::FLOW_ENDED), 0);
        assert_eq!(flows(&next).len(), 1);
    });
}

/// SYNs from addresses with these numbers.
pub(crate) fn flood(node: &Node, case: Case, numbers: Range<u32>) {
    for number in numbers {
        let from: IpAddr = match case.family {
            Family::V4 => std::net::Ipv4Addr::from(0x0b00_0000 + number * 97).into(),
            Family::V6 => std::net::Ipv6Addr::from((0xfd0b_0000_u128 << 96) | (u128::from(number) * 97)).into(),
        };
        let first = case.first((from, 1024).into(), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &first);
    }
}

#[test]
fn a_flood_evicts_no_flow_that_goes_on() {
    let Some(mut node) = Node::new("a flood of SYNs") else { return };
    for case in cases(Protocol::Tcp) {
        for way in [WAYS[0], WAYS[3]] {
            node.serve(web(), &[way.endpoint]);
            let talks: Vec<_> = (0..20).map(|_| Talk::open(&node, case, way)).collect();
            for talk in &talks {
                talk.accept();
                talk.client_goes_on();
            }
            flood(&node, case, 0..SMALL.openings * 3 / 2);
            for talk in &talks {
                talk.endpoint_goes_on();
                talk.client_goes_on();
                assert!(!begins(talk));
            }
        }
    }
}

/// From now on so many flows may begin on a CPU in a tick before SYNs are those of a flood.
pub(crate) fn allow(node: &Node, flood: u32) {
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flood, ..config }).unwrap();
}

/// New flows are counted by CPU: from now on this thread's packets are one CPU's.
pub(crate) fn stay_on_one_cpu() {
    let here = Pid::from_raw(0);
    let may = sched_getaffinity(here).unwrap();
    let cpu = (0..CpuSet::count()).find(|cpu| may.is_set(*cpu).unwrap()).unwrap();
    let mut one = CpuSet::new();
    one.set(cpu).unwrap();
    sched_setaffinity(here, &one).unwrap();
}

/// A client in a flood. The first SYN in a tick on a CPU is none of it, and there are few of either while this runs.
pub(crate) fn open_in_flood(node: &Node, case: Case, way: Way) -> Talk<'_> {
    let mut talks = (0..64).map(|_| Talk::open(node, case, way));
    talks.find(|talk| flows(talk).is_empty()).expect("a SYN is not worth an entry")
}

#[test]
fn without_a_bound_nothing_is_a_flood() {
    let Some(mut node) = Node::new("SYNs without a bound") else { return };
    node.serve(web(), &[LOCAL.endpoint]);
    allow(&node, 0);
    for case in cases(Protocol::Tcp) {
        for _ in 0..50 {
            assert!(begins(&Talk::open(&node, case, LOCAL)));
        }
    }
}

#[test]
fn in_a_flood_a_client_that_goes_on_reaches_the_backend_that_has_answered_it() {
    let Some(mut node) = Node::new("clients in a flood") else { return };
    let endpoints = [(1, 1), (1, 2), (1, 3)];
    node.serve(web(), &endpoints);
    allow(&node, 1);
    for case in cases(Protocol::Tcp) {
        let mut used = std::collections::BTreeSet::new();
        for way in [LOCAL, Way { to: (Hook::Xdp, Device::Eth0), ..LOCAL }] {
            for _ in 0..50 {
                let talk = open_in_flood(&node, case, way);
                talk.accept();
                let later = case.later(talk.first.source_socket(), talk.first.destination_socket());
                let went = node.send(way.to.0, way.to.1, &later).packet();
                assert_eq!(went.destination, talk.seen.destination);
                assert!(!begins(&talk));
                used.insert(went.destination);
            }
        }
        assert_eq!(used.len(), endpoints.len());
    }
}

#[test]
fn a_client_whose_first_word_in_a_flood_is_its_last_goes_on_where_it_says_more() {
    let Some(mut node) = Node::new("ends in a flood") else { return };
    node.serve(web(), &[(1, 1), (1, 2), (1, 3)]);
    allow(&node, 1);
    for case in cases(Protocol::Tcp) {
        let talk = open_in_flood(&node, case, LOCAL);
        talk.accept();
        talk.client_sends(&talk.client_tcp(TcpHeader { fin: true, ack: true, ..TcpHeader::default() }));
        assert!(begins(&talk), "an end shows nobody that it has heard");
        assert!(flows(&talk)[0].flow.flags & abi::FLOW_REPLIED != 0, "its endpoint has answered");
        talk.client_goes_on();
        assert!(!begins(&talk));
    }
}

#[test]
fn in_a_flood_a_syn_that_went_elsewhere_is_remembered_there() {
    let Some(mut node) = Node::new("SYNs that come again in a flood") else { return };
    node.serve(web(), &[(1, 1), (1, 2), (1, 3)]);
    for case in cases(Protocol::Tcp) {
        for _ in 0..20 {
            allow(&node, u32::MAX);
            let dead = Talk::open(&node, case, LOCAL);
            assert!(begins(&dead));
            allow(&node, 1);
            open_in_flood(&node, case, LOCAL);
            dead.wait(Duration::from_secs(1));
            let alive = Talk::open_with(&node, case, LOCAL, dead.first.clone());
            assert_ne!(alive.seen.destination, dead.seen.destination);
            alive.accept();
            let later = case.later(alive.first.source_socket(), alive.first.destination_socket());
            let went = node.send(LOCAL.to.0, LOCAL.to.1, &later).packet();
            assert_eq!(went.destination, alive.seen.destination);
        }
    }
}

/// Packets that begin flows are dropped for a reason while a table, one for each family, has no place for an entry, and not afterwards.
#[track_caller]
fn drops_without_a_place(node: &Node, tables: [&str; 2], reason: u32) {
    for case in CASES {
        let table = tables[usize::from(case.family == Family::V6)];
        for (hook, device) in [NIC_IN, XDP] {
            let first = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
            keep_busy(node, table);
            let dropped = if hook == Hook::Xdp { XDP_DROP } else { TC_SHOT };
            node.send(hook, device, &first).is_untouched(dropped, reason, &first.to_bytes());
            empty_sets(node, table);
            let sent = node.send(hook, device, &first).reason;
            assert!([abi::REASON_TO_LOCAL, abi::REASON_TO_REMOTE].contains(&sent), "{sent}");
        }
    }
}

#[test]
fn a_flow_for_which_there_is_no_place_right_now_is_dropped_and_its_client_may_come_again() {
    let Some(mut node) = Node::new("flows without a place") else { return };
    for endpoint in [(1, 1), (2, 1)] {
        node.serve(web(), &[endpoint]);
        drops_without_a_place(&node, ["openings4", "openings6"], abi::REASON_FLOW_TABLE);
    }
}

#[test]
fn a_flow_to_a_process_on_the_node_is_dropped_where_its_answers_would_not_be_known() {
    let Some(mut node) = Node::new("answers of a process without a place") else { return };
    node.serve_changed(web(), &[(1, 1)], &[], on_host_network);
    drops_without_a_place(&node, ["awaited4", "awaited6"], abi::REASON_FLOW_TABLE);
}

#[test]
fn in_a_flood_a_flow_in_the_nodes_name_is_remembered_for_its_port() {
    let Some(mut node) = Node::new("clients of another node's endpoints in a flood") else { return };
    node.serve(web(), &[(2, 1)]);
    allow(&node, 1);
    for case in cases(Protocol::Tcp) {
        for _ in 0..8 {
            let talk = Talk::open(&node, case, Way { endpoint: (2, 1), back: NIC_IN, ..LOCAL });
            assert!(begins(&talk));
            talk.accept();
            talk.client_goes_on();
            assert!(!begins(&talk));
        }
    }
}
