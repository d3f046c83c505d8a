//! What a policy answers, and how it becomes what the maps can say.

use super::{Inputs, Reason};
use crate::plan::TierPlan;

/// Weights of a tier sum up to about this: fine enough for the thousandth of a share of 60 endpoints.
const WEIGHT_SCALE: f64 = 1_048_576.0;

/// Shares of new flows, with the reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// By endpoint, in the order of [`Inputs::endpoints`]. They sum up to 1, unless there are no endpoints.
    pub shares: Vec<f64>,
    /// Why, for people.
    pub reasons: Vec<Reason>,
}

impl Decision {
    /// Shares in proportion to weights. Weights that are not finite or negative count as 0; if nothing is left, every
    /// endpoint gets the same, as with kube-proxy.
    #[must_use]
    pub fn in_proportion(mut weights: Vec<f64>, reasons: Vec<Reason>) -> Self {
        for weight in &mut weights {
            *weight = if weight.is_finite() { weight.max(0.0) } else { 0.0 };
        }
        // The largest first becomes 1, so that the sum cannot overflow.
        let most = weights.iter().copied().fold(0.0, f64::max);
        if most > 0.0 {
            weights.iter_mut().for_each(|weight| *weight /= most);
        } else {
            weights.fill(1.0);
        }
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        Self { shares: weights, reasons }
    }

    /// The same share for each endpoint of a node, given the nodes' shares.
    #[must_use]
    pub fn by_node(inputs: &Inputs<'_>, nodes: &[f64], reasons: Vec<Reason>) -> Self {
        let count = inputs.endpoints_by_node();
        let share = |node: usize| nodes[node] / f64::from(count[node]);
        Self::in_proportion(inputs.endpoints.iter().map(|endpoint| share(endpoint.node)).collect(), reasons)
    }

    /// Share of new flows that leave the node.
    #[must_use]
    pub fn spill(&self, inputs: &Inputs<'_>) -> f64 {
        let remote = self.shares.iter().enumerate().filter(|(endpoint, _)| !inputs.is_local(*endpoint));
        remote.map(|(_, share)| share).sum::<f64>().clamp(0.0, 1.0)
    }

    /// As the maps have it: the spill, and the weights within each tier. An endpoint without a share is in no tier.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded numbers in range")]
    pub fn tiers(&self, inputs: &Inputs<'_>) -> TierPlan {
        let spill = self.spill(inputs);
        let weight = |share: f64, tier: f64| ((share / tier * WEIGHT_SCALE).round() as u32).max(1);
        let mut plan = TierPlan::default();
        for (index, (endpoint, share)) in inputs.endpoints.iter().zip(&self.shares).enumerate() {
            if *share <= 0.0 {
                continue;
            }
            if inputs.is_local(index) {
                plan.local.push((endpoint.backend, weight(*share, 1.0 - spill)));
            } else {
                plan.remote.push((endpoint.backend, weight(*share, spill)));
            }
        }
        plan.spill = if plan.local.is_empty() { u16::MAX } else { (spill * 65_536.0).round() as u16 };
        plan
    }

    /// Half the sum of all differences: the part of the new flows that would go elsewhere. Both are of the same
    /// endpoints.
    #[must_use]
    pub fn distance(&self, other: &[f64]) -> f64 {
        self.shares.iter().zip(other).map(|(mine, theirs)| (mine - theirs).abs()).sum::<f64>() / 2.0
    }
}
