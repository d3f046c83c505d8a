//! TCP connections of pods with `--pod-sockets=on`: translated once, when they are made, by everything that packets go by.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::api::core::v1::{
    ClientIPConfig, Container, Namespace, PodIP, PodSpec, PodStatus, SessionAffinityConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use weir_abi as abi;
use weir_testbed::ask::{Answer, PATIENCE};
use weir_testbed::connection::LongConnection;
use weir_testbed::{Cgroup, Pod, wait};

use crate::harness::echo::{Echo, Talk, echo, ready, spec};
use crate::harness::matrix::{Kind, external};
use crate::harness::{self, Agent, Cluster, SOON};

const ANNOTATION: &str = "weir.dev/pod-sockets";
/// A pod that connects, and no endpoint unless a test says so.
const CALLER: u8 = 1;

/// A node with three pods, known to the API server, and an agent that translates at their sockets.
struct Bed {
    cluster: Cluster,
    /// The group of the calling pod's container, before that of the agent.
    container: Option<Cgroup>,
}

impl Bed {
    fn new(what: &str) -> Option<Self> {
        if !harness::can_run(what) {
            return None;
        }
        let mut cluster = Cluster::without_agents(1, 3);
        let options = ["--pod-sockets=on", "--spread=random"];
        let mut agent = Agent::prepared(&cluster.world, 1, Agent::source(&cluster.api), &options);
        agent.set_option(&format!("--kubelet-cgroup-root={}", agent.cgroup.name()));
        agent.start_again(&cluster.world);
        agent.await_ready(&cluster.world);
        cluster.agents.push(agent);
        Some(Self { cluster, container: None })
    }

    fn agent(&self) -> &Agent {
        &self.cluster.agents[0]
    }

    fn caller(&self) -> Pod {
        self.cluster.world.node(1).pod(CALLER)
    }

    fn others(&self) -> Vec<Pod> {
        let node = self.cluster.world.node(1);
        vec![node.pod(2), node.pod(3)]
    }

    /// Tells the API server of the calling pod, with the annotation as given, as kubelet does once it runs.
    fn register(&self, namespace: &str, wish: Option<&str>) -> k8s::Pod {
        let caller = self.caller();
        let metadata = ObjectMeta {
            name: Some(caller.name()),
            namespace: Some(namespace.into()),
            annotations: wish.map(|wish| [(ANNOTATION.to_owned(), wish.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let container = Container { name: "main".into(), image: Some("main".into()), ..Container::default() };
        let pod_spec = PodSpec { node_name: Some("node1".into()), containers: vec![container], ..PodSpec::default() };
        let ips = caller.address().both().map(|ip| PodIP { ip: ip.to_string() });
        let status = PodStatus {
            phase: Some("Running".into()),
            pod_ip: Some(ips[0].ip.clone()),
            pod_ips: Some(ips.to_vec()),
            ..PodStatus::default()
        };
        let object = k8s::Pod { metadata, spec: Some(pod_spec), status: Some(status) };
        self.cluster.objects.apply(&object).unwrap();
        self.cluster.objects.apply_status(&object).unwrap()
    }

    fn set_namespace(&self, name: &str, wish: Option<&str>) {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            annotations: wish.map(|wish| [(ANNOTATION.to_owned(), wish.to_owned())].into()),
            ..ObjectMeta::default()
        };
        self.cluster.objects.apply(&Namespace { metadata, ..Namespace::default() }).unwrap();
    }

    /// Makes the group of a container of the pod, where kubelet would.
    fn start_container(&mut self, pod: &k8s::Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap();
        let path = format!("kubepods/burstable/pod{uid}/main");
        self.container = Some(self.agent().cgroup.below(&path).unwrap());
    }

    /// Starts the calling pod's container and waits until its sockets are hooked.
    fn run_caller(&mut self) {
        let pod = self.register("default", None);
        self.start_container(&pod);
        self.await_hooked(true);
    }

    fn await_hooked(&self, expected: bool) {
        let view = self.agent().view();
        let addresses = self.caller().address();
        let entry = abi::HookedPod { addr4: addresses.v4.into(), addr6: addresses.v6.into() };
        let hooked = || view.hooked_pods().unwrap().iter().any(|(_, pod)| *pod == entry);
        let what = format!("the pod to be hooked: {expected}");
        wait::until(&what, SOON, || hooked() == expected).unwrap_or_else(|e| panic!("{e}\n{}", self.agent().log()));
    }

    /// As a process of the calling pod.
    fn in_pod<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.container.as_ref().unwrap().enter(|| self.caller().netns().enter(work)).unwrap()
    }

    /// Whom a process of the pod reaches, and whom it believes to talk to.
    fn ask(&self, target: SocketAddr) -> std::io::Result<(SocketAddr, Answer)> {
        self.in_pod(|| {
            let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let peer = stream.peer_addr()?;
            stream.write_all(b"who\n")?;
            let mut buffer = [0; 256];
            let length = stream.read(&mut buffer)?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            Ok((peer, text.parse().unwrap_or_else(|()| panic!("{text:?} is no answer"))))
        })
    }

    /// Packets of pods that were translated, and sockets.
    fn translated(&self) -> (u64, u64) {
        let packets = self.agent().packets(abi::HOOK_POD_INGRESS, abi::REASON_TO_LOCAL);
        (packets, self.agent().packets(abi::HOOK_SOCKET, abi::REASON_TO_LOCAL))
    }

    /// A connection reaches one of the endpoints, which sees the pod; either its socket was translated or its packets.
    #[track_caller]
    fn assert_reaches(&self, target: SocketAddr, endpoints: &[Pod], by_socket: bool) -> String {
        let before = self.translated();
        let asked = self.ask(target);
        let (peer, answer) = asked.unwrap_or_else(|e| panic!("{target}: {e}\n{}", self.agent().log()));
        assert_eq!(peer, target, "getpeername");
        let caller = self.caller().address().like(target.ip().to_canonical());
        assert_eq!(answer.client.ip(), caller, "whom the endpoint sees, at {target}");
        assert!(endpoints.iter().any(|pod| pod.name() == answer.name), "{answer:?} at {target}");
        let after = self.translated();
        let expected = if by_socket { (before.0, before.1 + 1) } else { (after.0, before.1) };
        assert_eq!(after, expected, "packets and sockets that were translated, at {target}; before: {before:?}");
        assert_eq!(after.0 > before.0, !by_socket, "packets, at {target}");
        answer.name
    }

    fn targets(&self, served: &Echo, number: u8) -> Vec<SocketAddr> {
        let port = Talk::Tcp.port();
        let node_ports = served.node_ports(self.cluster.world.node(1), Talk::Tcp);
        let external = external(number).map(|ip| SocketAddr::new(ip, port));
        [served.cluster_ips(Talk::Tcp), node_ports, external].concat()
    }
}

/// IPv4 by a socket of IPv6.
fn mapped(target: SocketAddr) -> Option<SocketAddr> {
    let IpAddr::V4(ip) = target.ip() else { return None };
    Some(SocketAddr::new(ip.to_ipv6_mapped().into(), target.port()))
}

#[test]
fn a_pods_connection_is_translated_once_and_its_datagrams_by_packet() {
    let Some(mut bed) = Bed::new("sockets of pods") else { return };
    bed.run_caller();
    let others = bed.others();
    let served = bed.cluster.serve_echo(&Kind::LoadBalancer.service("socketed", 10), &ready(&others));
    for target in bed.targets(&served, 10) {
        bed.assert_reaches(target, &others, true);
        mapped(target).into_iter().for_each(|target| drop(bed.assert_reaches(target, &others, true)));
    }
    for target in served.cluster_ips(Talk::Udp) {
        let before = bed.translated();
        bed.in_pod(|| Talk::Udp.ask(target, PATIENCE)).unwrap_or_else(|e| panic!("{target}: {e}"));
        let after = bed.translated();
        assert_eq!((after.0 > before.0, after.1), (true, before.1), "packets and sockets, of UDP at {target}");
    }
}

#[test]
fn a_pod_that_reaches_itself_sees_its_own_address() {
    let Some(mut bed) = Bed::new("pods that reach themselves by their sockets") else { return };
    bed.run_caller();
    let itself = [bed.caller()];
    let served = bed.cluster.serve_echo(&echo("itself", "ClusterIP"), &ready(&itself));
    for target in served.cluster_ips(Talk::Tcp) {
        bed.assert_reaches(target, &itself, true);
    }
}

#[test]
fn a_pods_connection_is_refused_at_once_where_there_is_no_endpoint() {
    let Some(mut bed) = Bed::new("sockets of pods without endpoints") else { return };
    bed.run_caller();
    let served = bed.cluster.serve_echo(&echo("nobody", "NodePort"), &[]);
    let node_ports = served.node_ports(bed.cluster.world.node(1), Talk::Tcp);
    for target in [served.cluster_ips(Talk::Tcp), node_ports].concat() {
        let before = bed.agent().packets(abi::HOOK_SOCKET, abi::REASON_NO_ENDPOINTS);
        let refused = bed.ask(target).map_err(|e| e.kind());
        assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "{target}");
        assert_eq!(bed.agent().packets(abi::HOOK_SOCKET, abi::REASON_NO_ENDPOINTS), before + 1, "{target}");
    }
}

#[test]
fn a_pod_keeps_its_endpoint_whether_its_packets_or_its_sockets_are_translated() {
    /// That so many connections meet the same one of two endpoints by chance: one in four thousand.
    const COUNT: usize = 12;
    let Some(mut bed) = Bed::new("session affinity of sockets of pods") else { return };
    bed.run_caller();
    let others = bed.others();
    let mut service = echo("kept", "ClusterIP");
    spec(&mut service).session_affinity = Some("ClientIP".into());
    let client_ip = Some(ClientIPConfig { timeout_seconds: Some(600) });
    spec(&mut service).session_affinity_config = Some(SessionAffinityConfig { client_ip });
    let served = bed.cluster.serve_echo(&service, &ready(&others));
    // All sockets before any packet: a connection's last packets are counted after it has been answered.
    let by_socket = served.cluster_ips(Talk::Tcp).map(|target| {
        let seen: BTreeSet<_> = (0..COUNT).map(|_| bed.assert_reaches(target, &others, true)).collect();
        (target, seen)
    });
    for (target, mut seen) in by_socket {
        let by_packet = || bed.caller().netns().enter(|| Talk::Tcp.ask(target, PATIENCE)).unwrap().name;
        seen.extend((0..COUNT).map(|_| by_packet()));
        assert_eq!(seen.len(), 1, "{target}: {seen:?}");
    }
    let affinities = bed.agent().view().affinities().unwrap();
    let clients: BTreeSet<_> = affinities.iter().map(|(key, _)| key.client.ip()).collect();
    assert_eq!(clients, bed.caller().address().both().into(), "who keeps endpoints");
}

#[test]
fn an_annotation_of_the_pod_or_of_its_namespace_leaves_its_connections_to_the_packets() {
    let Some(mut bed) = Bed::new("annotations of pods and namespaces") else { return };
    bed.run_caller();
    let others = bed.others();
    let served = bed.cluster.serve_echo(&echo("annotated", "ClusterIP"), &ready(&others));
    let [target, _] = served.cluster_ips(Talk::Tcp);
    bed.assert_reaches(target, &others, true);
    for (of_namespace, of_pod, by_socket) in [
        (None, Some("off"), false),
        (None, None, true),
        (Some("off"), None, false),
        (Some("off"), Some("on"), true),
        (Some("on"), Some("false"), false),
        (None, None, true),
    ] {
        bed.set_namespace("default", of_namespace);
        bed.register("default", of_pod);
        bed.await_hooked(by_socket);
        let what = format!("namespace {of_namespace:?}, pod {of_pod:?}");
        println!("{what}: by socket: {by_socket}");
        bed.assert_reaches(target, &others, by_socket);
    }
    bed.agent().await_log("is neither");
}

#[test]
fn a_pods_connections_outlive_the_agent_and_new_ones_are_translated_without_it() {
    const INTERVAL: Duration = Duration::from_millis(10);
    let Some(mut bed) = Bed::new("sockets of pods while the agent is away") else { return };
    bed.run_caller();
    let others = bed.others();
    let served = bed.cluster.serve_echo(&echo("outlives", "ClusterIP"), &ready(&others));
    let targets = served.cluster_ips(Talk::Tcp);
    let open = |target| {
        let container = bed.container.as_ref().unwrap();
        container.enter(|| LongConnection::open(bed.caller().netns(), target, INTERVAL, PATIENCE)).unwrap().unwrap()
    };
    let held = targets.map(open);
    let goes_on = |when: &str| {
        held.iter().for_each(|one| one.await_exchanges(20, SOON).unwrap_or_else(|e| panic!("{when}: {e}")));
    };
    bed.cluster.agents[0].kill();
    goes_on("without the agent");
    targets.iter().for_each(|target| drop(bed.assert_reaches(*target, &others, true)));
    bed.cluster.agents[0].start_again(&bed.cluster.world);
    bed.agent().await_ready(&bed.cluster.world);
    bed.agent().await_log("pods connect through socket hooks");
    targets.iter().for_each(|target| drop(bed.assert_reaches(*target, &others, true)));
    goes_on("with the next agent");
    // The default.
    bed.cluster.agents[0].kill();
    bed.cluster.agents[0].remove_option("--pod-sockets");
    bed.cluster.agents[0].start_again(&bed.cluster.world);
    bed.agent().await_ready(&bed.cluster.world);
    targets.iter().for_each(|target| drop(bed.assert_reaches(*target, &others, false)));
    goes_on("when sockets of pods are switched off");
}
