//! Endpoints on other nodes that are reached by a tunnel with an address of its own: they see that one in their clients' stead.

use weir_abi as abi;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT};
use crate::icmp::{ROUTER, assert_told, error};
use crate::node::{Device, ETH2_MAC, Node, TC_REDIRECT, TUNNEL_IP, XDP_PASS, web};

/// Node 4 is behind the tunnel, node 2 is not.
const FAR: (u8, u8) = (4, 1);
const NEAR: (u8, u8) = (2, 1);

fn serving(what: &str, endpoint: (u8, u8)) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[endpoint]);
    node.tunnel(Some(Device::Eth2));
    Some(node)
}

fn first(node: &Node, case: Case, (frontend, port): (Pair, u16)) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(frontend, port))
}

fn later(case: Case, first: &Packet) -> Packet {
    case.later(first.source_socket(), first.destination_socket())
}

fn answer(case: Case, seen: &Packet) -> Packet {
    case.later(seen.destination_socket(), seen.source_socket())
}

/// Sends a packet that reaches the endpoint, and returns it as that one sees it.
#[track_caller]
fn reaches(node: &Node, sent: &Packet) -> Packet {
    let outcome = node.send(Hook::NicIn, Device::Eth0, sent);
    outcome.is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
    outcome.packet()
}

/// As it comes out of the tunnel.
fn by_tunnel(packet: Packet) -> Packet {
    Packet { destination_mac: ETH2_MAC, ..packet }
}

#[test]
fn what_leaves_by_a_tunnel_has_its_address_and_what_is_answered_there_reaches_the_client() {
    let Some(node) = serving("the source of what leaves by a tunnel", FAR) else { return };
    for case in CASES {
        for frontend in [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (BALANCER_IP, PORT), (EXTERNAL_IP, PORT)] {
            let sent = first(&node, case, frontend);
            let seen = reaches(&node, &sent);
            assert_eq!(seen.source_socket().ip(), case.ip(TUNNEL_IP), "{case:?}");
            assert_eq!(seen.destination_socket(), case.at(address::pod(4, 1), TARGET_PORT));
            let answer = by_tunnel(answer(case, &seen));
            for _ in 0..2 {
                let back = node.send(Hook::NicIn, Device::Eth2, &answer);
                back.is_for(TC_REDIRECT, abi::REASON_BACK);
                let ends = (back.packet().source_socket(), back.packet().destination_socket());
                assert_eq!(ends, (sent.destination_socket(), sent.source_socket()), "{case:?}");
                assert_eq!(reaches(&node, &later(case, &sent)).source_socket(), seen.source_socket(), "{case:?}");
            }
        }
    }
}

#[test]
fn xdp_leaves_it_to_tc_with_the_flow_that_it_has_begun() {
    let Some(node) = serving("XDP and tunnels", FAR) else { return };
    for case in CASES {
        let sent = first(&node, case, (CLUSTER_IP, PORT));
        let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
        outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
        let flow = node.flow_of(&sent);
        assert_eq!(flow.flags & (abi::FLOW_SNAT | abi::FLOW_TUNNEL), abi::FLOW_SNAT | abi::FLOW_TUNNEL);
        let seen = reaches(&node, &sent);
        assert_eq!(seen.source_socket(), case.at(TUNNEL_IP, flow.snat_port.get()), "{case:?}");
    }
}

#[test]
fn what_leaves_by_another_way_has_the_nodes_own_address() {
    let Some(node) = serving("the source of what leaves beside a tunnel", NEAR) else { return };
    for case in CASES {
        let seen = reaches(&node, &first(&node, case, (CLUSTER_IP, PORT)));
        assert_eq!(seen.source_socket().ip(), case.ip(address::node(1)), "{case:?}");
    }
}

#[test]
fn flows_keep_the_address_that_they_began_with_when_the_tunnel_goes_and_comes() {
    let Some(node) = serving("flows and a tunnel that goes", FAR) else { return };
    for case in CASES {
        node.tunnel(Some(Device::Eth2));
        let by_tunnel = first(&node, case, (CLUSTER_IP, PORT));
        let seen = reaches(&node, &by_tunnel);
        node.tunnel(None);
        let beside = first(&node, case, (CLUSTER_IP, PORT));
        let seen_beside = reaches(&node, &beside);
        assert_eq!(seen_beside.source_socket().ip(), case.ip(address::node(1)), "{case:?}");
        for device in [None, Some(Device::Eth2)] {
            node.tunnel(device);
            for (sent, seen) in [(&by_tunnel, &seen), (&beside, &seen_beside)] {
                assert_eq!(reaches(&node, &later(case, sent)).source_socket(), seen.source_socket(), "{case:?}");
                node.send(Hook::NicIn, Device::Eth0, &answer(case, seen)).is_for(TC_REDIRECT, abi::REASON_BACK);
            }
        }
    }
}

#[test]
fn errors_are_told_to_and_from_the_tunnels_address() {
    let Some(node) = serving("ICMP errors and tunnels", FAR) else { return };
    for case in CASES {
        let sent = first(&node, case, (EXTERNAL_IP, PORT));
        let seen = reaches(&node, &sent);
        let got = case.later(sent.destination_socket(), sent.source_socket());
        let told = node.send(Hook::NicIn, Device::Eth0, &error(case, case.ip(ROUTER), &got));
        told.is_for(TC_REDIRECT, abi::REASON_ERROR_TOLD);
        assert_told(&told.packet(), case.ip(TUNNEL_IP), &answer(case, &seen));

        let told = node.send(Hook::NicIn, Device::Eth2, &by_tunnel(error(case, case.ip(ROUTER), &seen)));
        told.is_for(TC_REDIRECT, abi::REASON_ERROR_TOLD);
        assert_told(&told.packet(), case.ip(EXTERNAL_IP), &Packet { ttl: seen.ttl, ..sent });
    }
}

/// The host drops what comes in the name of a tunnel that it has; of one that is gone a pod may have the address.
#[test]
fn whoever_has_the_address_of_a_tunnel_that_is_gone_is_served() {
    let Some(node) = serving("the address of a tunnel that is gone", (1, 1)) else { return };
    for (device, reason) in [(Some(Device::Eth2), abi::REASON_NO_FRONTEND), (None, abi::REASON_TO_LOCAL)] {
        node.tunnel(device);
        for case in CASES {
            let sent = case.first(case.at(TUNNEL_IP, node.client_port()), case.at(CLUSTER_IP, PORT));
            assert_eq!(node.send(Hook::NicIn, Device::Eth0, &sent).reason, reason, "{case:?}");
        }
    }
}
