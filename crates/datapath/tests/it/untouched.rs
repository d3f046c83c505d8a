//! What is not ours leaves every program byte for byte as it came.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_core::ops::{FrontendKey, MapOp};
use weir_datapath::{Hook, MapStore};
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Extension, Packet, Transport};

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT, cases};
use crate::node::{Device, ETH0_MAC, Node, TC_UNSPEC, XDP_PASS, web};

/// Every program with its device and the verdict that lets a packet go on.
const HOOKS: [(Hook, Device, u32); 5] = [
    (Hook::Xdp, Device::Eth0, XDP_PASS),
    (Hook::NicIn, Device::Eth0, TC_UNSPEC),
    (Hook::NicOut, Device::Eth0, TC_UNSPEC),
    (Hook::PodIn, Device::Pod1, TC_UNSPEC),
    (Hook::PodOut, Device::Pod1, TC_UNSPEC),
];
/// Programs that see a client's packets: some of theirs would be ours if they were whole.
const INWARD: [(Hook, Device, u32); 3] = [HOOKS[0], HOOKS[1], HOOKS[3]];

fn node(what: &str) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(1, 1)]);
    Some(node)
}

#[track_caller]
fn passes_everywhere(node: &Node, reason: u32, frame: &[u8]) {
    for (hook, device, verdict) in HOOKS {
        node.run(hook, device, frame).is_untouched(verdict, reason, frame);
    }
}

fn to_service(node: &Node, case: Case) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT))
}

#[test]
fn frames_without_ip_pass() {
    let Some(node) = node("frames without IP") else { return };
    // An ARP request for the cluster IP, to the node alone, and an ethertype of nobody.
    let mut arp = ETH0_MAC.0.to_vec();
    arp.extend([2, 0, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 198, 51, 100, 2]);
    arp.extend([0, 0, 0, 0, 0, 0, 10, 96, 0, 1]);
    passes_everywhere(&node, abi::REASON_NOT_IP, &arp);
    arp[12..14].copy_from_slice(&[0x88, 0xb5]);
    passes_everywhere(&node, abi::REASON_NOT_IP, &arp);
}

#[test]
fn other_protocols_pass_even_at_the_address_of_a_service() {
    let Some(node) = node("other protocols") else { return };
    for family in [Family::V4, Family::V6] {
        let case = Case { family, protocol: Protocol::Udp };
        let echo = Transport::Icmp {
            kind: if family == Family::V4 { 8 } else { 128 },
            code: 0,
            rest: [0, 1, 0, 1],
            body: vec![7; 33],
        };
        let echo = Packet::new(case.ip(CLIENT), case.ip(CLUSTER_IP), echo);
        // GRE, which has no ports.
        let other = Transport::Other { protocol: 47, bytes: vec![0, 0, 8, 0, 0, 0, 0, 0] };
        let other = Packet::new(case.ip(CLIENT), case.ip(CLUSTER_IP), other);
        for packet in [other, echo] {
            passes_everywhere(&node, abi::REASON_NOT_TRANSPORT, &packet.to_bytes());
        }
    }
}

/// Node ports at these are for the sockets of the node's own processes: from outside they are martians.
#[test]
fn a_packet_to_a_loopback_address_passes_although_it_is_a_frontend() {
    let Some(mut node) = node("loopback addresses") else { return };
    const LOOPBACK: Pair = Pair { v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST };
    for case in CASES {
        let (_, service) = node.frontend(case.at(CLUSTER_IP, PORT), case.protocol);
        let frontend = abi::Frontend { kind: abi::KIND_NODE_PORT, ..service };
        let mut addresses = vec![case.ip(LOOPBACK)];
        addresses.extend((case.family == Family::V4).then_some(Ipv4Addr::new(127, 1, 2, 3)).map(IpAddr::from));
        for address in addresses {
            let key = FrontendKey { address, port: NODE_PORT, protocol: case.protocol.number() };
            node.datapath.store().apply(&[MapOp::PutFrontend { key, frontend }]).unwrap();
            for (hook, device, verdict) in INWARD {
                let from = case.at(CLIENT, node.client_port());
                for packet in
                    [Case::first, Case::later].map(|packet| packet(case, from, SocketAddr::new(address, NODE_PORT)))
                {
                    let frame = packet.to_bytes();
                    node.run(hook, device, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
                }
            }
        }
    }
    assert!(node.view.flows().unwrap().is_empty(), "no flow began");
}

#[test]
fn other_ports_and_other_addresses_pass() {
    let Some(node) = node("other ports") else { return };
    for case in CASES {
        let from = case.at(CLIENT, node.client_port());
        for to in [case.at(EXTERNAL_IP, PORT + 1), case.at(address::pod(2, 9), PORT), case.at(address::node(1), 22)] {
            let frame = case.first(from, to).to_bytes();
            for (hook, device, verdict) in INWARD {
                node.run(hook, device, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
            }
        }
        // From an endpoint, but to somebody whom it does not owe an answer.
        let frame = case.first(case.at(address::pod(1, 1), TARGET_PORT), from).to_bytes();
        for hook in [Hook::NicOut, Hook::PodOut] {
            node.run(hook, Device::Eth0, &frame).is_untouched(TC_UNSPEC, abi::REASON_NO_REPLY, &frame);
        }
    }
}

#[test]
fn a_port_of_the_snat_range_that_no_flow_has_is_not_ours() {
    let Some(node) = node("free ports of the SNAT range") else { return };
    for case in CASES {
        let frame = case.later(case.at(address::pod(2, 1), TARGET_PORT), case.at(address::node(1), 50123)).to_bytes();
        for (hook, device, verdict) in INWARD {
            node.run(hook, device, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
        }
    }
}

/// Frames that would be translated if they were whole, without any payload, so that every cut is one in the headers.
fn whole_frames(node: &Node) -> Vec<Packet> {
    let mut packets = Vec::new();
    for case in CASES {
        let mut packet = to_service(node, case);
        match &mut packet.transport {
            Transport::Tcp { payload, .. } | Transport::Udp { payload, .. } => payload.clear(),
            Transport::Icmp { .. } | Transport::Other { .. } => {}
        }
        packets.push(packet.clone());
        match case.family {
            Family::V4 => packet.options = vec![1; 40],
            Family::V6 => {
                let data =
                    |units: usize| [vec![1, 4 + 8 * u8::try_from(units).unwrap()], vec![0; 4 + 8 * units]].concat();
                packet.extensions = vec![Extension { kind: 0, data: data(2) }, Extension { kind: 60, data: data(0) }];
            }
        }
        packet.vlans = vec![0x2064, 100];
        packets.push(packet);
    }
    packets
}

#[test]
fn a_frame_that_is_cut_anywhere_in_its_headers_passes() {
    let Some(node) = node("truncated frames") else { return };
    for packet in whole_frames(&node) {
        let frame = packet.to_bytes();
        for (hook, device, verdict) in INWARD {
            assert_ne!(node.run(hook, device, &frame).frame, frame, "the whole frame is translated");
            // The kernel runs programs on nothing shorter than an Ethernet header.
            for length in 14..frame.len() {
                let cut = &frame[..length];
                let Some(outcome) = node.try_run(hook, device, cut) else { continue };
                assert_eq!((outcome.verdict, outcome.frame.as_slice()), (verdict, cut), "{length} bytes at {hook}");
                let short = [abi::REASON_MALFORMED, abi::REASON_NOT_IP];
                assert!(short.contains(&outcome.reason), "{length} bytes at {hook}: reason {}", outcome.reason);
            }
        }
    }
}

#[test]
fn an_ip_header_that_contradicts_itself_passes() {
    let Some(node) = node("malformed headers") else { return };
    for case in cases(Protocol::Udp) {
        let mut frame = to_service(&node, case).to_bytes();
        // Version 5, and for IPv4 also a header shorter than any.
        let wrong: &[u8] = if case.family == Family::V4 { &[0x55, 0x44] } else { &[0x50] };
        for first in wrong {
            frame[14] = *first;
            for (hook, device, verdict) in INWARD {
                let Some(outcome) = node.try_run(hook, device, &frame) else { continue };
                outcome.is_untouched(verdict, abi::REASON_MALFORMED, &frame);
            }
        }
    }
}

#[test]
fn more_extension_headers_than_ipv6_knows_pass() {
    let Some(node) = node("too many extension headers") else { return };
    for case in cases(Protocol::Tcp).filter(|case| case.family == Family::V6) {
        let mut packet = to_service(&node, case);
        packet.extensions = vec![Extension { kind: 60, data: vec![1, 4, 0, 0, 0, 0] }; 7];
        passes_everywhere(&node, abi::REASON_NOT_TRANSPORT, &packet.to_bytes());
        // So long that the transport header is out of reach.
        let mut long = vec![0; 6 + 8 * 31];
        long[..2].copy_from_slice(&[1, 252]);
        packet.extensions = vec![Extension { kind: 60, data: long }; 3];
        passes_everywhere(&node, abi::REASON_MALFORMED, &packet.to_bytes());
    }
}

#[test]
fn martians_start_no_flow() {
    let Some(node) = node("packets from addresses that nobody has") else { return };
    let loopback = Pair { v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST };
    let nobody = Pair { v4: Ipv4Addr::UNSPECIFIED, v6: Ipv6Addr::UNSPECIFIED };
    let many = Pair { v4: Ipv4Addr::new(224, 0, 0, 251), v6: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb) };
    let all = Pair { v4: Ipv4Addr::BROADCAST, v6: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) };
    // IPv6's way to write an address of IPv4.
    let mapped = Pair { v6: CLIENT.v4.to_ipv6_mapped(), ..all };
    for case in CASES {
        for source in [loopback, nobody, many, all, mapped] {
            let packet = case.first(case.at(source, node.client_port()), case.at(CLUSTER_IP, PORT));
            for (hook, device, verdict) in INWARD {
                let frame = packet.to_bytes();
                node.run(hook, device, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
            }
        }
    }
    assert!(node.view.flows().unwrap().is_empty());
}
