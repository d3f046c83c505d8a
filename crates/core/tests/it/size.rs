//! Big services, and that others do not notice them.

use std::net::Ipv4Addr;

use weir_abi as abi;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Endpoint, Protocol, Service, Slice};
use weir_core::ops::FrontendKey;

use crate::build::{cluster, config, endpoint, ip, service, service_port, slice};
use crate::maps::Maps;
use crate::tables::World;

fn small() -> (Service, Slice) {
    (service("small", &["10.96.0.1"]), slice("small-1", "small", vec![endpoint("10.9.0.1", "here")]))
}

fn endpoints(count: u32) -> Vec<Endpoint> {
    let address = |index| Ipv4Addr::from(0x0a00_0001 + index).to_string();
    (0..count).map(|index| endpoint(&address(index), if index % 2 == 0 { "near" } else { "far" })).collect()
}

/// The world with the small service, and with a big one beside it.
fn served(big: &Cluster) -> (World, Maps) {
    let mut world = World::new();
    let (service, slice) = small();
    world.serve(&cluster(vec![service], vec![slice]), &config(), "small");
    let before = world.maps.clone();
    world.serve(big, &config(), "big");
    (world, before)
}

fn assert_unaffected(world: &World, before: &Maps) {
    assert!(before.services.iter().all(|(slot, service)| world.maps.services[slot] == *service));
    assert!(before.backends.iter().all(|(slot, backend)| world.maps.backends[slot] == *backend));
    assert!(before.frontends.iter().all(|(key, frontend)| world.maps.frontends[key] == *frontend));
}

#[test]
fn a_thousand_endpoints_are_all_chosen_from_and_nobody_else_is_affected() {
    // As the EndpointSlice controller writes them: a hundred to a slice.
    let slices = endpoints(1000)
        .chunks(100)
        .enumerate()
        .map(|(index, part)| slice(&format!("s{index}"), "big", part.to_vec()))
        .collect();
    let mut big = cluster(vec![service("big", &["10.96.0.2"])], slices);
    let (mut world, before) = served(&big);
    let key = FrontendKey { address: ip("10.96.0.2"), port: 80, protocol: 6 };
    assert_eq!(world.maps.choices(&key, abi::CLASS_INTERNAL).len(), 1000);
    assert_unaffected(&world, &before);

    let slots = world.maps.used_backends();
    big.apply(Event::Slice(slice("s0", "big", endpoints(99))));
    world.serve(&big, &config(), "big");
    let moved = slots.iter().filter(|(slot, backend)| world.maps.backends[slot] != **backend).count();
    assert_eq!(moved, 1, "only the endpoint that left");
    assert_unaffected(&world, &before);
}

#[test]
fn duplicates_in_several_slices_are_one_endpoint_each() {
    let slices = (0..5).map(|index| slice(&format!("s{index}"), "big", endpoints(20))).collect();
    let (world, before) = served(&cluster(vec![service("big", &["10.96.0.2"])], slices));
    assert_eq!(world.maps.used_backends().len(), 21);
    assert_eq!(world.maps.services[&2].endpoints, 20);
    assert_unaffected(&world, &before);
}

#[test]
fn an_endpoint_that_moves_between_slices_keeps_its_flows() {
    let mut big = cluster(vec![service("big", &["10.96.0.2"])], vec![slice("s0", "big", endpoints(3))]);
    let (mut world, before) = served(&big);
    let slots = world.maps.used_backends();
    for event in [Event::Slice(slice("s1", "big", endpoints(3))), Event::Slice(slice("s0", "big", vec![]))] {
        big.apply(event);
        assert_eq!(world.serve(&big, &config(), "big"), []);
    }
    assert_eq!(world.maps.used_backends(), slots);
    assert_unaffected(&world, &before);
}

#[test]
fn four_hundred_ports_are_served_each_on_its_own_and_nobody_else_is_affected() {
    let port = |index: u16| service_port(&format!("p{index}"), Protocol::Tcp, 1000 + index);
    let mut big = service("big", &["10.96.0.2"]);
    big.ports = (0..400).map(port).collect();
    big.ports.iter_mut().zip(30_000..).for_each(|(port, number)| port.node_port = Some(number));
    let (mut world, before) = served(&cluster(vec![big.clone()], vec![]));
    assert_eq!(world.maps.frontends.len() - before.frontends.len(), 801, "and one for the ports that are not used");
    assert_unaffected(&world, &before);

    let kept = world.maps.clone();
    big.ports.remove(200);
    let ops = world.serve(&cluster(vec![big], vec![]), &config(), "big");
    assert_eq!(ops.len(), 4, "two frontends, a name and a slot: {ops:#?}");
    let gone: Vec<_> = kept.frontends.keys().filter(|key| !world.maps.frontends.contains_key(key)).collect();
    assert_eq!(gone.iter().map(|key| key.port).collect::<Vec<_>>(), [1200, 30_200]);
    assert_unaffected(&world, &before);
}
