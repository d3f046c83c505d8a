//! The node's source ports: what the host uses is left to it, and whoever runs out of the others is told.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use weir_abi as abi;
use weir_core::source_ports::PortSet;
use weir_testbed::{address, wait};

use crate::harness::echo::{Member, Talk, echo};
use crate::harness::standalone::{self, Standalone};
use crate::harness::{self, Cluster, HTTP, SOON};

/// What is not answered within this time is not served.
const SILENCE: Duration = Duration::from_millis(300);

fn usable(node: &Standalone) -> PortSet {
    node.agent.view().source_ports().unwrap()
}

/// Waits until new flows may take all of these ports, or none of them.
fn await_usable(node: &Standalone, what: &str, ports: &[u16], are: bool) {
    let all = || ports.iter().all(|port| usable(node).contains(*port) == are);
    wait::until(what, SOON, all).unwrap_or_else(|e| panic!("{e}: {}\n{}", usable(node), node.agent.log()));
}

/// A Service with a node port.
fn file(node_port: u16) -> String {
    let (node, pod) = (address::node(1), address::pod(1, 1));
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n- name: web\n  clusterIPs: [10.96.0.1]\n  ports: [{{port: \
         80, targetPort: {HTTP}, nodePort: {node_port}}}]\n  endpoints: [{{address: {}, node: node1}}]\n",
        node.v4, node.v6, pod.v4
    )
}

#[test]
fn ports_that_the_host_comes_to_use_are_left_to_it_and_come_back() {
    let what = "ports that the host uses";
    let Some(node) = standalone::can_run(what).then(|| Standalone::start(1, &file(20_080), &[])) else { return };
    let netns = node.world.node(1).netns();
    let ports = [20_000, 20_001, 20_002, 20_003];
    let at_first = usable(&node);
    assert!([1024, 29_999, 61_000, u16::MAX].iter().chain(&ports).all(|port| at_first.contains(*port)), "{at_first}");
    let hosts = [1023, 10_249, 10_256, 20_080, 30_000, 32_767, 32_768, 60_999];
    assert!(hosts.iter().all(|port| !at_first.contains(*port)), "{at_first}");

    let (v4, v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    let sockets = netns.enter(|| {
        let tcp = (TcpListener::bind((v4, ports[0])).unwrap(), TcpListener::bind((v6, ports[1])).unwrap());
        (tcp, UdpSocket::bind((v4, ports[2])).unwrap(), UdpSocket::bind((v6, ports[3])).unwrap())
    });
    await_usable(&node, "bound ports to be left to the host", &ports, false);
    drop(sockets);
    await_usable(&node, "ports that are not bound any more", &ports, true);

    netns.sysctl("net/ipv4/ip_local_port_range", "40000 41000").unwrap();
    await_usable(&node, "ports that are not ephemeral any more", &[39_999, 41_001, 60_000], true);
    await_usable(&node, "ports that are ephemeral", &[40_000, 41_000], false);
    // Longer than what a reader of files begins with.
    let reserved = "20000,20002,20004,20006,20008,20010,20012,50000-50010";
    netns.sysctl("net/ipv4/ip_local_reserved_ports", reserved).unwrap();
    await_usable(&node, "reserved ports to be left to the host", &[20_000, 20_012, 50_000, 50_010], false);
    node.write(&file(20_081));
    await_usable(&node, "a new node port to be left to its Service", &[20_081], false);
    netns.sysctl("net/ipv4/ip_local_port_range", "1024 65535").unwrap();
    await_usable(&node, "every second port of a host that has no others", &[1025, 20_083, 40_001, u16::MAX], true);
    await_usable(&node, "ports that the host's connections get", &[1024, 20_082, 40_002], false);
    node.agent.await_log("net.ipv4.ip_local_port_range leaves few ports");
    let listener = netns.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 20_083)).unwrap());
    let to = listener.local_addr().unwrap();
    let connections: Vec<_> = netns.enter(|| (0..100).map(|_| TcpStream::connect(to).unwrap()).collect());
    let (ours, port) = (usable(&node), |one: &TcpStream| one.local_addr().unwrap().port());
    let taken = connections.iter().map(port).find(|port| ours.contains(*port));
    assert_eq!(taken, None, "a connection of the host's has one of ours");
    let gauge = || node.agent.metric(&node.world, "weir_source_ports");
    wait::until("the metric to follow", SOON, || gauge() == f64::from(usable(&node).len())).unwrap();
}

#[test]
fn who_runs_out_of_source_ports_is_told_in_the_log_and_by_an_event_on_the_node() {
    if !harness::can_run("source ports that run out") {
        return;
    }
    let cluster = Cluster::start(2, 1, &["--snat-ports=20000-20000"]);
    let node = cluster.world.node(1);
    let served = cluster.serve_echo(&echo("far", "NodePort"), &[Member::ready(&cluster.world.node(2).pod(1))]);
    for target in served.node_ports(node, Talk::Tcp) {
        let (first, second) = cluster.world.client().enter(|| {
            let first = TcpStream::connect_timeout(&target, SOON).unwrap();
            (first, TcpStream::connect_timeout(&target, SILENCE))
        });
        let served_from = first.local_addr().unwrap();
        assert!(second.is_err(), "there is one port, and {served_from} has it");
    }
    let hooks = [abi::HOOK_XDP, abi::HOOK_NIC_INGRESS];
    assert!(hooks.iter().any(|hook| cluster.agents[0].packets(*hook, abi::REASON_SNAT_EXHAUSTED) > 0));
    cluster.agents[0].await_log("dropped for want of source ports towards an endpoint on another node: give Services");
    let event = cluster.await_event_about("Node", &node.name(), "SourcePortsExhausted");
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert!(event.note.unwrap().contains("widen --snat-ports, or narrow net.ipv4.ip_local_port_range"));
}
