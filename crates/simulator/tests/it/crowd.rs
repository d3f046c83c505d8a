//! Clients that wait for their answers, against what can be said by hand.

use weir_core::policies::Kind;
use weir_simulator::arrivals::Pattern;
use weir_simulator::catalogue::endless_crowd;
use weir_simulator::crowd::Crowd;
use weir_simulator::{Scenario, run};

#[test]
fn the_last_round_of_a_burst_gets_shorter_and_shorter() {
    let crowd = Crowd { clients: 100.0, requests: 1.0, pause: 0.0 };
    // Of a hundred that come together the mean one waits for half of them.
    assert!((crowd.least_time(50.0) - 1.0).abs() < 1e-12);
    assert!((Crowd { requests: 2.0, ..crowd }.least_time(50.0) - 1.5).abs() < 1e-12);
    assert!((Crowd { requests: f64::INFINITY, ..crowd }.least_time(50.0) - 2.0).abs() < 1e-12);
}

#[test]
fn clients_that_one_node_holds_up_ask_no_faster_than_it_answers() {
    let few = Crowd { clients: 30.0, requests: f64::INFINITY, pause: 0.0 };
    let outcome = run(&Scenario { pattern: Pattern::Crowd(few), ..endless_crowd() }, Kind::Random, 1).unwrap();
    // A third of them goes to the smallest node, which does 25 a second: 75 a second in all, by Little's law 400 ms.
    assert!((outcome.latency_ms / 400.0 - 1.0).abs() < 0.1, "{}", outcome.latency_ms);
}

#[test]
fn a_burst_ends_and_the_next_one_begins_after_a_pause() {
    let crowd = Crowd { clients: 20.0, requests: 1.0, pause: 4.0 };
    let outcome = run(&Scenario { pattern: Pattern::Crowd(crowd), ..endless_crowd() }, Kind::Random, 1).unwrap();
    let busy: Vec<bool> = outcome.moments.iter().map(|moment| moment.latency_ms > 0.0).collect();
    let begins = busy.windows(2).filter(|pair| !pair[0] && pair[1]).count();
    assert!((20..=30).contains(&begins), "{begins} bursts in 120 s");
}

#[test]
fn a_crowd_is_alone() {
    let rest = Scenario { rest: vec![0.1; 3], ..endless_crowd() };
    assert!(run(&rest, Kind::Rap, 1).unwrap_err().to_string().contains("a crowd is alone"));
}
