//! Endpoints that fail get nothing for a while, and never too many of them.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use weir_core::ejection::{Ejections, FAILURES, FIRST_BACKOFF, Outcome, TRIAL};

use crate::policies_build::{TICK, endpoint};

const FAILS: Outcome = fails(FAILURES);
const ANSWERS: Outcome = Outcome { answered: 5, ..fails(0) };

/// Of an endpoint that does not answer so many SYNs.
const fn fails(failed_over: u32) -> Outcome {
    Outcome { answered: 0, refused: 0, failed_over, silent: false }
}

fn addresses(count: usize) -> Vec<SocketAddr> {
    (0..count).map(|backend| endpoint(backend, 0).address).collect()
}

/// How long the first of some endpoints is out while all answer, once they are asked.
fn time_out(ejections: &mut Ejections, endpoints: &[SocketAddr]) -> Duration {
    let mut time = Duration::ZERO;
    while !ejections.tick(TICK, endpoints, &vec![Outcome::default(); endpoints.len()])[0] {
        time += TICK;
    }
    time
}

#[test]
fn three_failures_without_an_answer_throw_an_endpoint_out() {
    let all = addresses(2);
    let mut ejections = Ejections::default();
    let fails_once = fails(1);
    assert_eq!(ejections.tick(TICK, &all, &[fails_once, ANSWERS]), [true, true]);
    assert_eq!(ejections.tick(TICK, &all, &[fails_once, ANSWERS]), [true, true]);
    assert_eq!(ejections.tick(TICK, &all, &[fails_once, ANSWERS]), [false, true]);
}

#[test]
fn resets_throw_an_endpoint_out_sooner_than_silence() {
    let all = addresses(2);
    let refuses = |refused, failed_over| Outcome { refused, ..fails(failed_over) };
    for (outcome, out) in [
        (refuses(0, 2), false),
        (refuses(1, 0), false),
        (refuses(1, 1), true),
        (refuses(2, 0), true),
        // It listens: what it resets beside that may be what somebody has forged, or a network policy.
        (Outcome { answered: 1, ..refuses(9, 0) }, false),
        (Outcome { answered: 1, ..refuses(9, 3) }, true),
    ] {
        assert_eq!(Ejections::default().tick(TICK, &all, &[outcome, ANSWERS]), [!out, true], "{outcome:?}");
    }
}

#[test]
fn an_answer_forgives_failures_before_it() {
    let all = addresses(2);
    let mut ejections = Ejections::default();
    for _ in 0..10 {
        assert_eq!(ejections.tick(TICK, &all, &[fails(2), ANSWERS]), [true, true]);
        assert_eq!(ejections.tick(TICK, &all, &[Outcome { answered: 2, ..fails(1) }, ANSWERS]), [true, true]);
    }
}

#[test]
fn never_more_than_half_are_out_and_the_worst_go_first() {
    let all = addresses(5);
    let mut ejections = Ejections::default();
    let outcomes = [3, 9, 4, 8, 5].map(fails);
    assert_eq!(ejections.tick(TICK, &all, &outcomes), [true, false, true, false, true]);
    assert_eq!(ejections.tick(TICK, &all[..1], &outcomes), [true], "the only one is never out");
}

#[test]
fn those_out_longest_come_back_when_the_set_shrinks() {
    let all = addresses(4);
    let mut ejections = Ejections::default();
    let none = Outcome::default();
    assert_eq!(ejections.tick(TICK, &all, &[FAILS, none, none, none]), [false, true, true, true]);
    assert_eq!(ejections.tick(TICK, &all, &[none, FAILS, none, none]), [false, false, true, true]);
    assert_eq!(ejections.tick(TICK, &all[..3], &[none, none, none]), [true, false, true]);
}

#[test]
fn a_failure_on_trial_doubles_the_time_and_a_trial_that_holds_forgets_it() {
    let all = addresses(2);
    let mut ejections = Ejections::default();
    ejections.tick(TICK, &all, &[FAILS, ANSWERS]);
    assert_eq!(time_out(&mut ejections, &all), FIRST_BACKOFF - TICK);
    assert_eq!(ejections.trial(&all[0]), Some(Duration::ZERO));
    assert_eq!(ejections.tick(TICK, &all, &[fails(1), ANSWERS]), [false, true]);
    assert_eq!(time_out(&mut ejections, &all), 2 * FIRST_BACKOFF - TICK);

    ejections.tick(TRIAL, &all, &[ANSWERS, ANSWERS]);
    assert_eq!(ejections.trial(&all[0]), None);
    ejections.tick(TICK, &all, &[FAILS, ANSWERS]);
    assert_eq!(time_out(&mut ejections, &all), FIRST_BACKOFF - TICK);
}

proptest! {
    #[test]
    fn at_least_half_are_always_in(
        ticks in prop::collection::vec((1_usize..12, prop::collection::vec((0_u32..4, 0_u32..9), 12)), 1..60)
    ) {
        let all = addresses(12);
        let mut ejections = Ejections::default();
        for (count, outcomes) in ticks {
            let outcomes: Vec<_> =
                outcomes.into_iter().map(|(answered, failed)| Outcome { answered, ..fails(failed) }).collect();
            let within = ejections.tick(TICK, &all[..count], &outcomes);
            prop_assert!(within.iter().filter(|within| **within).count() >= count.div_ceil(2));
        }
    }
}
