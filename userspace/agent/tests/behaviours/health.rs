//! What load balancers and kubelets ask kube-proxy for, asked here: health-check node ports, /healthz and /livez.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use crate::CLUSTER;
use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Member, Talk, spec};
use crate::harness::http::{self, Reply, ask_agent};
use crate::harness::matrix::{Kind, external};
use crate::harness::{Cluster, SOON};
use k8s_openapi::api::core::v1::{Node, Service, Taint};
use weir_core::tables::MAX_SOURCE_RANGES;
use weir_testbed::ask::PATIENCE;
use weir_testbed::{address, objects, wait};

/// A load balancer whose external policy is Local, with the health-check node port that the API server gives it.
fn balancer(name: &str, number: u8, policy: &str) -> Service {
    let mut service = Kind::LoadBalancer.service(name, number);
    spec(&mut service).external_traffic_policy = Some(policy.into());
    service
}

fn health_port(served: &Echo) -> u16 {
    served.service.spec.as_ref().unwrap().health_check_node_port.unwrap().try_into().unwrap()
}

/// Asks from outside.
fn ask(cluster: &Cluster, at: SocketAddr) -> Result<Reply, ErrorKind> {
    cluster.world.client().enter(|| http::get(at, "/")).map_err(|e| e.kind())
}

/// Asks a health-check node port at both addresses of a node; the answers must be alike.
fn check(cluster: &Cluster, node: u8, port: u16) -> Result<Reply, ErrorKind> {
    let [v4, v6] = cluster.world.node(node).address().both().map(|ip| ask(cluster, SocketAddr::new(ip, port)));
    let brief = |reply: &Result<Reply, ErrorKind>| reply.as_ref().map(|r| (r.status, r.body.clone())).map_err(|e| *e);
    assert_eq!(brief(&v4), brief(&v6), "IPv4 and IPv6 of node {node} differ");
    v4
}

/// What kube-proxy would answer, byte for byte.
fn body(name: &str, local: u32) -> String {
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\
         \"localEndpoints\": {local},\n\t\"serviceProxyHealthy\": true\n}}"
    )
}

/// Waits until a node's health-check port counts so many local endpoints, and checks the whole answer.
fn await_local(cluster: &Cluster, served: &Echo, node: u8, local: u32) {
    let port = health_port(served);
    let weight = local.to_string();
    let look = || {
        let reply = cluster.world.client().enter(|| {
            let ip = cluster.world.node(node).address().v4.into();
            http::get(SocketAddr::new(ip, port), "/").map_err(|e| e.to_string())
        });
        let reply = reply?;
        let counted = reply.header("X-Load-Balancing-Endpoint-Weight") == Some(&weight);
        if counted { Ok(()) } else { Err(format!("{reply:?}")) }
    };
    let what = format!("{local} local endpoints of {} at node {node} port {port}", served.name());
    let log = || cluster.agents[usize::from(node) - 1].log();
    wait::until_some(&what, SOON, look).unwrap_or_else(|e| panic!("{e}\n{}", log()));
    let reply = check(cluster, node, port).unwrap_or_else(|e| panic!("node {node} port {port}: {e}"));
    assert_eq!(reply.status, if local > 0 { 200 } else { 503 }, "{reply:?}");
    assert_eq!(reply.body, body(served.name(), local), "{reply:?}");
    assert_eq!(reply.header("Content-Type"), Some("application/json"), "{reply:?}");
    assert_eq!(reply.header("X-Content-Type-Options"), Some("nosniff"), "{reply:?}");
    assert_eq!(reply.header("X-Load-Balancing-Endpoint-Weight"), Some(&*weight), "{reply:?}");
}

/// Waits until nobody listens on a health-check port.
fn await_closed(cluster: &Cluster, port: u16) {
    for at in cluster.world.nodes().iter().flat_map(|node| node.address().both()).map(|ip| SocketAddr::new(ip, port)) {
        let closed = || match ask(cluster, at) {
            Err(ErrorKind::ConnectionRefused) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait::until_some(&format!("{at} to be closed"), SOON, closed).unwrap();
    }
}

#[test]
fn a_health_check_port_counts_the_nodes_ready_endpoints_as_they_come_and_go() {
    let Some(cluster) = CLUSTER.join("health-check node ports") else { return };
    let [near, far] = [cluster.world.node(1), cluster.world.node(2)];
    let all = [near.pod(1), near.pod(2), far.pod(1)];
    let members: Vec<_> = all.iter().map(Member::ready).collect();
    let served = cluster.serve_echo(&balancer("counted-health", 110, "Local"), &members);
    // Once for each endpoint, however many ports and families it has.
    for (node, local) in [(1, 2), (2, 1)] {
        await_local(&cluster, &served, node, local);
    }
    cluster.set_members(&served, &members[..1]);
    for (node, local) in [(1, 1), (2, 0)] {
        await_local(&cluster, &served, node, local);
    }
    cluster.set_members(&served, &[]);
    for node in [1, 2] {
        await_local(&cluster, &served, node, 0);
    }
}

#[test]
fn a_health_check_port_answers_get_on_any_path() {
    let Some(cluster) = CLUSTER.join("paths of health-check node ports") else { return };
    let pod = cluster.world.node(1).pod(1);
    let served = cluster.serve_echo(&balancer("paths", 111, "Local"), &[Member::ready(&pod)]);
    await_local(&cluster, &served, 1, 1);
    let server = SocketAddr::new(cluster.world.node(1).address().v4.into(), health_port(&served));
    for path in ["/", "/healthz", "/any/other?path=1"] {
        let reply = cluster.world.client().enter(|| http::get(server, path)).unwrap();
        assert_eq!((reply.status, reply.body.clone()), (200, body("paths", 1)), "{path}: {reply:?}");
    }
}

#[test]
fn terminating_endpoints_alone_fail_the_health_check_while_they_are_still_sent_traffic() {
    let Some(cluster) = CLUSTER.join("health checks of terminating endpoints") else { return };
    let pod = cluster.world.node(1).pod(1);
    let served = cluster.serve_echo(&balancer("terminating", 112, "Local"), &[Member::ready(&pod)]);
    await_local(&cluster, &served, 1, 1);
    cluster.set_members(&served, &[Member::draining(&pod)]);
    await_local(&cluster, &served, 1, 0);
    for talk in Talk::ALL {
        for target in served.node_ports(cluster.world.node(1), talk) {
            assert_eq!(cluster.answer(&Caller::Outside, talk, target).name, pod.name());
        }
    }
}

#[test]
fn a_health_check_port_opens_and_closes_with_the_policy_and_with_its_service() {
    /// Once it is closed the API server must not give it to somebody else's node port by itself.
    const PORT: u16 = 30_010;
    let Some(cluster) = CLUSTER.join("health checks that come and go") else { return };
    let pod = cluster.world.node(1).pod(1);
    let served = cluster.serve_echo(&balancer("switched-health", 113, "Cluster"), &[Member::ready(&pod)]);
    let port = served.service.spec.as_ref().unwrap().health_check_node_port.unwrap_or(0);
    assert_eq!(port, 0, "the API server gives no port to the policy Cluster");
    let mut local = balancer("switched-health", 113, "Local");
    spec(&mut local).health_check_node_port = Some(PORT.into());
    for _ in 0..2 {
        let served = cluster.serve_echo(&local, &[Member::ready(&pod)]);
        await_local(&cluster, &served, 1, 1);
        await_local(&cluster, &served, 2, 0);
        cluster.serve_echo(&balancer("switched-health", 113, "Cluster"), &[Member::ready(&pod)]);
        await_closed(&cluster, PORT);
    }
    let served = cluster.serve_echo(&local, &[Member::ready(&pod)]);
    await_local(&cluster, &served, 1, 1);
    cluster.objects.delete(&served.service).unwrap();
    await_closed(&cluster, PORT);
}

#[test]
fn a_health_check_port_that_is_taken_is_told_in_an_event_and_harms_nobody_else() {
    /// In the range of node ports, and clear of those that the API server gives out by itself.
    const TAKEN: u16 = 30_009;
    let Some(cluster) = CLUSTER.join("health-check ports that are taken") else { return };
    let squatters: Vec<_> = cluster.world.nodes().iter().map(|node| node.netns().enter(|| listen(TAKEN))).collect();
    let pod = cluster.world.node(1).pod(1);
    let mut service = balancer("unlucky", 114, "Local");
    spec(&mut service).health_check_node_port = Some(TAKEN.into());
    let unlucky = cluster.serve_echo(&service, &[Member::ready(&pod)]);
    let lucky = cluster.serve_echo(&balancer("lucky", 115, "Local"), &[Member::ready(&pod)]);
    await_local(&cluster, &lucky, 1, 1);
    let event = cluster.await_event(&unlucky.service, "FailedToStartServiceHealthcheck");
    let note = event.note.clone().unwrap_or_default();
    assert!(note.contains("default/unlucky") && note.contains(&TAKEN.to_string()), "{event:?}");
    assert_eq!(event.type_.as_deref(), Some("Warning"), "{event:?}");
    assert!(cluster.events_on("lucky").is_empty(), "{:?}", cluster.events_on("lucky"));
    for target in unlucky.node_ports(cluster.world.node(1), Talk::Tcp) {
        let answer = cluster.run_as(&Caller::Outside, || Talk::Tcp.ask(target, PATIENCE));
        assert_eq!(answer.unwrap_or_else(|e| panic!("{target}: {e}")).name, pod.name());
    }
    drop(squatters);
    cluster.objects.delete(&unlucky.service).unwrap();
}

#[test]
fn a_load_balancer_whose_addresses_are_closed_for_want_of_room_for_its_ranges_fails_its_health_check() {
    /// One more than a port may have.
    const TOO_MANY: usize = MAX_SOURCE_RANGES + 1;
    let Some(cluster) = CLUSTER.join("health checks of closed load balancers") else { return };
    let pod = cluster.world.node(1).pod(1);
    let with_ranges = |count: usize| {
        let mut service = balancer("closed", 116, "Local");
        let ranges = (1..count).map(|number| format!("192.0.{}.{}/32", number / 256, number % 256));
        let client = address::CLIENT.v4;
        spec(&mut service).load_balancer_source_ranges = Some(ranges.chain([format!("{client}/32")]).collect());
        service
    };
    let [balancer4, _] = external(116).map(|ip| SocketAddr::new(ip, Talk::Tcp.port()));
    let served = cluster.serve_echo(&with_ranges(3), &[Member::ready(&pod)]);
    await_local(&cluster, &served, 1, 1);
    cluster.objects.apply(&with_ranges(TOO_MANY)).unwrap();
    await_local(&cluster, &served, 1, 0);
    cluster.agents.iter().for_each(|agent| agent.await_frontend(balancer4.ip(), balancer4.port(), false));
    cluster.await_event(&served.service, "SourceRangesNotWritten");
    for target in served.node_ports(cluster.world.node(1), Talk::Tcp) {
        let answer = cluster.run_as(&Caller::Outside, || Talk::Tcp.ask(target, PATIENCE));
        assert_eq!(answer.unwrap_or_else(|e| panic!("{target}: {e}")).name, pod.name(), "the node port is not closed");
    }
    let served = cluster.serve_echo(&with_ranges(TOO_MANY - 1), &[Member::ready(&pod)]);
    await_local(&cluster, &served, 1, 1);
    let answer = cluster.run_as(&Caller::Outside, || Talk::Tcp.ask(balancer4, PATIENCE));
    assert_eq!(answer.unwrap().name, pod.name());
}

/// Takes a port on all addresses of the thread's namespace.
fn listen(port: u16) -> TcpListener {
    TcpListener::bind(("::", port)).unwrap()
}

#[test]
fn healthz_follows_the_nodes_eligibility_and_livez_does_not() {
    let Some(cluster) = CLUSTER.join("/healthz and /livez") else { return };
    let addresses = cluster.world.node(2).address().both();
    let node: Node = objects::node("node2", &addresses, Some("zone2"));
    let mut leaving = node.clone();
    leaving.spec.get_or_insert_default().taints = Some(vec![Taint {
        key: "ToBeDeletedByClusterAutoscaler".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    }]);
    for (object, eligible) in [(&node, true), (&leaving, false), (&node, true)] {
        cluster.objects.apply(object).unwrap();
        let status = if eligible { 200 } else { 503 };
        let right = || {
            let reply = ask_agent(cluster.world.node(2), 10256, "/healthz");
            if reply.status == status { Ok(reply) } else { Err(format!("{reply:?}")) }
        };
        let what = format!("/healthz with {status} of a node that is eligible: {eligible}");
        let reply = wait::until_some(&what, SOON, right).unwrap();
        let json: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(json["nodeEligible"], eligible, "{reply:?}");
        assert_eq!(json["healthy"], true, "the proxy itself is well: {reply:?}");
        for time in ["lastUpdated", "currentTime"] {
            assert!(json[time].as_str().is_some_and(is_rfc3339), "{time}: {reply:?}");
        }
        let livez = ask_agent(cluster.world.node(2), 10256, "/livez");
        assert_eq!(livez.status, 200, "{livez:?}");
        let json: serde_json::Value = serde_json::from_str(&livez.body).unwrap();
        assert!(json.get("nodeEligible").is_none(), "{livez:?}");
        // The other node is not concerned.
        assert_eq!(ask_agent(cluster.world.node(1), 10256, "/healthz").status, 200);
    }
}

/// Roughly; the shape is Go's.
fn is_rfc3339(text: &str) -> bool {
    text.len() >= "2006-01-02T15:04:05Z".len() && text.as_bytes()[10] == b'T'
}
