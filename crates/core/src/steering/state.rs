//! How a service port stands, for people and for metrics.

use super::facts::{Facts, FlowRates};
use super::news::{Ejected, Spill};
use super::target::{Member, Target};
use super::{Steered, Steering};
use crate::model::ObjectName;
use crate::policies::{Kind, Reason};

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

impl Steering {
    /// Every service port, with the new flows per second that other nodes tell to send here: what costs nothing to know.
    pub fn ports(&self) -> impl Iterator<Item = (&Target, f64)> {
        self.ports.values().map(|steered| (&steered.target, steered.inbound))
    }

    /// The ports of a service as they stand, for people.
    pub fn states_of<'a>(&'a self, service: &'a ObjectName) -> impl Iterator<Item = PortState<'a>> {
        self.of(service).map(|(_, steered)| steered.state())
    }

    /// What leaves of the services that have endpoints here, which is for want of room: those whose policy sends flows away
    /// for other reasons are left out.
    pub fn spills(&self) -> impl Iterator<Item = Spill<'_>> {
        self.ports.values().filter_map(Steered::spill)
    }

    /// The endpoints that are ejected, once for each port and family.
    pub fn out(&self, facts: &impl Facts) -> impl Iterator<Item = Ejected<'_>> {
        self.ports.values().filter(|steered| !steered.out.is_empty()).flat_map(move |steered| {
            let ejected = steered.target.members.iter().filter(|member| steered.out.contains(&member.address));
            ejected.map(move |member| Ejected {
                service: &steered.target.key.service,
                address: member.address,
                node: &member.node,
                silent: !member.local && facts.is_silent(&member.node),
            })
        })
    }
}

impl Steered {
    fn spill(&self) -> Option<Spill<'_>> {
        let serves_here = self.target.members.iter().any(|member| member.local && !self.out.contains(&member.address));
        let spills = self.target.settings.policy == Kind::Waterfill && serves_here && self.is_in_use();
        // What was counted: of several sets no one knows which flows are whose.
        let FlowRates { local, remote } = self.rates;
        spills.then_some(Spill { service: &self.target.key.service, offered: local + remote, spilled: remote })
    }

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
