//! Flows of UDP: they never end by themselves, so they are freed from endpoints that cannot answer.

use weir_abi as abi;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Endpoint, Protocol, Proxy, Service, Slice, TrafficPolicy};
use weir_core::ops::{FrontendKey, MapOp};
use weir_core::plan::plan;
use weir_core::sockets::{is_stranded, is_untranslated, may_strand};

use crate::build::{cluster, config, draining, endpoint, failing, hints, ip, name, service, service_port, slice};
use crate::tables::{World, kinds};

fn dns(edit: impl FnOnce(&mut Service)) -> Service {
    let mut dns = service("dns", &["10.96.0.10"]);
    dns.ports = vec![service_port("http", Protocol::Udp, 53)];
    edit(&mut dns);
    dns
}

fn of_dns(endpoints: Vec<Endpoint>) -> Slice {
    let mut slice = slice("dns-1", "dns", endpoints);
    slice.ports[0].protocol = Protocol::Udp;
    slice
}

fn up() -> (Cluster, World) {
    let endpoints = vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")];
    let cluster = cluster(vec![dns(|_| {})], vec![of_dns(endpoints)]);
    let mut world = World::new();
    world.serve(&cluster, &config(), "dns");
    (cluster, world)
}

/// A flow remembers slot and generation; it goes on as long as both say the same.
fn flow_to(world: &World, address: &str) -> (u32, u32) {
    let slot = world.slot_of(address);
    (slot, world.maps.backends[&slot].generation)
}

fn goes_on(world: &World, (slot, generation): (u32, u32)) -> bool {
    let backend = world.maps.backends[&slot];
    backend.flags & abi::BACKEND_USED != 0 && backend.generation == generation
}

#[test]
fn an_endpoint_that_is_no_longer_serving_loses_its_flows_and_the_others_keep_theirs() {
    let (mut cluster, mut world) = up();
    let flows = ["10.0.0.1", "10.0.0.2"].map(|address| flow_to(&world, address));
    cluster.apply(Event::Slice(of_dns(vec![failing("10.0.0.1", "here"), endpoint("10.0.0.2", "far")])));
    world.serve(&cluster, &config(), "dns");
    assert_eq!(flows.map(|flow| goes_on(&world, flow)), [false, true]);
}

#[test]
fn an_endpoint_that_terminates_but_serves_keeps_its_flows() {
    let (mut cluster, mut world) = up();
    let flow = flow_to(&world, "10.0.0.1");
    cluster.apply(Event::Slice(of_dns(vec![draining("10.0.0.1", "here"), endpoint("10.0.0.2", "far")])));
    world.serve(&cluster, &config(), "dns");
    assert!(goes_on(&world, flow));
}

#[test]
fn changes_of_the_policies_or_of_hints_move_no_flows() {
    let (mut cluster, mut world) = up();
    let flow = flow_to(&world, "10.0.0.2");
    let hinted = |address, node: &str| Endpoint { node_hints: hints(&[node]), ..endpoint(address, node) };
    let changes = [
        Event::Service(dns(|dns| dns.internal_policy = TrafficPolicy::Local)),
        Event::Service(dns(|dns| dns.external_policy = TrafficPolicy::Local)),
        Event::Service(dns(|dns| dns.affinity = Some(10))),
        Event::Slice(of_dns(vec![hinted("10.0.0.1", "here"), hinted("10.0.0.2", "far")])),
    ];
    for change in changes {
        cluster.apply(change.clone());
        world.serve(&cluster, &config(), "dns");
        assert!(goes_on(&world, flow), "after {change:?}");
    }
}

#[test]
fn a_service_scaled_to_zero_frees_its_flows_and_its_next_endpoint_gets_none_of_them() {
    let (mut cluster, mut world) = up();
    let flow = flow_to(&world, "10.0.0.1");
    cluster.apply(Event::Slice(of_dns(vec![])));
    world.serve(&cluster, &config(), "dns");
    assert!(!goes_on(&world, flow));
    world.release_twice();
    cluster.apply(Event::Slice(of_dns(vec![endpoint("10.0.0.1", "here")])));
    world.serve(&cluster, &config(), "dns");
    assert!(!goes_on(&world, flow), "the same address may be another pod's by now");
}

#[test]
fn a_deleted_service_frees_its_flows() {
    let (mut cluster, mut world) = up();
    let flow = flow_to(&world, "10.0.0.1");
    cluster.apply(Event::ServiceGone(name("dns")));
    world.serve(&cluster, &config(), "dns");
    assert!(!goes_on(&world, flow));
}

#[test]
fn a_service_deleted_while_the_agent_was_away_frees_its_flows() {
    let (_, mut world) = up();
    let flow = flow_to(&world, "10.0.0.1");
    world.restart();
    assert!(goes_on(&world, flow), "before the cluster is known nothing is gone");
    world.prune(&[]);
    assert!(!goes_on(&world, flow));
}

#[test]
fn endpoints_that_changed_while_the_agent_was_away_free_their_flows_and_the_others_keep_theirs() {
    let (mut cluster, mut world) = up();
    let flows = ["10.0.0.1", "10.0.0.2"].map(|address| flow_to(&world, address));
    cluster.apply(Event::Slice(of_dns(vec![endpoint("10.0.0.2", "far"), endpoint("10.0.0.3", "here")])));
    world.restart();
    world.serve(&cluster, &config(), "dns");
    assert_eq!(flows.map(|flow| goes_on(&world, flow)), [false, true]);
}

#[test]
fn the_first_endpoint_of_an_empty_service_gets_new_flows_at_once() {
    let mut cluster = cluster(vec![dns(|_| {})], vec![of_dns(vec![failing("10.0.0.1", "here")])]);
    let mut world = World::new();
    world.serve(&cluster, &config(), "dns");
    assert_eq!(world.maps.services[&1].endpoints, 0);
    cluster.apply(Event::Slice(of_dns(vec![endpoint("10.0.0.1", "here")])));
    world.serve(&cluster, &config(), "dns");
    assert_eq!(world.maps.services[&1].endpoints, 1);
    assert_ne!(world.maps.services[&1].tiers[abi::CLASS_INTERNAL].local, 0);
}

/// A service of one port at a cluster IP and, if it is so, at an external IP that others name, too.
fn shared(service_name: &str, protocol: Protocol, external: bool) -> Service {
    let mut shared = service(service_name, &[if service_name == "dns" { "10.96.0.10" } else { "10.96.0.11" }]);
    shared.ports = vec![service_port("http", protocol, 53)];
    shared.external_ips = if external { vec![ip("203.0.113.9")] } else { vec![] };
    shared
}

/// The operations of a service that lets go of the external IP, with or without another one that waits for it.
fn let_go(protocol: Protocol, waiting: bool) -> (World, Vec<MapOp>) {
    let mut cluster = cluster(vec![shared("dns", protocol, true), shared("other", protocol, true)], vec![]);
    let mut world = World::new();
    world.serve(&cluster, &config(), "dns");
    if waiting {
        world.serve(&cluster, &config(), "other");
    }
    cluster.apply(Event::Service(shared("dns", protocol, false)));
    let ops = world.serve(&cluster, &config(), "dns");
    (world, ops)
}

fn external(protocol: Protocol) -> FrontendKey {
    FrontendKey { address: ip("203.0.113.9"), port: 53, protocol: protocol.number() }
}

#[test]
fn a_frontend_that_goes_while_its_service_lives_on_loses_its_flows_afterwards() {
    let (_, ops) = let_go(Protocol::Udp, false);
    let key = external(Protocol::Udp);
    let address = FrontendKey { port: 0, protocol: 0, ..key };
    let gone = [address, key].map(|key| MapOp::DeleteFrontend { key });
    assert_eq!(ops, [&gone[..], &[MapOp::ForgetFlows { key }]].concat());
}

#[test]
fn a_frontend_that_a_waiting_service_takes_over_loses_the_flows_of_the_former_one() {
    let (world, ops) = let_go(Protocol::Udp, true);
    assert_eq!(kinds(&ops), ["put frontend", "put frontend", "forget flows"], "the port, and the address as such");
    assert_eq!(ops[2], MapOp::ForgetFlows { key: external(Protocol::Udp) });
    assert_eq!(world.maps.meaning().frontends[&external(Protocol::Udp)].0.1, "other");
}

#[test]
fn a_frontend_that_is_taken_away_as_another_s_cluster_ip_loses_the_flows_of_the_former_one() {
    let mut world = World::new();
    let mut evil = shared("evil", Protocol::Udp, false);
    evil.external_ips = vec![ip("10.96.0.10")];
    let cluster = cluster(vec![evil, dns(|_| {})], vec![]);
    world.serve(&cluster, &config(), "evil");
    let ops = world.serve(&cluster, &config(), "dns");
    let key = FrontendKey { address: ip("10.96.0.10"), ..external(Protocol::Udp) };
    assert_eq!(ops.last(), Some(&MapOp::ForgetFlows { key }));
}

#[test]
fn connections_stay_with_their_endpoint_when_the_frontend_goes_or_moves() {
    for protocol in [Protocol::Tcp, Protocol::Sctp] {
        assert_eq!(kinds(&let_go(protocol, false).1), ["delete frontend"; 2]);
        assert_eq!(kinds(&let_go(protocol, true).1), ["put frontend"; 2]);
    }
}

#[test]
fn a_frontend_that_moves_to_another_port_of_its_service_loses_its_flows_and_one_that_changes_its_kind_does_not() {
    let (cluster, mut world) = up();
    let mut plans = plan(&cluster, &config(), &name("dns"));
    plans[0].frontends[0].1 = abi::KIND_EXTERNAL_IP;
    assert_eq!(kinds(&world.replace("dns", &plans)), ["put frontend"]);
    let mut other = plans[0].clone();
    other.key.port_name = "other".into();
    other.frontends = std::mem::take(&mut plans[0].frontends);
    plans.push(other);
    assert!(kinds(&world.replace("dns", &plans)).contains(&"forget flows"));
}

#[test]
fn a_service_that_goes_as_a_whole_needs_no_look_at_the_flows() {
    let (mut cluster, mut world) = up();
    cluster.apply(Event::ServiceGone(name("dns")));
    assert!(!kinds(&world.serve(&cluster, &config(), "dns")).contains(&"forget flows"));
}

#[test]
fn a_service_that_another_proxy_has_taken_over_loses_its_flows_here() {
    let (mut cluster, mut world) = up();
    cluster.apply(Event::Service(dns(|dns| dns.proxy = Proxy::Other)));
    let ops = world.serve(&cluster, &config(), "dns");
    let key = FrontendKey { address: ip("10.96.0.10"), ..external(Protocol::Udp) };
    assert!(ops.contains(&MapOp::ForgetFlows { key }));
}

#[test]
fn a_frontend_without_a_service_loses_its_flows_with_the_prune() {
    let (_, mut world) = up();
    let key = external(Protocol::Udp);
    world.maps.apply(&MapOp::PutFrontend { key, frontend: abi::Frontend { service: 99, kind: abi::KIND_CLUSTER_IP } });
    world.restart();
    let ops = world.tables.prune(|_| true);
    assert_eq!(ops, [MapOp::DeleteFrontend { key }, MapOp::ForgetFlows { key }]);
}

fn strands(ops: &[MapOp]) -> bool {
    ops.iter().any(may_strand)
}

#[test]
fn what_frees_flows_may_strand_sockets() {
    let gone = [
        Event::Slice(of_dns(vec![failing("10.0.0.1", "here"), endpoint("10.0.0.2", "far")])),
        Event::Slice(of_dns(vec![])),
        Event::ServiceGone(name("dns")),
        Event::Service(dns(|dns| dns.proxy = Proxy::Other)),
    ];
    for event in gone {
        let (mut cluster, mut world) = up();
        cluster.apply(event.clone());
        assert!(strands(&world.serve(&cluster, &config(), "dns")), "{event:?}");
    }
    let (_, mut world) = up();
    world.restart();
    assert!(strands(&world.tables.prune(|_| false)), "a service that went while the agent was away");
    assert!(strands(&let_go(Protocol::Udp, true).1), "a frontend that moved");
}

#[test]
fn a_socket_that_was_connected_to_a_cluster_ip_before_its_service_was_there_is_stranded_when_it_is() {
    let at = |kind| abi::Frontend { service: 1, kind };
    let puts = |protocol, kind| strands(&[MapOp::PutFrontend { key: external(protocol), frontend: at(kind) }]);
    assert!(puts(Protocol::Udp, abi::KIND_CLUSTER_IP) && is_untranslated(Some(&at(abi::KIND_CLUSTER_IP))));
    assert!(!puts(Protocol::Tcp, abi::KIND_CLUSTER_IP) && !is_untranslated(None));
    // Hosts may have these addresses, and other nodes serve them, too.
    for kind in [abi::KIND_NODE_PORT, abi::KIND_LOAD_BALANCER, abi::KIND_EXTERNAL_IP, abi::KIND_ADDRESS] {
        assert!(!puts(Protocol::Udp, kind) && !is_untranslated(Some(&at(kind))), "{kind}");
    }
}

#[test]
fn what_keeps_flows_strands_no_sockets() {
    let kept = [
        Event::Slice(of_dns(vec![draining("10.0.0.1", "here"), endpoint("10.0.0.2", "far")])),
        Event::Slice(of_dns(["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| endpoint(ip, "here")).to_vec())),
        Event::Service(dns(|dns| dns.internal_policy = TrafficPolicy::Local)),
    ];
    for event in kept {
        let (mut cluster, mut world) = up();
        cluster.apply(event.clone());
        assert!(!strands(&world.serve(&cluster, &config(), "dns")), "{event:?}");
    }
}

#[test]
fn connections_of_tcp_strand_no_sockets_of_udp() {
    let mut cluster = cluster(vec![service("web", &["10.96.0.20"])], vec![]);
    cluster.apply(Event::Slice(slice("web-1", "web", vec![endpoint("10.0.0.1", "here")])));
    let mut world = World::new();
    world.serve(&cluster, &config(), "web");
    cluster.apply(Event::ServiceGone(name("web")));
    let ops = world.serve(&cluster, &config(), "web");
    assert!(!ops.is_empty() && !strands(&ops), "{ops:?}");
}

#[test]
fn a_socket_is_stranded_when_its_endpoint_is_another_or_its_frontend_leads_elsewhere() {
    let (_, world) = up();
    let (slot, generation) = flow_to(&world, "10.0.0.1");
    let backend = world.maps.backends[&slot];
    let peer =
        abi::SocketPeer { addr: ip("10.96.0.10").into(), port: abi::Be16::new(53), pad: 0, backend: slot, generation };
    let leads_to = |service| abi::Frontend { service, kind: abi::KIND_CLUSTER_IP };
    let (own, other) = (leads_to(backend.service), leads_to(backend.service + 1));
    let next = abi::Backend { generation: generation + 1, ..backend };
    assert!(!is_stranded(&peer, Some(&backend), Some(&own)));
    assert!(is_stranded(&peer, Some(&next), Some(&own)), "the endpoint is gone");
    assert!(is_stranded(&peer, None, Some(&own)), "the slot is gone");
    assert!(is_stranded(&peer, Some(&backend), Some(&other)), "the frontend is another service's");
    assert!(is_stranded(&peer, Some(&backend), None), "the frontend is gone");
}
