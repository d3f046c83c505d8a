//! Headers around and inside of what is translated: tags, options, extensions, checksums, odd lengths.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Extension, Packet, Transport};
use weir_testbed::{transmit, wait};

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, PORT, TARGET_PORT, cases};
use crate::early_pieces::SOON;
use crate::node::{Device, ETH0_MAC, Node, TC_REDIRECT, TC_UNSPEC, XDP_PASS, XDP_TX, web};

const HOOKS: [(Hook, u32, u32); 2] = [(Hook::Xdp, XDP_PASS, XDP_TX), (Hook::NicIn, TC_UNSPEC, TC_REDIRECT)];

fn to_service(node: &Node, case: Case) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT))
}

/// The packet is translated to the local endpoint and nothing else in it changes; the answer is translated back.
#[track_caller]
fn is_translated(node: &Node, case: Case, packet: &Packet) {
    let expected = packet.clone().with_destination(case.at(address::pod(1, 1), TARGET_PORT));
    for (hook, verdict, _) in HOOKS {
        node.send(hook, Device::Eth0, packet).is(verdict, abi::REASON_TO_LOCAL, &expected);
    }
    let answer = expected.clone().with_source(expected.destination_socket()).with_destination(expected.source_socket());
    let back = answer.clone().with_source(packet.destination_socket());
    node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &back);
}

/// Extension headers that the fixtures put in front of the transport header.
fn extensions() -> Vec<Extension> {
    vec![
        Extension { kind: 0, data: vec![5, 2, 0, 0, 1, 0] },
        Extension { kind: 60, data: vec![1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] },
        // Type 0 with no segments left changes nothing for the checksum.
        Extension { kind: 43, data: vec![0, 0, 0, 0, 0, 0] },
    ]
}

#[test]
fn tagged_frames_are_translated_to_a_local_backend() {
    let Some(mut node) = Node::new("VLAN tags to a local backend") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for vlans in [vec![0x2064], vec![0x0064, 0x60c8]] {
            is_translated(&node, case, &Packet { vlans, ..to_service(&node, case) });
        }
    }
}

#[test]
fn tagged_frames_to_a_remote_backend_are_left_alone() {
    let Some(mut node) = Node::new("VLAN tags to a remote backend") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        for vlans in [vec![100], vec![100, 200]] {
            let packet = Packet { vlans, ..to_service(&node, case) };
            for (hook, verdict, _) in HOOKS {
                let outcome = node.send(hook, Device::Eth0, &packet);
                outcome.is_untouched(verdict, abi::REASON_LEFT_TO_TC, &packet.to_bytes());
            }
        }
    }
}

/// Bytes that have left by the node's interface, with all tags.
fn bytes_left_by(node: &Node, interface: &str) -> u64 {
    let table = node.netns.enter(|| fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':')).unwrap();
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// As the host forwards it: the priority is of the link that the frame came by.
#[test]
fn a_tag_that_names_no_vlan_is_taken_off_what_goes_to_another_node() {
    let Some(mut node) = Node::new("priority tags to a remote backend") else { return };
    node.serve(web(), &[(3, 1)]);
    // The kernel puts tags into frames, where they count.
    node.netns.offloads("eth1", &["txvlan", "off"]).unwrap();
    for case in CASES {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        let sent = Packet { destination_mac: ETH0_MAC, ..sent };
        let before = bytes_left_by(&node, "eth1");
        transmit(&node.peers, "peer-eth0", &Packet { vlans: vec![0x6000], ..sent.clone() }.to_bytes()).unwrap();
        wait::until("the packet", SOON, || bytes_left_by(&node, "eth1") > before).unwrap();
        assert_eq!(bytes_left_by(&node, "eth1") - before, sent.to_bytes().len() as u64, "{case:?}");
    }
}

#[test]
fn ipv4_options_are_kept() {
    let Some(mut node) = Node::new("IPv4 options") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES.into_iter().filter(|case| case.family == Family::V4) {
        for words in 1..=10 {
            let mut options = vec![1; 4 * words];
            options[..4].copy_from_slice(&[148, 4, 0, 0]);
            is_translated(&node, case, &Packet { options, ..to_service(&node, case) });
        }
    }
}

#[test]
fn ipv6_extension_headers_in_front_of_the_transport_are_kept() {
    let Some(mut node) = Node::new("IPv6 extension headers") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES.into_iter().filter(|case| case.family == Family::V6) {
        for count in 1..=3 {
            let extensions = extensions().into_iter().take(count).collect();
            is_translated(&node, case, &Packet { extensions, ..to_service(&node, case) });
        }
    }
}

#[test]
fn options_and_extensions_survive_the_way_to_a_remote_backend() {
    let Some(mut node) = Node::new("options to a remote backend") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let mut packet = Packet { traffic_class: 0xb8, ..to_service(&node, case) };
        match case.family {
            Family::V4 => packet.options = vec![148, 4, 0, 0],
            Family::V6 => (packet.extensions, packet.flow_label) = (extensions(), 0x12345),
        }
        for (hook, _, verdict) in HOOKS {
            let outcome = node.send(hook, Device::Eth0, &packet);
            outcome.is_for(verdict, abi::REASON_TO_REMOTE);
            let seen = outcome.packet();
            let expected = Packet {
                ttl: packet.ttl - 1,
                source_mac: seen.source_mac,
                destination_mac: seen.destination_mac,
                ..packet.clone().with_source(seen.source_socket()).with_destination(seen.destination_socket())
            };
            assert_eq!(seen, expected, "{case:?} at {hook}");
        }
    }
}

#[test]
fn udp_without_a_checksum_stays_without_one() {
    let Some(mut node) = Node::new("UDP without checksum") else { return };
    for (pod, reason) in [((1, 1), abi::REASON_TO_LOCAL), ((2, 1), abi::REASON_TO_REMOTE)] {
        node.serve(web(), &[pod]);
        for case in cases(Protocol::Udp) {
            for (hook, ..) in HOOKS {
                let mut packet = to_service(&node, case);
                if let Transport::Udp { checksum, .. } = &mut packet.transport {
                    *checksum = false;
                }
                let outcome = node.send(hook, Device::Eth0, &packet);
                assert_eq!(outcome.reason, reason);
                let seen = outcome.packet();
                assert!(matches!(seen.transport, Transport::Udp { checksum: false, .. }), "{seen:?}");
                assert_eq!(seen.destination, case.ip(address::pod(pod.0, pod.1)));
            }
        }
    }
}

/// A change of addresses tells nothing of a checksum that is the same afterwards.
#[test]
fn checksums_are_right_where_both_addresses_have_the_same_sum() {
    let Some(mut node) = Node::new("addresses with the same sum") else { return };
    let twin = Pair { v4: Ipv4Addr::new(10, 95, 0, 2), v6: Ipv6Addr::new(0xfd00, 0x95, 0, 0, 0, 0, 0, 2) };
    node.serve_changed(web(), &[(1, 1)], &[], |plan| {
        for backend in &mut plan.backends {
            backend.address = if backend.address.is_ipv4() { twin.v4.into() } else { twin.v6.into() };
        }
    });
    for case in CASES {
        let plain = to_service(&node, case);
        let around = match case.family {
            Family::V4 => Packet { options: vec![148, 4, 0, 0], ..to_service(&node, case) },
            Family::V6 => Packet { extensions: extensions(), ..to_service(&node, case) },
        };
        for packet in [plain, around] {
            let expected = packet.clone().with_destination(case.at(twin, TARGET_PORT));
            for (hook, verdict, _) in HOOKS {
                node.send(hook, Device::Eth0, &packet).is(verdict, abi::REASON_TO_LOCAL, &expected);
            }
        }
    }
}

#[test]
fn payloads_of_every_length_keep_a_right_checksum() {
    let Some(mut node) = Node::new("payload lengths") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for length in [0, 1, 2, 3, 7, 63, 64, 255, 1399] {
            let bytes: Vec<u8> = (0..length).map(|i: u32| i.to_le_bytes()[0] ^ 0xa5).collect();
            let mut packet = to_service(&node, case);
            match &mut packet.transport {
                Transport::Tcp { payload, .. } | Transport::Udp { payload, .. } => *payload = bytes,
                Transport::Icmp { .. } | Transport::Other { .. } => {}
            }
            is_translated(&node, case, &packet);
        }
    }
}

/// Sums that end in 0x0000 or 0xffff are where incremental updates go wrong: all payload words pass by.
#[test]
fn a_udp_checksum_never_becomes_the_zero_that_means_none() {
    let Some(mut node) = Node::new("UDP checksums around zero") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        let packet = to_service(&node, case);
        let target = packet.clone().with_destination(case.at(address::pod(1, 1), TARGET_PORT));
        let with = |packet: &Packet, word: u16| {
            let mut packet = packet.clone();
            if let Transport::Udp { payload, .. } = &mut packet.transport {
                *payload = word.to_be_bytes().to_vec();
            }
            packet
        };
        let check_at = |frame: &[u8]| {
            let at = frame.len() - 4;
            u16::from_be_bytes([frame[at], frame[at + 1]])
        };
        // The words that make the sum of the frame that goes in, or of the one that comes out, the one of zero.
        let special: Vec<u16> = (0..=u16::MAX)
            .filter(|word| {
                [&packet, &target].iter().any(|p| matches!(check_at(&with(p, *word).to_bytes()), 1 | 0xfffe | 0xffff))
            })
            .collect();
        assert!(!special.is_empty());
        for word in special {
            let (packet, target) = (with(&packet, word), with(&target, word));
            for (hook, verdict, _) in HOOKS {
                node.send(hook, Device::Eth0, &packet).is(verdict, abi::REASON_TO_LOCAL, &target);
            }
        }
    }
}

#[test]
fn tcp_flags_options_and_numbers_are_kept() {
    let Some(mut node) = Node::new("TCP headers") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let mut header = TcpHeader {
            sequence_number: 0xffff_fff0,
            acknowledgment_number: 0x8000_0001,
            urgent_pointer: 3,
            window_size: 1,
            psh: true,
            ack: true,
            urg: true,
            ece: true,
            cwr: true,
            ..TcpHeader::default()
        };
        header.set_options_raw(&[2, 4, 5, 180, 1, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).unwrap();
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        is_translated(&node, case, &Packet::tcp(from, to, header, b"odd"));
    }
}

#[test]
fn what_quotes_the_longest_headers_has_a_right_checksum() {
    let Some(mut node) = Node::new("an error about the longest headers") else { return };
    node.refuses();
    node.serve(web(), &[(2, 1)]);
    let case = Case { family: Family::V6, protocol: Protocol::Tcp };
    let header = TcpHeader { syn: true, ..TcpHeader::default() };
    // They end within 512 bytes of the frame, what is quoted with the header of TCP does not.
    let options = Extension { kind: 60, data: vec![0; 6 + 448] };
    let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
    let sent = Packet { extensions: vec![options], ..Packet::tcp(from, to, header, &[0; 1460]) };
    let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
    outcome.is_for(TC_REDIRECT, abi::REASON_TOO_BIG_TOLD);
    assert_eq!(outcome.packet().destination, case.ip(CLIENT));
}
