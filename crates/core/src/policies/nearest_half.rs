//! `nearest-half`: the enhanced EdgeMesh scheduling (Narawade, NCI 2023). Of the nearer half of the endpoints, the one
//! with the fewest requests for its weight. Weights are static in the paper, and all 1 here.

use std::cmp::Ordering;
use std::time::Duration;

use super::{Decision, Inputs, Policy, Reason};

/// How many of some endpoints are the nearer half: 3 of 6 in the paper, the larger half of an odd number.
#[must_use]
pub const fn half(endpoints: usize) -> usize {
    endpoints.div_ceil(2)
}

/// How many of `expected` requests each endpoint gets if each goes to the one with the fewest so far: the counts are
/// levelled from below.
#[must_use]
pub fn level(counts: &[f64], expected: f64) -> Vec<f64> {
    let mut sorted = counts.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut level = 0.0;
    let mut below = 0.0;
    for (filled, count) in sorted.iter().enumerate() {
        let reached = filled as f64;
        if filled > 0 && (expected + below) / reached <= *count {
            break;
        }
        below += count;
        level = (expected + below) / (reached + 1.0);
    }
    counts.iter().map(|count| (level - count).max(0.0)).collect()
}

/// The policy `nearest-half`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NearestHalf;

impl Policy for NearestHalf {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let of = inputs.endpoints.len();
        let mut nearest: Vec<usize> = (0..of).collect();
        nearest.sort_by(|a, b| by_rtt(inputs, *a, *b));
        nearest.truncate(half(of));
        // What the next tick brings is levelled out; at least one request, or nobody would get the next.
        let expected = (inputs.offered.begun_per_second * inputs.elapsed.as_secs_f64()).max(1.0);
        let fewest = nearest.iter().map(|endpoint| inputs.endpoints[*endpoint].flows).min().unwrap_or(0);
        let counts: Vec<f64> =
            nearest.iter().map(|endpoint| (inputs.endpoints[*endpoint].flows - fewest) as f64).collect();
        let mut weights = vec![0.0; of];
        for (endpoint, flows) in nearest.iter().zip(level(&counts, expected)) {
            weights[*endpoint] = flows;
        }
        let chosen = weights.iter().filter(|weight| **weight > 0.0).count();
        Decision::in_proportion(weights, vec![Reason::Ranked { by: "delay, then fewest flows", chosen, of }])
    }
}

/// The nearer first; one that was never measured last; by address, so that equal ones stay as they are.
fn by_rtt(inputs: &Inputs<'_>, a: usize, b: usize) -> Ordering {
    let key = |endpoint: usize| {
        let rtt = inputs.rtt_of(inputs.endpoints[endpoint].node).unwrap_or(Duration::MAX);
        (rtt, inputs.endpoints[endpoint].address)
    };
    key(a).cmp(&key(b))
}
