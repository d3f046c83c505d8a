//! The turn of a source port comes again: who yields it, who keeps it, and who has to ask twice.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::CLIENT;
use weir_testbed::packet::Packet;

use crate::case::{CLUSTER_IP, Case, PORT, cases, tcp};
use crate::entries::{age, age_pressure};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, XDP_DROP, web};
use crate::outcome::Outcome;
use crate::tcp_state::REMEMBERED;

const HOOKS: [Hook; 2] = [Hook::NicIn, Hook::Xdp];

/// A node with one endpoint, on another node, to which flows may take these ports.
fn node(what: &str, ports: impl IntoIterator<Item = u16>) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(2, 1)]);
    node.datapath.set_source_ports(&ports.into_iter().collect()).unwrap();
    Some(node)
}

/// A flow through the node, and what the endpoint sees of it.
struct Forwarded<'a> {
    node: &'a Node,
    case: Case,
    hook: Hook,
    first: Packet,
    seen: Packet,
}

impl<'a> Forwarded<'a> {
    #[track_caller]
    fn open(node: &'a Node, case: Case, hook: Hook) -> Self {
        let first = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        let outcome = node.insist(hook, Device::Eth0, &first);
        assert_eq!(outcome.reason, abi::REASON_TO_REMOTE, "{outcome:?}");
        Self { node, case, hook, first, seen: outcome.packet() }
    }

    fn port(&self) -> u16 {
        self.seen.source_socket().port()
    }

    #[track_caller]
    fn client_sends(&self, packet: &Packet) {
        let outcome = self.node.send(self.hook, Device::Eth0, packet);
        assert_eq!(outcome.reason, abi::REASON_TO_REMOTE, "{outcome:?}");
        assert_eq!(outcome.packet().source_socket(), self.seen.source_socket());
    }

    #[track_caller]
    fn endpoint_sends(&self, packet: &Packet) {
        let outcome = self.node.send(self.hook, Device::Eth0, packet);
        assert_eq!(outcome.reason, abi::REASON_BACK, "{outcome:?}");
        assert_eq!(outcome.packet().destination_socket(), self.first.source_socket());
    }

    fn later(&self) -> Packet {
        self.case.later(self.first.source_socket(), self.first.destination_socket())
    }

    #[track_caller]
    fn client_goes_on(&self) {
        self.client_sends(&self.later());
    }

    #[track_caller]
    fn endpoint_answers(&self) {
        self.endpoint_sends(&self.case.later(self.seen.destination_socket(), self.seen.source_socket()));
    }

    /// Both sides close it.
    fn end(&self) {
        let fin = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
        self.client_sends(&tcp(self.first.source_socket(), self.first.destination_socket(), fin.clone()));
        self.endpoint_sends(&tcp(self.seen.destination_socket(), self.seen.source_socket(), fin));
    }
}

/// So many ticks pass without a packet.
pub(crate) fn pass(node: &Node, case: Case, ticks: u32) {
    let (flows, replies) = if case.family == Family::V4 { ("flows4", "replies4") } else { ("flows6", "replies6") };
    age(node, flows, offset_of!(abi::Flow, created), ticks);
    age(node, flows, offset_of!(abi::Flow, last_seen), ticks);
    age(node, replies, offset_of!(abi::Reply, last_seen), ticks);
    age_pressure(node, ticks);
}

/// SYNs whose client never goes on. Their backend answers every other one. None gets the port of one of these.
#[track_caller]
fn flood(node: &Node, case: Case, hook: Hook, count: usize, clients: &[Forwarded<'_>]) {
    for number in 0..count {
        let forged = Forwarded::open(node, case, hook);
        assert!(clients.iter().all(|client| client.port() != forged.port()), "a client lost its port");
        if number % 2 == 0 {
            forged.endpoint_answers();
        }
    }
}

#[test]
fn a_flood_that_takes_all_ports_over_and_over_takes_none_of_a_client_that_goes_on_within_a_turn() {
    const RING: usize = 64;
    const CLIENTS: usize = 12;
    let Some(node) = node("a flood for an endpoint on another node", (50_000..).take(RING)) else { return };
    for case in cases(Protocol::Tcp) {
        for hook in HOOKS {
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                clients.push(Forwarded::open(&node, case, hook));
                // Every other port has its turn.
                flood(&node, case, hook, RING - clients.len(), &clients);
                let client = &clients[clients.len() - 1];
                client.endpoint_answers();
                client.client_goes_on();
            }
            flood(&node, case, hook, 2 * RING, &clients);
            for client in &clients {
                client.endpoint_answers();
                client.client_goes_on();
                client.end();
            }
            pass(&node, case, 10_000);
        }
    }
}

#[test]
fn who_begins_yields_its_port_when_its_turn_comes_whether_it_was_answered_or_not_and_is_reset() {
    let Some(node) = node("ports of flows that begin", 50_000..=50_001) else { return };
    node.refuses();
    for case in cases(Protocol::Tcp) {
        for hook in HOOKS {
            let [answered, silent] = [(); 2].map(|()| Forwarded::open(&node, case, hook));
            answered.endpoint_answers();
            let [first, second] = [(); 2].map(|()| Forwarded::open(&node, case, hook));
            assert_eq!([first.port(), second.port()], [answered.port(), silent.port()], "oldest first");
            first.endpoint_answers();
            pass(&node, case, 1);
            node.send(Hook::NicIn, Device::Eth0, &answered.later()).is_for(TC_REDIRECT, abi::REASON_STALE_RESET);
            first.client_goes_on();
            second.endpoint_answers();
            second.client_goes_on();
            let third = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
            node.insist(Hook::NicIn, Device::Eth0, &third).is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
            for flow in [first, second] {
                flow.end();
            }
            pass(&node, case, 10_000);
        }
    }
}

#[test]
fn one_question_yields_its_port_and_a_client_that_sends_on_without_an_answer_keeps_it() {
    let Some(node) = node("ports of datagrams", 50_000..=50_001) else { return };
    for case in cases(Protocol::Udp) {
        for hook in HOOKS {
            let question = Forwarded::open(&node, case, hook);
            question.endpoint_answers();
            let stream = Forwarded::open(&node, case, hook);
            // What comes in the tick in which the flow began is not seen to go on.
            pass(&node, case, 1);
            stream.client_goes_on();
            for _ in 0..5 {
                assert_eq!(Forwarded::open(&node, case, hook).port(), question.port());
            }
            stream.client_goes_on();
            pass(&node, case, 10_000);
        }
    }
}

/// A client that asks two things at once, as resolvers do, and has both answers.
fn two_questions(node: &Node, case: Case, hook: Hook) -> Forwarded<'_> {
    loop {
        let flow = Forwarded::open(node, case, hook);
        flow.client_goes_on();
        (0..2).for_each(|_| flow.endpoint_answers());
        let entries = node.view.flows().unwrap();
        let known = entries.iter().find(|entry| entry.client_port == flow.first.source_socket().port()).unwrap();
        assert_eq!(known.flow.flags & abi::FLOW_OPENING, 0, "it goes on");
        if known.flow.last_seen == known.flow.created {
            return flow;
        }
        // A tick has passed meanwhile.
        pass(node, case, 10_000);
    }
}

#[test]
fn two_questions_at_once_yield_their_port_half_a_minute_after_their_answers() {
    let Some(node) = node("ports of clients that ask two things at once", 50_000..=50_000) else { return };
    for case in cases(Protocol::Udp) {
        for hook in HOOKS {
            let questions = two_questions(&node, case, hook);
            // A tick may pass meanwhile.
            pass(&node, case, abi::ASKED_ONCE_IDLE - 2);
            assert_eq!(ask(&node, case, hook).1.reason, abi::REASON_SNAT_EXHAUSTED);
            questions.endpoint_answers();
            pass(&node, case, abi::ASKED_ONCE_IDLE - 2);
            assert_eq!(ask(&node, case, hook).1.reason, abi::REASON_SNAT_EXHAUSTED);
            pass(&node, case, 3);
            assert_eq!(Forwarded::open(&node, case, hook).port(), questions.port());
            pass(&node, case, 10_000);
        }
    }
}

#[test]
fn a_flow_that_has_just_ended_yields_its_port_if_no_other_is_free() {
    let ports = 50_000..=50_002;
    let Some(node) = node("ports of flows that have just ended", ports) else { return };
    for case in cases(Protocol::Tcp) {
        for hook in HOOKS {
            let open = || {
                let flow = Forwarded::open(&node, case, hook);
                flow.endpoint_answers();
                flow.client_goes_on();
                flow
            };
            let [ended, other, going] = [(); 3].map(|()| open());
            pass(&node, case, 1000);
            other.end();
            pass(&node, case, REMEMBERED);
            ended.end();
            going.client_goes_on();
            // Its endpoint may remember it for as long as that, whatever its turn is.
            pass(&node, case, REMEMBERED - 1);
            let first = open();
            assert_eq!(first.port(), other.port(), "it is free for longer");
            let second = open();
            assert_eq!(second.port(), ended.port(), "there is no other one");
            for flow in [first, second, going] {
                flow.end();
            }
            pass(&node, case, 10_000);
        }
    }
}

/// RFC 9293, 3.10.7.3: a client whose SYN is answered with what is for somebody before it resets that, and asks again. At the endpoint
/// the reset frees the port; at another one somebody else may be half-open.
#[test]
fn a_client_that_resets_an_answer_to_somebody_before_keeps_its_port_unless_its_turn_comes() {
    const RING: u16 = 8;
    let Some(node) = node("ports at which somebody before is half-open", (50_000..).take(RING.into())) else { return };
    let answer = |syn| TcpHeader { syn, ack: true, ..TcpHeader::default() };
    for case in cases(Protocol::Tcp) {
        for hook in HOOKS {
            let [client, slow] = [(); 2].map(|()| Forwarded::open(&node, case, hook));
            let reset = |flow: &Forwarded<'_>, syn| {
                flow.endpoint_sends(&tcp(flow.seen.destination_socket(), flow.seen.source_socket(), answer(syn)));
                let rst = TcpHeader { rst: true, ..TcpHeader::default() };
                flow.client_sends(&tcp(flow.first.source_socket(), flow.first.destination_socket(), rst));
            };
            for syn in [false, true] {
                reset(&client, syn);
                client.client_sends(&client.first);
            }
            client.endpoint_answers();
            client.client_goes_on();
            reset(&slow, true);
            flood(&node, case, hook, RING.into(), &[client]);
            let late = node.insist(hook, Device::Eth0, &slow.first);
            assert_eq!(late.reason, abi::REASON_TO_REMOTE);
            assert_ne!(late.packet().source_socket(), slow.seen.source_socket());
            pass(&node, case, 10_000);
        }
    }
}

/// What becomes of the first packet of somebody new.
fn ask(node: &Node, case: Case, hook: Hook) -> (Packet, Outcome) {
    let first = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
    let outcome = node.send(hook, Device::Eth0, &first);
    (first, outcome)
}

#[test]
fn in_a_flood_for_an_endpoint_on_another_node_a_syn_is_forwarded_when_it_comes_again_and_takes_no_port_before() {
    const RING: u16 = 8;
    let Some(node) = node("first SYNs in a flood", (50_000..).take(RING.into())) else { return };
    for case in cases(Protocol::Tcp) {
        for hook in HOOKS {
            let clients: Vec<_> = (0..RING).map(|_| Forwarded::open(&node, case, hook)).collect();
            let taker = Forwarded::open(&node, case, hook);
            assert_eq!(taker.port(), clients[0].port(), "its turn has come within a tick");
            // Whoever asks once gets nothing, however many there are of them.
            for _ in 0..4 * RING {
                let (first, outcome) = ask(&node, case, hook);
                outcome.is_untouched(drop_of(hook), abi::REASON_FIRST_SYN, &first.to_bytes());
            }
            for client in &clients[1..] {
                client.endpoint_answers();
                client.client_goes_on();
            }
            let (first, _) = ask(&node, case, hook);
            let again = node.send(hook, Device::Eth0, &first);
            assert_eq!(again.reason, abi::REASON_TO_REMOTE);
            assert_eq!(again.packet().source_socket().port(), taker.port(), "no other port is free");
            // It is over as soon as nobody has lost a port for so long.
            for flow in &clients[1..] {
                flow.end();
            }
            // Less a tick, which may be over by itself before the next packet.
            age_pressure(&node, abi::OPENING_IDLE - 1);
            assert_eq!(ask(&node, case, hook).1.reason, abi::REASON_FIRST_SYN);
            age_pressure(&node, 2);
            assert_eq!(ask(&node, case, hook).1.reason, abi::REASON_TO_REMOTE);
            pass(&node, case, 10_000);
        }
    }
}

fn drop_of(hook: Hook) -> u32 {
    if hook == Hook::Xdp { XDP_DROP } else { TC_SHOT }
}

#[test]
fn short_connections_that_use_all_ports_over_and_over_in_a_tick_have_to_ask_once_only() {
    const RING: u16 = 8;
    let Some(node) = node("short connections, one after the other", (50_000..).take(RING.into())) else { return };
    for case in cases(Protocol::Tcp) {
        for hook in HOOKS {
            for _ in 0..4 * RING {
                let (first, outcome) = ask(&node, case, hook);
                assert_eq!(outcome.reason, abi::REASON_TO_REMOTE);
                let flow = Forwarded { node: &node, case, hook, first, seen: outcome.packet() };
                flow.endpoint_answers();
                flow.client_goes_on();
                flow.end();
            }
            pass(&node, case, 10_000);
        }
    }
}

#[test]
fn datagrams_do_not_come_again_and_pass_at_once() {
    let Some(node) = node("datagrams that use all ports over and over", 50_000..=50_003) else { return };
    for case in cases(Protocol::Udp) {
        for hook in HOOKS {
            for _ in 0..16 {
                assert_eq!(ask(&node, case, hook).1.reason, abi::REASON_TO_REMOTE);
            }
            pass(&node, case, 10_000);
        }
    }
}

#[test]
fn a_client_that_vanished_while_its_endpoint_asks_again_and_again_is_no_flood() {
    let Some(node) = node("ports of clients that vanished", 50_000..=50_003) else { return };
    for case in cases(Protocol::Tcp) {
        for hook in HOOKS {
            let vanished: Vec<_> = (0..4).map(|_| Forwarded::open(&node, case, hook)).collect();
            pass(&node, case, 10);
            for client in &vanished {
                client.endpoint_answers();
            }
            for client in &vanished {
                let (_, outcome) = ask(&node, case, hook);
                assert_eq!(outcome.reason, abi::REASON_TO_REMOTE);
                assert_eq!(outcome.packet().source_socket().port(), client.port(), "it yields its port");
            }
            pass(&node, case, 10_000);
        }
    }
}
