//! The API server's own service never drops to zero.

use std::net::IpAddr;

use weir_core::cluster::{Cluster, Event};
use weir_core::model::{Endpoint, ObjectName, Slice};
use weir_core::plan::plan;

use crate::build::{config, draining, endpoint, failing, ip, service, slice};

fn api_server() -> ObjectName {
    ObjectName::new("default", "kubernetes")
}

fn of_api_server(slice_name: &str, endpoints: Vec<Endpoint>) -> Slice {
    Slice {
        name: ObjectName::new("default", slice_name),
        service: api_server(),
        ..slice(slice_name, "kubernetes", endpoints)
    }
}

/// Two API servers in IPv4, one in IPv6.
fn up() -> Cluster {
    let mut cluster = Cluster::default();
    let mut kubernetes = service("kubernetes", &["10.96.0.1", "fd00:96::1"]);
    kubernetes.name = api_server();
    cluster.apply(Event::Service(kubernetes));
    cluster.apply(Event::Slices(vec![
        of_api_server("four", vec![endpoint("192.168.0.1", "here"), endpoint("192.168.0.2", "near")]),
        of_api_server("six", vec![endpoint("fd00::1", "here")]),
    ]));
    cluster
}

/// Where new flows may go.
fn usable(cluster: &Cluster) -> Vec<IpAddr> {
    let plans = plan(cluster, &config(), &api_server());
    let used = plans.iter().flat_map(|plan| {
        let tier = &plan.tiers[0];
        tier.local.iter().chain(&tier.remote).map(|(index, _)| plan.backends[*index].address)
    });
    used.collect()
}

fn all() -> [IpAddr; 3] {
    ["192.168.0.1", "192.168.0.2", "fd00::1"].map(ip)
}

#[test]
fn slices_that_are_gone_emptied_or_not_ready_leave_the_last_usable_endpoints() {
    let unready = vec![failing("192.168.0.1", "here"), failing("192.168.0.2", "near")];
    let mut portless = of_api_server("four", vec![endpoint("192.168.0.9", "far")]);
    portless.ports.clear();
    let six = of_api_server("six", vec![endpoint("fd00::1", "here")]);
    let losses = [
        Event::SliceGone(ObjectName::new("default", "four")),
        Event::Slice(of_api_server("four", vec![])),
        Event::Slice(of_api_server("four", unready)),
        Event::Slice(portless),
        Event::Slices(vec![six]),
        Event::Slices(vec![]),
    ];
    for loss in losses {
        let mut cluster = up();
        cluster.apply(loss.clone());
        assert_eq!(usable(&cluster), all(), "after {loss:?}");
        cluster.apply(loss);
        assert_eq!(usable(&cluster), all());
    }
}

#[test]
fn endpoints_that_leave_while_others_are_usable_do_leave() {
    let mut cluster = up();
    cluster.apply(Event::Slice(of_api_server("four", vec![endpoint("192.168.0.2", "near")])));
    assert_eq!(usable(&cluster), all()[1..]);
    cluster.apply(Event::Slice(of_api_server("four", vec![])));
    assert_eq!(usable(&cluster), all()[1..], "the last usable one, not one that left before");
}

#[test]
fn new_endpoints_replace_the_kept_ones_at_once_each_family_on_its_own() {
    let mut cluster = up();
    cluster.apply(Event::Slices(vec![]));
    cluster.apply(Event::Slice(of_api_server("new", vec![endpoint("192.168.0.3", "far")])));
    assert_eq!(usable(&cluster), [ip("192.168.0.3"), ip("fd00::1")]);
    cluster.apply(Event::Slice(of_api_server("new-six", vec![endpoint("fd00::3", "far")])));
    assert_eq!(usable(&cluster), [ip("192.168.0.3"), ip("fd00::3")]);
}

#[test]
fn endpoints_that_drain_but_serve_are_usable() {
    let mut cluster = up();
    cluster.apply(Event::Slice(of_api_server("four", vec![draining("192.168.0.2", "near")])));
    assert_eq!(usable(&cluster), all()[1..]);
}

#[test]
fn a_list_that_is_empty_from_the_start_keeps_nothing() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Slices(vec![]));
    cluster.apply(Event::Slice(of_api_server("four", vec![failing("192.168.0.1", "here")])));
    assert_eq!(usable(&cluster), Vec::<IpAddr>::new());
    assert_eq!(cluster.slices(&api_server()).count(), 1);
}

#[test]
fn without_its_service_nothing_is_planned() {
    let mut cluster = up();
    cluster.apply(Event::Slices(vec![]));
    cluster.apply(Event::ServiceGone(api_server()));
    assert_eq!(plan(&cluster, &config(), &api_server()), []);
}

#[test]
fn no_other_service_keeps_endpoints_that_are_gone() {
    for other in [ObjectName::new("default", "web"), ObjectName::new("shop", "kubernetes")] {
        let mut cluster = Cluster::default();
        let slice = Slice { service: other.clone(), ..of_api_server("s", vec![endpoint("10.0.0.1", "here")]) };
        cluster.apply(Event::Slices(vec![slice]));
        cluster.apply(Event::Slices(vec![]));
        assert_eq!(cluster.slices(&other).count(), 0);
    }
}
