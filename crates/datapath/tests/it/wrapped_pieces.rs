//! Pieces that come before the first one where nodes wrap packets for each other: as they came, wrapped or not, they wait.

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::Packet;
use weir_testbed::{Capture, transmit, wait};

use crate::case::{CASES, CLUSTER_IP, EXTERNAL_IP, PORT, TARGET_PORT, cases};
use crate::direct::as_it_is;
use crate::early_pieces::{HELD, INTO, ORDERS, PASSED, SOON, Way, from_outside, node, passes_early, run, send};
use crate::fragments::PIECE;
use crate::node::{Device, ETH0_MAC, TC_REDIRECT, web};
use crate::unwrap::by_entry;

#[test]
fn pieces_that_come_wrapped_reach_the_endpoint_in_any_order() {
    let Some(mut node) = node("early pieces, wrapped") else { return };
    node.serve(web(), &[(1, 1)]);
    node.direct(&[]);
    for case in CASES {
        for (order, (service, early)) in ORDERS.iter().zip([(CLUSTER_IP, HELD), (EXTERNAL_IP, PASSED)].repeat(2)) {
            let sent = from_outside(case, &node, service);
            let wrapped: Vec<_> = sent.cut(PIECE).iter().map(|piece| by_entry(case, piece)).collect();
            let seen = send(&node, &Way { early, ..INTO }, &sent, &wrapped, order);
            assert_eq!(seen, sent.with_destination(case.at(address::pod(1, 1), TARGET_PORT)));
        }
    }
}

/// Waits for packets, which the kernel may have made longer than they say that they are.
#[track_caller]
fn await_packets(capture: &Capture, expected: &[Vec<u8>]) {
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let arrived = || {
        seen.extend(capture.packets().unwrap());
        let is_there = |one: &Vec<u8>| seen.iter().any(|packet| packet.starts_with(one));
        if expected.iter().all(is_there) { Ok(()) } else { Err(format!("{seen:?}")) }
    };
    wait::until_some("all of the packets", SOON, arrived).unwrap();
}

#[test]
fn pieces_are_wrapped_for_another_node_in_any_order() {
    let Some(mut node) = node("early pieces for another node that answers itself") else { return };
    node.serve(web(), &[(2, 1)]);
    node.direct(&[2]);
    for case in CASES {
        let sent = from_outside(case, &node, EXTERNAL_IP);
        let [first, second, third] = &sent.cut(PIECE)[..] else { panic!("three") };
        let way = Way { hook: Hook::NicIn, device: Device::Eth0, out: "eth0", early: PASSED, translated: (0, 0) };
        let capture = Capture::start(&node.netns, way.out).unwrap();
        passes_early(&node, &way, third);
        passes_early(&node, &way, second);
        let (verdict, counted, frame) = run(&node, &way, first);
        assert_eq!((verdict, counted), (TC_REDIRECT, vec![(abi::REASON_DIRECT, 3)]));
        assert_eq!(frame, as_it_is(case, first, (2, 1)).to_bytes());
        await_packets(&capture, &[third, second].map(|piece| as_it_is(case, piece, (2, 1)).ip_bytes()));
    }
}

/// The device has noted where the first one's transport header is: the kernel makes no frame shorter than that.
#[test]
fn a_piece_that_is_shorter_than_headers_is_wrapped_for_another_node_too() {
    let Some(mut node) = node("short early pieces, by a cable") else { return };
    node.serve(web(), &[(2, 1)]);
    node.direct(&[2]);
    for case in cases(Protocol::Udp) {
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        let sent = Packet::udp(from, to, &[0x5a; PIECE]);
        let sent = Packet { dont_fragment: false, destination_mac: ETH0_MAC, identification: 7, ..sent };
        let pieces = sent.cut(PIECE);
        let [first, last] = &pieces[..] else { panic!("two") };
        let capture = Capture::start(&node.netns, "eth0").unwrap();
        for piece in [last, first] {
            transmit(&node.peers, "peer-eth0", &piece.to_bytes()).unwrap();
        }
        await_packets(&capture, &[first, last].map(|piece| as_it_is(case, piece, (2, 1)).ip_bytes()));
    }
}
