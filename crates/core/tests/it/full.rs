//! Maps that are full, or smaller than what they held: what a service keeps, and what it loses.

use weir_core::ops::Capacity;
use weir_core::plan::ServicePlan;
use weir_core::tables::TablesError;

use crate::tables::{World, web};

/// Slots for so many endpoints; slot 0 is nobody's.
const fn for_endpoints(endpoints: u32) -> Capacity {
    Capacity { services: 4, backends: endpoints + 1, lines: 8, frontends: 4, nodes: 4, ..SMALL }
}

const SMALL: Capacity = Capacity {
    services: 4,
    backends: 4,
    lines: 8,
    frontends: 4,
    nodes: 4,
    source_ranges: 1,
    flows: 1,
    openings: 1,
    sockets: 1,
    affinities: 1,
    held_pieces: 1,
};

const NO_SLOT: Option<TablesError> = Some(TablesError::Full { map: "backends", size: 3, option: "--max-backends" });

impl World {
    /// The endpoints that new flows of the only service may go to, and all that have slots.
    fn selected(&self) -> (Vec<String>, Vec<String>) {
        let content = self.maps.meaning().ports.into_values().next().unwrap();
        let (_, local, remote) = &content.tiers[0];
        let mut selected: Vec<_> = local.iter().chain(remote).map(|(_, endpoint)| endpoint.0.to_string()).collect();
        selected.sort();
        (selected, content.backends.keys().map(|endpoint| endpoint.0.to_string()).collect())
    }
}

fn is(found: &(Vec<String>, Vec<String>), selected: &[&str], with_slots: &[&str]) {
    assert_eq!(found.0, selected, "which new flows go to");
    assert_eq!(found.1, with_slots, "which have slots");
}

#[test]
fn where_a_new_endpoint_finds_no_slot_new_flows_leave_those_that_are_gone_all_the_same() {
    let mut world = World::sized(for_endpoints(2));
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    let next = [web("a", "10.96.0.1", &["10.0.0.2", "10.0.0.3"])];
    let update = world.update("a", &next).unwrap();
    assert_eq!(update.thinned, NO_SLOT);
    is(&world.selected(), &["10.0.0.2"], &["10.0.0.2"]);
    world.release_twice();
    assert_eq!(world.update("a", &next).unwrap().thinned, None, "the slot of the one that is gone is free");
    is(&world.selected(), &["10.0.0.2", "10.0.0.3"], &["10.0.0.2", "10.0.0.3"]);
}

#[test]
fn a_slot_goes_to_an_endpoint_that_gets_flows_before_one_that_does_not() {
    let mut world = World::sized(for_endpoints(2));
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.9"])]);
    let mut next = web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2", "10.0.0.9"]);
    // The first one is not ready.
    next.tiers.iter_mut().for_each(|tier| tier.remote.retain(|(index, _)| *index != 0));
    assert_eq!(world.update("a", &[next]).unwrap().thinned, NO_SLOT);
    is(&world.selected(), &["10.0.0.2", "10.0.0.9"], &["10.0.0.2", "10.0.0.9"]);
}

#[test]
fn a_node_whose_new_endpoint_finds_no_slot_has_none_for_clients_outside() {
    let mut world = World::sized(for_endpoints(1));
    let name = crate::build::name("a");
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
    assert!(!world.tables.has_local(&name), "it is another node's");
    let here = |addresses: &[&str]| {
        let mut plan = web("a", "10.96.0.1", addresses);
        let local = addresses.len() - 1;
        plan.backends[local].local = true;
        for tier in &mut plan.tiers {
            tier.remote.retain(|(index, _)| *index != local);
            tier.local.push((local, 1));
        }
        plan
    };
    assert_eq!(
        world.update("a", &[here(&["10.0.0.1", "10.0.0.2"])]).unwrap().thinned.map(|full| full.is_of_room()),
        Some(true)
    );
    assert!(world.tables.holds(&name) && !world.tables.has_local(&name));
    world.update("a", &[here(&["10.0.0.2"])]).unwrap();
    world.release_twice();
    assert_eq!(world.update("a", &[here(&["10.0.0.2"])]).unwrap().thinned, None);
    assert!(world.tables.has_local(&name));
}

#[test]
fn a_service_that_has_no_slots_at_all_is_refused_and_the_others_keep_theirs() {
    let mut world = World::sized(for_endpoints(2));
    let first = [web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])];
    world.replace("a", &first);
    assert_eq!(world.update("b", &[web("b", "10.96.0.2", &["10.0.0.3"])]).unwrap_err(), NO_SLOT.unwrap());
    assert_eq!(world.replace("a", &first), []);
}

/// Three endpoints on as many nodes.
fn on_three_nodes() -> ServicePlan {
    let mut plan = web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    for (backend, node) in plan.backends.iter_mut().zip(["one", "two", "three"]) {
        backend.node = Some(node.into());
    }
    plan
}

#[test]
fn endpoints_on_nodes_that_find_no_number_are_served_as_if_nobody_knew_where_they_are() {
    let mut world = World::sized(Capacity { nodes: 2, ..for_endpoints(3) });
    let update = world.update("a", &[on_three_nodes()]).unwrap();
    let full = TablesError::Full { map: "node_names", size: 2, option: "--max-nodes" };
    assert_eq!((update.thinned, update.unnumbered), (None, Some(full)));
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    is(&world.selected(), &all, &all);
    let numbers = all.map(|address| world.maps.backends[&world.slot_of(address)].node);
    assert_eq!(numbers, [1, 2, 0]);
    assert_eq!(world.replace("a", &[on_three_nodes()]), [], "nothing is written again");
}

#[test]
fn a_node_whose_name_was_lost_takes_no_service_along_at_a_restart() {
    let mut world = World::sized(for_endpoints(3));
    world.replace("a", &[on_three_nodes()]);
    world.maps.node_names.remove(&2);
    let before = world.maps.used_backends();
    world.restart_sized(for_endpoints(3));
    assert_eq!(world.tables.prune(|_| true), []);
    world.replace("a", &[on_three_nodes()]);
    let place = |backend: &weir_abi::Backend| (backend.addr, backend.generation);
    let places = |all: std::collections::BTreeMap<u32, weir_abi::Backend>| -> Vec<_> {
        all.into_iter().map(|(slot, backend)| (slot, place(&backend))).collect()
    };
    assert_eq!(places(world.maps.used_backends()), places(before), "flows go on");
    assert_eq!(world.maps.meaning().nodes.len(), 3);
}

/// A table that became smaller keeps as many names as it holds, whatever their numbers are.
#[test]
fn no_more_names_of_nodes_are_written_than_there_is_room_for() {
    let mut world = World::sized(for_endpoints(4));
    world.replace("a", &[on_three_nodes()]);
    for (number, higher) in [(1, 21), (2, 22), (3, 23)] {
        let name = world.maps.node_names.remove(&number).unwrap();
        world.maps.node_names.insert(higher, name);
        world.maps.backends.values_mut().filter(|backend| backend.node == number).for_each(|b| b.node = higher);
    }
    world.restart_sized(Capacity { nodes: 3, ..for_endpoints(4) });
    let mut plan = on_three_nodes();
    plan.backends.push(crate::tables::backend("10.0.0.4", "four"));
    let update = world.update("a", &[plan]).unwrap();
    assert!(update.unnumbered.is_some());
    assert_eq!(world.maps.meaning().nodes.len(), 3);
}

#[test]
fn what_steers_is_told_of_the_endpoints_that_have_slots() {
    let mut world = World::sized(for_endpoints(2));
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2"])]);
    let next = [web("a", "10.96.0.1", &["10.0.0.2", "10.0.0.3"])];
    world.update("a", &next).unwrap();
    let held = world.tables.held(&crate::build::name("a"), &next);
    assert_eq!(held[0].backends, [crate::tables::backend("10.0.0.2", "far")]);
    assert!(held[0].tiers.iter().all(|tier| tier.remote == [(0, 1)]));
}

/// Who has a slot that a smaller map had lost must not look like the one that had it before.
#[test]
fn a_slot_that_seems_to_be_new_begins_with_a_generation_that_nobody_had() {
    let mut world = World::sized(for_endpoints(3));
    let plan = [web("a", "10.96.0.1", &["10.0.0.1"])];
    let update = world.tables.replace(&crate::build::name("a"), &plan, 1000).unwrap();
    world.maps.apply_all(&update.ops);
    assert_eq!(world.maps.backends[&1].generation, 1000);
    world.replace("a", &[]);
    world.release_twice();
    let update = world.tables.replace(&crate::build::name("a"), &plan, 5000).unwrap();
    world.maps.apply_all(&update.ops);
    assert_eq!(world.maps.backends[&1].generation, 1002, "one that is known counts on");
}
