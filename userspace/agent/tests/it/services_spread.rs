//! How many connections each endpoint gets, and that many and large ones pass a node without endpoints.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_abi as abi;
use weir_testbed::ask::{self, PATIENCE};
use weir_testbed::{Netns, Node, Pod, address, node, objects};

use crate::harness::callers::{Caller, say};
use crate::harness::echo::{Echo, Member, Talk, echo, ready};
use crate::harness::shared::Shared;
use crate::harness::{self, Cluster, SOON, cluster_sockets, node_port};

static LOCAL_FIRST: Shared = Shared::new(&[]);
static RANDOM: Shared = Shared::new(&["--spread=random"]);

/// Connections in each count.
const COUNT: u32 = 240;
/// Ports that the host itself draws: `ip_local_port_range` of a new namespace.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;
/// Bytes of what the worlds' wires carry at most.
const LARGEST_FRAME: u64 = 1514;
/// Sums of squared deviations, each over its expectation, that one in a million fair draws exceeds: 1 and 3 degrees of freedom.
const FAIR_OF_2: f64 = 24.0;
const FAIR_OF_4: f64 = 31.0;

#[test]
fn connections_stay_on_the_node_as_long_as_it_has_endpoints_and_its_counters_say_so() {
    let Some(cluster) = LOCAL_FIRST.join("local first") else { return };
    let served = cluster.serve_echo(&echo("local-first", "NodePort"), &ready(&all_pods(&cluster)));
    for caller in cluster.callers() {
        for v6 in [false, true] {
            let count = Count::new(&cluster, &served, &caller, Talk::Http, v6);
            assert_eq!(count.near().len(), 2, "{caller}: {:?}", count.answers);
            assert_eq!(count.local, u64::from(COUNT), "{caller}: {:?}", count.answers);
            assert_eq!((count.remote, count.far()), (0, 0), "{caller}: {:?}", count.answers);
            assert!(count.unfairness(2) < FAIR_OF_2, "{caller}: {:?}", count.answers);
        }
    }
}

#[test]
fn datagrams_of_new_sockets_stay_on_the_node_too() {
    let Some(cluster) = LOCAL_FIRST.join("local first, UDP") else { return };
    let served = cluster.serve_echo(&echo("local-first-udp", "NodePort"), &ready(&all_pods(&cluster)));
    for caller in cluster.callers() {
        for v6 in [false, true] {
            let count = Count::new(&cluster, &served, &caller, Talk::Udp, v6);
            assert_eq!((count.remote, count.far()), (0, 0), "{caller}: {:?}", count.answers);
            // A socket may get the port of an earlier one, and with it its flow.
            assert!(count.local > u64::from(COUNT) * 9 / 10, "{caller}: {}", count.local);
        }
    }
}

#[test]
fn with_random_spread_every_endpoint_of_every_node_gets_its_share() {
    let Some(cluster) = RANDOM.join("random spread") else { return };
    let served = cluster.serve_echo(&echo("random", "NodePort"), &ready(&all_pods(&cluster)));
    for caller in cluster.callers() {
        for v6 in [false, true] {
            let count = Count::new(&cluster, &served, &caller, Talk::Http, v6);
            assert!(count.unfairness(4) < FAIR_OF_4, "{caller}: {:?}", count.answers);
            assert_eq!((count.local, count.remote), (u64::from(COUNT) - count.far(), count.far()), "{caller}");
        }
    }
}

#[test]
fn with_random_spread_a_flow_keeps_its_endpoint() {
    let Some(cluster) = RANDOM.join("flows under random spread") else { return };
    let served = cluster.serve_echo(&echo("random-kept", "NodePort"), &ready(&all_pods(&cluster)));
    for caller in cluster.callers() {
        for target in served.cluster_ips(Talk::Udp) {
            let socket = cluster.socket(&caller, target);
            cluster.run_as(&caller, || socket.connect(target).unwrap());
            let names: Vec<_> = (0..20).map(|_| say(&socket, None).unwrap().name).collect();
            assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "{caller}: {names:?}");
        }
    }
}

#[test]
fn a_node_without_endpoints_passes_many_connections_on_one_after_another_and_at_once() {
    let Some(cluster) = LOCAL_FIRST.join("many connections through another node") else { return };
    let served = cluster.serve_echo(&echo("through", "NodePort"), &ready(&cluster.world.node(2).pods()));
    for target in served.node_ports(cluster.world.node(1), Talk::Http) {
        let ask = || ask::http_ask(target);
        let mut answers: Vec<_> = cluster.run_as(&Caller::Outside, || (0..500).map(|_| ask()).collect());
        let at_once = || {
            thread::scope(|scope| {
                let asking = || (0..25).map(|_| ask()).collect::<Vec<_>>();
                let threads: Vec<_> = (0..20).map(|_| scope.spawn(asking)).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        };
        answers.extend(cluster.run_as(&Caller::Outside, at_once));
        assert_eq!(answers.len(), 1000);
        for answer in answers {
            let answer = answer.unwrap();
            assert!(answer.name.starts_with("node2-"), "{answer:?}");
            assert_eq!(answer.client.ip(), address::node(1).like(target.ip()), "the answer must come back this way");
            let port = answer.client.port();
            assert!(port >= 1024 && !EPHEMERAL.contains(&port), "{answer:?}: not a port of Weir's own");
        }
    }
}

#[test]
fn several_services_of_one_endpoint_and_one_that_is_made_again_do_not_meet_each_others_closed_connections() {
    let Some(cluster) = LOCAL_FIRST.join("services that share an endpoint") else { return };
    // The endpoint remembers a closed connection for a minute, and a client that meets it waits for a second or more.
    let member = Member::ready(&cluster.world.node(2).pod(2));
    for name in ["shared-a", "shared-b", "shared-a"] {
        let served = cluster.serve_echo(&echo(name, "NodePort"), std::slice::from_ref(&member));
        for target in served.node_ports(cluster.world.node(1), Talk::Http) {
            for number in 0..60 {
                let start = Instant::now();
                cluster.run_as(&Caller::Outside, || ask::http_ask(target)).unwrap();
                assert!(start.elapsed() < Duration::from_millis(800), "{name} {target}: connection {number}");
            }
        }
        cluster.objects.delete(&served.service).unwrap();
        for target in served.cluster_ips(Talk::Http) {
            cluster.agents.iter().for_each(|agent| agent.await_frontend(target.ip(), target.port(), false));
        }
    }
}

#[test]
fn large_transfers_arrive_whole_in_both_directions_on_every_way() {
    let Some(cluster) = LOCAL_FIRST.join("large transfers") else { return };
    assert_large_transfers(&cluster, "large", 9000);
}

#[test]
fn segments_that_cards_have_put_together_arrive_whole_as_well() {
    if !harness::can_run("segments that cards put together") {
        return;
    }
    // Of its own: what others ask in short would be counted, too.
    let cluster = Cluster::start(2, 2, &["--no-xdp"]);
    // As physical cards mostly do.
    cluster.world.nodes().iter().for_each(|node| node.netns().offloads(node::NIC, &["gro", "on"]).unwrap());
    // Routers may cut what a client sends that looks for no path MTU; the card cuts it between its segments.
    for (name, port, no_discovery) in [("together-without-df", 9001, "1"), ("together", 9002, "0")] {
        cluster.world.client().sysctls(&[("net/ipv4/ip_no_pmtu_disc", no_discovery)]).unwrap();
        assert_large_transfers(&cluster, name, port);
        for (agent, reason) in cluster.agents.iter().zip([abi::REASON_TO_REMOTE, abi::REASON_TO_LOCAL]) {
            let seen = agent.view().counters().counter(abi::HOOK_NIC_INGRESS as usize, reason as usize).unwrap();
            assert!(seen.bytes > seen.packets * LARGEST_FRAME, "{name}: {seen:?}");
        }
    }
}

/// From a pod of node 2, behind a port that its copying server has there, and back.
fn assert_large_transfers(cluster: &Cluster, name: &str, port: u16) {
    let mut service = objects::service(name, port, "TCP");
    harness::echo::spec(&mut service).type_ = Some("NodePort".into());
    let pod = cluster.world.node(2).pod(1);
    let made = cluster.publish(&service, port, std::slice::from_ref(&pod));
    for target in cluster_sockets(&made) {
        cluster.await_frontend(target.ip(), target.port());
    }
    cluster.agents.iter().for_each(|agent| agent.await_backends(name, pod.address().both().to_vec()));
    let ways = ways(cluster, &cluster_sockets(&made), node_port(&made));
    let server = copying_server(pod.netns(), port, ways.len());
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[usize::from(n % 7 == 0)]).collect();
    for (caller, target) in ways {
        let received = cluster.run_as(&caller, || exchange(target, &sent));
        assert!(received == sent, "{caller} to {target}: {} of {} bytes, or other bytes", received.len(), sent.len());
    }
    server.join().unwrap();
}

/// From outside through a node without and one with the endpoint, from pods and hosts of both nodes.
fn ways(cluster: &Cluster, cluster_ips: &[SocketAddr], node_port: u16) -> Vec<(Caller, SocketAddr)> {
    let mut ways = Vec::new();
    for node in cluster.world.nodes() {
        ways.extend(node.address().both().map(|ip| (Caller::Outside, SocketAddr::new(ip, node_port))));
    }
    for caller in cluster.callers() {
        ways.extend(cluster_ips.iter().map(|target| (caller.clone(), *target)));
    }
    ways
}

fn all_pods(cluster: &Cluster) -> Vec<Pod> {
    cluster.world.nodes().iter().flat_map(Node::pods).collect()
}

/// Answers of [`COUNT`] new connections from one caller, and what the service's counters said about them.
struct Count {
    entry: u8,
    answers: BTreeMap<String, u32>,
    local: u64,
    remote: u64,
}

impl Count {
    fn new(cluster: &Cluster, served: &Echo, caller: &Caller, talk: Talk, v6: bool) -> Self {
        let target = served.cluster_ips(talk)[usize::from(v6)];
        let entry = caller.entry(target.ip());
        let agent = &cluster.agents[usize::from(entry) - 1];
        let before = agent.flows_of(served, talk, v6);
        let ask = || (0..COUNT).map(|_| talk.ask(target, PATIENCE).unwrap()).collect::<Vec<_>>();
        let mut answers = BTreeMap::new();
        for answer in cluster.run_as(caller, ask) {
            *answers.entry(answer.name).or_default() += 1;
        }
        let after = agent.flows_of(served, talk, v6);
        Self { entry, answers, local: after.local - before.local, remote: after.remote - before.remote }
    }

    /// Those on the caller's node who answered.
    fn near(&self) -> BTreeMap<&str, u32> {
        let near = format!("node{}-", self.entry);
        self.answers.iter().filter(|(name, _)| name.starts_with(&near)).map(|(name, count)| (&**name, *count)).collect()
    }

    /// Answers from other nodes.
    fn far(&self) -> u64 {
        u64::from(COUNT - self.near().values().sum::<u32>())
    }

    /// Pearson's statistic against equal shares of so many.
    fn unfairness(&self, servers: u32) -> f64 {
        let expected = f64::from(COUNT) / f64::from(servers);
        let silent = f64::from(servers - u32::try_from(self.answers.len()).unwrap()) * expected;
        self.answers.values().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum::<f64>() + silent
    }
}

/// Sends back what it gets, until the client has sent everything; so many connections, one after another.
fn copying_server(netns: &Netns, port: u16, connections: usize) -> JoinHandle<()> {
    let listener = netns.enter(|| TcpListener::bind(("::", port)).unwrap());
    let copy = move || {
        for _ in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            // A client that fails tells by itself.
            let _ = std::io::copy(&mut &stream, &mut &stream);
        }
    };
    netns.spawn("copy", copy).unwrap()
}

/// Sends everything and reads until the server closes.
fn exchange(target: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let stream = TcpStream::connect(target).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    let mut received = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        (&stream).read_to_end(&mut received).unwrap();
    });
    received
}
