//! How a service port stands, for people and for metrics.

use super::Steered;
use super::facts::FlowRates;
use super::target::{Member, Target};
use crate::policies::Reason;

/// A service port.
#[derive(Clone, Debug)]
pub struct PortState<'a> {
    /// What is steered.
    pub target: &'a Target,
    /// New flows per second when it was last asked about.
    pub rates: FlowRates,
    /// New flows per second that other nodes tell to send here.
    pub inbound: f64,
    /// Flows that its endpoints on this node have open.
    pub open_local: u32,
    /// By set of endpoints, those that were decided about.
    pub sets: Vec<SetState<'a>>,
}

/// A set of endpoints that was decided about.
#[derive(Clone, Debug)]
pub struct SetState<'a> {
    /// A bit for each `abi::CLASS_*` that uses it.
    pub classes: u8,
    /// Its endpoints.
    pub endpoints: Vec<EndpointState<'a>>,
    /// Part of the new flows that leaves the node.
    pub spill: f64,
    /// Why.
    pub reasons: &'a [Reason],
}

/// An endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointState<'a> {
    /// Which one.
    pub member: &'a Member,
    /// Its share of new flows.
    pub share: f64,
    /// Whether it failed and is out for now.
    pub ejected: bool,
}

impl Steered {
    pub(super) fn state(&self) -> PortState<'_> {
        let decided = self.target.sets.iter().zip(&self.last);
        let sets = decided.filter_map(|(set, tick)| {
            let tick = tick.as_ref()?;
            let shares = tick.decision.shares.iter().zip(&tick.ejected);
            let endpoints: Vec<_> = set
                .of(&self.target.members)
                .zip(shares)
                .map(|(member, (share, ejected))| EndpointState { member, share: *share, ejected: *ejected })
                .collect();
            let remote = endpoints.iter().filter(|endpoint| !endpoint.member.local);
            let spill = remote.map(|endpoint| endpoint.share).sum();
            Some(SetState { classes: set.classes, endpoints, spill, reasons: &tick.decision.reasons })
        });
        let (rates, inbound, open_local) = (self.rates, self.inbound, self.open_local);
        PortState { target: &self.target, rates, inbound, open_local, sets: sets.collect() }
    }
}
