//! The static file: what a good one means, and where a bad one is bad.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::IpAddr;
use std::time::Duration;

use weir_core::cluster::Event;
use weir_core::endpoint_checks::{AllFail, AskedPort, Check, Get, Question};
use weir_core::load::Share;
use weir_core::model::{self, Family, ObjectName, Protocol, Proxy, TrafficPolicy};
use weir_core::policies::Kind;
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
        name: ObjectName::new("shop", "web"),
        cluster_ips: vec![ip("10.96.0.10"), ip("fd00::10")],
        external_ips: vec![ip("203.0.113.7")],
        load_balancer_ips: vec![ip("198.51.100.1")],
        ports: vec![port("http", Protocol::Tcp, 80, Some(30080)), port("dns", Protocol::Udp, 53, None)],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        affinity: Some(600),
        source_ranges: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
        health_check_port: None,
        proxy: Proxy::Ours,
        overrides: None,
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
fn an_empty_file_is_a_mistake_not_the_end_of_all_services() {
    assert_eq!(mistake("\n"), "line 1, column 1: the file is empty (write `services: []` for none)");
    assert_eq!(mistake("# nothing yet\n---\n"), mistake(""));
}

#[test]
fn an_unknown_field_is_named_with_the_fields_that_exist() {
    let text = mistake(&with("clusterIPs:", "clusterIps:"));
    assert!(text.starts_with("line 9, column 5: "), "{text}");
    assert!(text.contains("clusterIps") && text.contains("clusterIPs"), "{text}");
    let text = mistake(&with("address: 10.0.1.5,", "adress: 10.0.1.5,"));
    assert!(text.starts_with("line 18, column 10: ") && text.contains("adress"), "{text}");
}

#[test]
fn what_is_missing_is_named() {
    let text = mistake("services:\n  - name: a\n    clusterIPs: [10.0.0.1]\n");
    assert!(text.starts_with("line 3, column 5: missing field `ports`"), "{text}");
}

#[test]
fn what_is_not_yaml_is_refused_with_its_place() {
    let text = mistake("services:\n  - name: [a\n");
    assert!(text.starts_with("line "), "{text}");
    assert!(!text.starts_with("line 0"), "{text}");
}

#[test]
fn values_of_the_wrong_kind_are_refused_with_their_place() {
    let text = mistake(&with("port: 53}", "port: many}"));
    assert!(text.starts_with("line 16, column 42: "), "{text}");
    let text = mistake(&with("ready: false}", "ready: perhaps}"));
    assert!(text.starts_with("line 21, column 39: "), "{text}");
}

#[test]
fn bad_addresses_are_refused_with_their_place_and_field() {
    for (old, new, expected) in [
        ("[10.96.0.10,", "[10.96.0,", "line 9, column 18: clusterIPs: \"10.96.0\" is not an IP address"),
        ("203.0.113.7", "somewhere", "line 10, column 19: externalIPs: \"somewhere\" is not an IP address"),
        (
            "198.51.100.1]",
            "198.51.100.1/32]",
            "line 11, column 23: loadBalancerIPs: \"198.51.100.1/32\" is not an IP address",
        ),
        (
            "address: 10.0.1.5",
            "address: 10.0.1.500",
            "line 18, column 19: address: \"10.0.1.500\" is not an IP address",
        ),
        ("192.0.2.11,", "edge-1,", "line 4, column 17: nodes[].addresses: \"edge-1\" is not an IP address"),
    ] {
        assert_eq!(mistake(&with(old, new)), expected);
    }
}

#[test]
fn bad_ports_are_refused_with_their_place_and_field() {
    for (old, new, expected) in [
        (" port: 80,", " port: 0,", "line 15, column 28: port: 0 is not in 1..65535"),
        ("targetPort: 8080", "targetPort: 65536", "line 15, column 44: targetPort: 65536 is not in 1..65535"),
        ("nodePort: 30080", "nodePort: -1", "line 15, column 60: nodePort: -1 is not in 1..65535"),
        ("{http: 8081}", "{http: 80810}", "line 19, column 57: ports: 80810 is not in 1..65535"),
        ("{http: 8081}", "{htp: 8081}", "line 19, column 56: ports: service shop/web has no port named \"htp\""),
    ] {
        assert_eq!(mistake(&with(old, new)), expected);
    }
}

#[test]
fn words_that_mean_nothing_are_refused() {
    for (old, new, expected) in [
        ("protocol: UDP", "protocol: udp", "line 16, column 31: protocol: \"udp\" is none of TCP, UDP and SCTP"),
        (
            "externalTrafficPolicy: Local",
            "externalTrafficPolicy: local",
            "line 13, column 28: externalTrafficPolicy: \"local\" is neither Cluster nor Local",
        ),
        (
            "10.0.1.5, node: edge-1",
            "10.0.1.5, node: edge-1, pod: web-0",
            "line 18, column 48: pod: \"web-0\" is not a UUID in lower case, such as 9b7b5d0a-3f6e-4f0c-8d57-0a1b2c3d4e5f",
        ),
        ("10.0.1.5, node: edge-1", "10.0.1.5, node: edge-9", "line 18, column 35: node: \"edge-9\" is not in `nodes`"),
        ("- name: web", "- name: ''", "line 7, column 11: services[].name: a name must not be empty"),
    ] {
        assert_eq!(mistake(&with(old, new)), expected);
    }
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
fn bad_affinity_and_source_ranges_are_refused_with_their_place_and_field() {
    for (old, new, expected) in [
        ("ClientIP", "clientIP", "line 22, column 22: sessionAffinity: \"clientIP\" is neither None nor ClientIP"),
        ("Seconds: 600", "Seconds: 0", "line 23, column 29: sessionAffinitySeconds: 0 is not in 1..86400"),
        ("Seconds: 600", "Seconds: 86401", "line 23, column 29: sessionAffinitySeconds: 86401 is not in 1..86400"),
        (
            "sessionAffinity: ClientIP",
            "sessionAffinity: None",
            "line 23, column 29: sessionAffinitySeconds: needs sessionAffinity: ClientIP",
        ),
        (
            "192.0.2.77/24",
            "192.0.2.77",
            "line 24, column 32: loadBalancerSourceRanges: \"192.0.2.77\" is not a range such as 192.0.2.0/24",
        ),
        (
            "[198.51.100.1]",
            "[]",
            "line 24, column 32: loadBalancerSourceRanges: there are no loadBalancerIPs, and other addresses admit \
             everybody",
        ),
    ] {
        assert_eq!(mistake(&with(old, new)), expected);
    }
}

#[test]
fn annotations_of_ours_are_settings_and_those_of_others_are_ignored() {
    let annotations = "{weir.dev/policy: rap, weir.dev/target: 0.7, example.com/owner: someone}";
    let Contents { services, .. } =
        good(&with("    namespace: shop", &format!("    namespace: shop\n    annotations: {annotations}")));
    let overrides = services[0].overrides.as_deref().unwrap();
    assert_eq!((overrides.policy, overrides.target.map(Share::get)), (Some(Kind::Rap), Some(0.7)));
}

#[test]
fn bad_annotations_are_refused_with_their_place_and_name() {
    for (annotation, expected) in [
        ("target: 70", "line 9, column 36: annotations: annotation weir.dev/target: \"70\" is not a number above 0"),
        (
            "targt: 1",
            "line 9, column 35: annotations: annotation weir.dev/targt: there is no setting of this name; did",
        ),
    ] {
        let text =
            with("    namespace: shop", &format!("    namespace: shop\n    annotations: {{weir.dev/{annotation}}}"));
        let mistake = mistake(&text);
        assert!(mistake.starts_with(expected), "{mistake}");
    }
}

#[test]
fn settings_of_the_steering_are_said_without_the_prefix_of_annotations_or_with_it() {
    let steering = "    namespace: shop\n    steering: {policy: rap, target: 0.7, relies-on: cart}";
    let annotations = "    namespace: shop\n    annotations: {weir.dev/policy: rap, weir.dev/target: 0.7}\n    \
                       steering: {relies-on: cart}";
    let overrides = |lines: &str| good(&with("    namespace: shop", lines)).services[0].overrides.clone().unwrap();
    let said = overrides(steering);
    assert_eq!((said.policy, said.target.map(Share::get)), (Some(Kind::Rap), Some(0.7)));
    assert_eq!(said.relies_on, Some(ObjectName::new("shop", "cart")));
    assert_eq!(said, overrides(annotations));
}

#[test]
fn bad_settings_of_the_steering_are_refused_with_their_place_and_name() {
    for (lines, expected) in [
        ("steering: {target: 70}", "line 9, column 24: steering.target: \"70\" is not a number above 0"),
        ("steering: {targt: 1}", "line 9, column 23: steering.targt: there is no setting of this name; did you mean"),
        (
            "annotations: {weir.dev/policy: rap}\n    steering: {policy: rap}",
            "line 10, column 24: steering.policy: an annotation of this service says it, too",
        ),
    ] {
        let mistake = mistake(&with("    namespace: shop", &format!("    namespace: shop\n    {lines}")));
        assert!(mistake.starts_with(expected), "{mistake}");
    }
}

/// The check of the good file's service, written like this.
fn checked(check: &str) -> String {
    with("    namespace: shop", &format!("    namespace: shop\n    healthCheck: {check}"))
}

#[test]
fn a_check_connects_to_the_first_tcp_port_unless_the_file_says_otherwise() {
    let smallest = Check {
        question: Question::Connect,
        port: AskedPort::Named("http".into()),
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
        all_fail: AllFail::UseAll,
    };
    for written in ["{}", ""] {
        assert_eq!(good(&checked(written)).checks, [(ObjectName::new("shop", "web"), smallest.clone())], "{written:?}");
    }
    let written = "{port: 9000, interval: 500ms, timeout: 0.2s, rise: 1, fall: 5, whenAllFail: refuse}";
    let expected = Check {
        question: Question::Connect,
        port: AskedPort::Number(9000),
        interval: Duration::from_millis(500),
        timeout: Duration::from_millis(200),
        rise: 1,
        fall: 5,
        all_fail: AllFail::Refuse,
    };
    assert_eq!(good(&checked(written)).checks[0].1, expected);
    let quick = &good(&checked("{interval: 300ms}")).checks[0].1;
    assert_eq!(quick.timeout, quick.interval, "never longer than the interval");
}

#[test]
fn a_check_over_http_has_a_path_a_host_and_codes_that_pass() {
    let question = |written: &str| good(&checked(written)).checks[0].1.question.clone();
    let smallest = Question::Get(Get { path: "/".into(), host: None, statuses: 200..=399 });
    assert_eq!([question("{http: {}}"), question("\n      http:")], [smallest.clone(), smallest]);
    let whole = Get { path: "/ready?all=1".into(), host: Some("web.example".into()), statuses: 200..=299 };
    assert_eq!(question("{http: {path: '/ready?all=1', host: web.example, status: 200-299}}"), Question::Get(whole));
    let one = Get { path: "/".into(), host: None, statuses: 204..=204 };
    assert_eq!(question("{http: {status: 204}}"), Question::Get(one));
}

#[test]
fn a_check_that_cannot_be_is_refused_with_its_place_and_field() {
    for (written, expected) in [
        (
            "{intervall: 2s}",
            "line 9, column 19: unknown field `intervall`, expected one of http, port, interval, timeout",
        ),
        (
            "{http: {status: 700}}",
            "line 9, column 34: healthCheck.http.status: \"700\" is neither a status such as 200",
        ),
        ("{http: {status: 300-200}}", "line 9, column 34: healthCheck.http.status: \"300-200\" is neither a status"),
        ("{http: {path: healthz}}", "line 9, column 32: healthCheck.http.path: \"healthz\" is not a path such as"),
        ("{http: {path: '/a b'}}", "line 9, column 32: healthCheck.http.path: \"/a b\" is not a path such as"),
        ("{http: {host: 'a b'}}", "line 9, column 32: healthCheck.http.host: \"a b\" is not the name of a host"),
        ("{interval: 2}", "line 9, column 29: healthCheck.interval: \"2\" is not a time from 100ms to 1h, such as 2s"),
        ("{interval: 10ms}", "line 9, column 29: healthCheck.interval: \"10ms\" is not a time from 100ms to 1h"),
        (
            "{timeout: 3s}",
            "line 9, column 28: healthCheck.timeout: \"3s\" is not a time above 0 and up to the interval, 2s",
        ),
        ("{rise: 0}", "line 9, column 25: healthCheck.rise: 0 is not in 1..100"),
        ("{fall: 101}", "line 9, column 25: healthCheck.fall: 101 is not in 1..100"),
        (
            "{port: 0}",
            "line 9, column 25: healthCheck.port: \"0\" is neither in 1..65535 nor the name of a port of service",
        ),
        ("{port: dns}", "line 9, column 25: healthCheck.port: \"dns\" is not a port over TCP, which checks need"),
        ("{whenAllFail: panic}", "line 9, column 32: healthCheck.whenAllFail: \"panic\" is neither use-all nor refuse"),
    ] {
        let mistake = mistake(&checked(written));
        assert!(mistake.starts_with(expected), "{mistake}");
    }
    let udp = "services: [{name: a, clusterIPs: [10.0.0.1], ports: [{port: 53, protocol: UDP}], healthCheck: {}}]";
    let mistake = mistake(udp);
    assert!(mistake.starts_with("line 1, column 19: healthCheck: service default/a has no port over TCP"), "{mistake}");
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

#[test]
fn names_that_are_used_twice_are_refused() {
    for (old, new, expected) in [
        ("- name: edge-2", "- name: edge-1", "line 5, column 11: node \"edge-1\" exists already, in line 2"),
        ("{name: dns,", "{name: http,", "line 16, column 16: port \"http\" exists already, in line 15"),
        (
            "address: 10.0.2.8",
            "address: 10.0.1.5",
            "line 20, column 19: endpoint \"10.0.1.5\" exists already, in line 18",
        ),
    ] {
        assert_eq!(mistake(&with(old, new)), expected);
    }
    let twice = "services:\n- {name: a, clusterIPs: [10.0.0.1], ports: [{port: 1}]}\n- {name: a, clusterIPs: [10.0.0.2], ports: [{port: 1}]}\n";
    assert_eq!(mistake(twice), "line 3, column 10: service \"default/a\" exists already, in line 2");
}

#[test]
fn two_services_cannot_answer_at_one_address_and_port() {
    let two = |second: &str| {
        format!(
            "services:\n- {{name: a, clusterIPs: [10.0.0.1], ports: [{{port: 80, nodePort: 30000}}]}}\n- {second}\n"
        )
    };
    assert_eq!(
        mistake(&two("{name: b, externalIPs: [10.0.0.1], ports: [{port: 80}]}")),
        "line 3, column 27: 10.0.0.1 port 80/TCP of default/b is used by default/a already"
    );
    assert_eq!(
        mistake(&two("{name: b, clusterIPs: [10.0.0.2], ports: [{port: 80, nodePort: 30000}]}")),
        "line 3, column 66: nodePort 30000/TCP of default/b is used by default/a already"
    );
    let others = "{name: b, clusterIPs: [10.0.0.1], ports: [{name: t, port: 81}, {name: u, port: 80, protocol: UDP}]}";
    assert_eq!(good(&two(others)).services.len(), 2, "another port or protocol is free");
}

#[test]
fn a_service_that_nobody_can_reach_is_refused() {
    assert_eq!(
        mistake("services: [{name: a, ports: [{port: 80}]}]"),
        "line 1, column 19: service default/a cannot be reached: give it clusterIPs, externalIPs or loadBalancerIPs, \
         or each port a nodePort"
    );
    assert_eq!(mistake("services: [{name: a, ports: []}]"), "line 1, column 19: service default/a has no ports");
    assert_eq!(good("services: [{name: a, ports: [{port: 80, nodePort: 30080}]}]").services.len(), 1);
}
