//! `loadBalancerSourceRanges`: who may use the load balancer's addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_abi as abi;
use weir_core::model::{Family, Service};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT};
use crate::node::{Device, Node, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, web};

/// Outside of the ranges of the fixtures.
const STRANGER: Pair =
    Pair { v4: Ipv4Addr::new(198, 51, 101, 2), v6: Ipv6Addr::new(0x2001, 0xdb8, 0x101, 0, 0, 0, 0, 2) };

fn ranged(ranges: &[&str]) -> Service {
    Service { source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(), ..web() }
}

fn around_the_client() -> Service {
    ranged(&["198.51.100.0/24", "2001:db8:100::/48", "192.0.2.1/32"])
}

fn from(node: &Node, case: Case, client: Pair, to: (Pair, u16)) -> Packet {
    case.first(case.at(client, node.client_port()), case.at(to.0, to.1))
}

#[track_caller]
fn is_admitted(node: &Node, sent: &Packet) {
    for (hook, device, verdict) in [
        (Hook::Xdp, Device::Eth0, XDP_PASS),
        (Hook::NicIn, Device::Eth0, TC_UNSPEC),
        (Hook::PodIn, Device::Pod1, TC_UNSPEC),
    ] {
        node.send(hook, device, sent).is_for(verdict, abi::REASON_TO_LOCAL);
    }
}

#[track_caller]
fn is_shut_out(node: &Node, sent: &Packet) {
    for (hook, device, verdict) in [
        (Hook::Xdp, Device::Eth0, XDP_DROP),
        (Hook::NicIn, Device::Eth0, TC_SHOT),
        (Hook::PodIn, Device::Pod1, TC_SHOT),
    ] {
        node.send(hook, device, sent).is_untouched(verdict, abi::REASON_SOURCE_RANGE, &sent.to_bytes());
    }
}

#[test]
fn a_client_of_a_range_is_admitted_and_others_are_dropped_and_counted() {
    let Some(mut node) = Node::new("source ranges") else { return };
    node.serve(around_the_client(), &[(1, 1)]);
    for case in CASES {
        is_admitted(&node, &from(&node, case, CLIENT, (BALANCER_IP, PORT)));
        is_shut_out(&node, &from(&node, case, STRANGER, (BALANCER_IP, PORT)));
        let id = node.frontend(case.at(BALANCER_IP, PORT), case.protocol).1.service;
        assert_eq!(node.view.service_counters(id).unwrap().dropped, 3, "{case:?}");
    }
}

#[test]
fn a_range_of_all_admits_all() {
    let Some(mut node) = Node::new("a range of all") else { return };
    node.serve(ranged(&["0.0.0.0/0", "::/0"]), &[(1, 1)]);
    for case in CASES {
        is_admitted(&node, &from(&node, case, STRANGER, (BALANCER_IP, PORT)));
    }
}

#[test]
fn only_the_addresses_of_the_load_balancer_ask_for_the_range() {
    let Some(mut node) = Node::new("source ranges at other frontends") else { return };
    node.serve(around_the_client(), &[(1, 1)]);
    for case in CASES {
        for frontend in [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (EXTERNAL_IP, PORT)] {
            is_admitted(&node, &from(&node, case, STRANGER, frontend));
        }
    }
}

#[test]
fn a_pod_is_asked_like_everybody_else() {
    let Some(mut node) = Node::new("a pod outside of the range") else { return };
    node.serve(around_the_client(), &[(1, 2)]);
    for case in CASES {
        let sent = from(&node, case, address::pod(1, 1), (BALANCER_IP, PORT));
        node.send(Hook::PodIn, Device::Pod1, &sent).is_for(TC_SHOT, abi::REASON_SOURCE_RANGE);
    }
}

/// IPv4 addresses lie in IPv6 ones as `::ffff:0:0/96`, which is not where IPv6 clients are.
#[test]
fn a_range_of_one_family_admits_nobody_of_the_other() {
    let Some(mut node) = Node::new("a range of the other family") else { return };
    let all = |family: Family| match family {
        Family::V4 => "0.0.0.0/0".parse().unwrap(),
        Family::V6 => "2001:db8::/32".parse().unwrap(),
    };
    for (family, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        node.serve_changed(web(), &[(1, 1)], &[], |plan| plan.source_ranges = vec![all(family)]);
        for case in CASES {
            let sent = from(&node, case, CLIENT, (BALANCER_IP, PORT));
            if case.family == other { is_shut_out(&node, &sent) } else { is_admitted(&node, &sent) }
        }
    }
}

#[test]
fn flows_go_on_when_their_range_is_withdrawn_and_new_ones_do_not_begin() {
    let Some(mut node) = Node::new("a range that is withdrawn") else { return };
    for case in CASES {
        node.serve(around_the_client(), &[(1, 1)]);
        let sent = from(&node, case, CLIENT, (BALANCER_IP, PORT));
        is_admitted(&node, &sent);
        node.serve(ranged(&["192.0.2.1/32", "2001:db8:9::1/128"]), &[(1, 1)]);
        is_admitted(&node, &case.later(sent.source_socket(), sent.destination_socket()));
        is_shut_out(&node, &from(&node, case, CLIENT, (BALANCER_IP, PORT)));
        node.serve(web(), &[(1, 1)]);
        is_admitted(&node, &from(&node, case, CLIENT, (BALANCER_IP, PORT)));
    }
}

/// kube-proxy's firewall comes before its refusals.
#[test]
fn a_client_outside_of_the_range_does_not_learn_that_there_are_no_endpoints() {
    let Some(mut node) = Node::new("source ranges without endpoints") else { return };
    node.serve(around_the_client(), &[]);
    for case in CASES {
        is_shut_out(&node, &from(&node, case, STRANGER, (BALANCER_IP, PORT)));
    }
}
