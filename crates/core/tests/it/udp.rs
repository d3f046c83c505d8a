//! Flows of UDP: they never end by themselves, so they are freed from endpoints that cannot answer.

use weir_abi as abi;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Endpoint, Protocol, Service, Slice, TrafficPolicy};

use crate::build::{cluster, config, draining, endpoint, failing, hints, name, service, service_port, slice};
use crate::tables::World;

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
