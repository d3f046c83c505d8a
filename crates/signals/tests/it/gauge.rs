//! What a gauge remembers of a source.

use std::time::Instant;

use weir_core::load::Lie;
use weir_signals::{Failure, FailureKind, Gauge, Source};

use crate::build::{at, millis};

/// Says what it is told to, the last first.
struct Scripted(Vec<Result<Option<u32>, Failure>>);

impl Source for Scripted {
    type Value = u32;

    fn name(&self) -> &'static str {
        "scripted"
    }

    fn read(&mut self, _now: Instant) -> Result<Option<u32>, Failure> {
        self.0.pop().expect("an answer is left")
    }
}

fn gauge(mut answers: Vec<Result<Option<u32>, Failure>>) -> Gauge<Scripted> {
    answers.reverse();
    Gauge::new(Scripted(answers))
}

fn lie() -> Failure {
    Failure::Lie { object: "file".to_owned(), cause: Lie::Share(7.0) }
}

fn missing() -> Failure {
    Failure::Missing { object: "file".to_owned(), cause: "gone".into() }
}

#[test]
fn a_sample_grows_old_until_the_next() {
    let mut gauge = gauge(vec![Ok(Some(1)), Ok(Some(2))]);
    assert!(gauge.sample(at(0)).is_none());
    gauge.tick(at(0));
    let sample = gauge.sample(at(300)).unwrap();
    assert_eq!((sample.value, sample.age), (1, millis(300)));
    gauge.tick(at(400));
    let sample = gauge.sample(at(450)).unwrap();
    assert_eq!((sample.value, sample.age), (2, millis(50)));
}

#[test]
fn failures_are_counted_by_kind_and_leave_the_sample_growing_old() {
    let mut gauge = gauge(vec![Ok(Some(1)), Err(lie()), Err(missing()), Err(missing())]);
    for tick in 0..4 {
        gauge.tick(at(tick * 250));
    }
    let sample = gauge.sample(at(1000)).unwrap();
    assert_eq!((sample.value, sample.age), (1, millis(1000)));
    let counts = gauge.counts();
    assert_eq!(counts.reads(), 4);
    assert_eq!(FailureKind::ALL.map(|kind| counts.failures(kind)), [2, 0, 1, 0, 0]);
}

#[test]
fn a_sample_is_forgotten_after_ten_seconds() {
    let mut gauge = gauge(vec![Ok(Some(1))]);
    gauge.tick(at(0));
    assert!(gauge.sample(at(9_999)).is_some());
    assert!(gauge.sample(at(10_000)).is_none());
}

#[test]
fn how_long_ago_the_last_one_was_is_told_when_it_is_forgotten_too() {
    let mut gauge = gauge(vec![Err(missing()), Ok(Some(1)), Err(missing())]);
    gauge.tick(at(0));
    assert_eq!(gauge.age(at(60_000)), None, "there was none");
    gauge.tick(at(60_000));
    gauge.tick(at(90_000));
    assert_eq!(gauge.age(at(100_000)), Some(millis(40_000)));
    assert!(gauge.sample(at(100_000)).is_none());
}

#[test]
fn a_problem_stays_until_a_value_comes() {
    let mut gauge = gauge(vec![Err(lie()), Ok(None), Ok(Some(1))]);
    gauge.tick(at(0));
    gauge.tick(at(250));
    let problem = gauge.problem().map(ToString::to_string);
    let expected = "file lies: a share of 7 is claimed, but shares are 0 to 1: ignore the source until it tells one";
    assert_eq!(problem.as_deref(), Some(expected));
    gauge.tick(at(500));
    assert!(gauge.problem().is_none());
}

#[test]
fn what_nobody_reads_any_more_is_forgotten_and_its_counts_are_not() {
    let mut gauge = gauge(vec![Ok(Some(1)), Err(lie()), Ok(Some(2))]);
    gauge.tick(at(0));
    gauge.tick(at(250));
    gauge.forget();
    assert_eq!((gauge.age(at(500)), gauge.sample(at(500)).is_none(), gauge.problem().is_none()), (None, true, true));
    assert_eq!((gauge.counts().reads(), gauge.counts().failures(FailureKind::Lie)), (2, 1));
    gauge.tick(at(750));
    assert_eq!(gauge.sample(at(750)).unwrap().value, 2);
}

#[test]
fn a_clock_that_goes_back_makes_no_sample_younger_than_new() {
    let mut gauge = gauge(vec![Ok(Some(1))]);
    gauge.tick(at(1000));
    assert_eq!(gauge.sample(at(0)).unwrap().age, millis(0));
}
