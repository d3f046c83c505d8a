//! Frames that are not to the node: a card that listens to everything lets those for other machines in, and a network may send
//! them everywhere. The host throws them away, or hands them to a macvlan; no program may speak for the machine that they are to.

use weir_abi as abi;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::{Mac, Packet};

use crate::case::{CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT};
use crate::node::{Device, Node, TC_UNSPEC, XDP_PASS, web};

/// Another machine, all of them, and some of them.
const OTHERS: [Mac; 3] = [Mac([2, 0, 0, 0, 9, 9]), Mac([0xff; 6]), Mac([0x33, 0x33, 0, 0, 0, 1])];

/// The first packet of a flow, and one from the middle of another, to frontends of all kinds.
fn packets(node: &Node, case: Case) -> Vec<Packet> {
    let frontends = [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (EXTERNAL_IP, PORT)];
    let to = frontends.map(|(ip, port)| case.at(ip, port));
    let client = || case.at(CLIENT, node.client_port());
    to.into_iter().flat_map(|to| [case.first(client(), to), case.later(client(), to)]).collect()
}

#[test]
fn a_frame_to_another_machine_is_neither_translated_nor_answered_nor_remembered() {
    let Some(mut node) = Node::new("frames to other machines") else { return };
    // Local, remote, and none, which is refused.
    for endpoints in [&[(1, 1)][..], &[(2, 1)], &[]] {
        node.serve_anew(web(), endpoints);
        for case in CASES {
            for (destination_mac, sent) in
                OTHERS.into_iter().flat_map(|mac| packets(&node, case).into_iter().map(move |sent| (mac, sent)))
            {
                let frame = Packet { destination_mac, ..sent }.to_bytes();
                node.run(Hook::NicIn, Device::Eth0, &frame).is_untouched(TC_UNSPEC, abi::REASON_OTHER_HOST, &frame);
            }
        }
        assert_eq!(node.view.flows().unwrap().len(), 0, "{endpoints:?}");
    }
}

#[test]
fn an_answer_in_a_frame_to_another_machine_stays_with_that() {
    let Some(mut node) = Node::new("answers to other machines") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        let seen = node.insist(Hook::NicIn, Device::Eth0, &sent).packet();
        let answer = case.later(seen.destination_socket(), seen.source_socket());
        for destination_mac in OTHERS {
            let frame = Packet { destination_mac, ..answer.clone() }.to_bytes();
            node.run(Hook::NicIn, Device::Eth0, &frame).is_untouched(TC_UNSPEC, abi::REASON_OTHER_HOST, &frame);
            node.run(Hook::Xdp, Device::Eth0, &frame).is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &frame);
        }
    }
}

#[test]
fn xdp_sends_no_frame_back_that_was_to_another_machine() {
    let Some(mut node) = Node::new("XDP and frames to other machines") else { return };
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        for (destination_mac, sent) in OTHERS.into_iter().cycle().zip(packets(&node, case)) {
            let frame = Packet { destination_mac, ..sent }.to_bytes();
            node.run(Hook::Xdp, Device::Eth0, &frame).is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &frame);
        }
    }
}

#[test]
fn what_xdp_has_translated_for_an_endpoint_here_tc_leaves_to_the_host_which_throws_it_away() {
    let Some(mut node) = Node::new("XDP and frames to other machines for an endpoint here") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for (destination_mac, sent) in OTHERS.into_iter().cycle().zip(packets(&node, case)) {
            let frame = Packet { destination_mac, ..sent }.to_bytes();
            let translated = node.run(Hook::Xdp, Device::Eth0, &frame);
            assert_eq!((translated.verdict, translated.reason), (XDP_PASS, abi::REASON_TO_LOCAL));
            let frame = translated.frame;
            node.run(Hook::NicIn, Device::Eth0, &frame).is_untouched(TC_UNSPEC, abi::REASON_OTHER_HOST, &frame);
        }
    }
}

#[test]
fn behind_a_bridge_a_pods_frame_is_to_the_bridge_and_translated_all_the_same() {
    let Some(mut node) = Node::new("frames of pods behind a bridge") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        let sent = case.first(case.at(address::pod(1, 3), node.client_port()), case.at(CLUSTER_IP, PORT));
        let sent = Packet { destination_mac: OTHERS[0], ..sent };
        node.send(Hook::PodIn, Device::Pod1, &sent).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
    }
}
