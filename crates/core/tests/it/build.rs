//! Short ways to say what a cluster has.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_abi::ticks::TickClock;
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{
    Endpoint, Family, Node, NodeCapacity, ObjectName, Protocol, Service, ServiceCidr, ServicePort, Slice, SlicePort,
};
use weir_core::plan::{PlanConfig, Spread};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn name(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}

/// One TCP port 80 at one cluster IP.
pub(crate) fn service(service: &str, cluster_ips: &[&str]) -> Service {
    Service {
        cluster_ips: cluster_ips.iter().map(|text| ip(text)).collect(),
        ports: vec![service_port("http", Protocol::Tcp, 80)],
        ..Service::new(name(service))
    }
}

pub(crate) fn service_port(name: &str, protocol: Protocol, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol, port, node_port: None }
}

/// The port "http" is 8080 in it.
pub(crate) fn slice(slice: &str, service: &str, endpoints: Vec<Endpoint>) -> Slice {
    Slice {
        name: name(slice),
        service: name(service),
        family: endpoints.first().map_or(Family::V4, |endpoint| Family::of(endpoint.address)),
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints,
        triggered: None,
    }
}

/// Ready, without hints.
pub(crate) fn endpoint(address: &str, node: &str) -> Endpoint {
    Endpoint { node: Some(node.into()), ..Endpoint::new(ip(address)) }
}

pub(crate) fn draining(address: &str, node: &str) -> Endpoint {
    Endpoint { ready: false, terminating: true, ..endpoint(address, node) }
}

pub(crate) fn failing(address: &str, node: &str) -> Endpoint {
    Endpoint { ready: false, serving: false, ..endpoint(address, node) }
}

pub(crate) fn hints(names: &[&str]) -> Box<[Arc<str>]> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

pub(crate) fn node(node: &str, zone: &str, addresses: &[&str]) -> Node {
    let addresses = addresses.iter().map(|text| ip(text)).collect();
    Node { name: node.into(), zone: zone.into(), addresses, eligible: true, capacity: NodeCapacity::default() }
}

pub(crate) fn service_cidr(name: &str, networks: &[&str]) -> ServiceCidr {
    ServiceCidr { name: name.into(), networks: networks.iter().map(|text| text.parse().unwrap()).collect() }
}

pub(crate) fn cluster(services: Vec<Service>, slices: Vec<Slice>) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Services(services));
    cluster.apply(Event::Slices(slices));
    cluster.apply(Event::Nodes(vec![
        node("here", "east", &["192.168.0.1", "fd00::1"]),
        node("near", "east", &["192.168.0.2", "fd00::2"]),
        node("far", "west", &["192.168.0.3", "fd00::3"]),
    ]));
    cluster
}

/// This node is "here".
pub(crate) fn config() -> PlanConfig {
    PlanConfig {
        node: "here".into(),
        node_port_addresses: vec![ip("192.168.0.1"), ip("fd00::1")],
        carried_addresses: BTreeSet::new(),
        external_ips: true,
        spread: Spread::LocalFirst,
        clock: TickClock::new(Duration::from_millis(4)),
        handing_over: BTreeSet::new(),
    }
}
