//! `maglev` and `least-conn` in the kernel: two nodes that share a service's flows, and backends that hold long ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use etherparse::TcpHeader;
use weir_abi as abi;
use weir_core::model::{Family, Protocol, Service, ServicePort};
use weir_core::ops::MapOp;
use weir_core::plan::Selector;
use weir_datapath::{Hook, MapStore};
use weir_testbed::address::{self, CLIENT};
use weir_testbed::packet::{Packet, decode};
use weir_testbed::prog_run::{Context, prog_run};

use crate::case::{BALANCER_IP, CLUSTER_IP, Case, PORT, cases};
use crate::failover::again;
use crate::node::{Device, Node, web};
use crate::talk::{NIC_IN, NIC_OUT, Talk, Way};

/// Flows that the two nodes share, of each family.
const FLOWS: u16 = 10_000;

/// TCP alone: a table of each protocol would need lines of its own.
fn shared() -> Service {
    shared_by(Protocol::Tcp)
}

fn shared_by(protocol: Protocol) -> Service {
    let Service { mut ports, .. } = web();
    ports.retain(|port| port.protocol == protocol);
    Service { ports: ports.into_iter().map(|port| ServicePort { node_port: None, ..port }).collect(), ..web() }
}

fn serve(node: &mut Node, service: Service, endpoints: &[(u8, u8)], selector: Selector) {
    node.serve_changed(service, endpoints, &[], |plan| plan.selector = selector);
}

/// Makes the seed of the node's hashes another one.
fn seed(node: &Node, hash_seed: u64) {
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { hash_seed, ..config }).unwrap();
}

/// Two nodes with other seeds and slots that serve the same endpoints; the second one has others of them.
fn two_nodes(what: &str, service: &Service, endpoints: &[(u8, u8)]) -> Option<[Node; 2]> {
    let (mut one, mut other) = (Node::new(what)?, Node::new(what)?);
    other.becomes("node-2");
    seed(&other, 0x0123_4567_89ab_cdef);
    // Slots are taken in another order.
    let backwards: Vec<_> = endpoints.iter().rev().copied().collect();
    for count in 1..backwards.len() {
        serve(&mut other, service.clone(), &backwards[..count], Selector::Weights);
    }
    for node in [&mut one, &mut other] {
        serve(node, service.clone(), endpoints, Selector::Maglev);
    }
    Some([one, other])
}

/// Where a node sends packets that come from outside or from a pod, in turn.
fn destinations(node: &Node, hook: Hook, packets: impl Iterator<Item = Packet> + Send) -> Vec<IpAddr> {
    let program = node.datapath.program(&format!("weir_{hook}")).unwrap();
    let device = if hook == Hook::PodIn { "pod1" } else { "eth0" };
    node.netns.enter(|| {
        let ifindex = nix::net::if_::if_nametoindex(device).unwrap();
        let context = if hook == Hook::Xdp { Context::Xdp { ifindex } } else { Context::Skb { ifindex } };
        let run = |packet: Packet| prog_run(program.as_fd(), &packet.to_bytes(), Some(context), 1).unwrap().packet;
        packets.map(|packet| decode(&run(packet)).unwrap().destination).collect()
    })
}

/// A flow's first packet and one in its middle.
fn packets(case: Case, client: SocketAddr, to: SocketAddr) -> [Packet; 2] {
    [case.first(client, to), case.later(client, to)]
}

const ENDPOINTS: [(u8, u8); 7] = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1)];

/// None on the first node, and some on the second one.
const ENDPOINTS_ELSEWHERE: [(u8, u8); 7] = [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3), (3, 4)];

#[test]
fn two_nodes_send_the_packets_of_the_same_flow_to_the_same_backend() {
    let Some([one, other]) = two_nodes("flows that come in at two nodes", &shared(), &ENDPOINTS) else { return };
    for case in cases(Protocol::Tcp) {
        let to = case.at(BALANCER_IP, PORT);
        let flows = || (0..FLOWS).map(|flow| packets(case, case.at(address::pod(1, 9), 20_000 + flow), to));
        // Each flow begins at the one or the other, and goes on at its peer.
        let at =
            |node: usize| flows().zip(0..).map(move |(packets, flow): (_, usize)| packets[(flow + node) % 2].clone());
        let here = destinations(&one, Hook::PodIn, at(0));
        let there = destinations(&other, Hook::PodIn, at(1));
        assert_eq!(here.iter().zip(&there).filter(|(here, there)| here == there).count(), usize::from(FLOWS));

        let mut of = BTreeMap::<_, u32>::new();
        here.iter().for_each(|backend| *of.entry(backend).or_default() += 1);
        assert_eq!(of.len(), ENDPOINTS.len(), "wherever they are: {of:?}");
        let even = u32::from(FLOWS) / 7;
        assert!(of.values().all(|count| count.abs_diff(even) < even / 5), "{of:?}");
    }
}

/// With the nodes of endpoints that answer clients themselves: elsewhere the node's address would be the client's, which is another one at each.
#[test]
fn two_nodes_behind_ecmp_send_what_routers_spread_over_them_to_the_same_backend() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let service = shared_by(protocol);
        let what = format!("{protocol:?} from outside, at two nodes");
        let Some([mut one, mut other]) = two_nodes(&what, &service, &ENDPOINTS_ELSEWHERE) else { return };
        one.direct(&[2, 3]);
        other.direct(&[3]);
        for case in cases(protocol) {
            let to = case.at(BALANCER_IP, PORT);
            for (hook, from) in [(Hook::NicIn, 20_000), (Hook::Xdp, 40_000)] {
                let flows = || (0..FLOWS).map(|flow| packets(case, case.at(CLIENT, from + flow), to));
                let at = |node: usize| {
                    flows().zip(0..).map(move |(packets, flow): (_, usize)| packets[(flow + node) % 2].clone())
                };
                let (here, there) = (destinations(&one, hook, at(0)), destinations(&other, hook, at(1)));
                let same = here.iter().zip(&there).filter(|(here, there)| here == there).count();
                assert_eq!(same, usize::from(FLOWS), "{case:?}, {hook}");
                let seen: BTreeSet<_> = here.into_iter().collect();
                let endpoints = ENDPOINTS_ELSEWHERE.map(|(node, pod)| case.ip(address::pod(node, pod)));
                assert_eq!(seen, endpoints.into_iter().collect(), "{case:?}, {hook}");
            }
        }
    }
}

#[test]
fn clients_outside_find_the_same_backend_at_two_nodes_and_other_policies_have_other_seeds() {
    let Some([mut one, mut other]) = two_nodes("clients of two nodes", &shared(), &ENDPOINTS) else { return };
    for selector in [Selector::Maglev, Selector::Weights] {
        for node in [&mut one, &mut other] {
            serve(node, shared(), &ENDPOINTS, selector);
        }
        for case in cases(Protocol::Tcp) {
            let to = case.at(BALANCER_IP, PORT);
            let port = if selector == Selector::Maglev { 30_000 } else { 31_000 };
            let firsts = || (0..500).map(|flow| case.first(case.at(CLIENT, port + flow), to));
            let [here, there] = [&one, &other].map(|node| destinations(node, Hook::NicIn, firsts()));
            assert_eq!(here == there, selector == Selector::Maglev, "{selector:?}");
        }
    }
}

#[test]
fn a_client_with_affinity_finds_the_same_backend_at_two_nodes() {
    let service = Service { affinity: Some(600), ..shared() };
    let Some([one, other]) = two_nodes("affinity at two nodes", &service, &ENDPOINTS) else { return };
    for case in cases(Protocol::Tcp) {
        let to = case.at(BALANCER_IP, PORT);
        // Another flow of each client at each node, and the clients in another order.
        let clients = (1..=99).map(|host| case.ip(address::pod(9, host)));
        let there = clients.clone().rev().map(|client| case.first(SocketAddr::new(client, 20_001), to));
        let here = clients.map(|client| case.first(SocketAddr::new(client, 20_000), to));
        let here = destinations(&one, Hook::PodIn, here);
        let mut there = destinations(&other, Hook::PodIn, there);
        there.reverse();
        assert_eq!(here, there);
        assert_eq!(here.into_iter().collect::<BTreeSet<_>>().len(), ENDPOINTS.len());
    }
}

#[test]
fn a_client_with_affinity_whose_syn_was_lost_goes_with_its_next_connection_where_other_nodes_send_it() {
    let Some(mut node) = Node::new("a lost SYN where nodes share flows") else { return };
    let service = Service { affinity: Some(600), ..web() };
    for (selector, host) in [(Selector::Maglev, 1), (Selector::Weights, 2)] {
        serve(&mut node, service.clone(), &[(1, 1), (1, 2), (1, 3)], selector);
        for case in cases(Protocol::Tcp) {
            let way = Way { client: address::pod(9, host), endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
            let lost = Talk::open(&node, case, way);
            lost.wait(Duration::from_secs(1));
            let elsewhere = Talk::open_with(&node, case, way, lost.first.clone());
            assert_ne!(elsewhere.seen.destination, lost.seen.destination);
            elsewhere.accept();
            elsewhere.client_goes_on();
            let next = Talk::open(&node, case, way).seen.destination;
            let expected = if selector == Selector::Maglev { &lost } else { &elsewhere };
            assert_eq!(next, expected.seen.destination, "{selector:?}");
        }
    }
}

/// Slots of the endpoints of a family and protocol by address.
fn slots(node: &Node, case: Case) -> BTreeMap<IpAddr, u32> {
    let backends = node.view.dump().unwrap().backends.into_iter();
    let of = |backend: &abi::Backend| {
        backend.flags & abi::BACKEND_USED != 0
            && backend.proto == case.protocol.number()
            && Family::of(backend.addr.ip()) == case.family
    };
    backends.filter(|(_, backend)| of(backend)).map(|(slot, backend)| (backend.addr.ip(), slot)).collect()
}

fn open_flows(node: &Node, slot: u32) -> u32 {
    let counters = node.view.backend_counters(slot).unwrap();
    counters.begun_or_failed().wrapping_sub(counters.base)
}

/// The agent counted so many open flows of a backend.
fn count(node: &mut Node, slot: u32, open: u32) {
    let base = node.view.backend_counters(slot).unwrap().begun_or_failed().wrapping_sub(open);
    node.datapath.store().apply(&[MapOp::PutBase { id: slot, base }]).unwrap();
}

#[test]
fn new_flows_go_past_a_backend_with_long_ones_until_all_have_as_many() {
    const LONG: u32 = 20;
    let Some(mut node) = Node::new("least-conn") else { return };
    let endpoints = [[(1, 1), (1, 2), (1, 3)], [(2, 1), (2, 2), (2, 3)]];
    for (endpoints, case) in endpoints.iter().flat_map(|tier| cases(Protocol::Tcp).map(move |case| (tier, case))) {
        serve(&mut node, web(), endpoints, Selector::LeastConn);
        let slots = slots(&node, case);
        let busy = slots[&case.ip(address::pod(endpoints[1].0, endpoints[1].1))];
        for slot in slots.values() {
            count(&mut node, *slot, 0);
        }
        count(&mut node, busy, LONG);
        let way = Way { client: CLIENT, endpoint: endpoints[0], to: NIC_IN, back: NIC_OUT };
        for _ in 0..2 * LONG {
            let before: BTreeMap<_, _> = slots.values().map(|slot| (*slot, open_flows(&node, *slot))).collect();
            let chosen = slots[&Talk::open(&node, case, way).seen.destination];
            let busiest = before.iter().all(|(slot, open)| *slot == chosen || *open < before[&chosen]);
            assert!(!busiest, "{chosen} of {before:?}");
        }
        let open: Vec<u32> = slots.values().map(|slot| open_flows(&node, *slot)).collect();
        assert_eq!(open.iter().sum::<u32>(), 3 * LONG);
        assert!(open.iter().all(|open| open.abs_diff(LONG) <= 5), "{open:?}");
    }
}

/// Who refuses has nothing open, nor has who is silent once its clients are elsewhere: they would get all that comes.
#[test]
fn an_endpoint_that_fails_gets_no_more_before_the_next_count_than_the_others_have_open() {
    const OPEN: u32 = 10;
    let Some(mut node) = Node::new("least-conn beside an endpoint that fails") else { return };
    for (endpoints, back) in [([(1, 1), (1, 2)], NIC_OUT), ([(2, 1), (2, 2)], NIC_IN)] {
        for (case, refuses) in cases(Protocol::Tcp).flat_map(|case| [(case, false), (case, true)]) {
            serve(&mut node, web(), &endpoints, Selector::LeastConn);
            let slots = slots(&node, case);
            let [failing, busy] = endpoints.map(|(node, pod)| case.ip(address::pod(node, pod)));
            count(&mut node, slots[&failing], 0);
            count(&mut node, slots[&busy], OPEN);
            let way = Way { client: CLIENT, endpoint: endpoints[0], to: NIC_IN, back };
            let mut failed = 0;
            for _ in 0..4 * OPEN {
                let mut talk = Talk::open(&node, case, way);
                if talk.seen.destination == failing {
                    failed += 1;
                    if refuses {
                        talk.refuse();
                        continue;
                    }
                    talk = again(&talk);
                }
                assert_eq!(talk.seen.destination, busy);
                talk.accept();
                talk.client_goes_on();
                talk.client_sends(&talk.client_tcp(TcpHeader { rst: true, ..TcpHeader::default() }));
            }
            assert!((OPEN..=2 * OPEN).contains(&failed), "{case:?} refuses {refuses}: {failed} of {}", 4 * OPEN);
        }
    }
}

/// Who answers nobody has nothing open, and would be taken again and again.
#[test]
fn a_silent_endpoint_is_left_for_the_busy_one_when_its_syn_comes_again() {
    let Some(mut node) = Node::new("least-conn and SYNs that come again") else { return };
    for endpoints in [[(1, 1), (1, 2)], [(2, 1), (2, 2)]] {
        for case in cases(Protocol::Tcp) {
            serve(&mut node, web(), &endpoints, Selector::LeastConn);
            let slots = slots(&node, case);
            let [silent, busy] = endpoints.map(|(node, pod)| case.ip(address::pod(node, pod)));
            count(&mut node, slots[&silent], 0);
            count(&mut node, slots[&busy], 20);
            let way = Way { client: CLIENT, endpoint: endpoints[0], to: NIC_IN, back: NIC_OUT };
            let first = Talk::open(&node, case, way);
            assert_eq!(first.seen.destination, silent);
            assert_eq!(again(&first).seen.destination, busy);
        }
    }
}

#[test]
fn datagrams_follow_what_the_agent_counted() {
    let Some(mut node) = Node::new("least-conn of UDP") else { return };
    serve(&mut node, web(), &[(1, 1), (1, 2)], Selector::LeastConn);
    for case in cases(Protocol::Udp) {
        let slots = slots(&node, case);
        let way = Way { client: CLIENT, endpoint: (1, 1), to: NIC_IN, back: NIC_OUT };
        for busy in [1, 2, 1] {
            for (address, slot) in &slots {
                count(&mut node, *slot, u32::from(*address == case.ip(address::pod(1, busy))));
            }
            for _ in 0..16 {
                let seen = Talk::open(&node, case, way).seen;
                assert_ne!(seen.destination, case.ip(address::pod(1, busy)));
            }
        }
    }
}

#[test]
fn the_spill_says_how_many_leave_the_node_whatever_is_open_there() {
    let Some(mut node) = Node::new("least-conn of two tiers") else { return };
    let endpoints = [(1, 1), (1, 2), (2, 1), (2, 2)];
    for (spill, reason) in [(0, abi::REASON_TO_LOCAL), (u16::MAX, abi::REASON_TO_REMOTE)] {
        node.serve_changed(web(), &endpoints, &[], |plan| {
            plan.selector = Selector::LeastConn;
            plan.tiers.iter_mut().for_each(|tier| tier.spill = spill);
        });
        for case in cases(Protocol::Tcp) {
            let slots = slots(&node, case);
            for (address, slot) in &slots {
                let local = endpoints[..2].iter().any(|(node, pod)| case.ip(address::pod(*node, *pod)) == *address);
                count(&mut node, *slot, if local == (spill == 0) { 100 } else { 0 });
            }
            for _ in 0..16 {
                let first = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
                assert_eq!(node.send(Hook::NicIn, Device::Eth0, &first).reason, reason);
            }
        }
    }
}
