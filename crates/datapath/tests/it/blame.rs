//! Who did not answer a SYN has failed when another endpoint has the connection, and not where nobody is heard of.

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::Packet;

use crate::case::{Case, EXTERNAL_IP, PORT, TARGET_PORT, cases, tcp};
use crate::direct::wrapped;
use crate::failover::{SECOND, again, open};
use crate::node::{Device, Node, TC_REDIRECT, TC_UNSPEC, web};
use crate::talk::{NIC_IN, NIC_OUT, WAYS, Way, wait};

/// How who is asked next goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Next {
    HasTheConnection,
    Accepts,
    Refuses,
    SaysNothing,
}

/// Lets the next one go on, and asserts when the one that was left has failed.
fn fails(node: &mut Node, case: Case, way: Way, next_one: Next) {
    node.serve_anew(web(), &[way.endpoint, (way.endpoint.0, way.endpoint.1 + 2)]);
    let node = &*node;
    let left = open(node, case, way);
    let slot = left.flow().backend;
    let counted = || {
        let counters = node.view.backend_counters(slot).unwrap();
        (counters.unanswered, counters.failed_over)
    };
    let next = again(&left);
    let asked = next.flow().backend;
    match next_one {
        Next::Refuses => next.refuse(),
        Next::SaysNothing => drop(again(&next)),
        // As if the first one had not arrived.
        Next::HasTheConnection | Next::Accepts => drop((next.accept(), next.accept())),
    }
    assert_eq!(counted(), (1, 0), "{way:?}, {next_one:?}: nobody was heard of so far");
    let bytes_from = |counters: abi::BackendCounters| assert_eq!(counters.bytes_from, next.bytes_from.get());
    bytes_from(node.view.backend_counters(asked).unwrap());
    if next_one == Next::HasTheConnection {
        next.client_goes_on();
        next.client_goes_on();
        next.endpoint_goes_on();
        assert_eq!(counted(), (1, 1), "{way:?}");
        next.endpoint_sends(&next.endpoint_tcp(TcpHeader { fin: true, ack: true, ..TcpHeader::default() }));
        bytes_from(next.counters());
    }
}

#[test]
fn a_backend_fails_where_another_one_has_its_connection_and_not_where_nobody_is_heard_of() {
    let Some(mut node) = Node::new("SYNs that another endpoint answers") else { return };
    for settles in [false, true] {
        if settles {
            node.settle();
        }
        for case in cases(Protocol::Tcp) {
            for way in WAYS {
                for next in [Next::HasTheConnection, Next::Accepts, Next::Refuses, Next::SaysNothing] {
                    fails(&mut node, case, way, next);
                }
            }
        }
    }
}

#[test]
fn a_backend_that_is_left_for_a_node_which_answers_its_clients_itself_has_failed_when_a_client_goes_on() {
    let Some(mut node) = Node::new("SYNs that are wrapped when they come again") else { return };
    let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
    for case in cases(Protocol::Tcp) {
        node.serve_anew(web(), &[(1, 1), (2, 1)]);
        node.direct(&[2]);
        let left = open(&node, case, way);
        let slot = left.flow().backend;
        left.wait(SECOND);
        let later = case.later(left.first.source_socket(), left.first.destination_socket());
        let mut bytes = 0;
        for (packet, failed) in [(&left.first, 0), (&later, 0), (&later, 1), (&later, 1)] {
            node.send(Hook::NicIn, Device::Eth0, packet).is_for(TC_REDIRECT, abi::REASON_DIRECT);
            bytes += packet.to_bytes().len() as u64;
            let counters = node.view.backend_counters(slot).unwrap();
            assert_eq!((counters.unanswered, counters.failed_over), (1, failed));
        }
        let held = u64::from(left.flow().held);
        assert_eq!(left.counters().bytes_to + held, bytes, "what is noted there is no byte");
    }
}

#[test]
fn what_comes_wrapped_for_another_endpoint_than_before_says_so_of_that_one() {
    let Some(mut node) = Node::new("wrapped SYNs that come again for another endpoint") else { return };
    for case in cases(Protocol::Tcp) {
        node.serve_anew(web(), &[(1, 1), (1, 2)]);
        node.direct(&[2]);
        let client = case.at(CLIENT, node.client_port());
        let frontend = case.at(EXTERNAL_IP, PORT);
        let wrap = |packet: &Packet, pod| {
            let outer = wrapped(case.ip(address::node(2)), case.ip(address::pod(1, pod)), packet);
            node.send(Hook::NicIn, Device::Eth0, &outer).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        };
        let (first, later) = (case.first(client, frontend), case.later(client, frontend));
        wrap(&first, 1);
        let left = node.flow_of(&first).backend;
        wait(&node, case, SECOND);
        wrap(&first, 2);
        let asked = node.flow_of(&first).backend;
        assert_ne!(asked, left);
        let header = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
        let answer = tcp(case.at(address::pod(1, 2), TARGET_PORT), client, header);
        node.send(Hook::NicOut, Device::Eth0, &answer).is_for(TC_UNSPEC, abi::REASON_BACK);
        let counters = |slot| node.view.backend_counters(slot).unwrap();
        assert_eq!((counters(left).unanswered, counters(left).failed_over), (1, 0));
        wrap(&later, 2);
        assert_eq!((counters(left).unanswered, counters(left).failed_over), (1, 1));
        assert_eq!(counters(asked).bytes_from, answer.to_bytes().len() as u64);
    }
}
