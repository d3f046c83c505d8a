//! What a flood of SYNs must not cost others: connections whose first packet leaves no flow behind, as there are too many of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_abi as abi;
use weir_core::model::{Protocol, Service};
use weir_core::ops::MapOp;
use weir_core::plan::Selector;
use weir_datapath::{Hook, MapStore};
use weir_testbed::address::{CLIENT, Pair};
use weir_testbed::packet::Packet;

use crate::case::{CLUSTER_IP, Case, PORT, TARGET_PORT, cases, on_host_network};
use crate::entries::age_floods;
use crate::failover::{RETRIES, SECOND, again};
use crate::node::{Device, Node, TC_REDIRECT, TC_SHOT, web};
use crate::openings::{allow, begins, open_in_flood, stay_on_one_cpu};
use crate::talk::{NIC_IN, NIC_OUT, Talk, Way, XDP};

const LOCAL: Way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
const WAYS: [Way; 2] = [LOCAL, Way { to: XDP, ..LOCAL }];
const ENDPOINTS: [(u8, u8); 4] = [(1, 1), (1, 2), (1, 3), (1, 4)];

/// A node whose every second new flow on a CPU in a tick is one of a flood.
fn node(what: &str, service: Service) -> Option<Node> {
    let mut node = Node::new(what)?;
    node.serve(service, &ENDPOINTS);
    allow(&node, 1);
    Some(node)
}

/// The client goes on after an answer. Where its packet leads.
fn goes_on(talk: &Talk<'_>) -> IpAddr {
    talk.accept();
    next(talk.node, talk.case, talk.way, &talk.first)
}

/// Connections that are open as the programs count them.
fn connections(node: &Node) -> u32 {
    let backends = node.view.dump().unwrap().backends;
    let balances = backends.iter().map(|(id, _)| node.view.backend_counters(*id).unwrap().balance);
    balances.fold(0, u32::wrapping_add)
}

/// Where the next packet of a client leads.
fn next(node: &Node, case: Case, way: Way, first: &Packet) -> IpAddr {
    let later = case.later(first.source_socket(), first.destination_socket());
    node.send(way.to.0, way.to.1, &later).packet().destination
}

#[test]
fn a_syn_of_a_flood_that_comes_again_without_an_answer_goes_to_another_backend_at_once() {
    let Some(node) = node("SYNs of a flood that come again", web()) else { return };
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            for bound in [1, u32::MAX] {
                allow(&node, 1);
                let dead = open_in_flood(&node, case, way);
                dead.wait(SECOND);
                // It may be over when the SYN comes again.
                allow(&node, bound);
                let before = connections(&node);
                let alive = Talk::open_with(&node, case, way, dead.first.clone());
                assert_ne!(alive.seen.destination, dead.seen.destination, "{way:?}");
                assert_eq!(connections(&node), before, "it is one connection, wherever it is");
                assert_eq!(alive.flow().flags & abi::FLOW_RETRIES, abi::FLOW_RETRY);

                let late = case.later(dead.seen.destination_socket(), dead.seen.source_socket());
                node.send(Hook::NicOut, Device::Eth0, &late).is_for(TC_SHOT, abi::REASON_STALE);
                assert_eq!(goes_on(&alive), alive.seen.destination);
                assert_eq!(alive.flow().flags & abi::FLOW_OPENING, 0);
            }
        }
    }
}

/// Beside a flood packets are lost in queues, four in a row of some: that tells nothing of their endpoints.
#[test]
fn a_syn_that_nobody_answers_beside_a_flood_is_refused_only_a_while_after_it() {
    let Some(mut node) = Node::new("SYNs that nobody answers beside a flood") else { return };
    stay_on_one_cpu();
    node.refuses();
    node.serve(web(), &ENDPOINTS);
    for case in cases(Protocol::Tcp) {
        age_floods(&node, 2 * abi::OPENING_IDLE);
        let mut talk = Talk::open(&node, case, LOCAL);
        for _ in 0..RETRIES {
            talk = again(&talk);
        }
        allow(&node, 1);
        drop(open_in_flood(&node, case, LOCAL));
        allow(&node, u32::MAX);
        for _ in 0..3 {
            let next = again(&talk);
            assert_ne!(next.seen.destination, talk.seen.destination);
            assert_eq!(next.flow().flags & abi::FLOW_RETRIES, abi::FLOW_RETRIES);
            talk = next;
        }
        let flooded = || node.view.counters().flooded(talk.flow().last_seen).unwrap();
        assert_eq!(flooded(), 1);
        age_floods(&node, abi::OPENING_IDLE + 1);
        assert_eq!(flooded(), 0);
        talk.wait(SECOND);
        node.send(Hook::NicIn, Device::Eth0, &talk.first).is_for(TC_REDIRECT, abi::REASON_UNANSWERED);
    }
}

#[test]
fn where_there_is_one_backend_a_syn_of_a_flood_that_comes_again_is_remembered_there() {
    let Some(mut node) = Node::new("SYNs of a flood to the only endpoint") else { return };
    node.serve(web(), &[LOCAL.endpoint]);
    allow(&node, 1);
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            let talk = open_in_flood(&node, case, way);
            talk.wait(SECOND);
            let again = Talk::open_with(&node, case, way, talk.first.clone());
            assert_eq!(again.seen, talk.seen);
            assert!(begins(&again));
            assert_eq!(goes_on(&again), talk.seen.destination);
        }
    }
}

#[test]
fn a_syn_of_a_flood_that_is_doubled_on_its_way_stays() {
    let Some(node) = node("SYNs of a flood that come twice", web()) else { return };
    for case in cases(Protocol::Tcp) {
        let talk = open_in_flood(&node, case, LOCAL);
        assert_eq!(Talk::open_with(&node, case, LOCAL, talk.first.clone()).seen, talk.seen);
    }
}

/// Of these the entry for the answers is written in another way than of pods.
#[test]
fn a_process_on_the_node_that_does_not_answer_in_a_flood_is_left_and_one_that_does_keeps_what_it_has_answered() {
    let Some(mut node) = Node::new("processes on the node in a flood") else { return };
    node.serve_changed(web(), &[(1, 1), (1, 2)], &[], on_host_network);
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            allow(&node, 1);
            let dead = open_in_flood(&node, case, way);
            dead.wait(SECOND);
            let alive = Talk::open_with(&node, case, way, dead.first.clone());
            assert_ne!(alive.seen.destination, dead.seen.destination, "{way:?}");
            assert_eq!(goes_on(&alive), alive.seen.destination);

            let talk = open_in_flood(&node, case, way);
            assert_eq!(goes_on(&talk), talk.seen.destination);
            assert!(!begins(&talk), "{way:?}");
        }
    }
}

/// As if the agent had counted so many open flows of an endpoint.
fn count(node: &Node, case: Case, endpoint: IpAddr, open: u32) -> MapOp {
    let is_it = |backend: &abi::Backend| {
        let used = backend.flags & abi::BACKEND_USED != 0 && backend.proto == case.protocol.number();
        used && (backend.addr.ip(), backend.port.get()) == (endpoint, TARGET_PORT)
    };
    let backends = node.view.dump().unwrap().backends;
    let id = backends.iter().find(|(_, backend)| is_it(backend)).unwrap().0;
    MapOp::PutBase { id, base: node.view.backend_counters(id).unwrap().begun_or_failed().wrapping_sub(open) }
}

#[test]
fn a_client_of_a_flood_reaches_the_backend_that_has_answered_it_whatever_is_open_elsewhere_by_then() {
    let Some(mut node) = Node::new("least-conn in a flood") else { return };
    node.serve_changed(web(), &ENDPOINTS, &[], |plan| plan.selector = Selector::LeastConn);
    allow(&node, 1);
    for case in cases(Protocol::Tcp) {
        for way in WAYS {
            for _ in 0..20 {
                let talk = open_in_flood(&node, case, way);
                talk.accept();
                let (first, endpoint) = (talk.first.clone(), talk.seen.destination);
                let busy = count(&node, case, endpoint, 1000);
                node.datapath.store().apply(&[busy]).unwrap();
                assert_eq!(next(&node, case, way, &first), endpoint, "{way:?}");
                let idle = count(&node, case, endpoint, 0);
                node.datapath.store().apply(&[idle]).unwrap();
            }
        }
    }
}

/// The endpoint that a client keeps.
pub(crate) fn kept(node: &Node, case: Case, client: Pair) -> Option<IpAddr> {
    let service = node.frontend(case.at(CLUSTER_IP, PORT), case.protocol).1.service;
    let affinities = node.view.affinities().unwrap();
    let is_its = |key: &abi::AffinityKey| key.service == service && key.client.ip() == case.ip(client);
    let slot = affinities.iter().find(|(key, _)| is_its(key))?.1.backend;
    let backends = node.view.dump().unwrap().backends;
    backends.iter().find(|(id, _)| *id == slot).map(|(_, backend)| backend.addr.ip())
}

fn clients() -> impl Iterator<Item = Pair> {
    (10..250).map(|n: u8| Pair {
        v4: Ipv4Addr::new(198, 51, 100, n),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, n.into()),
    })
}

/// Connections of a client that has come for the first time, in a flood with all of them.
fn newcomer<'a>(node: &'a Node, case: Case, way: Way, clients: &mut impl Iterator<Item = Pair>) -> Vec<Talk<'a>> {
    let open = |client| (0..4).map(|_| Talk::open(node, case, Way { client, ..way })).collect::<Vec<_>>();
    let talks = clients.map(open).next().expect("there are clients enough");
    assert_eq!(kept(node, case, talks[0].way.client), None, "first packets leave no affinity");
    talks
}

#[test]
fn of_a_flood_with_affinity_a_client_that_goes_on_keeps_its_backend_and_all_its_connections_have_the_same() {
    for (way, endpoints) in
        [(WAYS[0], ENDPOINTS), (WAYS[1], ENDPOINTS), (Way { back: NIC_IN, ..LOCAL }, [(2, 1), (2, 2), (2, 3), (2, 4)])]
    {
        let Some(mut node) = Node::new("affinity in a flood") else { return };
        node.serve(Service { affinity: Some(600), ..web() }, &endpoints);
        allow(&node, 1);
        for case in cases(Protocol::Tcp) {
            let (mut clients, mut used) = (clients(), BTreeSet::new());
            for _ in 0..20 {
                let talks = newcomer(&node, case, way, &mut clients);
                let [client, endpoint] = [case.ip(talks[0].way.client), talks[0].seen.destination];
                for talk in &talks {
                    assert_eq!(talk.seen.destination, endpoint, "{client} {way:?}");
                    assert_eq!(goes_on(talk), endpoint, "{client} {way:?}");
                    assert_eq!(kept(&node, case, talk.way.client), Some(endpoint), "{client} {way:?}");
                }
                let later = Talk::open(&node, case, talks[0].way);
                assert_eq!(later.seen.destination, endpoint, "{client} {way:?}");
                used.insert(endpoint);
            }
            assert!(used.len() > 1, "clients are spread");
        }
    }
}

#[test]
fn a_client_that_keeps_a_backend_keeps_it_through_a_flood() {
    let Some(node) = node("affinity from before a flood", Service { affinity: Some(600), ..web() }) else { return };
    for case in cases(Protocol::Tcp) {
        allow(&node, u32::MAX);
        let before: Vec<_> =
            clients().take(20).map(|client| Talk::open(&node, case, Way { client, ..LOCAL })).collect();
        allow(&node, 1);
        for talk in before {
            let now = Talk::open(&node, case, talk.way);
            assert_eq!(now.seen.destination, talk.seen.destination);
            assert_eq!(goes_on(&now), talk.seen.destination);
        }
    }
}
