//! How often metrics-server is asked.

use std::time::Duration;

use weir_signals::metrics_api::Pace;

use crate::build::near;

fn of(nodes: usize) -> Pace {
    let mut pace = Pace::default();
    pace.answered(nodes);
    pace
}

/// Seconds to the next question, without jitter.
fn pause(pace: &Pace) -> u64 {
    pace.pause(0.5).as_secs()
}

#[test]
fn the_larger_the_cluster_the_rarer_each_agent_asks() {
    let seconds = [0, 1, 100, 200, 1000, 2000, 5000, usize::MAX].map(|nodes| of(nodes).interval().as_secs());
    assert_eq!(seconds, [15, 15, 15, 30, 150, 300, 300, 300]);
}

#[test]
fn up_to_two_thousand_nodes_all_agents_together_ask_no_more_than_those_of_a_hundred() {
    let per_second = |nodes: u32| f64::from(nodes) / of(nodes as usize).interval().as_secs_f64();
    let of_hundred = per_second(100);
    assert!((100..=2000).all(|nodes| per_second(nodes) <= of_hundred + 1e-9));
}

#[test]
fn each_failure_doubles_the_pause_up_to_five_minutes_and_an_answer_ends_that() {
    let mut pace = of(3);
    let pauses = [(); 7].map(|()| {
        pace.failed();
        pause(&pace)
    });
    assert_eq!(pauses, [30, 60, 120, 240, 300, 300, 300]);
    (0..100).for_each(|_| pace.failed());
    assert_eq!(pause(&pace), 300, "for ever");
    assert_eq!(pace.interval(), Duration::from_secs(15), "answers are as old as that when they come");
    pace.answered(3);
    assert_eq!(pause(&pace), 15);
}

#[test]
fn a_large_cluster_begins_to_double_at_its_own_interval() {
    let mut pace = of(600);
    assert_eq!(pause(&pace), 90);
    pace.failed();
    assert_eq!(pause(&pace), 180);
    pace.failed();
    assert_eq!(pause(&pace), 300);
}

#[test]
fn pauses_of_agents_that_began_together_differ_by_a_tenth_at_most() {
    let pace = of(3);
    let pauses = [0.0, 0.25, 0.5, 1.0].map(|random| pace.pause(random).as_secs_f64());
    assert!(pauses.iter().zip([13.5, 14.25, 15.0, 16.5]).all(|(pause, wanted)| near(*pause, wanted)), "{pauses:?}");
}
