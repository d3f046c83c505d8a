//! What generators measured, added up.

/// What one generator measured, or several.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// Answers per second.
    pub(super) rps: f64,
    pub(super) seconds: f64,
    /// Of all requests.
    pub(super) mean_ms: f64,
    /// Times of requests that evenly many stayed below: the first is the shortest, the last the longest.
    pub(super) quantiles_ms: Vec<f64>,
}

/// Steps of a list of quantiles.
const STEPS: usize = 100;

impl Measured {
    /// Quantiles of sorted times.
    pub(super) fn quantiles_of(sorted: &[f64]) -> Vec<f64> {
        let Some(last) = sorted.len().checked_sub(1) else { return Vec::new() };
        (0..=STEPS).map(|step| sorted[(step * last).div_ceil(STEPS)]).collect()
    }

    /// The time that 99 % of requests stayed within.
    pub(super) fn p99_ms(&self) -> f64 {
        let last = self.quantiles_ms.len().saturating_sub(1);
        self.quantiles_ms.get((last * 99).div_ceil(100)).copied().unwrap_or_default()
    }

    /// Together with what was measured at the same time.
    pub(super) fn beside(&self, other: &Self) -> Self {
        Self { rps: self.rps + other.rps, seconds: self.seconds.max(other.seconds), ..self.merged(other) }
    }

    /// Together with what was measured afterwards.
    pub(super) fn then(&self, other: &Self) -> Self {
        let (merged, seconds) = (self.merged(other), self.seconds + other.seconds);
        Self { rps: rate(merged.answered, seconds), seconds, ..merged }
    }

    /// Numbers, mean and quantiles of both.
    fn merged(&self, other: &Self) -> Self {
        let (own, others) = (self.answered as f64, other.answered as f64);
        let all = (own + others).max(1.0);
        let mut weighed: Vec<(f64, f64)> = Vec::new();
        for (measured, weight) in [(self, own), (other, others)] {
            let each = weight / measured.quantiles_ms.len().max(1) as f64;
            weighed.extend(measured.quantiles_ms.iter().map(|time| (*time, each)));
        }
        weighed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let total: f64 = weighed.iter().map(|(_, weight)| weight).sum();
        let mut quantiles_ms = Vec::new();
        let mut below = 0.0;
        for (time, weight) in &weighed {
            below += weight;
            // A little tolerance: sums of parts do not reach the whole.
            while quantiles_ms.len() <= STEPS && below >= total * quantiles_ms.len() as f64 / STEPS as f64 - 1e-9 {
                quantiles_ms.push(*time);
            }
        }
        Self {
            answered: self.answered + other.answered,
            failed: self.failed + other.failed,
            rps: 0.0,
            seconds: 0.0,
            mean_ms: (self.mean_ms * own + other.mean_ms * others) / all,
            quantiles_ms,
        }
    }
}

/// Per second; zero of no time.
pub(super) fn rate(answered: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { answered as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(answered: u64, seconds: f64, times: &[f64]) -> Measured {
        let mean_ms = times.iter().sum::<f64>() / times.len() as f64;
        Measured {
            answered,
            failed: 1,
            rps: rate(answered, seconds),
            seconds,
            mean_ms,
            quantiles_ms: Measured::quantiles_of(times),
        }
    }

    #[test]
    fn generators_side_by_side_add_their_rates_and_weigh_their_times() {
        let fast = measured(9900, 5.0, &[1.0]);
        let slow = measured(100, 5.0, &[101.0]);
        let both = fast.beside(&slow);
        assert_eq!((both.answered, both.failed), (10_000, 2));
        assert!((both.rps - 2000.0).abs() < 1e-6 && (both.mean_ms - 2.0).abs() < 1e-9, "{both:?}");
        // One percent was slow.
        assert_eq!((both.quantiles_ms.len(), both.quantiles_ms[50], both.p99_ms()), (101, 1.0, 1.0));
        assert_eq!(both.quantiles_ms[100], 101.0);
    }

    #[test]
    fn runs_one_after_the_other_add_their_times() {
        let both = measured(100, 1.0, &[1.0]).then(&measured(100, 3.0, &[3.0]));
        assert_eq!((both.answered, both.rps, both.mean_ms), (200, 50.0, 2.0));
        assert_eq!((both.quantiles_ms[10], both.p99_ms()), (1.0, 3.0));
    }

    #[test]
    fn nothing_at_all_is_zero() {
        let nothing = Measured::default().beside(&Measured::default());
        assert_eq!((nothing.rps, nothing.p99_ms(), nothing.mean_ms), (0.0, 0.0, 0.0));
    }
}
