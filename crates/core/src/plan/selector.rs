//! How the kernel selects, and what its tables hold for that.

use std::net::SocketAddr;

use weir_abi as abi;

use super::{ServicePlan, TierPlan};
use crate::policies::maglev;

/// How the kernel selects for a new flow.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Selector {
    /// The tier by the spill, then by weight.
    #[default]
    Weights,
    /// As by weight, but it draws two in a tier, and takes the one with fewer open flows for its weight.
    LeastConn,
    /// By Maglev's table of all endpoints of a traffic class, from a hash that is the same on all nodes: a flow has the same
    /// endpoint wherever it comes in. Neither spill nor load nor locality counts.
    Maglev,
}

impl Selector {
    /// Its bit of `abi::Service::flags`.
    #[must_use]
    pub const fn flag(self) -> u32 {
        match self {
            Self::Weights => 0,
            Self::LeastConn => abi::SERVICE_LEAST_CONN,
            Self::Maglev => abi::SERVICE_MAGLEV,
        }
    }
}

/// The tiers of a plan for [`Selector::Maglev`]: one of all endpoints, in the order of the table.
pub(crate) fn table_tiers(plan: &ServicePlan) -> [TierPlan; abi::CLASS_COUNT] {
    let mut known: Vec<(Vec<usize>, TierPlan)> = Vec::new();
    plan.tiers.each_ref().map(|tier| {
        let mut members: Vec<usize> = tier.local.iter().chain(&tier.remote).map(|(index, _)| *index).collect();
        members.sort_unstable();
        if let Some((_, tier)) = known.iter().find(|(others, _)| *others == members) {
            return tier.clone();
        }
        let address = |index: &usize| SocketAddr::new(plan.backends[*index].address, plan.backends[*index].port);
        let addresses: Vec<SocketAddr> = members.iter().map(address).collect();
        let runs = maglev::runs(&addresses).into_iter().map(|(endpoint, length)| (members[endpoint], length));
        let tier = TierPlan { spill: u16::MAX, local: Vec::new(), remote: runs.collect() };
        known.push((members, tier.clone()));
        tier
    })
}
