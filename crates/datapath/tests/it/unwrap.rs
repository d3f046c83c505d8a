//! Direct server return, at the node of the endpoint: what another node has wrapped is opened and answered, and all else that
//! looks like it is left alone.

use weir_abi as abi;
use weir_core::model::{Protocol, Service};
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::{Packet, Transport};

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT, cases};
use crate::direct::wrapped;
use crate::fragments::{PIECE, assemble, large};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, TC_UNSPEC, XDP_PASS, web};

/// The node that a client comes to.
const ENTRY: Pair = address::node(2);

/// A node with an endpoint, which knows the others.
fn serving(what: &str) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(web(), &[(1, 1)]);
    node.direct(&[]);
    Some(node)
}

/// Wrapped by the entry for the endpoint.
pub(crate) fn by_entry(case: Case, inner: &Packet) -> Packet {
    wrapped(case.ip(ENTRY), case.ip(address::pod(1, 1)), inner)
}

fn first(node: &Node, case: Case, frontend: Pair, port: u16) -> Packet {
    case.first(case.at(CLIENT, node.client_port()), case.at(frontend, port))
}

#[test]
fn what_a_node_has_wrapped_reaches_the_endpoint_and_the_answer_leaves_for_the_client_from_what_it_asked() {
    let Some(node) = serving("packets to unwrap") else { return };
    for case in CASES {
        for (frontend, port) in [(CLUSTER_IP, PORT), (ENTRY, NODE_PORT), (BALANCER_IP, PORT), (EXTERNAL_IP, PORT)] {
            let sent = first(&node, case, frontend, port);
            let pod = case.at(address::pod(1, 1), TARGET_PORT);
            for sent in [sent.clone(), case.later(sent.source_socket(), sent.destination_socket())] {
                let outer = by_entry(case, &sent);
                let outcome = node.send(Hook::Xdp, Device::Eth0, &outer);
                outcome.is_untouched(XDP_PASS, abi::REASON_NOT_TRANSPORT, &outer.to_bytes());
                let expected = sent.clone().with_destination(pod);
                node.send(Hook::NicIn, Device::Eth0, &outer).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &expected);
            }
            let answer = case.later(pod, sent.source_socket());
            let expected = answer.clone().with_source(sent.destination_socket());
            node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &expected);
        }
    }
}

#[test]
fn where_direct_server_return_was_never_in_use_nothing_is_opened() {
    let Some(node) = serving("wrapped packets to a node that takes no part") else { return };
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flags: config.flags & !abi::CONFIG_UNWRAP, ..config }).unwrap();
    for case in CASES {
        let outer = by_entry(case, &first(&node, case, EXTERNAL_IP, PORT));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &outer);
        outcome.is_untouched(TC_UNSPEC, abi::REASON_NOT_TRANSPORT, &outer.to_bytes());
    }
}

#[test]
fn the_backend_counts_the_flow_and_its_answer_and_the_service_leaves_that_to_who_was_asked() {
    let Some(node) = serving("counters of unwrapped flows") else { return };
    for case in cases(Protocol::Udp) {
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &sent));
        let answer = case.later(case.at(address::pod(1, 1), TARGET_PORT), sent.source_socket());
        node.send(Hook::NicOut, Device::Eth0, &answer);
        let flow = node.flow_of(&sent);
        let counters = node.view.backend_counters(flow.backend).unwrap();
        assert_eq!((counters.flows, counters.answered), (1, 1));
        assert_eq!(node.view.service_counters(flow.service).unwrap().local, 0);
    }
}

#[test]
fn source_ranges_are_looked_at_once_more() {
    let Some(mut node) = serving("source ranges of wrapped packets") else { return };
    let ranges = ["192.0.2.0/24", "2001:db8:ffff::/48"].map(|range| range.parse().unwrap());
    node.serve(Service { source_ranges: ranges.to_vec(), ..web() }, &[(1, 1)]);
    for case in CASES {
        let sent = by_entry(case, &first(&node, case, BALANCER_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_SHOT, abi::REASON_SOURCE_RANGE);
        let sent = by_entry(case, &first(&node, case, EXTERNAL_IP, PORT));
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
    }
}

#[track_caller]
fn is_left_alone(node: &Node, outer: &Packet) {
    for (hook, verdict) in [(Hook::Xdp, XDP_PASS), (Hook::NicIn, TC_UNSPEC)] {
        let outcome = node.send(hook, Device::Eth0, outer);
        outcome.is_untouched(verdict, abi::REASON_NOT_TRANSPORT, &outer.to_bytes());
    }
}

#[test]
fn who_is_no_node_of_the_cluster_is_not_opened() {
    let Some(node) = serving("wrapped by a stranger") else { return };
    for case in CASES {
        let inner = first(&node, case, EXTERNAL_IP, PORT);
        let pod = case.ip(address::pod(1, 1));
        for stranger in [CLIENT, address::pod(2, 1), address::node(1)] {
            is_left_alone(&node, &wrapped(case.ip(stranger), pod, &inner));
        }
    }
}

#[test]
fn tunnels_of_others_between_the_same_nodes_are_left_alone() {
    let Some(node) = serving("tunnels of others") else { return };
    for case in CASES {
        let pod = case.ip(address::pod(1, 1));
        // To no frontend, of another port, and to one of this node's that is the entry's alone.
        for (to, port) in [(address::pod(1, 1), TARGET_PORT), (EXTERNAL_IP, 81), (address::node(1), 1)] {
            is_left_alone(&node, &by_entry(case, &first(&node, case, to, port)));
        }
        // To a frontend, but not for an endpoint here.
        let inner = first(&node, case, EXTERNAL_IP, PORT);
        for to in [address::node(1), address::pod(1, 2), address::pod(3, 1)] {
            is_left_alone(&node, &wrapped(case.ip(ENTRY), case.ip(to), &inner));
        }
        // Neither packets nor anything that has ports.
        for bytes in [vec![], vec![0x45; 12], vec![0xff; 60]] {
            let outer = by_entry(case, &inner);
            let Transport::Other { protocol, .. } = outer.transport else { panic!("{outer:?}") };
            is_left_alone(&node, &Packet { transport: Transport::Other { protocol, bytes }, ..outer });
        }
        let ping = Transport::Icmp { kind: 8, code: 0, rest: [0; 4], body: vec![1; 32] };
        is_left_alone(&node, &by_entry(case, &Packet::new(case.ip(CLIENT), pod, ping)));
    }
}

#[test]
fn an_address_of_a_node_that_is_a_load_balancers_too_is_looked_at_as_that() {
    let Some(mut node) = serving("load balancers at nodes, wrapped") else { return };
    for (addresses, is_ours) in [(ENTRY, true), (address::node(1), false)] {
        node.serve(Service { load_balancer_ips: addresses.both().to_vec(), ..web() }, &[(1, 1)]);
        for case in CASES {
            let sent = by_entry(case, &first(&node, case, ENTRY, PORT));
            if is_ours {
                node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
            } else {
                is_left_alone(&node, &sent);
            }
        }
    }
}

#[test]
fn a_frontend_that_leaves_the_service_leaves_its_connections_what_they_have() {
    let Some(mut node) = serving("frontends that leave, wrapped") else { return };
    for case in cases(Protocol::Tcp) {
        node.serve(web(), &[(1, 1)]);
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &sent)).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        node.serve(Service { external_ips: Vec::new(), ..web() }, &[(1, 1)]);
        let later = by_entry(case, &case.later(sent.source_socket(), sent.destination_socket()));
        node.send(Hook::NicIn, Device::Eth0, &later).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        is_left_alone(&node, &by_entry(case, &first(&node, case, EXTERNAL_IP, PORT)));
    }
}

#[test]
fn a_client_whose_port_the_endpoint_knows_already_gets_its_answer_by_this_node() {
    let Some(node) = serving("one port of a client, wrapped") else { return };
    for case in cases(Protocol::Tcp) {
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &sent)).is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let other = case.first(sent.source_socket(), case.at(ENTRY, NODE_PORT));
        let outcome = node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &other));
        outcome.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
        let (seen, client) = (outcome.packet(), sent.source_socket());
        assert!(seen.source == client.ip() && seen.source_socket() != client, "{seen:?}");
        let answer = case.later(seen.destination_socket(), seen.source_socket());
        let got = answer.clone().with_source(other.destination_socket()).with_destination(client);
        node.send(Hook::NicOut, Device::Eth0, &answer).is(TC_UNSPEC, abi::REASON_BACK, &got);
    }
}

#[test]
fn what_came_wrapped_is_not_wrapped_again_for_an_endpoint_that_its_flow_had_before() {
    let Some(mut node) = serving("packets that nodes would send to and fro") else { return };
    node.refuses();
    for case in CASES {
        // Its client came here before, and was sent on to the node that is the entry now.
        node.serve(web(), &[(2, 1)]);
        node.direct(&[2]);
        let sent = first(&node, case, EXTERNAL_IP, PORT);
        node.send(Hook::NicIn, Device::Eth0, &sent).is_for(TC_REDIRECT, abi::REASON_DIRECT);
        node.serve(web(), &[(1, 1), (2, 1)]);
        node.direct(&[2]);
        let later = case.later(sent.source_socket(), sent.destination_socket());
        node.send(Hook::NicIn, Device::Eth0, &later).is_for(TC_REDIRECT, abi::REASON_DIRECT);
        if case.protocol == Protocol::Tcp {
            node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &later)).is_for(TC_REDIRECT, abi::REASON_STALE_RESET);
        }
        let pod = case.at(address::pod(1, 1), TARGET_PORT);
        for sent in [sent, later] {
            let expected = sent.clone().with_destination(pod);
            node.send(Hook::NicIn, Device::Eth0, &by_entry(case, &sent)).is(TC_UNSPEC, abi::REASON_TO_LOCAL, &expected);
        }
    }
}

#[test]
fn pieces_that_come_wrapped_reach_the_endpoint() {
    let Some(node) = serving("wrapped pieces to open") else { return };
    for case in CASES {
        let whole = large(case, &node, CLIENT, EXTERNAL_IP);
        let pieces = whole.cut(PIECE);
        let open = |piece: &Packet| {
            let outcome = node.send(Hook::NicIn, Device::Eth0, &by_entry(case, piece));
            outcome.is_for(TC_UNSPEC, abi::REASON_TO_LOCAL);
            outcome.packet()
        };
        let opened: Vec<_> = pieces.iter().map(open).collect();
        let expected = whole.clone().with_destination(case.at(address::pod(1, 1), TARGET_PORT));
        assert_eq!(assemble(&opened), expected);
    }
}

#[test]
fn pieces_in_tunnels_of_others_wait_for_no_first_one() {
    let Some(node) = serving("pieces in tunnels of others") else { return };
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { held_pieces: abi::HELD_REGION, ..config }).unwrap();
    for case in CASES {
        for piece in large(case, &node, CLIENT, address::pod(1, 1)).cut(PIECE) {
            is_left_alone(&node, &by_entry(case, &piece));
        }
    }
    assert_eq!(node.view.held_pieces().unwrap().len(), 0);
}
