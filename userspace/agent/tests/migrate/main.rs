//! `weir migrate`: a node from real kube-proxy to Weir and back, under traffic that must not notice.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../harness/mod.rs"]
mod harness;

mod bed;

use std::time::Duration;

use bed::{Migration, assert_answered};
use harness::echo::Talk;
use harness::traffic::Traffic;
use weir_testbed::kube_proxy::Mode;
use weir_testbed::wait;

/// Until the kernel has forgotten connections that are over.
const CONNECTIONS_END: Duration = Duration::from_secs(30);

fn there_and_back(mode: Mode) {
    let what = format!("a node that moves from kube-proxy ({}) to Weir and back", mode.name());
    let Some(mut node) = Migration::start(&what, mode) else { return };
    let others = node.rules_of_others();
    assert!(
        others.matches("OTHER").count() >= 4 && others.contains("KUBE-FIREWALL") && others.contains("4444"),
        "{others}"
    );
    node.await_answers();

    // Everything begins with kube-proxy.
    let (mut traffic, talks) = (Traffic::default(), node.talks());
    node.each_client(Talk::Http, |name, client, target| traffic.stream(name, client, target));
    node.each_client(Talk::Udp, |name, client, target| traffic.datagrams(name, client, target));
    let theirs = node.connections();
    theirs.goes_on();
    let (_, steps) = node.migrate(&["--dry-run"]);
    assert!(steps[1].1.starts_with("next: have Weir take new connections"), "{steps:?}");
    assert_eq!(node.new_flows(), 0, "nothing is Weir's yet");

    // Weir takes over beside it, and kube-proxy is asked to go.
    let cause = node.migrate_until("stop-kube-proxy", &[]);
    assert!(cause.contains("kube-proxy runs"), "{cause}");
    node.await_new_flows();
    node.await_ports_that_are_not_kube_proxys();
    let weirs = node.connections();
    theirs.goes_on();
    node.restart_agent();
    theirs.goes_on();

    // Its rules go when it has gone; its connections go on without them.
    node.kube_proxy.as_mut().unwrap().leave().unwrap();
    match mode {
        Mode::Nftables | Mode::Iptables => {
            let cause = node.migrate_until("finish", &[]);
            assert!(cause.contains("connections that kube-proxy has begun go on"), "{cause}");
            let left = node.left_overs();
            let is_keeper = |line: &String| line.to_lowercase().contains("weir-migration");
            assert!(!left.is_empty() && left.iter().all(is_keeper), "{left:?}");
        }
        // Its virtual servers would take these connections along.
        Mode::Ipvs => {
            let cause = node.migrate_until("remove-rules", &[]);
            assert!(cause.contains("connections that kube-proxy has begun go on by IPVS"), "{cause}");
            assert!(node.left_overs().iter().any(|line| line.starts_with("-A -t")), "its virtual servers stay");
        }
    }
    assert_eq!(node.rules_of_others(), others);
    theirs.goes_on();
    weirs.goes_on();
    theirs.unharmed_by("the way to Weir");
    // Where Weir gave these their endpoint again, connection tracking gave them another port: they need it as long as they last.
    assert_answered(talks);
    node.migrate_to_the_end(&[&format!("--wait={}", wait::patience(CONNECTIONS_END).as_secs())]);
    let talks = node.talks();
    assert_eq!(node.left_overs(), Vec::<String>::new());
    assert_eq!(node.rules_of_others(), others);
    weirs.goes_on();

    // Back: not before kube-proxy has all of it.
    let cause = node.migrate_until("rules-complete", &["--rollback"]);
    assert!(cause.contains("start it"), "{cause}");
    node.start_kube_proxy();
    let cause = node.migrate_until("drained", &["--rollback"]);
    assert!(cause.contains("flows that Weir has begun go on"), "{cause}");
    let (before, theirs) = (node.new_flows(), node.connections());
    theirs.goes_on();
    weirs.goes_on();
    assert_eq!(node.new_flows(), before, "new flows are kube-proxy's");
    node.restart_agent();
    weirs.goes_on();
    weirs.unharmed_by("the whole way there, and the way back");
    let cause = node.migrate_until("stop-agent", &["--rollback"]);
    assert!(cause.contains("take it off this node"), "{cause}");
    node.agent().stop();
    node.migrate_to_the_end(&["--rollback"]);
    assert!(!node.cluster.agents[0].pins.exists());
    theirs.goes_on();
    assert_eq!(node.rules_of_others(), others);

    theirs.unharmed_by("the end of the way back");
    traffic.unharmed_by(&what);
    assert_answered(talks);
}

#[test]
fn a_node_moves_from_kube_proxys_nftables_to_weir_and_back_without_a_failed_request() {
    there_and_back(Mode::Nftables);
}

#[test]
fn a_node_moves_from_kube_proxys_iptables_to_weir_and_back_without_a_failed_request() {
    there_and_back(Mode::Iptables);
}

#[test]
fn a_node_moves_from_kube_proxys_ipvs_to_weir_and_back_without_a_failed_request() {
    there_and_back(Mode::Ipvs);
}
