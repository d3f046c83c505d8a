//! What to make of metrics-server's answers: how old they are here, and of how much they are a share.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use weir_core::load::{Lie, NodeLoad, Sample, Share};

use super::{NodeUsage, Pace, Usage};
use crate::source::{Counts, Failure};

/// Clocks of two machines may differ by so much. What was measured later than that from now is a lie.
pub const SKEW: Duration = Duration::from_secs(5);

/// Usage is a mean of the past, and capacity is another's number: a little above it is still all of it.
const OVERSHOOT: f64 = 1.05;

/// What a node has: `status.capacity` of its object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Cores.
    pub cores: f64,
    /// Bytes of memory.
    pub bytes: f64,
}

/// The nodes' load as last told.
#[derive(Debug, Default)]
pub struct Fallback {
    nodes: HashMap<String, Told>,
    counts: Counts,
    pace: Pace,
    problem: Option<Failure>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    /// Its samples are as old as they were when they came here first.
    load: NodeLoad,
    at: Timestamp,
    first: Instant,
}

impl Fallback {
    /// Takes an answer. `now` and `wall` are the same moment; a node whose capacity is not known is left out. If nobody
    /// answered, everything stays as it is, growing old; so does a node of which the answer cannot be true.
    pub fn update(
        &mut self,
        answer: Result<Vec<NodeUsage>, Failure>,
        capacity: impl Fn(&str) -> Option<Capacity>,
        now: Instant,
        wall: Timestamp,
    ) {
        self.counts.count_read();
        let nodes = match answer {
            Ok(nodes) => nodes,
            Err(failure) => {
                self.pace.failed();
                return self.failed(failure);
            }
        };
        self.pace.answered(nodes.len());
        self.problem = None;
        let mut before = std::mem::take(&mut self.nodes);
        for NodeUsage { name, usage } in nodes {
            let Some(capacity) = capacity(&name) else { continue };
            let told = before.remove(&name);
            match usage.and_then(|usage| self.take(&name, &usage, told, capacity, now, wall)) {
                Ok(told) => self.nodes.extend([(name, told)]),
                Err(failure) => {
                    self.failed(failure);
                    self.nodes.extend(told.map(|told| (name, told)));
                }
            }
        }
    }

    /// The same measurement again is not younger for that, whatever the clocks say.
    fn take(
        &mut self,
        name: &str,
        usage: &Usage,
        told: Option<Told>,
        capacity: Capacity,
        now: Instant,
        wall: Timestamp,
    ) -> Result<Told, Failure> {
        if let Some(told) = told.filter(|told| told.at == usage.at) {
            return Ok(told);
        }
        let lie = |cause| Failure::Lie { object: format!("metrics of node {name}"), cause };
        let age = age(usage.at, wall).map_err(lie)?;
        let mut sample = |used: f64, of: f64| match share(used, of) {
            Ok(value) => Some(Sample { value, age }),
            Err(cause) => {
                self.failed(lie(cause));
                None
            }
        };
        let cpu = sample(usage.cores, capacity.cores);
        let memory = sample(usage.bytes, capacity.bytes);
        let load = NodeLoad { cpu, memory, network: None, pressure: None, capacity: capacity.cores, bandwidth: 0.0 };
        Ok(Told { load: load.checked().map_err(lie)?, at: usage.at, first: now })
    }

    fn failed(&mut self, failure: Failure) {
        self.counts.count_failure(failure.kind());
        self.problem = Some(failure);
    }

    /// The load of a node; `None` if nothing was told of it, shares that cannot be true are left out. Samples are as
    /// old as they are: who uses them decides by that.
    #[must_use]
    pub fn node(&self, name: &str, now: Instant) -> Option<NodeLoad> {
        let Told { load, at: _, first } = *self.nodes.get(name)?;
        let since = now.saturating_duration_since(first);
        let aged = |sample: Option<Sample<Share>>| sample.map(|sample| sample.aged(since));
        Some(NodeLoad { cpu: aged(load.cpu), memory: aged(load.memory), ..load })
    }

    /// How asking went, and claims that were refused.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// What was wrong with the last answer.
    #[must_use]
    pub const fn problem(&self) -> Option<&Failure> {
        self.problem.as_ref()
    }

    /// When to ask again.
    #[must_use]
    pub const fn pace(&self) -> Pace {
        self.pace
    }
}

/// Above [`OVERSHOOT`] `Share` refuses it.
fn share(used: f64, of: f64) -> Result<Share, Lie> {
    let claimed = used / of;
    if (1.0..=OVERSHOOT).contains(&claimed) { Ok(Share::ALL) } else { Share::new(claimed) }
}

fn age(at: Timestamp, wall: Timestamp) -> Result<Duration, Lie> {
    let age = wall.duration_since(at);
    match Duration::try_from(age) {
        Ok(age) => Ok(age),
        Err(_negative) if age.unsigned_abs() <= SKEW => Ok(Duration::ZERO),
        Err(_negative) => Err(Lie::Amount { what: "an age in seconds", claimed: age.as_secs_f64() }),
    }
}
