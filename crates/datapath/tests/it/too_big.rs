//! Packets that are too big for their way, whose senders are told how big they may be: whole ones, and those that a card will cut.

use std::net::SocketAddr;

use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::{Extension, Packet, Transport};

use crate::case::{CASES, CLUSTER_IP, EXTERNAL_IP, PORT, cases};
use crate::icmp::{QUOTED, quote, too_big};
use crate::node::{Device, Node, TC_REDIRECT, XDP_PASS, web};
use crate::openings::stay_on_one_cpu;

#[test]
fn a_packet_that_is_too_big_for_the_way_to_another_node_tells_its_sender_how_big_it_may_be() {
    let Some(mut node) = Node::new("packets that are too big") else { return };
    node.refuses();
    node.serve(web(), &[(3, 1)]);
    node.netns.ip("link set eth1 mtu 1300").unwrap();
    for case in CASES {
        let client = case.at(CLIENT, node.client_port());
        let service = case.at(EXTERNAL_IP, PORT);
        node.send(Hook::NicIn, Device::Eth0, &case.first(client, service)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let large = enlarged(case.later(client, service), ENLARGED);
        let outcome = node.send(Hook::NicIn, Device::Eth0, &large);
        outcome.is_for(TC_REDIRECT, abi::REASON_TOO_BIG_TOLD);
        let told = outcome.packet();
        assert_eq!((told.source, told.destination), (service.ip(), client.ip()));
        let Transport::Icmp { kind, code, rest, body } = told.transport else { panic!("{outcome:?}") };
        let (expected_kind, expected_code, _) = too_big(case.family);
        assert_eq!((kind, code, u32::from_be_bytes(rest)), (expected_kind, expected_code, 1300));
        // Of TCP the whole header.
        let more = if case.protocol == Protocol::Tcp { 20 - QUOTED } else { 0 };
        assert_eq!(body, large.ip_bytes()[..quote(&large).len() + more]);
        let xdp = node.send(Hook::Xdp, Device::Eth0, &large);
        xdp.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &large.to_bytes());
    }
}

/// A node whose route to its only endpoint takes less than the devices on it.
fn narrow_route(what: &str) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(3, 1)]);
    for (net, gateway) in address::pod_cidrs(3).into_iter().zip(["172.31.0.13", "fd00:31::13"]) {
        node.netns.ip(&format!("route replace {net} via {gateway} mtu lock 1300")).unwrap();
    }
    Some(node)
}

#[test]
fn a_packet_that_is_too_big_for_the_route_but_not_for_its_devices_tells_its_sender_too() {
    let Some(node) = narrow_route("packets that are too big for a route") else { return };
    node.refuses();
    for case in CASES {
        let (client, service) = (case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &case.first(client, service)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let large = enlarged(case.later(client, service), ENLARGED);
        let outcome = node.send(Hook::NicIn, Device::Eth0, &large);
        outcome.is_for(TC_REDIRECT, abi::REASON_TOO_BIG_TOLD);
        let Transport::Icmp { rest, body, .. } = outcome.packet().transport else { panic!("{outcome:?}") };
        assert_eq!((u32::from_be_bytes(rest), &body[..quote(&large).len()]), (1300, &quote(&large)[..]));
        let xdp = node.send(Hook::Xdp, Device::Eth0, &large);
        xdp.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &large.to_bytes());
        if case.family == Family::V4 {
            let large = Packet { dont_fragment: false, ..large };
            node.send(Hook::NicIn, Device::Eth0, &large).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        }
    }
}

#[test]
fn a_packet_that_the_card_will_cut_has_to_fit_the_route_segment_by_segment() {
    let Some(node) = narrow_route("segments that are too big for a route") else { return };
    for case in CASES {
        let (client, service) = (case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &case.first(client, service)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let large = enlarged(case.later(client, service), ENLARGED);
        let headers = large.ip_bytes().len() - ENLARGED;
        for (length, reason) in [(1300, abi::REASON_TO_REMOTE), (1301, abi::REASON_TOO_BIG_TOLD)] {
            let seen = run_segments(&node, &large.to_bytes(), length - headers);
            assert_eq!(seen, (TC_REDIRECT, reason), "{case:?}, packets of {length} bytes");
        }
    }
}

/// Runs a client's packet of segments of so many bytes. Returns the verdict, and why it left.
fn run_segments(node: &Node, frame: &[u8], segment: usize) -> (u32, u32) {
    let segment = u32::try_from(segment).unwrap();
    let (run, moved) = node.run_counted(Hook::NicIn, Device::Eth0, frame, segment).unwrap();
    (run.retval, moved[0].0)
}

#[test]
fn what_may_be_cut_by_routers_has_to_fit_the_device_segment_by_segment() {
    let Some(mut node) = Node::new("segments that are too big for a device") else { return };
    node.serve(web(), &[(3, 1)]);
    node.netns.ip("link set eth1 mtu 1300").unwrap();
    for case in cases(Protocol::Tcp).filter(|case| case.family == Family::V4) {
        let (client, service) = (case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &case.first(client, service)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let large = Packet { dont_fragment: false, ..enlarged(case.later(client, service), ENLARGED) };
        let headers = large.ip_bytes().len() - ENLARGED;
        for (length, reason) in [(1300, abi::REASON_TO_REMOTE), (1301, abi::REASON_TOO_BIG_TOLD)] {
            let seen = run_segments(&node, &large.to_bytes(), length - headers);
            assert_eq!(seen, (TC_REDIRECT, reason), "{case:?}, packets of {length} bytes");
        }
    }
}

/// The card takes the header off that says how long the whole is.
#[test]
fn segments_of_a_jumbogram_are_measured_without_its_option() {
    let Some(node) = narrow_route("segments of jumbograms") else { return };
    for case in cases(Protocol::Tcp).filter(|case| case.family == Family::V6) {
        let (client, service) = (case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &case.first(client, service)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let mut large = enlarged(case.later(client, service), ENLARGED);
        let headers = large.ip_bytes().len() - ENLARGED;
        let option = [&[0xc2, 4][..], &(1u32 << 17).to_be_bytes()].concat();
        large.extensions = vec![Extension { kind: 0, data: option }];
        for (length, reason) in [(1300, abi::REASON_TO_REMOTE), (1301, abi::REASON_TOO_BIG_TOLD)] {
            let mut frame = large.to_bytes();
            frame[18..20].fill(0);
            let seen = run_segments(&node, &frame, length - headers);
            assert_eq!(seen, (TC_REDIRECT, reason), "packets of {length} bytes");
        }
    }
}

#[test]
fn where_no_more_refusals_are_told_a_sender_still_learns_how_big_its_packets_may_be() {
    stay_on_one_cpu();
    let Some(node) = narrow_route("packets that are too big, beside refused ones") else { return };
    node.refuses();
    for case in cases(Protocol::Udp) {
        let (client, service) = (case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &case.first(client, service)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let large = enlarged(case.later(client, service), ENLARGED);
        let refused = case.first(client, case.at(CLUSTER_IP, PORT + 1));
        let refuse = || node.send(Hook::NicIn, Device::Eth0, &refused).reason;
        // Ticks pass meanwhile.
        assert!((0..64 * abi::ERRORS_TOLD).any(|_| refuse() == abi::REASON_UNTOLD));
        node.send(Hook::NicIn, Device::Eth0, &large).is_for(TC_REDIRECT, abi::REASON_TOO_BIG_TOLD);
    }
}

/// Bytes of a packet that is too big for 1300, and not for 1500.
const ENLARGED: usize = 1330;

/// A packet with so many bytes of payload.
pub(crate) fn enlarged(packet: Packet, bytes: usize) -> Packet {
    let payload = vec![0x5a; bytes];
    match packet.transport {
        Transport::Tcp { ref header, .. } => {
            let transport = Transport::Tcp { header: header.clone(), payload };
            Packet { transport, ..packet }
        }
        Transport::Udp { .. } => {
            let ends: [SocketAddr; 2] = [packet.source_socket(), packet.destination_socket()];
            Packet { dont_fragment: packet.dont_fragment, ..Packet::udp(ends[0], ends[1], &payload) }
        }
        Transport::Icmp { .. } | Transport::Other { .. } => panic!("{packet:?}"),
    }
}
