//! `least-conn` and `maglev`: what the kernel's tables hold for them, and what the reference model makes of that.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use weir_abi as abi;
use weir_core::lines::build;
use weir_core::ops::{Capacity, MapOp};
use weir_core::plan::{BackendPlan, Selector, ServicePlan, Shares, TierPlan};
use weir_core::policies::Kind;
use weir_core::policies::maglev::{FEW, runs, slots};
use weir_core::select::{Pick, pick};
use weir_core::tables::TablesError;

use crate::tables::{World, backend, web};

fn addresses(count: u16) -> Vec<SocketAddr> {
    (1..=count).map(|host| SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + u32::from(host)), 8080))).collect()
}

/// By slot of the table, the address.
fn laid_out(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let slots = |(endpoint, length): (usize, u32)| std::iter::repeat_n(addresses[endpoint], length as usize);
    runs(addresses).into_iter().flat_map(slots).collect()
}

#[test]
fn the_same_endpoints_make_the_same_table_in_whatever_order_they_come() {
    let (forward, mut back) = (addresses(9), addresses(9));
    back.reverse();
    assert_eq!(laid_out(&forward), laid_out(&back));
    assert!(laid_out(&[]).is_empty());
}

#[test]
fn endpoints_differ_by_one_slot_at_most() {
    for count in [1, 2, 3, 10, 50, 160, 161, 400] {
        let addresses = addresses(count);
        let mut of = vec![0; addresses.len()];
        runs(&addresses).into_iter().for_each(|(endpoint, length)| of[endpoint] += length);
        assert_eq!(of.iter().sum::<u32>(), slots(addresses.len()));
        let (least, most) = (of.iter().min().unwrap(), of.iter().max().unwrap());
        assert!(most - least <= 1 && *least >= 25, "{least} to {most} slots of {count} endpoints");
    }
    assert!(slots(FEW) < slots(FEW + 1));
}

#[test]
fn when_one_of_n_endpoints_leaves_little_more_than_its_own_flows_move() {
    for count in [2, 3, 5, 10, 40, 160] {
        let before = addresses(count);
        let table = laid_out(&before);
        for gone in [0, usize::from(count) / 2, usize::from(count) - 1] {
            let left: Vec<_> = before.iter().copied().filter(|address| *address != before[gone]).collect();
            let both = || table.iter().zip(laid_out(&left));
            let moved = both().filter(|(old, new)| *old != new).count();
            let needless = both().filter(|(old, new)| **old != before[gone] && *old != new).count();
            assert_eq!(moved - needless, table.iter().filter(|old| **old == before[gone]).count());
            let part = needless as f64 / table.len() as f64;
            assert!(part < 0.05, "{part} of the flows of others move when one of {count} leaves");
        }
    }
}

/// Endpoints of this node and of another one, in every traffic class.
fn mixed(local: &[&str], remote: &[&str]) -> ServicePlan {
    let mut plan = web("a", "10.96.0.1", &[]);
    let here = local.iter().map(|address| BackendPlan { local: true, ..backend(address, "here") });
    let there = remote.iter().map(|address| backend(address, "far"));
    plan.backends = here.chain(there).collect();
    plan.backends.sort_by_key(|backend| backend.address);
    let of = |local: bool| {
        let members = plan.backends.iter().enumerate().filter(|(_, backend)| backend.local == local);
        members.map(|(index, _)| (index, 1)).collect::<Vec<_>>()
    };
    let tier = TierPlan { spill: 0, local: of(true), remote: of(false) };
    plan.tiers = [tier.clone(), tier.clone(), tier];
    plan.endpoints = u32::try_from(plan.backends.len()).unwrap();
    ServicePlan { selector: Selector::Maglev, shares: Shares::Steered, ..plan }
}

/// Where the maps of a world send a hash.
fn address(world: &World, class: usize, hash: u64) -> IpAddr {
    let line = |id| world.maps.lines.get(&id).copied();
    let Pick::Backend { id, .. } = pick(&world.maps.services[&1], class, hash, line, |_| 0) else { panic!("nowhere") };
    world.maps.backends[&id].addr.ip()
}

#[test]
fn nodes_with_other_slots_and_other_local_endpoints_send_a_hash_to_the_same_one() {
    let (mut one, mut other) = (World::new(), World::new());
    one.replace("a", &[mixed(&["10.0.0.1", "10.0.0.2"], &["10.0.0.3", "10.0.0.4"])]);
    for endpoints in [["10.0.0.4"].as_slice(), &["10.0.0.3", "10.0.0.4"], &["10.0.0.2", "10.0.0.3", "10.0.0.4"]] {
        other.replace("a", &[mixed(endpoints, &[])]);
    }
    other.replace("a", &[mixed(&["10.0.0.3", "10.0.0.4"], &["10.0.0.1", "10.0.0.2"])]);
    assert_ne!(one.slot_of("10.0.0.1"), other.slot_of("10.0.0.1"), "what must not matter");
    let mut flows = BTreeMap::<IpAddr, u32>::new();
    for step in 0..10_000_u64 {
        let hash = step.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for class in 0..abi::CLASS_COUNT {
            assert_eq!(address(&one, class, hash), address(&other, class, hash));
        }
        *flows.entry(address(&one, 0, hash)).or_default() += 1;
    }
    assert!(flows.len() == 4 && flows.values().all(|count| (2300..2700).contains(count)), "{flows:?}");
}

#[test]
fn a_class_that_may_use_fewer_endpoints_has_a_table_of_those_alone() {
    let mut plan = mixed(&["10.0.0.1", "10.0.0.2"], &["10.0.0.3"]);
    plan.tiers[abi::CLASS_EXTERNAL].remote.clear();
    let mut world = World::new();
    world.replace("a", &[plan]);
    for step in 0..1000_u64 {
        let there = address(&world, abi::CLASS_EXTERNAL, step.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        assert!(there == "10.0.0.1".parse::<IpAddr>().unwrap() || there == "10.0.0.2".parse::<IpAddr>().unwrap());
    }
    let flags = world.maps.services[&1].flags;
    assert_eq!(flags & (abi::SERVICE_MAGLEV | abi::SERVICE_LEAST_CONN), abi::SERVICE_MAGLEV);
}

#[test]
fn a_table_that_finds_no_room_gives_way_to_weights_until_there_is_some() {
    let mut world = World::sized(Capacity { lines: 240, ..Default::default() });
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.9.1", "10.0.9.2"])]);
    let plan = ServicePlan { key: web("b", "10.96.0.2", &[]).key, ..mixed(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"]) };
    let plan = ServicePlan { frontends: web("b", "10.96.0.2", &[]).frontends, ..plan };
    let update = world.update("b", std::slice::from_ref(&plan)).unwrap();
    assert_eq!(update.thinned, None, "three endpoints need some 180 lines");

    let more = ["10.0.0.2", "10.0.0.3", "10.0.0.4"];
    let grown = ServicePlan { key: plan.key.clone(), frontends: plan.frontends.clone(), ..mixed(&["10.0.0.1"], &more) };
    let full = TablesError::Full { map: "lines", size: 240, option: "--max-lines" };
    let update = world.update("b", std::slice::from_ref(&grown)).unwrap();
    assert_eq!(update.thinned, Some(full), "old and new have no room beside each other");
    let all: Vec<_> = world.maps.choices(&grown.frontends[0].0, abi::CLASS_INTERNAL).into_iter().collect();
    assert_eq!(all.len(), 4, "no endpoint is left out: {all:?}");
    world.release_twice();
    assert_eq!(world.update("b", &[grown]).unwrap().thinned, None);
}

#[test]
fn a_service_that_leaves_its_table_begins_with_what_is_planned() {
    let mut world = World::new();
    let table = mixed(&["10.0.0.1"], &["10.0.0.2", "10.0.0.3"]);
    world.replace("a", std::slice::from_ref(&table));
    world.replace("a", &[ServicePlan { selector: Selector::Weights, ..table.clone() }]);
    let service = world.maps.services[&1];
    assert_eq!(service.flags & abi::SERVICE_MAGLEV, 0);
    assert_eq!(service.tiers[0].local, world.slot_of("10.0.0.1"));
    assert_eq!(service.tiers[0].spill, 0);
    world.replace("a", std::slice::from_ref(&table));
    assert_eq!(world.replace("a", &[table]), [], "the same table is written once");
}

#[test]
fn a_policy_says_how_the_kernel_selects() {
    let others = Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::LeastConn | Kind::Maglev));
    assert!(others.into_iter().all(|kind| kind.selector() == Selector::Weights));
    assert_eq!((Kind::LeastConn.selector(), Kind::Maglev.selector()), (Selector::LeastConn, Selector::Maglev));
}

#[test]
fn bases_are_written_for_services_whose_open_flows_are_compared_and_for_the_endpoint_that_was_counted() {
    let mut world = World::new();
    let compared = ServicePlan { selector: Selector::LeastConn, ..web("b", "10.96.0.2", &["10.0.1.1", "10.0.1.2"]) };
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
    world.replace("b", &[compared]);
    let (first, second) = (world.slot_of("10.0.1.1"), world.slot_of("10.0.1.2"));
    let begun = world.maps.backends[&first].generation;
    let counted = |slot, generation| (slot == first && generation == begun).then_some(7);
    assert_eq!(world.tables.bases(counted), [MapOp::PutBase { id: first, base: 7 }]);
    assert_eq!(world.tables.bases(|slot, _| Some(slot)).len(), 2);
    assert_eq!(world.tables.bases_of(&crate::build::name("a"), |_, _| Some(0)), []);
    world.replace("b", &[ServicePlan { selector: Selector::LeastConn, ..web("b", "10.96.0.2", &["10.0.1.2"]) }]);
    assert_eq!(world.tables.bases(|slot, _| Some(slot)), [MapOp::PutBase { id: second, base: second }]);
}

/// A service of one tier, and its lines.
fn least_conn(weights: &[u32]) -> (abi::Service, BTreeMap<u32, abi::Line>) {
    let entries: Vec<(u32, u32)> = (1..).zip(weights.iter().copied()).collect();
    let mut slots = 0..;
    let tree = build(&entries, &mut || slots.next()).unwrap();
    let tiers = abi::Tiers { spill: 0, local: tree.root, remote: 0, pad: 0 };
    let flags = abi::SERVICE_USED | abi::SERVICE_LEAST_CONN;
    (
        abi::Service { tiers: [tiers; abi::CLASS_COUNT], endpoints: 1, flags, affinity: 0, pad: 0 },
        tree.lines.into_iter().collect(),
    )
}

/// How many of 10,000 hashes each of the backends gets, given their open flows.
fn picks(weights: &[u32], open: &[u32]) -> Vec<u32> {
    let (service, lines) = least_conn(weights);
    let mut picks = vec![0; weights.len()];
    for step in 0..10_000_u64 {
        let hash = step.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let picked = pick(&service, 0, hash, |id| lines.get(&id).copied(), |id| open[id as usize - 1]);
        let Pick::Backend { id, .. } = picked else { panic!("{picked:?}") };
        picks[id as usize - 1] += 1;
    }
    picks
}

#[test]
fn of_two_drawn_the_one_with_fewer_open_flows_for_its_weight_is_taken() {
    assert_eq!(picks(&[1, 1], &[3, 2]), [0, 10_000]);
    assert_eq!(picks(&[3, 1], &[5, 2]), [10_000, 0], "5 of a weight of 3 are fewer");
    let busy = picks(&[1; 40], &[[9].as_slice(), &[4; 39]].concat());
    assert_eq!(busy[0], 0, "the busiest is never the better one of two: {busy:?}");
    assert_eq!(picks(&[1], &[9]), [10_000], "it has nobody to be compared with");
}

#[test]
fn where_all_are_alike_the_weights_decide() {
    for open in [[0; 3], [6; 3]] {
        let even = picks(&[1; 3], &open);
        assert!(even.iter().all(|count| (3100..3600).contains(count)), "{even:?}");
    }
    let uneven = picks(&[2, 1, 1], &[0; 3]);
    assert!((4700..5300).contains(&uneven[0]) && (2200..2800).contains(&uneven[1]), "{uneven:?}");
}
