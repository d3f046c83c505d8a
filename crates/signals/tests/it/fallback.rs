//! What becomes of metrics-server's answers.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use weir_signals::metrics_api::{Capacity, Fallback, NodeUsage, Usage};
use weir_signals::{Failure, FailureKind};

use crate::build::{at, near};

const FOUR_CORES: Capacity = Capacity { cores: 4.0, bytes: 1000.0 };

fn wall(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn usage(name: &str, cores: f64, bytes: f64, second: i64) -> NodeUsage {
    NodeUsage { name: name.to_owned(), usage: Ok(Usage { cores, bytes, at: wall(second) }) }
}

fn update(fallback: &mut Fallback, nodes: Vec<NodeUsage>, now: Instant, wall: Timestamp) {
    fallback.update(Ok(nodes), |_| Some(FOUR_CORES), now, wall);
}

#[test]
fn usage_is_a_share_of_capacity_and_as_old_as_it_was_plus_the_time_since() {
    let mut fallback = Fallback::default();
    update(&mut fallback, vec![usage("far", 1.0, 600.0, 0)], at(0), wall(12));
    let load = fallback.node("far", at(3000)).unwrap();
    assert!(near(load.cpu.unwrap().value.get(), 0.25));
    assert!(near(load.memory.unwrap().value.get(), 0.6));
    assert_eq!(load.cpu.unwrap().age, Duration::from_secs(15));
    assert!(near(load.capacity, 4.0));
    assert_eq!((load.network, load.pressure), (None, None));
    assert!(fallback.node("other", at(0)).is_none());
}

#[test]
fn a_server_that_tells_the_same_measurement_again_does_not_make_it_younger() {
    let mut fallback = Fallback::default();
    update(&mut fallback, vec![usage("far", 1.0, 600.0, 0)], at(0), wall(10));
    // The clock here was set back in between.
    update(&mut fallback, vec![usage("far", 1.0, 600.0, 0)], at(60_000), wall(1));
    assert_eq!(fallback.node("far", at(60_000)).unwrap().cpu.unwrap().age, Duration::from_secs(70));
}

#[test]
fn a_measurement_from_the_future_is_a_lie_beyond_the_skew_of_clocks() {
    let mut fallback = Fallback::default();
    update(&mut fallback, vec![usage("far", 1.0, 600.0, 4)], at(0), wall(0));
    assert_eq!(fallback.node("far", at(0)).unwrap().cpu.unwrap().age, Duration::ZERO);
    update(&mut fallback, vec![usage("far", 0.0, 0.0, 100)], at(1000), wall(1));
    assert_eq!(fallback.counts().failures(FailureKind::Lie), 1);
    let load = fallback.node("far", at(1000)).unwrap();
    assert!(near(load.cpu.unwrap().value.get(), 0.25), "the last one that can be true stays");
    assert_eq!(load.cpu.unwrap().age, Duration::from_secs(1));
}

#[test]
fn more_than_there_is_is_a_lie_and_a_little_more_is_all_of_it() {
    let mut fallback = Fallback::default();
    update(&mut fallback, vec![usage("a", 4.1, 500.0, 0), usage("b", 40.0, 500.0, 0)], at(0), wall(0));
    assert!(near(fallback.node("a", at(0)).unwrap().cpu.unwrap().value.get(), 1.0));
    let b = fallback.node("b", at(0)).unwrap();
    assert_eq!(b.cpu, None);
    assert!(near(b.memory.unwrap().value.get(), 0.5), "of what is true the rest is used");
    assert_eq!(fallback.counts().failures(FailureKind::Lie), 1);
}

#[test]
fn a_capacity_that_cannot_be_is_never_divided_by() {
    for cores in [0.0, -4.0, f64::NAN, f64::INFINITY] {
        let mut fallback = Fallback::default();
        let capacity = Capacity { cores, bytes: 1000.0 };
        fallback.update(Ok(vec![usage("far", 1.0, 600.0, 0)]), |_| Some(capacity), at(0), wall(0));
        let cpu = fallback.node("far", at(0)).and_then(|load| load.cpu);
        assert!(cpu.is_none(), "{cores}: {cpu:?}");
        assert!(fallback.counts().failures(FailureKind::Lie) > 0, "{cores}");
    }
}

#[test]
fn a_node_whose_capacity_nobody_knows_yet_is_unknown() {
    let mut fallback = Fallback::default();
    fallback.update(Ok(vec![usage("far", 1.0, 600.0, 0)]), |_| None, at(0), wall(0));
    assert!(fallback.node("far", at(0)).is_none());
    update(&mut fallback, vec![usage("far", 1.0, 600.0, 0)], at(15_000), wall(15));
    assert_eq!(fallback.node("far", at(15_000)).unwrap().cpu.unwrap().age, Duration::from_secs(15));
}

#[test]
fn when_nobody_answers_everything_stays_and_grows_old() {
    let mut fallback = Fallback::default();
    update(&mut fallback, vec![usage("far", 1.0, 600.0, 0)], at(0), wall(0));
    let failure = Failure::Missing { object: "nodes".to_owned(), cause: "no metrics-server".into() };
    fallback.update(Err(failure), |_| Some(FOUR_CORES), at(15_000), wall(15));
    assert_eq!(fallback.problem().map(Failure::kind), Some(FailureKind::Missing));
    assert_eq!(fallback.pace().pause(0.5), Duration::from_secs(30), "asked less often");
    assert_eq!(fallback.counts().failures(FailureKind::Missing), 1);
    assert_eq!(fallback.node("far", at(30_000)).unwrap().cpu.unwrap().age, Duration::from_secs(30));
}

#[test]
fn one_bad_node_spoils_no_other_and_one_that_is_not_in_the_list_is_gone() {
    let mut fallback = Fallback::default();
    update(
        &mut fallback,
        vec![usage("a", 1.0, 1.0, 0), usage("b", 1.0, 1.0, 0), usage("c", 1.0, 1.0, 0)],
        at(0),
        wall(0),
    );
    let bad = Failure::Malformed { object: "metrics of node a".to_owned(), what: "quantities of cpu and memory" };
    let nodes = vec![NodeUsage { name: "a".to_owned(), usage: Err(bad) }, usage("b", 2.0, 1.0, 15)];
    update(&mut fallback, nodes, at(15_000), wall(15));
    assert_eq!(fallback.node("a", at(15_000)).unwrap().cpu.unwrap().age, Duration::from_secs(15));
    assert!(near(fallback.node("b", at(15_000)).unwrap().cpu.unwrap().value.get(), 0.5));
    assert!(fallback.node("c", at(15_000)).is_none());
    assert_eq!(fallback.counts().failures(FailureKind::Malformed), 1);
    assert_eq!(fallback.problem().map(Failure::kind), Some(FailureKind::Malformed));
    assert_eq!(fallback.pace().pause(0.5), Duration::from_secs(15), "there was an answer");
}
