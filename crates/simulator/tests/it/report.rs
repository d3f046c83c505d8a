//! Tables, pictures and the summary.

use std::fs;
use std::path::Path;
use std::time::Duration;

use weir_core::policies::Kind;
use weir_simulator::catalogue::one_hot;
use weir_simulator::report::{draw, table, violations, write_summary};
use weir_simulator::{Outcome, Scenario, run};

fn scenario() -> Scenario {
    let scenario = one_hot(Duration::from_secs(1));
    Scenario { length: Duration::from_secs(90), settled: Duration::from_secs(80), ..scenario }
}

#[test]
fn every_policy_has_its_row_its_line_and_its_place_in_the_summary() {
    let outcomes = [Kind::Waterfill, Kind::Rap].map(|kind| run(&scenario(), kind, 1).unwrap());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    draw(&scenario(), &outcomes, directory).unwrap();
    write_summary(&outcomes, &directory.join("summary.json")).unwrap();
    let read = |file| fs::read_to_string(directory.join(file)).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&read("summary.json")).unwrap();
    for (index, policy) in ["waterfill", "rap"].into_iter().enumerate() {
        assert_eq!(summary["outcomes"][index]["policy"], policy);
        assert!(table(&outcomes).contains(policy));
        assert!(read("one-hot-1s-old.svg").contains(policy));
    }
}

#[test]
fn what_does_not_hold_that_must_is_named() {
    let good = run(&scenario(), Kind::Waterfill, 1).unwrap();
    assert_eq!(violations(std::slice::from_ref(&good)), Vec::<String>::new());
    let bad = Outcome { deviation: 0.2, distance: f64::NAN, ..good.clone() };
    assert_eq!(violations(&[bad]).len(), 2);
    let late = Outcome { scenario: "hundred-hot", overload_seconds: 2.25, ..good.clone() };
    assert_eq!(violations(&[late]), ["hundred-hot: seconds above the capacity of a node is 2.250, more than 2"]);
    assert_eq!(violations(&[Outcome { policy: "rap", deviation: 0.5, ..good }]), Vec::<String>::new());
}
