//! The ledger of slots, rule by rule.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_abi as abi;
use weir_core::cluster::Cluster;
use weir_core::model::{Family, Protocol};
use weir_core::ops::{Capacity, FrontendKey, MapOp};
use weir_core::plan::{BackendPlan, PlanConfig, PlanKey, Selector, ServicePlan, Shares, TierPlan, plan};
use weir_core::tables::{FrontendConflict, Tables, TablesError, Update};

use crate::build::{ip, name};
use crate::maps::Maps;

/// TCP port 80 at a cluster IP, with remote endpoints in every tier.
pub(crate) fn web(service: &str, frontend: &str, endpoints: &[&str]) -> ServicePlan {
    let backends: Vec<_> = endpoints.iter().map(|address| backend(address, "far")).collect();
    let tier = TierPlan { spill: 65535, local: vec![], remote: (0..backends.len()).map(|index| (index, 1)).collect() };
    ServicePlan {
        key: PlanKey {
            service: name(service),
            port_name: "http".into(),
            protocol: Protocol::Tcp,
            family: Family::of(ip(frontend)),
        },
        port: 80,
        frontends: vec![(key(frontend), abi::KIND_CLUSTER_IP)],
        endpoints: u32::try_from(backends.len()).unwrap(),
        backends,
        tiers: [tier.clone(), tier.clone(), tier],
        selector: Selector::Weights,
        shares: Shares::Planned,
        affinity: 0,
        last_resort: false,
        external_local: false,
        source_ranges: vec![],
    }
}

pub(crate) fn backend(address: &str, node: &str) -> BackendPlan {
    BackendPlan {
        address: ip(address),
        port: 8080,
        node: Some(node.into()),
        zone: "west".into(),
        local: false,
        host_network: false,
        pod: None,
    }
}

pub(crate) fn key(address: &str) -> FrontendKey {
    FrontendKey { address: ip(address), port: 80, protocol: 6 }
}

/// The ledger with the maps that its operations make.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) tables: Tables,
    pub(crate) maps: Maps,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::sized(Capacity::default())
    }

    pub(crate) fn sized(capacity: Capacity) -> Self {
        Self { tables: Tables::new(capacity), maps: Maps::default() }
    }

    pub(crate) fn replace(&mut self, service: &str, plans: &[ServicePlan]) -> Vec<MapOp> {
        self.try_replace(service, plans).unwrap().0
    }

    pub(crate) fn try_replace(
        &mut self,
        service: &str,
        plans: &[ServicePlan],
    ) -> Result<(Vec<MapOp>, Vec<FrontendConflict>), TablesError> {
        self.update(service, plans).map(|update| (update.ops, update.conflicts))
    }

    pub(crate) fn update(&mut self, service: &str, plans: &[ServicePlan]) -> Result<Update, TablesError> {
        let update = self.tables.replace(&name(service), plans, 7)?;
        self.maps.apply_all(&update.ops);
        self.maps.check_flows().unwrap();
        Ok(update)
    }

    /// Plans a service and writes it, as the agent does.
    pub(crate) fn serve(&mut self, cluster: &Cluster, config: &PlanConfig, service: &str) -> Vec<MapOp> {
        self.replace(service, &plan(cluster, config, &name(service)))
    }

    pub(crate) fn release_twice(&mut self) {
        self.tables.release();
        self.tables.release();
    }

    pub(crate) fn slot_of(&self, address: &str) -> u32 {
        let of = |backend: &abi::Backend| backend.addr.ip() == ip(address);
        self.maps.used_backends().into_iter().find(|(_, backend)| of(backend)).unwrap().0
    }

    pub(crate) fn owner(&self, frontend: &str) -> Option<String> {
        self.maps.meaning().frontends.get(&key(frontend)).map(|(port, _)| port.1.clone())
    }
}

pub(crate) fn kinds(ops: &[MapOp]) -> Vec<&'static str> {
    let kind = |op: &MapOp| match op {
        MapOp::PutBackend { backend, .. } if backend.flags == 0 => "vacate backend",
        MapOp::PutBackend { .. } => "put backend",
        MapOp::ResetBackendCounters { .. } => "reset backend counters",
        MapOp::PutBase { .. } => "put base",
        MapOp::PutLine { .. } => "put line",
        MapOp::PutService { service, .. } if service.flags == 0 => "clear service",
        MapOp::PutService { .. } => "put service",
        MapOp::ResetServiceCounters { .. } => "reset service counters",
        MapOp::PutServiceName { .. } => "put service name",
        MapOp::DeleteServiceName { .. } => "delete service name",
        MapOp::PutNodeName { .. } => "put node name",
        MapOp::DeleteNodeName { .. } => "delete node name",
        MapOp::PutFrontend { .. } => "put frontend",
        MapOp::DeleteFrontend { .. } => "delete frontend",
        MapOp::ForgetFlows { .. } => "forget flows",
        MapOp::PutSourceRange { .. } => "put source range",
        MapOp::DeleteSourceRange { .. } => "delete source range",
    };
    ops.iter().map(kind).collect()
}

#[test]
fn additions_go_from_what_is_referred_to_up_to_the_frontends() {
    let ops = World::new().replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    assert_eq!(
        kinds(&ops),
        [
            "put node name",
            "put backend",
            "put backend",
            "put line",
            "reset service counters",
            "put service",
            "put service name",
            "put frontend",
        ]
    );
}

#[test]
fn removals_go_the_other_way() {
    let mut world = World::new();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
    let ops = world.replace("a", &[]);
    let expected = ["delete frontend", "delete service name", "clear service", "vacate backend", "delete node name"];
    assert_eq!(kinds(&ops), expected);
}

#[test]
fn the_same_plan_again_needs_no_operation() {
    let mut world = World::new();
    let plans = [web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"]), web("a", "fd00:96::1", &["fd00:10::1"])];
    world.replace("a", &plans);
    assert_eq!(world.replace("a", &plans), []);
}

#[test]
fn the_maps_say_what_the_plan_says() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    plan.backends[0] = BackendPlan { local: true, host_network: true, ..backend("10.0.0.1", "here") };
    plan.tiers[abi::CLASS_EXTERNAL] = TierPlan { spill: 0, local: vec![(0, 1)], remote: vec![] };
    plan.tiers[abi::CLASS_INTERNAL] = TierPlan { spill: 9, local: vec![(0, 1)], remote: vec![(1, 1), (2, 3)] };
    world.replace("a", &[plan]);

    let meaning = world.maps.meaning();
    let id = ("shop".into(), "a".into(), "http".into(), 6, 4);
    assert_eq!(meaning.frontends[&key("10.96.0.1")], (id, abi::KIND_CLUSTER_IP));
    let content = meaning.ports.into_values().next().unwrap();
    let at = |address: &str| -> (IpAddr, u16) { (ip(address), 8080) };
    let classes = |classes: &[usize]| classes.iter().fold(0, |flags, class| flags | abi::BACKEND_CLASS << class);
    let local = abi::BACKEND_USED | abi::BACKEND_LOCAL | abi::BACKEND_HOST_NETWORK | classes(&[0, 1, 2]);
    let remote_flags = abi::BACKEND_USED | classes(&[abi::CLASS_INTERNAL, abi::CLASS_SHORT_CIRCUIT]);
    assert_eq!(content.backends[&at("10.0.0.1")], (local, "here".into(), "west".into()));
    assert_eq!(content.backends[&at("10.0.0.2")], (remote_flags, "far".into(), "west".into()));
    let first = vec![(u32::MAX, at("10.0.0.1"))];
    let remote = vec![(0x3fff_ffff, at("10.0.0.2")), (u32::MAX, at("10.0.0.3"))];
    assert_eq!(content.tiers[abi::CLASS_INTERNAL], (9, first.clone(), remote));
    assert_eq!(content.tiers[abi::CLASS_EXTERNAL], (0, first, vec![]));
    assert_eq!((content.port, content.endpoints), (80, 3));
}

#[test]
fn equal_tiers_share_their_lines() {
    let mut world = World::new();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    assert_eq!(world.maps.lines.len(), 1);
}

#[test]
fn unchanged_tiers_keep_their_lines_when_another_one_changes() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    world.replace("a", std::slice::from_ref(&plan));
    let before = world.maps.services[&1];
    plan.tiers[abi::CLASS_EXTERNAL].remote[0].1 = 5;
    assert_eq!(kinds(&world.replace("a", std::slice::from_ref(&plan))), ["put line", "put service"]);
    let after = world.maps.services[&1];
    assert_eq!(after.tiers[abi::CLASS_INTERNAL], before.tiers[abi::CLASS_INTERNAL]);
    assert_ne!(after.tiers[abi::CLASS_EXTERNAL].remote, before.tiers[abi::CLASS_EXTERNAL].remote);

    plan.tiers[abi::CLASS_EXTERNAL] = plan.tiers[abi::CLASS_INTERNAL].clone();
    assert_eq!(kinds(&world.replace("a", &[plan])), ["put service"]);
    assert_eq!(world.maps.services[&1], before);
}

#[test]
fn a_change_of_the_spill_alone_writes_one_service() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"]);
    world.replace("a", std::slice::from_ref(&plan));
    plan.tiers[0].spill = 1;
    assert_eq!(kinds(&world.replace("a", &[plan])), ["put service"]);
}

#[test]
fn a_new_endpoint_leaves_the_others_in_their_slots() {
    let mut world = World::new();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.2"])]);
    let before = world.maps.used_backends();
    let ops = world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    assert_eq!(kinds(&ops), ["put backend", "put line", "put service"]);
    assert!(before.iter().all(|(slot, backend)| world.maps.backends[slot] == *backend));
}

#[test]
fn the_flows_of_an_endpoint_that_goes_away_are_stale_at_once() {
    let mut world = World::new();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    let slot = world.slot_of("10.0.0.1");
    let before = world.maps.backends[&slot];
    let ops = world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.2"])]);
    assert_eq!(kinds(&ops), ["put service", "vacate backend"]);
    let after = world.maps.backends[&slot];
    assert_eq!(after, abi::Backend { flags: 0, generation: before.generation + 1, ..before });
}

#[test]
fn a_backend_slot_changes_hands_after_two_releases_with_a_new_generation_and_fresh_counters() {
    let mut world = World::sized(Capacity { backends: 2, ..Capacity::default() });
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
    let first = world.maps.backends[&1].generation;
    world.replace("a", &[]);
    let next = [web("b", "10.96.0.2", &["10.0.0.2"])];
    for _ in 0..2 {
        assert!(matches!(world.try_replace("b", &next), Err(TablesError::Full { map: "backends", .. })));
        world.tables.release();
    }
    let ops = world.replace("b", &next);
    assert!(ops.contains(&MapOp::ResetBackendCounters { id: 1 }));
    assert_eq!(world.maps.backends[&1].generation, first + 2);
}

#[test]
fn slot_zero_of_backends_and_services_is_never_used() {
    let mut world = World::new();
    for index in 0..20 {
        let (service, frontend) = (format!("s{index}"), format!("10.96.0.{index}"));
        world.replace(&service, &[web(&service, &frontend, &["10.0.0.1", "10.0.0.2"])]);
    }
    assert!(!world.maps.backends.contains_key(&0) && !world.maps.services.contains_key(&0));
    assert!(!world.maps.node_names.contains_key(&0));
}

#[test]
fn endpoints_without_a_node_have_node_zero() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1"]);
    plan.backends[0].node = None;
    world.replace("a", &[plan]);
    assert_eq!(world.maps.backends[&1].node, 0);
    assert!(world.maps.node_names.is_empty());
}

#[test]
fn a_node_is_named_once_and_as_long_as_an_endpoint_runs_on_it() {
    let mut world = World::new();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
    let ops = world.replace("b", &[web("b", "10.96.0.2", &["10.0.0.2"])]);
    assert!(!kinds(&ops).contains(&"put node name"));
    world.replace("a", &[]);
    assert_eq!(world.maps.node_names.len(), 1);
    world.replace("b", &[]);
    assert_eq!(world.maps.node_names.len(), 0);
}

#[test]
fn an_endpoint_that_moves_to_another_node_or_zone_keeps_its_slot_and_its_flows() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1"]);
    world.replace("a", std::slice::from_ref(&plan));
    let before = world.maps.backends[&1];
    plan.backends[0].zone = "north".into();
    let ops = world.replace("a", &[plan]);
    assert_eq!(kinds(&ops), ["put node name", "put backend", "delete node name"]);
    assert_eq!(world.maps.backends[&1].generation, before.generation);
}

#[test]
fn a_renumbered_service_port_is_renamed_in_place() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1"]);
    world.replace("a", std::slice::from_ref(&plan));
    plan.port = 81;
    plan.frontends[0].0.port = 81;
    let ops = world.replace("a", &[plan]);
    assert_eq!(kinds(&ops), ["delete frontend", "put service name", "put frontend"]);
    assert_eq!(world.maps.service_names[&1].created, 7);
}

#[test]
fn a_full_map_names_itself_its_size_and_the_option_and_changes_nothing() {
    // Just enough for both services, so that a slot lost by a failure is missed. For want of lines none is refused.
    let base = Capacity { services: 3, backends: 5, lines: 2, frontends: 2, nodes: 2, ..Capacity::default() };
    let cases = [
        (Capacity { services: 2, ..base }, "services", 2, "--max-services"),
        (Capacity { backends: 4, ..base }, "backends", 4, "--max-backends"),
        (Capacity { frontends: 1, ..base }, "frontends4", 1, "--max-frontends"),
    ];
    for (capacity, map, size, option) in cases {
        let mut world = World::sized(capacity);
        let first = [web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])];
        world.replace("a", &first);
        let mut second = web("b", "10.96.0.2", &["10.0.0.3", "10.0.0.4"]);
        second.backends[1].node = Some("other".into());
        for _ in 0..5 {
            let error = world.try_replace("b", std::slice::from_ref(&second)).unwrap_err();
            assert_eq!(error, TablesError::Full { map, size, option });
        }
        let error = world.try_replace("b", &[second]).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(map) && message.contains(&size.to_string()) && message.contains(option), "{message}");

        assert_eq!(world.replace("a", &first), []);
        assert_eq!(world.replace("b", &[]), []);
        // What the failed plan took is free again, without waiting for a release.
        world.replace("a", &[]);
        world.release_twice();
        world.replace("c", &[web("c", "10.96.0.3", &["10.0.0.5", "10.0.0.6"])]);
    }
}

#[test]
fn prune_removes_the_services_that_are_not_kept_and_no_others() {
    let mut world = World::new();
    for (service, frontend) in [("a", "10.96.0.1"), ("b", "10.96.0.2"), ("c", "10.96.0.3")] {
        world.replace(service, &[web(service, frontend, &["10.0.0.1", "10.0.0.2"])]);
    }
    let ops = world.tables.prune(|service| *service == name("b"));
    world.maps.apply_all(&ops);
    let meaning = world.maps.meaning();
    assert_eq!(meaning.ports.keys().map(|id| id.1.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(meaning.frontends.keys().copied().collect::<Vec<_>>(), [key("10.96.0.2")]);
    assert_eq!(world.tables.prune(|_| true), []);
}

#[test]
fn more_endpoints_than_one_tier_can_hold_are_refused_with_the_service_s_name() {
    let mut world = World::new();
    let mut plan = web("a", "10.96.0.1", &[]);
    plan.backends = (0..65_537_u32)
        .map(|index| BackendPlan {
            address: std::net::Ipv4Addr::from(0x0a00_0000 + index).into(),
            ..backend("10.0.0.1", "far")
        })
        .collect();
    plan.tiers[2].remote = (0..65_537).map(|index| (index, 1)).collect();
    let message = world.try_replace("a", &[plan]).unwrap_err().to_string();
    assert!(message.contains("shop/a") && message.contains("65537"), "{message}");
}

#[test]
fn a_slot_is_taken_until_it_has_rested_and_a_key_until_it_is_deleted() {
    let mut world = World::new();
    let uses = |world: &World| BTreeMap::from(world.tables.uses());
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    let before = uses(&world);
    assert_eq!([before["services"], before["backends"], before["frontends4"], before["frontends6"]], [1, 2, 1, 0]);
    assert!(before["lines"] >= 1, "{before:?}");
    world.replace("a", &[]);
    let after = uses(&world);
    assert_eq!([after["services"], after["backends"], after["frontends4"]], [1, 2, 0]);
    world.release_twice();
    assert!(uses(&world).values().all(|taken| *taken == 0), "{:?}", uses(&world));
}
