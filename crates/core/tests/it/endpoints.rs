//! Which endpoints may be used, as kube-proxy has it.

use weir_core::endpoints::{Categories, Location, ResolvedEndpoint, categorize, merge};
use weir_core::model::{Endpoint, Family, Protocol, SlicePort};

use crate::build::{draining, endpoint, failing, hints, ip, slice};

fn categories(endpoints: &[Endpoint]) -> Categories {
    let resolved: Vec<_> = endpoints.iter().map(|endpoint| ResolvedEndpoint::new(endpoint, 8080)).collect();
    categorize(&resolved, Location { node: "here", zone: "east" })
}

fn sets(endpoints: &[Endpoint]) -> (Vec<usize>, Vec<usize>) {
    let Categories { cluster, local, anywhere: _ } = categories(endpoints);
    (cluster, local)
}

fn in_zone(address: &str, node: &str, zone: &str) -> Endpoint {
    Endpoint { zone_hints: hints(&[zone]), ..endpoint(address, node) }
}

#[test]
fn ready_endpoints_are_used_and_the_local_ones_among_them_make_the_local_set() {
    let list = [endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far"), failing("10.0.0.3", "here")];
    assert_eq!(sets(&list), (vec![0, 1], vec![0]));
}

#[test]
fn draining_endpoints_are_used_only_when_none_is_ready() {
    let list = [draining("10.0.0.1", "here"), endpoint("10.0.0.2", "far"), failing("10.0.0.3", "far")];
    assert_eq!(categories(&list), Categories { cluster: vec![1], local: vec![0], anywhere: 1 });
    let list = [draining("10.0.0.1", "here"), draining("10.0.0.2", "far"), failing("10.0.0.3", "far")];
    assert_eq!(categories(&list), Categories { cluster: vec![0, 1], local: vec![0], anywhere: 2 });
}

#[test]
fn the_local_set_falls_back_on_its_own() {
    let list = [draining("10.0.0.1", "here"), endpoint("10.0.0.2", "here"), endpoint("10.0.0.3", "far")];
    assert_eq!(sets(&list), (vec![1, 2], vec![1]));
}

#[test]
fn an_endpoint_that_serves_but_is_neither_ready_nor_terminating_is_not_used() {
    let list = [Endpoint { ready: false, ..endpoint("10.0.0.1", "here") }];
    assert_eq!(categories(&list), Categories::default());
}

#[test]
fn an_endpoint_published_although_it_terminates_counts_as_ready() {
    let published = Endpoint { ready: true, serving: false, terminating: true, ..endpoint("10.0.0.1", "here") };
    assert_eq!(sets(&[published, draining("10.0.0.2", "here")]), (vec![0], vec![0]));
}

#[test]
fn zone_hints_narrow_the_cluster_set_but_not_the_local_set() {
    let list = [in_zone("10.0.0.1", "near", "east"), in_zone("10.0.0.2", "here", "west")];
    assert_eq!(categories(&list), Categories { cluster: vec![0], local: vec![1], anywhere: 2 });
}

#[test]
fn one_ready_endpoint_without_hints_switches_them_off() {
    let list = [in_zone("10.0.0.1", "near", "east"), endpoint("10.0.0.2", "far")];
    assert_eq!(sets(&list).0, [0, 1]);
    let list = [in_zone("10.0.0.1", "near", "east"), in_zone("10.0.0.2", "far", "west"), draining("10.0.0.3", "far")];
    assert_eq!(sets(&list).0, [0]);
}

#[test]
fn hints_for_other_zones_only_are_ignored() {
    let list = [in_zone("10.0.0.1", "far", "west"), in_zone("10.0.0.2", "far", "north")];
    assert_eq!(sets(&list).0, [0, 1]);
}

#[test]
fn node_hints_go_before_zone_hints_and_fall_back_to_them() {
    let on = |node: &str, address| Endpoint { node_hints: hints(&[node]), ..in_zone(address, node, "east") };
    let list = [on("here", "10.0.0.1"), on("near", "10.0.0.2")];
    assert_eq!(sets(&list).0, [0]);
    let list = [on("near", "10.0.0.1"), Endpoint { zone_hints: hints(&["west"]), ..on("far", "10.0.0.2") }];
    assert_eq!(sets(&list).0, [0]);
}

#[test]
fn the_fallback_to_draining_endpoints_ignores_hints() {
    let list = [Endpoint { zone_hints: hints(&["west"]), ..draining("10.0.0.1", "far") }];
    assert_eq!(sets(&list).0, [0]);
}

#[test]
fn without_a_known_zone_zone_hints_are_ignored() {
    let list = [in_zone("10.0.0.1", "far", "west"), in_zone("10.0.0.2", "far", "east")];
    let resolved: Vec<_> = list.iter().map(|endpoint| ResolvedEndpoint::new(endpoint, 8080)).collect();
    assert_eq!(categorize(&resolved, Location { node: "here", zone: "" }).cluster, [0, 1]);
}

#[test]
fn slices_are_merged_by_family_port_name_and_protocol() {
    let mut other_port = slice("b", "web", vec![endpoint("10.0.0.2", "far")]);
    other_port.ports = vec![SlicePort { name: "metrics".into(), protocol: Protocol::Tcp, port: 9090 }];
    let mut other_protocol = slice("c", "web", vec![endpoint("10.0.0.3", "far")]);
    other_protocol.ports[0].protocol = Protocol::Udp;
    let slices = [
        slice("a", "web", vec![endpoint("10.0.0.1", "far")]),
        other_port,
        other_protocol,
        slice("d", "web", vec![endpoint("fd00:10::1", "far")]),
        slice("e", "web", vec![endpoint("10.0.0.0", "far")]),
    ];
    let merged = |family| merge(slices.iter(), family, "http", Protocol::Tcp);
    let addresses: Vec<_> = merged(Family::V4).iter().map(|endpoint| endpoint.address).collect();
    assert_eq!(addresses, [ip("10.0.0.0"), ip("10.0.0.1")]);
    let addresses: Vec<_> = merged(Family::V6).iter().map(|endpoint| endpoint.address).collect();
    assert_eq!(addresses, [ip("fd00:10::1")]);
}

#[test]
fn each_slice_brings_its_own_port_number() {
    let mut other = slice("b", "web", vec![endpoint("10.0.0.2", "far")]);
    other.ports[0].port = 9090;
    let slices = [slice("a", "web", vec![endpoint("10.0.0.1", "far")]), other];
    let ports: Vec<_> = merge(slices.iter(), Family::V4, "http", Protocol::Tcp).iter().map(|e| e.port).collect();
    assert_eq!(ports, [8080, 9090]);
}

/// One may be written by hand.
#[test]
fn of_an_endpoint_in_two_slices_the_entry_that_names_its_node_wins_wherever_it_is() {
    let (here, nowhere) = (endpoint("10.0.0.1", "here"), Endpoint { node: None, ..endpoint("10.0.0.1", "") });
    for entries in [[here.clone(), nowhere.clone()], [nowhere, here]] {
        let slices = entries.map(|entry| slice("web", "web", vec![entry]));
        let merged = merge(slices.iter(), Family::V4, "http", Protocol::Tcp);
        assert_eq!(merged.iter().map(|endpoint| endpoint.node.is_some()).collect::<Vec<_>>(), [true]);
    }
}

#[test]
fn of_an_endpoint_in_two_slices_the_ready_entry_wins_wherever_it_is() {
    let (moving, ready) = (draining("10.0.0.1", "far"), endpoint("10.0.0.1", "far"));
    for (first, second) in [(moving.clone(), ready.clone()), (ready, moving)] {
        let slices = [slice("a", "web", vec![first]), slice("b", "web", vec![second])];
        let merged = merge(slices.iter(), Family::V4, "http", Protocol::Tcp);
        assert_eq!(merged.iter().map(|endpoint| endpoint.ready).collect::<Vec<_>>(), [true]);
    }
}

#[test]
fn one_ready_endpoint_without_node_hints_leaves_the_choice_to_the_zone_hints() {
    let hinted = Endpoint { node_hints: hints(&["here"]), ..in_zone("10.0.0.1", "here", "west") };
    let list = [hinted, in_zone("10.0.0.2", "near", "east"), in_zone("10.0.0.3", "far", "west")];
    assert_eq!(sets(&list).0, [1]);
}

#[test]
fn hints_of_endpoints_that_are_not_ready_count_for_nothing() {
    let unready = |endpoint: Endpoint| Endpoint { ready: false, ..endpoint };
    let list = [unready(in_zone("10.0.0.1", "near", "east")), in_zone("10.0.0.2", "far", "west")];
    assert_eq!(sets(&list).0, [1], "no ready endpoint is hinted for this zone");
    let list =
        [unready(endpoint("10.0.0.1", "near")), in_zone("10.0.0.2", "far", "east"), in_zone("10.0.0.3", "far", "west")];
    assert_eq!(sets(&list).0, [1], "an endpoint without hints that is not ready does not switch them off");
}

#[test]
fn an_endpoint_may_be_hinted_for_several_places() {
    let list = [
        Endpoint { zone_hints: hints(&["west", "east"]), ..endpoint("10.0.0.1", "far") },
        in_zone("10.0.0.2", "far", "west"),
    ];
    assert_eq!(sets(&list).0, [0]);
}

#[test]
fn an_endpoint_that_names_no_node_is_not_in_the_local_set() {
    let list = [Endpoint { node: None, ..endpoint("192.168.0.1", "") }];
    assert_eq!(sets(&list), (vec![0], vec![]));
}

#[test]
fn endpoints_narrowed_away_by_hints_still_count_as_endpoints() {
    let list = [in_zone("10.0.0.1", "near", "east"), in_zone("10.0.0.2", "here", "west")];
    assert_eq!(categories(&list).anywhere, 2);
}

#[test]
fn without_any_endpoint_all_sets_are_empty() {
    assert_eq!(categories(&[]), Categories::default());
    assert_eq!(categories(&[failing("10.0.0.1", "here")]), Categories::default());
}

#[test]
fn of_two_pods_with_one_address_the_one_that_stays_wins_even_if_it_is_not_ready_yet() {
    let (going, coming) = (draining("10.0.0.1", "far"), failing("10.0.0.1", "here"));
    for (first, second) in [(going.clone(), coming.clone()), (coming, going)] {
        let slices = [slice("a", "web", vec![first]), slice("b", "web", vec![second])];
        let merged = merge(slices.iter(), Family::V4, "http", Protocol::Tcp);
        assert_eq!(merged.iter().map(|endpoint| endpoint.terminating).collect::<Vec<_>>(), [false]);
        assert_eq!(categorize(&merged, Location { node: "here", zone: "east" }), Categories::default());
    }
}
