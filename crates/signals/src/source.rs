//! What all sources have in common: how they are read, and how they fail.

use std::error::Error;
use std::time::{Duration, Instant};

use weir_core::load::Lie;

/// One signal from one place.
pub trait Source {
    /// What it tells.
    type Value: Clone;

    /// What it is called in metrics and messages.
    fn name(&self) -> &'static str;

    /// Reads it. `None` if there is nothing to tell yet: the first reading of a counter, or one too soon after the
    /// last.
    ///
    /// # Errors
    /// Why there is no value. The next call tries anew.
    fn read(&mut self, now: Instant) -> Result<Option<Self::Value>, Failure>;
}

/// Why a source has no value. All of them are ignored, beyond being counted.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It is not there, or may not be read.
    #[error("cannot read {object}: {cause}; what it would tell is unknown until it can be read")]
    Missing {
        /// File or resource.
        object: String,
        /// Why.
        cause: Box<dyn Error + Send + Sync>,
    },
    /// It does not have what it should have.
    #[error("{object} has no {what}; it is ignored until it has")]
    Malformed {
        /// File or resource.
        object: String,
        /// What was looked for.
        what: &'static str,
    },
    /// It claims what cannot be true.
    #[error("{object} lies: {cause}")]
    Lie {
        /// File or resource.
        object: String,
        /// The claim.
        cause: Lie,
    },
    /// A counter went back: it was reset, or it is another's now. Measuring begins anew.
    #[error("a counter of {object} went back; it is measured from where it is now")]
    Reset {
        /// File or resource.
        object: String,
    },
    /// It stood still, or was not asked, for too long to tell what is so now.
    #[error("{object} told nothing new for {silence:?}; it is ignored until it does")]
    Stalled {
        /// File or resource.
        object: String,
        /// For how long.
        silence: Duration,
    },
}

impl Failure {
    /// Its kind, for counting.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::Missing { .. } => FailureKind::Missing,
            Self::Malformed { .. } => FailureKind::Malformed,
            Self::Lie { .. } => FailureKind::Lie,
            Self::Reset { .. } => FailureKind::Reset,
            Self::Stalled { .. } => FailureKind::Stalled,
        }
    }
}

/// The kinds of [`Failure`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FailureKind {
    /// Not there, or not to be read.
    Missing,
    /// Not what was expected.
    Malformed,
    /// Cannot be true.
    Lie,
    /// A counter went back.
    Reset,
    /// Nothing new.
    Stalled,
}

impl FailureKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Missing, Self::Malformed, Self::Lie, Self::Reset, Self::Stalled];

    /// Its name in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Lie => "lie",
            Self::Reset => "reset",
            Self::Stalled => "stalled",
        }
    }
}

/// How often a source was read, and how it failed. Only ever grows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    reads: u64,
    failures: [u64; FailureKind::ALL.len()],
}

impl Counts {
    /// Readings, failed ones included.
    #[must_use]
    pub const fn reads(&self) -> u64 {
        self.reads
    }

    /// Readings that failed in this way.
    #[must_use]
    pub const fn failures(&self, kind: FailureKind) -> u64 {
        self.failures[kind as usize]
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        let Self { reads, failures } = other;
        self.reads += reads;
        self.failures.iter_mut().zip(failures).for_each(|(sum, more)| *sum += more);
        self
    }

    pub(crate) const fn count_read(&mut self) {
        self.reads += 1;
    }

    pub(crate) const fn count_failure(&mut self, kind: FailureKind) {
        self.failures[kind as usize] += 1;
    }
}
