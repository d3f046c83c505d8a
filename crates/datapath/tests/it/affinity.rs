//! Session affinity: a client keeps its backend for new flows.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::flow_pressure::TableUse;
use weir_core::model::{Family, ObjectName, Protocol, Service, ServicePort, TrafficPolicy};
use weir_core::plan::Selector;
use weir_datapath::Hook;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{BALANCER_IP, CASES, CLUSTER_IP, Case, EXTERNAL_IP, NODE_PORT, PORT, TARGET_PORT, cases, tcp};
use crate::entries::{age, evict};
use crate::node::{Device, Node, web};
use crate::pins::SMALL;

const SECONDS: u32 = 10_800;
/// The same in ticks of the fixtures' clock.
const TICKS: u32 = 10_547;

fn sticky() -> Service {
    Service { affinity: Some(SECONDS), ..web() }
}

/// Endpoints of this node: many, so that an equal choice is no accident.
fn many(first: u8) -> Vec<(u8, u8)> {
    (first..first + 20).map(|pod| (1, pod)).collect()
}

fn frontends() -> [(Pair, u16); 4] {
    [(CLUSTER_IP, PORT), (address::node(1), NODE_PORT), (BALANCER_IP, PORT), (EXTERNAL_IP, PORT)]
}

/// Clients outside of the node.
fn clients() -> impl Iterator<Item = Pair> {
    (10..30).map(|n: u8| Pair {
        v4: Ipv4Addr::new(198, 51, 100, n),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, n.into()),
    })
}

/// Sends what begins a flow. Returns it as the endpoint gets it.
#[track_caller]
fn begin(node: &Node, hook: Hook, first: &Packet) -> Packet {
    let outcome = node.send(hook, Device::Eth0, first);
    assert!(matches!(outcome.reason, abi::REASON_TO_LOCAL | abi::REASON_TO_REMOTE), "{outcome:?}");
    outcome.packet()
}

/// Opens a new flow, a connection by its whole handshake. Returns the endpoint that it goes to.
#[track_caller]
fn open(node: &Node, case: Case, hook: Hook, from: SocketAddr, to: SocketAddr) -> IpAddr {
    let seen = begin(node, hook, &case.first(from, to));
    if case.protocol == Protocol::Tcp {
        accept(node, case, &seen);
        begin(node, hook, &case.later(from, to));
    }
    seen.destination
}

/// The endpoint answers what it has seen of a connection's client.
#[track_caller]
fn accept(node: &Node, case: Case, seen: &Packet) {
    let back = if seen.source == case.ip(address::node(1)) { Hook::NicIn } else { Hook::NicOut };
    let header = TcpHeader { syn: true, ack: true, ..TcpHeader::default() };
    let outcome = node.send(back, Device::Eth0, &tcp(seen.destination_socket(), seen.source_socket(), header));
    assert_eq!(outcome.reason, abi::REASON_BACK, "{outcome:?}");
}

#[track_caller]
fn open_flow(node: &Node, case: Case, hook: Hook, client: Pair, to: SocketAddr) -> IpAddr {
    open(node, case, hook, case.at(client, node.client_port()), to)
}

fn to_cluster_ip(node: &Node, case: Case, client: Pair) -> IpAddr {
    open_flow(node, case, Hook::NicIn, client, case.at(CLUSTER_IP, PORT))
}

fn age_clients(node: &Node, ticks: u32) {
    age(node, "affinities", offset_of!(abi::Affinity, last_seen), ticks);
}

#[test]
fn a_client_keeps_its_backend_at_all_frontends_of_a_port() {
    let Some(mut node) = Node::new("affinity across frontends") else { return };
    node.serve(sticky(), &many(1));
    for case in CASES {
        let kept = to_cluster_ip(&node, case, CLIENT);
        for (frontend, port) in frontends() {
            for hook in [Hook::Xdp, Hook::NicIn, Hook::PodIn] {
                for _ in 0..3 {
                    assert_eq!(
                        open_flow(&node, case, hook, CLIENT, case.at(frontend, port)),
                        kept,
                        "{case:?} at {hook}"
                    );
                }
            }
        }
    }
}

#[test]
fn clients_do_not_share_a_backend_because_one_of_them_has_it() {
    let Some(mut node) = Node::new("affinity of other clients") else { return };
    node.serve(sticky(), &many(1));
    for case in CASES {
        let seen: BTreeSet<_> = clients().map(|client| to_cluster_ip(&node, case, client)).collect();
        assert!(seen.len() > 1, "{case:?}: all clients got {seen:?}");
    }
}

#[test]
fn clients_that_keep_a_backend_are_counted_until_their_time_is_over_or_the_backend_is_gone() {
    let Some(mut node) = Node::new("clients with affinity are counted") else { return };
    node.serve(sticky(), &many(1));
    let [case, ..] = CASES;
    // Of the client whose flow is the latest one.
    let count = |node: &Node| {
        let is_latest = |(key, _): &(abi::AffinityKey, abi::Affinity)| key.client == case.ip(CLIENT).into();
        let (_, latest) = node.view.affinities().unwrap().into_iter().find(is_latest).unwrap();
        let TableUse { open, over, capacity } = node.view.affinity_use(latest.last_seen).unwrap();
        assert_eq!(capacity, SMALL.affinities);
        (open, over)
    };
    for client in clients() {
        to_cluster_ip(&node, case, client);
    }
    to_cluster_ip(&node, case, CLIENT);
    assert_eq!(count(&node), (21, 0));
    age_clients(&node, TICKS + 2);
    to_cluster_ip(&node, case, CLIENT);
    assert_eq!(count(&node), (1, 20));
    node.serve(sticky(), &[(2, 1)]);
    assert_eq!(count(&node), (0, 21));
}

#[test]
fn without_affinity_the_flows_of_a_client_spread_and_switching_it_takes_effect_at_once() {
    let Some(mut node) = Node::new("switching affinity") else { return };
    let spread = |node: &Node, case| (0..20).map(|_| to_cluster_ip(node, case, CLIENT)).collect::<BTreeSet<_>>().len();
    for service in [web(), sticky(), web()] {
        let sticks = service.affinity.is_some();
        node.serve(service, &many(1));
        for case in CASES {
            assert_eq!(spread(&node, case) == 1, sticks, "{case:?}");
        }
    }
}

#[test]
fn a_client_that_comes_back_too_late_is_selected_for_anew() {
    let Some(mut node) = Node::new("expired affinity") else { return };
    node.serve(sticky(), &many(1));
    for case in CASES {
        let select = |node: &Node| clients().map(|client| to_cluster_ip(node, case, client)).collect::<Vec<_>>();
        let before = select(&node);
        age_clients(&node, TICKS - 5);
        assert_eq!(select(&node), before, "{case:?} in time");
        age_clients(&node, TICKS + 1);
        assert_ne!(select(&node), before, "{case:?} too late");
    }
}

#[test]
fn a_new_flow_prolongs_affinity_and_the_packets_of_an_old_one_do_not() {
    let Some(mut node) = Node::new("refreshed affinity") else { return };
    node.serve(sticky(), &many(1));
    for case in CASES {
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
        let kept = open(&node, case, Hook::NicIn, from, to);
        let last_seen = |node: &Node| {
            let all = node.view.affinities().unwrap();
            let of_case = all.into_iter().find(|(key, _)| {
                let service = node.frontend(to, case.protocol).1.service;
                key.service == service && key.client.ip() == from.ip()
            });
            of_case.unwrap().1.last_seen
        };
        age_clients(&node, 100);
        let aged = last_seen(&node);
        let seen = node.send(Hook::NicIn, Device::Eth0, &case.later(from, to)).packet().destination;
        assert_eq!((seen, last_seen(&node)), (kept, aged), "{case:?}: an old flow");
        assert_eq!(to_cluster_ip(&node, case, CLIENT), kept);
        assert!(last_seen(&node).wrapping_sub(aged) >= 100, "{case:?}: a new flow");
    }
}

#[test]
fn an_endpoint_that_takes_the_slot_of_one_that_is_gone_does_not_inherit_its_clients() {
    let Some(mut node) = Node::new("affinity to a backend that is gone") else { return };
    for case in CASES {
        node.serve(sticky(), &[(1, 1)]);
        let old: BTreeSet<_> = clients().map(|client| to_cluster_ip(&node, case, client)).collect();
        assert_eq!(old, BTreeSet::from([case.ip(address::pod(1, 1))]));
        node.serve(sticky(), &[]);
        node.release();
        node.release();
        node.serve(sticky(), &many(2));
        let new: BTreeSet<_> = clients().map(|client| to_cluster_ip(&node, case, client)).collect();
        assert!(new.len() > 1, "{case:?}: all clients got {new:?}");
        node.serve(sticky(), &[]);
        node.release();
        node.release();
    }
}

#[test]
fn a_draining_backend_loses_its_clients_for_good() {
    let Some(mut node) = Node::new("affinity to a draining backend") else { return };
    for case in CASES {
        node.serve(sticky(), &[(1, 1)]);
        assert_eq!(to_cluster_ip(&node, case, CLIENT), case.ip(address::pod(1, 1)));
        node.serve_draining(sticky(), &[(1, 2)], &[(1, 1)]);
        assert_eq!(to_cluster_ip(&node, case, CLIENT), case.ip(address::pod(1, 2)));
        node.serve(sticky(), &[(1, 1), (1, 2)]);
        for _ in 0..10 {
            assert_eq!(to_cluster_ip(&node, case, CLIENT), case.ip(address::pod(1, 2)));
        }
    }
}

#[test]
fn affinity_never_leads_to_an_endpoint_that_the_policy_in_force_forbids() {
    let Some(mut node) = Node::new("affinity and policies") else { return };
    let service = Service { external_policy: TrafficPolicy::Local, ..sticky() };
    for case in CASES {
        node.serve(service.clone(), &[(2, 1)]);
        assert_eq!(to_cluster_ip(&node, case, CLIENT), case.ip(address::pod(2, 1)));
        node.serve(service.clone(), &[(1, 1), (2, 1)]);
        assert_eq!(to_cluster_ip(&node, case, CLIENT), case.ip(address::pod(2, 1)), "{case:?}: allowed, so kept");
        let local = case.ip(address::pod(1, 1));
        let external = case.at(BALANCER_IP, PORT);
        assert_eq!(
            open_flow(&node, case, Hook::NicIn, CLIENT, external),
            local,
            "{case:?}: only local ones are allowed"
        );
        assert_eq!(to_cluster_ip(&node, case, CLIENT), local, "{case:?}: the latest selection is the one to keep");
    }
}

#[test]
fn a_connections_first_packet_which_anybody_may_send_in_a_clients_name_lets_nobody_keep_anything() {
    let Some(mut node) = Node::new("affinity beside forged SYNs") else { return };
    node.serve(sticky(), &many(1));
    for case in cases(Protocol::Tcp) {
        let kept = to_cluster_ip(&node, case, CLIENT);
        let before = node.view.affinities().unwrap();
        for (hook, client) in [Hook::Xdp, Hook::NicIn].into_iter().cycle().zip(clients()) {
            let from = case.at(client, node.client_port());
            begin(&node, hook, &case.first(from, case.at(CLUSTER_IP, PORT)));
            // Of a connection that nobody knows.
            begin(&node, Hook::NicIn, &case.later(from, case.at(EXTERNAL_IP, PORT)));
        }
        assert_eq!(node.view.affinities().unwrap(), before, "{case:?}");
        assert_eq!(to_cluster_ip(&node, case, CLIENT), kept, "{case:?}");
    }
}

#[test]
fn connections_that_a_new_client_opens_at_once_get_one_backend_which_it_keeps() {
    let Some(mut node) = Node::new("affinity of connections at once") else { return };
    for selector in [Selector::Weights, Selector::LeastConn, Selector::Maglev] {
        node.serve_changed(sticky(), &many(1), &[], |plan| plan.selector = selector);
        for case in cases(Protocol::Tcp) {
            let mut used = BTreeSet::new();
            for client in clients() {
                let open = |(to, port)| {
                    let first = case.first(case.at(client, node.client_port()), case.at(to, port));
                    let seen = begin(&node, Hook::NicIn, &first);
                    (first, seen)
                };
                let all: Vec<_> = frontends().into_iter().map(open).collect();
                let endpoint = all[0].1.destination;
                for (first, seen) in all {
                    assert_eq!(seen.destination, endpoint, "{case:?} {selector:?}");
                    accept(&node, case, &seen);
                    begin(&node, Hook::NicIn, &case.later(first.source_socket(), first.destination_socket()));
                }
                assert_eq!(to_cluster_ip(&node, case, client), endpoint, "{case:?} {selector:?}");
                used.insert(endpoint);
            }
            assert!(used.len() > 1, "{case:?} {selector:?}: all clients got {used:?}");
        }
        evict(&node, "affinities");
    }
}

#[test]
fn a_client_that_comes_back_too_late_with_several_connections_at_once_gets_one_backend_for_them() {
    let Some(mut node) = Node::new("expired affinity of connections at once") else { return };
    node.serve(sticky(), &many(1));
    for case in cases(Protocol::Tcp) {
        for client in clients() {
            to_cluster_ip(&node, case, client);
        }
        age_clients(&node, TICKS + 2);
        for client in clients() {
            let first = |port| case.first(case.at(client, port), case.at(CLUSTER_IP, PORT));
            let begun = [node.client_port(), node.client_port(), node.client_port()];
            let seen = begun.map(|port| begin(&node, Hook::NicIn, &first(port)).destination);
            assert_eq!(seen, [seen[0]; 3], "{case:?}");
        }
    }
}

#[test]
fn a_client_whose_connection_its_endpoints_node_answers_directly_keeps_the_endpoint_when_it_goes_on() {
    let Some(mut node) = Node::new("affinity of direct flows") else { return };
    let remote: Vec<_> = (1..=8).map(|pod| (2, pod)).collect();
    node.serve(sticky(), &remote);
    node.direct(&[2]);
    for case in cases(Protocol::Tcp) {
        let (from, to) = (case.at(CLIENT, node.client_port()), case.at(BALANCER_IP, PORT));
        let first = node.send(Hook::NicIn, Device::Eth0, &case.first(from, to));
        assert_eq!(first.reason, abi::REASON_DIRECT, "{first:?}");
        // Nor does one packet in the middle of a connection that nobody knows.
        let unknown = case.later(case.at(CLIENT, node.client_port()), to);
        assert_eq!(node.send(Hook::NicIn, Device::Eth0, &unknown).reason, abi::REASON_DIRECT);
        assert_eq!(node.view.affinities().unwrap().len(), 0, "{case:?}");
        for packets in [0, 1] {
            node.send(Hook::NicIn, Device::Eth0, &case.later(from, to));
            assert_eq!(node.view.affinities().unwrap().len(), packets, "{case:?}");
        }
        let kept = node.view.affinities().unwrap();
        assert_eq!(kept[0].1.backend, node.flow_of(&case.first(from, to)).backend, "{case:?}");
        evict(&node, "affinities");
    }
}

#[test]
fn flows_that_affinity_decides_are_counted_like_others() {
    let Some(mut node) = Node::new("counters with affinity") else { return };
    for case in CASES {
        node.serve(sticky(), &[(1, 1)]);
        let id = node.frontend(case.at(CLUSTER_IP, PORT), case.protocol).1.service;
        let counters = |node: &Node| {
            let abi::ServiceCounters { local, remote, .. } = node.view.service_counters(id).unwrap();
            (local, remote)
        };
        for _ in 0..3 {
            to_cluster_ip(&node, case, CLIENT);
        }
        assert_eq!(counters(&node), (3, 0), "{case:?}");
        let backend = node.view.affinities().unwrap().into_iter().find(|(key, _)| key.service == id).unwrap().1.backend;
        assert_eq!(node.view.backend_counters(backend).unwrap().flows, 3, "{case:?}");
    }
}

#[test]
fn udp_that_was_idle_starts_over_at_the_backend_that_its_client_keeps() {
    let Some(mut node) = Node::new("idle UDP with affinity") else { return };
    for case in cases(Protocol::Udp) {
        node.serve(sticky(), &[(1, 1)]);
        let kept = case.at(address::pod(1, 1), TARGET_PORT);
        let send =
            |node: &Node, sent: &Packet| node.send(Hook::NicIn, Device::Eth0, sent).packet().destination_socket();
        let flows: Vec<_> =
            (0..20).map(|_| case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT))).collect();
        assert!(flows.iter().all(|sent| send(&node, sent) == kept));
        node.serve(sticky(), &many(1));
        let table = if case.family == Family::V4 { "flows4" } else { "flows6" };
        age(&node, table, offset_of!(abi::Flow, last_seen), 1000);
        assert!(flows.iter().all(|sent| send(&node, sent) == kept), "{case:?}");
    }
}

#[test]
fn where_a_client_begins_at_one_service_says_nothing_of_where_it_begins_at_another() {
    let Some(mut node) = Node::new("one client of many services") else { return };
    let numbers = 1..=12;
    let address = |number: u8| Pair {
        v4: Ipv4Addr::new(10, 96, 1, number),
        v6: Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 1, number.into()),
    };
    for number in numbers.clone() {
        let name = ObjectName::new("shop", format!("web{number}"));
        let ports = web().ports.into_iter().map(|port| ServicePort { node_port: None, ..port }).collect();
        let known = Service { affinity: Some(SECONDS), ports, ..Service::new(name) };
        node.serve(Service { cluster_ips: address(number).both().to_vec(), ..known }, &[(1, 1), (1, 2)]);
    }
    for case in cases(Protocol::Tcp) {
        let from = case.at(CLIENT, node.client_port());
        let open = |number| open(&node, case, Hook::NicIn, from, case.at(address(number), PORT));
        let endpoints: BTreeSet<_> = numbers.clone().map(open).collect();
        assert_eq!(endpoints.len(), 2, "{endpoints:?} of {case:?}");
    }
}
