//! `weir trace` on a node that serves: what it says, and that nothing of it stays.

use std::collections::BTreeMap;

use serde_json::Value;
use weir_datapath::{RawEntry, View};

use crate::node::serving::Serving;
use crate::node::{Pins, text};

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
