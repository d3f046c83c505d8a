//! One service's controller: what is the same whatever the policy. Endpoints that fail are out, new ones start slowly,
//! and the maps are written only if something moved.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::ejection::{Ejections, Outcome};
use crate::plan::TierPlan;
use crate::policies::{Decision, Endpoint, Inputs, Kind, Policy, Reason};

/// Part of its share with which a new endpoint starts: 10 %.
pub const RAMP_START: f64 = 0.1;
/// Time after which it has all of it: 10 s (point 7).
pub const RAMP: Duration = Duration::from_secs(10);
/// Part of the flows that must move to be worth a write: half a point (point 9).
pub const WORTH_WRITING: f64 = 0.005;

/// What a tick came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// What to write; None if too little has moved since the last that was written.
    pub write: Option<TierPlan>,
    /// The shares of all endpoints that were asked about, in their order, and why. An ejected one has 0.
    pub decision: Decision,
    /// Whether each of them is ejected.
    pub ejected: Vec<bool>,
}

/// The controller of one service, in one family and traffic class.
pub struct Controller {
    kind: Kind,
    policy: Box<dyn Policy>,
    ejections: Ejections,
    /// Of all endpoints, in their order.
    ages: Vec<(SocketAddr, Duration)>,
    written: Vec<(usize, SocketAddr, f64)>,
}

impl Controller {
    /// One that knows nothing yet. All endpoints are equally new to it.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let (ejections, ages) = (Ejections::default(), Vec::new());
        Self { kind, policy: kind.start(), ejections, ages, written: Vec::new() }
    }

    /// Its policy.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Follows another policy from now on. Endpoints stay as old as they are.
    pub fn change(&mut self, kind: Kind) {
        if self.kind != kind {
            (self.kind, self.policy) = (kind, kind.start());
        }
    }

    /// New flows per second that each of `peers` may send here; see [`Policy::spare`].
    #[must_use]
    pub fn spare(&self, peers: u32) -> Option<f64> {
        self.policy.spare(peers)
    }

    /// Forgets what was written: the next tick writes. For when a write failed, or a new plan replaced it.
    pub fn forget_written(&mut self) {
        self.written.clear();
    }

    /// Decides for the next tick. `inputs` has all usable endpoints, `outcomes` what became of their flows, in their
    /// order.
    pub fn tick(&mut self, inputs: &Inputs<'_>, outcomes: &[Outcome]) -> Tick {
        let addresses: Vec<SocketAddr> = inputs.endpoints.iter().map(|endpoint| endpoint.address).collect();
        let within = self.ejections.tick(inputs.elapsed, &addresses, outcomes);
        self.grow_older(inputs.elapsed, &addresses);
        let usable: Vec<Endpoint> =
            inputs.endpoints.iter().zip(&within).filter(|(_, within)| **within).map(|(e, _)| *e).collect();
        let usable_inputs = Inputs { endpoints: &usable, ..*inputs };
        let mut decision = self.policy.decide(&usable_inputs);
        self.ramp(&usable_inputs, &mut decision);

        let mut shares = decision.shares.into_iter();
        let all = within.iter().map(|within| if *within { shares.next().unwrap_or(0.0) } else { 0.0 }).collect();
        let ejected: Vec<bool> = within.iter().map(|within| !within).collect();
        let mut reasons = decision.reasons;
        let out = ejected.iter().filter(|ejected| **ejected).count();
        if out > 0 {
            reasons.push(Reason::Ejected { endpoints: out });
        }
        let decision = Decision { shares: all, reasons };
        Tick { write: self.write(inputs, &decision), decision, ejected }
    }

    fn grow_older(&mut self, elapsed: Duration, addresses: &[SocketAddr]) {
        if addresses.iter().eq(self.ages.iter().map(|(address, _)| address)) {
            self.ages.iter_mut().for_each(|(_, age)| *age += elapsed);
            return;
        }
        let known: HashMap<SocketAddr, Duration> = self.ages.drain(..).collect();
        let age = |address: &SocketAddr| known.get(address).map_or(Duration::ZERO, |age| *age + elapsed);
        self.ages = addresses.iter().map(|address| (*address, age(address))).collect();
    }

    /// What of its share each endpoint may have, by the time since it came or came back, against the one that has been
    /// there longest: where all are new, nobody is.
    fn factors(&self, endpoints: &[Endpoint]) -> Vec<f64> {
        // They are some of all endpoints, in the same order.
        let mut ages = self.ages.iter();
        let mut factor = |address: &SocketAddr| {
            let age = ages.find(|(other, _)| other == address).map(|(_, age)| *age).unwrap_or_default();
            let age = self.ejections.trial(address).map_or(age, |trial| trial.min(age));
            (RAMP_START + (1.0 - RAMP_START) * age.div_duration_f64(RAMP)).min(1.0)
        };
        let factors: Vec<f64> = endpoints.iter().map(|endpoint| factor(&endpoint.address)).collect();
        let most = factors.iter().copied().fold(RAMP_START, f64::max);
        factors.iter().map(|factor| factor / most).collect()
    }

    /// Takes from new endpoints what they may not have yet. It goes to the others of their tier; if all of a tier are
    /// new, to the other tier, as far as the service's owner lets flows leave.
    fn ramp(&self, inputs: &Inputs<'_>, decision: &mut Decision) {
        let factors = self.factors(inputs.endpoints);
        let new = factors.iter().filter(|factor| **factor < 1.0).count();
        if new == 0 {
            return;
        }
        decision.reasons.push(Reason::Ramp { endpoints: new });
        let spill = decision.spill(inputs);
        let weights = |local: bool| tier_weights(inputs, &decision.shares, &factors, local);
        let (local, remote) = (weights(true), weights(false));
        let Some(((local, most_local), (remote, most_remote))) = local.zip(remote) else {
            // One tier alone: only the division within it changes.
            let scaled = decision.shares.iter().zip(&factors).map(|(share, factor)| share * factor).collect();
            decision.shares = Decision::in_proportion(scaled, Vec::new()).shares;
            return;
        };
        let leaves = spill * most_remote + (1.0 - spill) * (1.0 - most_local);
        let leaves = leaves.min(inputs.parameters.max_spill.get().max(spill));
        let combined = local.iter().zip(&remote).map(|(local, remote)| local * (1.0 - leaves) + remote * leaves);
        decision.shares = combined.collect();
    }

    /// The tiers, if the set is another one than what was written or enough has moved.
    fn write(&mut self, inputs: &Inputs<'_>, decision: &Decision) -> Option<TierPlan> {
        let now = || inputs.endpoints.iter().zip(&decision.shares).map(|(e, share)| (e.backend, e.address, *share));
        let same_set = self.written.len() == decision.shares.len()
            && self.written.iter().zip(now()).all(|(old, new)| (old.0, old.1) == (new.0, new.1));
        let before: Vec<f64> = self.written.iter().map(|(_, _, share)| *share).collect();
        // An endpoint that leaves a tier is written however little it had: it may be the one that fails.
        let dropped = before.iter().zip(&decision.shares).any(|(old, new)| *old > 0.0 && *new <= 0.0);
        if same_set && !dropped && decision.distance(&before) <= WORTH_WRITING {
            return None;
        }
        self.written = now().collect();
        Some(decision.tiers(inputs))
    }
}

/// Weights within a tier that sum up to 1, 0 for the other tier's, and the largest factor of those with a share (of
/// all if none has one). None if the tier is empty.
fn tier_weights(inputs: &Inputs<'_>, shares: &[f64], factors: &[f64], local: bool) -> Option<(Vec<f64>, f64)> {
    let of_tier = |endpoint: usize| inputs.is_local(endpoint) == local;
    let members = (0..shares.len()).filter(|endpoint| of_tier(*endpoint));
    let share: f64 = members.clone().map(|endpoint| shares[endpoint]).sum();
    let weight = |endpoint: usize| if share > 0.0 { shares[endpoint] } else { 1.0 };
    let mut weights = vec![0.0; shares.len()];
    let mut most: f64 = 0.0;
    for endpoint in members.filter(|endpoint| weight(*endpoint) > 0.0) {
        weights[endpoint] = weight(endpoint) * factors[endpoint];
        most = most.max(factors[endpoint]);
    }
    let sum: f64 = weights.iter().sum();
    (sum > 0.0).then(|| (weights.iter().map(|weight| weight / sum).collect(), most))
}
