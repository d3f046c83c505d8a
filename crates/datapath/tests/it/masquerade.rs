//! Whose address the node takes over towards its own pods, where kube-proxy would do so.

use weir_abi as abi;
use weir_core::model::{Family, Service, TrafficPolicy};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT, on_host_network};
use crate::node::{Device, Node, SNAT_PORTS, TC_REDIRECT, TC_UNSPEC, XDP_PASS, web};

const EXTERNAL: u32 = abi::CONFIG_MASQUERADE_EXTERNAL;
const ALL: u32 = EXTERNAL | abi::CONFIG_MASQUERADE_ALL;
const CLUSTER: (Pair, u16) = (CLUSTER_IP, PORT);
const EXTERNAL_FRONTENDS: [(Pair, u16); 3] = [(address::node(1), NODE_PORT), (EXTERNAL_IP, PORT), (BALANCER_IP, PORT)];
/// The client outside, and a pod that is no endpoint.
const OUTSIDE: (Hook, Device, Pair) = (Hook::NicIn, Device::Eth0, CLIENT);
const POD: (Hook, Device, Pair) = (Hook::PodIn, Device::Pod1, address::pod(1, 2));

/// A node with a service on it.
fn node(what: &str, flags: u32, service: Service) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(service, &[(1, 1)]);
    with_flags(&node, flags);
    Some(node)
}

fn with_flags(node: &Node, flags: u32) {
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flags: config.flags | flags, ..config }).unwrap();
}

/// The endpoint sees the node, and its answer finds the client.
fn assert_masqueraded(node: &Node, case: Case, (hook, device, client): (Hook, Device, Pair), to: (Pair, u16)) {
    let sent = case.first(case.at(client, node.client_port()), case.at(to.0, to.1));
    let outcome = node.send(hook, device, &sent);
    let seen = outcome.packet();
    let port = seen.source_socket().port();
    assert!((SNAT_PORTS.0..=SNAT_PORTS.1).contains(&port), "port {port} for {to:?}");
    let mut expected = sent
        .clone()
        .with_source(case.at(address::node(1), port))
        .with_destination(case.at(address::pod(1, 1), TARGET_PORT));
    expected.ttl -= 1;
    outcome.is(TC_REDIRECT, abi::REASON_TO_LOCAL, &expected);

    let answer = case.later(seen.destination_socket(), seen.source_socket());
    let mut expected = answer.clone().with_source(sent.destination_socket()).with_destination(sent.source_socket());
    expected.ttl -= 1;
    node.send(Hook::PodIn, Device::Pod1, &answer).is(TC_REDIRECT, abi::REASON_BACK, &expected);
}

/// The endpoint sees the client.
fn assert_kept(node: &Node, case: Case, (hook, device, client): (Hook, Device, Pair), to: (Pair, u16)) {
    let sent = case.first(case.at(client, node.client_port()), case.at(to.0, to.1));
    let expected = sent.clone().with_destination(case.at(address::pod(1, 1), TARGET_PORT));
    node.send(hook, device, &sent).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &expected);
}

#[test]
fn whoever_uses_an_external_address_gets_the_nodes_where_kube_proxy_masquerades() {
    let Some(node) = node("external traffic masqueraded", EXTERNAL, web()) else { return };
    for case in CASES {
        for to in EXTERNAL_FRONTENDS {
            assert_masqueraded(&node, case, OUTSIDE, to);
            assert_masqueraded(&node, case, POD, to);
        }
    }
}

#[test]
fn under_policy_local_clients_keep_their_addresses() {
    let local = Service { external_policy: TrafficPolicy::Local, ..web() };
    let Some(node) = node("policy Local, not masqueraded", ALL, local) else { return };
    for case in CASES {
        for to in EXTERNAL_FRONTENDS {
            assert_kept(&node, case, OUTSIDE, to);
            assert_kept(&node, case, POD, to);
        }
        assert_masqueraded(&node, case, OUTSIDE, CLUSTER);
    }
}

#[test]
fn pods_keep_their_addresses_towards_cluster_ips_unless_all_are_masqueraded() {
    let Some(node) = node("cluster IPs masqueraded", EXTERNAL, web()) else { return };
    for case in CASES {
        assert_masqueraded(&node, case, OUTSIDE, CLUSTER);
        assert_kept(&node, case, POD, CLUSTER);
    }
    with_flags(&node, ALL);
    for case in CASES {
        assert_masqueraded(&node, case, OUTSIDE, CLUSTER);
        assert_masqueraded(&node, case, POD, CLUSTER);
    }
}

/// Its packets in its own name would be martians to the node. kube-proxy's rules for masquerading never see them.
#[test]
fn a_process_of_the_node_as_the_endpoint_sees_its_clients() {
    let Some(mut node) = Node::new("host network, not masqueraded") else { return };
    node.serve_changed(web(), &[(1, 1)], &[], on_host_network);
    with_flags(&node, ALL);
    for case in CASES {
        for to in EXTERNAL_FRONTENDS.into_iter().chain([CLUSTER]) {
            assert_kept(&node, case, OUTSIDE, to);
            assert_kept(&node, case, POD, to);
        }
    }
}

#[test]
fn a_node_without_an_address_of_the_family_masquerades_nothing_of_it() {
    let Some(node) = node("masqueraded without an address", ALL, web()) else { return };
    let config = node.datapath.config().unwrap();
    for case in CASES {
        let mut without = config;
        match case.family {
            Family::V4 => without.node4 = abi::Addr::UNSET,
            Family::V6 => without.node6 = abi::Addr::UNSET,
        }
        node.datapath.configure(&without).unwrap();
        for to in EXTERNAL_FRONTENDS.into_iter().chain([CLUSTER]) {
            assert_kept(&node, case, OUTSIDE, to);
        }
        assert_kept(&node, case, POD, CLUSTER);
    }
}

#[test]
fn xdp_leaves_what_goes_to_a_pod_in_the_nodes_name_to_tc() {
    let Some(node) = node("masqueraded past XDP", EXTERNAL, web()) else { return };
    for case in CASES {
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(EXTERNAL_IP, PORT));
        let frame = sent.to_bytes();
        node.run(Hook::Xdp, Device::Eth0, &frame).is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &frame);
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_TO_LOCAL);
    }
}
