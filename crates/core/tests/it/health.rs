//! What health-check node ports answer.

use weir_core::cluster::{Cluster, Event};
use weir_core::health::{HealthCheck, health_checks};
use weir_core::model::{Endpoint, Protocol, Proxy, Service, SlicePort, TrafficPolicy};

use crate::build::{cluster, draining, endpoint, failing, name, service, slice};

fn checked(edit: impl FnOnce(&mut Service)) -> Service {
    let mut web = service("web", &["10.96.0.1"]);
    web.external_policy = TrafficPolicy::Local;
    web.health_check_port = Some(32000);
    edit(&mut web);
    web
}

fn of(cluster: &Cluster) -> Option<HealthCheck> {
    health_checks(cluster, "here").remove(&name("web"))
}

fn count(endpoints: Vec<Endpoint>) -> u32 {
    let [v4, v6] = of(&cluster(vec![checked(|_| {})], vec![slice("web-1", "web", endpoints)])).unwrap().local_endpoints;
    assert_eq!(v6, None, "the service has no such address");
    v4.unwrap()
}

#[test]
fn the_ready_endpoints_of_this_node_are_counted() {
    let list = vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far"), endpoint("10.0.0.3", "here")];
    assert_eq!(count(list), 2);
    assert_eq!(count(vec![]), 0);
}

#[test]
fn terminating_and_unready_endpoints_do_not_count_although_traffic_may_still_go_there() {
    assert_eq!(count(vec![draining("10.0.0.1", "here"), failing("10.0.0.2", "here")]), 0);
    let published = Endpoint { ready: true, terminating: true, ..endpoint("10.0.0.1", "here") };
    assert_eq!(count(vec![published]), 1);
}

#[test]
fn an_endpoint_that_names_no_node_is_not_counted() {
    assert_eq!(count(vec![Endpoint { node: None, ..endpoint("192.168.0.1", "") }]), 0);
}

#[test]
fn an_address_counts_once_over_all_ports_and_slices() {
    let mut two_ports = slice("a", "web", vec![endpoint("10.0.0.1", "here")]);
    two_ports.ports.push(SlicePort { name: "https".into(), protocol: Protocol::Tcp, port: 8443 });
    let again = slice("b", "web", vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "here")]);
    let cluster = cluster(vec![checked(|_| {})], vec![two_ports, again]);
    assert_eq!(of(&cluster).unwrap(), HealthCheck { port: 32000, local_endpoints: [Some(2), None] });
}

#[test]
fn endpoints_count_for_the_addresses_of_their_family() {
    let slices = vec![
        slice("a", "web", vec![endpoint("10.0.0.1", "here")]),
        slice("b", "web", vec![endpoint("fd00::9", "here")]),
    ];
    let dual = service("web", &["10.96.0.1", "fd00:96::1"]).cluster_ips;
    let mut cluster = cluster(vec![checked(|web| web.cluster_ips = dual)], slices);
    assert_eq!(of(&cluster).unwrap().local_endpoints, [Some(1), Some(1)]);
    cluster.apply(Event::SliceGone(name("a")));
    assert_eq!(of(&cluster).unwrap().local_endpoints, [Some(0), Some(1)], "what comes by IPv4 would be dropped");
}

#[test]
fn endpoints_of_a_family_that_the_service_does_not_have_are_not_counted() {
    let slices = vec![slice("b", "web", vec![endpoint("fd00::9", "here")])];
    assert_eq!(of(&cluster(vec![checked(|_| {})], slices)).unwrap().local_endpoints, [Some(0), None]);
}

#[test]
fn there_is_none_without_the_port_or_the_policy_or_for_another_proxy_s_service() {
    let has_one = |edit: fn(&mut Service)| of(&cluster(vec![checked(edit)], vec![])).is_some();
    assert!(has_one(|_| {}));
    assert!(!has_one(|web| web.health_check_port = None));
    assert!(!has_one(|web| web.external_policy = TrafficPolicy::Cluster));
    assert!(!has_one(|web| web.proxy = Proxy::Other));
}
