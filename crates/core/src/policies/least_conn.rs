//! `least-conn`: of two endpoints, the one with fewer open flows (power of two choices; Mitzenmacher, The power of two
//! choices in randomized load balancing, 2001).
//!
//! The kernel draws and compares for each new flow ([`crate::plan::Selector::LeastConn`]), among the endpoints of this node
//! or among the others. What is left to decide here is how many flows leave the node: the fewer its endpoints have open, the
//! more stay.

use super::{Decision, Inputs, Policy, Reason};

/// The policy `least-conn`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastConn;

impl Policy for LeastConn {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let means = [false, true].map(|local| mean(inputs, local));
        let of = inputs.endpoints.len();
        let weights = (0..of).map(|endpoint| means[usize::from(inputs.is_local(endpoint))]).collect();
        Decision::in_proportion(weights, vec![Reason::Ranked { by: "open flows", chosen: of, of }])
    }
}

/// What an endpoint of a tier weighs on average; 0 without one.
fn mean(inputs: &Inputs<'_>, local: bool) -> f64 {
    let of_tier = inputs.endpoints.iter().enumerate().filter(|(endpoint, _)| inputs.is_local(*endpoint) == local);
    // One more than open: the flow that is to come counts, and nobody gets infinitely much.
    let weights = of_tier.map(|(_, endpoint)| 1.0 / (f64::from(endpoint.open_flows) + 1.0));
    let (sum, count) = weights.fold((0.0, 0.0), |(sum, count), weight| (sum + weight, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}
