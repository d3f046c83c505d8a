//! What a new process makes of the maps that an earlier one left.

use weir_abi as abi;
use weir_core::ops::{Capacity, MapOp};
use weir_core::plan::ServicePlan;
use weir_core::tables::Tables;

use crate::build::name;
use crate::maps::Maps;
use crate::tables::{World, key, web};

const MANY: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

fn two_services() -> [(&'static str, ServicePlan); 2] {
    [("a", web("a", "10.96.0.1", &MANY)), ("b", web("b", "10.96.0.2", &MANY))]
}

fn world() -> World {
    let mut world = World::new();
    for (service, plan) in two_services() {
        world.replace(service, &[plan]);
    }
    world
}

impl World {
    pub(crate) fn restart(&mut self) {
        self.restart_sized(Capacity::default());
    }

    pub(crate) fn restart_sized(&mut self, capacity: Capacity) {
        self.tables = Tables::adopt(capacity, &self.maps.dump());
    }

    pub(crate) fn prune(&mut self, keep: &[&str]) -> Vec<MapOp> {
        let ops = self.tables.prune(|service| keep.iter().any(|text| *service == name(text)));
        self.maps.apply_all(&ops);
        ops
    }

    /// Plans both services again, prunes, and expects the maps of a fresh start.
    fn recover(&mut self) {
        for (service, plan) in two_services() {
            self.replace(service, &[plan]);
        }
        self.prune(&["a", "b"]);
        assert_eq!(self.maps.meaning(), world().maps.meaning());
        let of_services = self.maps.used_backends().len();
        assert_eq!(of_services, 6, "orphaned backends stay in use");
    }
}

#[test]
fn a_restart_with_the_same_plans_writes_nothing() {
    let mut world = world();
    world.restart();
    for (service, plan) in two_services() {
        assert_eq!(world.replace(service, &[plan]), []);
    }
    assert_eq!(world.prune(&["a", "b"]), []);
}

#[test]
fn an_adopted_service_stays_until_it_is_replaced_or_pruned() {
    let mut world = world();
    let before = world.maps.clone();
    world.restart();
    assert_eq!(world.prune(&["a", "b"]), []);
    assert_eq!(world.maps, before);
    world.prune(&["b"]);
    assert_eq!(world.maps.frontends.keys().copied().collect::<Vec<_>>(), [key("10.96.0.2")]);
}

#[test]
fn an_endpoint_that_went_away_during_the_restart_is_vacated_and_the_others_keep_their_slots() {
    let mut world = world();
    let before = world.maps.backends.clone();
    world.restart();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    let changed: Vec<_> = before.iter().filter(|(slot, backend)| world.maps.backends[slot] != **backend).collect();
    assert_eq!(changed.len(), 1);
    assert_eq!(world.maps.backends[changed[0].0].generation, changed[0].1.generation + 1);
}

#[test]
fn a_free_slot_goes_on_counting_its_generations() {
    let mut world = world();
    world.replace("a", &[]);
    let before = world.maps.backends[&1];
    assert_eq!(before.flags, 0);
    world.restart();
    world.replace("c", &[web("c", "10.96.0.3", &["10.0.0.9"])]);
    assert_eq!(world.maps.backends[&1].generation, before.generation + 1);
}

#[test]
fn a_conflict_is_known_again_after_a_restart() {
    let mut world = World::new();
    let plans = ["a", "b"].map(|service| web(service, "10.96.0.1", &["10.0.0.1"]));
    world.replace("a", &plans[..1]);
    world.replace("b", &plans[1..]);
    world.restart();
    // The waiting one comes first this time.
    assert_eq!(world.replace("b", &plans[1..]), []);
    assert_eq!(world.replace("a", &plans[..1]), []);
    assert_eq!(world.tables.conflicts().len(), 1);
}

#[test]
fn a_service_without_a_name_is_an_orphan() {
    let mut world = world();
    world.maps.service_names.remove(&1);
    world.restart();
    world.recover();
}

#[test]
fn of_two_services_with_one_name_the_second_is_an_orphan() {
    let mut world = world();
    let first = world.maps.service_names[&1];
    world.maps.service_names.insert(2, first);
    world.restart();
    world.recover();
}

#[test]
fn a_name_without_a_service_is_removed_and_never_attached_to_another() {
    let mut world = world();
    let stray = world.maps.service_names[&1];
    world.maps.service_names.insert(3, stray);
    world.restart();
    world.replace("c", &[web("c", "10.96.0.3", &[])]);
    let ops = world.prune(&["a", "b", "c"]);
    assert!(ops.contains(&MapOp::DeleteServiceName { id: 3 }));
    assert_eq!(world.maps.meaning().frontends[&key("10.96.0.3")].0.1, "c");
}

fn damage(world: &mut World, damage: impl FnOnce(&mut Maps)) {
    damage(&mut world.maps);
    world.restart();
}

#[test]
fn a_service_whose_line_is_missing_is_an_orphan() {
    let mut world = world();
    damage(&mut world, |maps| {
        maps.lines.remove(&0);
    });
    world.maps.lines.insert(0, abi::Line { cumulative: [u32::MAX; 16], r#ref: [0; 16] });
    world.recover();
}

#[test]
fn a_service_that_leads_to_another_one_s_backends_is_an_orphan() {
    let mut world = world();
    world.maps.services.get_mut(&1).unwrap().tiers[0].local = 6;
    assert!(world.maps.check().is_err());
    world.restart();
    // Replacing repairs it at once, in a slot of its own; until the prune the broken slot is only out of reach.
    let ops = world.tables.replace(&name("a"), &[two_services()[0].1.clone()], 7).unwrap().ops;
    ops.iter().for_each(|op| world.maps.apply(op));
    assert_ne!(world.maps.frontends[&key("10.96.0.1")].service, 1);
    world.tables.prune(|_| true).iter().for_each(|op| world.maps.apply(op));
    assert_eq!(world.maps.check(), Ok(()));
    world.recover();
}

#[test]
fn services_that_share_a_line_are_both_orphans() {
    let mut world = world();
    let shared = world.maps.services[&1].tiers[0].remote;
    world.maps.services.get_mut(&2).unwrap().tiers[0].remote = shared;
    world.restart();
    let mut ops = Vec::new();
    for (service, plan) in two_services() {
        ops.extend(world.tables.replace(&name(service), &[plan], 7).unwrap().ops);
    }
    ops.extend(world.tables.prune(|_| true));
    ops.iter().for_each(|op| world.maps.apply(op));
    assert_eq!(world.maps.check(), Ok(()));
    // Neither went on in its old slot: the other would still have led to lines that change hands.
    assert!(world.maps.frontends.values().all(|frontend| frontend.service > 2));
    world.recover();
}

#[test]
fn lines_that_loop_are_found_out() {
    let mut world = world();
    damage(&mut world, |maps| maps.lines.get_mut(&0).unwrap().r#ref = [abi::REF_LINE; 16]);
    world.recover();
}

#[test]
fn a_backend_that_belongs_to_no_service_is_vacated() {
    let mut world = world();
    damage(&mut world, |maps| {
        let stray = abi::Backend { service: 99, ..maps.backends[&1] };
        maps.backends.insert(50, stray);
    });
    world.recover();
    assert_eq!(world.maps.backends[&50].flags, 0);
}

#[test]
fn of_two_backends_with_one_endpoint_only_one_is_kept() {
    let mut world = world();
    damage(&mut world, |maps| {
        let twin = maps.backends[&1];
        maps.backends.insert(50, twin);
    });
    world.recover();
}

#[test]
fn a_frontend_that_leads_to_nobody_is_taken_over_or_removed() {
    let mut world = world();
    let stray = abi::Frontend { service: 77, kind: abi::KIND_CLUSTER_IP };
    world.maps.frontends.insert(key("10.96.0.8"), stray);
    world.maps.frontends.insert(key("10.96.0.9"), stray);
    world.restart();
    let update = world.tables.replace(&name("c"), &[web("c", "10.96.0.8", &[])], 7).unwrap();
    assert_eq!(update.conflicts, []);
    update.ops.iter().for_each(|op| world.maps.apply(op));
    let ops = world.tables.prune(|_| true);
    ops.iter().for_each(|op| world.maps.apply(op));
    assert_eq!(ops, [MapOp::DeleteFrontend { key: key("10.96.0.9") }]);
    assert_eq!(world.maps.meaning().frontends[&key("10.96.0.8")].0.1, "c");
}

#[test]
fn the_node_of_an_orphan_keeps_its_name_until_the_prune() {
    let mut world = world();
    damage(&mut world, |maps| {
        maps.service_names.remove(&1);
    });
    world.replace("b", &[]);
    assert_eq!(world.maps.node_names.len(), 1);
    world.prune(&[]);
    assert_eq!(world.maps.node_names.len(), 0);
}

#[test]
fn a_node_name_that_nobody_uses_is_forgotten() {
    let mut world = world();
    damage(&mut world, |maps| {
        let stray = abi::NodeName { name: [b'x'; 64], zone: [0; 64] };
        maps.node_names.insert(9, stray);
    });
    assert_eq!(world.prune(&["a", "b"]), [MapOp::DeleteNodeName { id: 9 }]);
}

#[test]
fn a_crash_between_any_two_operations_is_repaired() {
    let (_, before) = &two_services()[0];
    let mut after = web("a", "10.96.0.7", &["10.0.0.2", "10.0.0.4"]);
    after.key.port_name = "renamed".into();
    let start = world();
    let count = world().tables.replace(&name("a"), &[after.clone()], 7).unwrap().ops.len();
    for written in 0..=count {
        let mut world = world();
        let ops = world.tables.replace(&name("a"), &[after.clone()], 7).unwrap().ops;
        world.maps.apply_all(&ops[..written]);
        world.restart();
        world.replace("a", std::slice::from_ref(before));
        world.prune(&["a", "b"]);
        assert_eq!(world.maps.meaning(), start.maps.meaning(), "after {written} of {count} operations");
        assert_eq!(world.maps.used_backends().len(), 6);
    }
}
