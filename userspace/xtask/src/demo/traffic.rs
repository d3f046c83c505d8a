//! Requests to the service in both families, and what became of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use weir_testbed::Netns;
use weir_testbed::load::{Load, Report, RunningLoad};

use super::NODES;

/// Workers for each address; each asks again as soon as it has its answer, over a new connection.
pub(super) const WORKERS: usize = 4;

/// Workers of a fixed rate: as many requests may wait for a node that is above its level for a moment.
/// With fewer the load would fall by itself.
const MANY: usize = 160;

/// Requests under way. They stop on drop.
#[derive(Debug)]
pub(crate) struct Traffic {
    loads: Vec<RunningLoad>,
}

impl Traffic {
    /// Starts requests to each of the addresses.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub(super) fn start(client: &Netns, addresses: [SocketAddr; 2]) -> Result<Self> {
        let start = |address| Load::http(address).concurrency(WORKERS).start(client);
        let loads = addresses.map(start).into_iter().collect::<weir_testbed::Result<_>>()?;
        Ok(Self { loads })
    }

    /// Starts this many requests per second to an address, each of which costs its server some CPU time.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub(super) fn paced(client: &Netns, address: SocketAddr, per_second: u32, cost: Duration) -> Result<Self> {
        let load = Load::http(address).concurrency(MANY).rate(per_second).cost(cost);
        Ok(Self { loads: vec![load.start(client)?] })
    }

    /// What has happened since the start or the last call.
    ///
    /// # Errors
    /// When the counts cannot be added up.
    pub(super) fn take(&mut self) -> Result<Tally> {
        let mut total = Tally::new()?;
        for load in &mut self.loads {
            total.add_load(&load.take()?)?;
        }
        Ok(total)
    }
}

/// What became of requests.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Answers from each node; the first is node 1.
    answers: [u64; NODES as usize],
    /// Requests without an answer, by reason.
    failures: BTreeMap<String, u64>,
    /// Latency of answers in microseconds.
    latency: Histogram<u64>,
    /// The time that all this took.
    elapsed: Duration,
}

impl Tally {
    /// Nothing so far.
    ///
    /// # Errors
    /// Never in practice: when a histogram of three digits cannot be made.
    pub(super) fn new() -> Result<Self> {
        let latency = Histogram::new(3).context("cannot make a latency histogram")?;
        Ok(Self { answers: [0; NODES as usize], failures: BTreeMap::new(), latency, elapsed: Duration::ZERO })
    }

    /// Adds what happened at the same time.
    fn add_load(&mut self, report: &Report) -> Result<()> {
        for (name, count) in &report.answers {
            let node = node_of(name).with_context(|| format!("{name:?} has answered, which is no pod of the demo"))?;
            self.answers[node] += count;
        }
        for (reason, count) in &report.errors {
            *self.failures.entry(reason.clone()).or_default() += count;
        }
        self.latency.add(&report.latency).context("cannot add up latencies")?;
        self.elapsed = self.elapsed.max(report.elapsed);
        Ok(())
    }

    /// Adds what happened afterwards.
    ///
    /// # Errors
    /// When histograms cannot be added.
    pub(super) fn add(&mut self, later: &Self) -> Result<()> {
        for (own, other) in self.answers.iter_mut().zip(later.answers) {
            *own += other;
        }
        for (reason, count) in &later.failures {
            *self.failures.entry(reason.clone()).or_default() += count;
        }
        self.latency.add(&later.latency).context("cannot add up latencies")?;
        self.elapsed += later.elapsed;
        Ok(())
    }

    /// Number of answers.
    pub(super) fn answered(&self) -> u64 {
        self.answers.iter().sum()
    }

    /// Number of answers from nodes other than node 1.
    pub(super) fn elsewhere(&self) -> u64 {
        self.answers[1..].iter().sum()
    }

    /// Number of requests without an answer.
    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// The reasons of failures, such as ` (connection refused)`; empty if there were none.
    pub(super) fn reasons(&self) -> String {
        if self.failures.is_empty() {
            return String::new();
        }
        format!(" ({})", self.failures.keys().cloned().collect::<Vec<_>>().join(", "))
    }

    /// Answers per second.
    pub(super) fn per_second(&self) -> f64 {
        self.answered() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The part of the answers that came from each node, 0 to 1.
    pub(super) fn shares(&self) -> [f64; NODES as usize] {
        self.answers.map(|count| count as f64 / self.answered().max(1) as f64)
    }

    /// The latency in milliseconds that this part of the answers (0 to 1) stays within.
    pub(super) fn quantile_ms(&self, part: f64) -> f64 {
        self.latency.value_at_quantile(part) as f64 / 1000.0
    }
}

/// The index of the node that a server of this name (`node2-pod1`) runs on.
fn node_of(server: &str) -> Option<usize> {
    let number: usize = server.strip_prefix("node")?.split_once('-')?.0.parse().ok()?;
    (1..=usize::from(NODES)).contains(&number).then(|| number - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_counted_for_its_node() {
        assert_eq!(node_of("node1-pod2"), Some(0));
        assert_eq!(node_of("node3-pod1"), Some(2));
        for foreign in ["node4-pod1", "node0-pod1", "node1", "web"] {
            assert_eq!(node_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn nothing_at_all_is_not_a_number_out_of_place() {
        let tally = Tally::new().unwrap();
        assert_eq!((tally.shares(), tally.quantile_ms(0.99), tally.reasons()), ([0.0; 3], 0.0, String::new()));
        assert!(tally.per_second().abs() < f64::EPSILON);
    }
}
