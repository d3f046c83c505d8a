//! ServiceCIDRs.

use k8s_openapi::api::networking::v1::ServiceCIDR;
use serde_json::{Value, json};
use weir_core::model;
use weir_kube_watch::convert::{self, Problem};

fn service_cidr(object: Value) -> (model::ServiceCidr, Vec<Problem>) {
    let object: ServiceCIDR = serde_json::from_value(object).unwrap();
    let mut problems = Vec::new();
    (convert::service_cidr(&object, &mut problems), problems)
}

fn networks(texts: &[&str]) -> Vec<ipnet::IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_service_cidr_is_its_name_and_its_networks_in_both_families() {
    let cidrs = json!(["10.96.0.0/16", "fd00:96::/112"]);
    let (found, problems) = service_cidr(json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}}));
    assert_eq!(found.networks, networks(&["10.96.0.0/16", "fd00:96::/112"]));
    assert_eq!((&*found.name, problems.len()), ("kubernetes", 0));
}

#[test]
fn one_that_is_not_ready_or_about_to_go_counts_since_services_have_addresses_there() {
    let (found, _) = service_cidr(json!({
        "metadata": {"name": "old", "deletionTimestamp": "2026-02-03T04:05:06Z"},
        "spec": {"cidrs": ["10.96.0.0/16"]},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Terminating", "message": "",
            "lastTransitionTime": "2026-02-03T04:05:06Z"}]},
    }));
    assert_eq!(found.networks, networks(&["10.96.0.0/16"]));
}

#[test]
fn what_is_no_network_is_left_out_by_its_text_and_the_others_stand() {
    let cidrs = json!(["10.96.0.0", "010.97.3.7/016", "fd00:96::/129", "fd00:97::/112"]);
    let (found, problems) = service_cidr(json!({"metadata": {"name": "odd"}, "spec": {"cidrs": cidrs}}));
    assert_eq!(found.networks, networks(&["10.97.0.0/16", "fd00:97::/112"]));
    assert_eq!(problems, ["10.96.0.0", "fd00:96::/129"].map(|text| Problem::ServiceCidr(text.into())));
    assert_eq!(
        problems[0].to_string(),
        "spec.cidrs: \"10.96.0.0\" is not a network such as 10.96.0.0/16; it is left out"
    );
}

#[test]
fn one_without_a_spec_has_no_networks() {
    let (found, problems) = service_cidr(json!({"metadata": {"name": "empty"}}));
    assert_eq!((found.networks.len(), problems.len()), (0, 0));
}
