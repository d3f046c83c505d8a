//! Worlds, loads, and that chance is repeatable.

use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64;
use weir_core::policies::Kind;
use weir_simulator::arrivals::Pattern;
use weir_simulator::catalogue::one_hot;
use weir_simulator::world::World;
use weir_simulator::{Scenario, run};

fn short(scenario: Scenario) -> Scenario {
    Scenario { length: Duration::from_secs(30), settled: Duration::from_secs(20), ..scenario }
}

#[test]
fn the_same_seed_gives_the_same_numbers_and_another_one_others() {
    let scenario = short(one_hot(Duration::from_secs(1)));
    let [first, again, other] = [7, 7, 8].map(|seed| run(&scenario, Kind::Waterfill, seed).unwrap());
    assert_eq!(first, again);
    assert_ne!(first.moments, other.moments);
}

#[test]
fn distances_are_symmetric_within_a_zone_and_no_way_round_is_shorter() {
    let mut rng = Pcg64::seed_from_u64(1);
    // The last zone is not full.
    let world = World::drawn(25, 10, Duration::from_millis(3), Duration::from_millis(18), &mut rng);
    for zone in [0..10, 10..20, 20..25] {
        let rtt = |a: usize, b: usize| world.rtts(a)[b - zone.start];
        for (a, b, c) in zone.clone().flat_map(|a| zone.clone().map(move |b| (a, b, (a + b) % 5))) {
            let c = zone.start + c;
            assert_eq!(rtt(a, b), rtt(b, a));
            assert!(rtt(a, b) <= rtt(a, c) + rtt(c, b) + 1e-6);
            assert_eq!(rtt(a, b) == 0.0, a == b);
        }
        assert_eq!(world.zone_of(zone.start), zone);
    }
}

#[test]
fn patterns_are_at_rest_before_and_at_their_peak_when_they_say_so() {
    let load = |pattern: Pattern, now| pattern.load(now, 0.2, 0.0);
    let step = Pattern::Step { at: 10.0, to: 1.5 };
    assert_eq!([9.9, 10.0, 99.0].map(|now| load(step, now)), [0.2, 1.5, 1.5]);
    let ramp = Pattern::Ramp { from: 10.0, until: 20.0, to: 1.2 };
    assert_eq!([10.0, 15.0, 20.0].map(|now| load(ramp, now)), [0.2, 0.7, 0.2]);
    let days = Pattern::Diurnal { day: 100.0, peak: 1.0 };
    assert_eq!([0.0, 50.0, 100.0].map(|now| (load(days, now) * 1e6).round() / 1e6), [0.2, 1.0, 0.2]);
    let flash = Pattern::FlashCrowd { at: 10.0, peak: 4.2, half_life: 5.0 };
    assert_eq!([10.0, 11.0, 16.0].map(|now| load(flash, now)), [0.2, 4.2, 2.2]);
    let loss = Pattern::NodeLoss { at: 10.0, back: 20.0 };
    assert_eq!(
        [9.0, 10.0, 20.0].map(|now| (load(loss, now), loss.alive(now))),
        [(0.2, true), (0.0, false), (0.2, true)]
    );
}

#[test]
fn flows_that_live_long_stay_where_they_are_when_shares_change() {
    let step = short(one_hot(Duration::from_secs(1)));
    let long = Scenario { life: Duration::from_secs(60), ..step.clone() };
    let at = |scenario: &Scenario| run(scenario, Kind::Waterfill, 3).unwrap().moments[14].latency_ms;
    // The load of a step comes as slowly as flows come and go.
    assert!(at(&step) > 0.0 && at(&long) < at(&step) * 1.5, "{} {}", at(&step), at(&long));
}

#[test]
fn a_scenario_that_contradicts_itself_is_refused_by_name() {
    let error = run(&Scenario { rest: vec![0.1], ..one_hot(Duration::ZERO) }, Kind::Rap, 1).unwrap_err();
    assert_eq!(error.to_string(), "scenario one-hot: it needs a load at rest for each node: correct it");
}
