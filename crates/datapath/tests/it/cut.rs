//! IPv4 packets that are too big for the device that they leave by, and may be cut: they go on in pieces.

use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::{Fragment, Packet, Transport, decode};
use weir_testbed::{Capture, wait};

use crate::case::{CASES, Case, EXTERNAL_IP, PORT, TARGET_PORT};
use crate::early_pieces::{SOON, hold};
use crate::fragments::{assemble, large};
use crate::node::{Device, ETH0_MAC, ETH1_MAC, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, web};
use crate::too_big::enlarged;

/// Of the narrow device, by which the endpoint is reached.
const MTU: usize = 1300;

fn serving(what: &str) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(3, 1)]);
    node.netns.ip(&format!("link set eth1 mtu {MTU}")).unwrap();
    // A card's sum is of the whole packet.
    node.refuses();
    Some(node)
}

fn cases() -> impl Iterator<Item = Case> {
    CASES.into_iter().filter(|case| case.family == Family::V4)
}

fn sent(case: Case, node: &Node) -> Packet {
    Packet { destination_mac: ETH0_MAC, ..large(case, node, CLIENT, EXTERNAL_IP) }
}

/// Gives a packet to the program; returns what leaves in its place, and how often that was cut. What was cut off comes again to the program
/// that is attached.
#[track_caller]
fn send(node: &Node, packet: &Packet, device: Device, reason: u32) -> (Packet, u64) {
    let (run, mut moved) = node.run_counted(Hook::NicIn, device, &packet.to_bytes(), 0).unwrap();
    // The namespace's own reports of multicast listeners.
    moved.retain(|(reason, _)| *reason != abi::REASON_NOT_TRANSPORT);
    let counted: Vec<_> = moved.iter().map(|(reason, counter)| (*reason, counter.packets)).collect();
    let [(found, times)] = counted[..] else { panic!("{counted:?}") };
    assert_eq!((run.retval, found), (TC_REDIRECT, reason));
    (decode(&run.packet).unwrap(), times - 1)
}

/// What a packet has in it that another node is to unwrap, or itself, with the link header of another one.
fn unwrapped(packet: Packet, like: &Packet) -> Packet {
    match packet.transport {
        Transport::Other { protocol: 4, bytes } => behind_link(&bytes, like).unwrap(),
        _ => packet,
    }
}

fn behind_link(bytes: &[u8], like: &Packet) -> Option<Packet> {
    decode(&[&like.to_bytes()[..14], bytes].concat()).ok()
}

/// Sends packets; returns all pieces that leave in the order of their places, and how often one was cut.
#[track_caller]
fn pieces(node: &Node, packets: &[Packet], reason: u32) -> (Vec<Packet>, u64) {
    pieces_by(node, packets, (Device::Eth0, "eth1"), reason)
}

/// The same of packets that come and leave by these devices.
#[track_caller]
fn pieces_by(node: &Node, packets: &[Packet], (from, to): (Device, &str), reason: u32) -> (Vec<Packet>, u64) {
    let capture = Capture::start(&node.netns, to).unwrap();
    let (mut seen, mut cuts) = (Vec::new(), 0);
    let take = |seen: &mut Vec<Packet>, packet: Packet| {
        assert!(packet.ip_bytes().len() <= MTU, "{packet:?}");
        let piece = unwrapped(packet, &packets[0]);
        if piece.fragment.is_some() {
            assert_eq!(piece.ttl, packets[0].ttl - 1, "{piece:?}");
            seen.push(piece);
        }
    };
    for packet in packets {
        let (last, times) = send(node, packet, from, reason);
        take(&mut seen, last);
        cuts += times;
    }
    let all = || {
        let captured = capture.packets().unwrap();
        captured.iter().filter_map(|bytes| behind_link(bytes, &packets[0])).for_each(|packet| take(&mut seen, packet));
        if seen.len() as u64 == packets.len() as u64 + cuts { Ok(()) } else { Err(format!("{seen:?}")) }
    };
    wait::until_some("what was cut off", SOON, all).unwrap();
    seen.sort_by_key(|piece| piece.fragment.map(|fragment| fragment.offset));
    (seen, cuts)
}

/// What an endpoint gets of a packet.
fn translated(node: &Node, case: Case, whole: &Packet) -> Packet {
    let from = case.at(address::node(1), node.flow_of(whole).snat_port.get());
    let to = case.at(address::pod(3, 1), TARGET_PORT);
    Packet { ttl: whole.ttl - 1, ..whole.clone().with_source(from).with_destination(to) }
}

/// One piece of two that follow each other.
fn joined(pieces: &[Packet]) -> Packet {
    let [Packet { transport: Transport::Other { protocol, bytes }, .. }, second] = pieces else { panic!("{pieces:?}") };
    let Transport::Other { bytes: more, .. } = &second.transport else { panic!("{second:?}") };
    let transport = Transport::Other { protocol: *protocol, bytes: [&bytes[..], more].concat() };
    let fragment = Fragment { offset: pieces[0].fragment.unwrap().offset, ..second.fragment.unwrap() };
    Packet { transport, fragment: Some(fragment), ..pieces[0].clone() }
}

#[test]
fn a_packet_that_fits_only_the_interface_that_it_came_by_leaves_in_pieces_that_make_the_same_packet() {
    let Some(node) = serving("packets that are cut") else { return };
    for case in cases() {
        let whole = sent(case, &node);
        let (seen, cuts) = pieces(&node, std::slice::from_ref(&whole), abi::REASON_TO_REMOTE);
        assert_eq!((seen.len(), cuts), (2, 1));
        assert_eq!(assemble(&seen), translated(&node, case, &whole), "{case:?}");
    }
}

#[test]
fn pieces_of_its_sender_are_cut_again_the_first_one_or_a_later_one() {
    let Some(node) = serving("pieces that are cut") else { return };
    for case in cases() {
        let [first, second] = [sent(case, &node), sent(case, &node)];
        let small = second.cut(1200);
        let later = vec![small[0].clone(), joined(&small[1..])];
        for (whole, cut) in [(first.clone(), first.cut(1400)), (second.clone(), later)] {
            let (seen, cuts) = pieces(&node, &cut, abi::REASON_TO_REMOTE);
            assert_eq!((seen.len(), cuts), (3, 1));
            assert_eq!(assemble(&seen), translated(&node, case, &whole), "{case:?}");
        }
    }
}

#[test]
fn a_later_piece_that_waits_for_a_first_one_which_is_cut_goes_on_behind_it() {
    let Some(node) = serving("pieces that wait for one that is cut") else { return };
    hold(&node, abi::HELD_REGION);
    for case in cases() {
        let whole = sent(case, &node);
        let [first, later] = &whole.cut(1400)[..] else { panic!("{whole:?}") };
        node.send(Hook::NicIn, Device::Eth0, later).is_for(TC_UNSPEC, abi::REASON_FRAGMENT);
        // What waited is counted with what was cut off.
        let (seen, others) = pieces(&node, std::slice::from_ref(first), abi::REASON_TO_REMOTE);
        assert_eq!((seen.len(), others), (3, 2));
        assert_eq!(assemble(&seen), translated(&node, case, &whole), "{case:?}");
    }
}

#[test]
fn with_a_wrapper_around_it_less_fits() {
    let Some(mut node) = serving("packets that are cut and wrapped") else { return };
    node.direct(&[3]);
    for case in cases() {
        let whole = sent(case, &node);
        let (seen, cuts) = pieces(&node, std::slice::from_ref(&whole), abi::REASON_DIRECT);
        // Behind the longer header is a little more than two pieces take.
        let expected = if case.protocol == Protocol::Tcp { (3, 2) } else { (2, 1) };
        assert_eq!((seen.len(), cuts), expected);
        assert_eq!(assemble(&seen), Packet { ttl: whole.ttl - 1, ..whole }, "{case:?}");
    }
}

#[test]
fn an_answer_of_another_nodes_endpoint_is_cut_for_its_client() {
    let Some(mut node) = Node::new("answers that are cut") else { return };
    node.serve(web(), &[(3, 1)]);
    node.refuses();
    node.netns.ip(&format!("link set eth0 mtu {MTU}")).unwrap();
    for case in cases() {
        let small = case.first(case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        let (seen, _) = send(&node, &small, Device::Eth0, abi::REASON_TO_REMOTE);
        let ends = large(case, &node, CLIENT, EXTERNAL_IP);
        let answer = ends.with_source(seen.destination_socket()).with_destination(seen.source_socket());
        let answer = Packet { destination_mac: ETH1_MAC, ..answer };
        let (seen, cuts) = pieces_by(&node, std::slice::from_ref(&answer), (Device::Eth1, "eth0"), abi::REASON_BACK);
        assert_eq!((seen.len(), cuts), (2, 1));
        let expected = answer.clone().with_source(small.destination_socket()).with_destination(small.source_socket());
        assert_eq!(assemble(&seen), Packet { ttl: answer.ttl - 1, ..expected }, "{case:?}");
    }
}

#[test]
fn of_what_cannot_be_cut_the_sender_is_told_how_big_it_may_be() {
    let Some(node) = serving("packets that cannot be cut") else { return };
    for case in cases() {
        let whole = sent(case, &node);
        // Pieces have not all of the options.
        let options = Packet { options: vec![148, 4, 0, 0], ..whole.clone() };
        let whole_but_not_to_be_cut = Packet { dont_fragment: true, ..whole.clone() };
        // Longer than what is kept of a rear piece.
        let jumbo = Packet { destination_mac: ETH0_MAC, ..enlarged(whole.clone(), 3000) };
        for packet in [options, whole_but_not_to_be_cut, jumbo] {
            node.send(Hook::NicIn, Device::Eth0, &packet).is_for(TC_REDIRECT, abi::REASON_TOO_BIG_TOLD);
        }
        // Its end would be beyond that of the longest datagram.
        let mut last = joined(&whole.cut(1200)[1..]);
        node.send(Hook::NicIn, Device::Eth0, &whole.cut(1200)[0]).is_for(TC_REDIRECT, abi::REASON_TO_REMOTE);
        last.fragment = Some(Fragment { offset: 0x1fff, more: false });
        // Nobody is told of a later piece, which names no ports (RFC 1122, 3.2.2).
        node.send(Hook::NicIn, Device::Eth0, &last).is_for(TC_SHOT, abi::REASON_TOO_BIG);
    }
}
