//! `rap`: Resource Adaptive Proxy (Nguyen, Phan, Kim; Sensors 2022, 22(8), 2869). Local while CPU and memory are below
//! a threshold, otherwise all to the best remote node that is below it; if there is none, local.
//!
//! Kept as the paper has it, with what it is known for: all nodes choose the same best one, and the switch is whole.

use std::time::Duration;

use super::{Decision, Inputs, Policy, Reason};
use crate::load::{NodeLoad, Sample, Share};

/// Both thresholds: 90 % (section 4, Figure 5).
pub const THRESHOLD: f64 = 0.9;
/// The weights of CPU, memory and delay. The paper leaves them to the operator; these are equal.
pub const WEIGHTS: [f64; 3] = [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0];
/// Round-trip time that is worth nothing, the denominator of delay: above the largest of the paper's tests, 18 ms.
pub const RTT_SCALE: Duration = Duration::from_millis(20);

/// The score of a node: the weighted sum of what is free of CPU, memory and nearness, each from 0 to 1. A node that was
/// never measured counts as far.
#[must_use]
pub fn score(cpu: Share, memory: Share, rtt: Option<Duration>) -> f64 {
    let near = rtt.map_or(0.0, |rtt| Share::clamped(1.0 - rtt.as_secs_f64() / RTT_SCALE.as_secs_f64()).get());
    WEIGHTS[0] * cpu.rest().get() + WEIGHTS[1] * memory.rest().get() + WEIGHTS[2] * near
}

/// CPU and memory, if both are known and below the threshold.
fn below(load: Option<NodeLoad>, threshold: f64) -> Option<(Share, Share)> {
    let NodeLoad { cpu, memory, .. } = load?;
    let (Sample { value: cpu, .. }, Sample { value: memory, .. }) = (cpu?, memory?);
    (cpu.get() < threshold && memory.get() < threshold).then_some((cpu, memory))
}

/// The policy `rap`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rap;

impl Policy for Rap {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let threshold = inputs.parameters.target.map_or(THRESHOLD, Share::get);
        let here = inputs.here();
        let endpoints = inputs.endpoints_by_node();
        let usable = |node: usize| inputs.is_near_enough(node) && endpoints[node] > 0;
        let remote = (0..inputs.nodes.len()).filter(|node| !inputs.nodes[*node].local && usable(*node));
        let best = || {
            let scored = remote.filter_map(|node| {
                let (cpu, memory) = below(inputs.load_of(node), threshold)?;
                Some((node, score(cpu, memory, inputs.rtt_of(node))))
            });
            scored.max_by(|(_, a), (_, b)| a.total_cmp(b))
        };
        let stays = here.is_some_and(|node| below(inputs.load_of(node), threshold).is_some());
        let mut shares = vec![0.0; inputs.nodes.len()];
        let reason = match (here, if stays { None } else { best() }) {
            (_, Some((node, score))) => {
                let most = if here.is_some() { inputs.parameters.max_spill.get() } else { 1.0 };
                shares[node] = most;
                if let Some(here) = here {
                    shares[here] = 1.0 - most;
                }
                Reason::Best { node: inputs.nodes[node].name.clone(), score }
            }
            (Some(node), None) => {
                shares[node] = 1.0;
                if stays {
                    Reason::Best { node: inputs.nodes[node].name.clone(), score: 1.0 }
                } else {
                    Reason::NoHeadroom
                }
            }
            (None, None) => Reason::NoLocalEndpoint,
        };
        Decision::by_node(inputs, &shares, vec![reason])
    }
}
