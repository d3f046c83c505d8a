//! Past the host's stack: packets to a pod of this node and its answers, where both have a way.

use std::collections::BTreeMap;

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::{Mac, Packet};

use crate::case::{CASES, CLUSTER_IP, Case, PORT, TARGET_PORT, cases};
use crate::ended::{ack, fin, reset};
use crate::fragments::{PIECE, large};
use crate::node::{Device, ETH0_MAC, Node, TC_REDIRECT, TC_UNSPEC, XDP_PASS, web};
use crate::openings::begins;
use crate::talk::{NIC_IN, Talk, Way};

const POD: (u8, u8) = (1, 1);
/// Of the pod, and of the node's end of its interface.
const POD_MAC: Mac = Mac([2, 0, 0, 0, 2, 0x11]);
const POD1_MAC: Mac = Mac([2, 0, 0, 0, 1, 3]);

fn index(node: &Node, name: &str) -> u32 {
    node.netns.enter(|| nix::net::if_::if_nametoindex(name)).unwrap()
}

/// A node that serves its pod, with the flag, and with shortcuts of these kinds by these interfaces.
fn node(what: &str, shortcuts: &[(&str, u32)]) -> Option<Node> {
    let mut node = Node::new(what)?;
    let known = node.datapath.config().unwrap();
    let flags = known.flags | abi::CONFIG_HOST_BYPASS;
    node.datapath.configure(&abi::Config { flags, ..known }).unwrap();
    set(&node, shortcuts);
    node.serve(web(), &[POD]);
    Some(node)
}

fn set(node: &Node, shortcuts: &[(&str, u32)]) {
    let entry = |(name, kind): &(&str, u32)| (index(node, name), abi::Shortcut { kind: *kind, bridge: 0 });
    node.datapath.set_shortcuts(&shortcuts.iter().map(entry).collect::<BTreeMap<_, _>>()).unwrap();
}

const BOTH: [(&str, u32); 2] = [("eth0", abi::SHORTCUT_NEIGHBOUR), ("pod1", abi::SHORTCUT_PEER)];

/// A client's first packet, as the router sends it to the node.
fn sent(node: &Node, case: Case) -> Packet {
    let packet = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
    Packet { destination_mac: ETH0_MAC, ..packet }
}

/// The same as the pod is to get it, by the host's stack.
fn translated(case: Case, sent: &Packet) -> Packet {
    sent.clone().with_destination(case.at(address::pod(1, 1), TARGET_PORT))
}

fn answer(case: Case, sent: &Packet) -> Packet {
    let packet = case.later(case.at(address::pod(1, 1), TARGET_PORT), sent.source_socket());
    Packet { source_mac: POD_MAC, destination_mac: POD1_MAC, ..packet }
}

#[test]
fn a_clients_packet_goes_straight_to_the_pod_one_hop_older_and_with_the_pods_mac_address() {
    let Some(node) = node("past the host to a pod", &BOTH) else { return };
    for case in CASES {
        let sent = sent(&node, case);
        let mut expected = translated(case, &sent);
        (expected.source_mac, expected.destination_mac, expected.ttl) = (POD1_MAC, POD_MAC, sent.ttl - 1);
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_REDIRECT, abi::REASON_TO_LOCAL, &expected);
    }
}

#[test]
fn the_endpoints_last_packet_takes_a_connection_back_to_those_that_begin() {
    let Some(node) = node("the end of connections past the host", &BOTH) else { return };
    let way = Way { client: CLIENT, endpoint: POD, to: NIC_IN, back: (Hook::PodIn, Device::Pod1) };
    let established = |case| {
        let talk = Talk::open(&node, case, way);
        talk.accept();
        talk.client_goes_on();
        assert!(!begins(&talk));
        talk
    };
    for case in cases(Protocol::Tcp) {
        let talk = established(case);
        talk.endpoint_sends(&talk.endpoint_tcp(fin()));
        talk.client_sends(&talk.client_tcp(fin()));
        assert!(!begins(&talk), "the last ACK is still to come");
        talk.endpoint_sends(&talk.endpoint_tcp(ack(1)));
        assert!(begins(&talk));

        let talk = established(case);
        talk.endpoint_sends(&talk.endpoint_tcp(reset()));
        assert!(begins(&talk));
    }
}

#[test]
fn a_pods_answer_is_translated_where_it_comes_from_and_goes_straight_to_the_client() {
    let Some(node) = node("past the host to a client", &BOTH) else { return };
    for case in CASES {
        let sent = sent(&node, case);
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_TO_LOCAL);
        let answer = answer(case, &sent);
        // The kernel writes the MAC addresses behind the program.
        let mut expected = answer.clone().with_source(sent.destination_socket());
        expected.ttl -= 1;
        node.send(Hook::PodIn, Device::Pod1, &answer).is(TC_REDIRECT, abi::REASON_BACK, &expected);
        node.send(Hook::NicOut, Device::Eth0, &expected).is(TC_UNSPEC, abi::REASON_NO_REPLY, &expected);
    }
}

#[test]
fn a_pods_packets_to_a_pod_and_the_answers_pass_the_host_too() {
    let Some(node) = node("past the host from pod to pod", &BOTH) else { return };
    for case in CASES {
        let from = case.at(address::pod(1, 2), node.client_port());
        let sent = case.first(from, case.at(CLUSTER_IP, PORT));
        let mut expected = translated(case, &sent);
        (expected.source_mac, expected.destination_mac, expected.ttl) = (POD1_MAC, POD_MAC, sent.ttl - 1);
        node.send(Hook::PodIn, Device::Pod1, &sent).is(TC_REDIRECT, abi::REASON_TO_LOCAL, &expected);
        let mut expected = answer(case, &sent).with_source(sent.destination_socket());
        expected.ttl -= 1;
        node.send(Hook::PodIn, Device::Pod1, &answer(case, &sent)).is(TC_REDIRECT, abi::REASON_BACK, &expected);
    }
}

/// Where the way to the pod takes less than the others a short last piece would go alone, and the host wait for it with the rest.
#[test]
fn all_pieces_of_a_clients_packet_go_through_the_host() {
    let Some(node) = node("pieces, beside the way past the host", &BOTH) else { return };
    for case in CASES {
        let sent = Packet { destination_mac: ETH0_MAC, ..large(case, &node, CLIENT, CLUSTER_IP) };
        for piece in sent.cut(PIECE) {
            node.send(Hook::NicIn, Device::Eth0, &piece).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        }
    }
}

/// Nor what has one in one direction alone: connection tracking would see half of it.
#[test]
fn what_has_no_shortcut_goes_through_the_host_as_ever_in_both_directions() {
    let Some(node) = node("no shortcuts", &[]) else { return };
    let outside = [("eth0", abi::SHORTCUT_NEIGHBOUR)];
    for (case, shortcuts) in CASES.into_iter().flat_map(|case| [(case, &outside[..0]), (case, &outside)]) {
        set(&node, shortcuts);
        let sent = sent(&node, case);
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &translated(case, &sent));
        let answer = answer(case, &sent);
        node.send(Hook::PodIn, Device::Pod1, &answer).is(TC_UNSPEC, abi::REASON_NO_FRONTEND, &answer);
        let expected = answer.clone().with_source(sent.destination_socket());
        node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &expected);
    }
}

#[test]
fn without_the_flag_shortcuts_are_not_looked_at() {
    let Some(node) = node("shortcuts without the flag", &BOTH) else { return };
    let known = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flags: known.flags & !abi::CONFIG_HOST_BYPASS, ..known }).unwrap();
    for case in CASES {
        let sent = sent(&node, case);
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &translated(case, &sent));
        let answer = answer(case, &sent);
        node.send(Hook::PodIn, Device::Pod1, &answer).is(TC_UNSPEC, abi::REASON_NO_FRONTEND, &answer);
    }
    assert_eq!(node.view.pod_macs().unwrap(), []);
}

#[test]
fn a_packet_at_the_end_of_its_life_is_left_to_the_host() {
    let Some(node) = node("packets that the host throws away", &BOTH) else { return };
    for case in CASES {
        let old = Packet { ttl: 1, ..sent(&node, case) };
        node.send(Hook::NicIn, Device::Eth0, &old).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &translated(case, &old));
        let sent = sent(&node, case);
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_TO_LOCAL);
        let old = Packet { ttl: 1, ..answer(case, &sent) };
        node.send(Hook::PodIn, Device::Pod1, &old).is(TC_UNSPEC, abi::REASON_NO_FRONTEND, &old);
    }
}

#[test]
fn xdp_translates_and_leaves_the_way_to_tc() {
    let Some(node) = node("XDP before a shortcut", &BOTH) else { return };
    for case in CASES {
        let sent = sent(&node, case);
        let expected = translated(case, &sent);
        node.send(Hook::Xdp, Device::Eth0, &sent).is(XDP_PASS, abi::REASON_TO_LOCAL, &expected);
    }
}

#[test]
fn a_pod_is_known_by_what_it_sends_until_its_interface_goes() {
    let Some(node) = node("learning of pods", &BOTH) else { return };
    let case = CASES[0];
    let frame = answer(case, &sent(&node, case));
    for _ in 0..2 {
        node.send(Hook::PodIn, Device::Pod1, &frame).is_for(TC_UNSPEC, abi::REASON_NO_FRONTEND);
    }
    let [a, b, c, d, e, f] = POD_MAC.0;
    let mac = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
    assert_eq!(node.view.pod_macs().unwrap(), [(mac, index(&node, "pod1"))]);
    // What the others send says nothing of pods.
    set(&node, &[("eth0", abi::SHORTCUT_NEIGHBOUR)]);
    assert_eq!(node.view.pod_macs().unwrap(), []);
    node.send(Hook::PodIn, Device::Pod1, &frame).is_for(TC_UNSPEC, abi::REASON_NO_FRONTEND);
    assert_eq!(node.view.pod_macs().unwrap(), []);
}

#[test]
fn behind_a_bridge_the_pods_port_is_taken_once_the_pod_was_heard_and_the_bridge_before() {
    let Some(node) = node("a bridge of pods", &[]) else { return };
    let addresses = address::pod(1, 1).both();
    let way = addresses.map(|ip| format!("route replace {ip} dev pods\nneigh add {ip} lladdr {POD_MAC} dev pods\n"));
    let bridge_mac = Mac([2, 0, 0, 0, 1, 9]);
    node.netns
        .ip(&format!(
            "link add pods address {bridge_mac} type bridge\nlink set pods addrgenmode none\nlink set pods up\n\
             link set pod1 master pods\n{}",
            way.concat()
        ))
        .unwrap();
    let bridge = index(&node, "pods");
    let all = [
        (index(&node, "eth0"), abi::Shortcut { kind: abi::SHORTCUT_NEIGHBOUR, bridge: 0 }),
        (index(&node, "pod1"), abi::Shortcut { kind: abi::SHORTCUT_PEER, bridge }),
        (bridge, abi::Shortcut { kind: abi::SHORTCUT_BRIDGE, bridge: 0 }),
    ];
    node.datapath.set_shortcuts(&all.into()).unwrap();
    for (case, heard) in CASES.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let sent = sent(&node, case);
        let mut expected = translated(case, &sent);
        expected.ttl -= 1;
        if heard {
            (expected.source_mac, expected.destination_mac) = (bridge_mac, POD_MAC);
        }
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_REDIRECT, abi::REASON_TO_LOCAL, &expected);
        node.send(Hook::PodIn, Device::Pod1, &answer(case, &sent)).is_for(TC_REDIRECT, abi::REASON_BACK);
        if heard {
            // Nothing is known for the next case.
            node.datapath.set_shortcuts(&BTreeMap::new()).unwrap();
            node.datapath.set_shortcuts(&all.into()).unwrap();
        }
    }
}
