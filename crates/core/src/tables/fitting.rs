//! What of a plan finds slots in a map of backends that is full.

use std::collections::HashSet;

use weir_abi as abi;

use super::{Tables, TablesError, endpoint};
use crate::model::ObjectName;
use crate::plan::{BackendPlan, ServicePlan};

impl TablesError {
    /// Whether a service that the maps hold can be written in spite of it, without new endpoints.
    pub(super) fn is_of_backends(&self) -> bool {
        match self {
            Self::Full { map, size: _, option: _ } => *map == "backends",
            Self::TooManySourceRanges { .. } | Self::TooManyEndpoints { .. } => false,
        }
    }
}

impl Tables {
    /// The plans with the endpoints that have slots, and as many new ones as there are slots for: those that new flows go to.
    pub(super) fn with_slots(&self, service: &ObjectName, plans: &[ServicePlan]) -> Vec<ServicePlan> {
        self.with_slots_and(service, plans, self.backend_pool.free())
    }

    /// The plans with the endpoints alone that have slots.
    #[must_use]
    pub fn held(&self, service: &ObjectName, plans: &[ServicePlan]) -> Vec<ServicePlan> {
        self.with_slots_and(service, plans, 0)
    }

    fn with_slots_and(&self, service: &ObjectName, plans: &[ServicePlan], mut free: u32) -> Vec<ServicePlan> {
        let fitting = |plan| self.plan_with_slots(service, (plan, plans), &mut free);
        plans.iter().map(fitting).collect()
    }

    fn plan_with_slots(
        &self,
        service: &ObjectName,
        (plan, plans): (&ServicePlan, &[ServicePlan]),
        free: &mut u32,
    ) -> ServicePlan {
        let port = self.find_former(service, plan, plans).and_then(|slot| self.ports.get(&slot));
        let slots = port.into_iter().flat_map(|port| &port.backends);
        let known: HashSet<_> = slots.map(|slot| endpoint(&self.backend(*slot))).collect();
        let tiers = plan.tiers.iter().flat_map(|tier| tier.local.iter().chain(&tier.remote));
        let selected: HashSet<_> = tiers.map(|(index, _)| *index).collect();
        let mut has_slot = |(index, backend): (usize, &BackendPlan)| {
            if known.contains(&(abi::Addr::from(backend.address).octets(), backend.port)) {
                return true;
            }
            let gets_one = *free > 0 && selected.contains(&index);
            *free -= u32::from(gets_one);
            gets_one
        };
        let keep: Vec<bool> = plan.backends.iter().enumerate().map(&mut has_slot).collect();
        only(plan, &keep)
    }
}

/// A plan with some of its endpoints.
fn only(plan: &ServicePlan, keep: &[bool]) -> ServicePlan {
    let mut places = Vec::with_capacity(keep.len());
    let mut kept = 0;
    for keep in keep {
        places.push(keep.then_some(kept));
        kept += usize::from(*keep);
    }
    let mut left = plan.clone();
    let mut kept = keep.iter();
    left.backends.retain(|_| kept.next() == Some(&true));
    for tier in &mut left.tiers {
        for entries in [&mut tier.local, &mut tier.remote] {
            *entries = entries.iter().filter_map(|(index, weight)| Some((places[*index]?, *weight))).collect();
        }
    }
    left
}
