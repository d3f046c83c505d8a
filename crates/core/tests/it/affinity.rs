//! Session affinity: how long it lasts, and among which endpoints it looks.

use std::time::Duration;

use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_core::cluster::Cluster;
use weir_core::model::{Endpoint, TrafficPolicy};
use weir_core::ops::{FrontendKey, MapOp};
use weir_core::plan::{PlanConfig, TierPlan, plan};

use crate::build::{cluster, config, draining, endpoint, ip, name, service, slice};
use crate::tables::{World, kinds, web};

fn sticky(seconds: Option<u32>, endpoints: Vec<Endpoint>) -> Cluster {
    let mut web = service("web", &["10.96.0.1"]);
    web.affinity = seconds;
    cluster(vec![web], vec![slice("web-1", "web", endpoints)])
}

fn ticks(seconds: Option<u32>, config: &PlanConfig) -> u32 {
    plan(&sticky(seconds, vec![]), config, &name("web"))[0].affinity
}

fn classes(world: &World, address: &str) -> Vec<usize> {
    let flags = world.maps.backends[&world.slot_of(address)].flags;
    (0..abi::CLASS_COUNT).filter(|class| flags & abi::BACKEND_CLASS << class != 0).collect()
}

#[test]
fn its_time_is_counted_in_ticks_of_the_kernel_s_clock() {
    // A tick of 256 jiffies of 4 ms is 1.024 s.
    assert_eq!(ticks(Some(10_800), &config()), 10_547, "rounded up");
    assert_eq!(ticks(Some(86_400), &config()), 84_375);
    assert_eq!(ticks(None, &config()), 0);
}

#[test]
fn an_affinity_shorter_than_a_tick_lasts_one() {
    assert_eq!(ticks(Some(1), &config()), 1);
    let slow = PlanConfig { clock: TickClock::new(Duration::from_millis(10)), ..config() };
    assert_eq!(ticks(Some(1), &slow), 1);
}

#[test]
fn all_addresses_of_a_port_share_it() {
    let mut web = service("web", &["10.96.0.1"]);
    web.affinity = Some(100);
    web.load_balancer_ips = vec![ip("203.0.113.1")];
    web.external_ips = vec![ip("203.0.113.9")];
    web.ports[0].node_port = Some(30080);
    let mut world = World::new();
    world.serve(&cluster(vec![web], vec![]), &config(), "web");
    assert_eq!(world.maps.frontends.len(), 7);
    assert!(world.maps.frontends.values().all(|frontend| frontend.service == 1));
    assert_eq!(world.maps.services[&1].affinity, 98);
}

#[test]
fn switching_it_on_a_live_service_takes_effect_and_moves_nothing() {
    let endpoints = || vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")];
    let mut world = World::new();
    world.serve(&sticky(None, endpoints()), &config(), "web");
    let before = world.maps.clone();
    for (seconds, expected) in [(Some(100), 98), (Some(200), 196), (None, 0)] {
        let ops = world.serve(&sticky(seconds, endpoints()), &config(), "web");
        let service = abi::Service { affinity: expected, ..before.services[&1] };
        assert_eq!(ops, [MapOp::PutService { id: 1, service }]);
    }
    assert_eq!(world.maps, before);
}

#[test]
fn a_backend_is_of_the_classes_whose_policy_may_use_it() {
    let mut web = service("web", &["10.96.0.1"]);
    web.external_policy = TrafficPolicy::Local;
    let endpoints = vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far"), draining("10.0.0.3", "here")];
    let mut world = World::new();
    world.serve(&cluster(vec![web], vec![slice("web-1", "web", endpoints)]), &config(), "web");
    assert_eq!(classes(&world, "10.0.0.1"), [abi::CLASS_INTERNAL, abi::CLASS_EXTERNAL, abi::CLASS_SHORT_CIRCUIT]);
    assert_eq!(classes(&world, "10.0.0.2"), [abi::CLASS_INTERNAL, abi::CLASS_SHORT_CIRCUIT]);
    assert_eq!(classes(&world, "10.0.0.3"), [], "no new flow of a client may go to it");
}

#[test]
fn an_endpoint_that_begins_to_drain_loses_its_clients_but_not_its_flows() {
    let mut world = World::new();
    let stays = endpoint("10.0.0.1", "far");
    world.serve(&sticky(Some(100), vec![stays.clone(), endpoint("10.0.0.2", "far")]), &config(), "web");
    let slot = world.slot_of("10.0.0.2");
    let before = world.maps.backends[&slot];
    let ops = world.serve(&sticky(Some(100), vec![stays, draining("10.0.0.2", "far")]), &config(), "web");
    let drained = abi::Backend { flags: abi::BACKEND_USED, ..before };
    assert_eq!(kinds(&ops), ["put service", "put backend"], "as long as a tier leads there its clients must find it");
    assert_eq!(world.maps.backends[&slot], drained, "the same slot and generation");
}

#[test]
fn an_endpoint_that_gains_a_class_has_it_before_a_tier_leads_there() {
    let mut world = World::new();
    let list = |second: Endpoint| vec![endpoint("10.0.0.1", "far"), second];
    world.serve(&sticky(None, list(draining("10.0.0.2", "far"))), &config(), "web");
    let before = world.maps.backends[&world.slot_of("10.0.0.2")];
    let ops = world.serve(&sticky(None, list(endpoint("10.0.0.2", "far"))), &config(), "web");
    assert_eq!(kinds(&ops), ["put backend", "put line", "put service"]);
    assert_eq!(world.maps.backends[&world.slot_of("10.0.0.2")].generation, before.generation);
}

#[test]
fn an_endpoint_that_gains_one_class_and_loses_another_has_both_in_between() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1"]);
    let (some, none) = (plan.tiers[0].clone(), TierPlan::default());
    plan.tiers = [some.clone(), none.clone(), none.clone()];
    world.replace("a", std::slice::from_ref(&plan));
    plan.tiers = [none.clone(), some, none];
    let ops = world.replace("a", &[plan]);
    assert_eq!(kinds(&ops), ["put backend", "put service", "put backend"]);
    assert_eq!(classes(&world, "10.0.0.1"), [abi::CLASS_EXTERNAL]);
}

#[test]
fn a_new_owner_of_a_slot_inherits_no_class() {
    let mut world = World::new();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
    world.replace("a", &[]);
    world.release_twice();
    let mut plan = web("b", "10.96.0.2", &["10.0.0.9"]);
    plan.tiers[abi::CLASS_EXTERNAL] = TierPlan::default();
    world.replace("b", &[plan]);
    assert_eq!(world.slot_of("10.0.0.9"), 1);
    assert_eq!(classes(&world, "10.0.0.9"), [abi::CLASS_INTERNAL, abi::CLASS_SHORT_CIRCUIT]);
}

#[test]
fn a_weight_of_zero_keeps_the_clients_that_are_there() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"]);
    world.replace("a", std::slice::from_ref(&plan));
    plan.tiers.iter_mut().for_each(|tier| tier.remote[1].1 = 0);
    world.replace("a", &[plan]);
    let key = FrontendKey { address: ip("10.96.0.1"), port: 80, protocol: 6 };
    assert_eq!(world.maps.choices(&key, 0), [ip("10.0.0.1")].into());
    assert_eq!(classes(&world, "10.0.0.2"), [0, 1, 2]);
}

#[test]
fn a_restart_with_the_same_affinity_writes_nothing() {
    let mut world = World::new();
    let cluster = sticky(Some(100), vec![endpoint("10.0.0.1", "far"), draining("10.0.0.2", "far")]);
    world.serve(&cluster, &config(), "web");
    world.restart();
    assert_eq!(world.serve(&cluster, &config(), "web"), []);
}
