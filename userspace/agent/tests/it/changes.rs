//! Endpoints come, go and rest while connections run.

use std::net::SocketAddr;
use std::time::Duration;

use weir_testbed::ask;
use weir_testbed::connection::LongConnection;
use weir_testbed::{Pod, wait};

use crate::harness::callers::{Caller, say};
use crate::harness::echo::{Echo, Member, Talk, echo, ready, slice};
use crate::harness::shared::Shared;
use crate::harness::{Cluster, SOON};

static CLUSTER: Shared = Shared::new(&[]);

/// How long a client may be left without an answer after the maps have changed.
const AT_ONCE: Duration = Duration::from_millis(500);

#[test]
fn a_connection_keeps_its_endpoint_while_others_come_and_go() {
    let Some(cluster) = CLUSTER.join("endpoints that come and go") else { return };
    let (own, others) = (cluster.world.node(1).pod(1), cluster.world.node(2).pods());
    let served = cluster.serve_echo(&echo("others", "NodePort"), &[Member::ready(&own)]);
    let connections = connections(&cluster, &served, &cluster.callers());
    let neighbour = cluster.world.node(1).pod(2);
    let steps: [&[&Pod]; 4] =
        [&[&own, &others[0]], &[&own, &neighbour, &others[0], &others[1]], &[&own, &others[1]], &[&own]];
    for pods in steps {
        let members: Vec<_> = pods.iter().map(|pod| Member::ready(pod)).collect();
        cluster.set_members(&served, &members);
        assert_go_on(&connections);
    }
    for (what, connection) in connections {
        let history = connection.close();
        assert_eq!((history.error, &history.answer.name), (None, &own.name()), "{what}");
        assert!(history.slowest < AT_ONCE, "{what}: one exchange took {:?}", history.slowest);
    }
}

#[test]
fn an_endpoint_that_rests_fails_or_drains_keeps_its_connections_and_gets_no_new_ones() {
    let Some(cluster) = CLUSTER.join("endpoints that drain") else { return };
    let (own, other) = (cluster.world.node(1).pod(1), cluster.world.node(2).pod(1));
    let served = cluster.serve_echo(&echo("draining", "NodePort"), &[Member::ready(&own)]);
    let connections = connections(&cluster, &served, &cluster.callers());
    for state in [Member::resting, Member::failing, Member::draining] {
        cluster.set_members(&served, &[state(&own), Member::ready(&other)]);
        assert_answers(&cluster, &served, &other);
        assert_go_on(&connections);
    }
    for (what, connection) in connections {
        let history = connection.close();
        assert_eq!((history.error, &history.answer.name), (None, &own.name()), "{what}");
    }
}

#[test]
fn endpoints_that_drain_get_new_connections_while_there_are_no_others() {
    let Some(cluster) = CLUSTER.join("nothing but endpoints that drain") else { return };
    let pod = cluster.world.node(1).pod(2);
    let served = cluster.serve_echo(&echo("last", "NodePort"), &[Member::draining(&pod)]);
    assert_answers(&cluster, &served, &pod);
    cluster.set_members(&served, &[Member::draining(&pod), Member::ready(&cluster.world.node(2).pod(2))]);
    assert_answers(&cluster, &served, &cluster.world.node(2).pod(2));
}

#[test]
fn a_connection_to_a_removed_endpoint_is_reset_at_once_and_others_go_on() {
    let Some(cluster) = CLUSTER.join("removed endpoints") else { return };
    let (gone, stays) = (cluster.world.node(1).pod(1), cluster.world.node(2).pod(1));
    let served = cluster.serve_echo(&echo("removed", "NodePort"), &[Member::ready(&gone)]);
    // A process's connection was translated when it was made: it has nothing more to do with the Service.
    let callers: Vec<_> = cluster.callers().into_iter().filter(|caller| !matches!(caller, Caller::Host(_))).collect();
    let broken = connections(&cluster, &served, &callers);
    cluster.set_members(&served, &[Member::ready(&stays)]);
    let whole = connections(&cluster, &served, &callers);
    for (what, connection) in broken {
        wait::until(&format!("the end of {what}"), AT_ONCE, || connection.history().error.is_some()).unwrap();
        let error = connection.close().error.unwrap();
        assert!(error.contains("reset by peer"), "{what}: {error}");
    }
    cluster.set_members(&served, &[Member::ready(&stays), Member::ready(&gone)]);
    assert_go_on(&whole);
    for (what, connection) in whole {
        assert_eq!(connection.close().error, None, "{what}");
    }
}

#[test]
fn a_udp_client_that_keeps_its_socket_is_answered_by_another_endpoint_when_its_own_goes() {
    let Some(cluster) = CLUSTER.join("removed endpoints of UDP clients") else { return };
    let pods = [cluster.world.node(1).pod(1), cluster.world.node(2).pod(1), cluster.world.node(1).pod(2)];
    let served = cluster.serve_echo(&echo("udp-moves", "NodePort"), &[Member::ready(&pods[0])]);
    let mut clients = Vec::new();
    for (caller, target) in ways(&cluster, &served, &cluster.callers(), Talk::Udp) {
        let socket = cluster.socket(&caller, target);
        // A process's connected socket is translated when it is connected; one that names its target each time is not.
        let named = matches!(caller, Caller::Host(_)).then_some(target);
        if named.is_none() {
            cluster.run_as(&caller, || socket.connect(target).unwrap());
        }
        clients.push((format!("{caller} to {target}"), socket, named));
    }
    for pod in &pods {
        cluster.set_members(&served, &[Member::ready(pod)]);
        for (what, socket, named) in &clients {
            for _ in 0..3 {
                assert_eq!(say(socket, *named).unwrap_or_else(|e| panic!("{what}: {e}")).name, pod.name(), "{what}");
            }
        }
    }
}

#[test]
fn a_service_scaled_to_nothing_and_back_answers_old_sockets_again() {
    let Some(cluster) = CLUSTER.join("scaling to nothing") else { return };
    let pods = cluster.world.node(1).pods();
    let served = cluster.serve_echo(&echo("scaled", "NodePort"), &ready(&pods));
    let mut clients = Vec::new();
    let callers: Vec<_> = cluster.callers().into_iter().filter(|caller| !matches!(caller, Caller::Host(_))).collect();
    for (caller, target) in ways(&cluster, &served, &callers, Talk::Udp) {
        let socket = cluster.socket(&caller, target);
        cluster.run_as(&caller, || socket.connect(target).unwrap());
        say(&socket, None).unwrap();
        clients.push((format!("{caller} to {target}"), socket));
    }
    cluster.set_members(&served, &[]);
    for (what, socket) in &clients {
        let error = say(socket, None).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{what}");
    }
    cluster.set_members(&served, &ready(&cluster.world.node(2).pods()));
    for (what, socket) in &clients {
        let answer = say(socket, None).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(answer.name.starts_with("node2-"), "{what}: {answer:?}");
    }
    for (caller, target) in ways(&cluster, &served, &cluster.callers(), Talk::Http) {
        cluster.run_as(&caller, || ask::http_ask(target)).unwrap_or_else(|e| panic!("{caller}: {e}"));
    }
}

#[test]
fn an_endpoint_that_moves_to_another_slice_keeps_its_connections() {
    let Some(cluster) = CLUSTER.join("endpoints that move between slices") else { return };
    let (mover, other) = (cluster.world.node(1).pod(1), cluster.world.node(2).pod(1));
    let all = [Member::ready(&mover), Member::ready(&other)];
    let served = cluster.serve_echo(&echo("slices", "NodePort"), &all[..1]);
    let connections = connections(&cluster, &served, &cluster.callers());
    let apply = |suffix: &str, members: &[Member]| {
        for (family, v6) in [("v4", false), ("v6", true)] {
            cluster.objects.apply(&slice("slices", &format!("{family}{suffix}"), v6, members)).unwrap();
        }
    };
    // For a moment it is in both, as its controller does it; the other one shows when that has been seen.
    apply("-second", &all);
    cluster.await_members(&served, &all);
    apply("", &[]);
    apply("-second", &all[..1]);
    cluster.await_members(&served, &all[..1]);
    assert_go_on(&connections);
    for (what, connection) in connections {
        let history = connection.close();
        assert_eq!((history.error, &history.answer.name), (None, &mover.name()), "{what}");
    }
}

/// From these callers to both cluster IPs, from outside also to both addresses of every node.
fn ways(cluster: &Cluster, served: &Echo, callers: &[Caller], talk: Talk) -> Vec<(Caller, SocketAddr)> {
    let mut ways = Vec::new();
    for caller in callers {
        ways.extend(served.cluster_ips(talk).map(|target| (caller.clone(), target)));
        if matches!(caller, Caller::Outside) {
            let node_ports = cluster.world.nodes().iter().flat_map(|node| served.node_ports(node, talk));
            ways.extend(node_ports.map(|target| (caller.clone(), target)));
        }
    }
    ways
}

fn connections(cluster: &Cluster, served: &Echo, callers: &[Caller]) -> Vec<(String, LongConnection)> {
    let ways = ways(cluster, served, callers, Talk::Tcp).into_iter();
    ways.map(|(caller, target)| (format!("{caller} to {target}"), cluster.connect(&caller, target))).collect()
}

fn assert_go_on(connections: &[(String, LongConnection)]) {
    for (what, connection) in connections {
        connection.await_exchanges(5, SOON).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// New connections of everybody are answered by one pod.
fn assert_answers(cluster: &Cluster, served: &Echo, pod: &Pod) {
    for talk in Talk::ALL {
        for (caller, target) in ways(cluster, served, &cluster.callers(), talk) {
            let answer = cluster.answer(&caller, talk, target);
            assert_eq!(answer.name, pod.name(), "{caller} at {talk:?} {target}");
        }
    }
}
