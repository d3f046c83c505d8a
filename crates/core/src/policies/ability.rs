//! `ability`: dynamic multi-metric balancing for web services. Each endpoint has an ability per factor, abilities make
//! eight groups, and a request goes to the best graded of three candidates, or to the middle one if it is not urgent.
//!
//! The paper draws candidates at random for each request. Weights cannot: each endpoint gets the probability with which
//! the draw and the grade would choose it. A request's class is the service's, since packets do not tell it.

use std::str::FromStr;

use super::{Decision, Endpoint, Inputs, Policy, Reason};
use crate::load::{Sample, Share};

/// α, β, γ, δ: the weights of an endpoint's own usage, its rank among all, its node and what it relies on.
pub const PARTS: [f64; 4] = [0.5, 0.1, 0.2, 0.2];
/// T_c, T_m, T_n: abilities from which a factor is high.
pub const THRESHOLDS: Factors<f64> = Factors { cpu: 0.7, memory: 0.5, network: 0.5 };
/// T_r: relative cost at which a request type is high in a factor.
pub const REQUEST_THRESHOLD: f64 = 0.5;
/// How many endpoints are drawn.
pub const CANDIDATES: usize = 3;

/// One of something for each factor.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Factors<T> {
    /// CPU.
    pub cpu: T,
    /// Memory.
    pub memory: T,
    /// Network.
    pub network: T,
}

/// High or low.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Level {
    /// H.
    High,
    /// -.
    #[default]
    Low,
}

impl Level {
    /// 0 sorts before 1: high before low.
    const fn bit(self) -> u8 {
        match self {
            Self::High => 0,
            Self::Low => 1,
        }
    }
}

impl Factors<Level> {
    fn high(self) -> usize {
        [self.cpu, self.memory, self.network].into_iter().filter(|level| *level == Level::High).count()
    }

    /// At least two factors are high: of a request, that it is urgent; of an endpoint, that it is in g1, g2, g3 or g5.
    #[must_use]
    pub fn is_high(self) -> bool {
        self.high() >= 2
    }

    /// 1 to 8: HHH, HH-, H-H, H--, -HH, -H-, --H, ---.
    #[must_use]
    pub const fn group(self) -> u8 {
        1 + (self.cpu.bit() << 2 | self.memory.bit() << 1 | self.network.bit())
    }

    /// θ, λ, μ: what the factors are worth for requests of a class.
    #[must_use]
    pub const fn weights(self) -> Factors<f64> {
        let (cpu, memory, network) = match self.group() {
            2 => (0.4, 0.4, 0.2),
            3 => (0.4, 0.2, 0.4),
            4 => (0.6, 0.2, 0.2),
            5 => (0.2, 0.4, 0.4),
            6 => (0.2, 0.6, 0.2),
            7 => (0.2, 0.2, 0.6),
            // 1 and 8, HHH and ---.
            _ => (0.4, 0.3, 0.3),
        };
        Factors { cpu, memory, network }
    }
}

/// A request class that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("request class {0:?} is none: write H or - for cpu, memory and network, as in \"H--\"")]
pub struct UnknownClass(String);

impl FromStr for Factors<Level> {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        let level = |byte: u8| match byte {
            b'H' => Some(Level::High),
            b'-' => Some(Level::Low),
            _ => None,
        };
        let read = |bytes: &[u8]| match bytes {
            [cpu, memory, network] => {
                Some(Self { cpu: level(*cpu)?, memory: level(*memory)?, network: level(*network)? })
            }
            _ => None,
        };
        read(text.as_bytes()).ok_or_else(|| UnknownClass(text.to_owned()))
    }
}

/// C: what a request of some type costs, learned from (load, requests per second) at a rising rate. None without
/// samples.
#[must_use]
pub fn learned_cost(samples: &[(f64, f64)]) -> Option<f64> {
    let costs: Vec<f64> = samples.iter().filter(|(_, rate)| *rate > 0.0).map(|(load, rate)| load / rate).collect();
    (!costs.is_empty()).then(|| costs.iter().sum::<f64>() / costs.len() as f64)
}

/// The levels of request types in a factor, by their costs: r = (L - Lmin) / (Lmax - Lmin) of at least 0.5 is high.
/// If all cost the same, all are low.
#[must_use]
pub fn request_levels(costs: &[f64]) -> Vec<Level> {
    let (least, most) = range(costs.iter().copied());
    let is_high = |cost: f64| most > least && (cost - least) / (most - least) >= REQUEST_THRESHOLD;
    costs.iter().map(|cost| if is_high(*cost) { Level::High } else { Level::Low }).collect()
}

/// A = 1 - (U α + P β + N γ + D δ).
#[must_use]
pub fn ability(usage: f64, rank: f64, node: f64, relied_on: f64) -> f64 {
    1.0 - (usage * PARTS[0] + rank * PARTS[1] + node * PARTS[2] + relied_on * PARTS[3])
}

/// The levels of an endpoint's abilities.
#[must_use]
pub fn levels(ability: Factors<f64>) -> Factors<Level> {
    let level = |ability: f64, threshold: f64| if ability >= threshold { Level::High } else { Level::Low };
    Factors {
        cpu: level(ability.cpu, THRESHOLDS.cpu),
        memory: level(ability.memory, THRESHOLDS.memory),
        network: level(ability.network, THRESHOLDS.network),
    }
}

/// G: what an endpoint of some abilities is worth for requests of a class.
#[must_use]
pub fn grade(ability: Factors<f64>, class: Factors<Level>) -> f64 {
    let weights = class.weights();
    ability.cpu * weights.cpu + ability.memory * weights.memory + ability.network * weights.network
}

/// By rank from the best, the probability that an endpoint is the best, or the middle one, of three drawn from
/// `candidates`. Of three or fewer all are candidates; the middle of two is the lower.
#[must_use]
pub fn chances(candidates: usize, urgent: bool) -> Vec<f64> {
    let drawn = candidates.min(CANDIDATES);
    let ways = |rank: usize| {
        let worse = (candidates - 1 - rank) as f64;
        match (drawn, urgent) {
            (CANDIDATES, true) => worse * (worse - 1.0) / 2.0,
            (CANDIDATES, false) => worse * rank as f64,
            (_, true) => f64::from(u8::from(rank == 0)),
            (_, false) => f64::from(u8::from(rank == drawn / 2)),
        }
    };
    let ways: Vec<f64> = (0..candidates).map(ways).collect();
    let all: f64 = ways.iter().sum();
    ways.iter().map(|way| way / all).collect()
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
}

/// Abilities of all endpoints in one factor. An endpoint that tells no usage is as busy as its node, and a node that
/// tells nothing is full: silence is never idleness.
fn abilities(
    inputs: &Inputs<'_>,
    of_endpoint: impl Fn(&Endpoint) -> Option<Share>,
    of_node: impl Fn(&crate::load::NodeLoad) -> Option<Sample<Share>>,
) -> Vec<f64> {
    let busy = |node: usize| inputs.load_of(node).and_then(|load| of_node(&load)).map_or(1.0, |s| s.value.get());
    let nodes: Vec<f64> = (0..inputs.nodes.len()).map(busy).collect();
    let usage: Vec<f64> = inputs.endpoints.iter().map(|e| of_endpoint(e).map_or(nodes[e.node], Share::get)).collect();
    let relied_on = inputs.relies_on.map_or(0.0, |load| of_node(&load).map_or(1.0, |s| s.value.get()));
    let (least, most) = range(usage.iter().copied());
    let rank = |usage: f64| if most > least { (usage - least) / (most - least) } else { 0.0 };
    let each = usage.iter().zip(inputs.endpoints);
    each.map(|(usage, endpoint)| ability(*usage, rank(*usage), nodes[endpoint.node], relied_on)).collect()
}

/// The policy `ability`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ability;

impl Policy for Ability {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let cpu = abilities(inputs, |e| e.load.cpu, |load| load.cpu);
        let memory = abilities(inputs, |e| e.load.memory, |load| load.memory);
        let network = abilities(inputs, |e| e.load.network, |load| load.network);
        let of = |endpoint: usize| Factors { cpu: cpu[endpoint], memory: memory[endpoint], network: network[endpoint] };
        let all = 0..inputs.endpoints.len();
        let mut candidates: Vec<usize> = all.clone().filter(|endpoint| levels(of(*endpoint)).is_high()).collect();
        if candidates.is_empty() {
            candidates = all.collect();
        }
        let class = inputs.parameters.request_class;
        candidates.sort_by(|a, b| grade(of(*b), class).total_cmp(&grade(of(*a), class)));
        let mut weights = vec![0.0; inputs.endpoints.len()];
        for (endpoint, chance) in candidates.iter().zip(chances(candidates.len(), class.is_high())) {
            weights[*endpoint] = chance;
        }
        let reason = Reason::Ranked { by: "grade", chosen: candidates.len(), of: inputs.endpoints.len() };
        Decision::in_proportion(weights, vec![reason])
    }
}
