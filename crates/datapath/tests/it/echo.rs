//! Echo requests to addresses of services, answered in their name or left alone.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Extension, Fragment, Packet, Transport};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, PORT, cases};
use crate::node::{Device, Node, TC_REDIRECT, TC_UNSPEC, XDP_PASS, web};

const ADDRESSES: [Pair; 3] = [CLUSTER_IP, BALANCER_IP, EXTERNAL_IP];
/// 240.0.0.0/4 was kept for later; clouds give it to pods, and hosts take it.
const RESERVED: Pair = Pair { v4: Ipv4Addr::new(240, 0, 0, 7), v6: CLIENT.v6 };
const INWARD: [(Hook, Device); 2] = [(Hook::NicIn, Device::Eth0), (Hook::PodIn, Device::Pod1)];
const ELSEWHERE: [(Hook, Device, u32); 3] = [
    (Hook::Xdp, Device::Eth0, XDP_PASS),
    (Hook::NicOut, Device::Eth0, TC_UNSPEC),
    (Hook::PodOut, Device::Pod1, TC_UNSPEC),
];

fn node(what: &str) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.echo_replies();
    node.serve(web(), &[(1, 1)]);
    Some(node)
}

/// One for each family.
fn families() -> impl Iterator<Item = Case> {
    cases(Protocol::Udp)
}

/// Types of request and answer.
const fn kinds(family: Family) -> (u8, u8) {
    match family {
        Family::V4 => (8, 0),
        Family::V6 => (128, 129),
    }
}

fn message(from: IpAddr, to: IpAddr, kind: u8) -> Packet {
    let body = (0..57).collect();
    Packet::new(from, to, Transport::Icmp { kind, code: 0, rest: [0x12, 0x34, 0, 7], body })
}

fn request(case: Case, from: Pair, to: Pair) -> Packet {
    Packet { ttl: 55, ..message(case.ip(from), case.ip(to), kinds(case.family).0) }
}

#[track_caller]
fn is_left_alone(node: &Node, packet: &Packet) {
    for (hook, device) in INWARD {
        let outcome = node.send(hook, device, packet);
        outcome.is_untouched(TC_UNSPEC, abi::REASON_NOT_TRANSPORT, &packet.to_bytes());
    }
}

#[test]
fn clients_and_pods_that_ask_a_services_addresses_are_answered_in_their_name() {
    let Some(node) = node("echo replies") else { return };
    for case in families() {
        for (hook, device) in INWARD {
            for address in ADDRESSES {
                for (client, headers) in [(CLIENT, false), (CLIENT, true), (RESERVED, false)] {
                    let mut sent = Packet { traffic_class: 0x10, ..request(case, client, address) };
                    match case.family {
                        Family::V4 if headers => sent.options = vec![148, 4, 0, 0],
                        Family::V6 if headers => {
                            sent.extensions = vec![Extension { kind: 60, data: vec![1, 4, 0, 0, 0, 0] }];
                        }
                        Family::V4 | Family::V6 => {}
                    }
                    let Transport::Icmp { rest, body, .. } = sent.transport.clone() else { panic!("{sent:?}") };
                    let expected = Packet {
                        source: sent.destination,
                        destination: sent.source,
                        source_mac: sent.destination_mac,
                        destination_mac: sent.source_mac,
                        ttl: 64,
                        transport: Transport::Icmp { kind: kinds(case.family).1, code: 0, rest, body },
                        ..sent.clone()
                    };
                    node.send(hook, device, &sent).is(TC_REDIRECT, abi::REASON_ECHO, &expected);
                }
            }
        }
    }
}

#[test]
fn the_other_hooks_leave_requests_alone() {
    let Some(node) = node("echo requests at other hooks") else { return };
    for case in families() {
        let sent = request(case, CLIENT, CLUSTER_IP);
        for (hook, device, verdict) in ELSEWHERE {
            let outcome = node.send(hook, device, &sent);
            outcome.is_untouched(verdict, abi::REASON_NOT_TRANSPORT, &sent.to_bytes());
        }
    }
}

#[test]
fn without_the_option_nobody_answers() {
    let Some(mut node) = Node::new("echo requests without the option") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in families() {
        ADDRESSES.into_iter().for_each(|address| is_left_alone(&node, &request(case, CLIENT, address)));
    }
}

#[test]
fn what_the_host_has_itself_it_answers_itself() {
    let Some(node) = node("echo requests to the host") else { return };
    for ip in EXTERNAL_IP.both() {
        node.netns.ip(&format!("link set lo up\naddr add {ip} dev lo")).unwrap();
    }
    for address in [EXTERNAL_IP, address::node(1)] {
        address.both().into_iter().for_each(|ip| node.netns.await_own(ip, Duration::from_secs(5)).unwrap());
    }
    for case in families() {
        for address in [EXTERNAL_IP, address::node(1)] {
            is_left_alone(&node, &request(case, CLIENT, address));
        }
        let outcome = node.send(Hook::NicIn, Device::Eth0, &request(case, CLIENT, BALANCER_IP));
        outcome.is_for(TC_REDIRECT, abi::REASON_ECHO);
    }
}

#[test]
fn what_another_node_has_that_one_answers() {
    let Some(mut node) = node("echo requests to another node") else { return };
    node.serve(Service { load_balancer_ips: address::node(2).both().to_vec(), ..web() }, &[(1, 1)]);
    for known in [false, true] {
        if known {
            node.direct(&[]);
        }
        for case in families() {
            let sent = request(case, CLIENT, address::node(2));
            let reason = node.send(Hook::NicIn, Device::Eth0, &sent).reason;
            assert_eq!(reason, if known { abi::REASON_NOT_TRANSPORT } else { abi::REASON_ECHO });
        }
    }
}

#[test]
fn addresses_that_leave_a_service_are_answered_no_longer() {
    let Some(mut node) = node("echo requests to former addresses") else { return };
    let mut service = web();
    (service.external_ips, service.load_balancer_ips) = (Vec::new(), Vec::new());
    node.serve(service, &[(1, 1)]);
    for case in families() {
        [EXTERNAL_IP, BALANCER_IP].into_iter().for_each(|gone| is_left_alone(&node, &request(case, CLIENT, gone)));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &request(case, CLIENT, CLUSTER_IP));
        outcome.is_for(TC_REDIRECT, abi::REASON_ECHO);
    }
}

#[test]
fn only_whole_requests_of_one_host_to_an_address_of_ours_are_answered() {
    let Some(node) = node("what is no echo request") else { return };
    for case in families() {
        let asked = request(case, CLIENT, CLUSTER_IP);
        for kind in (0..=u8::MAX).filter(|kind| *kind != kinds(case.family).0) {
            let Transport::Icmp { rest, body, .. } = asked.transport.clone() else { panic!("{asked:?}") };
            let other = Packet { transport: Transport::Icmp { kind, code: 0, rest, body }, ..asked.clone() };
            for (hook, device) in INWARD {
                // What it quotes as an error is not whole, and has another reason.
                let outcome = node.send(hook, device, &other);
                assert_eq!((outcome.verdict, outcome.frame), (TC_UNSPEC, other.to_bytes()), "type {kind}");
            }
        }
        let Transport::Icmp { kind, rest, body, .. } = asked.transport.clone() else { panic!("{asked:?}") };
        is_left_alone(&node, &Packet { transport: Transport::Icmp { kind, code: 1, rest, body }, ..asked.clone() });
        is_left_alone(&node, &request(case, CLIENT, address::pod(2, 9)));
        let piece = Packet { fragment: Some(Fragment { offset: 0, more: true }), ..asked.clone() };
        is_left_alone(&node, &piece);
        let nobody: [&str; 4] = match case.family {
            Family::V4 => ["224.0.0.1", "255.255.255.255", "127.0.0.1", "0.0.0.0"],
            Family::V6 => ["ff02::1", "ff0e::1", "::1", "::"],
        };
        for source in nobody {
            is_left_alone(&node, &Packet { source: source.parse().unwrap(), ..asked.clone() });
        }
    }
}

/// The address as such is known to the programs now.
#[test]
fn ports_that_are_not_served_are_what_they_are_without_the_option() {
    let Some(node) = node("unused ports with echo replies") else { return };
    node.refuses();
    for case in CASES {
        for address in [BALANCER_IP, EXTERNAL_IP] {
            let sent = case.first(case.at(CLIENT, node.client_port()), case.at(address, PORT + 1));
            for (hook, device) in INWARD {
                let outcome = node.send(hook, device, &sent);
                outcome.is_untouched(TC_UNSPEC, abi::REASON_NO_FRONTEND, &sent.to_bytes());
            }
            let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
            outcome.is_untouched(XDP_PASS, abi::REASON_NO_FRONTEND, &sent.to_bytes());
        }
        let sent = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT + 1));
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_UNUSED_PORT);
    }
}
