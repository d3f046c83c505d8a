//! `sessionAffinity: ClientIP`: a client keeps its endpoint, at all addresses of a service port, for so many seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::Cluster;
use crate::harness::callers::Caller;
use crate::harness::clients::{any, ask_from, fresh_port};
use crate::harness::echo::{Echo, Member, Talk, echo, ready, spec};
use crate::harness::matrix::{Kind, external};
use crate::harness::shared::Shared;
use crate::harness::standalone::{self, Standalone};
use k8s_openapi::api::core::v1::{ClientIPConfig, Service, SessionAffinityConfig};
use weir_testbed::address::Pair;
use weir_testbed::{Node, Pod, address};

/// Without affinity each new connection goes to any of the endpoints, wherever they are.
static CLUSTER: Shared = Shared::new(&["--spread=random"]);

/// No test takes as many seconds.
const LONG: i32 = 600;
/// Connections in a look: that all of them meet the same one of four endpoints is one chance in four million.
const COUNT: usize = 12;

#[test]
fn a_client_keeps_its_endpoint_at_all_addresses_of_a_service_port() {
    let Some(cluster) = CLUSTER.join("session affinity") else { return };
    let service = sticky(Kind::LoadBalancer.service("sticky", 10), Some(LONG));
    let served = serve(&cluster, &service, &everywhere(&cluster));
    let mut own_choice = false;
    for caller in cluster.callers() {
        for family in [0, 1] {
            let mut of_ports = BTreeSet::new();
            for talk in Talk::ALL {
                let mut seen = BTreeMap::new();
                for target in addresses(&cluster, &served, &caller, 10, talk, family) {
                    seen.insert(target, unique(cluster.names(&caller, talk, target, COUNT / 2)));
                }
                let names: BTreeSet<_> = seen.values().flatten().cloned().collect();
                assert_eq!(names.len(), 1, "{caller} got several endpoints of one port: {seen:?}");
                of_ports.extend(names);
            }
            own_choice |= of_ports.len() > 1;
        }
    }
    assert!(own_choice, "no client has different endpoints at different ports: the ports share their affinity");
}

#[test]
fn affinity_that_is_switched_on_and_off_takes_effect_on_a_live_service() {
    let Some(cluster) = CLUSTER.join("switching session affinity") else { return };
    let pods = everywhere(&cluster);
    let served = serve(&cluster, &sticky(echo("switched", "NodePort"), None), &pods);
    assert_spread(&cluster, &served, true);
    for round in 0..2 {
        serve(&cluster, &sticky(echo("switched", "NodePort"), Some(LONG)), &pods);
        assert_spread(&cluster, &served, false);
        serve(&cluster, &sticky(echo("switched", "NodePort"), None), &pods);
        assert_spread(&cluster, &served, true);
        println!("round {round}: sticky and spread again");
    }
}

#[test]
fn a_client_keeps_its_endpoint_while_others_are_added_and_removed() {
    let Some(cluster) = CLUSTER.join("session affinity while endpoints come and go") else { return };
    let pods: Vec<_> = everywhere(&cluster);
    let served = serve(&cluster, &sticky(echo("grows", "NodePort"), Some(LONG)), &pods[..1]);
    let first = visits(&cluster, &served);
    assert!(first.values().all(|name| *name == pods[0].name()), "{first:?}");
    for count in [2, 4, 3, 2] {
        cluster.set_members(&served, &ready(&pods[..count]));
        assert_eq!(visits(&cluster, &served), first, "with {count} endpoints");
    }
}

#[test]
fn an_endpoint_that_goes_or_gets_unready_is_replaced_at_once_and_does_not_come_back() {
    let Some(cluster) = CLUSTER.join("session affinity to endpoints that go") else { return };
    let pods = everywhere(&cluster);
    let [own, other, third] = [0, 2, 3].map(|index| pods[index].clone());
    let served = serve(&cluster, &sticky(echo("replaced", "NodePort"), Some(LONG)), std::slice::from_ref(&own));
    for leave in [None, Some(Member::resting as fn(&Pod) -> Member), Some(Member::failing), Some(Member::draining)] {
        cluster.set_members(&served, &[Member::ready(&own)]);
        let before = visits(&cluster, &served);
        assert!(before.values().all(|name| *name == own.name()), "{before:?}");
        let gone = leave.map(|state| state(&own));
        let what = gone.as_ref().map_or("removed".to_owned(), |member| format!("{member:?}"));
        let rest = [Member::ready(&other), Member::ready(&third)];
        cluster.set_members(&served, &rest.iter().chain(&gone).cloned().collect::<Vec<_>>());
        let after = visits(&cluster, &served);
        assert!(after.values().all(|name| *name != own.name()), "{} {what}: {after:?}", own.name());
        cluster.set_members(&served, &[Member::ready(&own), rest[0].clone(), rest[1].clone()]);
        assert_eq!(visits(&cluster, &served), after, "{} is back after it was {what}", own.name());
    }
}

#[test]
fn with_an_external_policy_of_local_affinity_finds_local_endpoints_only() {
    let Some(cluster) = CLUSTER.join("session affinity under a policy of Local") else { return };
    let mut service = sticky(echo("sticky-local", "NodePort"), Some(LONG));
    spec(&mut service).external_traffic_policy = Some("Local".into());
    let served = serve(&cluster, &service, &everywhere(&cluster));
    let (mut kept, mut moved) = (0, 0);
    for client in cluster.more_clients(131, 12) {
        for (talk, family) in [(Talk::Tcp, 0), (Talk::Tcp, 1), (Talk::Udp, 0), (Talk::Udp, 1)] {
            let (cluster_ip, node_port) =
                (served.cluster_ips(talk)[family], node_port(&cluster, &served, talk, family));
            let ask = |target| cluster.name_seen_from(client.like(cluster_ip.ip()), talk, target);
            // Nothing forbids the other node's endpoints here.
            let inside = ask(cluster_ip);
            let outside = ask(node_port);
            let what = format!("{client:?}, {talk:?}: {inside} at {cluster_ip}, {outside} at {node_port}");
            assert!(outside.starts_with("node1-"), "{what}");
            if inside.starts_with("node1-") {
                assert_eq!(inside, outside, "{what}");
                kept += 1;
            } else {
                moved += 1;
            }
            assert_eq!([ask(node_port), ask(cluster_ip)], [outside.clone(), outside], "{what}");
        }
    }
    assert!(kept > 0 && moved > 0, "{kept} local choices were kept, {moved} remote ones replaced");
}

/// In the test of time.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The datapath's clock has ticks of about a second; both ends of a span may be cut.
fn two_ticks() -> Duration {
    weir_datapath::tick_clock().unwrap().duration(2)
}

#[test]
fn affinity_lasts_from_one_new_connection_to_the_next_and_ends_when_the_client_stays_away_for_the_time_out() {
    /// Between two looks at the clock; a few of them make a tick.
    const STEP: Duration = Duration::from_millis(250);
    let Some(cluster) = CLUSTER.join("the end of session affinity") else { return };
    let service = sticky(echo("brief", "NodePort"), Some(3));
    let served = serve(&cluster, &service, &everywhere(&cluster));
    let [mut regular, mut gone] = [101, 106].map(|first| Visitors::come(&cluster, &served, first));
    // They come at different times within a tick, and again a little before their time is over.
    let mut late = Vec::new();
    let mut in_time = 0;
    while gone.last.elapsed() < TIMEOUT + two_ticks() {
        // Nothing but time can be awaited.
        thread::sleep(STEP);
        if late.len() < 4 {
            late.push(Visitors::come(&cluster, &served, 111 + 5 * u8::try_from(late.len()).unwrap()));
        }
        if regular.last.elapsed() > TIMEOUT / 3 {
            in_time += usize::from(regular.assert_stays(&cluster, &served));
        }
        for group in late.iter_mut().filter(|group| group.last.elapsed() > TIMEOUT - 2 * STEP) {
            in_time += usize::from(group.assert_stays(&cluster, &served));
        }
    }
    let endpoints: BTreeSet<_> = late.iter().flat_map(|group| group.endpoints.values().cloned()).collect();
    assert!(endpoints.len() > 2, "clients of many addresses got only {endpoints:?}");
    let moved = gone.visit(&cluster, &served);
    let (moves, of) = (moved.len(), gone.endpoints.len());
    assert!(moves > of / 3, "only {moves} of {of} clients that stayed away have other endpoints now: {moved:?}");
    assert!(in_time > 4, "this machine was too slow: only {in_time} visits were in time");
}

/// Clients outside, each with the endpoint that it got at its last visit.
struct Visitors {
    clients: Vec<Pair>,
    endpoints: BTreeMap<(IpAddr, &'static str), String>,
    last: Instant,
}

impl Visitors {
    /// Five clients whose addresses begin with this number come for the first time.
    fn come(cluster: &Cluster, served: &Echo, first: u8) -> Self {
        let clients = cluster.more_clients(first, 5);
        let mut visitors = Self { clients, endpoints: BTreeMap::new(), last: Instant::now() };
        visitors.visit(cluster, served);
        visitors
    }

    /// They come again; returns who got another endpoint than before, and which.
    fn visit(&mut self, cluster: &Cluster, served: &Echo) -> Vec<String> {
        let mut moved = Vec::new();
        self.last = Instant::now();
        for client in &self.clients {
            for (talk, family) in [(Talk::Tcp, 0), (Talk::Tcp, 1), (Talk::Udp, 0), (Talk::Udp, 1)] {
                let target = node_port(cluster, served, talk, family);
                let local = client.like(target.ip());
                let name = cluster.name_seen_from(local, talk, target);
                let before = self.endpoints.insert((local, talk.name()), name.clone());
                let other = before.filter(|before| *before != name);
                moved.extend(other.map(|before| format!("{local} over {talk:?}: {before}, then {name}")));
            }
        }
        moved
    }

    /// They come again before their time-out; nobody may be sent elsewhere. False if the machine was too slow for that.
    fn assert_stays(&mut self, cluster: &Cluster, served: &Echo) -> bool {
        let before = self.last;
        let moved = self.visit(cluster, served);
        let away = before.elapsed();
        assert!(moved.is_empty() || away >= TIMEOUT, "moved within {away:?}: {moved:?}");
        away < TIMEOUT
    }
}

/// A Service with so many seconds of affinity, or with none.
fn sticky(mut service: Service, seconds: Option<i32>) -> Service {
    let spec = spec(&mut service);
    spec.session_affinity = Some(if seconds.is_some() { "ClientIP" } else { "None" }.to_owned());
    spec.session_affinity_config = seconds
        .map(|seconds| SessionAffinityConfig { client_ip: Some(ClientIPConfig { timeout_seconds: Some(seconds) }) });
    service
}

/// Makes or changes a Service, and waits until all agents serve it with or without affinity.
fn serve(cluster: &Cluster, service: &Service, pods: &[Pod]) -> Echo {
    let served = cluster.serve_echo(service, &ready(pods));
    let wanted = service.spec.as_ref().unwrap().session_affinity_config.is_some();
    let what = if wanted { "affinity" } else { "no affinity" };
    cluster.await_slots(served.name(), what, |slot| (slot.affinity != 0) == wanted);
    served
}

/// The pods of both nodes that every test may count on.
fn everywhere(cluster: &Cluster) -> Vec<Pod> {
    cluster.world.nodes().iter().flat_map(Node::pods).collect()
}

fn node_port(cluster: &Cluster, served: &Echo, talk: Talk, family: usize) -> SocketAddr {
    served.node_ports(cluster.world.node(1), talk)[family]
}

/// Where a port is served on the node that a caller's packets enter: cluster IP, node port, load balancer IP.
fn addresses(
    cluster: &Cluster,
    served: &Echo,
    caller: &Caller,
    number: u8,
    talk: Talk,
    family: usize,
) -> [SocketAddr; 3] {
    let entry = cluster.world.node(caller.node().unwrap_or(1));
    let balancer = SocketAddr::new(external(number)[family], talk.port());
    [served.cluster_ips(talk)[family], served.node_ports(entry, talk)[family], balancer]
}

/// Who answers each caller over TCP and UDP, in both families, at the cluster IP and the node port alike.
fn visits(cluster: &Cluster, served: &Echo) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    for caller in cluster.callers() {
        for (talk, family) in [(Talk::Tcp, 0), (Talk::Tcp, 1), (Talk::Udp, 0), (Talk::Udp, 1)] {
            let [cluster_ip, node_port, _] = addresses(cluster, served, &caller, 0, talk, family);
            let mut names = cluster.names(&caller, talk, cluster_ip, 3);
            names.extend(cluster.names(&caller, talk, node_port, 3));
            let what = format!("{caller} over {talk:?}, {}", cluster_ip.ip());
            assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "{what}: {names:?}");
            seen.insert(what, names.swap_remove(0));
        }
    }
    seen
}

/// New connections of every caller go to several endpoints, or to one.
fn assert_spread(cluster: &Cluster, served: &Echo, spread: bool) {
    for caller in cluster.callers() {
        for (talk, family) in [(Talk::Tcp, 0), (Talk::Udp, 1)] {
            let [cluster_ip, node_port, _] = addresses(cluster, served, &caller, 0, talk, family);
            for target in [cluster_ip, node_port] {
                let names = unique(cluster.names(&caller, talk, target, COUNT));
                assert_eq!(names.len() > 1, spread, "{caller} at {talk:?} {target}: {names:?}");
            }
        }
    }
}

fn unique(names: Vec<String>) -> BTreeSet<String> {
    names.into_iter().collect()
}

#[test]
fn processes_of_a_node_are_one_client_at_the_nodes_address() {
    let Some(cluster) = CLUSTER.join("session affinity of processes") else { return };
    let served = serve(&cluster, &sticky(echo("sticky-host", "NodePort"), Some(LONG)), &everywhere(&cluster));
    for number in [1, 2] {
        let host = Caller::Host(number);
        for (talk, family) in [(Talk::Tcp, 0), (Talk::Udp, 1)] {
            let target = served.cluster_ips(talk)[family];
            // A socket that is bound to another address of the node.
            let gateway = address::gateway(number).like(target.ip());
            let bound = || ask_from((gateway, fresh_port()).into(), talk, target);
            let mut names = cluster.names(&host, talk, target, COUNT / 2);
            for _ in 0..COUNT / 2 {
                names.push(cluster.run_as(&host, bound).unwrap_or_else(|e| panic!("{gateway} to {target}: {e}")).name);
            }
            let names = unique(names);
            assert_eq!(names.len(), 1, "{host} at {talk:?} {target}: {names:?}");
        }
    }
}

/// A Service of node 1 with affinity, whose endpoints are all of its first four pods.
fn file() -> String {
    let node = address::node(1);
    let endpoints = (1..=4).flat_map(|pod| address::pod(1, pod).both());
    let endpoints: Vec<_> = endpoints.map(|ip| format!("{{address: \"{ip}\", node: node1}}")).collect();
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n\
         - name: sticky\n  clusterIPs: [10.96.0.1, \"fd00:96::1\"]\n  \
         sessionAffinity: ClientIP\n  sessionAffinitySeconds: {LONG}\n  \
         ports: [{{port: 7, targetPort: {}, nodePort: 30007}}]\n  endpoints: [{}]\n",
        node.v4,
        node.v6,
        Talk::Tcp.target(),
        endpoints.join(", ")
    )
}

#[test]
fn clients_keep_their_endpoints_when_the_agent_dies_and_starts_again() {
    if !standalone::can_run("session affinity when the agent dies") {
        return;
    }
    let mut node = Standalone::start(5, &file(), &["--spread=random"]);
    let targets = ["10.96.0.1", "fd00:96::1"].map(|ip| SocketAddr::new(ip.parse().unwrap(), 7));
    let node_ports = address::node(1).both().map(|ip| SocketAddr::new(ip, 30007));
    let seen = |node: &Standalone| {
        let ask = |target| {
            let answers = (0..COUNT / 2).map(|_| ask_from(any(target, fresh_port()), Talk::Tcp, target).unwrap().name);
            unique(answers.collect())
        };
        let everywhere = || targets.into_iter().chain(node_ports).map(ask).collect::<Vec<_>>();
        [
            node.world.client().enter(everywhere),
            node.world.node(1).pod(5).netns().enter(everywhere),
            node.agent.cgroup.enter(|| node.world.node(1).netns().enter(everywhere)).unwrap(),
        ]
    };
    let before = seen(&node);
    assert!(before.iter().flatten().all(|names| names.len() == 1), "{before:?}");
    node.agent.kill();
    assert_eq!(seen(&node), before, "while the agent is dead");
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    assert_eq!(seen(&node), before, "after its start\n{}", node.agent.log());
}
