//! Who owns a frontend, and who gets it next.

use weir_abi as abi;
use weir_core::ops::Capacity;
use weir_core::plan::ServicePlan;
use weir_core::tables::{FrontendConflict, TablesError};

use crate::build::{ip, name};
use crate::tables::{World, key, kinds, web};

#[test]
fn frontends_of_the_two_families_have_room_of_their_own() {
    let mut world = World::sized(Capacity { frontends: 1, ..Capacity::default() });
    world.replace("a", &[web("a", "10.96.0.1", &[]), web("a", "fd00:96::1", &[])]);
    let error = world.try_replace("b", &[web("b", "fd00:96::2", &[])]).unwrap_err();
    assert_eq!(error, TablesError::Full { map: "frontends6", size: 1, option: "--max-frontends" });
}

#[test]
fn the_first_service_keeps_a_frontend_and_the_second_gets_it_when_the_first_lets_go() {
    let mut world = World::new();
    world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
    let second = [web("b", "10.96.0.1", &["10.0.0.2"])];
    let conflict = FrontendConflict { key: key("10.96.0.1"), kept_by: name("a"), refused: name("b") };
    assert_eq!(world.try_replace("b", &second).unwrap().1, std::slice::from_ref(&conflict));
    assert_eq!(world.try_replace("b", &second).unwrap(), (vec![], vec![]));
    assert_eq!((world.owner("10.96.0.1").unwrap(), world.tables.conflicts()), ("a".into(), vec![conflict]));

    let ops = world.replace("a", &[]);
    assert!(!kinds(&ops).contains(&"delete frontend"), "the frontend must not vanish in between");
    assert_eq!((world.owner("10.96.0.1").unwrap(), world.tables.conflicts()), ("b".into(), vec![]));
}

#[test]
fn a_service_recreated_under_another_name_takes_over_whatever_the_order_of_the_batch() {
    for order in [["a", "b"], ["b", "a"]] {
        let mut world = World::new();
        world.replace("a", &[web("a", "10.96.0.1", &["10.0.0.1"])]);
        for service in order {
            let plans = [web("b", "10.96.0.1", &["10.0.0.1"])];
            world.replace(service, if service == "b" { &plans } else { &[] });
        }
        assert_eq!(world.owner("10.96.0.1").unwrap(), "b");
        assert_eq!(world.tables.conflicts(), []);
    }
}

#[test]
fn a_waiting_service_that_goes_away_waits_no_more() {
    let mut world = World::new();
    for service in ["a", "b", "c"] {
        world.replace(service, &[web(service, "10.96.0.1", &[])]);
    }
    world.replace("b", &[]);
    world.replace("a", &[]);
    assert_eq!(world.owner("10.96.0.1").unwrap(), "c");
    world.replace("c", &[]);
    assert!(world.maps.frontends.is_empty());
}

#[test]
fn a_frontend_moves_between_ports_of_one_service_without_a_gap() {
    let mut world = World::new();
    let old = web("a", "10.96.0.1", &["10.0.0.1"]);
    world.replace("a", std::slice::from_ref(&old));
    let mut new = old;
    new.key.port_name = "renamed".into();
    let ops = world.replace("a", &[new]);
    assert!(!kinds(&ops).contains(&"delete frontend"));
    assert_eq!(world.maps.meaning().frontends[&key("10.96.0.1")].0.2, "renamed");
}

/// A service that names an address as one of its own kind.
fn claims(service: &str, address: &str, kind: u32) -> ServicePlan {
    let mut plan = web(service, "10.96.0.99", &["10.0.0.9"]);
    plan.frontends = vec![(key(address), kind)];
    plan
}

const CLAIMED_BY_USERS: [u32; 2] = [abi::KIND_EXTERNAL_IP, abi::KIND_LOAD_BALANCER];

fn taken_from(refused: &str) -> FrontendConflict {
    FrontendConflict { key: key("10.96.0.10"), kept_by: name("dns"), refused: name(refused) }
}

#[test]
fn a_cluster_ip_belongs_to_its_service_whoever_else_names_it_first_or_later() {
    for kind in CLAIMED_BY_USERS {
        for order in [["dns", "evil"], ["evil", "dns"]] {
            let mut world = World::new();
            let mut told = Vec::new();
            for service in order {
                let plan = match service {
                    "dns" => web("dns", "10.96.0.10", &["10.0.0.1"]),
                    _ => claims("evil", "10.96.0.10", kind),
                };
                told.extend(world.try_replace(service, &[plan]).unwrap().1);
            }
            assert_eq!(world.owner("10.96.0.10").unwrap(), "dns", "{order:?}");
            assert_eq!((told, world.tables.conflicts()), (vec![taken_from("evil")], vec![taken_from("evil")]));
            assert_eq!(world.replace("evil", &[claims("evil", "10.96.0.10", kind)]), [], "nothing is fought over");
            assert_eq!(world.replace("dns", &[web("dns", "10.96.0.10", &["10.0.0.1"])]), []);
        }
    }
}

#[test]
fn a_cluster_ip_is_taken_in_one_write_when_its_service_can_serve() {
    let mut world = World::new();
    world.replace("evil", &[claims("evil", "10.96.0.10", abi::KIND_EXTERNAL_IP)]);
    let ops = world.replace("dns", &[web("dns", "10.96.0.10", &["10.0.0.1"])]);
    let order = ["put backend", "reset service counters", "put service", "put service name", "put frontend"];
    assert_eq!(kinds(&ops), order);
    assert_eq!(world.maps.choices(&key("10.96.0.10"), abi::CLASS_INTERNAL), [ip("10.0.0.1")].into());
}

#[test]
fn who_lost_a_cluster_ip_has_it_again_when_its_service_goes_and_before_others_that_wait() {
    let mut world = World::new();
    world.replace("evil", &[claims("evil", "10.96.0.10", abi::KIND_EXTERNAL_IP)]);
    world.replace("late", &[claims("late", "10.96.0.10", abi::KIND_EXTERNAL_IP)]);
    world.replace("dns", &[web("dns", "10.96.0.10", &["10.0.0.1"])]);
    assert_eq!(world.tables.conflicts(), [taken_from("evil"), taken_from("late")]);
    world.replace("dns", &[]);
    assert_eq!(world.owner("10.96.0.10").unwrap(), "evil");
    world.replace("evil", &[]);
    assert_eq!(world.owner("10.96.0.10").unwrap(), "late");
}

#[test]
fn of_those_that_wait_a_cluster_ip_goes_first() {
    let mut world = World::new();
    world.replace("first", &[web("first", "10.96.0.10", &[])]);
    world.replace("evil", &[claims("evil", "10.96.0.10", abi::KIND_LOAD_BALANCER)]);
    world.replace("dns", &[web("dns", "10.96.0.10", &["10.0.0.1"])]);
    assert_eq!(world.owner("10.96.0.10").unwrap(), "first", "of two cluster IPs the first one stays");
    world.replace("first", &[]);
    assert_eq!(world.owner("10.96.0.10").unwrap(), "dns");
    assert_eq!(world.tables.conflicts(), [taken_from("evil")]);
}

#[test]
fn an_owner_that_gives_up_its_cluster_ip_but_goes_on_to_name_it_makes_room_for_one_that_has_it() {
    let mut world = World::new();
    world.replace("old", &[web("old", "10.96.0.10", &[])]);
    world.replace("dns", &[web("dns", "10.96.0.10", &["10.0.0.1"])]);
    let (_, told) = world.try_replace("old", &[claims("old", "10.96.0.10", abi::KIND_EXTERNAL_IP)]).unwrap();
    assert_eq!(world.owner("10.96.0.10").unwrap(), "dns");
    assert_eq!((told, world.tables.conflicts()), (vec![taken_from("old")], vec![taken_from("old")]));
}

#[test]
fn a_cluster_ip_that_another_service_has_in_the_maps_is_taken_after_a_restart() {
    let mut world = World::new();
    world.replace("evil", &[claims("evil", "10.96.0.10", abi::KIND_EXTERNAL_IP)]);
    world.restart();
    world.replace("dns", &[web("dns", "10.96.0.10", &["10.0.0.1"])]);
    world.replace("evil", &[claims("evil", "10.96.0.10", abi::KIND_EXTERNAL_IP)]);
    assert_eq!(world.owner("10.96.0.10").unwrap(), "dns");
    assert_eq!(world.tables.conflicts(), [taken_from("evil")]);
}

#[test]
fn a_node_port_is_allocated_too_and_stays_with_who_has_it() {
    let mut world = World::new();
    world.replace("node", &[claims("node", "10.96.0.10", abi::KIND_NODE_PORT)]);
    world.replace("dns", &[web("dns", "10.96.0.10", &["10.0.0.1"])]);
    assert_eq!(world.owner("10.96.0.10").unwrap(), "node");
}
