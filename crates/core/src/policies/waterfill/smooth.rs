//! Filters for numbers that shake, and the memory that lines them up with numbers that come late.

use std::collections::VecDeque;
use std::time::Duration;

/// Entries of a [`History`] at most: 32 s of ticks of a quarter second, more than the oldest data that may count.
const HISTORY: usize = 128;

/// A number behind a first-order filter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Smoothed(Option<f64>);

impl Smoothed {
    /// The number now, None before the first.
    pub(super) const fn get(self) -> Option<f64> {
        self.0
    }

    /// Follows a number with a time constant. The first is taken as it is.
    pub(super) fn follow(&mut self, number: f64, elapsed: Duration, constant: Duration) -> f64 {
        let part = if constant.is_zero() { 1.0 } else { 1.0 - (-elapsed.div_duration_f64(constant)).exp() };
        let next = self.0.map_or(number, |old| old + (number - old) * part);
        self.0 = Some(next);
        next
    }

    /// Follows with another time constant downwards than upwards; zero is at once.
    pub(super) fn follow_unevenly(&mut self, number: f64, elapsed: Duration, up: Duration, down: Duration) -> f64 {
        let rises = self.0.is_none_or(|old| number > old);
        self.follow(number, elapsed, if rises { up } else { down })
    }
}

/// What a number was.
#[derive(Clone, Debug, Default)]
pub(super) struct History(VecDeque<(Duration, f64)>);

impl History {
    /// Adds the number of the time that has elapsed, and answers what it was an age ago; the oldest known if that is
    /// longer ago than it remembers. Forgets what is older than the age.
    pub(super) fn add(&mut self, number: f64, elapsed: Duration, age: Duration) -> f64 {
        self.0.push_front((elapsed, number));
        self.0.truncate(HISTORY);
        let mut start = Duration::ZERO;
        let found = self.0.iter().position(|(span, _)| {
            start = start.saturating_add(*span);
            start > age
        });
        if let Some(found) = found {
            self.0.truncate(found + 1);
        }
        self.0.back().map_or(number, |(_, number)| *number)
    }
}
