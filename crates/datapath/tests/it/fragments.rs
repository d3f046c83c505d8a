//! Packets in pieces: all of them go where the first one goes, and what is put together from them is whole.

use std::mem::offset_of;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Fragment, Packet, Transport, decode};

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, PORT, TARGET_PORT, cases};
use crate::entries::{age, evict};
use crate::node::{Device, Node, SNAT_PORTS, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_PASS, web};

/// Bytes of all pieces but the last; a multiple of eight.
pub(crate) const PIECE: usize = 1024;

/// A packet that takes three pieces.
pub(crate) fn large(case: Case, node: &Node, client: Pair, service: Pair) -> Packet {
    let payload: Vec<u8> = (0..2500u16).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
    let (from, to) = (case.at(client, node.client_port()), case.at(service, PORT));
    let packet = match case.protocol {
        Protocol::Tcp => Packet::tcp(from, to, TcpHeader { ack: true, ..TcpHeader::default() }, &payload),
        Protocol::Udp | Protocol::Sctp => Packet::udp(from, to, &payload),
    };
    Packet { dont_fragment: false, identification: from.port(), ..packet }
}

/// A packet as its sender or a router cuts it.
fn cut(whole: &Packet) -> Vec<Packet> {
    whole.cut(PIECE)
}

/// The packet that a receiver puts together, all checksums verified.
pub(crate) fn assemble(pieces: &[Packet]) -> Packet {
    let mut all = Vec::new();
    let mut protocol = 0;
    for piece in pieces {
        let Some(Fragment { offset, .. }) = piece.fragment else { panic!("{piece:?} is no fragment") };
        let Transport::Other { protocol: number, bytes } = &piece.transport else { panic!("{piece:?} is decoded") };
        assert_eq!(all.len(), usize::from(offset) * 8, "pieces come in order");
        all.extend(bytes);
        protocol = *number;
    }
    let whole = Packet { fragment: None, transport: Transport::Other { protocol, bytes: all }, ..pieces[0].clone() };
    let identification = whole.identification;
    Packet { identification, ..decode(&whole.to_bytes()).unwrap() }
}

/// Runs a program on all pieces of a packet and returns what its receiver gets.
#[track_caller]
fn send(node: &Node, hook: Hook, device: Device, whole: &Packet, verdict: u32, reason: u32) -> Packet {
    let out: Vec<_> = cut(whole)
        .iter()
        .map(|piece| {
            let outcome = node.send(hook, device, piece);
            outcome.is_for(verdict, reason);
            outcome.packet()
        })
        .collect();
    assemble(&out)
}

/// What answers a packet, as large, from who received it.
pub(crate) fn answer(seen: &Packet, number: u16) -> Packet {
    let answer = seen.clone().with_source(seen.destination_socket()).with_destination(seen.source_socket());
    Packet { ttl: 64, identification: number, ..answer }
}

#[test]
fn all_pieces_reach_the_local_backend_and_those_of_the_answer_the_client() {
    let Some(mut node) = Node::new("fragments to a local backend") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let sent = large(case, &node, CLIENT, CLUSTER_IP);
        let seen = send(&node, Hook::NicIn, Device::Eth0, &sent, TC_UNSPEC, abi::REASON_TO_LOCAL);
        assert_eq!(seen, sent.clone().with_destination(case.at(address::pod(1, 1), TARGET_PORT)));
        let answer = answer(&seen, 7);
        let back = send(&node, Hook::NicOut, Device::Eth0, &answer, TC_UNSPEC, abi::REASON_BACK);
        assert_eq!(back, answer.with_source(sent.destination_socket()));
    }
}

#[test]
fn all_pieces_reach_the_remote_backend_in_the_nodes_name_and_those_of_the_answer_the_client() {
    let Some(mut node) = Node::new("fragments to a remote backend") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let sent = large(case, &node, CLIENT, EXTERNAL_IP);
        let seen = send(&node, Hook::NicIn, Device::Eth0, &sent, TC_REDIRECT, abi::REASON_TO_REMOTE);
        let port = seen.source_socket().port();
        assert!((SNAT_PORTS.0..=SNAT_PORTS.1).contains(&port), "port {port}");
        let target = case.at(address::pod(2, 1), TARGET_PORT);
        let expected = sent.clone().with_source(case.at(address::node(1), port)).with_destination(target);
        assert_eq!(seen, Packet { ttl: sent.ttl - 1, ..expected });

        let answer = answer(&seen, 7);
        let back = send(&node, Hook::NicIn, Device::Eth0, &answer, TC_REDIRECT, abi::REASON_BACK);
        let expected = answer.clone().with_source(sent.destination_socket()).with_destination(sent.source_socket());
        assert_eq!(back, Packet { ttl: answer.ttl - 1, ..expected });
    }
}

#[test]
fn all_pieces_of_a_pod_reach_its_backend_and_those_of_the_answer_the_pod() {
    let Some(mut node) = Node::new("fragments of a pod") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let sent = large(case, &node, address::pod(1, 1), CLUSTER_IP);
        let seen = send(&node, Hook::PodIn, Device::Pod1, &sent, TC_UNSPEC, abi::REASON_TO_REMOTE);
        assert_eq!(seen, sent.clone().with_destination(case.at(address::pod(2, 1), TARGET_PORT)));
        let answer = answer(&seen, 7);
        let back = send(&node, Hook::PodOut, Device::Pod1, &answer, TC_UNSPEC, abi::REASON_BACK);
        assert_eq!(back, answer.with_source(sent.destination_socket()));
    }
}

#[test]
fn options_in_front_of_the_pieces_are_kept() {
    let Some(mut node) = Node::new("fragments with options") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES.into_iter().filter(|case| case.family == Family::V4) {
        for piece in cut(&large(case, &node, CLIENT, CLUSTER_IP)) {
            let sent = Packet { options: vec![148, 4, 0, 0], ..piece };
            let seen = node.send(Hook::NicIn, Device::Eth0, &sent);
            seen.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
            let seen = seen.packet();
            assert_eq!((seen.destination, &seen.options), (case.ip(address::pod(1, 1)), &sent.options));
        }
    }
}

#[test]
fn xdp_leaves_every_piece_to_tc() {
    let Some(mut node) = Node::new("fragments at XDP") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let sent = large(case, &node, CLIENT, CLUSTER_IP);
        send(&node, Hook::NicIn, Device::Eth0, &sent, TC_UNSPEC, abi::REASON_TO_LOCAL);
        for piece in cut(&sent) {
            let outcome = node.send(Hook::Xdp, Device::Eth0, &piece);
            outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &piece.to_bytes());
        }
    }
}

/// RFC 6946: a fragment header alone makes no fragment.
#[test]
fn an_ipv6_packet_that_is_one_piece_is_whole() {
    let Some(mut node) = Node::new("atomic fragments") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES.into_iter().filter(|case| case.family == Family::V6) {
        for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)] {
            let sent = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
            let sent = Packet { fragment: Some(Fragment { offset: 0, more: false }), ..sent };
            let outcome = node.send(hook, Device::Eth0, &sent);
            outcome.is_for(verdict, abi::REASON_TO_LOCAL);
            assert_eq!(outcome.packet().destination, case.ip(address::pod(1, 1)));
        }
    }
    assert!(node.view.fragments().unwrap().is_empty(), "there is nothing to remember");
}

/// Pieces whose ports nobody knows, after others of the same packet or client that were known.
fn unknown_pieces(node: &Node, case: Case, service: Pair) -> Vec<Packet> {
    let sent = large(case, node, CLIENT, service);
    send_all(node, &sent);
    let other_id = Packet { identification: 1, ..sent.clone() };
    let other_client = Packet { source: case.ip(address::node(4)), ..sent };
    [other_id, other_client].iter().flat_map(|whole| cut(whole).split_off(1)).collect()
}

fn send_all(node: &Node, whole: &Packet) {
    for piece in cut(whole) {
        assert_eq!(node.send(Hook::NicIn, Device::Eth0, &piece).reason, abi::REASON_TO_LOCAL);
    }
}

#[test]
fn later_pieces_to_a_cluster_ip_that_come_before_the_first_one_are_dropped_where_none_is_held() {
    let Some(mut node) = Node::new("later fragments alone") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for piece in unknown_pieces(&node, case, CLUSTER_IP) {
            for (hook, device) in [(Hook::NicIn, Device::Eth0), (Hook::PodIn, Device::Pod1)] {
                let outcome = node.send(hook, device, &piece);
                outcome.is_untouched(TC_SHOT, abi::REASON_FRAGMENT_LOST, &piece.to_bytes());
            }
        }
    }
}

#[test]
fn beside_another_proxy_all_pieces_of_its_connections_pass() {
    let Some(mut node) = Node::new("fragments of another proxy") else { return };
    node.serve(web(), &[(1, 1)]);
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flags: config.flags | abi::CONFIG_BESIDE, ..config }).unwrap();
    for case in cases(Protocol::Tcp) {
        let reasons = [abi::REASON_MID_FLOW, abi::REASON_FRAGMENT, abi::REASON_FRAGMENT];
        for (piece, reason) in cut(&large(case, &node, CLIENT, CLUSTER_IP)).iter().zip(reasons) {
            let outcome = node.send(Hook::NicIn, Device::Eth0, piece);
            outcome.is_untouched(TC_UNSPEC, reason, &piece.to_bytes());
        }
    }
}

/// Hosts have these addresses, or routers do, and may be meant by other packets.
#[test]
fn later_pieces_to_other_frontends_and_on_their_way_out_pass_before_the_first_one() {
    let Some(mut node) = Node::new("later fragments to addresses of hosts") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for piece in unknown_pieces(&node, case, EXTERNAL_IP) {
            for hook in [Hook::NicIn, Hook::NicOut, Hook::PodIn, Hook::PodOut] {
                let outcome = node.send(hook, Device::Eth0, &piece);
                outcome.is_untouched(TC_UNSPEC, abi::REASON_FRAGMENT, &piece.to_bytes());
            }
        }
    }
}

#[test]
fn a_number_that_was_used_long_ago_leads_nowhere() {
    let Some(mut node) = Node::new("old fragments") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let sent = large(case, &node, CLIENT, CLUSTER_IP);
        send(&node, Hook::NicIn, Device::Eth0, &sent, TC_UNSPEC, abi::REASON_TO_LOCAL);
        let last_seen = offset_of!(abi::Fragment, last_seen);
        let later = &cut(&sent)[1];
        age(&node, "fragments", last_seen, 25);
        node.send(Hook::NicIn, Device::Eth0, later).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        age(&node, "fragments", last_seen, 6);
        let outcome = node.send(Hook::NicIn, Device::Eth0, later);
        outcome.is_untouched(TC_SHOT, abi::REASON_FRAGMENT_LOST, &later.to_bytes());
    }
}

#[test]
fn a_first_piece_without_a_whole_transport_header_is_as_good_as_none() {
    let Some(mut node) = Node::new("short first fragments") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Tcp) {
        let first = cut(&large(case, &node, CLIENT, CLUSTER_IP)).remove(0);
        let Transport::Other { protocol, bytes } = &first.transport else { panic!("{first:?}") };
        let transport = Transport::Other { protocol: *protocol, bytes: bytes[..16].to_vec() };
        let short = Packet { transport, ..first };
        let outcome = node.send(Hook::NicIn, Device::Eth0, &short);
        outcome.is_untouched(TC_SHOT, abi::REASON_FRAGMENT_LOST, &short.to_bytes());
        let outcome = node.send(Hook::Xdp, Device::Eth0, &short);
        outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &short.to_bytes());
    }
}

#[test]
fn pieces_that_are_not_ours_pass_and_are_not_remembered() {
    let Some(mut node) = Node::new("fragments of others") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let pieces = cut(&large(case, &node, CLIENT, address::pod(2, 9)));
        for (hook, first) in [
            (Hook::NicIn, abi::REASON_NO_FRONTEND),
            (Hook::PodIn, abi::REASON_NO_FRONTEND),
            (Hook::NicOut, abi::REASON_NO_REPLY),
            (Hook::PodOut, abi::REASON_NO_REPLY),
        ] {
            for (piece, reason) in pieces.iter().zip([first, abi::REASON_FRAGMENT, abi::REASON_FRAGMENT]) {
                node.send(hook, Device::Eth0, piece).is_untouched(TC_UNSPEC, reason, &piece.to_bytes());
            }
        }
    }
    assert!(node.view.fragments().unwrap().is_empty());
}

#[test]
fn the_first_piece_is_refused_for_all_and_the_later_ones_are_dropped() {
    let Some(mut node) = Node::new("refused fragments") else { return };
    node.refuses();
    node.serve(web(), &[]);
    for case in CASES {
        for (port, reason) in [(PORT, abi::REASON_NO_ENDPOINTS), (PORT + 1, abi::REASON_UNUSED_PORT)] {
            let sent = large(case, &node, CLIENT, CLUSTER_IP).with_destination(case.at(CLUSTER_IP, port));
            let pieces = cut(&sent);
            let refusal = node.send(Hook::NicIn, Device::Eth0, &pieces[0]);
            refusal.is_for(TC_REDIRECT, reason);
            let refusal = refusal.packet();
            assert_eq!((refusal.source, refusal.destination), (sent.destination, sent.source));
            for piece in &pieces[1..] {
                let outcome = node.send(Hook::NicIn, Device::Eth0, piece);
                outcome.is_untouched(TC_SHOT, abi::REASON_STALE, &piece.to_bytes());
            }
        }
    }
}

#[test]
fn a_later_piece_starts_no_flow_and_prolongs_no_affinity() {
    let Some(mut node) = Node::new("later fragments without a flow") else { return };
    node.serve(Service { affinity: Some(600), ..web() }, &[(1, 1)]);
    for case in CASES {
        let sent = large(case, &node, CLIENT, CLUSTER_IP);
        send(&node, Hook::NicIn, Device::Eth0, &sent, TC_UNSPEC, abi::REASON_TO_LOCAL);
        age(&node, "affinities", offset_of!(abi::Affinity, last_seen), 50);
        let affinities = node.view.affinities().unwrap();
        evict(&node, if case.family == Family::V4 { "flows4" } else { "flows6" });
        for piece in &cut(&sent)[1..] {
            let outcome = node.send(Hook::NicIn, Device::Eth0, piece);
            outcome.is_untouched(TC_SHOT, abi::REASON_STALE, &piece.to_bytes());
        }
        assert_eq!(node.view.flows().unwrap().len(), 0, "{case:?}");
        assert_eq!(node.view.affinities().unwrap(), affinities, "{case:?}");
    }
}

#[test]
fn a_later_piece_to_a_backend_that_is_gone_is_dropped_and_never_answered() {
    let Some(mut node) = Node::new("stale later fragments") else { return };
    for case in CASES {
        node.serve(web(), &[(1, 1)]);
        let sent = large(case, &node, CLIENT, CLUSTER_IP);
        send(&node, Hook::NicIn, Device::Eth0, &sent, TC_UNSPEC, abi::REASON_TO_LOCAL);
        node.serve(web(), &[(1, 2)]);
        for piece in &cut(&sent)[1..] {
            let outcome = node.send(Hook::NicIn, Device::Eth0, piece);
            outcome.is_untouched(TC_SHOT, abi::REASON_STALE, &piece.to_bytes());
        }
    }
}

#[test]
fn a_later_piece_that_is_too_big_for_its_way_and_has_nothing_to_quote_is_dropped() {
    let Some(mut node) = Node::new("a later piece that lies about its length") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in cases(Protocol::Udp) {
        let whole = case.first(case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        let piece = |offset, more| Packet { fragment: Some(Fragment { offset, more }), ..whole.clone() };
        node.send(Hook::NicIn, Device::Eth0, &piece(0, true)).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        let mut later = piece(1, false).to_bytes();
        let said = 14 + if case.family == Family::V4 { 2 } else { 4 };
        later[said..said + 2].copy_from_slice(&9000u16.to_be_bytes());
        // An error would quote eight bytes.
        later.truncate(later.len() - 6);
        node.run(Hook::NicIn, Device::Eth0, &later).is_for(TC_SHOT, abi::REASON_TOO_BIG);
    }
}
