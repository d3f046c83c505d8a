//! How fast counters grow.

use std::time::{Duration, Instant};

use crate::source::Failure;

/// Counters read again after less than this say nothing yet: /proc/stat counts hundredths of a second.
pub const SHORTEST_WINDOW: Duration = Duration::from_millis(50);
/// A mean over more than this is not what is so now; it is the time from which samples are forgotten.
pub const LONGEST_WINDOW: Duration = crate::FORGET_AFTER;

/// Counters as they were at the last reading that counted.
#[derive(Debug)]
pub(crate) struct Meter<const N: usize> {
    shortest: Duration,
    last: Option<([u64; N], Instant)>,
}

/// By how much counters grew, and in what time.
#[derive(Debug)]
pub(crate) struct Step<const N: usize> {
    pub(crate) by: [u64; N],
    pub(crate) over: Duration,
}

/// Why there is no step, and the meter begins anew.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    /// A counter went back.
    Back,
    /// The last reading is longer ago than [`LONGEST_WINDOW`].
    Silence(Duration),
}

impl<const N: usize> Meter<N> {
    pub(crate) const fn new(shortest: Duration) -> Self {
        Self { shortest, last: None }
    }

    /// Takes a reading. `None` for the first one, and for one too soon: the next is then measured from the same start.
    pub(crate) fn advance(&mut self, counters: [u64; N], now: Instant) -> Result<Option<Step<N>>, Gap> {
        let Some((before, at)) = self.last else {
            self.last = Some((counters, now));
            return Ok(None);
        };
        let over = now.saturating_duration_since(at);
        let back = counters.iter().zip(before).any(|(counter, before)| *counter < before);
        if over < self.shortest && !back {
            return Ok(None);
        }
        self.last = Some((counters, now));
        if back {
            return Err(Gap::Back);
        }
        if over > LONGEST_WINDOW {
            return Err(Gap::Silence(over));
        }
        let mut by = counters;
        by.iter_mut().zip(before).for_each(|(counter, before)| *counter -= before);
        Ok(Some(Step { by, over }))
    }

    /// Begins anew with this reading.
    pub(crate) const fn restart(&mut self, counters: [u64; N], now: Instant) {
        self.last = Some((counters, now));
    }
}

impl<const N: usize> Step<N> {
    /// The counters' growth per second.
    pub(crate) fn rates(&self) -> [f64; N] {
        self.by.map(|by| number(by) / self.over.as_secs_f64())
    }
}

impl Gap {
    /// The failure of the object whose counters they are.
    pub(crate) fn failure(self, object: String) -> Failure {
        match self {
            Self::Back => Failure::Reset { object },
            Self::Silence(silence) => Failure::Stalled { object, silence },
        }
    }
}

/// A counter as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "exact to 2^53, and nobody minds a byte in 8 PiB")]
pub(crate) const fn number(counter: u64) -> f64 {
    counter as f64
}
