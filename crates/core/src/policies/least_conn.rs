//! `least-conn`: fewer open flows, a larger share.
//!
//! As far as weights go: they follow the counters once a tick. Choosing the less busy of two at each new flow (power of
//! two choices) needs the datapath to read counters of open flows when it selects, which it does not.

use super::{Decision, Inputs, Policy, Reason};

/// The policy `least-conn`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastConn;

impl Policy for LeastConn {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        // One more than open: the flow that is to come counts, and nobody gets infinitely much.
        let weights = inputs.endpoints.iter().map(|endpoint| 1.0 / (f64::from(endpoint.open_flows) + 1.0)).collect();
        let of = inputs.endpoints.len();
        Decision::in_proportion(weights, vec![Reason::Ranked { by: "open flows", chosen: of, of }])
    }
}
