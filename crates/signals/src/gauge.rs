//! A source with its memory: the last good sample, how old it is, and what went wrong.

use std::time::{Duration, Instant};

use weir_core::load::Sample;

use crate::source::{Counts, Failure, Source};

/// Age from which a sample is no longer told: policies refuse it from there on, too.
pub const FORGET_AFTER: Duration = Duration::from_secs(10);

/// A source, what it said last, and how it fared.
#[derive(Debug)]
pub struct Gauge<S: Source> {
    source: S,
    latest: Option<(S::Value, Instant)>,
    problem: Option<Failure>,
    counts: Counts,
}

impl<S: Source> Gauge<S> {
    /// A gauge that has not read yet.
    pub fn new(source: S) -> Self {
        Self { source, latest: None, problem: None, counts: Counts::default() }
    }

    /// Reads the source. A failure leaves the last sample as it is.
    pub fn tick(&mut self, now: Instant) {
        self.counts.count_read();
        match self.source.read(now) {
            Ok(Some(value)) => {
                self.latest = Some((value, now));
                self.problem = None;
            }
            // Too soon says nothing about what went wrong before.
            Ok(None) => {}
            Err(failure) => {
                self.counts.count_failure(failure.kind());
                self.problem = Some(failure);
            }
        }
    }

    /// The last good sample; `None` if there was none, or none in the last [`FORGET_AFTER`].
    #[must_use]
    pub fn sample(&self, now: Instant) -> Option<Sample<S::Value>> {
        let (value, _) = self.latest.as_ref()?;
        let age = self.age(now)?;
        (age < FORGET_AFTER).then(|| Sample { value: value.clone(), age })
    }

    /// How long ago the last good sample was taken, told or not; `None` if there was none.
    #[must_use]
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.latest.as_ref().map(|(_, at)| now.saturating_duration_since(*at))
    }

    /// Forgets what was read and what went wrong: nobody reads for now, and neither says what is so then. Counts stay.
    pub fn forget(&mut self) {
        (self.latest, self.problem) = (None, None);
    }

    pub(crate) const fn source(&self) -> &S {
        &self.source
    }

    /// What the source is called.
    pub fn name(&self) -> &'static str {
        self.source.name()
    }

    /// What went wrong, until a sample is good again.
    #[must_use]
    pub const fn problem(&self) -> Option<&Failure> {
        self.problem.as_ref()
    }

    /// How it fared since it was made.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}
