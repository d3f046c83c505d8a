//! One experiment: a world, what its clients do, and what its agents get to know.

use std::time::Duration;

use rand_distr::{Distribution, Poisson};
use rand_pcg::Pcg64;

use crate::arrivals::Pattern;
use crate::crowd::Crowd;
use crate::feed::Feed;
use crate::world::World;

/// Steps of the simulation: 50 ms, a fifth of a controller's tick, so that agents have phases.
pub const STEP: Duration = Duration::from_millis(50);
/// A controller's tick: 250 ms.
pub const TICK: Duration = Duration::from_millis(250);
/// Steps of a tick.
pub const STEPS_PER_TICK: u64 = 5;
/// Seconds after which a client gives up. In means a request that is rejected or lost counts as one that took so long.
pub const PATIENCE: f64 = 2.0;

/// An experiment.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name, of a file, too.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// The nodes. Each has one endpoint of the service.
    pub world: World,
    /// The load of each node at rest.
    pub rest: Vec<f64>,
    /// What happens.
    pub pattern: Pattern,
    /// The nodes that it happens to.
    pub hot: Vec<usize>,
    /// What agents get to know of each other, and of their own node.
    pub feed: Feed,
    /// Seconds of a core of speed 1 that a request takes.
    pub work: f64,
    /// Mean time that a flow lives on while its requests come; 0 for one request per flow.
    pub life: Duration,
    /// How long it goes on.
    pub length: Duration,
    /// From when on figures count.
    pub settled: Duration,
}

impl Scenario {
    /// New flows per second that clients of a node offer it, on average.
    #[must_use]
    pub fn offered(&self, node: usize, now: f64) -> f64 {
        let rest = self.rest[node];
        let load = if self.is_hot(node) { self.pattern.load(now, rest, self.phase(node)) } else { rest };
        load * self.world.machines[node].rate(self.work)
    }

    /// The clients of its hot node that wait for their answers.
    #[must_use]
    pub const fn crowd(&self) -> Option<Crowd> {
        match self.pattern {
            Pattern::Crowd(crowd) => Some(crowd),
            Pattern::Step { .. }
            | Pattern::Ramp { .. }
            | Pattern::Diurnal { .. }
            | Pattern::FlashCrowd { .. }
            | Pattern::NodeLoss { .. } => None,
        }
    }

    /// Whether a node is there.
    #[must_use]
    pub fn alive(&self, node: usize, now: f64) -> bool {
        !self.is_hot(node) || self.pattern.alive(now)
    }

    /// Whether the pattern is for a node.
    #[must_use]
    pub fn is_hot(&self, node: usize) -> bool {
        self.hot.binary_search(&node).is_ok()
    }

    /// Whether the optimum of a crowd is known: nobody else asks, and all its nodes can serve it.
    fn is_for_one_crowd(&self) -> bool {
        let alone = self.rest.iter().all(|rest| *rest == 0.0);
        alone && self.hot.len() == 1 && self.world.zone == self.world.len() && self.life.is_zero()
    }

    /// Where a node's day begins: spread by the golden ratio, so that neighbours differ.
    fn phase(&self, node: usize) -> f64 {
        (node as f64 * 0.618_033_988_749_895).fract()
    }

    /// Whether all that is needed is there.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), BadScenario> {
        let nodes = self.world.len();
        let bad = |what| Err(BadScenario { name: self.name, what });
        match () {
            () if nodes == 0 => bad("it has no nodes"),
            () if self.rest.len() != nodes => bad("it needs a load at rest for each node"),
            () if self.hot.is_empty() || !self.hot.is_sorted() => bad("its hot nodes must be some, in order"),
            () if self.hot.iter().any(|node| *node >= nodes) => bad("a hot node does not exist"),
            () if self.crowd().is_some() && !self.is_for_one_crowd() => {
                bad("a crowd is alone, at one node, and its flows have one request each")
            }
            () if self.settled >= self.length => bad("it must last longer than it takes to settle"),
            () => Ok(()),
        }
    }
}

/// A scenario that cannot be run.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("scenario {name}: {what}: correct it")]
pub struct BadScenario {
    name: &'static str,
    what: &'static str,
}

/// How many come in a time in which `mean` do on average: a Poisson process.
pub(crate) fn chance(mean: f64, rng: &mut Pcg64) -> f64 {
    // Only a mean that is not above 0 is refused.
    Poisson::new(mean).map_or(0.0, |poisson| poisson.sample(rng))
}
