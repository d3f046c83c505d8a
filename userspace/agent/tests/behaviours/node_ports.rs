//! Which addresses of a node serve node ports, and that node ports and external IPs are served without taking anything
//! from the node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::HTTP;
use crate::harness::clients::send_raw;
use crate::harness::echo::Talk;
use crate::harness::kernel::{assert_no_sctp_loaded, assert_unbound};
use crate::harness::standalone::{self, Standalone};
use weir_testbed::ask::{Answer, PATIENCE};
use weir_testbed::packet::Packet;
use weir_testbed::{address, serve};

/// Node ports of the Service: HTTP, UDP, and SCTP, which is not served.
const WEB: u16 = 30080;
const DATAGRAMS: u16 = 30053;
const STREAMS: u16 = 30132;
/// What is not answered within this time is not served.
const SILENCE: Duration = Duration::from_millis(300);

/// A Service with node ports and external addresses.
fn file() -> String {
    let (node, pod) = (address::node(1), address::pod(1, 1));
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n\
         - name: web\n  clusterIPs: [10.96.0.1, \"fd00:96::1\"]\n  externalIPs: [203.0.113.1, \"2001:db8:203::1\"]\n  \
         ports:\n  - {{name: http, port: 80, targetPort: {HTTP}, nodePort: {WEB}}}\n  \
         - {{name: udp, port: 53, protocol: UDP, targetPort: 7001, nodePort: {DATAGRAMS}}}\n  \
         - {{name: sctp, port: 132, protocol: SCTP, nodePort: {STREAMS}}}\n  \
         endpoints: [{{address: {}, node: node1}}, {{address: \"{}\", node: node1}}]\n",
        node.v4, node.v6, pod.v4, pod.v6
    )
}

/// A node with two pods, of which the first is the endpoint; `None` has been explained.
fn start(what: &str, options: &[&str]) -> Option<Standalone> {
    standalone::can_run(what).then(|| Standalone::start(2, &file(), options))
}

/// Who asks in these tests.
#[derive(Clone, Copy, Debug)]
enum Caller {
    Outside,
    Pod,
    Host,
}

fn ask(node: &Standalone, caller: Caller, talk: Talk, target: SocketAddr, limit: Duration) -> Result<Answer, String> {
    let work = || talk.ask(target, limit).map_err(|e| e.to_string());
    match caller {
        Caller::Outside => node.world.client().enter(work),
        Caller::Pod => node.world.node(1).pod(2).netns().enter(work),
        Caller::Host => node.agent.cgroup.enter(|| node.world.node(1).netns().enter(work)).unwrap(),
    }
}

/// Asks the node ports of an address from everybody who can reach it.
fn assert_node_ports(node: &Standalone, ip: IpAddr, served: bool, callers: &[Caller]) {
    for (talk, port) in [(Talk::Http, WEB), (Talk::Udp, DATAGRAMS)] {
        for caller in callers {
            let limit = if served { PATIENCE } else { SILENCE };
            let answer = ask(node, *caller, talk, (ip, port).into(), limit);
            assert_eq!(answer.is_ok(), served, "{caller:?} at {talk:?} {ip}:{port}: {answer:?}\n{}", node.agent.log());
        }
    }
}

/// The same node's agent with another option.
fn restart(node: &mut Standalone, option: &str) {
    node.agent.kill();
    node.agent.set_option(option);
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
}

#[test]
fn node_ports_are_served_at_the_addresses_that_the_option_names_and_at_no_others() {
    let Some(mut node) = start("addresses of node ports", &["--nodeport-addresses=primary"]) else { return };
    let (nic, bridge) = (address::node(1).both(), address::gateway(1).both());
    let [pods4, pods6] = address::pod_cidrs(1);
    let everybody = [Caller::Outside, Caller::Pod, Caller::Host];
    for (addresses, at_nic, at_bridge) in [
        ("primary".to_owned(), true, false),
        (format!("{pods4},{pods6}"), false, true),
        (format!("primary,{pods4},{pods6}"), true, true),
        ("all".to_owned(), true, true),
        ("primary".to_owned(), true, false),
    ] {
        restart(&mut node, &format!("--nodeport-addresses={addresses}"));
        for (ips, served) in [(nic, at_nic), (bridge, at_bridge)] {
            for ip in ips {
                node.agent.await_frontend(ip, WEB, served);
                assert_node_ports(&node, ip, served, &everybody);
            }
        }
        assert_node_ports(&node, Ipv4Addr::LOCALHOST.into(), false, &[Caller::Host]);
    }
}

#[test]
fn node_ports_at_further_addresses_go_on_when_the_agent_starts_again_on_a_node_with_many_routes() {
    const ROUTES: u32 = 100_000;
    let Some(mut node) = start("node ports of a node with many routes", &["--nodeport-addresses=all"]) else { return };
    let target = SocketAddr::from((address::gateway(1).v4, WEB));
    node.agent.await_frontend(target.ip(), WEB, true);
    // The kernel takes a while to list those, and the interfaces with them; the services are known at once.
    let route = |number: u32| format!("route add blackhole {}/32\n", Ipv4Addr::from(0x6440_0000 + number));
    node.world.node(1).netns().ip(&(0..ROUTES).map(route).collect::<String>()).unwrap();
    node.agent.kill();
    let asks = AtomicBool::new(true);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            node.world.client().enter(|| {
                let mut answers = Vec::new();
                while asks.load(Ordering::Relaxed) {
                    answers.push(Talk::Http.ask(target, PATIENCE).map_err(|e| e.to_string()));
                }
                answers
            })
        });
        let world = &node.world;
        node.agent.start_again(world);
        node.agent.await_ready(world);
        asks.store(false, Ordering::Relaxed);
        let answers = asking.join().unwrap();
        let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} of {}: {failed:?}\n{}", failed.len(), answers.len(), node.agent.log());
    });
}

#[test]
fn node_ports_are_served_at_localhost_where_the_option_says_so_to_processes_of_the_node_alone() {
    let Some(mut node) = start("node ports at localhost", &["--nodeport-addresses=localhost,primary"]) else { return };
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for ip in loopback {
        assert_node_ports(&node, ip, true, &[Caller::Host]);
        assert_node_ports(&node, ip, false, &[Caller::Pod, Caller::Outside]);
    }
    // To the kernel that is the same.
    for ip in [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
        assert_node_ports(&node, ip, true, &[Caller::Host]);
        assert_node_ports(&node, ip, false, &[Caller::Pod, Caller::Outside]);
    }
    for ip in address::node(1).both() {
        assert_node_ports(&node, ip, true, &[Caller::Outside, Caller::Pod, Caller::Host]);
    }
    restart(&mut node, "--nodeport-addresses=127.0.0.0/8,::1/128");
    for ip in address::node(1).both() {
        assert_node_ports(&node, ip, false, &[Caller::Outside, Caller::Pod, Caller::Host]);
    }
    for ip in loopback {
        assert_node_ports(&node, ip, true, &[Caller::Host]);
    }
}

#[test]
fn packets_from_outside_to_localhost_are_not_translated() {
    /// Ports by which the packets are known again.
    const TO_LOOPBACK: u16 = 4242;
    const TO_NODE: u16 = 4243;
    let options = ["--nodeport-addresses=localhost,primary"];
    let Some(node) = start("packets to localhost from outside", &options) else { return };
    let targets: [(IpAddr, IpAddr); 2] = [
        (address::node(1).v4.into(), Ipv4Addr::LOCALHOST.into()),
        (address::node(1).v6.into(), Ipv6Addr::LOCALHOST.into()),
    ];
    for (nic, loopback) in targets {
        let source = address::ROUTER_INSIDE.like(nic);
        for (target, port) in [(loopback, TO_LOOPBACK), (nic, TO_NODE)] {
            let packet = Packet::udp((source, port).into(), (target, DATAGRAMS).into(), b"who");
            node.world.router().enter(|| send_raw(&packet, nic)).unwrap();
        }
        let flows = |port| {
            let flows = node.agent.view().flows().unwrap();
            flows.into_iter().filter(|flow| flow.client_port == port && flow.client.ip() == source).collect::<Vec<_>>()
        };
        // The packets went the same way, one after the other.
        let what = format!("a flow of the packet to {nic}");
        weir_testbed::wait::until(&what, crate::harness::SOON, || flows(TO_NODE).len() == 1).unwrap();
        assert!(flows(TO_LOOPBACK).is_empty(), "a packet to {loopback} was translated: {:?}", flows(TO_LOOPBACK));
    }
}

#[test]
fn nothing_listens_on_a_node_port_and_a_server_of_the_node_may_take_it() {
    let Some(node) = start("listeners on node ports", &["--nodeport-addresses=all,localhost"]) else { return };
    let netns = node.world.node(1).netns();
    assert_unbound(netns, &[WEB, DATAGRAMS, STREAMS]);
    assert_no_sctp_loaded();
    let _servers = [serve::http(netns, "own", WEB).unwrap(), serve::udp_echo(netns, "own", DATAGRAMS).unwrap()];
    for ip in address::node(1).both() {
        let answer = ask(&node, Caller::Outside, Talk::Http, (ip, WEB).into(), PATIENCE).unwrap();
        assert_eq!(answer.name, "node1-pod1", "the node port comes first");
    }
}

#[test]
fn external_ips_are_served_unless_the_switch_says_no() {
    let Some(mut node) = start("the switch of external IPs", &[]) else { return };
    let external: [IpAddr; 2] = ["203.0.113.1".parse().unwrap(), "2001:db8:203::1".parse().unwrap()];
    let cluster_ips: [IpAddr; 2] = ["10.96.0.1".parse().unwrap(), "fd00:96::1".parse().unwrap()];
    for served in [true, false, true] {
        match served {
            true => node.agent.remove_option("--no-external-ips"),
            false => node.agent.set_option("--no-external-ips"),
        }
        node.agent.kill();
        node.agent.start_again(&node.world);
        node.agent.await_ready(&node.world);
        for (ip, expected) in external.map(|ip| (ip, served)).into_iter().chain(cluster_ips.map(|ip| (ip, true))) {
            node.agent.await_frontend(ip, 80, expected);
            for caller in [Caller::Outside, Caller::Pod, Caller::Host] {
                let limit = if expected { PATIENCE } else { SILENCE };
                let answer = ask(&node, caller, Talk::Http, (ip, 80).into(), limit);
                assert_eq!(answer.is_ok(), expected, "{caller:?} at {ip}: {answer:?}");
            }
        }
    }
}
