//! Random histories: whatever happens, no packet is led astray and the end does not depend on the way.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use proptest::prelude::*;
use weir_abi as abi;
use weir_core::model::{Family, Protocol};
use weir_core::ops::{Capacity, FrontendKey, MapOp};
use weir_core::plan::{BackendPlan, PlanKey, Selector, ServicePlan, Shares, TierPlan};
use weir_core::tables::{TablesError, Update};

use crate::build::{ip, name};
use crate::maps::{Meaning, PortContent, PortId};
use crate::tables::World;

const SERVICES: [&str; 4] = ["a", "b", "c", "d"];
const NODES: [&str; 3] = ["here", "near", "far"];

/// Small enough that plans meet full maps now and then.
const SMALL: Capacity = Capacity {
    services: 14,
    backends: 90,
    lines: 12,
    frontends: 9,
    nodes: 60,
    source_ranges: 8,
    flows: 1,
    openings: 1,
    sockets: 1,
    affinities: 1,
    held_pieces: 1,
};

#[derive(Clone, Debug)]
enum Step {
    Replace(usize, Vec<ServicePlan>),
    /// The process ends after a part (of 256) of the operations is written.
    Crash(usize, Vec<ServicePlan>, u8),
    Prune(BTreeSet<usize>),
    /// Shares of all services move, some endpoints get none; then all is planned again.
    Steer(Vec<u32>),
    Release,
    Restart,
}

fn plans(service: usize) -> impl Strategy<Value = Vec<ServicePlan>> {
    let ports = [("http", Protocol::Tcp), ("dns", Protocol::Udp)];
    let keys = ports.into_iter().flat_map(|port| [(port, Family::V4), (port, Family::V6)]).collect::<Vec<_>>();
    prop::sample::subsequence(keys, 0..=3).prop_flat_map(move |keys| {
        keys.into_iter().map(|((port, protocol), family)| plan(service, port, protocol, family)).collect::<Vec<_>>()
    })
}

fn plan(service: usize, port: &'static str, protocol: Protocol, family: Family) -> impl Strategy<Value = ServicePlan> {
    let few_or_many = prop_oneof![4 => 0..5_usize, 1 => 17..24_usize];
    let endpoints = few_or_many.prop_flat_map(|count| {
        (prop::sample::subsequence((0..30_u8).collect::<Vec<_>>(), count), prop::collection::vec(0..12_u8, 24))
    });
    let tier = (any::<u16>(), prop::collection::vec((0..3_u32, any::<bool>()), 24), any::<bool>());
    let frontends = prop::collection::btree_map(0..4_u8, 1..=4_u32, 0..3);
    let unused_ports = prop::option::of(0..4_u8);
    let source_ranges = prop::collection::btree_set(0..4_u8, 0..3);
    let extras = (0..2_u16, 0..3_u32, unused_ports, source_ranges);
    (endpoints, prop::array::uniform3(tier), frontends, extras).prop_map(
        move |((hosts, kinds), tiers, frontends, (odd, affinity, unused_ports, ranges))| {
            let prefix = |v4: &str, v6: &str| if family == Family::V4 { v4.to_owned() } else { v6.to_owned() };
            let backends = hosts.iter().zip(&kinds).map(|(host, kind)| BackendPlan {
                address: ip(&format!("{}{host}", prefix("10.0.0.", "fd00:10::"))),
                port: 8080,
                node: NODES.get(usize::from(kind % 4)).map(|node| (*node).into()),
                zone: if kind / 4 == 0 { "east".into() } else { "west".into() },
                local: kind % 4 == 0,
                host_network: *kind > 8,
                pod: None,
            });
            let backends = backends.collect::<Vec<_>>();
            let [one, two, three] = &tiers;
            // Two of the classes are often equal in real plans.
            let third = if three.2 { one } else { three };
            let frontends = frontends.iter().map(|(host, kind)| (frontend(*host, protocol, family), *kind));
            let unused_ports = unused_ports.map(|host| {
                let key = FrontendKey { port: 0, protocol: 0, ..frontend(host, protocol, family) };
                (key, abi::KIND_UNUSED_PORT)
            });
            ServicePlan {
                key: PlanKey { service: name(SERVICES[service]), port_name: port.into(), protocol, family },
                port: 80 + odd,
                frontends: frontends.chain(unused_ports).collect(),
                tiers: [one, two, third].map(|(spill, choices, _)| tier_plan(*spill, choices, backends.len())),
                selector: Selector::Weights,
                shares: Shares::Planned,
                endpoints: u32::try_from(backends.len()).unwrap(),
                backends,
                affinity,
                last_resort: false,
                external_local: odd == 1,
                source_ranges: ranges.iter().map(|host| range(*host, family)).collect(),
            }
        },
    )
}

fn range(host: u8, family: Family) -> IpNet {
    let text = match family {
        Family::V4 => format!("10.{host}.0.0/16"),
        Family::V6 => format!("fd00:{host}::/32"),
    };
    text.parse().unwrap()
}

fn frontend(host: u8, protocol: Protocol, family: Family) -> FrontendKey {
    let address = match family {
        Family::V4 => ip(&format!("10.96.0.{host}")),
        Family::V6 => ip(&format!("fd00:96::{host}")),
    };
    FrontendKey { address, port: 80, protocol: protocol.number() }
}

fn tier_plan(spill: u16, choices: &[(u32, bool)], backends: usize) -> TierPlan {
    let weighted = choices[..backends].iter().enumerate().map(|(index, (weight, local))| ((index, *weight), *local));
    let (local, remote): (Vec<_>, Vec<_>) = weighted.partition(|(_, local)| *local);
    let entries = |list: Vec<((usize, u32), bool)>| list.into_iter().map(|(entry, _)| entry).collect();
    TierPlan { spill, local: entries(local), remote: entries(remote) }
}

/// What is written where source ranges find no room.
fn closed(plans: &[ServicePlan]) -> Vec<ServicePlan> {
    let mut plans = plans.to_vec();
    for plan in plans.iter_mut().filter(|plan| !plan.source_ranges.is_empty()) {
        plan.source_ranges.clear();
        plan.frontends.retain(|(_, kind)| *kind != abi::KIND_LOAD_BALANCER);
    }
    plans
}

fn step() -> impl Strategy<Value = Step> {
    let service = 0..SERVICES.len();
    let planned = service.clone().prop_flat_map(|service| (Just(service), plans(service)));
    let crash = (planned.clone(), any::<u8>()).prop_map(|((service, plans), part)| Step::Crash(service, plans, part));
    prop_oneof![
        8 => planned.prop_map(|(service, plans)| Step::Replace(service, plans)),
        1 => crash,
        1 => prop::collection::btree_set(service, 2..4).prop_map(Step::Prune),
        2 => prop::collection::vec(prop_oneof![Just(0), 1..9_u32], 1..8).prop_map(Step::Steer),
        3 => Just(Step::Release),
        1 => Just(Step::Restart),
    ]
}

/// A world, what was asked of it, and the slots that packets on their way may still hold.
#[derive(Debug)]
struct History {
    world: World,
    wanted: BTreeMap<usize, Vec<ServicePlan>>,
    /// Services that have fewer endpoints in their tiers than wanted, for want of lines or of slots.
    thin: BTreeSet<usize>,
    /// Those that lack endpoints for want of slots.
    short: BTreeSet<usize>,
    resting: [BTreeSet<u32>; 2],
}

impl History {
    fn apply(&mut self, ops: &[MapOp]) {
        let lines = |world: &World| -> BTreeSet<u32> {
            world.maps.services.values().flat_map(|service| world.maps.reachable(service).0).collect()
        };
        let before = lines(&self.world);
        for op in ops {
            if let MapOp::PutLine { id, .. } = op {
                let resting = self.resting.iter().any(|slots| slots.contains(id));
                assert!(!resting, "line {id} is written while a packet may still hold it");
            }
        }
        self.world.maps.apply_all(ops);
        self.resting[0].extend(before.difference(&lines(&self.world)));
    }

    fn replace(&mut self, service: usize, plans: &[ServicePlan]) -> Result<Vec<MapOp>, TablesError> {
        let update = self.world.tables.replace(&name(SERVICES[service]), plans, 7);
        let of_lines = matches!(update, Err(TablesError::Full { map: "lines", .. }));
        assert!(!of_lines, "{} is refused for want of lines", SERVICES[service]);
        let update = update?;
        let Update { ops, conflicts: _, shortage, thinned, unnumbered } = update;
        self.apply(&ops);
        assert_eq!(unnumbered, None);
        self.short.remove(&service);
        if matches!(thinned, Some(TablesError::Full { map: "backends", .. })) {
            self.short.insert(service);
        }
        self.thin.remove(&service);
        self.thin.extend(thinned.map(|_| service));
        let written = if shortage.is_some() { closed(plans) } else { plans.to_vec() };
        self.wanted.insert(service, written);
        self.world.maps.check_flows().unwrap();
        Ok(ops)
    }

    fn restart(&mut self) {
        self.world.restart_sized(SMALL);
        self.resting = Default::default();
    }

    fn assert_settled(&mut self) {
        for (service, plans) in self.wanted.clone() {
            if self.thin.contains(&service) {
                // Whether there is room by now is another matter.
                drop(self.replace(service, &plans));
                continue;
            }
            assert_eq!(self.replace(service, &plans), Ok(vec![]), "{} is not settled", SERVICES[service]);
        }
    }

    fn release(&mut self) {
        self.world.tables.release();
        self.resting[1] = std::mem::take(&mut self.resting[0]);
    }

    /// After a crash: plan everything, remove the rest. Room that the crash has lost comes back with the prune.
    fn recover(&mut self, wanted: &BTreeMap<usize, Vec<ServicePlan>>) {
        self.restart();
        self.world.maps.expire_flows();
        let failed: Vec<_> = wanted.iter().filter(|(service, plans)| self.replace(**service, plans).is_err()).collect();
        let ops = self.world.tables.prune(|service| wanted.keys().any(|known| *service == name(SERVICES[*known])));
        self.apply(&ops);
        self.release();
        self.release();
        for (service, plans) in failed {
            self.replace(*service, plans).unwrap();
        }
    }

    /// Gives all backends of each slot a weight and a tier of its class, whether or not the plan allows that.
    fn steer(&mut self, weights: &[u32]) {
        let mut weights = weights.iter().copied().cycle();
        for slot in 1..SMALL.services {
            let backends = self.world.maps.used_backends().into_iter().filter(|(_, backend)| backend.service == slot);
            let (local, remote): (Vec<_>, Vec<_>) =
                backends.partition(|(_, backend)| backend.flags & abi::BACKEND_LOCAL != 0);
            let mut entries = |tier: &[(u32, abi::Backend)]| -> Vec<(usize, u32)> {
                tier.iter().map(|(id, _)| (*id as usize, weights.next().unwrap_or_default())).collect()
            };
            let tier = TierPlan { spill: 0x1234, local: entries(&local), remote: entries(&remote) };
            // Where there is no room for lines, nothing changes.
            let ops = self.world.tables.steer(slot, &[Some(tier.clone()), None, Some(tier)]).unwrap_or_default();
            self.apply(&ops);
        }
    }

    /// Plans everything anew. However steered lines fill the map, no service blocks its own plan. One that stays thin, since
    /// it holds the last line that it lacks, is whole when it has let go of it: what fitted before fits again.
    fn plan_again(&mut self, fitted: bool) {
        for _ in 0..2 {
            for (service, plans) in self.wanted.clone() {
                self.replace(service, &plans).unwrap();
            }
            self.release();
            self.release();
        }
        if !fitted {
            return;
        }
        let wanted = self.wanted.clone();
        let thin = self.thin.clone();
        for service in &thin {
            self.replace(*service, &[]).unwrap();
        }
        self.release();
        self.release();
        for service in &thin {
            self.replace(*service, &wanted[service]).unwrap();
        }
        assert!(self.thin.is_empty(), "{:?} lost lines", self.thin);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Replace(service, plans) => {
                if self.replace(service, &plans).is_err() {
                    self.assert_settled();
                }
            }
            Step::Crash(service, plans, part) => {
                let Ok(update) = self.world.tables.replace(&name(SERVICES[service]), &plans, 7) else { return };
                let written = update.ops.len() * usize::from(part) / 256;
                self.apply(&update.ops[..written]);
                let mut wanted = std::mem::take(&mut self.wanted);
                wanted.insert(service, plans);
                self.recover(&wanted);
            }
            Step::Prune(keep) => {
                let ops = self.world.tables.prune(|service| keep.iter().any(|kept| *service == name(SERVICES[*kept])));
                self.apply(&ops);
                self.world.maps.check_flows().unwrap();
                self.wanted.retain(|service, _| keep.contains(service));
                self.thin.retain(|service| keep.contains(service));
                self.short.retain(|service| keep.contains(service));
            }
            Step::Steer(weights) => {
                let fitted = self.thin.is_empty();
                self.steer(&weights);
                self.release();
                self.release();
                self.plan_again(fitted);
            }
            Step::Release => self.release(),
            Step::Restart => {
                self.restart();
                self.assert_settled();
                assert_eq!(self.world.tables.prune(|_| true), []);
            }
        }
    }

    /// The content is that of a fresh start, but for who owns a frontend that several services claim.
    fn assert_like_a_fresh_start(&self) {
        let mut fresh = World::new();
        let mut claims: BTreeMap<FrontendKey, Vec<(String, u32)>> = BTreeMap::new();
        for (service, plans) in &self.wanted {
            fresh.replace(SERVICES[*service], plans);
            for (key, kind) in plans.iter().flat_map(|plan| &plan.frontends) {
                claims.entry(*key).or_default().push((SERVICES[*service].to_owned(), *kind));
            }
        }
        let Meaning { mut ports, frontends, nodes } = self.world.maps.meaning();
        let mut expected = fresh.maps.meaning();
        for service in &self.thin {
            let lacks_endpoints = self.short.contains(service);
            forget_thin_tiers(SERVICES[*service], &mut ports, &mut expected.ports, lacks_endpoints);
        }
        assert_eq!(ports, expected.ports);
        assert!(nodes.is_subset(&expected.nodes) && (!self.short.is_empty() || nodes == expected.nodes));
        assert_eq!(frontends.keys().collect::<Vec<_>>(), expected.frontends.keys().collect::<Vec<_>>());
        for (key, (port, kind)) in &frontends {
            assert!(claims[key].contains(&(port.1.clone(), *kind)), "{key:?} is {port:?}'s, of {claims:?}");
            let is_cluster_ip = |(_, kind): &(String, u32)| *kind == abi::KIND_CLUSTER_IP;
            let claimed_by_users = [abi::KIND_LOAD_BALANCER, abi::KIND_EXTERNAL_IP].contains(kind);
            assert!(!claimed_by_users || !claims[key].iter().any(is_cluster_ip), "{key:?} is {port:?}'s");
            assert!(claims[key].len() > 1 || frontends[key] == expected.frontends[key]);
        }
        let ports = claims.iter().filter(|(key, _)| key.port != 0);
        let conflicts: usize = ports.map(|(_, claims)| claims.len() - 1).sum();
        assert_eq!(self.world.tables.conflicts().len(), conflicts);
        let used = self.world.maps.used_backends();
        let wanted = fresh.maps.used_backends().len();
        assert!(used.len() <= wanted && (!self.short.is_empty() || used.len() == wanted), "a backend is left over");
        assert!(used.values().all(|b| self.world.maps.services[&b.service].flags & abi::SERVICE_USED != 0));
    }
}

/// Takes the tiers of a service out of the comparison: those that it has lead to some of the expected endpoints. The same of its endpoints, where some
/// have no slots.
fn forget_thin_tiers(
    service: &str,
    ports: &mut BTreeMap<PortId, PortContent>,
    expected: &mut BTreeMap<PortId, PortContent>,
    lacks_endpoints: bool,
) {
    for (id, port) in ports.iter_mut().filter(|(id, _)| id.1 == service) {
        let Some(other) = expected.get_mut(id) else { continue };
        if lacks_endpoints {
            other.backends.retain(|endpoint, _| port.backends.contains_key(endpoint));
        }
        let (held, wanted) = (std::mem::take(&mut port.tiers), std::mem::take(&mut other.tiers));
        for ((spill, local, remote), (wanted_spill, wanted_local, wanted_remote)) in held.iter().zip(&wanted) {
            assert_eq!(spill, wanted_spill);
            for (held, wanted) in [(local, wanted_local), (remote, wanted_remote)] {
                let some = held.is_empty() == wanted.is_empty() || lacks_endpoints;
                assert!(some, "{id:?}: {held:?} of {wanted:?}");
                let wanted: BTreeSet<_> = wanted.iter().map(|(_, endpoint)| endpoint).collect();
                assert!(held.iter().all(|(_, endpoint)| wanted.contains(endpoint)), "{id:?}: {held:?} of {wanted:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_history_keeps_every_reference_valid_and_ends_like_a_fresh_start(
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let world = World::sized(SMALL);
        let mut history = History { world, wanted: BTreeMap::new(), thin: BTreeSet::new(), short: BTreeSet::new(), resting: Default::default() };
        for step in steps {
            history.step(step);
            history.assert_like_a_fresh_start();
        }
        history.restart();
        history.assert_settled();
        history.assert_like_a_fresh_start();
    }
}
