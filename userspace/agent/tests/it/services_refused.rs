//! Services that nobody can answer: refused at once where there is no endpoint at all, dropped where a policy allows none.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_testbed::ask::{Answer, PATIENCE};

use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Talk, echo, ready, spec};
use crate::harness::shared::Shared;
use crate::harness::{self, Cluster};

static CLUSTER: Shared = Shared::new(&[]);

/// What is refused is refused within this time.
const AT_ONCE: Duration = Duration::from_millis(500);
/// What is not answered within this time is dropped.
const SILENCE: Duration = Duration::from_millis(300);

#[test]
fn a_service_refuses_while_it_has_no_endpoints_and_answers_while_it_has() {
    let Some(cluster) = CLUSTER.join("services without endpoints") else { return };
    let service = echo("empty", "NodePort");
    let served = cluster.serve_echo(&service, &[]);
    assert_refused(&cluster, &served);
    cluster.set_members(&served, &ready(&cluster.world.node(1).pods()));
    assert_answered(&cluster, &served);
    cluster.set_members(&served, &[]);
    assert_refused(&cluster, &served);
    for suffix in ["v4", "v6"] {
        cluster.objects.delete(&harness::echo::slice("empty", suffix, suffix == "v6", &[])).unwrap();
    }
    assert_refused(&cluster, &served);
    cluster.set_members(&served, &ready(&cluster.world.node(2).pods()));
    assert_answered(&cluster, &served);
}

#[test]
fn refusals_are_counted() {
    let Some(cluster) = CLUSTER.join("counters of refusals") else { return };
    let served = cluster.serve_echo(&echo("counted", "ClusterIP"), &[]);
    for v6 in [false, true] {
        for talk in [Talk::Tcp, Talk::Udp] {
            let agent = &cluster.agents[0];
            let before = agent.flows_of(&served, talk, v6).rejected;
            for caller in [Caller::Pod(cluster.world.node(1).pod(1)), Caller::Host(1), Caller::Outside] {
                let target = served.cluster_ips(talk)[usize::from(v6)];
                cluster.run_as(&caller, || talk.ask(target, PATIENCE)).unwrap_err();
            }
            assert_eq!(agent.flows_of(&served, talk, v6).rejected, before + 3, "{talk:?}, IPv6 {v6}");
        }
    }
}

#[test]
fn an_internal_policy_of_local_drops_on_nodes_without_endpoints() {
    let Some(cluster) = CLUSTER.join("internal traffic policy") else { return };
    let mut service = echo("internal-local", "NodePort");
    spec(&mut service).internal_traffic_policy = Some("Local".into());
    let served = cluster.serve_echo(&service, &ready(&cluster.world.node(2).pods()));
    for talk in Talk::ALL {
        for target in served.cluster_ips(talk) {
            for caller in [Caller::Pod(cluster.world.node(1).pod(1)), Caller::Outside] {
                assert_kind(&cluster, &caller, talk, target, ErrorKind::TimedOut);
            }
            // A process is told, where its packets would be dropped.
            assert_kind(&cluster, &Caller::Host(1), talk, target, ErrorKind::HostUnreachable);
            for caller in [Caller::Pod(cluster.world.node(2).pod(1)), Caller::Host(2)] {
                assert_on_node_2(&cluster, &caller, talk, target);
            }
        }
        // It says nothing about node ports.
        for target in served.node_ports(cluster.world.node(1), talk) {
            assert_on_node_2(&cluster, &Caller::Outside, talk, target);
        }
    }
}

#[test]
fn an_external_policy_of_local_drops_from_outside_and_lets_the_inside_through() {
    let Some(cluster) = CLUSTER.join("external traffic policy") else { return };
    let mut service = echo("external-local", "NodePort");
    spec(&mut service).external_traffic_policy = Some("Local".into());
    let served = cluster.serve_echo(&service, &ready(&cluster.world.node(2).pods()));
    let inside = [Caller::Pod(cluster.world.node(1).pod(1)), Caller::Host(1)];
    for talk in Talk::ALL {
        for target in served.node_ports(cluster.world.node(1), talk) {
            assert_kind(&cluster, &Caller::Outside, talk, target, ErrorKind::TimedOut);
            for caller in &inside {
                assert_on_node_2(&cluster, caller, talk, target);
            }
        }
        for target in served.node_ports(cluster.world.node(2), talk) {
            let answer = assert_on_node_2(&cluster, &Caller::Outside, talk, target);
            assert_eq!(answer.client.ip(), weir_testbed::address::CLIENT.like(target.ip()));
        }
        for target in served.cluster_ips(talk) {
            assert_on_node_2(&cluster, &Caller::Outside, talk, target);
        }
    }
}

/// Everybody is told at once, at every address.
fn assert_refused(cluster: &Cluster, served: &Echo) {
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.everywhere(&cluster.world, talk) {
                assert_kind(cluster, &caller, talk, target, ErrorKind::ConnectionRefused);
            }
        }
    }
}

fn assert_answered(cluster: &Cluster, served: &Echo) {
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.everywhere(&cluster.world, talk) {
                cluster.answer(&caller, talk, target);
            }
        }
    }
}

fn assert_on_node_2(cluster: &Cluster, caller: &Caller, talk: Talk, target: SocketAddr) -> Answer {
    let answer = cluster.answer(caller, talk, target);
    assert!(answer.name.starts_with("node2-"), "{caller} at {talk:?} {target}: {answer:?}");
    answer
}

/// Asks, and expects a failure of this kind: a time-out after the whole time, everything else at once.
fn assert_kind(cluster: &Cluster, caller: &Caller, talk: Talk, target: SocketAddr, kind: ErrorKind) {
    let limit = if kind == ErrorKind::TimedOut { SILENCE } else { PATIENCE };
    let (answer, took) = cluster.run_as(caller, || {
        let start = Instant::now();
        (talk.ask(target, limit), start.elapsed())
    });
    let failure = answer.map_err(|e| e.io_kind());
    assert_eq!(failure, Err(Some(kind)), "{caller} at {talk:?} {target} after {took:?}");
    assert!(kind == ErrorKind::TimedOut || took < AT_ONCE, "{caller} at {talk:?} {target}: {kind} after {took:?}");
}
