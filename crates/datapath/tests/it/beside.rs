//! Beside another proxy: what began there stays there.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::ops::{FrontendKey, MapOp};
use weir_datapath::{Hook, MapStore};
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::Packet;
use weir_testbed::wait;

use crate::case::{CLUSTER_IP, Case, NODE_PORT, PORT, TARGET_PORT, cases, tcp};
use crate::early_pieces::SOON;
use crate::entries::age;
use crate::icmp;
use crate::node::{Device, Node, TC_REDIRECT, TC_UNSPEC, XDP_PASS, XDP_TX, web};

const HOOKS: [(Hook, Device, u32); 3] = [
    (Hook::Xdp, Device::Eth0, XDP_PASS),
    (Hook::NicIn, Device::Eth0, TC_UNSPEC),
    (Hook::PodIn, Device::Pod1, TC_UNSPEC),
];

/// Where answers to the node arrive, with the verdicts on a client's and on the host's.
const ANSWERS: [(Hook, u32, u32); 2] = [(Hook::Xdp, XDP_TX, XDP_PASS), (Hook::NicIn, TC_REDIRECT, TC_UNSPEC)];

fn node(what: &str, flags: u32) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(1, 2)]);
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flags: config.flags | flags, ..config }).unwrap();
    Some(node)
}

#[test]
fn a_connection_that_begins_in_its_middle_is_left_to_the_other_proxy() {
    let Some(node) = node("a connection of another proxy", abi::CONFIG_BESIDE) else { return };
    for case in cases(Protocol::Tcp) {
        for (hook, device, verdict) in HOOKS {
            let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
            let reset = TcpHeader { rst: true, ..TcpHeader::default() };
            let accepted = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
            for packet in [case.later(from, to), tcp(from, to, reset), tcp(from, to, accepted)] {
                let frame = packet.to_bytes();
                node.run(hook, device, &frame).is_untouched(verdict, abi::REASON_MID_FLOW, &frame);
            }
        }
    }
    assert!(node.view.flows().unwrap().is_empty(), "none of them was adopted");
}

#[test]
fn so_is_one_to_a_port_that_is_no_longer_ours() {
    let Some(mut node) = node("a port that another proxy serves", abi::CONFIG_BESIDE) else { return };
    for case in cases(Protocol::Tcp) {
        let (key, _) = node.frontend(case.at(CLUSTER_IP, PORT), case.protocol);
        node.datapath.store().apply(&[MapOp::DeleteFrontend { key }]).unwrap();
        for (hook, device, verdict) in HOOKS {
            let frame = case.later(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT)).to_bytes();
            node.run(hook, device, &frame).is_untouched(verdict, abi::REASON_MID_FLOW, &frame);
        }
    }
}

#[test]
fn connections_and_datagrams_that_begin_here_are_served_beside_another_proxy() {
    let Some(node) = node("what begins beside another proxy", abi::CONFIG_BESIDE) else { return };
    for case in crate::case::CASES {
        for (hook, device, verdict) in HOOKS {
            let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
            for packet in [case.first(from, to), case.later(from, to)] {
                let expected = packet.clone().with_destination(case.at(address::pod(1, 2), TARGET_PORT));
                node.send(hook, device, &packet).is(verdict, abi::REASON_TO_LOCAL, &expected);
            }
        }
    }
}

#[test]
fn alone_a_connection_that_begins_in_its_middle_is_adopted() {
    let Some(node) = node("an adopted connection", 0) else { return };
    for case in cases(Protocol::Tcp) {
        for (hook, device, verdict) in HOOKS {
            let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
            let before = node.view.counters().adopted().unwrap();
            for packet in
                [case.later(from, to), case.later(from, to), case.first(case.at(CLIENT, node.client_port()), to)]
            {
                let expected = packet.clone().with_destination(case.at(address::pod(1, 2), TARGET_PORT));
                node.send(hook, device, &packet).is(verdict, abi::REASON_TO_LOCAL, &expected);
            }
            assert_eq!(node.view.counters().adopted().unwrap() - before, 1, "{case:?} at {hook}");
        }
    }
}

#[test]
fn while_tables_are_replaced_nothing_is_taken_for_the_other_proxys() {
    let Some(node) = node("a hold beside another proxy", abi::CONFIG_BESIDE | abi::CONFIG_HOLD) else { return };
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { held_until: u64::MAX, ..config }).unwrap();
    for case in cases(Protocol::Tcp) {
        let packet = case.later(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        for (hook, device, _) in HOOKS {
            let outcome = node.send(hook, device, &packet);
            assert_eq!(outcome.reason, abi::REASON_HELD, "{case:?} at {hook}");
        }
    }
}

#[test]
fn a_node_port_that_a_closed_connection_left_behind_is_the_other_proxys_to_use() {
    let Some(mut node) = node("a port that two proxies use", abi::CONFIG_BESIDE) else { return };
    node.serve(web(), &[(2, 1)]);
    for case in cases(Protocol::Tcp) {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(address::node(1), NODE_PORT));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        let (ours, backend) = (outcome.packet().source_socket(), outcome.packet().destination_socket());
        let accepted = tcp(backend, ours, TcpHeader { syn: true, ack: true, ..TcpHeader::default() });
        node.send(Hook::NicIn, Device::Eth0, &accepted).is_for(TC_REDIRECT, abi::REASON_BACK);
        let fin = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
        let fin = tcp(sent.source_socket(), sent.destination_socket(), fin);
        node.send(Hook::NicIn, Device::Eth0, &fin).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let fin = tcp(backend, ours, TcpHeader { fin: true, ack: true, ..TcpHeader::default() });
        let last = case.later(backend, ours);
        for packet in [&fin, &last] {
            node.send(Hook::NicIn, Device::Eth0, packet).is_for(TC_REDIRECT, abi::REASON_BACK);
        }

        for packet in [accepted, last] {
            let frame = packet.to_bytes();
            node.run(Hook::NicIn, Device::Eth0, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_FRONTEND, &frame);
        }
    }
}

/// How a Service leaves this node, while its node port is looked for.
type Leave = fn(&mut Node, FrontendKey);

#[test]
fn answers_to_datagrams_that_were_under_way_when_the_service_left_come_back_and_no_later_ones() {
    let Some(mut node) = node("answers under way", abi::CONFIG_BESIDE) else { return };
    let endpoint_leaves: Leave = |node, _| {
        node.serve(web(), &[]);
        node.release();
    };
    let frontend_leaves: Leave =
        |node, key| node.datapath.store().apply(&[MapOp::DeleteFrontend { key }, MapOp::ForgetFlows { key }]).unwrap();
    for (case, leave) in cases(Protocol::Udp).flat_map(|case| [(case, endpoint_leaves), (case, frontend_leaves)]) {
        for (hook, back, untouched) in ANSWERS {
            node.serve(web(), &[(2, 1)]);
            let at = case.at(address::node(1), NODE_PORT);
            let (key, frontend) = node.frontend(at, case.protocol);
            let sent = case.first(case.at(CLIENT, node.client_port()), at);
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            let answer = case.later(outcome.packet().destination_socket(), outcome.packet().source_socket());
            leave(&mut node, key);
            let outcome = node.send(hook, Device::Eth0, &answer);
            outcome.is_for(back, abi::REASON_BACK);
            assert_eq!(outcome.packet().destination_socket(), sent.source_socket());

            for table in ["flows4", "flows6"] {
                age(&node, table, offset_of!(abi::Flow, last_seen), abi::ANSWER_IDLE + 1);
            }
            for table in ["replies4", "replies6"] {
                age(&node, table, offset_of!(abi::Reply, last_seen), abi::ANSWER_IDLE + 1);
            }
            let frame = answer.to_bytes();
            node.run(hook, Device::Eth0, &frame).is_untouched(untouched, abi::REASON_NO_FRONTEND, &frame);
            node.datapath.store().apply(&[MapOp::PutFrontend { key, frontend }]).unwrap();
        }
    }
}

/// A client's flow to a remote endpoint at NicIn, and its datagrams there and back. The host has the same port by chance.
struct SamePort<'a> {
    node: &'a Node,
    case: Case,
    sent: Packet,
    to_endpoint: Packet,
}

impl<'a> SamePort<'a> {
    fn begin(node: &'a Node, case: Case) -> Self {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(address::node(1), NODE_PORT));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        Self { node, case, to_endpoint: outcome.packet().clone(), sent }
    }

    /// The client asks again, from the same port.
    fn client_asks(&self) {
        let outcome = self.node.send(Hook::NicIn, Device::Eth0, &self.sent);
        outcome.is(TC_REDIRECT, abi::REASON_TO_REMOTE, &self.to_endpoint);
    }

    /// What another proxy has masqueraded leaves by this interface.
    fn host_asks(&self) {
        let frame = self.to_endpoint.to_bytes();
        self.node.run(Hook::NicOut, Device::Eth0, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &frame);
    }

    fn answer(&self) -> Packet {
        self.case.later(self.to_endpoint.destination_socket(), self.to_endpoint.source_socket())
    }

    fn client_is_answered(&self, (hook, back, _): (Hook, u32, u32)) {
        let outcome = self.node.send(hook, Device::Eth0, &self.answer());
        outcome.is_for(back, abi::REASON_BACK);
        assert_eq!(outcome.packet().destination_socket(), self.sent.source_socket());
    }

    fn host_is_answered(&self, (hook, _, untouched): (Hook, u32, u32)) {
        let frame = self.answer().to_bytes();
        self.node.run(hook, Device::Eth0, &frame).is_untouched(untouched, abi::REASON_NO_FRONTEND, &frame);
    }
}

#[test]
fn of_the_host_and_a_client_that_ask_an_endpoint_from_one_port_who_has_asked_last_is_answered() {
    let Some(mut node) = node("datagrams of two proxies from one port", abi::CONFIG_BESIDE) else { return };
    node.serve(web(), &[(2, 1)]);
    for (case, hook) in cases(Protocol::Udp).flat_map(|case| ANSWERS.map(|hook| (case, hook))) {
        // An answer again has the flow move to the tables of those that go on.
        for answers in [0, 1, 3] {
            let two = SamePort::begin(&node, case);
            (0..answers).for_each(|_| two.client_is_answered(hook));
            for _ in 0..2 {
                two.host_asks();
                two.host_is_answered(hook);
                two.client_asks();
                two.client_is_answered(hook);
            }
        }
    }
}

#[test]
fn a_client_that_only_listens_is_answered_again_once_the_host_has_been_silent() {
    let Some(mut node) = node("a client that listens beside another proxy", abi::CONFIG_BESIDE) else { return };
    node.serve(web(), &[(2, 1)]);
    let listens = |(case, hook)| {
        let two = SamePort::begin(&node, case);
        two.client_is_answered(hook);
        two.host_asks();
        two.host_is_answered(hook);
        (two, hook)
    };
    let listening = cases(Protocol::Udp).flat_map(|case| ANSWERS.map(|hook| (case, hook))).map(listens);
    let listening: Vec<_> = listening.collect();
    for (two, (hook, ..)) in &listening {
        let seen = || node.send(*hook, Device::Eth0, &two.answer()).reason == abi::REASON_BACK;
        wait::until("answers to the client", SOON, seen).unwrap();
    }
    let going = ["replies4", "replies6"].map(|table| node.view.raw(table).unwrap().unwrap().len());
    assert_eq!(going.iter().sum::<usize>(), listening.len(), "answered again, they are among those that go on");
}

#[test]
fn an_error_about_what_the_host_has_asked_is_the_hosts() {
    let Some(mut node) = node("errors about datagrams of two proxies", abi::CONFIG_BESIDE) else { return };
    node.serve(web(), &[(2, 1)]);
    for case in cases(Protocol::Udp) {
        let two = SamePort::begin(&node, case);
        let told = icmp::error(case, two.to_endpoint.destination_socket().ip(), &two.to_endpoint).to_bytes();
        let tell = || node.run(Hook::NicIn, Device::Eth0, &told);
        tell().is_for(TC_REDIRECT, abi::REASON_ERROR_TOLD);
        two.host_asks();
        tell().is_untouched(TC_UNSPEC, abi::REASON_NOT_TRANSPORT, &told);
        two.client_asks();
        tell().is_for(TC_REDIRECT, abi::REASON_ERROR_TOLD);
    }
}

#[test]
fn what_the_host_asks_another_endpoint_from_that_port_takes_no_answers_from_a_client() {
    let Some(mut node) = node("the host's datagrams to others", abi::CONFIG_BESIDE) else { return };
    node.serve(web(), &[(2, 1)]);
    for (case, hook) in cases(Protocol::Udp).flat_map(|case| ANSWERS.map(|hook| (case, hook))) {
        let two = SamePort::begin(&node, case);
        let other = two.to_endpoint.clone().with_destination(case.at(address::pod(2, 2), TARGET_PORT)).to_bytes();
        node.run(Hook::NicOut, Device::Eth0, &other).is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &other);
        two.client_is_answered(hook);
    }
}

#[test]
fn alone_the_host_leaves_a_client_its_answers() {
    let Some(mut node) = node("datagrams of the host from a flow's port", 0) else { return };
    node.serve(web(), &[(2, 1)]);
    for (case, hook) in cases(Protocol::Udp).flat_map(|case| ANSWERS.map(|hook| (case, hook))) {
        let two = SamePort::begin(&node, case);
        two.host_asks();
        two.client_is_answered(hook);
    }
}

#[test]
fn a_client_port_that_a_closed_connection_left_behind_is_the_other_proxys_to_serve() {
    let Some(mut node) = node("a client port that two proxies see", abi::CONFIG_BESIDE) else { return };
    for case in cases(Protocol::Tcp) {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        let (from, to) = (sent.source_socket(), sent.destination_socket());
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let fin = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
        node.send(Hook::NicIn, Device::Eth0, &tcp(from, to, fin.clone())).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let fin = tcp(case.at(address::pod(1, 2), TARGET_PORT), from, fin);
        node.send(Hook::NicOut, Device::Eth0, &fin).is_for(TC_UNSPEC, abi::REASON_BACK);
        for port in [to.port(), 0] {
            let protocol = if port == 0 { 0 } else { case.protocol.number() };
            let key = FrontendKey { address: to.ip(), port, protocol };
            node.datapath.store().apply(&[MapOp::DeleteFrontend { key }]).unwrap();
        }
        for packet in [sent, case.later(from, to)] {
            let frame = packet.to_bytes();
            node.run(Hook::NicIn, Device::Eth0, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_FRONTEND, &frame);
        }
    }
}
