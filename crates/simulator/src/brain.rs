//! A node's agent: the same controller as the real one, fed by the model.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use weir_core::controller::Controller;
use weir_core::ejection::Outcome;
use weir_core::load::{NodeLoad, Sample, ServiceLoad, Share};
use weir_core::plan::{Selector, TierPlan};
use weir_core::policies::{Endpoint, EndpointLoad, Inputs, Kind, Node, Offered, Own, Parameters, PodsLoad};

use crate::feed::{Feed, Knowledge, SERVICE, Told, ticks};
use crate::scenario::TICK;

/// Of a node's link that a flow per second uses: a small answer, on a gigabit.
const NETWORK_PER_FLOW: f64 = 1e5 / 1e9;

/// What an agent's counters say of the time since its last tick.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// New flows from clients of the node.
    pub(crate) offered: f64,
    /// New flows that its endpoint got.
    pub(crate) local: f64,
    /// Utilisation of its service's cores, summed up over `steps`.
    pub(crate) used: f64,
    /// Steps.
    pub(crate) steps: f64,
}

/// An agent, with the node that it is on.
pub(crate) struct Brain {
    controller: Controller,
    /// What it wrote last.
    plan: TierPlan,
    pub(crate) knowledge: Knowledge,
    pub(crate) counted: Counted,
    /// What it told of late, the newest first.
    pub(crate) past: VecDeque<Told>,
    /// What the maps say: shares by position in the zone.
    pub(crate) shares: Vec<f64>,
    endpoints: Vec<Endpoint>,
    here: usize,
    cores: u32,
    parameters: Parameters,
}

impl Brain {
    /// That of the node at a position of a zone of some nodes. Until it decides all stays.
    pub(crate) fn new(kind: Kind, here: usize, nodes: usize, cores: u32, feed: &Feed, knowledge: Knowledge) -> Self {
        let mut shares = vec![0.0; nodes];
        shares[here] = 1.0;
        Self {
            controller: Controller::new(kind),
            plan: TierPlan { spill: 0, local: vec![(here, 1)], remote: Vec::new() },
            knowledge,
            counted: Counted::default(),
            past: VecDeque::new(),
            shares,
            endpoints: (0..nodes).map(endpoint).collect(),
            here,
            cores,
            parameters: Parameters { report_interval: feed.report_interval(), ..Parameters::default() },
        }
    }

    /// What the node told so many ticks ago, or the oldest that it told.
    pub(crate) fn told(&self, ago: u64) -> Told {
        let ago = usize::try_from(ago).unwrap_or(usize::MAX);
        self.past.get(ago).or(self.past.back()).copied().unwrap_or_default()
    }

    /// Begins anew, as an agent does when its node is back.
    pub(crate) fn restart(&mut self) {
        self.controller = Controller::new(self.controller.kind());
    }

    /// Flows of this node at its endpoints: open, and ever.
    pub(crate) fn sees(&mut self, position: usize, open: f64, ever: f64) {
        let endpoint = &mut self.endpoints[position];
        (endpoint.open_flows, endpoint.flows) = (whole(open), u64::from(whole(ever)));
    }

    /// Tells how the node is, and decides. `outcomes` are those of its flows, by position. Whether the maps changed.
    pub(crate) fn tick(&mut self, tick: &Tick<'_>, outcomes: &[Outcome]) -> bool {
        let Tick { names, at, feed, alive, share, open } = *tick;
        let Counted { offered, local, used, steps } = std::mem::take(&mut self.counted);
        let seconds = TICK.as_secs_f64();
        let used = if steps > 0.0 { used / steps } else { 0.0 };
        self.tell(&Measured { used, share, local: local / seconds, open }, at, alive, feed);
        if !alive {
            return false;
        }
        let longest = self.parameters.report_interval * Parameters::INELIGIBLE_AFTER_INTERVALS;
        self.knowledge.grow_older(at, ticks(longest.max(Parameters::INELIGIBLE_AFTER)));
        let late = ticks(feed.delay);
        let (own, pods) = self.own(late);
        let inputs = Inputs {
            service: SERVICE,
            elapsed: TICK,
            nodes: &nodes(names, self.here, &self.knowledge),
            endpoints: &self.endpoints,
            own: &Own { load: own, pods: Some(pods) },
            offered: Offered {
                flows_per_second: offered / seconds,
                begun_per_second: offered / seconds,
                local_flows_per_second: local / seconds,
                open_flows: whole(open),
            },
            relies_on: None,
            parameters: &self.parameters,
        };
        let written = self.controller.tick(&inputs, outcomes).write;
        let wrote = written.is_some();
        self.plan = written.unwrap_or(std::mem::take(&mut self.plan));
        let selector = self.controller.kind().selector();
        if wrote || selector == Selector::LeastConn {
            self.apply(selector);
        }
        wrote
    }

    /// What the datapath makes of the plan: the tier by the spill, if both have endpoints, then by weight, or what comes of two
    /// draws by weight. Tables for all nodes alike divide as their weights do.
    fn apply(&mut self, selector: Selector) {
        let TierPlan { spill, local, remote } = &self.plan;
        let spill = match (local.is_empty(), remote.is_empty()) {
            (true, _) => 1.0,
            (false, true) => 0.0,
            (false, false) => f64::from(*spill) / 65_536.0,
        };
        self.shares.fill(0.0);
        for (tier, part) in [(local, 1.0 - spill), (remote, spill)] {
            let sum: f64 = tier.iter().map(|(_, weight)| f64::from(*weight)).sum();
            let weights: Vec<f64> = tier.iter().map(|(_, weight)| f64::from(*weight) / sum).collect();
            let open = tier.iter().map(|(backend, _)| f64::from(self.endpoints[*backend].open_flows));
            let weights = match selector {
                Selector::Weights | Selector::Maglev => weights,
                Selector::LeastConn => of_two_draws(&weights, &open.collect::<Vec<_>>()),
            };
            for ((backend, _), weight) in tier.iter().zip(weights) {
                self.shares[*backend] = part * weight;
            }
        }
    }

    /// What it measures of itself, as old as it is when it is used.
    fn own(&self, late: u64) -> (NodeLoad, Sample<PodsLoad>) {
        let told = self.told(late);
        let age = TICK * u32::try_from(late).unwrap_or(u32::MAX);
        let NodeLoad { cpu, memory, network, pressure, capacity, bandwidth } = told.load(self.cores);
        let aged = |sample: Option<Sample<_>>| sample.map(|sample: Sample<_>| sample.aged(age));
        let (cpu, memory, network) = (aged(cpu), aged(memory), aged(network));
        let load = NodeLoad { cpu, memory, network, pressure, capacity, bandwidth };
        (load, Sample { value: PodsLoad { cores: told.pods, limit: None }, age })
    }

    fn tell(&mut self, measured: &Measured, at: u64, alive: bool, feed: &Feed) {
        let spare = self.controller.spare(self.knowledge.spillers(at)).filter(|_| feed.tells_spare);
        let told = measured.told(self.cores, at, alive, spare);
        self.past.push_front(told);
        self.past.truncate(usize::try_from(ticks(feed.delay)).unwrap_or(usize::MAX).saturating_add(1));
    }
}

/// What a tick of an agent needs besides its own state.
#[derive(Clone, Copy)]
pub(crate) struct Tick<'a> {
    /// Of the nodes of the zone.
    pub(crate) names: &'a [Arc<str>],
    /// Ticks since the beginning.
    pub(crate) at: u64,
    pub(crate) feed: &'a Feed,
    /// Whether the node is there.
    pub(crate) alive: bool,
    /// Part of the node that the service can have.
    pub(crate) share: f64,
    /// Flows that its endpoint has open.
    pub(crate) open: f64,
}

/// A node's own figures of a tick.
struct Measured {
    used: f64,
    share: f64,
    local: f64,
    open: f64,
}

impl Measured {
    fn told(&self, cores: u32, at: u64, alive: bool, spare: Option<f64>) -> Told {
        let Self { used, share, local, open } = *self;
        let service =
            ServiceLoad { flows_per_second: local, open_flows: whole(open), spare: spare.unwrap_or_default() };
        Told {
            cpu: Share::clamped(1.0 - share + share * used),
            network: Share::clamped(local * NETWORK_PER_FLOW),
            pods: f64::from(cores) * share * used,
            service,
            spare: spare.is_some(),
            alive,
            at,
        }
    }
}

fn nodes<'a>(names: &[Arc<str>], here: usize, knowledge: &'a Knowledge) -> Vec<Node<'a>> {
    let node = |(position, name): (usize, &Arc<str>)| Node {
        name: Arc::clone(name),
        local: position == here,
        report: knowledge.reports[position].as_ref(),
        interval: None,
    };
    names.iter().enumerate().map(node).collect()
}

fn endpoint(position: usize) -> Endpoint {
    let host = u32::try_from(position).unwrap_or(u32::MAX);
    let address = SocketAddr::from((Ipv4Addr::from(0x0a00_0001_u32.saturating_add(host)), 80));
    Endpoint { backend: position, address, node: position, load: EndpointLoad::default(), open_flows: 0, flows: 0 }
}

/// The part of new flows that each gets if one is drawn by weight and another one among the rest, and the one with fewer open
/// flows for its weight is taken, the first of two that are alike. Weights sum up to 1.
fn of_two_draws(weights: &[f64], open: &[f64]) -> Vec<f64> {
    if weights.len() < 2 {
        return weights.to_vec();
    }
    let load = |index: usize| open[index] / weights[index];
    // Drawn after it: what of all others is left.
    let then = |index: usize| weights[index] / (1.0 - weights[index]);
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| load(*b).total_cmp(&load(*a)));
    let (mut parts, mut busier, mut busier_then) = (vec![0.0; weights.len()], 0.0, 0.0);
    for alike in order.chunk_by(|a, b| load(*a).total_cmp(&load(*b)).is_eq()) {
        let weight: f64 = alike.iter().map(|index| weights[*index]).sum();
        for index in alike {
            // Against one that is busier it is taken whichever was drawn first.
            let first = then(*index) * (busier + weight - weights[*index]);
            parts[*index] = first + weights[*index] * busier_then;
        }
        busier += weight;
        busier_then += alike.iter().map(|index| then(*index)).sum::<f64>();
    }
    parts
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts, saturated")]
const fn whole(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_draws_the_less_busy_is_taken_and_nothing_is_lost() {
        let parts = of_two_draws(&[0.25, 0.25, 0.5], &[2.0, 0.0, 2.0]);
        // By weight the first has 8, the second nothing, the third 4: the second wins wherever it is drawn.
        assert_eq!(parts[0], 0.0, "{parts:?}");
        let with_second = 0.25 + 0.25 * (0.25 / 0.75) + 0.5 * (0.25 / 0.5);
        assert!((parts[1] - with_second).abs() < 1e-12, "{parts:?}");
        assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(of_two_draws(&[0.5, 0.5], &[3.0, 3.0]), [0.5, 0.5], "as the weights where both are alike");
    }
}
