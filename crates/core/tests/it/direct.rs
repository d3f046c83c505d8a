//! Direct server return: whose endpoints get clients' packets as they are.

use std::collections::BTreeSet;

use weir_abi as abi;
use weir_core::model::Family;
use weir_core::ops::{Capacity, MapOp};
use weir_core::plan::BackendPlan;
use weir_core::tables::{DirectNodes, Tables};

use crate::build::ip;
use crate::tables::{World, backend, kinds, web};

fn nodes(names: &[&str], families: &[Family]) -> DirectNodes {
    DirectNodes {
        nodes: names.iter().map(|name| (*name).into()).collect(),
        families: families.iter().copied().collect(),
    }
}

fn both(names: &[&str]) -> DirectNodes {
    nodes(names, &[Family::V4, Family::V6])
}

impl World {
    fn set_direct(&mut self, direct: &DirectNodes) -> Vec<MapOp> {
        let ops = self.tables.set_direct(direct);
        self.maps.apply_all(&ops);
        ops
    }

    /// The addresses of the endpoints that get them.
    fn direct(&self) -> BTreeSet<std::net::IpAddr> {
        let all = self.maps.used_backends().into_iter();
        all.filter(|(_, backend)| backend.flags & abi::BACKEND_DIRECT != 0).map(|(_, b)| b.addr.ip()).collect()
    }

    /// Endpoints on this node, on "far" and on "farther".
    fn with_nodes() -> Self {
        let mut world = Self::new();
        let mut plan = web("a", "10.96.0.1", &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        plan.backends[0] = BackendPlan { local: true, ..backend("10.0.0.1", "here") };
        plan.backends[2] = backend("10.0.0.3", "farther");
        plan.backends[3] = BackendPlan { node: None, ..backend("10.0.0.4", "") };
        let six = web("a", "fd00:96::1", &["fd00:10::2"]);
        world.replace("a", &[plan, six]);
        world
    }
}

#[test]
fn endpoints_of_the_nodes_that_take_them_and_of_no_others_get_packets_as_they_are() {
    let mut world = World::with_nodes();
    assert_eq!(world.direct(), BTreeSet::new());
    assert_eq!(kinds(&world.set_direct(&both(&["far", "here", ""]))), ["put backend"; 2]);
    assert_eq!(world.direct(), [ip("10.0.0.2"), ip("fd00:10::2")].into());
    assert_eq!(world.set_direct(&both(&["far", "here"])), []);
    assert_eq!(kinds(&world.set_direct(&both(&["farther"]))), ["put backend"; 3]);
    assert_eq!(world.direct(), [ip("10.0.0.3")].into());
    world.set_direct(&DirectNodes::default());
    assert_eq!(world.direct(), BTreeSet::new());
}

#[test]
fn a_family_in_which_nobody_knows_this_node_is_left_out() {
    let mut world = World::with_nodes();
    world.set_direct(&nodes(&["far"], &[Family::V4]));
    assert_eq!(world.direct(), [ip("10.0.0.2")].into());
    world.set_direct(&nodes(&["far"], &[Family::V6]));
    assert_eq!(world.direct(), [ip("fd00:10::2")].into());
}

#[test]
fn flows_stay_where_they_are_when_a_node_begins_or_stops_to_take_them() {
    let mut world = World::with_nodes();
    let generation = |world: &World| world.maps.backends[&world.slot_of("10.0.0.2")].generation;
    let before = generation(&world);
    world.set_direct(&both(&["far"]));
    world.set_direct(&both(&[]));
    assert_eq!(generation(&world), before);
}

#[test]
fn new_endpoints_and_new_plans_follow_what_their_node_does() {
    let mut world = World::new();
    world.set_direct(&both(&["far"]));
    let plans = [web("a", "10.96.0.1", &["10.0.0.2"])];
    world.replace("a", &plans);
    assert_eq!(world.direct(), [ip("10.0.0.2")].into());
    assert_eq!(world.replace("a", &plans), []);
    let mut moved = web("a", "10.96.0.1", &["10.0.0.2"]);
    moved.backends[0] = backend("10.0.0.2", "farther");
    world.replace("a", &[moved]);
    assert_eq!(world.direct(), BTreeSet::new());
}

#[test]
fn the_next_agent_asks_again_who_takes_them() {
    let mut world = World::new();
    world.set_direct(&both(&["far"]));
    let plans = [web("a", "10.96.0.1", &["10.0.0.2"])];
    world.replace("a", &plans);
    world.tables = Tables::adopt(Capacity::default(), &world.maps.dump());
    assert_eq!(kinds(&world.replace("a", &plans)), ["put backend"]);
    assert_eq!(world.direct(), BTreeSet::new());
}
