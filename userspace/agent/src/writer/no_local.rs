//! Service ports that drop traffic because their policy is Local and no endpoint is on this node.

use std::collections::BTreeMap;

use weir_abi as abi;
use weir_core::model::{Family, ObjectName};
use weir_core::plan::{ServicePlan, TierPlan};

/// How many service ports have endpoints, but none here for a policy Local. IPv4, then IPv6.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct NoLocal {
    /// For traffic to the cluster IP.
    pub(crate) internal: [u32; 2],
    /// For traffic to all other addresses.
    pub(crate) external: [u32; 2],
}

impl NoLocal {
    /// Of one service. A plan without frontends is of a service that another proxy serves.
    pub(super) fn of(plans: &[ServicePlan]) -> Self {
        let mut counts = Self::default();
        for plan in plans.iter().filter(|plan| plan.endpoints > 0 && !plan.frontends.is_empty()) {
            let family = match plan.key.family {
                Family::V4 => 0,
                Family::V6 => 1,
            };
            counts.internal[family] += u32::from(is_empty(&plan.tiers[abi::CLASS_INTERNAL]));
            counts.external[family] += u32::from(is_empty(&plan.tiers[abi::CLASS_EXTERNAL]));
        }
        counts
    }

    const fn add(&mut self, other: &Self) {
        let Self { internal, external } = other;
        self.internal = [self.internal[0] + internal[0], self.internal[1] + internal[1]];
        self.external = [self.external[0] + external[0], self.external[1] + external[1]];
    }
}

const fn is_empty(tier: &TierPlan) -> bool {
    tier.local.is_empty() && tier.remote.is_empty()
}

/// The same for all services that are written.
#[derive(Debug, Default)]
pub(super) struct NoLocalServices(BTreeMap<ObjectName, NoLocal>);

impl NoLocalServices {
    /// Takes over what a service's new plans say; no plan forgets it.
    pub(super) fn replace(&mut self, service: &ObjectName, plans: &[ServicePlan]) {
        let counts = NoLocal::of(plans);
        if counts == NoLocal::default() {
            self.0.remove(service);
        } else {
            self.0.insert(service.clone(), counts);
        }
    }

    /// The sum.
    pub(super) fn total(&self) -> NoLocal {
        let mut total = NoLocal::default();
        self.0.values().for_each(|counts| total.add(counts));
        total
    }
}

#[cfg(test)]
mod tests {
    use weir_core::model::Protocol;
    use weir_core::ops::FrontendKey;
    use weir_core::plan::{PlanKey, Selector, Shares};

    use super::*;

    fn service() -> ObjectName {
        ObjectName::new("shop", "cart")
    }

    /// A plan of which the internal and the external tier have this many endpoints.
    fn plan(family: Family, internal: usize, external: usize) -> ServicePlan {
        let tier = |count| TierPlan { spill: 0, local: vec![(0, 1); count], remote: Vec::new() };
        let mut tiers: [TierPlan; abi::CLASS_COUNT] = Default::default();
        tiers[abi::CLASS_INTERNAL] = tier(internal);
        tiers[abi::CLASS_EXTERNAL] = tier(external);
        let key = PlanKey { service: service(), port_name: "".into(), protocol: Protocol::Tcp, family };
        let frontend = FrontendKey { address: "10.96.0.1".parse().unwrap(), port: 80, protocol: 6 };
        ServicePlan {
            key,
            port: 80,
            frontends: vec![(frontend, abi::KIND_CLUSTER_IP)],
            backends: Vec::new(),
            tiers,
            selector: Selector::default(),
            shares: Shares::default(),
            endpoints: 3,
            last_resort: false,
            affinity: 0,
            external_local: false,
            source_ranges: Vec::new(),
        }
    }

    #[test]
    fn a_policy_local_without_endpoints_here_counts_for_its_kind_of_traffic_and_family() {
        let plans = [plan(Family::V4, 0, 1), plan(Family::V6, 2, 0), plan(Family::V6, 1, 1)];
        assert_eq!(NoLocal::of(&plans), NoLocal { internal: [1, 0], external: [0, 1] });
    }

    #[test]
    fn a_service_without_any_endpoints_is_refused_and_does_not_count() {
        let plans = [ServicePlan { endpoints: 0, ..plan(Family::V4, 0, 0) }];
        assert_eq!(NoLocal::of(&plans), NoLocal::default());
    }

    #[test]
    fn a_service_that_another_proxy_serves_does_not_count() {
        let plans = [ServicePlan { frontends: Vec::new(), ..plan(Family::V4, 0, 0) }];
        assert_eq!(NoLocal::of(&plans), NoLocal::default());
    }

    #[test]
    fn the_sum_follows_services_that_come_change_and_go() {
        let mut services = NoLocalServices::default();
        services.replace(&service(), &[plan(Family::V4, 0, 0), plan(Family::V6, 0, 1)]);
        services.replace(&ObjectName::new("shop", "other"), &[plan(Family::V4, 0, 1)]);
        assert_eq!(services.total(), NoLocal { internal: [2, 1], external: [1, 0] });
        services.replace(&service(), &[]);
        assert_eq!(services.total(), NoLocal { internal: [1, 0], external: [0, 0] });
    }
}
