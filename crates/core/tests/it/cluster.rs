//! What the snapshot says was touched.

use std::collections::BTreeSet;

use weir_core::cluster::{Cluster, Dirty, Event};
use weir_core::model::Node;

use crate::build::{endpoint, ip, name, node, service, service_cidr, slice};

fn touched(names: &[&str]) -> Dirty {
    Dirty { services: names.iter().map(|text| name(text)).collect(), ..Dirty::default() }
}

#[test]
fn applying_an_object_again_touches_nothing() {
    let mut cluster = Cluster::default();
    let events = [
        Event::Service(service("web", &["10.96.0.1"])),
        Event::Slice(slice("web-1", "web", vec![endpoint("10.0.0.1", "here")])),
        Event::Node(node("here", "east", &["192.168.0.1"])),
        Event::ServiceCidrs(vec![service_cidr("kubernetes", &["10.96.0.0/16"])]),
        Event::Services(vec![service("web", &["10.96.0.1"])]),
        Event::Slices(vec![slice("web-1", "web", vec![endpoint("10.0.0.1", "here")])]),
        Event::Nodes(vec![node("here", "east", &["192.168.0.1"])]),
        Event::ServiceCidr(service_cidr("kubernetes", &["10.96.0.0/16"])),
    ];
    for event in events.clone().into_iter().take(4) {
        assert!(!cluster.apply(event).is_empty());
    }
    for event in events {
        assert!(cluster.apply(event.clone()).is_empty(), "{event:?}");
    }
}

#[test]
fn a_slice_touches_its_service_even_before_the_service_is_known() {
    let mut cluster = Cluster::default();
    assert_eq!(cluster.apply(Event::Slice(slice("web-1", "web", vec![]))), touched(&["web"]));
    assert_eq!(cluster.slices(&name("web")).count(), 1);
}

#[test]
fn a_slice_that_moves_touches_both_services() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Slice(slice("s", "old", vec![])));
    assert_eq!(cluster.apply(Event::Slice(slice("s", "new", vec![]))), touched(&["new", "old"]));
    assert_eq!((cluster.slices(&name("old")).count(), cluster.slices(&name("new")).count()), (0, 1));
}

#[test]
fn a_new_list_touches_what_is_missing_from_it_and_what_changed() {
    let mut cluster = Cluster::default();
    let list = ["kept", "changed", "gone"].map(|text| service(text, &["10.96.0.1"]));
    cluster.apply(Event::Services(list.to_vec()));
    let new = vec![service("kept", &["10.96.0.1"]), service("changed", &["10.96.0.2"]), service("new", &[])];
    assert_eq!(cluster.apply(Event::Services(new)), touched(&["changed", "gone", "new"]));
    let names: BTreeSet<_> = cluster.services().map(|service| service.name.clone()).collect();
    assert_eq!(names, touched(&["changed", "kept", "new"]).services);

    cluster.apply(Event::Slices(vec![slice("a", "kept", vec![]), slice("b", "gone", vec![])]));
    assert_eq!(cluster.apply(Event::Slices(vec![slice("a", "kept", vec![])])), touched(&["gone"]));
}

#[test]
fn what_is_deleted_touches_what_it_was_and_only_once() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Service(service("web", &["10.96.0.1"])));
    cluster.apply(Event::Slice(slice("s", "web", vec![])));
    assert_eq!(cluster.apply(Event::SliceGone(name("s"))), touched(&["web"]));
    assert_eq!(cluster.apply(Event::ServiceGone(name("web"))), touched(&["web"]));
    assert!(cluster.apply(Event::SliceGone(name("s"))).is_empty());
    assert!(cluster.apply(Event::ServiceGone(name("web"))).is_empty());
}

#[test]
fn it_is_synced_when_each_kind_was_listed_even_if_the_lists_are_empty() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Service(service("web", &[])));
    cluster.apply(Event::Services(vec![]));
    cluster.apply(Event::Slices(vec![]));
    assert!(!cluster.synced());
    cluster.apply(Event::Nodes(vec![]));
    assert!(cluster.synced());
}

#[test]
fn an_address_is_a_node_s_as_long_as_one_node_claims_it() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Nodes(vec![node("a", "", &["192.168.0.1"]), node("b", "", &["192.168.0.1"])]));
    assert!(cluster.apply(Event::NodeGone("a".into())).nodes);
    assert!(cluster.is_node_address(ip("192.168.0.1")));
    cluster.apply(Event::Node(node("b", "", &["192.168.0.9"])));
    assert!(!cluster.is_node_address(ip("192.168.0.1")));
    assert!(cluster.is_node_address(ip("192.168.0.9")));
}

#[test]
fn services_at_a_node_are_planned_anew_where_its_zone_or_addresses_changed() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Nodes(vec![node("a", "east", &["192.168.0.1"]), node("b", "east", &["192.168.0.2"])]));
    for (service_name, address, at) in
        [("pod", "10.0.0.1", "a"), ("host", "192.168.0.1", ""), ("other", "10.0.0.2", "b")]
    {
        cluster.apply(Event::Service(service(service_name, &[])));
        cluster.apply(Event::Slice(slice(service_name, service_name, vec![endpoint(address, at)])));
    }
    let mut planned = |event: Event| {
        let dirty = cluster.apply(event);
        assert!(dirty.nodes && dirty.services.is_empty());
        cluster.services_at(&dirty.places).map(|name| name.name.to_string()).collect::<Vec<_>>()
    };
    let leaving = Node { eligible: false, ..node("a", "east", &["192.168.0.1"]) };
    assert_eq!(planned(Event::Node(leaving)), Vec::<String>::new(), "no plan is about that");
    assert_eq!(planned(Event::Node(node("a", "west", &["192.168.0.1"]))), ["host", "pod"]);
    assert_eq!(
        planned(Event::Node(node("a", "west", &["192.168.0.9"]))),
        ["host", "pod"],
        "at the former address, too"
    );
    assert_eq!(planned(Event::Node(node("c", "west", &["10.0.0.2"]))), ["other"]);
    assert_eq!(planned(Event::NodeGone("b".into())), ["other"]);
}

#[test]
fn slices_of_a_service_come_in_the_order_of_their_names() {
    let mut cluster = Cluster::default();
    for slice_name in ["c", "a", "b"] {
        cluster.apply(Event::Slice(slice(slice_name, "web", vec![])));
    }
    let names: Vec<_> = cluster.slices(&name("web")).map(|slice| slice.name.name.to_string()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}
