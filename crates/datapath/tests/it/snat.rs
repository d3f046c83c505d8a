//! The node's source ports.

use std::collections::{BTreeMap, BTreeSet};

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::source_ports::PortSet;
use weir_datapath::Hook;
use weir_testbed::address::CLIENT;
use weir_testbed::packet::Packet;

use crate::case::{CASES, CLUSTER_IP, Case, PORT, cases, tcp};
use crate::ended::{ack, fin};
use crate::entries::calm;
use crate::node::{Device, Node, SNAT_PORTS, TC_REDIRECT, TC_SHOT, XDP_TX, web};
use crate::talk::{Talk, WAYS};
use crate::turns::pass;

pub(crate) fn to_service(node: &Node, case: Case) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT))
}

/// The endpoint answers what it saw of a flow's first packet, and the client goes on.
pub(crate) fn go_on(node: &Node, case: Case, first: &Packet, seen: &Packet) {
    let answer = case.later(seen.destination_socket(), seen.source_socket());
    node.send(Hook::NicIn, Device::Eth0, &answer).is_for(TC_REDIRECT, abi::REASON_BACK);
    let later = case.later(first.source_socket(), first.destination_socket());
    node.send(Hook::NicIn, Device::Eth0, &later).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
}

#[test]
fn a_connection_that_is_met_in_its_middle_looks_at_few_ports_and_takes_none_of_a_connection_that_has_just_ended() {
    const PORTS: u16 = 40;
    const TRIED: i64 = 16;
    let Some(mut node) = Node::new("SNAT ports of what has ended, and forged ACKs") else { return };
    node.configure((50000, 50000 + PORTS - 1), true);
    for case in cases(Protocol::Tcp) {
        node.serve_anew(web(), &[(2, 1)]);
        let open: Vec<_> = (0..PORTS)
            .map(|_| {
                let first = to_service(&node, case);
                let seen = node.send(Hook::NicIn, Device::Eth0, &first).packet();
                go_on(&node, case, &first, &seen);
                seen
            })
            .collect();
        // It was not for short connections that all ports have had their turn.
        pass(&node, case, 1000);
        for seen in open {
            let reset = tcp(seen.destination_socket(), seen.source_socket(), TcpHeader { rst: true, ..ack(0) });
            node.send(Hook::NicIn, Device::Eth0, &reset).is_for(TC_REDIRECT, abi::REASON_BACK);
        }
        let mut before = turns(&node);
        for _ in 0..4 {
            let forged = tcp(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT), ack(1));
            node.send(Hook::NicIn, Device::Eth0, &forged).is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
            let looked_at = turns(&node) - before;
            // At the end of the ports it begins anew.
            assert!([TRIED, TRIED - i64::from(PORTS)].contains(&looked_at), "{case:?}: {looked_at}");
            before += looked_at;
        }
        node.send(Hook::NicIn, Device::Eth0, &to_service(&node, case)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
    }
}

#[test]
fn the_port_of_a_connection_that_both_sides_closed_is_used_again() {
    let Some(mut node) = Node::new("SNAT ports of closed connections") else { return };
    node.configure((50000, 50001), true);
    node.serve(web(), &[(2, 1)]);
    for case in cases(Protocol::Tcp) {
        for _ in 0..10 {
            let sent = to_service(&node, case);
            let seen = node.send(Hook::NicIn, Device::Eth0, &sent);
            seen.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            let seen = seen.packet();
            go_on(&node, case, &sent, &seen);
            let fin = TcpHeader { fin: true, ack: true, ..TcpHeader::default() };
            let to = tcp(sent.source_socket(), sent.destination_socket(), fin.clone());
            node.send(Hook::NicIn, Device::Eth0, &to).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            let back = tcp(seen.destination_socket(), seen.source_socket(), fin);
            node.send(Hook::NicIn, Device::Eth0, &back).is_for(TC_REDIRECT, abi::REASON_BACK);
        }
    }
}

#[test]
fn who_agrees_to_a_connection_at_the_port_of_one_that_is_over_answers_the_host() {
    let Some(mut node) = Node::new("what the host masquerades to an endpoint") else { return };
    for case in cases(Protocol::Tcp) {
        for way in [WAYS[2], WAYS[3]] {
            node.serve_anew(web(), &[way.endpoint]);
            let talk = Talk::open(&node, case, way);
            talk.accept();
            talk.client_goes_on();
            talk.endpoint_sends(&talk.endpoint_tcp(fin()));
            talk.client_sends(&talk.client_tcp(fin()));
            talk.endpoint_sends(&talk.endpoint_tcp(ack(1)));
            let [agreed, next] = [TcpHeader { syn: true, ..ack(1) }, ack(2)].map(|header| talk.endpoint_tcp(header));
            for packet in [agreed, next] {
                let outcome = node.send(way.back.0, way.back.1, &packet);
                assert_eq!((outcome.reason, outcome.packet()), (abi::REASON_NO_FRONTEND, packet), "{way:?}");
            }
        }
    }
}

#[test]
fn the_port_of_a_flow_that_went_on_to_another_backend_is_used_again() {
    let Some(mut node) = Node::new("SNAT ports of moved flows") else { return };
    node.configure((50000, 50001), true);
    for case in cases(Protocol::Udp) {
        let flows = [to_service(&node, case), to_service(&node, case)];
        for pod in [1, 2, 1] {
            node.serve(web(), &[(2, pod)]);
            for sent in &flows {
                node.send(Hook::NicIn, Device::Eth0, sent).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            }
        }
    }
}

#[test]
fn an_endpoint_that_returns_takes_new_flows_although_old_ones_had_its_first_ports() {
    let Some(mut node) = Node::new("SNAT ports of an endpoint that returns") else { return };
    for case in CASES {
        for _ in 0..3 {
            node.serve(web(), &[(2, 1)]);
            for _ in 0..100 {
                let outcome = node.send(Hook::NicIn, Device::Eth0, &to_service(&node, case));
                outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            }
            node.serve(web(), &[]);
            node.release();
            node.release();
        }
    }
}

#[test]
fn every_flow_to_a_backend_has_a_port_of_its_own_and_other_backends_may_share_it() {
    let Some(mut node) = Node::new("SNAT ports") else { return };
    node.serve(web(), &[(2, 1), (2, 2)]);
    for case in CASES {
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let outcome = node.send(Hook::NicIn, Device::Eth0, &to_service(&node, case));
            outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            let packet = outcome.packet();
            let port = packet.source_socket().port();
            assert!((SNAT_PORTS.0..=SNAT_PORTS.1).contains(&port), "port {port}");
            assert!(seen.insert((packet.destination_socket(), port)), "{packet:?} is the second of its kind");
        }
    }
}

/// Pods of several nodes may differ in the network alone.
#[test]
fn each_backend_has_its_ports_in_turn_whatever_others_get() {
    const FLOWS: usize = 60;
    let Some(mut node) = Node::new("SNAT ports by backend") else { return };
    node.serve(web(), &[(2, 1), (3, 1), (4, 1)]);
    for case in CASES {
        let mut ports = BTreeMap::<_, BTreeSet<u16>>::new();
        for _ in 0..FLOWS {
            let outcome = node.send(Hook::NicIn, Device::Eth0, &to_service(&node, case));
            outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            let seen = outcome.packet();
            ports.entry(seen.destination_socket()).or_default().insert(seen.source_socket().port());
        }
        assert_eq!(ports.len(), 3, "{case:?}");
        for (backend, ports) in ports {
            let (first, last) = (ports.first().unwrap(), ports.last().unwrap());
            assert_eq!(usize::from(last - first), ports.len() - 1, "{case:?} to {backend}: {ports:?}");
        }
    }
}

#[test]
fn a_flow_gets_a_port_behind_a_long_run_of_others_that_go_on() {
    const HELD: u16 = 100;
    let (first, last) = (50_000, 50_000 + HELD);
    let Some(mut node) = Node::new("SNAT ports behind a run") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        node.configure((first, last - 1), true);
        for _ in 0..HELD {
            let sent = to_service(&node, case);
            let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
            outcome.is_for(XDP_TX, abi::REASON_TO_REMOTE);
            calm(&node);
            go_on(&node, case, &sent, &outcome.packet());
        }
        node.configure((first, last), true);
        // The second one's search begins with those that go on, and ends with the port of the first, whose client does not.
        for _ in 0..2 {
            let outcome = node.send(Hook::Xdp, Device::Eth0, &to_service(&node, case));
            outcome.is_for(XDP_TX, abi::REASON_TO_REMOTE);
            assert_eq!(outcome.packet().source_socket().port(), last, "{case:?}");
        }
    }
}

#[test]
fn without_an_address_of_the_node_nothing_leaves_in_its_name() {
    let Some(mut node) = Node::new("SNAT without an address") else { return };
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { node4: abi::Addr::UNSET, node6: abi::Addr::UNSET, ..config }).unwrap();
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let sent = to_service(&node, case);
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_SHOT, abi::REASON_NO_ROUTE);
    }
}

/// A search is an atomic operation and some memory for each port. Who comes while it is noted looks at few of them.
#[test]
fn who_has_looked_at_as_many_ports_as_it_may_spares_the_next_ones_that() {
    let Some(mut node) = Node::new("searches for ports") else { return };
    // Who looks at a port has come by two numbers, and who passes over numbers by one.
    let (first, last) = (50_001, 52_199);
    let ports: PortSet = (first..=last).step_by(2).collect();
    node.datapath.set_source_ports(&ports).unwrap();
    for case in [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(cases) {
        node.serve_anew(web(), &[(2, 1)]);
        take(&node, case, ports.len());
        let search = || {
            let before = turns(&node);
            node.send(Hook::NicIn, Device::Eth0, &to_service(&node, case)).is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
            turns(&node) - before
        };
        // It was at the end of the ports, and has begun anew.
        assert_eq!(search(), i64::from(first) - i64::from(last) + 2 * 511, "{case:?}");
        assert_eq!(search(), 2 * 128 + 512 - 128, "{case:?}");
    }
}

/// Somebody may hold most ports, and leave a free one here and there: each search would be as long as it can be.
#[test]
fn after_a_long_search_the_next_ones_are_short_whether_it_was_in_vain_or_not() {
    const HELD: u16 = 299;
    let Some(mut node) = Node::new("long searches for ports") else { return };
    node.configure((50000, 50000 + HELD), true);
    for case in cases(Protocol::Udp) {
        node.serve_anew(web(), &[(2, 1)]);
        take(&node, case, HELD.into());
        let sent = || node.send(Hook::NicIn, Device::Eth0, &to_service(&node, case));
        // The first one is next to them, the second one begins with those that go on and ends where the first one was.
        for _ in 0..2 {
            let outcome = sent();
            outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
            assert_eq!(outcome.packet().source_socket().port(), 50000 + HELD, "{case:?}");
        }
        sent().is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
    }
}

/// Many flows that go on have ports side by side, as those of clients that have all come at once.
#[test]
fn new_flows_come_to_the_end_of_a_long_run_of_ports_in_use_after_a_few_that_are_lost() {
    let Some(mut node) = Node::new("a run of ports in use") else { return };
    node.configure((50000, 51999), true);
    for case in [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(cases) {
        node.serve_anew(web(), &[(2, 1)]);
        take(&node, case, 1100);
        let sent = || node.send(Hook::NicIn, Device::Eth0, &to_service(&node, case));
        (0..900).for_each(|_| sent().is_for(TC_REDIRECT, abi::REASON_TO_REMOTE));
        let lost = (0..20).find(|_| sent().reason == abi::REASON_TO_REMOTE);
        assert!(lost.is_some_and(|lost| lost <= 3), "{case:?}: {lost:?}");
    }
}

/// So many flows in the node's name begin, and go on.
fn take(node: &Node, case: Case, ports: u32) {
    for number in 0..ports {
        // So many may move in a tick.
        if number % 8 == 0 {
            calm(node);
        }
        let sent = to_service(node, case);
        let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
        go_on(node, case, &sent, &outcome.packet());
    }
}

/// The turns of all endpoints' ports, added up.
fn turns(node: &Node) -> i64 {
    let next = |counter: &[u8]| counter.first_chunk().map_or(0, |bytes| i64::from(u32::from_ne_bytes(*bytes)));
    node.view.raw("snat_counters").unwrap().unwrap().iter().map(|(_, counter)| next(counter)).sum()
}
