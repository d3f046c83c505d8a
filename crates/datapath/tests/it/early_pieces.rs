//! Pieces that come before the first one, which has the ports: they wait for it and come again behind it, on every way.

use std::mem::offset_of;
use std::time::Duration;

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Mac, Packet, decode};
use weir_testbed::{Capture, wait};

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, PORT, cases};
use crate::entries::age;
use crate::fragments::{PIECE, answer, assemble, large};
use crate::node::{Device, ETH0_MAC, ETH1_MAC, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, web};

/// Every order of three pieces in which the first one is not the first.
pub(crate) const ORDERS: [[usize; 3]; 4] = [[1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
/// In all, of two sources' regions.
const ENTRIES: u32 = 2 * abi::HELD_REGION;
const POD1_MAC: Mac = Mac([2, 0, 0, 0, 1, 3]);
/// For what the programs send by themselves.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// Where pieces pass, and what becomes of them.
pub(crate) struct Way {
    pub(crate) hook: Hook,
    pub(crate) device: Device,
    /// The device that they leave by in the end.
    pub(crate) out: &'static str,
    /// What happens to one that comes before the first one: verdict and reason.
    pub(crate) early: (u32, u32),
    /// What happens to the others.
    pub(crate) translated: (u32, u32),
}

pub(crate) const HELD: (u32, u32) = (TC_SHOT, abi::REASON_FRAGMENT_HELD);
/// Hosts may have these addresses: a copy waits.
pub(crate) const PASSED: (u32, u32) = (TC_UNSPEC, abi::REASON_FRAGMENT);

pub(crate) fn node(what: &str) -> Option<Node> {
    let node = Node::new(what)?;
    hold(&node, ENTRIES);
    Some(node)
}

pub(crate) fn hold(node: &Node, entries: u32) {
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { held_pieces: entries, ..config }).unwrap();
}

/// Packets by reason that a hook has counted for a frame and for what that let come again.
type Counted = Vec<(u32, u64)>;

pub(crate) fn run(node: &Node, way: &Way, piece: &Packet) -> (u32, Counted, Vec<u8>) {
    let (run, mut moved) = node.run_counted(way.hook, way.device, &piece.to_bytes(), 0).unwrap();
    // The namespace's own reports of multicast listeners.
    moved.retain(|(reason, _)| *reason != abi::REASON_NOT_TRANSPORT);
    (run.retval, moved.iter().map(|(reason, counter)| (*reason, counter.packets)).collect(), run.packet)
}

pub(crate) fn passes_early(node: &Node, way: &Way, piece: &Packet) {
    let (verdict, counted, frame) = run(node, way, piece);
    assert_eq!((verdict, counted, frame), (way.early.0, vec![(way.early.1, 1)], piece.to_bytes()));
}

/// The pieces that were captured, as frames.
fn pieces_of(capture: &Capture, like: &Packet) -> Vec<Packet> {
    let frame = |packet: &Vec<u8>| [&like.to_bytes()[..14], packet].concat();
    let packets = capture.packets().unwrap();
    let pieces = packets.iter().filter_map(|packet| decode(&frame(packet)).ok());
    pieces.filter(|piece| piece.fragment.is_some()).collect()
}

/// Sends the pieces of a packet in some order; returns what its receiver gets, as if it came by no host.
#[track_caller]
pub(crate) fn send(node: &Node, way: &Way, whole: &Packet, pieces: &[Packet], order: &[usize]) -> Packet {
    let capture = Capture::start(&node.netns, way.out).unwrap();
    let mut seen = Vec::new();
    let early = order.iter().position(|number| *number == 0).unwrap();
    let translated = || node.counters(way.hook)[way.translated.1 as usize].packets;
    let before = translated();
    for (place, number) in order.iter().enumerate() {
        if place < early {
            passes_early(node, way, &pieces[*number]);
            continue;
        }
        let (verdict, counted, frame) = run(node, way, &pieces[*number]);
        // Those that waited are counted when they come again, which may be a moment later.
        assert_eq!(verdict, way.translated.0, "piece {number}");
        assert!(counted.iter().all(|(reason, _)| *reason == way.translated.1), "piece {number}: {counted:?}");
        seen.push(decode(&frame).unwrap());
    }
    let released = || {
        seen.extend(pieces_of(&capture, whole));
        if seen.len() == order.len() { Ok(()) } else { Err(format!("{seen:?}")) }
    };
    wait::until_some("the pieces that waited", SOON, released).unwrap();
    assert_eq!(translated() - before, order.len() as u64, "none passes a second time");
    seen.sort_by_key(|piece| piece.fragment.map(|fragment| fragment.offset));
    for piece in &mut seen {
        assert!(piece.ttl == whole.ttl || piece.ttl == whole.ttl - 1, "{piece:?}");
        (piece.ttl, piece.source_mac, piece.destination_mac) = (whole.ttl, whole.source_mac, whole.destination_mac);
    }
    assemble(&seen)
}

/// Sends packets like this one in all orders; returns what was received, which is always the same but for its number.
#[track_caller]
fn send_in_all_orders(node: &Node, way: &Way, whole: &Packet) -> Packet {
    let [first, rest @ ..] = ORDERS.map(|order| {
        let whole = Packet {
            identification: whole.identification ^ u16::try_from(order[0] * 3 + order[1]).unwrap(),
            ..whole.clone()
        };
        let seen = send(node, way, &whole, &whole.cut(PIECE), &order);
        assert_eq!(seen.identification, whole.identification, "{order:?}");
        Packet { identification: 0, ..seen }
    });
    assert!(rest.iter().all(|other| *other == first), "{first:?} and {rest:?}");
    first
}

pub(crate) fn from_outside(case: Case, node: &Node, service: Pair) -> Packet {
    Packet { destination_mac: ETH0_MAC, ..large(case, node, CLIENT, service) }
}

#[test]
fn pieces_of_clients_reach_the_local_backend_in_any_order_and_those_of_its_answers_the_client() {
    let Some(mut node) = node("early pieces to a local backend") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let to = Way {
            hook: Hook::NicIn,
            device: Device::Eth0,
            out: "pod1",
            early: HELD,
            translated: (TC_UNSPEC, abi::REASON_TO_LOCAL),
        };
        let sent = from_outside(case, &node, CLUSTER_IP);
        let seen = send_in_all_orders(&node, &to, &sent);
        assert_eq!((seen.source, seen.destination), (sent.source, case.ip(address::pod(1, 1))));
        let back =
            Way { hook: Hook::NicOut, out: "eth0", early: PASSED, translated: (TC_UNSPEC, abi::REASON_BACK), ..to };
        let answer = answer(&seen, 7);
        let got = send_in_all_orders(&node, &back, &answer);
        assert_eq!(got, Packet { identification: 0, ..answer.with_source(sent.destination_socket()) });
    }
}

#[test]
fn pieces_of_clients_reach_the_remote_backend_in_any_order_and_those_of_its_answers_the_client() {
    let Some(mut node) = node("early pieces to a remote backend") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let to = Way {
            hook: Hook::NicIn,
            device: Device::Eth0,
            out: "eth0",
            early: PASSED,
            translated: (TC_REDIRECT, abi::REASON_TO_REMOTE),
        };
        let sent = from_outside(case, &node, EXTERNAL_IP);
        let seen = send_in_all_orders(&node, &to, &sent);
        assert_eq!((seen.source, seen.destination), (case.ip(address::node(1)), case.ip(address::pod(2, 1))));
        let back = Way { translated: (TC_REDIRECT, abi::REASON_BACK), ..to };
        let answer = Packet { destination_mac: ETH0_MAC, ..answer(&seen, 7) };
        let got = send_in_all_orders(&node, &back, &answer);
        let expected = answer.with_source(sent.destination_socket()).with_destination(sent.source_socket());
        assert_eq!(got, Packet { identification: 0, ..expected });
    }
}

#[test]
fn pieces_of_pods_reach_their_backend_in_any_order_and_those_of_its_answers_the_pod() {
    let Some(mut node) = node("early pieces of a pod") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let to = Way {
            hook: Hook::PodIn,
            device: Device::Pod1,
            out: "eth0",
            early: HELD,
            translated: (TC_UNSPEC, abi::REASON_TO_REMOTE),
        };
        let sent = large(case, &node, address::pod(1, 1), CLUSTER_IP);
        let sent = Packet { destination_mac: POD1_MAC, ..sent };
        let seen = send_in_all_orders(&node, &to, &sent);
        assert_eq!((seen.source, seen.destination), (sent.source, case.ip(address::pod(2, 1))));
        let back =
            Way { hook: Hook::PodOut, out: "pod1", early: PASSED, translated: (TC_UNSPEC, abi::REASON_BACK), ..to };
        let answer = answer(&seen, 7);
        let got = send_in_all_orders(&node, &back, &answer);
        assert_eq!(got, Packet { identification: 0, ..answer.with_source(sent.destination_socket()) });
    }
}

/// To a cluster IP, from outside.
pub(crate) const INTO: Way = Way {
    hook: Hook::NicIn,
    device: Device::Eth0,
    out: "pod1",
    early: HELD,
    translated: (TC_UNSPEC, abi::REASON_TO_LOCAL),
};

#[test]
fn as_many_pieces_wait_as_a_datagram_has() {
    let Some(mut node) = node("datagrams back to front") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        let sent = Packet::udp(from, to, &vec![0x5a; 64 * 1000]);
        let sent = Packet { dont_fragment: false, destination_mac: ETH0_MAC, identification: 99, ..sent };
        let pieces = sent.cut(1232);
        let order: Vec<usize> = (0..pieces.len()).rev().collect();
        let seen = send(&node, &INTO, &sent, &pieces, &order);
        assert_eq!(seen.transport, sent.with_destination(seen.destination_socket()).transport);
    }
}

#[test]
fn pieces_of_a_packet_that_is_refused_do_not_come_again() {
    let Some(mut node) = node("early pieces of refused packets") else { return };
    node.refuses();
    node.serve(web(), &[]);
    for case in CASES {
        let [first, second, third] = &from_outside(case, &node, CLUSTER_IP).cut(PIECE)[..] else { panic!("three") };
        passes_early(&node, &INTO, second);
        let (verdict, counted, _) = run(&node, &INTO, first);
        assert_eq!((verdict, counted), (TC_REDIRECT, vec![(abi::REASON_NO_ENDPOINTS, 1)]));
        let (verdict, counted, _) = run(&node, &INTO, third);
        assert_eq!((verdict, counted), (TC_SHOT, vec![(abi::REASON_STALE, 1)]));
    }
    assert_eq!(node.view.held_pieces().unwrap().len(), 0, "nor do they wait any longer");
}

#[test]
fn pieces_that_are_not_ours_pass_in_any_order_and_come_no_second_time() {
    let Some(mut node) = node("early pieces of others") else { return };
    node.serve(web(), &[(1, 1)]);
    let hooks = [
        (Hook::NicIn, Device::Eth0, abi::REASON_NO_FRONTEND),
        (Hook::PodIn, Device::Pod1, abi::REASON_NO_FRONTEND),
        (Hook::NicOut, Device::Eth0, abi::REASON_NO_REPLY),
        (Hook::PodOut, Device::Pod1, abi::REASON_NO_REPLY),
    ];
    for case in CASES {
        for (hook, device, reason) in hooks {
            for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
                let whole = from_outside(case, &node, address::pod(2, 9));
                let pieces = whole.cut(PIECE);
                for number in order {
                    let reason = if number == 0 { reason } else { abi::REASON_FRAGMENT };
                    node.send(hook, device, &pieces[number]).is_untouched(
                        TC_UNSPEC,
                        reason,
                        &pieces[number].to_bytes(),
                    );
                }
            }
        }
    }
    assert_eq!(node.view.held_pieces().unwrap().len(), 0, "what is not ours takes no room once that is known");
}

#[test]
fn pieces_of_others_leave_room_for_ours_however_many_come_out_of_order() {
    let Some(mut node) = node("early pieces of many others") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        for identification in 0..u16::try_from(2 * abi::HELD_REGION).unwrap() {
            let whole = Packet { identification, ..from_outside(case, &node, address::pod(2, 9)) };
            let [first, second, _] = &whole.cut(PIECE)[..] else { panic!("three") };
            for (piece, reason) in [(second, abi::REASON_FRAGMENT), (first, abi::REASON_NO_FRONTEND)] {
                node.send(Hook::NicIn, Device::Eth0, piece).is_for(TC_UNSPEC, reason);
            }
        }
        send_in_all_orders(&node, &INTO, &from_outside(case, &node, CLUSTER_IP));
    }
}

#[test]
fn a_flood_from_one_source_fills_its_own_entries_and_none_is_taken_from_a_piece_that_waits() {
    let Some(mut node) = node("a flood of early pieces") else { return };
    node.serve(web(), &[(1, 1)]);
    let case = CASES[1];
    let whole = from_outside(case, &node, CLUSTER_IP);
    let early = |identification: u16, source: Pair| {
        let whole = Packet { identification, source: case.ip(source), ..whole.clone() };
        node.send(Hook::NicIn, Device::Eth0, &whole.cut(PIECE)[1])
    };
    let room = u16::try_from(abi::HELD_REGION).unwrap();
    for number in 0..room {
        early(number, CLIENT).is_for(TC_SHOT, abi::REASON_FRAGMENT_HELD);
    }
    (room..1000).for_each(|number| early(number, CLIENT).is_for(TC_SHOT, abi::REASON_FRAGMENT_LOST));
    assert_eq!(node.view.held_pieces().unwrap().len(), abi::HELD_REGION as usize);
    assert_eq!(node.view.fragments().unwrap().len(), abi::HELD_REGION as usize, "what is lost leaves nothing");
    let others = (20..60).filter(|n| early(1, address::node(*n)).reason == abi::REASON_FRAGMENT_HELD).count();
    assert!(others >= 10, "{others} of 40 other sources have another region");

    // Those that waited in vain make room.
    age(&node, "held_pieces", offset_of!(abi::HeldPiece, last_seen), 2);
    early(2000, CLIENT).is_for(TC_SHOT, abi::REASON_FRAGMENT_HELD);
}

#[test]
fn a_piece_that_waited_too_long_or_is_longer_than_a_frame_does_not_come_again() {
    let Some(mut node) = node("early pieces that are old or large") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in cases(Protocol::Udp) {
        let pieces = from_outside(case, &node, CLUSTER_IP).cut(PIECE);
        passes_early(&node, &INTO, &pieces[1]);
        age(&node, "held_pieces", offset_of!(abi::HeldPiece, last_seen), 2);
        let (_, counted, _) = run(&node, &INTO, &pieces[0]);
        assert_eq!(counted, [(abi::REASON_TO_LOCAL, 1)]);

        let [first, second] = &from_outside(case, &node, CLUSTER_IP).cut(2 * PIECE)[..] else { panic!("two") };
        let long = Packet { transport: first.transport.clone(), ..second.clone() };
        node.send(Hook::NicIn, Device::Eth0, &long).is_for(TC_SHOT, abi::REASON_FRAGMENT_LOST);
    }
}

#[test]
fn a_piece_comes_again_only_where_frames_begin_as_its_own_does() {
    let Some(mut node) = node("early pieces behind other link headers") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let [first, second, _] = &from_outside(case, &node, CLUSTER_IP).cut(PIECE)[..] else { panic!("three") };
        passes_early(&node, &INTO, &Packet { vlans: vec![7], ..second.clone() });
        let (_, counted, _) = run(&node, &INTO, first);
        assert_eq!(counted, [(abi::REASON_TO_LOCAL, 1)]);
    }
}

#[test]
fn none_waits_where_there_is_less_room_than_one_source_may_have() {
    let Some(mut node) = node("no room for early pieces") else { return };
    node.serve(web(), &[(1, 1)]);
    for entries in [0, abi::HELD_REGION - 1] {
        hold(&node, entries);
        let pieces = from_outside(CASES[1], &node, CLUSTER_IP).cut(PIECE);
        node.send(Hook::NicIn, Device::Eth0, &pieces[1]).is_for(TC_SHOT, abi::REASON_FRAGMENT_LOST);
    }
}

#[test]
fn pieces_that_came_by_another_interface_come_again_by_that() {
    let Some(mut node) = node("early pieces by another interface") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let sent = from_outside(case, &node, CLUSTER_IP);
        let [first, rest @ ..] = &sent.cut(PIECE)[..] else { panic!("three") };
        let capture = Capture::start(&node.netns, INTO.out).unwrap();
        for piece in rest {
            let piece = Packet { destination_mac: ETH1_MAC, ..piece.clone() };
            passes_early(&node, &Way { device: Device::Eth1, ..INTO }, &piece);
        }
        let translated = || node.counters(INTO.hook)[INTO.translated.1 as usize].packets;
        let before = translated();
        let (verdict, _, _) = run(&node, &INTO, first);
        assert_eq!(verdict, INTO.translated.0);
        let mut seen = Vec::new();
        let arrived = || {
            seen.extend(pieces_of(&capture, &sent));
            if seen.len() == rest.len() { Ok(()) } else { Err(format!("{seen:?}")) }
        };
        wait::until_some("the pieces that waited", SOON, arrived).unwrap();
        assert_eq!(translated() - before, 3, "none is another host's");
        let of = |piece: &Packet| (piece.destination, piece.fragment, piece.transport.clone());
        let expected: Vec<_> =
            rest.iter().map(|piece| (case.ip(address::pod(1, 1)), of(piece).1, of(piece).2)).collect();
        assert_eq!(seen.iter().map(of).collect::<Vec<_>>(), expected);
    }
}
