//! Services.

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use weir_core::model::{self, ObjectName, Protocol, Proxy, TrafficPolicy};
use weir_core::policies::Kind;
use weir_kube_watch::convert::{self, Problem};

use super::{ip, patched};

fn web_service() -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10", "fd00::10"],
            "externalIPs": ["203.0.113.7"],
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000,
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
        affinity: None,
        source_ranges: vec![],
        health_check_port: Some(32000),
        proxy: Proxy::Ours,
        overrides: None,
        own_series: false,
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
fn a_service_belongs_to_the_proxy_that_its_label_names() {
    let labelled = |name: &str| json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": name}}});
    let proxy = |ours: &str, patch: &Value| service_for(ours, patch).0.unwrap().proxy;
    assert_eq!(proxy("", &json!({})), Proxy::Ours, "no label, no name: everybody's");
    assert_eq!(proxy("", &labelled("other")), Proxy::Other);
    assert_eq!(proxy("", &labelled("")), Proxy::Other, "the label counts, even without a value");
    assert_eq!(proxy("weir", &labelled("weir")), Proxy::Ours);
    assert_eq!(proxy("weir", &labelled("other")), Proxy::Other);
    assert_eq!(proxy("weir", &json!({})), Proxy::Unlabelled, "with a name of our own only what carries it");
}

#[test]
fn a_service_of_another_proxy_is_otherwise_the_same() {
    let labels = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}});
    let (ours, other) = (service(&json!({})).0.unwrap(), service(&labels).0.unwrap());
    assert_eq!(other, model::Service { proxy: Proxy::Other, ..ours });
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

/// What becomes of the source ranges: their text, and what was said about them.
fn source_ranges(written: &[&str]) -> (Vec<String>, Vec<String>) {
    let (service, problems) = service(&json!({"spec": {"loadBalancerSourceRanges": written}}));
    let service = service.unwrap();
    assert_eq!(service.load_balancer_ips, [ip("198.51.100.1")], "the addresses are served whatever the ranges");
    let ranges = service.source_ranges.iter().map(ToString::to_string).collect();
    (ranges, problems.iter().map(ToString::to_string).collect())
}

#[test]
fn source_ranges_are_kept_without_the_bits_of_a_host_and_once() {
    let (ranges, problems) = source_ranges(&["192.0.2.0/24", "2001:db8::1/32", "192.0.2.99/24", "010.0.0.0/8"]);
    assert_eq!(ranges, ["192.0.2.0/24", "2001:db8::/32", "10.0.0.0/8"]);
    assert_eq!(problems, [""; 0]);
}

#[test]
fn white_space_around_a_source_range_is_no_mistake() {
    assert_eq!(source_ranges(&[" 192.0.2.0/24\t", "", " "]), (vec!["192.0.2.0/24".to_owned()], vec![]));
    assert_eq!(source_ranges(&[""]), (vec![], vec![]), "nothing is written, so nothing is asked for");
}

#[test]
fn a_family_without_a_source_range_is_open_as_in_kube_proxy() {
    assert_eq!(source_ranges(&["192.0.2.0/24"]), (vec!["192.0.2.0/24".to_owned()], vec![]));
}

#[test]
fn source_ranges_that_cannot_be_read_admit_nobody_and_the_others_stay() {
    let (ranges, problems) = source_ranges(&["192.0.2.7", "192.0.2.0/24", "all"]);
    assert_eq!(ranges, ["192.0.2.0/24", "::/128"], "the one that cannot be read may have been one of IPv6");
    assert_eq!(
        problems,
        [
            "spec.loadBalancerSourceRanges: \"192.0.2.7\" is not a range such as 192.0.2.0/24; it admits nobody",
            "spec.loadBalancerSourceRanges: \"all\" is not a range such as 192.0.2.0/24; it admits nobody",
        ]
    );
}

#[test]
fn a_service_of_which_no_source_range_can_be_read_is_not_open_to_all() {
    let (ranges, problems) = source_ranges(&["192.0.2.0/33"]);
    assert_eq!(ranges, convert::NOBODY.map(|range| range.to_string()));
    assert_eq!(ranges, ["0.0.0.0/32", "::/128"]);
    assert_eq!(
        problems,
        [
            "spec.loadBalancerSourceRanges: \"192.0.2.0/33\" is not a range such as 192.0.2.0/24; it admits nobody",
            "spec.loadBalancerSourceRanges: no valid range is left; the load balancer addresses admit nobody",
        ]
    );
}

#[test]
fn session_affinity_lasts_as_long_as_the_service_says() {
    let affinity = |spec: Value| {
        let (service, problems) = service(&json!({"spec": spec}));
        (service.unwrap().affinity, problems)
    };
    let seconds = |seconds: i64| {
        affinity(
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}),
        )
    };
    assert_eq!(affinity(json!({"sessionAffinity": "None"})), (None, vec![]));
    assert_eq!(affinity(json!({"sessionAffinity": "ClientIP"})), (Some(10_800), vec![]));
    assert_eq!(seconds(1), (Some(1), vec![]));
    assert_eq!(seconds(86_400), (Some(86_400), vec![]));
    for wrong in [0, -1, 86_401] {
        let problem = Problem::AffinityTimeout(i32::try_from(wrong).unwrap());
        assert_eq!(
            problem.to_string(),
            format!("spec.sessionAffinityConfig.clientIP.timeoutSeconds: {wrong} is not in 1..86400; 10800 is used")
        );
        assert_eq!(seconds(wrong), (Some(10_800), vec![problem]));
    }
    let left_over = json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}});
    assert_eq!(affinity(left_over), (None, vec![]), "a time-out alone keeps nobody");
}

#[test]
fn only_load_balancers_with_the_external_policy_local_are_asked_for_their_health() {
    let health = |spec: Value| {
        let (service, problems) = service(&json!({"spec": spec}));
        (service.unwrap().health_check_port, problems)
    };
    assert_eq!(health(json!({})), (Some(32000), vec![]));
    assert_eq!(health(json!({"externalTrafficPolicy": "Cluster"})), (None, vec![]));
    assert_eq!(health(json!({"externalTrafficPolicy": null})), (None, vec![]));
    assert_eq!(health(json!({"type": "NodePort"})), (None, vec![]));
    assert_eq!(health(json!({"healthCheckNodePort": 0})), (None, vec![]));
    assert_eq!(health(json!({"healthCheckNodePort": null})), (None, vec![]));
    assert_eq!(health(json!({"healthCheckNodePort": 70000})), (None, vec![Problem::HealthCheckPort(70000)]));
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

#[test]
fn annotations_of_ours_are_settings_and_those_of_others_are_ignored() {
    let annotations = json!({"weir.dev/policy": "rap", "weir.dev/relies-on": "store", "example.com/owner": "someone"});
    let (service, problems) = service(&json!({"metadata": {"annotations": annotations}}));
    let overrides = service.unwrap().overrides.unwrap();
    assert_eq!((overrides.policy, overrides.relies_on), (Some(Kind::Rap), Some(ObjectName::new("shop", "store"))));
    assert_eq!(problems, []);
}

#[test]
fn an_annotation_asks_for_series_of_its_own_and_steers_nothing() {
    let (service, problems) = service(&json!({"metadata": {"annotations": {"weir.dev/metrics": "own"}}}));
    let service = service.unwrap();
    assert_eq!((service.own_series, service.overrides), (true, None));
    assert_eq!(problems, []);
}

#[test]
fn a_wrong_annotation_is_a_problem_and_the_service_is_served() {
    let annotations = json!({"weir.dev/target": "80", "weir.dev/max-split": "0.5"});
    let (service, problems) = service(&json!({"metadata": {"annotations": annotations}}));
    assert_eq!(service.unwrap().overrides, None);
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "annotation weir.dev/max-split: there is no setting of this name; did you mean max-spill?; it does nothing",
            "annotation weir.dev/target: \"80\" is not a number above 0 and up to 1: write 0.8 for 80 %; the namespace's \
             setting or the default stays in force",
        ]
    );
}
