//! Shares that move between two plans: written as stores, never wider than the plan, and kept when the plan changes.

use weir_abi as abi;
use weir_core::ops::{Capacity, MapOp};
use weir_core::plan::{ServicePlan, Shares, TierPlan};
use weir_core::tables::TablesError;

use crate::tables::{World, backend, kinds, web};

const SPILL: u16 = 0x4000;

/// Addresses with their parts of 100.
type Parts = Vec<(String, u64)>;

/// One endpoint here, the others elsewhere, as `local-first` plans them.
fn plan(remote: &[&str]) -> ServicePlan {
    let mut plan = web("a", "10.96.0.1", &[]);
    plan.backends = remote.iter().map(|address| backend(address, "far")).collect();
    plan.backends.insert(0, weir_core::plan::BackendPlan { local: true, ..backend("10.0.0.1", "here") });
    let remote = (1..=remote.len()).map(|index| (index, 1)).collect();
    let tier = TierPlan { spill: 0, local: vec![(0, 1)], remote };
    plan.tiers = [tier.clone(), tier.clone(), tier];
    plan.endpoints = u32::try_from(plan.backends.len()).unwrap();
    plan.shares = Shares::Steered;
    plan
}

fn world(remote: &[&str]) -> World {
    let mut world = World::new();
    world.replace("a", &[plan(remote)]);
    world
}

impl World {
    /// Weights by address for all classes; those of this node are known by theirs.
    fn steer(&mut self, spill: u16, weights: &[(&str, u32)]) -> Vec<MapOp> {
        let entries = |local: bool| {
            let of = weights.iter().filter(move |(address, _)| (*address == "10.0.0.1") == local);
            of.map(|(address, weight)| (self.slot_of(address) as usize, *weight)).collect::<Vec<_>>()
        };
        let tier = TierPlan { spill, local: entries(true), remote: entries(false) };
        let ops = self.tables.steer(1, &[Some(tier.clone()), Some(tier.clone()), Some(tier)]).unwrap();
        self.maps.apply_all(&ops);
        ops
    }

    /// Spill, and addresses with their parts of 100, in the first class.
    fn shares(&self) -> (u32, Parts, Parts) {
        let meaning = self.maps.meaning();
        let (spill, local, remote) = &meaning.ports.values().next().unwrap().tiers[0];
        let parts = |bounds: &[(u32, (std::net::IpAddr, u16))]| {
            let mut below = 0;
            let part = |(upper, (ip, _)): &(u32, (std::net::IpAddr, u16))| {
                let end = u64::from(*upper) + 1;
                let part = end - below;
                below = end;
                (ip.to_string(), (part * 100 + (1 << 31)) >> 32)
            };
            bounds.iter().map(part).collect()
        };
        (*spill, parts(local), parts(remote))
    }
}

fn named(parts: &[(&str, u64)]) -> Parts {
    parts.iter().map(|(address, part)| ((*address).to_owned(), *part)).collect()
}

const TWO: [&str; 2] = ["10.0.0.2", "10.0.0.3"];

#[test]
fn weights_that_move_within_a_tier_are_redrawn_in_place_and_a_spill_alone_writes_the_service() {
    let mut world = world(&TWO);
    let weights = [("10.0.0.1", 1), ("10.0.0.2", 3), ("10.0.0.3", 1)];
    assert_eq!(kinds(&world.steer(SPILL, &weights)), ["put line", "put service"]);
    assert_eq!(world.shares(), (0x4000, named(&[("10.0.0.1", 100)]), named(&[("10.0.0.2", 75), ("10.0.0.3", 25)])));
    assert_eq!(kinds(&world.steer(SPILL, &[("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 3)])), ["put line"]);
    assert_eq!(world.shares().2, named(&[("10.0.0.2", 25), ("10.0.0.3", 75)]));
    let same = [("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 3)];
    assert_eq!(kinds(&world.steer(2 * SPILL, &same)), ["put service"]);
    assert_eq!(kinds(&world.steer(2 * SPILL, &same)), [""; 0], "nothing moved");
}

#[test]
fn no_line_is_used_up_by_shares_that_move_without_end() {
    let mut world = World::sized(Capacity { lines: 2, ..Default::default() });
    world.replace("a", &[plan(&TWO)]);
    for weight in 1..100 {
        world.steer(SPILL, &[("10.0.0.1", 1), ("10.0.0.2", weight), ("10.0.0.3", 100)]);
    }
}

/// A service with this many endpoints in all tiers, none of them here.
fn of(count: u8) -> ServicePlan {
    let addresses: Vec<String> = (1..=count).map(|host| format!("10.0.1.{host}")).collect();
    web("b", "10.96.0.2", &addresses.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Where new flows to it go.
fn chosen(world: &World) -> usize {
    world.maps.choices(&of(1).frontends[0].0, abi::CLASS_INTERNAL).len()
}

fn full(lines: u32) -> Option<TablesError> {
    Some(TablesError::Full { map: "lines", size: lines, option: "--max-lines" })
}

#[test]
fn shares_that_moved_apart_give_way_to_the_plan_where_both_find_no_room() {
    let mut world = World::sized(Capacity { lines: 4, ..Default::default() });
    let four = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
    world.replace("a", &[plan(&four)]);
    let tier = |weight: u32| {
        let remote = four.iter().zip([1, weight, weight]).map(|(a, weight)| (world.slot_of(a) as usize, weight));
        Some(TierPlan { spill: SPILL, local: vec![(world.slot_of("10.0.0.1") as usize, 1)], remote: remote.collect() })
    };
    let apart = [tier(1), tier(2), tier(3)];
    let ops = world.tables.steer(1, &apart).unwrap();
    world.maps.apply_all(&ops);
    world.release_twice();

    let five = [&four[..], &["10.0.0.6"]].concat();
    let update = world.update("a", &[plan(&five)]).unwrap();
    assert_eq!(update.thinned, None);
    let (spill, local, remote) = world.shares();
    assert_eq!((spill, local), (0x4000, named(&[("10.0.0.1", 100)])), "what leaves the node takes no line");
    assert_eq!(remote, five.iter().map(|address| ((*address).to_owned(), 20)).collect::<Parts>());
}

#[test]
fn a_service_that_grows_where_no_line_is_free_keeps_its_lines_until_there_is_one() {
    let mut world = World::sized(Capacity { lines: 2, ..Default::default() });
    world.replace("a", &[plan(&TWO)]);
    world.replace("b", &[of(3)]);
    for _ in 0..2 {
        let update = world.update("b", &[of(4)]).unwrap();
        assert_eq!((update.thinned, chosen(&world)), (full(2), 3), "all of the old ones are still wanted");
    }
    assert_eq!(world.update("b", &[of(4)]).unwrap().ops, [], "told each time, and written once");
    world.replace("a", &[]);
    world.release_twice();
    assert_eq!((world.update("b", &[of(4)]).unwrap().thinned, chosen(&world)), (None, 4));
}

#[test]
fn a_service_that_changes_where_no_line_is_free_has_one_endpoint_until_its_own_line_is() {
    let mut world = World::sized(Capacity { lines: 1, ..Default::default() });
    world.replace("b", &[of(3)]);
    let update = world.update("b", &[of(2)]).unwrap();
    assert_eq!((update.thinned, chosen(&world)), (full(1), 1), "one of the old ones is gone");
    assert_eq!(world.update("b", &[of(2)]).unwrap().thinned, full(1), "the old line must rest");
    world.release_twice();
    assert_eq!((world.update("b", &[of(2)]).unwrap().thinned, chosen(&world)), (None, 2));
}

#[test]
fn what_is_missing_in_thin_tiers_comes_back_though_the_shares_that_the_maps_hold_are_kept() {
    let mut world = World::sized(Capacity { lines: 1, ..Default::default() });
    let steered = |count| ServicePlan { shares: Shares::Steered, ..of(count) };
    world.replace("b", &[steered(3)]);
    assert_eq!((world.update("b", &[steered(2)]).unwrap().thinned, chosen(&world)), (full(1), 1));
    world.release_twice();
    assert_eq!((world.update("b", &[steered(2)]).unwrap().thinned, chosen(&world)), (None, 2));
}

#[test]
fn of_more_endpoints_than_find_room_a_line_is_filled() {
    let mut world = World::sized(Capacity { lines: 3, ..Default::default() });
    world.replace("a", &[plan(&TWO)]);
    world.replace("b", &[of(3)]);
    let update = world.update("b", &[of(17)]).unwrap();
    assert_eq!((update.thinned, chosen(&world)), (full(3), 16));
    world.release_twice();
    assert_eq!(world.update("b", &[of(17)]).unwrap().ops, [], "there is no room for more, and nothing moves");
}

#[test]
fn a_service_that_is_new_where_no_line_is_free_is_served_by_one_endpoint() {
    let mut world = World::sized(Capacity { lines: 1, ..Default::default() });
    world.replace("a", &[plan(&TWO)]);
    for _ in 0..3 {
        assert_eq!((world.update("b", &[of(3)]).unwrap().thinned, chosen(&world)), (full(1), 1));
        world.release_twice();
    }
    world.replace("a", &[]);
    world.release_twice();
    assert_eq!((world.update("b", &[of(3)]).unwrap().thinned, chosen(&world)), (None, 3));
}

#[test]
fn what_the_plan_does_not_allow_in_a_class_gets_nothing() {
    let mut world = World::new();
    let mut narrow = plan(&TWO);
    narrow.tiers[abi::CLASS_EXTERNAL].remote.clear();
    world.replace("a", &[narrow.clone()]);
    world.steer(u16::MAX, &[("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)]);
    let external = world.maps.choices(&narrow.frontends[0].0, abi::CLASS_EXTERNAL);
    assert_eq!(external, [crate::build::ip("10.0.0.1")].into());
    let nobody = [Some(TierPlan { spill: 0, local: vec![(99, 1)], remote: vec![] }), None, None];
    assert_eq!(world.tables.steer(1, &nobody).unwrap(), [], "nobody of it is left: as it was");
    assert_eq!(world.tables.steer(77, &nobody).unwrap(), [], "no such service any more");
}

#[test]
fn a_class_that_is_not_told_keeps_its_shares_though_it_shared_its_lines() {
    let mut world = world(&TWO);
    let remote = TWO.iter().zip([3, 1]).map(|(address, weight)| (world.slot_of(address) as usize, weight)).collect();
    let tier = TierPlan { spill: SPILL, local: vec![(world.slot_of("10.0.0.1") as usize, 1)], remote };
    let ops = world.tables.steer(1, &[None, Some(tier), None]).unwrap();
    world.maps.apply_all(&ops);
    let tiers = &world.maps.meaning().ports.values().next().unwrap().tiers.clone();
    assert_eq!((tiers[0].0, tiers[1].0, tiers[2].0), (0, 0x4000, 0));
    assert_eq!(world.shares().2, named(&[("10.0.0.2", 50), ("10.0.0.3", 50)]));
}

#[test]
fn a_new_plan_and_a_restart_keep_the_shares_of_endpoints_that_stay() {
    let mut world = world(&TWO);
    world.steer(SPILL, &[("10.0.0.1", 1), ("10.0.0.2", 3), ("10.0.0.3", 1)]);
    let before = world.shares();
    assert_eq!(world.replace("a", &[plan(&TWO)]), [], "nothing changed");
    world.restart();
    assert_eq!(world.replace("a", &[plan(&TWO)]), [], "a new process changes nothing either");
    assert_eq!(world.shares(), before);
    world.replace("a", &[plan(&["10.0.0.2", "10.0.0.3", "10.0.0.4"])]);
    let (spill, local, remote) = world.shares();
    assert_eq!((spill, local), (0x4000, named(&[("10.0.0.1", 100)])));
    assert_eq!(remote, named(&[("10.0.0.2", 71), ("10.0.0.3", 24), ("10.0.0.4", 5)]), "who is new begins low");
}

#[test]
fn the_first_endpoint_of_this_node_begins_with_a_tenth_of_the_flows_and_keeps_them_where_nobody_else_is() {
    let mut elsewhere = plan(&TWO);
    elsewhere.tiers.iter_mut().for_each(|tier| tier.local.clear());
    let mut world = World::new();
    world.replace("a", &[elsewhere.clone()]);
    world.steer(u16::MAX, &[("10.0.0.2", 3), ("10.0.0.3", 1)]);

    world.replace("a", &[plan(&TWO)]);
    let (spill, local, remote) = world.shares();
    assert_eq!(spill, 0x1_0000 - 6553, "nine tenths still leave");
    assert_eq!((local, remote), (named(&[("10.0.0.1", 100)]), named(&[("10.0.0.2", 75), ("10.0.0.3", 25)])));

    let mut even = plan(&TWO);
    even.tiers.iter_mut().for_each(|tier| tier.spill = 0x8000);
    world.replace("a", &[elsewhere]);
    world.replace("a", &[even]);
    assert_eq!(world.shares().0, 0x1_0000 - 3276, "a tenth of the half that the plan gives it");

    world.replace("a", &[plan(&[])]);
    assert_eq!((world.shares().1, world.shares().2), (named(&[("10.0.0.1", 100)]), named(&[])));
}

/// Its address is carried by this node now: it had its share among the others.
#[test]
fn an_endpoint_that_is_of_this_node_now_begins_as_one_that_is_new() {
    let mut world = World::new();
    let of = |local: bool| {
        let mut plan = plan(&["10.0.0.2"]);
        plan.backends[0].local = local;
        let (here, elsewhere) = if local { (vec![(0, 1)], vec![(1, 1)]) } else { (vec![], vec![(0, 1), (1, 1)]) };
        let tier = TierPlan { spill: if local { 0 } else { u16::MAX }, local: here, remote: elsewhere };
        plan.tiers = [tier.clone(), tier.clone(), tier];
        plan
    };
    world.replace("a", &[of(false)]);
    world.replace("a", &[of(true)]);
    let (_, local, remote) = world.shares();
    assert_eq!((local, remote), (named(&[("10.0.0.1", 100)]), named(&[("10.0.0.2", 100)])));
}

#[test]
fn a_service_that_keeps_its_last_endpoints_is_not_what_was_planned() {
    let mut own = plan(&TWO);
    own.key.service = weir_core::model::ObjectName::new("default", "kubernetes");
    let mut world = World::new();
    let service = own.key.service.clone();
    world.tables.replace(&service, &[own.clone()], 7).unwrap();
    assert_eq!(world.tables.slots_of(&own).map(|(_, backends)| backends.len()), Some(3));

    let none = ServicePlan { backends: vec![], tiers: Default::default(), endpoints: 0, ..own.clone() };
    world.tables.replace(&service, std::slice::from_ref(&none), 7).unwrap();
    assert_eq!(world.tables.slots_of(&none), None);
    assert!(world.tables.slots_of(&own).is_some(), "they are still there");
}

#[test]
fn an_endpoint_without_a_share_gets_none_by_a_new_plan_unless_nobody_else_is_left() {
    let mut world = world(&TWO);
    world.steer(SPILL, &[("10.0.0.1", 1), ("10.0.0.2", 1)]);
    world.replace("a", &[plan(&["10.0.0.2", "10.0.0.3", "10.0.0.5"])]);
    assert!(world.shares().2.iter().all(|(address, _)| address != "10.0.0.3"), "{:?}", world.shares());
    let mut alone = plan(&["10.0.0.3"]);
    alone.tiers.iter_mut().for_each(|tier| tier.local.clear());
    world.replace("a", &[alone]);
    assert_eq!(world.shares().2, named(&[("10.0.0.3", 100)]));
}

#[test]
fn a_service_that_is_not_steered_is_as_planned() {
    let mut world = world(&TWO);
    world.steer(SPILL, &[("10.0.0.1", 1), ("10.0.0.2", 1)]);
    world.replace("a", &[ServicePlan { shares: Shares::Planned, ..plan(&TWO) }]);
    assert_eq!(world.shares().0, 0);
    assert_eq!(world.shares().2, named(&[("10.0.0.2", 50), ("10.0.0.3", 50)]));
}
