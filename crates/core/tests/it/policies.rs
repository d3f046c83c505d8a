//! Traffic policies: which endpoints which traffic may use, from the snapshot to the maps.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_abi as abi;
use weir_core::model::{Endpoint, Service, TrafficPolicy};
use weir_core::ops::FrontendKey;

use crate::build::{cluster, config, draining, endpoint, failing, hints, ip, service, slice};
use crate::tables::World;

/// Where new flows of each traffic class may go.
fn choices(edit: impl FnOnce(&mut Service), endpoints: Vec<Endpoint>) -> [BTreeSet<IpAddr>; abi::CLASS_COUNT] {
    let mut web = service("web", &["10.96.0.1"]);
    edit(&mut web);
    let mut world = World::new();
    world.serve(&cluster(vec![web], vec![slice("s", "web", endpoints)]), &config(), "web");
    let key = FrontendKey { address: ip("10.96.0.1"), port: 80, protocol: 6 };
    [0, 1, 2].map(|class| world.maps.choices(&key, class))
}

fn set(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|text| ip(text)).collect()
}

const BOTH: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn here_and_far() -> Vec<Endpoint> {
    vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")]
}

#[test]
fn the_internal_policy_applies_to_the_cluster_ip_alone() {
    let [internal, external, short] = choices(|web| web.internal_policy = TrafficPolicy::Local, here_and_far());
    assert_eq!((internal, external, short), (set(&["10.0.0.1"]), set(&BOTH), set(&BOTH)));
}

#[test]
fn the_external_policy_applies_to_traffic_from_outside_alone() {
    let [internal, external, short] = choices(|web| web.external_policy = TrafficPolicy::Local, here_and_far());
    assert_eq!((internal, external), (set(&BOTH), set(&["10.0.0.1"])));
    assert_eq!(short, set(&BOTH), "pods and the node go up and out to the load balancer, as it were");
}

#[test]
fn with_both_policies_local_the_short_circuit_still_uses_the_cluster_set() {
    let local = |web: &mut Service| {
        web.internal_policy = TrafficPolicy::Local;
        web.external_policy = TrafficPolicy::Local;
    };
    let [internal, external, short] = choices(local, vec![endpoint("10.0.0.2", "far")]);
    assert_eq!((internal, external, short), (set(&[]), set(&[]), set(&["10.0.0.2"])));
}

#[test]
fn each_set_falls_back_to_its_own_terminating_endpoints() {
    let local = |web: &mut Service| web.external_policy = TrafficPolicy::Local;
    let [internal, external, short] = choices(local, vec![draining("10.0.0.1", "here"), endpoint("10.0.0.2", "far")]);
    assert_eq!((internal, external, short), (set(&["10.0.0.2"]), set(&["10.0.0.1"]), set(&["10.0.0.2"])));
    let all = vec![draining("10.0.0.1", "here"), draining("10.0.0.2", "far"), failing("10.0.0.3", "far")];
    let [internal, external, short] = choices(local, all);
    assert_eq!((internal, external, short), (set(&BOTH), set(&["10.0.0.1"]), set(&BOTH)));
}

#[test]
fn hints_narrow_the_policy_cluster_and_never_the_policy_local() {
    let hinted = |address, node, zone| Endpoint { zone_hints: hints(&[zone]), ..endpoint(address, node) };
    let list = vec![hinted("10.0.0.1", "here", "west"), hinted("10.0.0.2", "near", "east")];
    let [internal, external, short] = choices(|web| web.external_policy = TrafficPolicy::Local, list);
    assert_eq!((internal, external, short), (set(&["10.0.0.2"]), set(&["10.0.0.1"]), set(&["10.0.0.2"])));
}

#[test]
fn unready_endpoints_that_are_published_are_used_like_ready_ones() {
    let published = Endpoint { ready: true, serving: false, terminating: true, ..endpoint("10.0.0.1", "here") };
    for set_of_class in choices(|_| {}, vec![published, endpoint("10.0.0.2", "far")]) {
        assert_eq!(set_of_class, set(&BOTH));
    }
}
