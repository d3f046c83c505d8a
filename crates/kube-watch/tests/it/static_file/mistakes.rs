//! What is wrong is refused, with its place and field.

use super::{good, mistake, with};

#[test]
fn an_empty_file_is_a_mistake_not_the_end_of_all_services() {
    assert_eq!(mistake("\n"), "line 1, column 1: the file is empty (write `services: []` for none)");
    assert_eq!(mistake("# nothing yet\n---\n"), mistake(""));
}

#[test]
fn a_list_with_nothing_after_it_is_a_mistake_not_an_empty_one() {
    let empty = "a list with nothing in it is written as `[]`";
    let service = |field: &str| {
        let lists = "clusterIPs: [10.0.0.1], loadBalancerIPs: [192.0.2.1], ports: [{port: 80}]";
        format!("services:\n- {{name: a, {lists}, {field}: }}\n")
    };
    for text in
        ["services:\n".to_owned(), service("endpoints"), service("loadBalancerSourceRanges"), service("externalIPs")]
    {
        assert!(mistake(&text).ends_with(empty), "{text}{}", mistake(&text));
    }
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
fn addresses_that_no_packet_is_routed_to_are_refused() {
    let routed = |address: &str| mistake(&with("address: 10.0.1.5", &format!("address: '{address}'")));
    for (address, why) in [
        ("127.0.0.1", "a loopback address, which every host has to itself"),
        ("::1", "a loopback address, which every host has to itself"),
        ("0.0.0.0", "no address of a host"),
        ("ff02::1", "no address of a host"),
    ] {
        assert_eq!(routed(address), format!("line 18, column 19: address: \"{address}\" is {why}"));
    }
    for address in ["fe80::1", "169.254.7.7"] {
        let why = "is of one link alone, and packets are not routed there";
        assert_eq!(routed(address), format!("line 18, column 19: address: {address} {why}"));
    }
}

#[test]
fn names_that_the_maps_would_cut_are_refused() {
    let long = "a".repeat(64);
    let text = mistake(&with("- name: web", &format!("- name: {long}")));
    assert_eq!(text, format!("line 7, column 11: services[].name: \"{long}\" has 64 bytes; 63 are the most"));
    assert!(mistake(&with("- name: web", "- name: a/b")).ends_with("services[].name: \"a/b\" has a slash or NUL"));
    good(&with("- name: web", &format!("- name: {}", "a".repeat(63))));
}

#[test]
fn an_address_of_a_family_that_no_cluster_ip_has_is_refused() {
    let service = |addresses: &str| {
        format!(
            "services: [{{name: a, {addresses}, loadBalancerIPs: [192.0.2.1, '2001:db8::1'], ports: [{{port: 80}}]}}]"
        )
    };
    let text = mistake(&service("clusterIPs: [10.0.0.1]"));
    assert!(text.contains("loadBalancerIPs: 2001:db8::1 is of IPv6, and clusterIPs name no IPv6 address"), "{text}");
    good(&service("clusterIPs: [10.0.0.1, 'fd00::1']"));
    good(&service("externalIPs: []"));
}

/// As many endpoints as the maps have room for, by default, and a health check that many services share.
#[test]
fn a_file_may_be_as_large_as_the_maps_and_name_one_thing_many_times() {
    use std::fmt::Write;
    let mut text = String::from(
        "services:\n- {name: first, clusterIPs: [10.0.0.1], ports: [{port: 80}], healthCheck: &hc {interval: 3s}}\n",
    );
    for service in 0..300 {
        let address = format!("10.1.{}.{}", service / 200, service % 200 + 1);
        write!(
            text,
            "- name: s{service}\n  clusterIPs: [{address}]\n  ports: [{{port: 80}}]\n  healthCheck: *hc\n  endpoints:\n"
        )
        .unwrap();
        for endpoint in 0..200 {
            writeln!(text, "  - {{address: 10.{}.{}.{}}}", 16 + service / 250, service % 250, endpoint + 1).unwrap();
        }
    }
    let endpoints: usize = good(&text).slices.iter().map(|slice| slice.endpoints.len()).sum();
    assert_eq!(endpoints, 60_000);
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
