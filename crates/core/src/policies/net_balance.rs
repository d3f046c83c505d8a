//! `net-balance`: balanced network I/O, BNIP (Mondal, Zheng, Cheng; Mathematics 2024, 12, 2476). The node on which the
//! next load leaves the least variance of network utilisation over all nodes gets it.

use super::{Decision, Inputs, Policy, Reason};

/// Parts into which a tick's load is cut, so that one after another can be placed.
const PARTS: u32 = 64;
/// Bandwidth of a node that tells none, in bits per second: a gigabit.
const UNKNOWN_BANDWIDTH: f64 = 1e9;
/// What a new flow is taken to bring to the network, in bits per second, as nobody knows it before: that of a small
/// answer per second. It is only compared with itself.
const BITS_PER_FLOW: f64 = 1e5;

/// A node's network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Bits per second in use, N.
    pub load: f64,
    /// Bits per second that it can carry, B, above 0.
    pub bandwidth: f64,
}

impl Network {
    /// U = N / B.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        self.load / self.bandwidth
    }
}

/// P: by node, the variance of utilisation over all nodes if it got a load. The mean is the one after that.
#[must_use]
pub fn variances(nodes: &[Network], load: f64) -> Vec<f64> {
    let count = nodes.len() as f64;
    let sum: f64 = nodes.iter().map(Network::utilisation).sum();
    let squares: f64 = nodes.iter().map(|node| node.utilisation().powi(2)).sum();
    let variance = |node: &Network| {
        let (before, more) = (node.utilisation(), load / node.bandwidth);
        let mean = (sum + more) / count;
        (squares - before.powi(2) + (before + more).powi(2)) / count - mean.powi(2)
    };
    nodes.iter().map(variance).collect()
}

/// S: by node, from 0 for the largest variance to 10 for the least; 10 for all if they are the same.
#[must_use]
pub fn scores(variances: &[f64]) -> Vec<f64> {
    let least = variances.iter().copied().fold(f64::INFINITY, f64::min);
    let most = variances.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = most - least;
    variances.iter().map(|p| if range > 0.0 { 10.0 - 10.0 * (p - least) / range } else { 10.0 }).collect()
}

/// Places a load: the index of the node with the highest score, the first of equals. None if there are no nodes.
pub fn place(nodes: &mut [Network], load: f64) -> Option<usize> {
    let variances = variances(nodes, load);
    let (best, _) = variances.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    nodes[best].load += load;
    Some(best)
}

/// The policy `net-balance`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetBalance;

impl Policy for NetBalance {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let endpoints = inputs.endpoints_by_node();
        let candidates: Vec<usize> = (0..inputs.nodes.len())
            .filter(|node| endpoints[*node] > 0 && inputs.is_near_enough(*node))
            .filter(|node| network(inputs, *node).is_some())
            .collect();
        let mut networks: Vec<Network> = candidates.iter().filter_map(|node| network(inputs, *node)).collect();
        let part = inputs.offered.flows_per_second.max(1.0) * BITS_PER_FLOW / f64::from(PARTS);
        let mut shares = vec![0.0; inputs.nodes.len()];
        for _ in 0..PARTS {
            if let Some(best) = place(&mut networks, part) {
                shares[candidates[best]] += 1.0;
            }
        }
        // Nothing is known of any node: what is here stays here.
        if let (true, Some(here)) = (candidates.is_empty(), inputs.here()) {
            shares[here] = 1.0;
        }
        let chosen = inputs.endpoints.iter().filter(|endpoint| shares[endpoint.node] > 0.0).count();
        let reason = Reason::Ranked { by: "variance of network load", chosen, of: inputs.endpoints.len() };
        Decision::by_node(inputs, &shares, vec![reason])
    }
}

fn network(inputs: &Inputs<'_>, node: usize) -> Option<Network> {
    let told = inputs.load_of(node)?;
    let share = told.network?.value.get();
    let bandwidth = if told.bandwidth > 0.0 { told.bandwidth } else { UNKNOWN_BANDWIDTH };
    Some(Network { load: share * bandwidth, bandwidth })
}
