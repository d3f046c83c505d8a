//! Pods that meet themselves, and others that say they are one: what somebody sends in an endpoint's name must not get there in the node's.

use std::collections::BTreeMap;

use weir_abi as abi;
use weir_datapath::Hook;
use weir_testbed::address;
use weir_testbed::packet::Packet;

use crate::case::{CASES, CLUSTER_IP, Case, NODE_PORT, PORT};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, XDP_PASS, web};
use crate::unwrap::by_entry;

/// What the programs are told of interfaces: of which kind each is, and of what bridge it is a port.
type Known<'a> = &'a [(&'a str, u32, &'a str)];

const APART: Known<'_> = &[("eth0", abi::SHORTCUT_NEIGHBOUR, ""), ("pod1", abi::SHORTCUT_PEER, "")];

/// A node whose pod is the only endpoint, and is known to be behind an interface of its own.
fn node(what: &str, known: Known<'_>) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(1, 1)]);
    let index = |name: &str| node.netns.enter(|| nix::net::if_::if_nametoindex(name).unwrap_or_default());
    let entry =
        |(name, kind, bridge): &(&str, u32, &str)| (index(name), abi::Shortcut { kind: *kind, bridge: index(bridge) });
    node.datapath.set_shortcuts(&known.iter().map(entry).collect::<BTreeMap<_, _>>()).unwrap();
    Some(node)
}

/// First packets in the pod's name, to each of the service's frontends that it might ask.
fn in_its_name(node: &Node, case: Case) -> [Packet; 2] {
    let to = [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT)];
    to.map(|(frontend, port)| case.first(case.at(address::pod(1, 1), node.client_port()), case.at(frontend, port)))
}

#[test]
fn what_comes_by_another_interface_in_an_endpoints_name_is_dropped_and_leaves_no_flow() {
    let Some(node) = node("packets in a pod's name", APART) else { return };
    for case in CASES {
        for packet in in_its_name(&node, case) {
            let frame = packet.to_bytes();
            node.run(Hook::Xdp, Device::Eth0, &frame).is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &frame);
            node.run(Hook::NicIn, Device::Eth0, &frame).is_untouched(TC_SHOT, abi::REASON_NO_ROUTE, &frame);
            node.run(Hook::NicIn, Device::Eth0, &frame).is_untouched(TC_SHOT, abi::REASON_NO_ROUTE, &frame);
        }
    }
    assert!(node.view.flows().unwrap().is_empty() && node.view.replies4().unwrap().is_empty());
}

/// What comes by an interface in the pod's name gets there in the node's.
#[track_caller]
fn meets_itself(what: &str, known: Known<'_>, hook: Hook, device: Device) {
    let Some(node) = node(what, known) else { return };
    for case in CASES {
        for packet in in_its_name(&node, case) {
            node.send(hook, device, &packet).is_for(TC_REDIRECT, abi::REASON_HAIRPIN);
        }
    }
}

#[test]
fn a_pod_behind_an_interface_of_its_own_meets_itself() {
    meets_itself("a pod that is known", APART, Hook::PodIn, Device::Pod1);
}

#[test]
fn a_pod_behind_a_port_of_the_bridge_that_leads_to_it_meets_itself() {
    let bridged: Known<'_> = &[("eth0", abi::SHORTCUT_PEER, "pod1"), ("pod1", abi::SHORTCUT_BRIDGE, "")];
    meets_itself("a pod behind a bridge", bridged, Hook::PodIn, Device::Eth0);
}

#[test]
fn where_nothing_is_known_of_what_leads_to_a_pod_it_meets_itself() {
    let way: Known<'_> = &[("eth0", abi::SHORTCUT_NEIGHBOUR, "")];
    let own: Known<'_> = &[("pod1", abi::SHORTCUT_NEIGHBOUR, "")];
    meets_itself("a pod that no interface is known to lead to", way, Hook::NicIn, Device::Eth0);
    meets_itself("a pod behind a switch of its own", own, Hook::PodIn, Device::Eth0);
}

/// The node that wraps has been asked by whatever interface, and is a node of the cluster.
#[test]
fn a_pod_that_asks_another_node_which_sends_it_back_wrapped_meets_itself() {
    let Some(mut node) = node("a pod that meets itself by way of another node", APART) else { return };
    node.direct(&[]);
    for case in CASES {
        for packet in in_its_name(&node, case) {
            node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &packet)).is_for(TC_REDIRECT, abi::REASON_HAIRPIN);
        }
    }
}
