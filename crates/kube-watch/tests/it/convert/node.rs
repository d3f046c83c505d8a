//! Nodes.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use weir_core::model;
use weir_kube_watch::convert::{self, Problem};

use super::{ip, patched};

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
    let capacity = model::NodeCapacity::default();
    let addresses = vec![ip("192.0.2.11"), ip("2001:db8::11")];
    assert_eq!(node, model::Node { name: "edge-1".into(), zone: "hall-a".into(), addresses, eligible: true, capacity });
    assert_eq!(problems, []);
}

#[test]
fn a_node_has_what_its_status_says_and_what_is_no_number_is_unknown() {
    let capacity = |cpu: &str, memory: &str| {
        let capacity = json!({"cpu": cpu, "memory": memory, "pods": "110"});
        let (node, problems) = node(json!({"metadata": {"name": "edge-1"}, "status": {"capacity": capacity}}));
        assert_eq!(problems, []);
        (node.capacity.millicores, node.capacity.bytes)
    };
    assert_eq!(capacity("4", "16393244Ki"), (4000, 16_786_681_856));
    assert_eq!(capacity("3920m", "1G"), (3920, 1_000_000_000));
    assert_eq!(capacity("-4", "many"), (0, 0));
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

#[test]
fn a_node_that_is_about_to_go_is_not_eligible_for_traffic_from_load_balancers() {
    let eligible = |patch: Value| node(patched(json!({"metadata": {"name": "edge-1"}}), &patch)).0.eligible;
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let taints = |key: &str| json!({"spec": {"taints": [taint("other"), taint(key)]}});
    assert!(eligible(json!({})));
    assert!(eligible(json!({"spec": {"unschedulable": true}})), "a cordoned node serves on");
    assert!(eligible(taints("node.kubernetes.io/not-ready")));
    assert!(!eligible(taints("ToBeDeletedByClusterAutoscaler")));
    assert!(!eligible(json!({"metadata": {"deletionTimestamp": "2026-02-03T04:05:06Z"}})));
}
