//! What must hold of the policies: constant overload under old data, and many hot nodes at once.

use std::time::Duration;

use weir_core::policies::Kind;
use weir_simulator::catalogue::{AGES, bursts, endless_crowd, hundred_hot, one_hot};
use weir_simulator::{Outcome, Scenario, run};

const SEED: u64 = 4;

fn outcome(scenario: &Scenario, kind: Kind) -> Outcome {
    let outcome = run(scenario, kind, SEED).unwrap();
    println!("seed {SEED}: {:?}", Outcome { moments: Vec::new(), ..outcome.clone() });
    outcome
}

#[test]
fn waterfill_holds_its_local_share_still_near_the_optimum_however_old_the_data_are() {
    for age in AGES.map(Duration::from_secs) {
        let outcome = outcome(&one_hot(age), Kind::Waterfill);
        assert!(outcome.deviation <= 0.03, "data {age:?} old: standard deviation {}", outcome.deviation);
        assert!(outcome.distance <= 0.10, "data {age:?} old: {} above the optimum", outcome.distance);
        assert!(outcome.rejected == 0.0, "data {age:?} old: {} rejected", outcome.rejected);
    }
}

#[test]
fn rap_switches_to_and_fro_where_waterfill_holds_still() {
    for age in AGES.map(Duration::from_secs) {
        let outcome = outcome(&one_hot(age), Kind::Rap);
        assert!((0.35..0.55).contains(&outcome.deviation), "data {age:?} old: {}", outcome.deviation);
    }
}

#[test]
fn clients_that_are_more_than_all_nodes_can_serve_keep_all_nodes_busy() {
    for (scenario, at_most) in [(endless_crowd(), 0.10), (bursts(), 0.25)] {
        let [ours, random, nearest] =
            [Kind::Waterfill, Kind::Random, Kind::NearestHalf].map(|kind| outcome(&scenario, kind));
        assert!(ours.distance <= at_most, "{}: {} above the optimum", ours.scenario, ours.distance);
        assert!(ours.rejected < 0.001, "{}: {} rejected", ours.scenario, ours.rejected);
        for other in [random, nearest] {
            assert!(ours.latency_ms < other.latency_ms, "{}: {} is faster", ours.scenario, other.policy);
        }
    }
}

#[test]
fn no_node_is_above_its_capacity_for_longer_than_two_seconds_when_a_tenth_of_them_gets_hot_at_once() {
    let overload = |seed| run(&hundred_hot(seed, 100), Kind::Waterfill, seed).unwrap().overload_seconds;
    // Each takes a processor for seconds.
    let all: Vec<(u64, f64)> = std::thread::scope(|scope| {
        let runs: Vec<_> = (SEED..SEED + 3).map(|seed| (seed, scope.spawn(move || overload(seed)))).collect();
        runs.into_iter().map(|(seed, run)| (seed, run.join().unwrap())).collect()
    });
    for (seed, overload) in all {
        println!("seed {seed}: {overload} s");
        assert!(overload <= 2.0, "seed {seed}: {overload} s");
    }
}
