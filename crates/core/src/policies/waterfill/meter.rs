//! What one new flow per second costs of a resource: learned, never configured.

use std::time::Duration;

use super::constants::{COST_MEMORY, LEAST_COST, REMAINS, SMOOTHING, SPREAD_TO_LEARN};
use super::smooth::Smoothed;

/// One resource that the service uses: the node's CPU, its network, or what the limits of the pods allow.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    used: Smoothed,
    part: Smoothed,
    work: Smoothed,
    /// Time since the last work.
    quiet: Duration,
    moments: Moments,
    cost: Option<f64>,
    learned: bool,
}

/// Running moments of utilisation over work.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    work: Smoothed,
    used: Smoothed,
    variance: Smoothed,
    covariance: Smoothed,
}

/// What a meter says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Level {
    /// Utilisation, smoothed.
    pub(super) used: f64,
    /// Utilisation that one new flow per second costs; None if there was none yet.
    pub(super) cost: Option<f64>,
    /// Whether the cost is more than the guess that the service alone uses the resource.
    pub(super) learned: bool,
    /// Utilisation that is not the service's.
    pub(super) background: f64,
}

impl Meter {
    /// Takes a utilisation, the service's part of it if that is known, and the flows per second that were done when it
    /// was measured.
    pub(super) fn read(&mut self, used: f64, part: Option<f64>, work: f64, elapsed: Duration) -> Level {
        self.quiet = if work > 0.0 { Duration::ZERO } else { self.quiet.saturating_add(elapsed) };
        let used = self.used.follow(used, elapsed, SMOOTHING);
        let work = self.work.follow(work, elapsed, SMOOTHING);
        let part = part.map(|part| self.part.follow(part, elapsed, SMOOTHING).min(used));
        // The same filter for both, so that their ratio is right while they move. Later it is that of what a service uses
        // without any work to nearly nothing, and flows would get dearer for as long as none comes.
        match part {
            Some(part) if work > 0.0 && part > 0.0 && self.quiet <= REMAINS => {
                (self.cost, self.learned) = (Some(part / work), true);
            }
            Some(_) => {}
            None => self.learn(used, work, elapsed),
        }
        let background = match (part, self.cost) {
            (Some(part), _) => used - part,
            (None, Some(cost)) => (used - cost * work).max(0.0),
            (None, None) => used,
        };
        Level { used, cost: self.cost, learned: self.learned, background }
    }

    /// The slope of utilisation over work once work has varied enough to show it. Until then all of the utilisation is
    /// the service's: a guess on the safe side, which gets better as flows leave.
    fn learn(&mut self, used: f64, work: f64, elapsed: Duration) {
        let Moments { work: mean_work, used: mean_used, variance, covariance } = &mut self.moments;
        let (away, off) =
            (work - mean_work.follow(work, elapsed, COST_MEMORY), used - mean_used.follow(used, elapsed, COST_MEMORY));
        let variance = variance.follow(away * away, elapsed, COST_MEMORY);
        let covariance = covariance.follow(away * off, elapsed, COST_MEMORY);
        if work <= 0.0 || used <= 0.0 {
            return;
        }
        let whole = used / work;
        let mean = mean_work.get().unwrap_or(work);
        if variance > (SPREAD_TO_LEARN * mean).powi(2) {
            self.cost = Some((covariance / variance).clamp(LEAST_COST * whole, whole));
            self.learned = true;
        } else if !self.learned {
            self.cost = Some(whole);
        }
        self.cost = self.cost.map(|cost| cost.min(whole));
    }
}
