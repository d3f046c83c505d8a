//! The API server's own service never drops to zero.

use std::net::IpAddr;

use weir_abi as abi;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Endpoint, ObjectName, Slice};
use weir_core::ops::MapOp;
use weir_core::plan::plan;

use crate::build::{config, draining, endpoint, failing, ip, service, slice};
use crate::tables::{World, key, kinds, web};

fn api_server() -> ObjectName {
    ObjectName::new("default", "kubernetes")
}

fn of_api_server(slice_name: &str, endpoints: Vec<Endpoint>) -> Slice {
    Slice {
        name: ObjectName::new("default", slice_name),
        service: api_server(),
        ..slice(slice_name, "kubernetes", endpoints)
    }
}

/// Two API servers in IPv4, one in IPv6.
fn up() -> Cluster {
    let mut cluster = Cluster::default();
    let mut kubernetes = service("kubernetes", &["10.96.0.1", "fd00:96::1"]);
    kubernetes.name = api_server();
    cluster.apply(Event::Service(kubernetes));
    cluster.apply(Event::Slices(vec![
        of_api_server("four", vec![endpoint("192.168.0.1", "here"), endpoint("192.168.0.2", "near")]),
        of_api_server("six", vec![endpoint("fd00::1", "here")]),
    ]));
    cluster
}

/// Where new flows may go.
fn usable(cluster: &Cluster) -> Vec<IpAddr> {
    let plans = plan(cluster, &config(), &api_server());
    let used = plans.iter().flat_map(|plan| {
        let tier = &plan.tiers[0];
        tier.local.iter().chain(&tier.remote).map(|(index, _)| plan.backends[*index].address)
    });
    used.collect()
}

fn all() -> [IpAddr; 3] {
    ["192.168.0.1", "192.168.0.2", "fd00::1"].map(ip)
}

#[test]
fn slices_that_are_gone_emptied_or_not_ready_leave_the_last_usable_endpoints() {
    let unready = vec![failing("192.168.0.1", "here"), failing("192.168.0.2", "near")];
    let mut portless = of_api_server("four", vec![endpoint("192.168.0.9", "far")]);
    portless.ports.clear();
    let six = of_api_server("six", vec![endpoint("fd00::1", "here")]);
    let losses = [
        Event::SliceGone(ObjectName::new("default", "four")),
        Event::Slice(of_api_server("four", vec![])),
        Event::Slice(of_api_server("four", unready)),
        Event::Slice(portless),
        Event::Slices(vec![six]),
        Event::Slices(vec![]),
    ];
    for loss in losses {
        let mut cluster = up();
        cluster.apply(loss.clone());
        assert_eq!(usable(&cluster), all(), "after {loss:?}");
        cluster.apply(loss);
        assert_eq!(usable(&cluster), all());
    }
}

#[test]
fn endpoints_that_leave_while_others_are_usable_do_leave() {
    let mut cluster = up();
    cluster.apply(Event::Slice(of_api_server("four", vec![endpoint("192.168.0.2", "near")])));
    assert_eq!(usable(&cluster), all()[1..]);
    cluster.apply(Event::Slice(of_api_server("four", vec![])));
    assert_eq!(usable(&cluster), all()[1..], "the last usable one, not one that left before");
}

#[test]
fn new_endpoints_replace_the_kept_ones_at_once_each_family_on_its_own() {
    let mut cluster = up();
    cluster.apply(Event::Slices(vec![]));
    cluster.apply(Event::Slice(of_api_server("new", vec![endpoint("192.168.0.3", "far")])));
    assert_eq!(usable(&cluster), [ip("192.168.0.3"), ip("fd00::1")]);
    cluster.apply(Event::Slice(of_api_server("new-six", vec![endpoint("fd00::3", "far")])));
    assert_eq!(usable(&cluster), [ip("192.168.0.3"), ip("fd00::3")]);
}

#[test]
fn endpoints_that_drain_but_serve_are_usable() {
    let mut cluster = up();
    cluster.apply(Event::Slice(of_api_server("four", vec![draining("192.168.0.2", "near")])));
    assert_eq!(usable(&cluster), all()[1..]);
}

/// What the maps send new flows to, of both families.
fn served(world: &World) -> Vec<IpAddr> {
    let of = |address| world.maps.choices(&key(address), abi::CLASS_INTERNAL);
    ["10.96.0.1", "fd00:96::1"].into_iter().flat_map(of).collect()
}

fn write(world: &mut World, cluster: &Cluster) -> Vec<MapOp> {
    let ops = world.tables.replace(&api_server(), &plan(cluster, &config(), &api_server()), 7).unwrap().ops;
    world.maps.apply_all(&ops);
    ops
}

/// The maps of `up`, and an agent that starts while the service has no endpoints, or none that are usable.
fn restarted(slices: Vec<Slice>) -> (Cluster, World) {
    let mut world = World::new();
    write(&mut world, &up());
    world.restart();
    let mut cluster = Cluster::default();
    cluster.apply(Event::Service(up().service(&api_server()).unwrap().clone()));
    cluster.apply(Event::Slices(slices));
    (cluster, world)
}

#[test]
fn an_agent_that_starts_while_there_are_none_keeps_the_endpoints_that_the_maps_hold() {
    let unready = of_api_server("four", vec![failing("192.168.0.1", "here")]);
    for slices in [vec![], vec![unready]] {
        let (cluster, mut world) = restarted(slices);
        assert_eq!(write(&mut world, &cluster), []);
        assert_eq!(world.tables.prune(|service| *service == api_server()), []);
        assert_eq!(served(&world), all());
        world.restart();
        assert_eq!(write(&mut world, &cluster), [], "however often it starts");
    }
}

#[test]
fn kept_endpoints_are_served_with_whatever_else_changes_of_the_service() {
    let (mut cluster, mut world) = restarted(vec![]);
    let mut kubernetes = up().service(&api_server()).unwrap().clone();
    kubernetes.external_ips = vec![ip("203.0.113.9")];
    cluster.apply(Event::Service(kubernetes));
    assert_eq!(kinds(&write(&mut world, &cluster)), ["put frontend"; 2], "the port, and the address as such");
    let external = world.maps.choices(&key("203.0.113.9"), abi::CLASS_EXTERNAL);
    assert_eq!(external, [ip("192.168.0.1"), ip("192.168.0.2")].into());
}

#[test]
fn the_first_usable_endpoint_replaces_the_kept_ones_of_its_family() {
    let (mut cluster, mut world) = restarted(vec![]);
    write(&mut world, &cluster);
    cluster.apply(Event::Slice(of_api_server("new", vec![endpoint("192.168.0.3", "far")])));
    write(&mut world, &cluster);
    assert_eq!(served(&world), [ip("192.168.0.3"), ip("fd00::1")]);
}

#[test]
fn the_kept_endpoints_go_with_the_service() {
    let (_, mut world) = restarted(vec![]);
    let ops = world.tables.prune(|_| false);
    world.maps.apply_all(&ops);
    assert!(world.maps.frontends.is_empty() && world.maps.used_backends().is_empty());
}

#[test]
fn what_neither_the_cluster_nor_the_maps_have_known_is_not_made_up() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Slices(vec![]));
    cluster.apply(Event::Slice(of_api_server("four", vec![failing("192.168.0.1", "here")])));
    assert_eq!(usable(&cluster), Vec::<IpAddr>::new());
    assert_eq!(cluster.slices(&api_server()).count(), 1);
    let kubernetes = up().service(&api_server()).unwrap().clone();
    cluster.apply(Event::Service(kubernetes));
    let mut world = World::new();
    write(&mut world, &cluster);
    assert_eq!(served(&world), Vec::<IpAddr>::new());
}

#[test]
fn another_service_that_is_empty_after_a_restart_is_empty() {
    let mut world = World::new();
    world.replace("kubernetes", &[web("kubernetes", "10.96.0.1", &["10.0.0.1"])]);
    world.restart();
    world.replace("kubernetes", &[web("kubernetes", "10.96.0.1", &[])]);
    assert_eq!(world.maps.choices(&key("10.96.0.1"), abi::CLASS_INTERNAL), [].into());
}

#[test]
fn without_its_service_nothing_is_planned() {
    let mut cluster = up();
    cluster.apply(Event::Slices(vec![]));
    cluster.apply(Event::ServiceGone(api_server()));
    assert_eq!(plan(&cluster, &config(), &api_server()), []);
}

#[test]
fn no_other_service_keeps_endpoints_that_are_gone() {
    for other in [ObjectName::new("default", "web"), ObjectName::new("shop", "kubernetes")] {
        let mut cluster = Cluster::default();
        let slice = Slice { service: other.clone(), ..of_api_server("s", vec![endpoint("10.0.0.1", "here")]) };
        cluster.apply(Event::Slices(vec![slice]));
        cluster.apply(Event::Slices(vec![]));
        assert_eq!(cluster.slices(&other).count(), 0);
    }
}
