//! Who owns a frontend, and who gets it next.

use weir_core::ops::Capacity;
use weir_core::tables::{FrontendConflict, TablesError};

use crate::build::name;
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
