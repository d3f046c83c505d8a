//! Clients outside of the node: to endpoints here and on other nodes, and back.

use weir_abi as abi;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Mac, Packet};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT};
use crate::node::{
    Device, ETH0_MAC, ETH1_MAC, NODE2_MAC, NODE3_MAC, Node, ROUTER_MAC, SNAT_PORTS, TC_REDIRECT, TC_UNSPEC, XDP_PASS,
    XDP_REDIRECT, XDP_TX, web,
};

const LOCAL: (u8, u8) = (1, 1);

/// An address and port of every kind that clients connect to.
fn frontends() -> [(Pair, u16); 4] {
    [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (BALANCER_IP, PORT), (EXTERNAL_IP, PORT)]
}

/// A first packet from a new port of the client.
fn from_client(node: &Node, case: Case, (frontend, port): (Pair, u16)) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(frontend, port))
}

/// What arrives at an endpoint of another node: from a port of this node, one hop older.
#[track_caller]
fn translated(case: Case, sent: &Packet, seen: &Packet, pod: (u8, u8)) -> Packet {
    let port = seen.source_socket().port();
    assert!((SNAT_PORTS.0..=SNAT_PORTS.1).contains(&port), "port {port}");
    let mut expected = sent
        .clone()
        .with_source(case.at(address::node(1), port))
        .with_destination(case.at(address::pod(pod.0, pod.1), TARGET_PORT));
    expected.ttl -= 1;
    expected
}

fn with_macs(packet: Packet, source_mac: Mac, destination_mac: Mac) -> Packet {
    Packet { source_mac, destination_mac, ..packet }
}

/// The answer to a packet, as its receiver sends it.
fn answer(case: Case, seen: &Packet) -> Packet {
    case.later(seen.destination_socket(), seen.source_socket())
}

/// The answer as the client must see it: from what it sent to.
fn answer_to(answer: &Packet, sent: &Packet) -> Packet {
    answer.clone().with_source(sent.destination_socket()).with_destination(sent.source_socket())
}

#[test]
fn a_client_of_any_frontend_reaches_the_local_backend_with_its_own_address() {
    let Some(mut node) = Node::new("client to a local backend") else { return };
    node.serve(web(), &[LOCAL]);
    for case in CASES {
        for frontend in frontends() {
            for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)] {
                let sent = from_client(&node, case, frontend);
                let expected = sent.clone().with_destination(case.at(address::pod(1, 1), TARGET_PORT));
                node.send(hook, Device::Eth0, &sent).is(verdict, abi::REASON_TO_LOCAL, &expected);
            }
        }
    }
}

#[test]
fn the_answer_of_a_local_backend_leaves_with_the_address_that_the_client_knows() {
    let Some(mut node) = Node::new("answer of a local backend") else { return };
    node.serve(web(), &[LOCAL]);
    for case in CASES {
        for frontend in frontends() {
            let sent = from_client(&node, case, frontend);
            let seen = node.send(Hook::NicIn, Device::Eth0, &sent).packet();
            let answer = answer(case, &seen);
            let expected = answer_to(&answer, &sent);
            for _ in 0..2 {
                node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &expected);
            }
        }
    }
}

#[test]
fn xdp_sends_a_client_of_any_frontend_to_the_remote_backend_on_the_same_device() {
    let Some(mut node) = Node::new("XDP_TX to a remote backend") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        for frontend in frontends() {
            let sent = from_client(&node, case, frontend);
            let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
            let seen = outcome.packet();
            let expected = with_macs(translated(case, &sent, &seen, (2, 1)), ETH0_MAC, NODE2_MAC);
            outcome.is(XDP_TX, abi::REASON_TO_REMOTE, &expected);

            let answer = answer(case, &seen);
            let mut expected = with_macs(answer_to(&answer, &sent), ETH0_MAC, ROUTER_MAC);
            expected.ttl -= 1;
            node.send(Hook::Xdp, Device::Eth0, &answer).is(XDP_TX, abi::REASON_BACK, &expected);
        }
    }
}

#[test]
fn xdp_redirects_to_a_remote_backend_behind_another_device_and_back() {
    let Some(mut node) = Node::new("XDP_REDIRECT to a remote backend") else { return };
    node.serve(web(), &[(3, 1)]);
    for case in CASES {
        let sent = from_client(&node, case, (CLUSTER_IP, PORT));
        let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
        let seen = outcome.packet();
        let expected = with_macs(translated(case, &sent, &seen, (3, 1)), ETH1_MAC, NODE3_MAC);
        outcome.is(XDP_REDIRECT, abi::REASON_TO_REMOTE, &expected);

        let answer = answer(case, &seen);
        let mut expected = with_macs(answer_to(&answer, &sent), ETH0_MAC, ROUTER_MAC);
        expected.ttl -= 1;
        node.send(Hook::Xdp, Device::Eth1, &answer).is(XDP_REDIRECT, abi::REASON_BACK, &expected);
    }
}

#[test]
fn tc_redirects_a_client_of_any_frontend_to_the_remote_backend_and_back() {
    let Some(mut node) = Node::new("tc to a remote backend") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        for frontend in frontends() {
            // The kernel writes the MAC addresses behind the program.
            let sent = from_client(&node, case, frontend);
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            let seen = outcome.packet();
            outcome.is(TC_REDIRECT, abi::REASON_TO_REMOTE, &translated(case, &sent, &seen, (2, 1)));

            let answer = answer(case, &seen);
            let mut expected = answer_to(&answer, &sent);
            expected.ttl -= 1;
            node.send(Hook::NicIn, Device::Eth0, &answer).is(TC_REDIRECT, abi::REASON_BACK, &expected);
        }
    }
}

#[test]
fn the_second_packet_of_a_flow_is_translated_like_the_first() {
    let Some(mut node) = Node::new("second packet of a flow") else { return };
    for pod in [LOCAL, (2, 1)] {
        node.serve(web(), &[pod]);
        for case in CASES {
            for hook in [Hook::Xdp, Hook::NicIn] {
                let first = from_client(&node, case, (CLUSTER_IP, PORT));
                let one = node.send(hook, Device::Eth0, &first);
                let second = case.later(first.source_socket(), first.destination_socket());
                let two = node.send(hook, Device::Eth0, &second);
                let ends = |packet: &Packet| (packet.source_socket(), packet.destination_socket());
                assert_eq!(ends(&two.packet()), ends(&one.packet()), "{case:?} at {hook}");
                two.is_for(one.verdict, one.reason);
            }
        }
    }
}

#[test]
fn a_flow_that_xdp_opened_goes_on_in_tc_and_the_other_way_round() {
    let Some(mut node) = Node::new("one flow in both programs") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        for hooks in [[Hook::Xdp, Hook::NicIn], [Hook::NicIn, Hook::Xdp]] {
            let sent = from_client(&node, case, (BALANCER_IP, PORT));
            let ends = hooks.map(|hook| {
                let seen = node.send(hook, Device::Eth0, &sent).packet();
                (seen.source_socket(), seen.destination_socket())
            });
            assert_eq!(ends[0], ends[1]);
        }
    }
}

#[test]
fn xdp_without_a_neighbour_or_with_a_device_that_it_may_not_use_leaves_the_packet_to_tc() {
    let Some(mut node) = Node::new("XDP without a neighbour") else { return };
    for pod in [(5, 1), (4, 1)] {
        node.serve(web(), &[pod]);
        for case in CASES {
            let sent = from_client(&node, case, (CLUSTER_IP, PORT));
            let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
            outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            let expected = translated(case, &sent, &outcome.packet(), pod);
            outcome.is(TC_REDIRECT, abi::REASON_TO_REMOTE, &expected);
        }
    }
}

#[test]
fn flows_of_services_are_counted_once() {
    let Some(mut node) = Node::new("counters of services") else { return };
    node.serve(web(), &[(5, 1)]);
    let sent = from_client(&node, CASES[0], (CLUSTER_IP, PORT));
    for hook in [Hook::Xdp, Hook::NicIn, Hook::Xdp, Hook::NicIn] {
        node.send(hook, Device::Eth0, &sent);
    }
    let flow = node.view.flows().unwrap()[0].flow;
    assert_eq!(node.view.service_counters(flow.service).unwrap().remote, 1);
    assert_eq!(node.view.backend_counters(flow.backend).unwrap().flows, 1);
}
