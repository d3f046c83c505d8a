//! UDP clients that never give up their port: the flows that they began must not outlive what they led to. And
//! datagrams that are larger than a packet.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::CLUSTER;
use crate::harness::Cluster;
use crate::harness::callers::Caller;
use crate::harness::clients::{any, ask_from, ask_from_within, fresh_port};
use crate::harness::echo::{Echo, Member, Talk, echo, ready, slice, spec};
use crate::harness::standalone::{self, Standalone};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use weir_abi as abi;
use weir_core::model::Protocol;
use weir_datapath::tick_clock;
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Pod, address, wait};

/// An answer of somebody who is there comes within this time.
const SILENCE: Duration = Duration::from_millis(50);
/// Bytes of a datagram: in three and in six packets of Ethernet's size.
const LARGE: [usize; 2] = [4000, 8000];

/// A client that asks from the same port each time, over a new socket or over its only one.
struct Client {
    caller: Caller,
    port: u16,
    target: SocketAddr,
}

impl Client {
    fn new(caller: Caller, target: SocketAddr) -> Self {
        Self { caller, port: fresh_port(), target }
    }

    /// Who answers.
    fn ask(&self, cluster: &Cluster) -> Result<String, ErrorKind> {
        self.ask_within(cluster, PATIENCE)
    }

    fn ask_within(&self, cluster: &Cluster, limit: Duration) -> Result<String, ErrorKind> {
        let Self { caller, port, target } = self;
        let answer = cluster.run_as(caller, || ask_from_within(any(*target, *port), Talk::Udp, *target, limit));
        answer.map(|answer| answer.name).map_err(|e| e.kind())
    }

    fn assert_answered_by(&self, cluster: &Cluster, pod: &Pod, when: &str) {
        for number in 0..3 {
            let seen = self.ask(cluster);
            assert_eq!(
                seen,
                Ok(pod.name()),
                "{} from port {} to {}, {when}, datagram {number}",
                self.caller,
                self.port,
                self.target
            );
        }
    }
}

/// Clients of everybody at the cluster IP, of the outside also at the node ports of both nodes.
fn clients(cluster: &Cluster, served: &Echo) -> Vec<Client> {
    let mut clients = Vec::new();
    for caller in cluster.callers() {
        let node_ports = cluster.world.nodes().iter().flat_map(|node| served.node_ports(node, Talk::Udp));
        let outside = matches!(caller, Caller::Outside);
        let targets = served.cluster_ips(Talk::Udp).into_iter().chain(node_ports.filter(|_| outside));
        clients.extend(targets.map(|target| Client::new(caller.clone(), target)));
    }
    clients
}

#[test]
fn a_client_is_answered_by_the_next_pod_at_once_when_the_server_pod_cycles() {
    let Some(cluster) = CLUSTER.join("UDP servers that cycle") else { return };
    let pods = [cluster.world.node(1).pod(1), cluster.world.node(2).pod(1), cluster.world.node(2).pod(2)];
    let served = cluster.serve_echo(&echo("udp-cycles", "NodePort"), &[Member::ready(&pods[0])]);
    let clients = clients(&cluster, &served);
    for (round, pod) in pods.iter().chain([&pods[0]]).enumerate() {
        cluster.set_members(&served, &[Member::ready(pod)]);
        clients.iter().for_each(|client| client.assert_answered_by(&cluster, pod, &format!("pod {round}")));
    }
    // By way of nothing.
    cluster.set_members(&served, &[]);
    for client in &clients {
        assert_eq!(client.ask(&cluster), Err(ErrorKind::ConnectionRefused), "{} to {}", client.caller, client.target);
    }
    cluster.set_members(&served, &[Member::ready(&pods[1])]);
    clients.iter().for_each(|client| client.assert_answered_by(&cluster, &pods[1], "after nothing"));
}

#[test]
fn a_client_is_answered_by_the_next_local_pod_under_an_internal_policy_of_local() {
    let Some(cluster) = CLUSTER.join("UDP servers that cycle under a policy of Local") else { return };
    let node = cluster.world.node(1);
    let mut service = echo("udp-local", "ClusterIP");
    spec(&mut service).internal_traffic_policy = Some("Local".into());
    let far = Member::ready(&cluster.world.node(2).pod(1));
    let served = cluster.serve_echo(&service, &[Member::ready(&node.pod(1)), far.clone()]);
    let callers = [Caller::Pod(node.pod(2)), Caller::Host(1), Caller::Outside];
    let clients: Vec<_> = callers
        .iter()
        .flat_map(|caller| served.cluster_ips(Talk::Udp).map(|target| Client::new(caller.clone(), target)))
        .collect();
    for number in [1, 2, 1] {
        let pod = node.pod(number);
        cluster.set_members(&served, &[Member::ready(&pod), far.clone()]);
        clients.iter().for_each(|client| client.assert_answered_by(&cluster, &pod, "as the only local one"));
    }
}

#[test]
fn a_client_that_came_before_the_first_ready_endpoint_is_answered_when_it_gets_ready() {
    let Some(cluster) = CLUSTER.join("UDP clients that come too early") else { return };
    let pod = cluster.world.node(2).pod(1);
    let served = cluster.serve_echo(&echo("udp-early", "NodePort"), &[Member::failing(&pod)]);
    let clients = clients(&cluster, &served);
    for client in &clients {
        assert_eq!(client.ask(&cluster), Err(ErrorKind::ConnectionRefused), "{} to {}", client.caller, client.target);
    }
    cluster.set_members(&served, &[Member::ready(&pod)]);
    clients.iter().for_each(|client| client.assert_answered_by(&cluster, &pod, "since it is ready"));
    cluster.set_members(&served, &[Member::failing(&pod)]);
    for client in &clients {
        assert_eq!(client.ask(&cluster), Err(ErrorKind::ConnectionRefused), "{} to {}", client.caller, client.target);
    }
}

#[test]
fn a_client_of_a_deleted_service_is_answered_by_the_next_service_with_its_addresses() {
    let Some(cluster) = CLUSTER.join("UDP clients of deleted services") else { return };
    let [first, second] = [cluster.world.node(1).pod(1), cluster.world.node(1).pod(2)];
    let mut service = echo("udp-again", "NodePort");
    let mut served = cluster.serve_echo(&service, &[Member::ready(&first)]);
    let made = served.service.spec.clone().unwrap();
    spec(&mut service).cluster_ip = made.cluster_ip;
    spec(&mut service).cluster_ips = made.cluster_ips;
    spec(&mut service).ports = made.ports;
    let clients = clients(&cluster, &served);
    for pod in [&first, &second, &first] {
        served = cluster.serve_echo(&service, &[Member::ready(pod)]);
        clients.iter().for_each(|client| client.assert_answered_by(&cluster, pod, "after the Service was made"));
        cluster.objects.delete(&served.service).unwrap();
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            cluster.objects.delete(&slice(served.name(), suffix, v6, &[])).unwrap();
        }
        for target in served.cluster_ips(Talk::Udp) {
            cluster.agents.iter().for_each(|agent| agent.await_frontend(target.ip(), target.port(), false));
        }
        for client in &clients {
            let seen = client.ask_within(&cluster, SILENCE);
            assert!(seen.is_err(), "{} to {}: {seen:?} after the Service was deleted", client.caller, client.target);
        }
    }
}

/// A Service of node 1 whose only endpoint is this pod.
fn file(pod: u8) -> String {
    let (node, pod) = (address::node(1), address::pod(1, pod));
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n\
         - name: udp\n  clusterIPs: [10.96.0.1, \"fd00:96::1\"]\n  \
         ports: [{{port: 53, protocol: UDP, targetPort: {}, nodePort: 30053}}]\n  \
         endpoints: [{{address: {}, node: node1}}, {{address: \"{}\", node: node1}}]\n",
        node.v4,
        node.v6,
        Talk::Udp.target(),
        pod.v4,
        pod.v6
    )
}

#[test]
fn a_client_whose_endpoint_went_while_the_agent_was_dead_or_stopped_is_answered_when_it_is_back() {
    if !standalone::can_run("UDP clients while the agent is away") {
        return;
    }
    let mut node = Standalone::start(3, &file(1), &[]);
    let mut clients = Vec::new();
    for (ip, port) in [("10.96.0.1", 53), ("fd00:96::1", 53)] {
        let target = SocketAddr::new(ip.parse().unwrap(), port);
        clients.push((target, fresh_port()));
    }
    clients.extend(address::node(1).both().map(|ip| (SocketAddr::new(ip, 30053), fresh_port())));
    let ask = |node: &Standalone, (target, port): (SocketAddr, u16)| {
        let ask =
            || ask_from(any(target, port), Talk::Udp, target).map(|answer| answer.name).map_err(|e| e.to_string());
        [node.world.client().enter(ask), node.world.node(1).pod(3).netns().enter(ask)]
    };
    let assert_answered_by = |node: &Standalone, pod: u8| {
        let name = Ok(format!("node1-pod{pod}"));
        for client in &clients {
            let right = || {
                let seen = ask(node, *client);
                if seen == [name.clone(), name.clone()] { Ok(()) } else { Err(format!("{seen:?}")) }
            };
            let what = format!("answers of pod {pod} to outside and pod from port {} at {}", client.1, client.0);
            wait::until_some(&what, crate::harness::SOON, right)
                .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
        }
    };
    assert_answered_by(&node, 1);
    node.agent.kill();
    node.write(&file(2));
    node.agent.start_again(&node.world);
    assert_answered_by(&node, 2);
    node.agent.await_ready(&node.world);
    node.agent.process().signal(Signal::SIGSTOP).unwrap();
    node.write(&file(1));
    for client in &clients {
        assert_eq!(ask(&node, *client)[0], Ok("node1-pod2".to_owned()), "the maps are as they were");
    }
    node.agent.process().signal(Signal::SIGCONT).unwrap();
    assert_answered_by(&node, 1);
}

#[test]
fn a_flow_whose_sides_are_silent_is_taken_out_and_its_client_is_answered_when_it_asks_again() {
    if !standalone::can_run("flows of datagrams that are over") {
        return;
    }
    let mut node = Standalone::start(1, &file(1), &["--udp-idle=1"]);
    for target in ["10.96.0.1:53", "[fd00:96::1]:53"].map(|target| target.parse::<SocketAddr>().unwrap()) {
        let port = fresh_port();
        let ask = || ask_from(any(target, port), Talk::Udp, target).map(|answer| answer.name);
        let flow = |node: &Standalone| {
            let flows = node.agent.view().flows().unwrap();
            let its = flows.into_iter().find(|entry| entry.client_port == port).map(|entry| entry.flow);
            its.filter(|flow| flow.flags & abi::FLOW_OPENING == 0)
        };
        for _ in 0..3 {
            assert_eq!(node.world.client().enter(ask).unwrap(), "node1-pod1");
        }
        let last = flow(&node).unwrap();
        // It looks at its start, and every half a minute.
        node.agent.kill();
        let limits = node.agent.view().idle_limits().unwrap();
        let now = || tick_clock().unwrap().at(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into());
        let is_over = || !limits.is_open(Protocol::Udp.number(), &last, now());
        wait::until("the flow to be over", crate::harness::SOON, is_over).unwrap();
        node.agent.start_again(&node.world);
        wait::until("the flow to be taken out", crate::harness::SOON, || flow(&node).is_none())
            .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
        assert_eq!(node.world.client().enter(ask).unwrap(), "node1-pod1");
    }
}

#[test]
fn datagrams_larger_than_a_packet_arrive_whole_and_are_answered_whole_on_every_way() {
    let Some(cluster) = CLUSTER.join("large datagrams") else { return };
    let mut wrong = Vec::new();
    for (name, node) in [("large-near", 1), ("large-far", 2)] {
        let pod = cluster.world.node(node).pod(1);
        let served = cluster.serve_echo(&echo(name, "NodePort"), &[Member::ready(&pod)]);
        for client in clients(&cluster, &served) {
            let Client { caller, target, .. } = client;
            for length in LARGE {
                let seen = cluster.run_as(&caller, || exchange(target, length));
                let fault = match seen {
                    Ok(name) if name == pod.name() => None,
                    other => Some(format!("{caller} to {name} at {target}, {length} bytes: {other:?}")),
                };
                wrong.extend(fault);
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_client_may_send_small_and_large_datagrams_in_turn() {
    let Some(cluster) = CLUSTER.join("small and large datagrams") else { return };
    let served = cluster.serve_echo(&echo("large-small", "NodePort"), &ready(&cluster.world.node(2).pods()));
    for target in served.node_ports(cluster.world.node(1), Talk::Udp).into_iter().chain(served.cluster_ips(Talk::Udp)) {
        let names = cluster.run_as(&Caller::Outside, || {
            let socket = connected(target).unwrap();
            [10, 4000, 10, 8000, 10].map(|length| send_and_receive(&socket, length))
        });
        let first = names[0].as_ref().map_err(Clone::clone);
        assert!(
            first.is_ok() && names.iter().all(|name| name.as_ref().map_err(Clone::clone) == first),
            "{target}: {names:?}"
        );
    }
}

fn exchange(target: SocketAddr, length: usize) -> Result<String, String> {
    let socket = connected(target).map_err(|e| e.to_string())?;
    send_and_receive(&socket, length)
}

fn connected(target: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any(target, fresh_port()))?;
    socket.set_read_timeout(Some(PATIENCE.min(Duration::from_secs(1))))?;
    socket.connect(target)?;
    Ok(socket)
}

/// Sends so many bytes; all of them must come back, behind the name of the server, which is returned.
fn send_and_receive(socket: &UdpSocket, length: usize) -> Result<String, String> {
    let sent: Vec<u8> = (0..length).map(|index| b'a' + u8::try_from(index % 23).unwrap()).collect();
    socket.send(&sent).map_err(|e| format!("sending: {e}"))?;
    let mut buffer = vec![0; 2 * length + 1024];
    let received = socket.recv(&mut buffer).map_err(|e| format!("receiving: {e}"))?;
    let answer = &buffer[..received];
    if !answer.ends_with(&sent) {
        return Err(format!("{received} bytes that do not end with the {length} that were sent"));
    }
    let text = String::from_utf8_lossy(answer);
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
