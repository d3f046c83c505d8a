//! The play goes on: each node has a machine of its own, and load at node 1 rises past what its machine takes up to its
//! level. The overflow appears on the nearest node, then on the next; when load falls, all returns home.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::NODES;
use super::play::GLANCE;
use super::stage::{ADDRESSES, FAR, ROUND_TRIP, Stage};
use super::table::Row;
use super::traffic::{Tally, Traffic};
use crate::guard::Stop;
use crate::progress::Step;
use crate::requirements::Programs;

/// What the machine of each node has.
const CORES: f64 = 0.2;
/// CPU time that a request costs its server. A machine takes 80 requests per second up to its level, less what the
/// system adds.
const COST: Duration = Duration::from_millis(2);
/// Time between two lines where nothing moves.
const LINE: Duration = Duration::from_secs(1);
/// The part of the answers from which a node counts as one that flows over to.
const OVERFLOW: f64 = 0.04;

/// A load at node 1, and what must come of it before the next one begins.
struct Act {
    name: &'static str,
    per_second: u32,
    /// The least and the most time that it takes.
    lasts: [Duration; 2],
    /// What must be so at its end.
    expected: &'static str,
    /// Whether these parts of the answers are that.
    holds: fn(&[f64; NODES as usize]) -> bool,
    /// Parts of the answers that must not be seen at any time.
    forbidden: fn(&[f64; NODES as usize]) -> bool,
}

const ACTS: [Act; 4] = [
    Act {
        name: "load below the level",
        per_second: 35,
        lasts: [Duration::from_secs(4), Duration::from_secs(4)],
        expected: "all of it is served on node 1",
        holds: |[first, ..]| *first >= 1.0,
        forbidden: |[first, ..]| *first < 1.0,
    },
    Act {
        name: "a little above it",
        per_second: 88,
        lasts: [Duration::from_secs(6), Duration::from_secs(12)],
        expected: "the overflow is on node 2, the nearest, and none on node 3",
        holds: |[_, second, third]| *second > OVERFLOW && *third <= OVERFLOW,
        forbidden: |[_, second, third]| *third > OVERFLOW && third > second,
    },
    Act {
        name: "far above it",
        per_second: 190,
        lasts: [Duration::from_secs(8), Duration::from_secs(14)],
        expected: "the overflow is on node 2 and on node 3",
        holds: |[_, second, third]| *second > OVERFLOW && *third > OVERFLOW,
        forbidden: |_| false,
    },
    Act {
        name: "load falls",
        per_second: 20,
        lasts: [Duration::from_secs(2), Duration::from_secs(30)],
        expected: "all of it is served on node 1 again",
        holds: |[first, ..]| *first >= 1.0,
        forbidden: |_| false,
    },
];

/// Plays, and returns what was seen in a line.
///
/// # Errors
/// When a part of the world fails, at the stop sign, or if the overflow did not go where it has to.
pub(super) fn play(stage: &mut Stage, programs: &Programs, stop: &Stop) -> Result<String> {
    let step = Step::begin("a machine for each node, agents that follow their load");
    stage.limit(CORES)?;
    stage.await_own_endpoints()?;
    stage.follow_the_load(programs)?;
    stop.check()?;
    drop(step);
    println!(
        "\nEach node now has {CORES} cores, and a request costs {} ms of CPU time. Node 2 is {} ms away, node 3 {} ms.",
        COST.as_millis(),
        ROUND_TRIP.as_millis(),
        FAR.as_millis()
    );
    let mut times = Vec::new();
    for act in &ACTS {
        times.push(act.play(stage, stop)?);
    }
    let seconds = |act: usize| times[act].as_secs_f64();
    Ok(format!(
        "spill         on node 2 {:.1} s after the load rose, on node 3 {:.1} s after it rose further; home {:.1} s after it fell",
        seconds(1),
        seconds(2),
        seconds(3),
    ))
}

impl Act {
    /// Plays; returns after which time it was as expected for good.
    fn play(&self, stage: &Stage, stop: &Stop) -> Result<Duration> {
        let step = Step::row(self.name);
        let mut traffic = Traffic::paced(stage.client().netns(), ADDRESSES[0], self.per_second, COST)?;
        let begin = Instant::now();
        let mut line = Line::new(self.name, stage)?;
        let mut since = None;
        let mut last = String::new();
        let [least, most] = self.lasts;
        while begin.elapsed() < least || (since.is_none() && begin.elapsed() < most) {
            stop.sleep(GLANCE)?;
            line.total.add(&traffic.take()?)?;
            if line.begin.elapsed() < LINE {
                continue;
            }
            let shares = line.total.shares();
            ensure!(!(self.forbidden)(&shares), "{}: {shares:?} of the answers are from nodes 1, 2, 3", self.name);
            since = (self.holds)(&shares).then(|| since.unwrap_or_else(|| begin.elapsed()));
            last = line.row(stage)?.to_string();
            if step.is_live() {
                step.show(last.clone());
            } else {
                println!("{last}");
            }
            line = Line::new(self.name, stage)?;
        }
        let live = step.is_live();
        drop(step);
        if live {
            println!("{last}");
        }
        since.ok_or_else(|| {
            anyhow::anyhow!("{}: not within {most:?}: {}; see the agents' logs and weights", self.name, self.expected)
        })
    }
}

/// What happens until the next line is shown.
struct Line {
    name: &'static str,
    begin: Instant,
    total: Tally,
    cpu: Vec<Duration>,
}

impl Line {
    fn new(name: &'static str, stage: &Stage) -> Result<Self> {
        Ok(Self { name, begin: Instant::now(), total: Tally::new()?, cpu: stage.cpu_times()? })
    }

    fn row(&self, stage: &Stage) -> Result<Row> {
        let mut row = Row::new(self.name, &self.total);
        let mut cpu = [0.0; NODES as usize];
        for ((cpu, now), before) in cpu.iter_mut().zip(stage.cpu_times()?).zip(&self.cpu) {
            *cpu = (now.saturating_sub(*before)).as_secs_f64() / self.begin.elapsed().as_secs_f64() / CORES;
        }
        row.cpu = Some(cpu);
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_that_begins_on_the_far_node_fails_the_demo_and_so_does_one_that_stays_away_from_home() {
        let [below, above, far, home] = &ACTS;
        for (act, good, bad) in [
            (below, [1.0, 0.0, 0.0], [0.95, 0.05, 0.0]),
            (above, [0.8, 0.2, 0.0], [0.8, 0.08, 0.12]),
            (far, [0.4, 0.4, 0.2], [0.5, 0.5, 0.0]),
            (home, [1.0, 0.0, 0.0], [0.9, 0.1, 0.0]),
        ] {
            assert!((act.holds)(&good) && !(act.forbidden)(&good), "{}", act.name);
            assert!(!(act.holds)(&bad), "{}", act.name);
        }
        assert!((above.forbidden)(&[0.8, 0.08, 0.12]) && (below.forbidden)(&[0.95, 0.05, 0.0]));
    }
}
