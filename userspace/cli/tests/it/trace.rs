//! `weir trace` on a node that serves: what it says, and that nothing of it stays.

use std::collections::BTreeMap;

use serde_json::Value;
use weir_datapath::{RawEntry, View};

use crate::node::serving::Serving;
use crate::node::{Pins, fill, text};

/// All maps but the counters of packets, which the namespaces' own multicast moves.
fn maps(pins: &Pins) -> BTreeMap<&'static str, Vec<RawEntry>> {
    let view = View::open(pins.dir()).unwrap();
    let all = view.counters().maps().unwrap();
    let entries = |name: &'static str| {
        let mut entries = view.raw(name).unwrap().unwrap();
        entries.sort();
        (name, entries)
    };
    all.iter().map(|map| map.name).filter(|name| *name != "counters").map(entries).collect()
}

fn trace(serving: &Serving, pins: &Pins, args: &[&str]) -> (Option<i32>, Value) {
    let output = serving.weir(pins, &[&["trace"], args, &["-o", "json"]].concat());
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {output:?}"));
    (output.status.code(), document)
}

#[test]
fn a_trace_says_what_becomes_of_a_packet_and_leaves_nothing_behind() {
    let Some(pins) = Pins::new("trace") else { return };
    let serving = Serving::leave_behind(&pins, true);
    let before = maps(&pins);
    for (client, to, pod) in [
        ("192.0.2.77", "10.96.0.20:80/tcp", weir_testbed::address::pod(1, 1).v4.to_string()),
        ("2001:db8::77", "[fd00:96::20]:80/tcp", format!("[{}]", weir_testbed::address::pod(1, 1).v6)),
    ] {
        let (code, trace) = trace(&serving, &pins, &[client, to]);
        assert_eq!((code, &trace["kind"], &trace["interface"]), (Some(0), &"Trace".into(), &"eth0".into()), "{trace}");
        let last = trace["steps"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["verdict"], &last["reason"]), (&"translated".into(), &"to_local".into()), "{trace}");
        assert_eq!(last["asAttached"], true, "{trace}");
        assert_eq!(last["packet"]["destination"], format!("{pod}:8080"), "{trace}");
        assert_eq!(trace["backend"]["address"], format!("{pod}:8080"));
        assert_eq!((&trace["service"]["name"], &trace["service"]["class"]), (&"web".into(), &"internal".into()));
        assert!(trace["because"][0].as_str().unwrap().contains("100 % go to this endpoint"), "{trace}");
    }
    let changed: Vec<_> = maps(&pins).into_iter().filter(|(name, entries)| before[name] != *entries).collect();
    assert_eq!(changed, []);
    assert!(serving.answers().iter().all(Option::is_some), "real clients are served as before");
}

#[test]
fn what_is_refused_or_not_ours_is_exit_code_1_with_the_reason() {
    let Some(pins) = Pins::new("trace-no") else { return };
    let serving = Serving::leave_behind(&pins, true);
    let reason = |args: &[&str]| {
        let (code, trace) = trace(&serving, &pins, args);
        let last = trace["steps"].as_array().unwrap().last().unwrap().clone();
        (code, last["verdict"].as_str().unwrap().to_owned(), last["reason"].as_str().unwrap().to_owned())
    };
    let expected = |verdict: &str, reason: &str| (Some(1), verdict.to_owned(), reason.to_owned());
    assert_eq!(reason(&["192.0.2.77", "10.96.0.20:81/tcp"]), expected("answered", "unused_port"));
    assert_eq!(reason(&["192.0.2.77", "10.96.0.20:80/udp"]), expected("answered", "unused_port"));
    assert_eq!(reason(&["192.0.2.77", "10.96.0.20:80/sctp", "--hook", "nic_in"]), expected("answered", "unused_port"));
    assert_eq!(reason(&["192.0.2.77", "198.51.100.9:80"]), expected("untouched", "no_frontend"));
}

#[test]
fn of_one_client_it_says_what_source_ranges_and_the_traffic_policy_mean_for_it() {
    let Some(pins) = Pins::new("trace-client") else { return };
    drop(fill(&pins));
    let from = |client: &str| {
        let args = ["trace", client, "203.0.113.7:80", "--interface", "lo", "--hook", "nic_in", "-o", "json"];
        let output = pins.weir(&args);
        let trace: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let because: Vec<_> = trace["because"].as_array().unwrap().iter().map(|why| why.as_str().unwrap()).collect();
        (output.status.code(), because.join("; "), trace)
    };
    let (code, because, trace) = from("198.51.100.9");
    assert_eq!((code, &trace["service"]["class"]), (Some(0), &"external".into()), "{trace}");
    assert_eq!(trace["backend"]["address"], "10.244.1.5:8080", "the policy is Local: {trace}");
    assert!(because.contains("of new external flows 0 % leave the node, and 100 % go to this endpoint"), "{because}");
    let (code, because, trace) = from("192.0.2.77");
    assert_eq!((code, &trace["steps"][0]["reason"]), (Some(1), &"source_range".into()), "{trace}");
    assert!(because.contains("load balancer addresses admit clients of 198.51.100.0/24 alone"), "{because}");
}

#[test]
fn the_nodes_own_address_and_mixed_families_are_usage_errors() {
    let Some(pins) = Pins::new("trace-wrong") else { return };
    let serving = Serving::leave_behind(&pins, true);
    let node = weir_testbed::address::node(1).v4.to_string();
    for (args, said) in [
        (vec!["trace", &node, "10.96.0.20:80"], "socket hooks"),
        (vec!["trace", "192.0.2.77", "[fd00:96::20]:80"], "different families"),
        (vec!["trace", "192.0.2.77", "10.96.0.20:80/icmp"], "tcp, udp or sctp"),
        (vec!["trace", "192.0.2.77", "10.96.0.20:80", "--interface", "eth9"], "no interface eth9"),
    ] {
        let output = serving.weir(&pins, &args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(said), "{output:?}");
    }
}
