//! EndpointSlices.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use weir_core::model::{self, Family, ObjectName, Protocol};
use weir_kube_watch::convert::{self, Problem};

use super::{ip, patched};

const POD: &str = "9b7b5d0a-3f6e-4f0c-8d57-0a1b2c3d4e5f";

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
            "targetRef": {"kind": "Pod", "name": "web-0", "uid": POD},
            "hints": {"forZones": [{"name": "hall-a"}], "forNodes": [{"name": "edge-1"}]},
        }],
    })
}

fn slice(patch: &Value) -> (Option<model::Slice>, Vec<Problem>) {
    let object: EndpointSlice = serde_json::from_value(patched(web_slice(), patch)).unwrap();
    let mut problems = Vec::new();
    (convert::endpoint_slice(&object, &mut problems), problems)
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
            pod: Some(POD.parse().unwrap()),
        }],
        triggered: None,
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
fn a_slice_of_a_headless_service_is_left_out_and_one_of_another_proxy_is_not() {
    let taken = |key: &str, value: &str| slice(&json!({"metadata": {"labels": {key: value}}})).0.is_some();
    assert!(!taken("service.kubernetes.io/headless", ""));
    assert!(taken("service.kubernetes.io/service-proxy-name", "other"), "the Service decides");
}

#[test]
fn a_slice_knows_what_time_made_its_controller_write_it() {
    let triggered = |time: &str| {
        let annotations = json!({"endpoints.kubernetes.io/last-change-trigger-time": time});
        let (slice, problems) = slice(&json!({"metadata": {"annotations": annotations}}));
        assert_eq!(problems, []);
        slice.unwrap().triggered
    };
    assert_eq!(triggered("1970-01-01T00:00:01Z"), Some(1000));
    assert_eq!(triggered("2026-02-03T04:05:06.789123456Z"), Some(1_770_091_506_789));
    assert_eq!(triggered("2026-02-03T06:05:06+02:00"), Some(1_770_091_506_000));
    assert_eq!(triggered("yesterday"), None);
    assert_eq!(triggered(""), None);
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
    assert_eq!(conditions(json!({"ready": false})), (false, true, false), "as kube-proxy has it");
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
        {"addresses": ["010.0.1.9"]},
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
