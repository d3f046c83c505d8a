//! What has no source port of the node's left towards an endpoint.

use std::collections::BTreeSet;

use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::CLIENT;

use crate::case::{CASES, CLUSTER_IP, PORT, cases, tcp};
use crate::ended::ack;
use crate::entries::calm;
use crate::node::{Device, Node, TC_SHOT, XDP_DROP, XDP_TX, web};
use crate::snat::{go_on, to_service};

#[test]
fn a_flow_for_which_no_port_is_left_is_dropped() {
    let Some(mut node) = Node::new("SNAT exhaustion") else { return };
    node.configure((50000, 50001), true);
    node.serve(web(), &[(2, 1)]);
    for case in CASES {
        let flows = [to_service(&node, case), to_service(&node, case)];
        let ports: BTreeSet<_> = flows
            .iter()
            .map(|sent| {
                let outcome = node.send(Hook::Xdp, Device::Eth0, sent);
                outcome.is_for(XDP_TX, abi::REASON_TO_REMOTE);
                go_on(&node, case, sent, &outcome.packet());
                outcome.packet().source_socket().port()
            })
            .collect();
        assert_eq!(ports, BTreeSet::from([50000, 50001]), "{case:?}");

        let third = to_service(&node, case);
        for (hook, verdict) in [(Hook::Xdp, XDP_DROP), (Hook::NicIn, TC_SHOT)] {
            let outcome = node.send(hook, Device::Eth0, &third);
            outcome.is_untouched(verdict, abi::REASON_SNAT_EXHAUSTED, &third.to_bytes());
        }
        for sent in &flows {
            node.send(Hook::Xdp, Device::Eth0, sent).is_for(XDP_TX, abi::REASON_TO_REMOTE);
        }
    }
}

#[test]
fn where_one_endpoint_has_no_port_left_a_new_flow_goes_to_another() {
    let Some(mut node) = Node::new("SNAT exhaustion of one endpoint") else { return };
    node.configure((50000, 50000), true);
    for case in [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(cases) {
        // By the hash alone half of the second flows would go to the first one's.
        for _ in 0..8 {
            node.serve_anew(web(), &[(2, 1), (2, 2)]);
            calm(&node);
            let both = [Hook::Xdp, Hook::NicIn].map(|hook| {
                let sent = to_service(&node, case);
                let outcome = node.send(hook, Device::Eth0, &sent);
                assert_eq!(outcome.reason, abi::REASON_TO_REMOTE, "{case:?}");
                go_on(&node, case, &sent, &outcome.packet());
                outcome.packet().destination
            });
            assert_ne!(both[0], both[1], "{case:?}");
            let third = to_service(&node, case);
            node.send(Hook::NicIn, Device::Eth0, &third).is_for(TC_SHOT, abi::REASON_SNAT_EXHAUSTED);
        }
    }
}

/// Another endpoint would reset it.
#[test]
fn a_connection_that_is_met_in_its_middle_stays_at_an_endpoint_that_has_no_port_left() {
    let Some(mut node) = Node::new("SNAT exhaustion and connections in their middle") else { return };
    node.configure((50000, 50000), true);
    for case in cases(Protocol::Tcp) {
        let mut dropped = 0;
        for _ in 0..16 {
            node.serve_anew(web(), &[(2, 1), (2, 2)]);
            let sent = to_service(&node, case);
            let outcome = node.send(Hook::NicIn, Device::Eth0, &sent);
            go_on(&node, case, &sent, &outcome.packet());
            let middle = tcp(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT), ack(1));
            let outcome = node.send(Hook::NicIn, Device::Eth0, &middle);
            dropped += u32::from(outcome.reason == abi::REASON_SNAT_EXHAUSTED);
        }
        assert!((1..16).contains(&dropped), "{case:?}: of the hashes half lead there, {dropped} of 16");
    }
}

/// The endpoint knows it from another port, and will reset it most likely.
#[test]
fn a_connection_that_is_met_in_its_middle_takes_no_port_from_who_waits_for_an_answer() {
    let Some(mut node) = Node::new("SNAT ports and forged ACKs") else { return };
    node.configure((50000, 50001), true);
    for case in cases(Protocol::Tcp) {
        node.serve_anew(web(), &[(2, 1)]);
        let begins = [(); 2].map(|()| {
            let first = to_service(&node, case);
            let seen = node.send(Hook::NicIn, Device::Eth0, &first).packet();
            (first, seen)
        });
        for hook in [Hook::Xdp, Hook::NicIn].into_iter().cycle().take(8) {
            let forged = tcp(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT), ack(1));
            assert_eq!(node.send(hook, Device::Eth0, &forged).reason, abi::REASON_SNAT_EXHAUSTED, "{case:?}");
        }
        for (first, seen) in begins {
            go_on(&node, case, &first, &seen);
        }
    }
}

#[test]
fn a_flow_that_gets_no_port_is_counted_as_dropped_and_as_none_of_its_endpoint() {
    let Some(mut node) = Node::new("counters of SNAT exhaustion") else { return };
    node.configure((50000, 50000), true);
    for case in [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(cases) {
        node.serve_anew(web(), &[(2, 1)]);
        let first = to_service(&node, case);
        let outcome = node.send(Hook::NicIn, Device::Eth0, &first);
        go_on(&node, case, &first, &outcome.packet());
        let port = first.source_socket().port();
        let flow = node.view.flows().unwrap().into_iter().find(|entry| entry.client_port == port).unwrap().flow;
        let counted = || {
            let of_service = node.view.service_counters(flow.service).unwrap();
            let of_backend = node.view.backend_counters(flow.backend).unwrap();
            (of_service.remote, of_service.dropped, of_backend.flows, of_backend.balance)
        };
        let open = u32::from(case.protocol == Protocol::Tcp);
        assert_eq!(counted(), (1, 0, 1, open), "{case:?}");
        let second = to_service(&node, case);
        for (dropped, hook) in [(1, Hook::Xdp), (2, Hook::NicIn)] {
            assert_eq!(node.send(hook, Device::Eth0, &second).reason, abi::REASON_SNAT_EXHAUSTED);
            assert_eq!(counted(), (1, dropped, 1, open), "{case:?} {hook:?}");
        }
    }
}
