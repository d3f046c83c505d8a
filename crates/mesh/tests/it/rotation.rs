//! Reports that do not fit a packet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use weir_core::load::{Inbound, NodeLoad, ServiceId, ServiceLoad};
use weir_mesh::{Config, Cursor, Published};

use crate::world::{NEW, World, busy, keys, millis, name, service};

fn published(count: u32) -> Published {
    Published::new(busy(0.5), (0..count).map(service), Duration::ZERO)
}

fn told(published: &Published, slots: usize, wanted: &[ServiceId], cursor: &mut Cursor) -> BTreeSet<u64> {
    let report = published.report(slots, wanted, cursor, Duration::ZERO).expect("fresh");
    assert_eq!(usize::from(report.services_in_all), published.len());
    let ids: BTreeSet<_> = report.services.iter().map(|(id, _)| id.0).collect();
    assert_eq!(ids.len(), report.services.len(), "none twice");
    ids
}

#[test]
fn what_fits_is_told_at_once() {
    assert_eq!(told(&published(5), 5, &[], &mut Cursor::default()), BTreeSet::from([0, 1, 2, 3, 4]));
    assert!(told(&published(0), 5, &[], &mut Cursor::default()).is_empty());
}

#[test]
fn the_most_loaded_are_told_each_time_and_the_others_in_turn() {
    let (published, mut cursor) = (published(100), Cursor::default());
    let mut others = BTreeSet::new();
    for _ in 0..19 {
        let ids = told(&published, 10, &[], &mut cursor);
        assert!((95..100).all(|id| ids.contains(&id)), "{ids:?}");
        others.extend(ids);
    }
    assert_eq!(others, (0..100).collect());
}

#[test]
fn what_the_receiver_spills_comes_first() {
    let ids = told(&published(100), 8, &[ServiceId(3), ServiceId(1000), ServiceId(7)], &mut Cursor::default());
    assert!([3, 7, 99, 98].iter().all(|id| ids.contains(id)), "{ids:?}");
}

proptest! {
    #[test]
    fn every_service_is_told_within_bounded_reports(count in 1..300_u32, slots in 1..56_usize) {
        let (published, mut cursor) = (published(count), Cursor::default());
        let turn = slots - slots / 2;
        let ids = (0..(count as usize).div_ceil(turn)).flat_map(|_| told(&published, slots, &[], &mut cursor));
        prop_assert_eq!(ids.collect::<BTreeSet<_>>(), (0..u64::from(count)).collect());
    }
}

#[test]
fn a_report_that_nobody_renews_is_not_told() {
    let published = published(3);
    let report = |age| published.report(5, &[], &mut Cursor::default(), millis(age));
    assert_eq!(report(1999).map(|report| report.age), Some(millis(1999)));
    assert_eq!(report(2000), None);
}

#[test]
fn numbers_that_cannot_be_true_are_not_told() {
    let lie = ServiceLoad { flows_per_second: f64::NAN, ..ServiceLoad::default() };
    let published = Published::new(busy(0.5), [service(1), (ServiceId(2), lie)], Duration::ZERO);
    assert_eq!(told(&published, 5, &[], &mut Cursor::default()), BTreeSet::from([1]));
    let load = NodeLoad { capacity: f64::INFINITY, ..busy(0.5) };
    let report = Published::new(load, [], Duration::ZERO).report(5, &[], &mut Cursor::default(), Duration::ZERO);
    assert_eq!(report.map(|report| report.load), Some(NodeLoad::default()));
}

/// The half of the first packet is enough for a node's report, but not for 60 services.
#[test]
fn a_peer_hears_of_all_services_part_by_part() {
    let mut world = World::new(2, Config::default(), &keys(&[NEW]));
    world.nodes[0].tells = Some((busy(0.5), (0..60).map(service).collect()));
    world.run(millis(10_000));
    let report = world.report(1, 0).expect("a report");
    let expected: BTreeMap<_, _> = (0..60).map(service).collect();
    assert_eq!(report.services.into_iter().collect::<BTreeMap<_, _>>(), expected);

    world.nodes[0].tells = Some((busy(0.5), (0..3).map(service).collect()));
    world.run(millis(1000));
    assert_eq!(world.report(1, 0).expect("a report").services.len(), 3, "the others are gone");
}

#[test]
fn a_node_knows_how_many_spill_how_much_to_it() {
    let mut world = World::new(4, Config::default(), &keys(&[NEW]));
    world.run(millis(3000));
    let (web, dns) = (ServiceId(1), ServiceId(2));
    world.nodes[1].mesh.spill(&name(0), [(web, 10.0), (dns, 2.5)]);
    world.nodes[2].mesh.spill(&name(0), [(web, 30.0)]);
    world.nodes[3].mesh.spill(&name(1), [(web, 5.0)]);
    world.run(millis(1000));
    let told = |spillers, flows_per_second| Inbound { spillers, flows_per_second };
    let inbound = |world: &World, node: usize| {
        world.nodes[node].mesh.inbound(world.now(node)).into_iter().collect::<BTreeMap<_, _>>()
    };
    assert_eq!(inbound(&world, 0), BTreeMap::from([(web, told(2, 40.0)), (dns, told(1, 2.5))]));
    assert_eq!(inbound(&world, 1), BTreeMap::from([(web, told(1, 5.0))]));
    let sends = |world: &World| [1, 2, 3].map(|of| world.peer(0, of).sends);
    assert_eq!(sends(&world), [12.5, 30.0, 0.0]);

    world.nodes[1].mesh.spill(&name(0), [(dns, 4.0)]);
    world.run(millis(1000));
    assert_eq!(inbound(&world, 0), BTreeMap::from([(web, told(1, 30.0)), (dns, told(1, 4.0))]));
    world.cut = vec![1, 2];
    world.run(millis(6000));
    assert_eq!(inbound(&world, 0), BTreeMap::new(), "they are silent");
    assert_eq!(sends(&world), [0.0; 3]);
}

#[test]
fn a_node_that_spills_hundreds_of_services_tells_of_all() {
    let mut world = World::new(2, Config::default(), &keys(&[NEW]));
    world.nodes[1].mesh.spill(&name(0), (0..40).map(|id| (ServiceId(id), 1.0)));
    world.run(millis(10_000));
    assert_eq!(world.nodes[0].mesh.inbound(world.now(0)).len(), 40);
}
