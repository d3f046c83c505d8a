//! A service's port as the maps hold it, with the endpoints that may be divided.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_abi as abi;

use crate::load::{ServiceId, Share};
use crate::model::PodUid;
use crate::plan::{BackendPlan, PlanKey, Selector, ServicePlan};
use crate::policies::waterfill::constants::TARGET;
use crate::settings::ServiceSettings;

/// One port of a service in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Identity.
    pub key: PlanKey,
    /// In reports; the same for both families.
    pub id: ServiceId,
    /// Port of the service.
    pub port: u16,
    /// Slot in `services`.
    pub slot: u32,
    /// Another one for each plan.
    pub revision: u64,
    /// By class, what the maps say to spill, in 65536ths.
    pub held: [u16; abi::CLASS_COUNT],
    /// What its owner wants.
    pub settings: ServiceSettings,
    /// All its backends.
    pub members: Box<[Member]>,
    /// Those that classes may use, where there is anything to divide, and it is divided here. No two of them are equal.
    pub sets: Vec<Set>,
}

/// A backend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// Slot in `backends`.
    pub slot: u32,
    /// Of the slot.
    pub generation: u32,
    /// Its address and port.
    pub address: SocketAddr,
    /// Where it runs; empty if nobody knows.
    pub node: Arc<str>,
    /// Whether that is this node.
    pub local: bool,
    /// The Pod that it is.
    pub pod: Option<PodUid>,
}

/// The backends that some traffic classes may use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Set {
    /// A bit for each `abi::CLASS_*`.
    pub classes: u8,
    /// Indexes into the members, ascending.
    pub members: Box<[u32]>,
}

impl Set {
    /// Its members.
    pub fn of<'a>(&'a self, members: &'a [Member]) -> impl Iterator<Item = &'a Member> {
        self.members.iter().filter_map(|index| members.get(*index as usize))
    }

    /// The first class that uses it.
    #[must_use]
    pub const fn first_class(&self) -> usize {
        self.classes.trailing_zeros() as usize
    }

    /// Whether it is of a class.
    #[must_use]
    pub const fn has(&self, class: usize) -> bool {
        self.classes & (1 << class) != 0
    }
}

impl Target {
    /// What a plan allows. `backends` are the slots of the plan's backends with their generations, in its order.
    #[must_use]
    pub fn new(
        plan: &ServicePlan,
        here: &Arc<str>,
        slot: u32,
        backends: &[(u32, u32)],
        settings: ServiceSettings,
        held: [u16; abi::CLASS_COUNT],
        revision: u64,
    ) -> Self {
        let member = |(backend, (slot, generation)): (&BackendPlan, &(u32, u32))| {
            let BackendPlan { address, port, node, zone: _, local, host_network: _, pod } = backend;
            let node = if *local { Arc::clone(here) } else { node.clone().unwrap_or_default() };
            let address = SocketAddr::new(*address, *port);
            Member { slot: *slot, generation: *generation, address, node, local: *local, pod: *pod }
        };
        Self {
            id: ServiceId::of(&plan.key.service, plan.port, plan.key.protocol),
            key: plan.key.clone(),
            port: plan.port,
            slot,
            revision,
            held,
            settings,
            members: plan.backends.iter().zip(backends).map(member).collect(),
            sets: match plan.selector {
                Selector::Weights | Selector::LeastConn => sets(plan),
                // What a node measures or ejects would part its table from the others'.
                Selector::Maglev => Vec::new(),
            },
        }
    }

    /// Utilisation up to which flows stay, as a share: its owner's, else the policy's own.
    #[must_use]
    pub fn level(&self) -> f64 {
        self.settings.parameters.target.map_or(TARGET, Share::get)
    }
}

/// The distinct sets of the classes. Of one endpoint there is nothing to divide.
fn sets(plan: &ServicePlan) -> Vec<Set> {
    let mut sets: Vec<Set> = Vec::new();
    for (class, tiers) in (0..abi::CLASS_COUNT).zip(&plan.tiers) {
        let both = tiers.local.iter().chain(&tiers.remote);
        let mut members: Vec<u32> = both.filter_map(|(index, _)| u32::try_from(*index).ok()).collect();
        members.sort_unstable();
        if members.len() < 2 {
            continue;
        }
        match sets.iter_mut().find(|set| *set.members == *members) {
            Some(set) => set.classes |= 1 << class,
            None => sets.push(Set { classes: 1 << class, members: members.into() }),
        }
    }
    sets
}
