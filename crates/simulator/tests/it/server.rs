//! The queue against formulas that are exact.

use proptest::prelude::*;
use weir_simulator::server::{Server, in_system};

fn server(cores: f64, rate: f64) -> Server {
    Server { cores, rate, patience: 2.0, requests: 0.0 }
}

/// After a minute of the same.
fn settled(mut server: Server, rate: f64) -> weir_simulator::server::Served {
    for _ in 0..1199 {
        server.step(rate * 0.05, 0.05);
    }
    server.step(rate * 0.05, 0.05)
}

#[test]
fn one_core_is_an_m_m_1_queue() {
    // N = u / (1 - u), T = 1 / (rate - arrivals).
    assert!((in_system(1.0, 0.75) - 3.0).abs() < 1e-12);
    let served = settled(server(1.0, 100.0), 80.0);
    assert!((served.utilisation - 0.8).abs() < 1e-6 && (served.time - 0.05).abs() < 1e-6, "{served:?}");
}

#[test]
fn four_cores_wait_as_long_as_erlangs_formula_says_within_a_twentieth() {
    // Erlang C of 3.2 on 4: 0.5964; T = S (1 + C / (4 (1 - 0.8))) = 1.7455 S.
    let served = settled(server(4.0, 1000.0), 800.0);
    assert!((served.time / 0.004 / 1.7455 - 1.0).abs() < 0.05, "{served:?}");
}

#[test]
fn an_idle_node_takes_as_long_as_the_work_is() {
    assert!((settled(server(4.0, 1000.0), 0.0).time - 0.004).abs() < 1e-12);
}

#[test]
fn a_flooded_node_does_what_it_can_and_rejects_the_rest() {
    let served = settled(server(4.0, 1000.0), 1500.0);
    assert!((served.rejected - 25.0).abs() < 0.1, "{served:?}");
    assert!(served.utilisation > 0.999 && (served.time - 2.0).abs() < 0.01, "{served:?}");
}

proptest! {
    #[test]
    fn no_request_appears_or_vanishes(
        cores in 0.5..32.0_f64, rate in 1.0..10_000.0_f64, loads in prop::collection::vec(0.0..3.0_f64, 1..50),
    ) {
        let mut server = server(cores, rate);
        let (mut came, mut gone) = (0.0, 0.0);
        for load in loads {
            let served = server.step(load * rate * 0.05, 0.05);
            came += load * rate * 0.05;
            gone += served.utilisation * rate * 0.05 + served.rejected;
            prop_assert!((0.0..=1.0).contains(&served.utilisation));
            prop_assert!(served.time >= cores / rate - 1e-12 && served.time.is_finite());
        }
        prop_assert!((came - gone - server.requests).abs() < 1e-3 * (1.0 + came), "{came} {gone} {server:?}");
    }
}
