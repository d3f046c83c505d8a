//! `random`: the same share for each endpoint, wherever it is. What kube-proxy does.

use super::{Decision, Inputs, Policy, Reason};

/// The policy `random`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Policy for Random {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let of = inputs.endpoints.len();
        Decision::in_proportion(vec![1.0; of], vec![Reason::Ranked { by: "chance", chosen: of, of }])
    }
}
