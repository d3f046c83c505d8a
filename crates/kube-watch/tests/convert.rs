//! Kubernetes objects in, objects of the model out: one test for each rule of kube-proxy's.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use weir_core::model::{self, Family, ObjectName, Protocol, TrafficPolicy};
use weir_kube_watch::convert::{self, Problem};

/// The object with parts of it replaced: a merge patch, in which null removes.
fn patched(mut object: Value, patch: &Value) -> Value {
    merge(&mut object, patch);
    object
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn web_service() -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10", "fd00::10"],
            "externalIPs": ["203.0.113.7"],
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster",
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "targetPort": "www", "nodePort": 30080},
                {"name": "dns", "protocol": "UDP", "port": 53},
            ],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1", "ipMode": "VIP"}]}},
    })
}

fn service_for(proxy_name: &str, patch: &Value) -> (Option<model::Service>, Vec<Problem>) {
    let object: Service = serde_json::from_value(patched(web_service(), patch)).unwrap();
    let mut problems = Vec::new();
    (convert::service(&object, proxy_name, &mut problems), problems)
}

fn service(patch: &Value) -> (Option<model::Service>, Vec<Problem>) {
    service_for("", patch)
}

#[test]
fn a_service_keeps_its_addresses_ports_and_policies() {
    let (service, problems) = service(&json!({}));
    let port =
        |name: &str, protocol, port, node_port| model::ServicePort { name: name.into(), protocol, port, node_port };
    let expected = model::Service {
        name: ObjectName::new("shop", "web"),
        cluster_ips: vec![ip("10.96.0.10"), ip("fd00::10")],
        external_ips: vec![ip("203.0.113.7")],
        load_balancer_ips: vec![ip("198.51.100.1")],
        ports: vec![port("http", Protocol::Tcp, 80, Some(30080)), port("dns", Protocol::Udp, 53, None)],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
    };
    assert_eq!((service, problems), (Some(expected), vec![]));
}

#[test]
fn a_service_without_an_address_of_its_own_is_not_served() {
    for patch in [
        json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}),
        json!({"spec": {"clusterIP": "", "clusterIPs": null}}),
        json!({"spec": {"clusterIP": null, "clusterIPs": null}}),
        json!({"spec": {"type": "ExternalName", "externalName": "example.net"}}),
    ] {
        assert_eq!(service(&patch), (None, vec![]), "{patch}");
    }
}

#[test]
fn a_service_labelled_headless_is_not_served_whatever_the_value() {
    for value in ["", "true", "false"] {
        let patch = json!({"metadata": {"labels": {"service.kubernetes.io/headless": value}}});
        assert_eq!(service(&patch).0, None, "{value}");
        assert_eq!(service_for("weir", &patch).0, None, "{value}");
    }
}

#[test]
fn a_service_is_served_by_the_proxy_that_its_label_names() {
    let labelled = |name: &str| json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": name}}});
    let served = |ours: &str, patch: &Value| service_for(ours, patch).0.is_some();
    assert!(served("", &json!({})), "no label, no name: everybody's");
    assert!(!served("", &labelled("other")));
    assert!(!served("", &labelled("")), "the label counts, even without a value");
    assert!(served("weir", &labelled("weir")));
    assert!(!served("weir", &labelled("other")));
    assert!(!served("weir", &json!({})), "with a name of our own only what carries it");
}

#[test]
fn load_balancer_addresses_of_mode_proxy_and_host_names_are_left_out() {
    let ingress = json!([
        {"ip": "198.51.100.1"},
        {"ip": "198.51.100.2", "ipMode": "Proxy"},
        {"hostname": "lb.example.net"},
        {"ip": "2001:db8::1", "ipMode": "VIP"},
    ]);
    let (service, problems) = service(&json!({"status": {"loadBalancer": {"ingress": ingress}}}));
    assert_eq!(service.unwrap().load_balancer_ips, [ip("198.51.100.1"), ip("2001:db8::1")]);
    assert_eq!(problems, []);
}

#[test]
fn load_balancer_addresses_with_source_ranges_are_left_out_and_not_open_to_all() {
    let (service, problems) = service(&json!({"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}}));
    let service = service.unwrap();
    assert_eq!((service.load_balancer_ips.as_slice(), service.cluster_ips.len()), (&[][..], 2));
    assert_eq!(problems, [Problem::SourceRanges]);
}

#[test]
fn session_affinity_is_said_to_be_missing() {
    let (service, problems) = service(&json!({"spec": {"sessionAffinity": "ClientIP"}}));
    assert_eq!((service.is_some(), problems), (true, vec![Problem::SessionAffinity]));
}

#[test]
fn the_old_field_of_the_cluster_ip_is_enough() {
    let (service, _) = service(&json!({"spec": {"clusterIPs": null}}));
    assert_eq!(service.unwrap().cluster_ips, [ip("10.96.0.10")]);
}

#[test]
fn a_bad_address_is_refused_and_the_rest_of_the_service_served() {
    let (service, problems) = service(&json!({"spec": {"externalIPs": ["203.0.113", "203.0.113.8", "203.0.113.8"]}}));
    assert_eq!(service.unwrap().external_ips, [ip("203.0.113.8")]);
    let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["spec.externalIPs: \"203.0.113\" is not an IP address; it is left out"]);
}

#[test]
fn ports_out_of_range_and_unknown_protocols_are_refused_one_by_one() {
    let ports = json!([
        {"name": "zero", "port": 0},
        {"name": "big", "port": 65536},
        {"name": "odd", "port": 1, "protocol": "QUIC"},
        {"name": "high", "port": 65535, "nodePort": 70000},
        {"name": "sctp", "port": 7, "protocol": "SCTP", "nodePort": 0},
    ]);
    let (service, problems) = service(&json!({"spec": {"ports": ports}}));
    let ports = service.unwrap().ports;
    let kept: Vec<_> = ports.iter().map(|port| (&*port.name, port.protocol, port.port, port.node_port)).collect();
    assert_eq!(kept, [("high", Protocol::Tcp, 65535, None), ("sctp", Protocol::Sctp, 7, None)]);
    let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "spec.ports[].port: port 0 of \"zero\" is not in 1..65535; it is left out",
            "spec.ports[].port: port 65536 of \"big\" is not in 1..65535; it is left out",
            "spec.ports[].protocol: protocol \"QUIC\" of \"odd\" is not TCP, UDP or SCTP; the port is left out",
            "spec.ports[].nodePort: port 70000 of \"high\" is not in 1..65535; it is left out",
        ]
    );
}

#[test]
fn policies_that_are_unset_or_unknown_are_cluster() {
    for policy in [json!(null), json!("Cluster"), json!("Nearby")] {
        let patch = json!({"spec": {"internalTrafficPolicy": policy, "externalTrafficPolicy": policy}});
        let service = service(&patch).0.unwrap();
        assert_eq!((service.internal_policy, service.external_policy), Default::default());
    }
    let local = service(&json!({"spec": {"internalTrafficPolicy": "Local"}})).0.unwrap();
    assert_eq!(local.internal_policy, TrafficPolicy::Local);
}

fn web_slice() -> Value {
    json!({
        "metadata": {
            "namespace": "shop",
            "name": "web-x7k2p",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [{
            "addresses": ["10.0.1.5"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "edge-1",
            "hints": {"forZones": [{"name": "hall-a"}], "forNodes": [{"name": "edge-1"}]},
        }],
    })
}

fn slice_for(proxy_name: &str, patch: &Value) -> (Option<model::Slice>, Vec<Problem>) {
    let object: EndpointSlice = serde_json::from_value(patched(web_slice(), patch)).unwrap();
    let mut problems = Vec::new();
    (convert::endpoint_slice(&object, proxy_name, &mut problems), problems)
}

fn slice(patch: &Value) -> (Option<model::Slice>, Vec<Problem>) {
    slice_for("", patch)
}

#[test]
fn a_slice_keeps_its_service_ports_endpoints_and_hints() {
    let (slice, problems) = slice(&json!({}));
    let expected = model::Slice {
        name: ObjectName::new("shop", "web-x7k2p"),
        service: ObjectName::new("shop", "web"),
        family: Family::V4,
        ports: vec![model::SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: vec![model::Endpoint {
            address: ip("10.0.1.5"),
            node: Some("edge-1".into()),
            ready: true,
            serving: true,
            terminating: false,
            zone_hints: Box::new(["hall-a".into()]),
            node_hints: Box::new(["edge-1".into()]),
        }],
    };
    assert_eq!((slice, problems), (Some(expected), vec![]));
}

#[test]
fn a_slice_that_names_no_service_belongs_to_none() {
    for labels in [json!(null), json!({"kubernetes.io/service-name": ""}), json!({"kubernetes.io/service-name": null})]
    {
        assert_eq!(slice(&json!({"metadata": {"labels": labels}})), (None, vec![]));
    }
}

#[test]
fn a_slice_of_names_or_of_something_unknown_is_refused() {
    for kind in ["FQDN", "IPX"] {
        let (slice, problems) = slice(&json!({"addressType": kind}));
        assert_eq!((slice, problems), (None, vec![Problem::AddressType(kind.to_owned())]));
    }
}

#[test]
fn a_slice_labelled_for_nobody_or_another_proxy_is_left_out() {
    let labelled = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    let taken = |ours: &str, patch: &Value| slice_for(ours, patch).0.is_some();
    assert!(!taken("", &labelled("service.kubernetes.io/headless", "")));
    assert!(!taken("weir", &labelled("service.kubernetes.io/headless", "")));
    assert!(!taken("", &labelled("service.kubernetes.io/service-proxy-name", "other")));
    assert!(!taken("", &labelled("service.kubernetes.io/service-proxy-name", "")));
    assert!(!taken("weir", &labelled("service.kubernetes.io/service-proxy-name", "other")));
    assert!(taken("weir", &labelled("service.kubernetes.io/service-proxy-name", "weir")));
    assert!(taken("weir", &json!({})), "written by hand for a Service of ours");
}

#[test]
fn conditions_that_are_unset_have_kubernetes_defaults() {
    let conditions = |conditions: Value| {
        let endpoints = json!([{"addresses": ["10.0.1.5"], "conditions": conditions}]);
        let endpoint = slice(&json!({"endpoints": endpoints})).0.unwrap().endpoints.remove(0);
        (endpoint.ready, endpoint.serving, endpoint.terminating)
    };
    assert_eq!(conditions(json!(null)), (true, true, false));
    assert_eq!(conditions(json!({})), (true, true, false));
    assert_eq!(conditions(json!({"ready": false})), (false, false, false), "serving follows ready");
    assert_eq!(conditions(json!({"ready": false, "serving": true, "terminating": true})), (false, true, true));
    assert_eq!(conditions(json!({"ready": true, "terminating": true})), (true, true, true));
}

#[test]
fn of_several_addresses_the_first_counts() {
    let slice = slice(&json!({"endpoints": [{"addresses": ["10.0.1.5", "10.0.1.6"]}]})).0.unwrap();
    assert_eq!(slice.endpoints.len(), 1);
    assert_eq!(slice.endpoints[0].address, ip("10.0.1.5"));
    assert_eq!(slice.endpoints[0].node, None);
}

#[test]
fn bad_endpoints_are_refused_one_by_one() {
    let endpoints = json!([
        {"addresses": ["10.0.1"]},
        {"addresses": []},
        {"addresses": ["fd00::5"]},
        {"addresses": ["10.0.1.9"]},
    ]);
    let (slice, problems) = slice(&json!({"endpoints": endpoints}));
    let kept: Vec<_> = slice.unwrap().endpoints.iter().map(|endpoint| endpoint.address).collect();
    assert_eq!(kept, [ip("10.0.1.9")]);
    assert_eq!(
        problems,
        [
            Problem::Address { field: "endpoints[].addresses", value: "10.0.1".into() },
            Problem::NoAddress,
            Problem::Family { address: ip("fd00::5"), address_type: "IPv4".into() },
        ]
    );
}

#[test]
fn ipv6_slices_are_taken_like_ipv4_ones() {
    let patch =
        json!({"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::5"]}, {"addresses": ["::ffff:10.0.1.5"]}]});
    let (slice, problems) = slice(&patch);
    let slice = slice.unwrap();
    assert_eq!((slice.family, slice.endpoints.len(), slice.endpoints[0].address), (Family::V6, 1, ip("fd00::5")));
    assert_eq!(problems.len(), 1, "an IPv4 address in the clothes of IPv6 is not of the slice's family");
}

#[test]
fn slice_ports_without_a_number_are_ignored_and_wrong_ones_refused() {
    let ports = json!([
        {"name": "any"},
        {"name": "plain", "port": 80},
        {"port": 81, "protocol": "UDP"},
        {"name": "zero", "port": 0},
        {"name": "odd", "port": 82, "protocol": "QUIC"},
    ]);
    let (slice, problems) = slice(&json!({"ports": ports}));
    let ports = slice.unwrap().ports;
    let kept: Vec<_> = ports.iter().map(|port| (&*port.name, port.protocol, port.port)).collect();
    assert_eq!(kept, [("plain", Protocol::Tcp, 80), ("", Protocol::Udp, 81)]);
    assert_eq!(
        problems,
        [
            Problem::Port { field: "ports[].port", name: "zero".into(), value: 0 },
            Problem::Protocol { field: "ports[].protocol", name: "odd".into(), value: "QUIC".into() },
        ]
    );
}

fn node(object: Value) -> (model::Node, Vec<Problem>) {
    let object: Node = serde_json::from_value(object).unwrap();
    let mut problems = Vec::new();
    (convert::node(&object, &mut problems), problems)
}

#[test]
fn a_node_is_known_by_its_internal_addresses_and_its_zone() {
    let (node, problems) = node(json!({
        "metadata": {"name": "edge-1", "labels": {"topology.kubernetes.io/zone": "hall-a"}},
        "status": {"addresses": [
            {"type": "Hostname", "address": "edge-1"},
            {"type": "ExternalIP", "address": "203.0.113.1"},
            {"type": "InternalIP", "address": "192.0.2.11"},
            {"type": "InternalIP", "address": "2001:db8::11"},
        ]},
    }));
    let addresses = vec![ip("192.0.2.11"), ip("2001:db8::11")];
    assert_eq!(node, model::Node { name: "edge-1".into(), zone: "hall-a".into(), addresses });
    assert_eq!(problems, []);
}

#[test]
fn a_node_without_internal_addresses_is_known_by_its_external_ones() {
    let addresses = json!([{"type": "ExternalIP", "address": "203.0.113.1"}]);
    let (node, _) = node(json!({"metadata": {"name": "edge-1"}, "status": {"addresses": addresses}}));
    assert_eq!((node.addresses, &*node.zone), (vec![ip("203.0.113.1")], ""));
}

#[test]
fn a_node_that_has_not_reported_yet_has_no_addresses() {
    let (node, problems) = node(json!({"metadata": {"name": "edge-1"}}));
    assert_eq!((&*node.name, node.addresses.len(), problems.len()), ("edge-1", 0, 0));
}
