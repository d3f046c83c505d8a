//! How often to ask. All agents ask one API server, and each answer is about all nodes: the work grows with the square of
//! the cluster, unless each agent asks less often in a large one.

use std::time::Duration;

/// How often in a small cluster: metrics-server measures as often (its `--metric-resolution`, 15 s).
pub const SHORTEST: Duration = Duration::from_secs(15);
/// How often at least, however large the cluster is and whatever the answers are.
pub const LONGEST: Duration = Duration::from_secs(300);
/// Nodes up to which each one asks as often as in a small cluster: 7 requests per second of all together.
pub const CROWD: usize = 100;
/// Part of a pause by which it may be shorter or longer: agents that began together do not stay together.
pub const JITTER: f64 = 0.1;

/// When the next question is due.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Pace {
    nodes: usize,
    /// In a row.
    failures: u32,
}

impl Pace {
    /// There was an answer about so many nodes.
    pub const fn answered(&mut self, nodes: usize) {
        *self = Self { nodes, failures: 0 };
    }

    /// There was none: no metrics-server, not allowed, too late, or no list. Whatever it was, asking on helps nobody.
    pub const fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// How often there is an answer, while there is one: [`SHORTEST`] to [`LONGEST`], in proportion to the nodes.
    #[must_use]
    pub fn interval(&self) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "a cluster has thousands of nodes")]
        let crowds = self.nodes as f64 / CROWD as f64;
        // Clamped before it is multiplied, since durations have an end.
        SHORTEST.mul_f64(crowds.clamp(1.0, LONGEST.div_duration_f64(SHORTEST)))
    }

    /// From one question to the next: twice as long after each failure, up to [`LONGEST`], and by [`JITTER`] more or less.
    /// `random` is 0 to 1.
    #[must_use]
    pub fn pause(&self, random: f64) -> Duration {
        let doubled = self.interval().saturating_mul(2_u32.saturating_pow(self.failures));
        doubled.min(LONGEST).mul_f64(1.0 + JITTER * (2.0 * random.clamp(0.0, 1.0) - 1.0))
    }
}
