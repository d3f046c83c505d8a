//! The static file: what a good one means, and where a bad one is bad.

mod checks;
mod mistakes;
mod settings;

use std::net::IpAddr;

use weir_core::cluster::Event;
use weir_core::model::{self, Family, ObjectName, Protocol, TrafficPolicy};
use weir_kube_watch::static_file::{Contents, parse};

const GOOD: &str = "\
nodes:
  - name: edge-1
    zone: hall-a
    addresses: [192.0.2.11, '2001:db8::11']
  - name: edge-2
services:
  - name: web
    namespace: shop
    clusterIPs: [10.96.0.10, 'fd00::10']
    externalIPs: [203.0.113.7]
    loadBalancerIPs: [198.51.100.1]
    internalTrafficPolicy: Cluster
    externalTrafficPolicy: Local
    ports:
      - {name: http, port: 80, targetPort: 8080, nodePort: 30080}
      - {name: dns, protocol: UDP, port: 53}
    endpoints:
      - {address: 10.0.1.5, node: edge-1}
      - {address: 10.0.2.7, node: edge-2, ports: {http: 8081}}
      - {address: 10.0.2.8, node: edge-2, ready: false, serving: true, terminating: true}
      - {address: 'fd00:1::5', ready: false}
    sessionAffinity: ClientIP
    sessionAffinitySeconds: 600
    loadBalancerSourceRanges: [192.0.2.77/24, '2001:db8::/32']
";

fn good(text: &str) -> Contents {
    parse(text).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn nodes_and_services_are_what_the_file_says() {
    let Contents { nodes, services, .. } = good(GOOD);
    let addresses = vec![ip("192.0.2.11"), ip("2001:db8::11")];
    let capacity = model::NodeCapacity::default();
    assert_eq!(
        nodes[0],
        model::Node { name: "edge-1".into(), zone: "hall-a".into(), addresses, eligible: true, capacity }
    );
    assert_eq!(
        nodes[1],
        model::Node { name: "edge-2".into(), zone: "".into(), addresses: vec![], eligible: true, capacity }
    );
    let port =
        |name: &str, protocol, port, node_port| model::ServicePort { name: name.into(), protocol, port, node_port };
    let expected = model::Service {
        cluster_ips: vec![ip("10.96.0.10"), ip("fd00::10")],
        external_ips: vec![ip("203.0.113.7")],
        load_balancer_ips: vec![ip("198.51.100.1")],
        ports: vec![port("http", Protocol::Tcp, 80, Some(30080)), port("dns", Protocol::Udp, 53, None)],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        affinity: Some(600),
        source_ranges: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
        ..model::Service::new(ObjectName::new("shop", "web"))
    };
    assert_eq!(services, [expected]);
}

#[test]
fn source_ranges_of_ipv4_in_the_clothes_of_ipv6_guard_ipv4_as_those_of_the_api_do() {
    let written = ["::ffff:192.0.2.0/120", "::ffff:198.51.100.77/128", "2001:db8::1/32"];
    let list = written.map(|range| format!("'{range}'")).join(", ");
    let Contents { services, .. } = good(&GOOD.replace("192.0.2.77/24, '2001:db8::/32'", &list));
    let read: Vec<_> = services[0].source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(read, ["192.0.2.0/24", "198.51.100.77/32", "2001:db8::/32"]);
}

#[test]
fn endpoints_of_one_family_and_with_the_same_ports_share_a_slice() {
    let Contents { slices, .. } = good(GOOD);
    let seen: Vec<_> = slices
        .iter()
        .map(|slice| {
            let ports: Vec<_> = slice.ports.iter().map(|port| (&*port.name, port.port)).collect();
            let addresses: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
            (slice.name.to_string(), slice.family, ports, addresses.join(" "))
        })
        .collect();
    let target = vec![("http", 8080), ("dns", 53)];
    let own = vec![("http", 8081), ("dns", 53)];
    let expected = [
        ("shop/web-1".to_owned(), Family::V4, target.clone(), "10.0.1.5 10.0.2.8".to_owned()),
        ("shop/web-2".to_owned(), Family::V4, own, "10.0.2.7".to_owned()),
        ("shop/web-3".to_owned(), Family::V6, target, "fd00:1::5".to_owned()),
    ];
    assert_eq!(seen, expected);
    assert!(slices.iter().all(|slice| slice.service == ObjectName::new("shop", "web")));
}

#[test]
fn conditions_have_kubernetes_defaults() {
    let Contents { slices, .. } = good(GOOD);
    let conditions = |slice: usize, endpoint: usize| {
        let endpoint = &slices[slice].endpoints[endpoint];
        (endpoint.ready, endpoint.serving, endpoint.terminating)
    };
    assert_eq!(conditions(0, 0), (true, true, false));
    assert_eq!(conditions(0, 1), (false, true, true));
    assert_eq!(conditions(2, 0), (false, false, false));
}

#[test]
fn the_smallest_service_is_in_the_default_namespace() {
    let text = "services: [{name: a, clusterIPs: [10.0.0.1], ports: [{port: 1}]}]";
    let Contents { nodes, services, slices, checks } = good(text);
    assert_eq!(checks, [], "who asks for no check gets none");
    assert_eq!((services[0].name.to_string(), nodes.len(), slices.len()), ("default/a".to_owned(), 0, 0));
}

#[test]
fn a_file_is_the_whole_list_of_each_kind_and_of_service_cidrs_an_empty_one() {
    let contents = good(GOOD);
    let Contents { nodes, services, slices, .. } = contents.clone();
    let lists = [Event::ServiceCidrs(vec![]), Event::Nodes(nodes), Event::Services(services), Event::Slices(slices)];
    assert_eq!(contents.into_events(), lists);
}

#[test]
fn the_version_of_the_form_may_be_said_and_must_be_known_then() {
    assert_eq!(good(&format!("apiVersion: weir.dev/v1alpha1\n{GOOD}")), good(GOOD));
    assert_eq!(
        mistake("apiVersion: weir.dev/v2\nservices: []"),
        "line 1, column 13: apiVersion: \"weir.dev/v2\" is not known here; this version reads weir.dev/v1alpha1"
    );
}

#[test]
fn no_services_at_all_are_said_with_an_empty_list() {
    assert!(good("services: []").services.is_empty());
}

/// The good file with one piece of it replaced.
fn with(old: &str, new: &str) -> String {
    assert_eq!(GOOD.matches(old).count(), 1, "{old}");
    GOOD.replace(old, new)
}

fn mistake(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn session_affinity_lasts_three_hours_unless_the_file_says_otherwise() {
    let affinity = |fields: &str| {
        good(&format!("services: [{{name: a, clusterIPs: [10.0.0.1], ports: [{{port: 1}}]{fields}}}]")).services[0]
            .affinity
    };
    assert_eq!(affinity(""), None);
    assert_eq!(affinity(", sessionAffinity: None"), None);
    assert_eq!(affinity(", sessionAffinity: ClientIP"), Some(10_800));
    assert_eq!(affinity(", sessionAffinity: ClientIP, sessionAffinitySeconds: 86400"), Some(86_400));
}

#[test]
fn processes_at_other_ports_of_one_address_are_other_endpoints() {
    let two = with("{address: 10.0.2.8,", "{address: 10.0.1.5, ports: {http: 8090},");
    let served: Vec<_> = good(&two)
        .slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().map(|e| format!("{}:{}", e.address, slice.ports[0].port)))
        .collect();
    assert_eq!(served, ["10.0.1.5:8080", "10.0.2.7:8081", "10.0.1.5:8090", "fd00:1::5:8080"]);
}
