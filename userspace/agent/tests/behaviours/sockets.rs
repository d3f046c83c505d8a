//! Processes on the host that hold a connected UDP socket: it fails when its endpoint is gone, so that they connect anew. No
//! other socket does.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Socket, Type};
use weir_testbed::{address, wait};

use crate::harness::callers::say;
use crate::harness::clients::any;
use crate::harness::standalone::{self, Standalone};
use crate::harness::{SOON, UDP};

const NODE_PORT: u16 = 30_053;

/// Endpoint conditions of the file.
const READY: &str = "";
const DRAINING: &str = ", ready: false, serving: true, terminating: true";
const FAILING: &str = ", ready: false, serving: false";

/// A Service of UDP whose cluster IPs have this number, with endpoints in these pods. The first one has a node port, too.
fn service(number: u8, endpoints: &[(u8, &str)]) -> String {
    let members = endpoints.iter().flat_map(|(pod, conditions)| {
        address::pod(1, *pod).both().map(|ip| format!("{{address: \"{ip}\", node: node1{conditions}}}"))
    });
    let node_port = if number == 1 { format!(", nodePort: {NODE_PORT}") } else { String::new() };
    format!(
        "- name: udp-{number}\n  clusterIPs: [10.96.0.{number}, \"fd00:96::{number}\"]\n  \
         ports: [{{port: 53, protocol: UDP, targetPort: {UDP}{node_port}}}]\n  endpoints: [{}]\n",
        members.collect::<Vec<_>>().join(", ")
    )
}

fn file(services: &[String]) -> String {
    let [v4, v6] = address::node(1).both();
    let services = if services.is_empty() { "[]".to_owned() } else { format!("\n{}", services.concat()) };
    format!("nodes: [{{name: node1, addresses: [{v4}, \"{v6}\"]}}]\nservices: {services}")
}

/// How a process may name a pair of addresses: IPv4, IPv6, and IPv4 from a socket of IPv6.
fn ways([v4, v6]: [SocketAddr; 2]) -> [SocketAddr; 3] {
    let SocketAddr::V4(of_v4) = v4 else { panic!("{v4} is not of IPv4") };
    [v4, v6, SocketAddr::new(of_v4.ip().to_ipv6_mapped().into(), v4.port())]
}

fn cluster_ips(number: u8) -> [SocketAddr; 3] {
    let addresses = [format!("10.96.0.{number}:53"), format!("[fd00:96::{number}]:53")];
    ways(addresses.map(|address| address.parse().unwrap()))
}

fn pods(number: u8) -> [SocketAddr; 3] {
    ways(address::pod(1, number).both().map(|ip| SocketAddr::new(ip, UDP)))
}

fn node_ports() -> [SocketAddr; 3] {
    ways(address::node(1).both().map(|ip| SocketAddr::new(ip, NODE_PORT)))
}

/// A connected socket of a process on the node.
struct Held {
    socket: UdpSocket,
    target: SocketAddr,
}

impl Held {
    fn connect_again(&self, node: &Standalone) -> std::io::Result<()> {
        on_host(node, || self.socket.connect(self.target))
    }

    /// Who answers over it as it is.
    fn ask(&self) -> Result<String, ErrorKind> {
        say(&self.socket, None).map(|answer| answer.name).map_err(|e| e.kind())
    }

    fn await_failure(&self, node: &Standalone) {
        let seen = self.socket.recv(&mut [0; 64]).map_err(|e| e.kind());
        assert_eq!(seen, Err(ErrorKind::ConnectionAborted), "{}\n{}", self.target, node.agent.log());
    }

    fn assert_answered_by(&self, pod: u8, when: &str) {
        assert_eq!(self.ask(), Ok(format!("node1-pod{pod}")), "over the socket to {}, {when}", self.target);
    }
}

/// Does something as a process of the node would, in its namespace and in the cgroup of the hooks.
fn on_host<T: Send>(node: &Standalone, work: impl FnOnce() -> T + Send) -> T {
    node.agent.cgroup.enter(|| node.world.node(1).netns().enter(work)).unwrap()
}

fn hold(node: &Standalone, targets: &[SocketAddr]) -> Vec<Held> {
    let connect = |target: &SocketAddr| {
        let socket = on_host(node, || {
            let socket = UdpSocket::bind(any(*target, 0)).unwrap();
            socket.connect(*target).unwrap_or_else(|e| panic!("{target}: {e}"));
            socket
        });
        socket.set_read_timeout(Some(SOON)).unwrap();
        Held { socket, target: *target }
    };
    targets.iter().map(connect).collect()
}

/// All of them fail, connect anew, and get to this pod.
fn assert_moved(node: &Standalone, sockets: &[Held], pod: u8, when: &str) {
    sockets.iter().for_each(|held| held.await_failure(node));
    for held in sockets {
        held.connect_again(node).unwrap_or_else(|e| panic!("{}: {e}", held.target));
        held.assert_answered_by(pod, when);
    }
}

/// Waits until as many were destroyed since the agent's start; more is as wrong as less.
fn assert_destroyed(node: &Standalone, expected: usize) {
    let count = || node.agent.metric(&node.world, "weir_sockets_destroyed_total");
    let expected = f64::from(u32::try_from(expected).unwrap());
    let enough = || if count() >= expected { Ok(()) } else { Err(format!("{}", count())) };
    wait::until_some("sockets to be destroyed", SOON, enough).unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    assert_eq!(count(), expected);
    assert_eq!(node.agent.metric(&node.world, "weir_socket_sweep_failures_total"), 0.0);
}

#[test]
fn a_socket_fails_when_its_endpoint_is_removed_and_connects_anew_to_another_one() {
    if !standalone::can_run("connected UDP sockets whose endpoint is removed") {
        return;
    }
    let served = |pod| file(&[service(1, &[(pod, READY)]), service(2, &[(1, READY)])]);
    let node = Standalone::start(2, &served(1), &[]);
    let moved = hold(&node, &[cluster_ips(1), node_ports()].concat());
    let stay = hold(&node, &[pods(1), cluster_ips(2)].concat());
    moved.iter().chain(&stay).for_each(|held| held.assert_answered_by(1, "before"));
    node.write(&served(2));
    assert_moved(&node, &moved, 2, "after the removal of pod 1");
    assert_destroyed(&node, moved.len());
    stay.iter().for_each(|held| held.assert_answered_by(1, "of another Service, or to the pod itself"));
    // Those that connected anew are held as those before, and each socket is destroyed once.
    node.write(&served(1));
    assert_moved(&node, &moved, 1, "after the removal of pod 2");
    assert_destroyed(&node, 2 * moved.len());
    stay.iter().for_each(|held| held.assert_answered_by(1, "after two changes of other endpoints"));
}

/// Between the same two ends, where the kernel finds one of them.
#[test]
fn all_sockets_that_share_a_port_of_the_host_fail_when_their_endpoint_is_removed() {
    if !standalone::can_run("connected UDP sockets that share a port") {
        return;
    }
    let served = |pod| file(&[service(1, &[(pod, READY)])]);
    let node = Standalone::start(2, &served(1), &[]);
    let targets = cluster_ips(1);
    let share = |target: SocketAddr| {
        let bind = |at: SocketAddr| {
            let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&at.into()).unwrap();
            UdpSocket::from(socket)
        };
        on_host(&node, || {
            let first = bind(any(target, 0));
            let others = [(); 3].map(|()| bind(any(target, first.local_addr().unwrap().port())));
            std::iter::once(first).chain(others).collect::<Vec<_>>()
        })
    };
    let mut sockets = Vec::new();
    for target in targets {
        for socket in share(target) {
            socket.set_read_timeout(Some(SOON)).unwrap();
            sockets.push(Held { socket, target });
        }
    }
    sockets.iter().for_each(|held| held.connect_again(&node).unwrap());
    node.write(&served(2));
    sockets.iter().for_each(|held| held.await_failure(&node));
    assert_destroyed(&node, sockets.len());
}

#[test]
fn a_socket_that_is_connected_to_the_pod_itself_after_its_end_is_left_alone() {
    if !standalone::can_run("UDP sockets that change sides") {
        return;
    }
    let served = |pod| file(&[service(1, &[(pod, READY)])]);
    let node = Standalone::start(2, &served(1), &[]);
    let mut held = hold(&node, &cluster_ips(1));
    node.write(&served(2));
    for (held, pod) in held.iter_mut().zip(pods(1)) {
        held.await_failure(&node);
        held.target = pod;
        held.connect_again(&node).unwrap();
    }
    let other = hold(&node, &cluster_ips(1));
    node.write(&served(1));
    assert_moved(&node, &other, 1, "after the removal of pod 2");
    assert_destroyed(&node, held.len() + other.len());
    held.iter().for_each(|held| held.assert_answered_by(1, "directly"));
}

#[test]
fn a_socket_fails_when_its_service_has_no_endpoint_any_more_or_is_deleted() {
    if !standalone::can_run("connected UDP sockets whose Service is gone") {
        return;
    }
    let up = file(&[service(1, &[(1, READY)])]);
    let node = Standalone::start(1, &up, &[]);
    for (gone, refused) in [(file(&[service(1, &[])]), true), (file(&[]), false)] {
        let sockets = hold(&node, &cluster_ips(1));
        sockets.iter().for_each(|held| held.assert_answered_by(1, "before"));
        node.write(&gone);
        for held in &sockets {
            held.await_failure(&node);
            let again = held.connect_again(&node).map_err(|e| e.kind());
            // Nobody knows the address of a deleted Service.
            assert_eq!(again == Err(ErrorKind::ConnectionRefused), refused, "{}: {again:?}", held.target);
        }
        node.write(&up);
        for target in cluster_ips(1) {
            node.agent.await_backends("udp-1", address::pod(1, 1).both().to_vec());
            node.agent.await_frontend(target.ip().to_canonical(), target.port(), true);
        }
        // Those that are connected to the address itself would be heard by nobody for as long as they live.
        if refused {
            sockets.iter().for_each(|held| held.connect_again(&node).unwrap());
        } else {
            assert_moved(&node, &sockets, 1, "when the Service is there again");
        }
        sockets.iter().for_each(|held| held.assert_answered_by(1, "when the Service serves again"));
    }
}

#[test]
fn a_socket_stays_with_an_endpoint_that_terminates_but_serves_until_it_serves_no_more() {
    if !standalone::can_run("connected UDP sockets of endpoints that terminate") {
        return;
    }
    let node = Standalone::start(2, &file(&[service(1, &[(1, READY)]), service(2, &[(2, READY)])]), &[]);
    let sockets = hold(&node, &cluster_ips(1));
    let witnesses = hold(&node, &cluster_ips(2));
    // That the agent has looked at the sockets meanwhile is seen by those of the other Service.
    node.write(&file(&[service(1, &[(1, DRAINING), (2, READY)]), service(2, &[(1, READY)])]));
    assert_moved(&node, &witnesses, 1, "after the removal of pod 2");
    assert_destroyed(&node, witnesses.len());
    sockets.iter().for_each(|held| held.assert_answered_by(1, "while it terminates"));
    node.write(&file(&[service(1, &[(1, FAILING), (2, READY)]), service(2, &[(1, READY)])]));
    assert_moved(&node, &sockets, 2, "since pod 1 serves no more");
    assert_destroyed(&node, witnesses.len() + sockets.len());
}

#[test]
fn a_socket_whose_endpoint_went_while_the_agent_was_dead_fails_when_it_is_back() {
    if !standalone::can_run("connected UDP sockets while the agent is away") {
        return;
    }
    let served = |first, second| file(&[service(1, &[(first, READY)]), service(2, &[(second, READY)])]);
    let mut node = Standalone::start(2, &served(1, 2), &[]);
    let sockets = hold(&node, &cluster_ips(1));
    let stay = hold(&node, &[pods(1), cluster_ips(2)].concat());
    node.agent.kill();
    node.write(&served(2, 2));
    sockets.iter().for_each(|held| held.assert_answered_by(1, "while the agent is away"));
    node.agent.start_again(&node.world);
    assert_moved(&node, &sockets, 2, "after the restart");
    assert_destroyed(&node, sockets.len());
    for (held, pod) in stay.iter().zip([1, 1, 1, 2, 2, 2]) {
        held.assert_answered_by(pod, "after the restart");
    }
}

#[test]
fn a_socket_fails_when_its_address_becomes_another_services() {
    if !standalone::can_run("connected UDP sockets to addresses that move") {
        return;
    }
    let with_external = |number: u8, text: &str| {
        let service = service(number, &[(number, READY)]);
        service.replacen("  ports:", &format!("  externalIPs: [{text}]\n  ports:"), 1)
    };
    let external = "203.0.113.9, \"fd00:113::9\"";
    let node = Standalone::start(2, &file(&[with_external(1, external), service(2, &[(2, READY)])]), &[]);
    let targets = ways(["203.0.113.9:53", "[fd00:113::9]:53"].map(|target| target.parse().unwrap()));
    let sockets = hold(&node, &targets);
    let stay = hold(&node, &cluster_ips(1));
    sockets.iter().for_each(|held| held.assert_answered_by(1, "before"));
    node.write(&file(&[service(1, &[(1, READY)]), with_external(2, external)]));
    assert_moved(&node, &sockets, 2, "of the Service that has the address now");
    assert_destroyed(&node, sockets.len());
    stay.iter().for_each(|held| held.assert_answered_by(1, "at the cluster IP"));
}

#[test]
fn a_socket_that_the_agent_had_no_time_for_fails_when_it_is_back() {
    if !standalone::can_run("an agent that ends right after a removal") {
        return;
    }
    let served = |pod| file(&[service(1, &[(pod, READY)])]);
    let mut node = Standalone::start(2, &served(1), &[]);
    let sockets = hold(&node, &cluster_ips(1));
    node.write(&served(2));
    // It looks at the sockets a little after the maps have changed; a test machine that is slow to get here proves less.
    node.agent.await_backends("udp-1", address::pod(1, 2).both().to_vec());
    node.agent.kill();
    node.agent.start_again(&node.world);
    assert_moved(&node, &sockets, 2, "after the restart");
}
