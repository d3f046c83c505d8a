//! `waterfill`: local until the level, then exactly the excess over to the nodes that can take it, nearest first.
//!
//! It is feed-forward: the share follows from the node's own offered load, which is counted and has no age, and from
//! what a flow costs. Feedback only trims it, slower than its data are old. That is why it does not swing, where
//! policies that switch by a threshold do. What nobody has headroom for raises the level of all (ADR 22).

pub mod constants;
mod fill;
mod level;
mod meter;
mod own;
mod peers;
mod smooth;

use std::sync::Arc;
use std::time::Duration;

use constants::{
    DEAD_BAND, ENTER_MARGIN, ENTER_TICKS, GAIN, LEAVE_MARGIN, LEAVE_TICKS, MOST_TRIM, SETTLING, STEP, TARGET,
};
pub use fill::{Vessel, fill};
pub use level::Basin;
use own::{OwnState, Room};
use peers::{Candidate, Peers, Yardstick};

use super::{Decision, Inputs, Policy, Reason};
use crate::load::Share;

/// The policy `waterfill`, with what it remembers of one service.
#[derive(Clone, Debug, Default)]
pub struct Waterfill {
    own: OwnState,
    peers: Peers,
    phase: Phase,
    spill: f64,
    trim: f64,
    room: Option<Room>,
    /// Offered load that the share has followed already.
    followed: f64,
    /// Time until what is measured shows the last step.
    settling: Duration,
}

/// Which side of the level the node is on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// All stays. For how many ticks it has been too much.
    Local { above: u32 },
    /// The excess leaves. For how many ticks there has been none.
    Spilling { below: u32 },
}

impl Default for Phase {
    fn default() -> Self {
        Self::Local { above: 0 }
    }
}

impl Phase {
    /// After another tick of some demand. `rose`: it holds a part of a step, which may be above the level as a whole.
    fn next(self, room: &Room, target: f64, rose: bool) -> Self {
        match self {
            Self::Local { above } if room.demand.max(room.used) >= target + ENTER_MARGIN => {
                if above + 1 >= ENTER_TICKS { Self::Spilling { below: 0 } } else { Self::Local { above: above + 1 } }
            }
            Self::Local { .. } => Self::Local { above: rose.into() },
            Self::Spilling { below } if room.demand < target - LEAVE_MARGIN => {
                if below + 1 >= LEAVE_TICKS {
                    Self::Local { above: 0 }
                } else {
                    Self::Spilling { below: below + 1 }
                }
            }
            Self::Spilling { .. } => Self::Spilling { below: 0 },
        }
    }
}

impl Policy for Waterfill {
    fn decide(&mut self, inputs: &Inputs<'_>) -> Decision {
        let target = inputs.parameters.target.map_or(TARGET, Share::get);
        let endpoints = inputs.endpoints_by_node();
        let here = inputs.here();
        let mut reasons = Vec::new();
        let offered = self.own.offered(&inputs.offered, inputs.elapsed);
        let room = self.own.room(inputs, offered, self.spill, target);
        let cost = room.or(self.room).and_then(|room| room.cost);
        let yardstick = Yardstick { offered, cost, target };
        let candidates = self.peers.candidates(inputs, &endpoints, &yardstick, &mut reasons);
        if here.is_some() {
            let limits = Limits::new(inputs, &candidates, room.or(self.room));
            self.spill = self.next_spill(room, target, inputs.elapsed, &limits, &mut reasons);
        } else {
            // Back at the level when endpoints are.
            (self.phase, self.trim, self.spill) = (Phase::Local { above: 0 }, 0.0, 1.0);
            reasons.push(Reason::NoLocalEndpoint);
        }
        self.room = room.or(self.room);
        let shares = self.shares(inputs, &endpoints, &candidates, offered, here, &mut reasons);
        Decision::by_node(inputs, &shares, reasons)
    }

    fn spare(&self, peers: u32) -> Option<f64> {
        let room = self.room?;
        // A guessed cost of a node that does little says nothing: what is not the service's is much of it. Peers guess better.
        if room.cost.is_none() || (!room.learned && room.used < TARGET / 2.0) {
            return None;
        }
        // Who sends here beyond the headroom must see that it is still there, or it would come and go.
        let spare = match self.phase {
            Phase::Spilling { .. } if room.own_demand() >= room.target - LEAVE_MARGIN => 0.0,
            Phase::Spilling { .. } | Phase::Local { .. } => (room.total - room.offered).max(0.0),
        };
        Some(spare / f64::from(peers.max(1)))
    }
}

/// How far the spill may go.
struct Limits {
    /// At once: the owner's limit, and 0 if there is nowhere to go.
    hard: f64,
    /// Step by step: what other nodes take, of all that they share with this one.
    level: f64,
}

impl Limits {
    fn new(inputs: &Inputs<'_>, candidates: &[Candidate], room: Option<Room>) -> Self {
        let headroom: f64 = candidates.iter().map(|candidate| candidate.vessel.headroom).sum();
        let hard = if candidates.is_empty() { 0.0 } else { inputs.parameters.max_spill.get() };
        let most =
            |room: Room| Basin { target: room.target, own: room.own(), cost: room.cost, headroom }.most(room.offered);
        Self { hard, level: room.map_or(0.0, most) }
    }
}

/// The share of an offered load that is beyond some room.
fn excess(offered: f64, room: f64) -> f64 {
    if offered > room { 1.0 - room / offered } else { 0.0 }
}

impl Waterfill {
    /// The share of flows that leaves from now on, while the node has endpoints.
    fn next_spill(
        &mut self,
        room: Option<Room>,
        target: f64,
        elapsed: Duration,
        limits: &Limits,
        reasons: &mut Vec<Reason>,
    ) -> f64 {
        let Some(room) = room else {
            reasons.push(Reason::OwnLoadUnknown);
            return self.spill.min(limits.hard);
        };
        let jump = self.jump(room.offered);
        self.settling = self.settling.saturating_sub(elapsed);
        self.phase = self.phase.next(&room, target, self.own.rose());
        let local = matches!(self.phase, Phase::Local { .. });
        if local || jump > DEAD_BAND {
            self.settling = room.delay * SETTLING;
        }
        let wanted = match self.phase {
            Phase::Local { above } => {
                self.trim = 0.0;
                if above == 0 {
                    self.followed = room.offered;
                }
                reasons.push(Reason::Local { demand: room.demand, target });
                0.0
            }
            Phase::Spilling { .. } => {
                let forward = excess(room.offered, room.own());
                self.integrate(&room, target, forward, elapsed, limits);
                self.followed = room.offered;
                reasons.push(explain(&room, self.trim));
                if room.backlog >= 1.0 {
                    reasons.push(Reason::Waiting { flows: room.backlog });
                }
                (forward + self.trim).clamp(0.0, 1.0)
            }
        };
        let possible = wanted.min(limits.level).min(limits.hard);
        if wanted > 0.0 && limits.hard.min(limits.level) <= 0.0 {
            reasons.push(Reason::NoHeadroom);
        }
        let spill = possible.clamp(self.spill - STEP, self.spill + STEP + jump).min(limits.hard);
        if (spill - wanted).abs() > f64::EPSILON {
            reasons.push(Reason::Limited { wanted, spill });
        }
        spill
    }

    /// By how much the share may rise at once, since the node's own offered load rose while it stood.
    fn jump(&self, offered: f64) -> f64 {
        self.room.map_or(0.0, |before| {
            let room = before.steady();
            (excess(offered, room) - excess(self.followed, room)).max(0.0)
        })
    }

    /// Corrects what the model gets wrong, by what the scarcest resource shows. It does not wind up behind a limit, nor
    /// while what is measured has not caught up.
    fn integrate(&mut self, room: &Room, target: f64, forward: f64, elapsed: Duration, limits: &Limits) {
        let error = room.used - target;
        let unsettled = !self.settling.is_zero();
        let at_limit =
            if error > 0.0 { forward + self.trim >= limits.hard.min(limits.level) } else { forward + self.trim <= 0.0 };
        if unsettled || error.abs() <= DEAD_BAND || at_limit {
            return;
        }
        // Utilisation that moving the whole share would move.
        let effect = room.cost.map_or(1.0, |cost| cost * room.offered).clamp(0.1, 10.0);
        self.trim += GAIN * elapsed.div_duration_f64(room.delay) * error / effect;
        self.trim = self.trim.clamp(-MOST_TRIM, MOST_TRIM);
    }

    /// Shares by node: what leaves fills the candidates class by class. What they have no headroom for, on its way
    /// home or because nothing is here, goes to them in proportion, and to all if there are none.
    fn shares(
        &mut self,
        inputs: &Inputs<'_>,
        endpoints: &[u32],
        candidates: &[Candidate],
        offered: f64,
        here: Option<usize>,
        reasons: &mut Vec<Reason>,
    ) -> Vec<f64> {
        let mut shares = vec![0.0; inputs.nodes.len()];
        if let Some(here) = here {
            shares[here] = 1.0 - self.spill;
        }
        if self.spill > 0.0 {
            // Without any flow to divide, the next one goes where it would.
            let amount = (offered * self.spill).max(f64::MIN_POSITIVE);
            let vessels: Vec<Vessel> = candidates.iter().map(|candidate| candidate.vessel).collect();
            let taken = fill(amount, &vessels);
            let sum: f64 = taken.iter().sum();
            let headroom: f64 = vessels.iter().map(|vessel| vessel.headroom).sum();
            let rest = (1.0 - sum / amount).max(0.0);
            for (candidate, taken) in candidates.iter().zip(&taken) {
                let more = if headroom > 0.0 { rest * candidate.vessel.headroom / headroom } else { 0.0 };
                shares[candidate.node] = self.spill * (taken / amount + more);
            }
            if headroom <= 0.0 {
                self.spread(inputs, endpoints, candidates, &mut shares);
            }
        }
        for candidate in candidates {
            let node = &inputs.nodes[candidate.node];
            let flows = shares[candidate.node] * offered;
            // What is beyond its headroom must not become headroom by having been sent.
            self.peers.gets(&node.name, flows.min(candidate.vessel.headroom));
            if flows > 0.0 {
                let (headroom, rtt) = (candidate.vessel.headroom, inputs.rtt_of(candidate.node));
                reasons.push(Reason::Takes { node: Arc::clone(&node.name), flows, headroom, rtt });
            }
        }
        shares
    }

    /// To every endpoint of the candidates the same, or of all other nodes if there are none.
    fn spread(&self, inputs: &Inputs<'_>, endpoints: &[u32], candidates: &[Candidate], shares: &mut [f64]) {
        let mut nodes: Vec<usize> = candidates.iter().map(|candidate| candidate.node).collect();
        if nodes.is_empty() {
            nodes = (0..endpoints.len()).filter(|node| !inputs.nodes[*node].local).collect();
        }
        let all: u32 = nodes.iter().map(|node| endpoints[*node]).sum();
        for node in nodes {
            shares[node] = self.spill * f64::from(endpoints[node]) / f64::from(all.max(1));
        }
    }
}

fn explain(room: &Room, trim: f64) -> Reason {
    Reason::Excess {
        offered: room.offered,
        room: room.own(),
        cost: room.cost.unwrap_or(0.0),
        background: room.background,
        trim,
    }
}
