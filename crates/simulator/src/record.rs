//! What a run came to, second by second and in all.

use serde::Serialize;

/// How many hot nodes are watched at most.
const WATCHED: usize = 100;
/// Over how many ticks the standard deviation of the shares is taken where it is shown over time: 30 s.
const WINDOW: usize = 120;

/// One second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// Since the beginning, in seconds.
    pub at: f64,
    /// Mean of all requests in milliseconds; one that was rejected or lost counts as long as its client waits.
    pub latency_ms: f64,
    /// Requests per second that were rejected, or went to a node that is not there.
    pub rejected: f64,
    /// Share of new flows that stay at the hot nodes they come to.
    pub local_share: f64,
    /// Standard deviation of the share over the last 30 s, the mean of the hot nodes.
    pub deviation: f64,
    /// How much longer requests take than they would at the optimum: 0.1 is 10 %.
    pub distance: Option<f64>,
}

/// What a policy came to in a scenario. Figures are from when it should have settled on, if not said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The scenario.
    pub scenario: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// Of all numbers by chance.
    pub seed: u64,
    /// Mean latency in milliseconds, as in [`Moment::latency_ms`].
    pub latency_ms: f64,
    /// The same of the optimum.
    pub optimum_ms: f64,
    /// How much longer the mean request takes than at the optimum: 0.1 is 10 %.
    pub distance: f64,
    /// Part of all requests that was rejected or lost.
    pub rejected: f64,
    /// Share of new flows that stay at the hot nodes they come to.
    pub local_share: f64,
    /// Its standard deviation over time, the mean of the hot nodes.
    pub deviation: f64,
    /// Most seconds at a stretch that some node got more than it can do, from the beginning on.
    pub overload_seconds: f64,
    /// Writes to the maps per node and second.
    pub writes: f64,
    /// Every second.
    #[serde(skip)]
    pub moments: Vec<Moment>,
}

/// What happened in a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Requests that came.
    pub(crate) requests: f64,
    /// Those that were rejected or lost.
    pub(crate) rejected: f64,
    /// Seconds that they all took.
    pub(crate) time: f64,
}

impl Sums {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.rejected += other.rejected;
        self.time += other.time;
    }

    fn mean_ms(&self) -> f64 {
        if self.requests > 0.0 { self.time / self.requests * 1000.0 } else { 0.0 }
    }
}

/// What is noted down while a run goes on.
pub(crate) struct Record {
    watched: Vec<usize>,
    /// By watched node, its local share at each tick.
    shares: Vec<Vec<f64>>,
    seconds: Vec<Sums>,
    overload: Vec<u32>,
    longest: u32,
    pub(crate) writes: u64,
}

impl Record {
    /// Of a run in which some of the nodes are hot.
    pub(crate) fn new(nodes: usize, hot: &[usize]) -> Self {
        let watched: Vec<usize> = hot.iter().copied().take(WATCHED).collect();
        let shares = vec![Vec::new(); watched.len()];
        Self { watched, shares, seconds: Vec::new(), overload: vec![0; nodes], longest: 0, writes: 0 }
    }

    /// A step in some second.
    pub(crate) fn step(&mut self, second: usize, sums: &Sums) {
        self.seconds.resize_with((second + 1).max(self.seconds.len()), Sums::default);
        self.seconds[second].add(sums);
    }

    /// After a tick: the local share of each node.
    pub(crate) fn shares(&mut self, local_share: impl Fn(usize) -> f64) {
        for (node, shares) in self.watched.iter().zip(&mut self.shares) {
            shares.push(local_share(*node));
        }
    }

    /// After a tick of a node: what came to it, of what it can do.
    pub(crate) fn load(&mut self, node: usize, load: f64) {
        self.overload[node] = if load > 1.0 { self.overload[node] + 1 } else { 0 };
        self.longest = self.longest.max(self.overload[node]);
    }

    /// Most ticks at a stretch that some node got more than it can do.
    pub(crate) const fn longest_overload(&self) -> u32 {
        self.longest
    }

    /// Requests from a second on.
    pub(crate) fn since(&self, second: usize) -> Sums {
        let mut all = Sums::default();
        self.seconds.iter().skip(second).for_each(|sums| all.add(sums));
        all
    }

    /// Mean and standard deviation of the watched nodes' shares in some ticks.
    pub(crate) fn share(&self, ticks: std::ops::Range<usize>) -> (f64, f64) {
        let each = self.shares.iter().map(|shares| spread(&shares[ticks.clone()]));
        let (mean, deviation) = each.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let count = self.shares.len().max(1) as f64;
        (mean / count, deviation / count)
    }

    /// Second by second, without distances.
    pub(crate) fn moments(&self, ticks_per_second: usize) -> Vec<Moment> {
        let moment = |(second, sums): (usize, &Sums)| {
            let until = (second + 1) * ticks_per_second;
            let (local_share, _) = self.share(until - ticks_per_second..until);
            let (_, deviation) = self.share(until.saturating_sub(WINDOW)..until);
            Moment {
                at: second as f64,
                latency_ms: sums.mean_ms(),
                rejected: sums.rejected,
                local_share,
                deviation,
                distance: None,
            }
        };
        self.seconds.iter().enumerate().map(moment).collect()
    }
}

/// Mean and standard deviation.
fn spread(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    (mean, (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count).sqrt())
}
