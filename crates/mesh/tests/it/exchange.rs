//! Nodes that probe each other on a network with delays.

use std::time::Duration;

use weir_mesh::{Config, Refusal};

use crate::world::{NEW, World, busy, keys, millis, name, service};

fn world(count: usize) -> World {
    World::new(count, Config::default(), &keys(&[NEW]))
}

#[test]
fn an_exchange_measures_the_round_trip_and_carries_both_reports() {
    let mut world = world(2);
    world.delay = |_, _| millis(9);
    world.nodes[0].tells = Some((busy(0.25), vec![service(1), service(2)]));
    world.nodes[1].tells = Some((busy(0.75), vec![]));
    world.run(millis(2000));
    for (node, of) in [(0, 1), (1, 0)] {
        let report = world.report(node, of).expect("a report");
        assert_eq!(report.rtt, Some(millis(18)));
        assert!(report.age < millis(620), "{:?}", report.age);
        let (cpu, services) = if of == 0 { (0.25, vec![service(1), service(2)]) } else { (0.75, vec![]) };
        assert!((report.load.cpu.expect("told").value.get() - cpu).abs() < 1e-4);
        assert_eq!(report.services, services);
    }
}

/// An agent publishes every 250 ms and sends its probes up to 100 ms late: what is left of a second is 650 ms.
#[test]
fn near_nodes_that_look_late_know_load_and_delay_of_each_other_within_a_second() {
    let mut world = world(17);
    for node in &mut world.nodes {
        node.holds = millis(100);
        node.tells = Some((busy(0.5), vec![]));
    }
    world.run(millis(5000));
    for _ in 0..200 {
        world.run(millis(50));
        let ages = (1..17).map(|of| world.report(0, of).expect("a report").age);
        assert!(ages.max() < Some(millis(650)));
    }
    let replies = |world: &World| world.nodes[0].mesh.counters().replies_received;
    let before = replies(&world);
    world.run(millis(10_000));
    let each = (replies(&world) - before) as f64 / 160.0;
    // Each alone would have made two.
    assert!((1.0..1.5).contains(&each), "{each} measurements per second and peer");
}

#[test]
fn both_ends_of_an_exchange_learn_whether_the_other_one_unwraps_and_when_it_stops_to() {
    let mut world = world(2);
    world.nodes[0].mesh.set_unwraps(true);
    world.run(millis(2000));
    assert_eq!([world.peer(0, 1).unwraps, world.peer(1, 0).unwraps], [false, true]);
    world.nodes[0].mesh.set_unwraps(false);
    world.nodes[1].mesh.set_unwraps(true);
    world.run(millis(2000));
    assert_eq!([world.peer(0, 1).unwraps, world.peer(1, 0).unwraps], [true, false]);
}

#[test]
fn a_node_that_holds_its_probes_does_not_look_far() {
    let mut world = world(2);
    world.nodes[1].holds = millis(50);
    world.run(millis(5000));
    assert_eq!(world.peer(0, 1).held, millis(50));
    assert_eq!(world.peer(0, 1).rtt, Some(millis(1)));
    // Its own look at the reply is late too.
    assert_eq!(world.peer(1, 0).rtt, Some(millis(1)));
}

#[test]
fn the_nearest_sixteen_are_found_among_many() {
    let mut world = world(60);
    world.delay = |left, right| Duration::from_micros(100 + 300 * left.abs_diff(right) as u64);
    world.run(millis(10_000));
    let near = |node: usize| {
        let peers = world.nodes[node].mesh.peers(world.now(node)).into_iter().filter(|peer| peer.near);
        peers.map(|peer| peer.node.trim_start_matches("node-").parse::<usize>().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(near(30).len(), 16);
    assert!(near(30).iter().all(|of| of.abs_diff(30) <= 10), "{:?}", near(30));
    assert!(near(0).iter().all(|of| *of <= 20), "{:?}", near(0));
}

#[test]
fn a_node_that_vanishes_stops_being_fresh_and_comes_back() {
    let mut world = world(3);
    for node in &mut world.nodes {
        node.tells = Some((busy(0.5), vec![service(1)]));
    }
    world.run(millis(5000));
    world.cut = vec![2];
    world.run(millis(2000));
    assert!(world.report(0, 2).expect("an old report").age >= millis(1900));
    assert!(world.report(0, 1).expect("a report").age < millis(620));
    world.run(millis(2000));
    assert!(!world.peer(0, 2).near && world.peer(0, 2).unanswered >= 3);
    assert_eq!(world.peer(0, 2).rtt, None, "nobody knows how far it is");
    assert!(world.nodes[0].mesh.counters().probes_lost > 0);
    world.run(millis(30_000));
    assert_eq!(world.report(0, 2), None);
    world.cut.clear();
    world.run(millis(2000));
    assert!(world.report(0, 2).is_some() && world.peer(0, 2).near && world.peer(0, 2).rtt.is_some());
}

#[test]
fn a_node_that_vanishes_is_silent_within_two_seconds_and_nobody_else_ever_is() {
    let mut world = world(30);
    for _ in 0..200 {
        world.run(millis(100));
        for of in 1..30 {
            assert!(!world.peer(0, of).is_silent(), "{:?}", world.peer(0, of));
        }
    }
    let near = (1..30).find(|of| world.peer(0, *of).near).expect("a neighbour");
    world.cut = vec![near];
    world.run(millis(1700));
    assert!(world.peer(0, near).is_silent(), "{:?}", world.peer(0, near));
    world.run(millis(10_000));
    assert!(world.peer(0, near).is_silent(), "it stays so: {:?}", world.peer(0, near));
    world.run(millis(50_000));
    assert!(!world.peer(0, near).is_silent(), "it may be without an agent: {:?}", world.peer(0, near));
    world.cut.clear();
    world.run(millis(8000));
    assert!(!world.peer(0, near).is_silent(), "{:?}", world.peer(0, near));
}

#[test]
fn a_node_that_was_heard_is_missed_until_it_is_heard_again_and_one_that_never_was_is_not() {
    let mut world = world(3);
    world.cut = vec![2];
    world.run(millis(5000));
    assert!(!world.peer(0, 1).is_missed(), "{:?}", world.peer(0, 1));
    world.cut = vec![1, 2];
    for seconds in [3, 60, 600] {
        world.run(millis(seconds * 1000));
        assert!(world.peer(0, 1).is_missed(), "{:?}", world.peer(0, 1));
        assert!(!world.peer(0, 2).is_missed(), "it may never have run an agent: {:?}", world.peer(0, 2));
    }
    world.cut.clear();
    world.run(millis(8000));
    assert!([1, 2].iter().all(|of| !world.peer(0, *of).is_missed()));
}

#[test]
fn an_agent_that_stalls_is_not_believed_to_be_idle() {
    let mut world = world(2);
    world.nodes[1].tells = Some((busy(0.9), vec![]));
    world.run(millis(3000));
    world.nodes[1].tells = None;
    world.run(millis(6000));
    let report = world.report(0, 1).expect("the last one");
    assert!(report.age > millis(5000), "{:?}", report.age);
    assert!(report.load.cpu.expect("told").value.get() > 0.8);
}

#[test]
fn clocks_may_differ_within_the_bound() {
    let mut world = world(3);
    world.nodes[1].ahead = millis(29_000);
    world.nodes[2].ahead = millis(31_000);
    world.run(millis(5000));
    assert_eq!(world.peer(0, 1).rtt, Some(millis(1)));
    assert_eq!(world.peer(0, 2).rtt, None);
    assert!(world.nodes[0].mesh.counters().refused(Refusal::Skewed) > 3);
}

/// One step while replies are on their way: one measurement is lost, none is wrong.
#[test]
fn a_clock_that_is_set_meanwhile_measures_nothing() {
    for step in [millis(0), millis(5000)] {
        let mut world = world(2);
        world.nodes[0].ahead = millis(2000);
        world.delay = |_, _| millis(100);
        world.run(millis(5000));
        let probes = |world: &World| world.nodes[0].mesh.counters().probes_sent;
        let before = probes(&world);
        while probes(&world) == before {
            world.run(millis(10));
        }
        world.nodes[0].ahead = step;
        world.run(millis(3000));
        assert_eq!(world.nodes[0].mesh.counters().clocks_moved, 1);
        assert_eq!(world.peer(0, 1).rtt, Some(millis(200)));
    }
}

#[test]
fn who_is_no_peer_is_answered_but_not_reported() {
    let mut world = world(2);
    world.nodes[1].mesh.set_peers([]);
    world.nodes[0].tells = Some((busy(0.5), vec![]));
    world.nodes[1].tells = Some((busy(0.5), vec![]));
    world.run(millis(3000));
    assert!(world.report(0, 1).is_some());
    assert!(world.reports(1).is_empty());
    assert_eq!(world.nodes[1].mesh.next_probe(), None);
}

#[test]
fn a_peer_at_another_address_is_measured_anew() {
    let mut world = world(2);
    world.run(millis(3000));
    assert!(world.peer(0, 1).rtt.is_some());
    let moved = world.nodes[0].address;
    world.nodes[0].mesh.set_peers([(name(1).into(), moved)]);
    assert_eq!(world.peer(0, 1).rtt, None);
    // What answers there is another node.
    world.run(millis(3000));
    assert_eq!(world.peer(0, 1).rtt, None);
    assert!(world.nodes[0].mesh.counters().refused(Refusal::Misdirected) > 0);
}

#[test]
fn a_reply_that_nobody_waits_for_is_refused() {
    let mut world = world(2);
    world.delay = |_, _| millis(1500);
    world.run(millis(10_000));
    assert_eq!(world.peer(0, 1).rtt, None);
    let counters = world.nodes[0].mesh.counters();
    assert!(counters.refused(Refusal::Unsolicited) > 0 && counters.probes_lost > 0);
    assert_eq!(counters.replies_received, 0);
}

/// With a thousand peers minutes pass between two probes of one that is far.
#[test]
fn a_peer_that_has_answered_its_last_probe_runs_an_agent_however_long_ago_that_was() {
    let mut world = World::new(2, Config::default(), &keys(&[NEW]));
    world.run(millis(5000));
    world.steady += Duration::from_secs(300);
    assert!(world.peer(0, 1).runs_agent());
    let now = world.now(0);
    assert!(world.nodes[0].mesh.probe(now).is_some());
    world.steady += millis(1000);
    assert!(world.peer(0, 1).runs_agent(), "its answer may be on its way");
    world.steady += millis(1000);
    assert!(!world.peer(0, 1).runs_agent(), "{:?}", world.peer(0, 1));
}
