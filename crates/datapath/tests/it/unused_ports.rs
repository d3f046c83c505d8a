//! Ports of a cluster IP that no service has: refused, since nobody else answers there.

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_core::ops::MapOp;
use weir_datapath::{Hook, MapStore};
use weir_testbed::address::{self, CLIENT};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, EXTERNAL_IP, PORT, TARGET_PORT, cases, tcp};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_DROP, XDP_PASS, web};
use crate::refusals::{CLIENTS, refusal};

fn node(what: &str) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(1, 2)]);
    Some(node)
}

#[test]
fn tc_answers_for_an_unused_port_and_xdp_leaves_it_to_tc() {
    let Some(node) = node("unused ports") else { return };
    for case in CASES {
        for port in [0, 1, PORT + 1, u16::MAX] {
            for (hook, device, client) in CLIENTS {
                let sent = case.first(case.at(client, node.client_port()), case.at(CLUSTER_IP, port));
                let outcome = node.send(Hook::Xdp, Device::Eth0, &sent);
                outcome.is_untouched(XDP_PASS, abi::REASON_LEFT_TO_TC, &sent.to_bytes());
                let outcome = node.send(hook, device, &sent);
                outcome.is(TC_REDIRECT, abi::REASON_UNUSED_PORT, &refusal(&sent));
            }
        }
    }
    assert!(node.view.flows().unwrap().is_empty(), "no flow began");
}

#[test]
fn a_reset_to_an_unused_port_is_not_answered() {
    let Some(node) = node("resets to unused ports") else { return };
    for case in cases(Protocol::Tcp) {
        let header = TcpHeader { rst: true, ..TcpHeader::default() };
        let sent = tcp(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT + 1), header);
        for (hook, verdict) in [(Hook::Xdp, XDP_DROP), (Hook::NicIn, TC_SHOT)] {
            node.send(hook, Device::Eth0, &sent).is_untouched(verdict, abi::REASON_STALE, &sent.to_bytes());
        }
    }
}

#[test]
fn other_addresses_of_a_service_are_not_its_own_and_their_ports_are_left_alone() {
    let Some(node) = node("unused ports of other addresses") else { return };
    for case in CASES {
        for address in [address::node(1), BALANCER_IP, EXTERNAL_IP] {
            let frame = case.first(case.at(CLIENT, node.client_port()), case.at(address, PORT + 1)).to_bytes();
            for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC), (Hook::PodIn, TC_UNSPEC)] {
                node.run(hook, Device::Eth0, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
            }
        }
    }
}

#[test]
fn a_flow_to_a_port_that_was_removed_goes_on_while_new_ones_are_refused() {
    let Some(mut node) = node("a port that was removed") else { return };
    for case in CASES {
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &case.first(from, to)).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let (key, _) = node.frontend(to, case.protocol);
        node.datapath.store().apply(&[MapOp::DeleteFrontend { key }]).unwrap();
        let sent = case.later(from, to);
        let expected = sent.clone().with_destination(case.at(address::pod(1, 2), TARGET_PORT));
        node.send(Hook::Xdp, Device::Eth0, &sent).is(XDP_PASS, abi::REASON_TO_LOCAL, &expected);
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &expected);
        let sent = case.first(case.at(CLIENT, node.client_port()), to);
        node.send(Hook::NicIn, Device::Eth0, &sent).is(TC_REDIRECT, abi::REASON_UNUSED_PORT, &refusal(&sent));
    }
}

#[test]
fn an_address_that_is_given_up_is_left_alone() {
    let Some(mut node) = node("a cluster IP that was given up") else { return };
    let frontends = node.view.dump().unwrap().frontends;
    let removals: Vec<_> = frontends.into_iter().map(|(key, _)| MapOp::DeleteFrontend { key }).collect();
    node.datapath.store().apply(&removals).unwrap();
    for case in CASES {
        let frame = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT + 1)).to_bytes();
        for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)] {
            node.run(hook, Device::Eth0, &frame).is_untouched(verdict, abi::REASON_NO_FRONTEND, &frame);
        }
    }
}
