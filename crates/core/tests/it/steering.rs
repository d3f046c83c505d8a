//! The loop's pure part: which endpoints a controller is asked about, with what, and what peers are told.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_abi as abi;
use weir_core::cluster::Event;
use weir_core::load::Inbound;
use weir_core::model::TrafficPolicy;
use weir_core::policies::Kind;
use weir_core::steering::{FlowRates, Steering, Write};

use crate::build::{endpoint, name, slice};
use crate::policies_build::TICK;
use crate::steering_world::{World, run, run_tick, scene, slots, steering, targets, targets_held, web_id};

#[test]
fn nothing_is_decided_of_a_service_that_nobody_uses() {
    let world = World::new(0.95);
    let mut steering = steering(&scene(|_| {}), Kind::Waterfill, &world);
    assert!((0..100).all(|_| steering.tick(TICK, &world).is_empty()));
    assert_eq!(steering.states().map(|state| state.sets.len()).sum::<usize>(), 0);
}

#[test]
fn a_policy_that_does_not_begin_like_the_plan_decides_at_once() {
    let world = World::new(0.1);
    let writes = steering(&scene(|_| {}), Kind::Random, &world).tick(TICK, &world);
    assert_eq!(slots(&writes[0], abi::CLASS_INTERNAL), (vec![11], vec![12, 13]));
    assert_eq!((writes[0].slot, writes[0].revision), (7, 1));
}

#[test]
fn an_overloaded_node_spills_to_the_nearest_and_says_so() {
    let mut world = World::new(0.95);
    world.rates = FlowRates { local: 40.0, remote: 0.0 };
    let mut steering = steering(&scene(|_| {}), Kind::Waterfill, &world);
    let writes = run(&mut steering, &world, 3);
    assert_eq!(slots(writes.last().unwrap(), abi::CLASS_INTERNAL), (vec![11], vec![12]));
    assert_eq!(*steering.spilled(), BTreeMap::new(), "no flow went there yet");
    let state = steering.states().next().unwrap();
    assert!(state.sets[0].spill > 0.05, "{state:?}");
    assert_eq!(state.sets[0].classes, 0b111, "all classes may use the same");
}

#[test]
fn what_leaves_is_a_spill_of_who_has_endpoints_here_and_stays_while_there_is_room() {
    let mut world = World::new(0.95);
    world.rates = FlowRates { local: 24.0, remote: 16.0 };
    let flows = |steering: &Steering| steering.spills().map(|spill| (spill.offered, spill.spilled)).collect::<Vec<_>>();
    let mut waterfill = steering(&scene(|_| {}), Kind::Waterfill, &world);
    drop(run(&mut waterfill, &world, 3));
    assert_eq!(flows(&waterfill), [(40.0, 16.0)]);
    let mut random = steering(&scene(|_| {}), Kind::Random, &world);
    drop(run(&mut random, &world, 3));
    assert_eq!(flows(&random), [], "it sends flows away by policy");
}

#[test]
fn a_step_of_the_load_is_followed_after_two_ticks_though_the_cpu_does_not_show_it_yet() {
    let mut world = World { cores: Some(0.6), ..World::new(0.3) };
    world.rates = FlowRates { local: 40.0, remote: 0.0 };
    let mut steering = steering(&scene(|_| {}), Kind::Waterfill, &world);
    run(&mut steering, &world, 30);
    world.rates.local = 200.0;
    let ticks = [0, 1].map(|_| run_tick(&mut steering, &world));
    assert!(ticks[0].is_empty(), "{ticks:?}");
    assert_eq!(slots(&ticks[1][0], abi::CLASS_INTERNAL).0, [11], "it keeps a part");
    assert!(steering.states().next().unwrap().sets[0].spill > 0.2);
}

/// Somebody forges first packets of 40,000 connections a second, half of them to the backend at slot 12.
fn forge(world: &World) {
    world.selected.borrow_mut().begun += 10_000;
    world.counts.borrow_mut().entry(12).or_default().flows += 5000;
}

#[test]
fn flows_that_never_go_on_are_no_load() {
    let mut world = World { cores: Some(0.6), ..World::new(0.3) };
    world.rates = FlowRates { local: 40.0, remote: 0.0 };
    let mut steering = steering(&scene(|_| {}), Kind::Waterfill, &world);
    run(&mut steering, &world, 30);
    for _ in 0..30 {
        forge(&world);
        assert_eq!(run_tick(&mut steering, &world), []);
        let state = steering.states().next().unwrap();
        assert_eq!((state.rates, state.sets[0].spill), (world.rates, 0.0));
        assert_eq!(*steering.spilled(), BTreeMap::new(), "peers are told of none");
    }
}

#[test]
fn a_failure_is_seen_at_once_where_no_flow_goes_on() {
    let world = World::new(0.1);
    let mut steering = steering(&scene(|_| {}), Kind::Random, &world);
    drop(steering.tick(TICK, &world));
    for _ in 0..200 {
        forge(&world);
        assert_eq!(steering.tick(TICK, &world), []);
    }
    world.flows(12, 3, 3);
    forge(&world);
    let writes = steering.tick(TICK, &world);
    assert_eq!(slots(&writes[0], 0), (vec![11], vec![13]));
}

#[test]
fn what_a_local_policy_forbids_is_never_asked_about() {
    let mut world = World::new(0.95);
    world.rates = FlowRates { local: 40.0, remote: 0.0 };
    let cluster = scene(|web| web.internal_policy = TrafficPolicy::Local);
    let mut steering = steering(&cluster, Kind::Waterfill, &world);
    let writes = run(&mut steering, &world, 10);
    assert!(writes.iter().all(|write| write.shares[abi::CLASS_INTERNAL].is_none()), "one endpoint: nothing to divide");
    assert!(writes.iter().any(|write| write.shares[abi::CLASS_EXTERNAL].is_some()));
}

#[test]
fn endpoints_of_a_node_that_fell_silent_get_nothing_as_long_as_it_is() {
    let mut world = World::new(0.1);
    let mut steering = steering(&scene(|_| {}), Kind::Random, &world);
    drop(run(&mut steering, &world, 1));
    world.silent.push("far".into());
    world.alarmed.set(true);
    let writes = run(&mut steering, &world, 1);
    assert_eq!(slots(writes.last().unwrap(), 0), (vec![11], vec![12]));
    assert_eq!(steering.ejected(), 1);
    let out: Vec<_> = steering.out(&world).map(|out| (&**out.node, out.silent)).collect();
    assert_eq!(out, [("far", true)]);
    assert!(run(&mut steering, &world, 60).is_empty(), "nobody tries a silent node");
    world.silent.clear();
    let writes = run(&mut steering, &world, 30);
    assert_eq!(slots(writes.last().unwrap(), 0), (vec![11], vec![12, 13]));
}

#[test]
fn an_endpoint_that_fails_is_out() {
    let mut world = World::new(0.1);
    world.rates = FlowRates { local: 4.0, remote: 12.0 };
    let mut steering = steering(&scene(|_| {}), Kind::Random, &world);
    drop(steering.tick(TICK, &world));
    world.flows(12, 3, 3);
    world.selects();
    let writes = steering.tick(TICK, &world);
    assert_eq!(slots(&writes[0], 0), (vec![11], vec![13]));
    let out: Vec<_> = steering.out(&world).map(|out| (out.address.to_string(), out.silent)).collect();
    assert_eq!(out, [("10.0.0.2:8080".to_owned(), false)]);
}

#[test]
fn an_ejection_counts_once_whatever_plans_come_while_it_lasts() {
    let mut world = World::new(0.1);
    world.rates = FlowRates { local: 4.0, remote: 12.0 };
    let scene = scene(|_| {});
    let mut steering = steering(&scene, Kind::Random, &world);
    drop(run_tick(&mut steering, &world));
    for revision in 2..6 {
        world.flows(12, 3, 3);
        drop(run_tick(&mut steering, &world));
        steering.put(&name("web"), targets(&scene, Kind::Random, revision), &world);
        assert_eq!((steering.ejections(), steering.ejected()), (1, 1), "plan {revision}");
    }
    drop(run(&mut steering, &world, 60));
    assert_eq!((steering.ejections(), steering.ejected()), (1, 0), "it is back");
    world.flows(12, 3, 3);
    drop(run_tick(&mut steering, &world));
    assert_eq!((steering.ejections(), steering.ejected()), (2, 1));
}

#[test]
fn a_spill_that_the_maps_hold_of_a_service_that_nobody_uses_does_not_last() {
    let world = World::new(0.1);
    let mut steering = Steering::new("here".into());
    steering.put(&name("web"), targets_held(&scene(|_| {}), Kind::Waterfill, 1, 0xe000), &world);
    let writes: Vec<_> = (0..40).flat_map(|_| steering.tick(TICK, &world)).collect();
    assert_eq!(writes.iter().map(|write| write.shares[0].as_ref().unwrap().spill).collect::<Vec<_>>(), [0]);
}

#[test]
fn a_new_plan_is_written_anew_and_a_gone_service_is_forgotten() {
    let world = World::new(0.1);
    let mut cluster = scene(|_| {});
    let mut steering = steering(&cluster, Kind::Random, &world);
    assert_eq!(steering.tick(TICK, &world).len(), 1);
    assert_eq!(steering.tick(TICK, &world), [], "nothing moved");
    steering.not_written(&targets(&cluster, Kind::Random, 1)[0].key);
    assert_eq!(steering.tick(TICK, &world).len(), 1, "what was not written");
    cluster.apply(Event::Slice(slice("web-1", "web", vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.4", "far")])));
    steering.put(&name("web"), targets(&cluster, Kind::Random, 2), &world);
    let writes = steering.tick(TICK, &world);
    assert_eq!((writes[0].revision, slots(&writes[0], 0)), (2, (vec![11], vec![12])));
    steering.put(&name("web"), Vec::new(), &world);
    assert!(steering.is_empty() && steering.tick(TICK, &world).is_empty());
}

#[test]
fn peers_are_told_what_the_node_takes_only_when_it_knows() {
    let mut world = World::new(0.5);
    let mut steering = steering(&scene(|_| {}), Kind::Waterfill, &world);
    assert_eq!(*steering.report(), BTreeMap::new());
    world.rates = FlowRates { local: 40.0, remote: 0.0 };
    drop(run(&mut steering, &world, 10));
    let load = steering.report()[&web_id()];
    assert!(load.spare > 1.0 && (load.flows_per_second - 40.0).abs() < 1e-9, "{load:?}");
}

#[test]
fn each_node_is_told_how_many_flows_go_to_it() {
    let mut world = World::new(0.5);
    world.rates = FlowRates { local: 40.0, remote: 36.0 };
    let mut steering = steering(&scene(|_| {}), Kind::Random, &world);
    for _ in 0..40 {
        world.flows(12, 7, 0);
        world.flows(13, 2, 0);
        drop(run_tick(&mut steering, &world));
    }
    let near = |rate: f64, told: f64| (rate - told).abs() < 0.1;
    let told = steering.spilled().clone();
    assert_eq!(told.keys().map(|node| &**node).collect::<Vec<_>>(), ["far", "near"]);
    assert!(near(28.0, told["near"][&web_id()]) && near(8.0, told["far"][&web_id()]), "{told:?}");
    (0..12).for_each(|_| drop(run_tick(&mut steering, &world)));
    let late = steering.spilled();
    assert!(late["near"][&web_id()] < 4.0, "{late:?}");
    (0..40).for_each(|_| drop(run_tick(&mut steering, &world)));
    assert_eq!(*steering.spilled(), BTreeMap::new());
}

#[test]
fn a_new_plan_at_each_tick_hides_no_flow() {
    let mut world = World::new(0.95);
    world.rates = FlowRates { local: 32.0, remote: 28.0 };
    let scene = scene(|_| {});
    let mut steering = steering(&scene, Kind::Waterfill, &world);
    for revision in 2..62 {
        world.selects();
        world.flows(12, 7, 0);
        steering.put(&name("web"), targets(&scene, Kind::Waterfill, revision), &world);
        drop(steering.tick(TICK, &world));
    }
    let told = steering.spilled();
    assert!((told["near"][&web_id()] - 28.0).abs() < 0.1, "{told:?}");
    let state = steering.states().next().unwrap();
    assert!((state.rates.offered() - 60.0).abs() < 1.0 && state.sets[0].spill > 0.05, "{state:?}");
}

#[test]
fn a_node_that_only_receives_tells_what_it_gets_and_what_it_still_takes() {
    let mut world = World::new(0.4);
    let mut steering = steering(&scene(|_| {}), Kind::Waterfill, &world);
    drop(run(&mut steering, &world, 10));
    assert_eq!(*steering.report(), BTreeMap::new(), "nobody knows what a flow costs here");
    world.inbound = Inbound { spillers: 2, flows_per_second: 40.0 };
    drop(run(&mut steering, &world, 30));
    let load = steering.report()[&web_id()];
    assert!((load.flows_per_second - 40.0).abs() < 1e-9, "{load:?}");
    // 40 flows a second take 40 %, and 80 % is the target: 80 in all, 40 for each of the two.
    assert!((load.spare - 40.0).abs() < 0.5, "{load:?}");
    assert!(steering.states().all(|state| state.sets.iter().all(|set| set.spill == 0.0)));
}

#[test]
fn what_comes_from_other_nodes_is_counted_once_for_both_families() {
    let mut world = World::new(0.4);
    world.inbound = Inbound { spillers: 1, flows_per_second: 40.0 };
    let cluster = scene(|web| web.cluster_ips.push("fd00:96::1".parse().unwrap()));
    let mut cluster = cluster;
    let endpoints = [("fd00::1", "here"), ("fd00::2", "near")].map(|(address, node)| endpoint(address, node)).to_vec();
    cluster.apply(Event::Slice(slice("web-2", "web", endpoints)));
    let mut steering = steering(&cluster, Kind::Waterfill, &world);
    drop(run(&mut steering, &world, 30));
    assert_eq!(steering.states().map(|state| state.inbound).collect::<Vec<_>>(), [40.0, 0.0]);
    let report = steering.report();
    assert!((report[&web_id()].flows_per_second - 40.0).abs() < 1e-9, "{report:?}");
}

#[test]
fn a_node_without_an_agent_is_judged_by_news_that_are_as_old_as_they_come() {
    let shares = |slow: bool, age: u64| {
        let mut world = World::new(0.95);
        world.rates = FlowRates { local: 40.0, remote: 0.0 };
        world.reports.remove("far");
        let near = world.reports.get_mut("near").unwrap();
        (near.services, near.age, near.rtt) = (Vec::new(), Duration::from_secs(age), None);
        world.slow = if slow { vec!["near".into()] } else { Vec::new() };
        let mut steering = steering(&scene(|_| {}), Kind::Waterfill, &world);
        drop(run(&mut steering, &world, 10));
        let state = steering.states().next().unwrap();
        state.sets[0].endpoints.iter().map(|endpoint| endpoint.share).collect::<Vec<_>>()
    };
    let fresh = shares(true, 20);
    assert!(fresh[1] > 0.1 && fresh[2] == 0.0, "{fresh:?}");
    assert_eq!(shares(false, 20), [1.0, 0.0, 0.0], "an agent that tells nothing any more");
    assert_eq!(shares(true, 50), [1.0, 0.0, 0.0], "no more than it has");
    assert_eq!(shares(true, 61), [1.0, 0.0, 0.0], "too old");
}

#[test]
fn what_an_agent_before_spilled_goes_on_until_the_new_one_has_found_out_what_it_would() {
    let mut world = World::new(0.95);
    world.rates = FlowRates { local: 30.0, remote: 10.0 };
    let mut overloaded = Steering::new("here".into());
    overloaded.put(&name("web"), targets_held(&scene(|_| {}), Kind::Waterfill, 1, 0x1000), &world);
    let spill = |write: &Write| write.shares[0].as_ref().unwrap().spill;
    let writes = run(&mut overloaded, &world, 6);
    assert!(writes.iter().all(|write| spill(write) >= 0xff0), "{:?}", writes.iter().map(spill).collect::<Vec<_>>());
    assert!(!writes.is_empty());

    let mut idle = World::new(0.1);
    idle.rates = FlowRates { local: 4.0, remote: 0.0 };
    let mut steering = Steering::new("here".into());
    steering.put(&name("web"), targets_held(&scene(|_| {}), Kind::Waterfill, 1, 0x1000), &idle);
    assert_eq!(run(&mut steering, &idle, 5), []);
    assert_eq!(run(&mut steering, &idle, 2).iter().map(spill).collect::<Vec<_>>(), [0]);
}
