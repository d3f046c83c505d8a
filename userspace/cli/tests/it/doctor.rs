//! `weir doctor` in network namespaces: one that serves, one with what kube-proxy leaves behind; and with what the agent's pod has
//! of rights.

use std::process::Command;

use serde_json::Value;
use weir_testbed::{Accept, World};

use crate::node::serving::Serving;
use crate::node::{Pins, text};

fn checks(output: &std::process::Output) -> Vec<(String, String, String)> {
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!(document["kind"], "Diagnosis");
    let field = |check: &Value, name: &str| check[name].as_str().unwrap_or_default().to_owned();
    let checks = document["checks"].as_array().unwrap();
    checks.iter().map(|check| (field(check, "what"), field(check, "state"), field(check, "fix"))).collect()
}

#[test]
fn a_node_that_serves_has_programs_pins_and_links_and_lacks_an_agent() {
    let Some(pins) = Pins::new("doctor") else { return };
    let serving = Serving::leave_behind(&pins, true);
    let output = serving.weir(&pins, &["doctor", "-o", "json", "--socket", "/nonexistent/agent.sock"]);
    assert_eq!(output.status.code(), Some(1), "no agent runs: {output:?}");
    let checks = checks(&output);
    let state = |what: &str| {
        let found = checks.iter().find(|(name, _, _)| name == what);
        found.map_or_else(|| panic!("no {what} in {checks:#?}"), |(_, state, _)| state.as_str())
    };
    for what in
        ["programs", "capabilities", "bpffs", "net.ipv4.ip_forward", "kube-proxy", "other programs", "pins", "attached"]
    {
        assert_eq!(state(what), "ok", "{what}: {checks:#?}");
    }
    assert_eq!((state("agent"), state("xdp eth0")), ("fail", "ok"));
    let quiet = serving.weir(&pins, &["doctor", "--quiet", "--no-load", "--socket", "/nonexistent/agent.sock"]);
    assert!(!text(&quiet.stdout).contains("\nok "), "{quiet:?}");
    assert!(text(&quiet.stdout).contains("systemctl start weir-agent"), "{quiet:?}");
}

/// The fix of a check in the node's namespace that is not ok.
fn fix_of(serving: &Serving, pins: &Pins, what: &str) -> Option<String> {
    let output = serving.weir(pins, &["doctor", "--no-load", "-o", "json", "--socket", "/nonexistent/agent.sock"]);
    let found = checks(&output).into_iter().find(|(name, _, _)| name == what);
    found.filter(|(_, state, _)| state != "ok").map(|(_, _, fix)| fix)
}

/// As a CNI's that was attached later; or was there before, where Weir has no links.
#[test]
fn a_program_that_runs_before_weirs_is_told() {
    let what = "doctor-before";
    let Some(pins) = Pins::new(what) else { return };
    for tcx in [true, false] {
        let serving = Serving::leave_behind(&pins, tcx);
        let told = || fix_of(&serving, &pins, "programs before Weir's");
        let Some(last) = Accept::last(what, serving.netns(), "eth0").unwrap() else { return };
        assert_eq!(told().is_some(), !tcx, "of a filter all that has links is before");
        drop(last);
        assert_eq!(told(), None);
        let _first = Accept::first(what, serving.netns(), "eth0").unwrap();
        assert_eq!(told().as_deref(), Some("bpftool net show"));
    }
}

#[test]
fn an_interface_that_forwards_nothing_is_told() {
    let Some(pins) = Pins::new("doctor-forwarding") else { return };
    let serving = Serving::leave_behind(&pins, true);
    for name in ["net.ipv4.conf.eth0.forwarding", "net.ipv6.conf.eth0.forwarding"] {
        let what = format!("{} forwarding eth0", &name[4..8]);
        assert_eq!(fix_of(&serving, &pins, &what), None);
        let set = serving.run("sysctl").args(["-qw", &format!("{name}=0")]).status().unwrap();
        assert!(set.success());
        assert_eq!(fix_of(&serving, &pins, &what), Some(format!("sysctl -w {name}=1")));
    }
}

#[test]
fn in_the_agents_pod_what_cannot_be_seen_is_no_fault_and_fixes_are_kubectls() {
    let Some(pins) = Pins::new("doctor-pod") else { return };
    let serving = Serving::leave_behind(&pins, true);
    let in_pod = |args: &[&str]| {
        let mut command = serving.run("setpriv");
        // As the chart has it.
        command.args(["--bounding-set=-all,+bpf,+net_admin,+perfmon", "--inh-caps=-all", "--no-new-privs"]);
        command.arg(env!("CARGO_BIN_EXE_weir")).args(args).args(["--socket", "/nonexistent/agent.sock"]);
        command.env("WEIR_PIN_DIR", &pins.0);
        command.env("KUBERNETES_SERVICE_HOST", "10.96.0.1").env("NODE_NAME", "edge-1").output().unwrap()
    };
    let output = in_pod(&["doctor", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "no agent runs: {output:?}");
    let checks = checks(&output);
    let check = |what: &str| checks.iter().find(|(name, _, _)| name == what).unwrap_or_else(|| panic!("{checks:#?}"));
    for what in ["programs", "capabilities", "bpffs", "kube-proxy", "other programs", "pins", "attached", "xdp eth0"] {
        assert_eq!(check(what).1, "ok", "{what}: {checks:#?}");
    }
    let (_, state, fix) = check("agent");
    assert_eq!(state, "fail");
    assert!(fix.starts_with("kubectl -n ") && fix.ends_with("--field-selector spec.nodeName=edge-1"), "{fix}");
    let here = |fix: &str| fix.is_empty() || fix.starts_with("kubectl ") || fix.starts_with("on the node: ");
    assert!(checks.iter().all(|(_, _, fix)| here(fix)), "{checks:#?}");
    let trace = in_pod(&["trace", "192.0.2.77", "10.96.0.20:80"]);
    assert_eq!(trace.status.code(), Some(0), "{trace:?}");
}

/// kube-proxy's table of its nftables mode, and chains of its iptables mode beside one of the kubelet.
const PLANTED: &str = "table ip kube-proxy { chain services { }; }; table ip6 kube-proxy { }; \
    table ip nat { chain KUBE-SERVICES { }; chain KUBE-SEP-ABC { }; chain KUBE-KUBELET-CANARY { }; }";

#[test]
fn what_kube_proxy_left_behind_is_found_and_its_fix_removes_it() {
    let Some(pins) = Pins::new("doctor-leftovers") else { return };
    if Command::new("nft").arg("--version").output().is_err() {
        eprintln!("SKIPPED: doctor-leftovers: there is no nft; apt-get install nftables");
        return;
    }
    World::sweep().unwrap();
    let world = World::builder().nodes(1).pods_per_node(1).build().unwrap();
    let node = world.node(1).netns();
    let planted = node.command("nft").arg(PLANTED).output().unwrap();
    assert!(planted.status.success(), "{planted:?}");
    let doctor = || {
        let args = ["doctor", "--no-load", "-o", "json", "--socket", "/nonexistent/agent.sock"];
        let mut command = node.command(env!("CARGO_BIN_EXE_weir"));
        command.args(args).env("WEIR_PIN_DIR", &pins.0).env_remove("KUBERNETES_SERVICE_HOST");
        checks(&command.output().unwrap())
    };
    let fixes = |checks: Vec<(String, String, String)>| -> Vec<_> {
        checks
            .into_iter()
            .filter(|(what, state, _)| what == "kube-proxy" && state == "warn")
            .map(|(_, _, fix)| fix)
            .collect()
    };
    let found = fixes(doctor());
    assert_eq!(found, ["nft delete table ip kube-proxy", "nft delete table ip6 kube-proxy", "kube-proxy --cleanup"]);
    for fix in found.iter().filter(|fix| fix.starts_with("nft")) {
        let mended = node.command("sh").args(["-c", fix]).output().unwrap();
        assert!(mended.status.success(), "{mended:?}");
    }
    assert_eq!(fixes(doctor()), ["kube-proxy --cleanup"], "the kubelet's chain is no reason");
}
