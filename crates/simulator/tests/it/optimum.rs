//! The solver against what can be said by hand.

use std::time::Duration;

use weir_core::policies::Kind;
use weir_simulator::arrivals::Pattern;
use weir_simulator::catalogue::one_hot;
use weir_simulator::feed::Feed;
use weir_simulator::optimum::solve;
use weir_simulator::server::in_system;
use weir_simulator::world::{Machine, World};
use weir_simulator::{Scenario, run};

/// Nodes of four cores and 1000 requests per second, the first of which gets `to` of that.
fn scenario(nodes: usize, rtt_ms: u64, rest: f64, to: f64) -> Scenario {
    let machine = Machine { cores: 4, speed: 1.0, background: 0.0 };
    Scenario {
        name: "test",
        about: "",
        world: World::equidistant(vec![machine; nodes], Duration::from_millis(rtt_ms)),
        rest: vec![rest; nodes],
        pattern: Pattern::Step { at: 0.0, to },
        hot: vec![0],
        feed: Feed::MESH,
        work: 0.004,
        life: Duration::ZERO,
        length: Duration::from_secs(10),
        settled: Duration::from_secs(5),
    }
}

#[test]
fn a_node_at_ease_keeps_all_and_its_latency_is_that_of_its_queue() {
    let best = solve(&scenario(3, 5, 0.3, 0.4), 0.0).unwrap();
    let expected = (2.0 * in_system(4.0, 0.3) + in_system(4.0, 0.4)) / 1000.0;
    assert!((best.local_share - 1.0).abs() < 1e-9 && (best.latency_ms - expected * 1000.0).abs() < 1e-6, "{best:?}");
}

#[test]
fn without_distance_all_nodes_are_equally_busy() {
    let best = solve(&scenario(4, 0, 0.0, 2.0), 0.0).unwrap();
    assert!((best.local_share - 0.25).abs() < 0.04, "{best:?}");
    let even = 4.0 * in_system(4.0, 0.5) / 2000.0 * 1000.0;
    assert!((best.latency_ms / even - 1.0).abs() < 0.01, "{best:?} {even}");
}

#[test]
fn the_farther_the_others_the_more_stays() {
    let shares = [1, 5, 20, 80].map(|rtt| solve(&scenario(4, rtt, 0.2, 1.5), 0.0).unwrap().local_share);
    assert!(shares.is_sorted() && shares[0] < 0.5 && shares[3] > 0.55, "{shares:?}");
}

#[test]
fn what_nobody_can_take_is_rejected() {
    let best = solve(&scenario(2, 1, 1.2, 1.2), 0.0).unwrap();
    // A sixth waits in vain for two seconds.
    assert!((best.latency_ms - 2000.0 / 6.0).abs() < 80.0, "{best:?}");
}

#[test]
fn no_policy_is_better() {
    let scenario = Scenario {
        length: Duration::from_secs(60),
        settled: Duration::from_secs(30),
        ..one_hot(Duration::from_secs(1))
    };
    for kind in Kind::ALL {
        let outcome = run(&scenario, kind, 1).unwrap();
        assert!(outcome.distance > -0.01, "{}: {}", kind.name(), outcome.distance);
    }
}
