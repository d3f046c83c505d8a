//! The node's source ports: which ones flows take, in which order, and what becomes of those that the host comes to use.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Barrier;

use etherparse::TcpHeader;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::source_ports::PortSet;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::{Packet, decode};
use weir_testbed::prog_run::{Context, prog_run};

use crate::case::{CASES, CLUSTER_IP, Case, PORT, TARGET_PORT, cases, tcp};
use crate::entries::{age, calm, evict};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_PASS, web};

/// A node with one endpoint, on another node, to which flows may take these ports.
pub(crate) fn node(what: &str, ports: impl IntoIterator<Item = u16>) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(2, 1)]);
    usable(&node, ports);
    Some(node)
}

pub(crate) fn usable(node: &Node, ports: impl IntoIterator<Item = u16>) {
    node.datapath.set_source_ports(&ports.into_iter().collect()).unwrap();
}

/// A flow through the node, and what the endpoint sees of it.
pub(crate) struct Forwarded {
    case: Case,
    pub(crate) first: Packet,
    seen: Packet,
}

impl Forwarded {
    fn open(node: &Node, case: Case) -> Self {
        Self::open_from(node, case, node.client_port())
    }

    /// From a port of the client's.
    pub(crate) fn open_from(node: &Node, case: Case, port: u16) -> Self {
        let first = case.first(case.at(CLIENT, port), case.at(CLUSTER_IP, PORT));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &first);
        outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        Self { case, first, seen: outcome.packet() }
    }

    /// Its source port.
    pub(crate) fn port(&self) -> u16 {
        self.seen.source_socket().port()
    }

    /// The endpoint answers, and the client goes on: it has the port for as long as it wants it.
    pub(crate) fn go_on(&self, node: &Node) {
        node.send(Hook::NicIn, Device::Eth0, &self.answer()).is_for(TC_REDIRECT, abi::REASON_BACK);
        let later = self.case.later(self.first.source_socket(), self.first.destination_socket());
        node.send(Hook::NicIn, Device::Eth0, &later).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
    }

    /// Both sides end it.
    pub(crate) fn end(&self, node: &Node) {
        let fin = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
        let to = tcp(self.first.source_socket(), self.first.destination_socket(), fin.clone());
        node.send(Hook::NicIn, Device::Eth0, &to).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let back = tcp(self.seen.destination_socket(), self.seen.source_socket(), fin);
        node.send(Hook::NicIn, Device::Eth0, &back).is_for(TC_REDIRECT, abi::REASON_BACK);
    }

    fn answer(&self) -> Packet {
        self.case.later(self.seen.destination_socket(), self.seen.source_socket())
    }

    /// Both ends get what the other one sends.
    #[track_caller]
    pub(crate) fn assert_goes_on(&self, node: &Node) {
        let (client, service) = (self.first.source_socket(), self.first.destination_socket());
        let sent = node.send(Hook::NicIn, Device::Eth0, &self.case.later(client, service)).packet();
        assert_eq!(sent.source_socket(), self.seen.source_socket());
        for hook in [Hook::NicIn, Hook::Xdp] {
            let outcome = node.send(hook, Device::Eth0, &self.answer());
            assert_eq!(outcome.reason, abi::REASON_BACK, "{hook}");
            let back = outcome.packet();
            assert_eq!((back.source_socket(), back.destination_socket()), (service, client));
        }
    }
}

#[test]
fn flows_take_one_port_after_the_other_and_the_first_again_when_all_had_their_turn() {
    let ports = [1024, 1025, 29_999, 61_000, u16::MAX];
    let Some(node) = node("source ports in their turn", ports) else { return };
    for case in cases(Protocol::Tcp) {
        let turn = || {
            let flow = Forwarded::open(&node, case);
            flow.go_on(&node);
            flow.end(&node);
            flow.port()
        };
        let taken: Vec<_> = (0..3 * ports.len()).map(|_| turn()).collect();
        assert_eq!(taken, ports.repeat(3), "{case:?}");
    }
}

#[test]
fn all_ports_of_the_set_are_taken_and_none_outside_of_it() {
    // Far apart, side by side, and far apart again.
    let ports: BTreeSet<u16> = (0..300).map(|n| 1024 + n * 97).chain(40_000..40_300).chain([65_000, 65_535]).collect();
    let Some(node) = node("all source ports", ports.clone()) else { return };
    for case in CASES {
        let open = || {
            let flow = Forwarded::open(&node, case);
            calm(&node);
            flow.go_on(&node);
            flow.port()
        };
        let taken: Vec<_> = ports.iter().map(|_| open()).collect();
        assert!(taken.iter().eq(&ports), "{case:?}: {taken:?}");
        let more = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &more).is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
    }
    assert_eq!(node.view.source_ports().unwrap(), ports.into_iter().collect());
}

#[test]
fn where_no_port_may_be_taken_flows_are_dropped_for_that_reason() {
    let Some(node) = node("no source port", []) else { return };
    for case in CASES {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
    }
}

#[test]
fn ports_that_come_and_go_leave_the_others_in_their_turn() {
    for case in CASES {
        let Some(node) = node("source ports that come and go", 50_000..=50_009) else { return };
        let turn = || Forwarded::open(&node, case).port();
        assert_eq!([turn(), turn(), turn()], [50_000, 50_001, 50_002], "{case:?}");
        // One that had its turn and the next one go; some come before and after.
        usable(&node, (49_990..=50_012).filter(|port| ![50_001, 50_003].contains(port)));
        let taken: Vec<_> = (0..10).map(|_| turn()).collect();
        let expected: Vec<_> = (50_004..=50_012).chain([49_990]).collect();
        assert_eq!(taken, expected, "{case:?}");
    }
}

#[test]
fn a_flow_keeps_its_port_and_its_answers_when_the_host_comes_to_use_the_port() {
    let Some(node) = node("a source port that the host came to use", [50_000]) else { return };
    for case in CASES {
        usable(&node, [50_000]);
        let flow = Forwarded::open(&node, case);
        assert_eq!(flow.port(), 50_000);
        flow.assert_goes_on(&node);
        usable(&node, [51_000]);
        flow.assert_goes_on(&node);
        let new = Forwarded::open(&node, case);
        assert_eq!(new.port(), 51_000, "{case:?}");
        new.assert_goes_on(&node);
        flow.assert_goes_on(&node);
    }
}

#[test]
fn when_that_flow_is_over_the_host_has_the_port_for_itself() {
    let Some(node) = node("a source port that the host has for itself", [50_000]) else { return };
    for case in cases(Protocol::Tcp) {
        usable(&node, [50_000]);
        let flow = Forwarded::open(&node, case);
        flow.end(&node);
        usable(&node, [51_000]);
        // The endpoint accepts a connection that the host itself makes from there.
        let accepted = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
        let accepted = tcp(case.at(address::pod(2, 1), TARGET_PORT), case.at(address::node(1), 50_000), accepted);
        for packet in [accepted, flow.answer()] {
            let frame = packet.to_bytes();
            for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)] {
                node.run(hook, Device::Eth0, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
            }
        }
    }
}

#[test]
fn at_a_port_that_the_host_hands_out_as_well_it_has_what_is_for_no_flow_that_goes_on() {
    let Some(node) = node("a source port that the host hands out as well", []) else { return };
    let port = || [50_000].into_iter().collect();
    node.datapath.share_source_ports(&port(), &port()).unwrap();
    assert_eq!(node.datapath.source_ports().unwrap(), port());
    for case in cases(Protocol::Udp) {
        let flow = Forwarded::open(&node, case);
        assert_eq!(flow.port(), 50_000);
        flow.assert_goes_on(&node);
        let idle = node.view.config().unwrap().udp_idle + 1;
        for family in ['4', '6'] {
            for table in ["flows", "openings"] {
                age(&node, &format!("{table}{family}"), offset_of!(abi::Flow, last_seen), idle);
            }
            for table in ["replies", "awaited"] {
                age(&node, &format!("{table}{family}"), offset_of!(abi::Reply, last_seen), idle);
            }
        }
        let frame = flow.answer().to_bytes();
        for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)] {
            node.run(hook, Device::Eth0, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
        }
    }
}

#[test]
fn there_a_syns_answer_is_awaited_although_a_flood_has_taken_its_flows_place() {
    let Some(node) = node("a source port that the host hands out as well, in a flood", []) else { return };
    let port = || [50_000].into_iter().collect();
    node.datapath.share_source_ports(&port(), &port()).unwrap();
    for (case, flows) in cases(Protocol::Tcp).zip(["openings4", "openings6"]) {
        let flow = Forwarded::open(&node, case);
        evict(&node, flows);
        let accepted = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
        let accepted = tcp(flow.seen.destination_socket(), flow.seen.source_socket(), accepted);
        node.send(Hook::NicIn, Device::Eth0, &accepted).is_for(TC_REDIRECT, abi::REASON_BACK);
        flow.assert_goes_on(&node);
    }
}

/// The source ports that flows from these client ports get on one CPU, in the node's namespace.
fn ports_on_cpu(program: BorrowedFd<'_>, cpu: usize, case: Case, clients: Range<u16>, start: &Barrier) -> Vec<u16> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
    let ifindex = nix::net::if_::if_nametoindex("eth0").unwrap();
    start.wait();
    let open = |client| {
        let first = case.first(case.at(CLIENT, client), case.at(CLUSTER_IP, PORT));
        let run = prog_run(program, &first.to_bytes(), Some(Context::Skb { ifindex }), 1).unwrap();
        assert_eq!(run.retval, TC_REDIRECT);
        decode(&run.packet).unwrap().source_socket().port()
    };
    clients.map(open).collect()
}

#[test]
fn two_cpus_never_take_the_same_port() {
    const EACH: u16 = 1000;
    // Many gaps: at each of them both may be there at the same time. Twice as many ports as flows.
    let ports: PortSet = (0..4 * EACH).map(|n| 2000 + n * 13).filter(|port| port % 3 != 0).collect();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(node) = node("source ports on two CPUs", ports.iter()) else { return };
    let (program, netns) = (node.datapath.program("weir_nic_in").unwrap(), &node.netns);
    for case in CASES {
        let start = &Barrier::new(2);
        let on_cpu = |cpu: usize, first| {
            move || netns.enter(|| ports_on_cpu(program, cpu % cpus, case, first..first + EACH, start))
        };
        let [a, b] = std::thread::scope(|scope| {
            [scope.spawn(on_cpu(0, 10_000)), scope.spawn(on_cpu(1, 20_000))].map(|thread| thread.join().unwrap())
        });
        let taken: BTreeSet<_> = a.iter().chain(&b).copied().collect();
        assert_eq!(taken.len(), usize::from(2 * EACH), "{case:?}: a port was taken twice");
        assert!(taken.into_iter().all(|port| ports.contains(port)), "{case:?}");
    }
}
