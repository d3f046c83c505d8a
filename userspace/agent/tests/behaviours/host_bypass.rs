//! Past the host's stack with `--host-bypass`: the host's firewall sees nothing of what goes to pods here and back, and clients
//! notice nothing.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use weir_abi as abi;
use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::ask::PATIENCE;
use weir_testbed::connection::LongConnection;
use weir_testbed::node::NIC;
use weir_testbed::{Netns, Pod, wait};

use crate::harness::echo::Talk;
use crate::harness::standalone::{self, Standalone};

const CLUSTER_IP: Pair =
    Pair { v4: Ipv4Addr::new(10, 96, 8, 1), v6: Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x801) };
/// Of the service that sends much.
const BULK: u16 = 9000;
/// Many full segments, which the kernel cuts late and joins early.
const MUCH: usize = 8 << 20;

/// The node port of a kind of talk, or of the service that sends much.
const fn node_port(talk: Option<Talk>) -> u16 {
    match talk {
        Some(Talk::Http) => 30_080,
        Some(Talk::Tcp | Talk::Udp) => 30_007,
        None => 30_090,
    }
}

/// One Service with these pods of node 1.
fn file(pods: &[u8]) -> String {
    let node = address::node(1);
    let port = |name: &str, port: u16, protocol: &str, target: u16, node_port: u16| {
        format!("{{name: {name}, port: {port}, protocol: {protocol}, targetPort: {target}, nodePort: {node_port}}}")
    };
    let talks =
        Talk::ALL.map(|talk| port(talk.name(), talk.port(), talk.protocol(), talk.target(), node_port(Some(talk))));
    let endpoints = pods.iter().flat_map(|pod| address::pod(1, *pod).both());
    let endpoints = endpoints.map(|ip| format!("{{address: \"{ip}\", node: node1}}")).collect::<Vec<_>>().join(", ");
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n- name: echo\n  clusterIPs: [{}, \"{}\"]\n  ports: \
         [{}, {}]\n  endpoints: [{endpoints}]\n",
        node.v4,
        node.v6,
        CLUSTER_IP.v4,
        CLUSTER_IP.v6,
        talks.join(", "),
        port("bulk", BULK, "TCP", BULK, node_port(None)),
    )
}

/// A node with two pods, the first of which is served, and an agent that was not started yet.
fn bed(what: &str, options: &[&str]) -> Option<Standalone> {
    standalone::can_run(what).then(|| Standalone::prepared(2, &file(&[1]), options))
}

/// Counts what the host forwards, and throws away what its connection tracking takes for invalid. Gone on drop.
struct Firewall<'a>(&'a Netns);

impl<'a> Firewall<'a> {
    fn new(node: &'a Netns) -> Self {
        let firewall = Self(node);
        firewall.nft(
            "add table inet seen; add counter inet seen forwarded; add counter inet seen invalid; \
             add chain inet seen forward { type filter hook forward priority 0; }; \
             add rule inet seen forward meta l4proto { tcp, udp } counter name forwarded; \
             add rule inet seen forward ct state invalid counter name invalid drop",
        );
        firewall
    }

    /// Packets that were forwarded since the last look.
    fn forwarded(&self) -> u64 {
        self.nft("reset counter inet seen forwarded").parse().unwrap()
    }

    /// Runs nft, and returns the number of packets that its output names, if it does.
    fn nft(&self, script: &str) -> String {
        let output = self.0.command("nft").arg(script).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_once("packets ").map(|(_, rest)| rest.split(' ').next().unwrap().to_owned()).unwrap_or_default()
    }
}

impl Drop for Firewall<'_> {
    fn drop(&mut self) {
        // The namespace may be gone.
        let _ = self.0.command("nft").arg("delete table inet seen").status();
    }
}

impl Standalone {
    fn pod(&self, number: u8) -> Pod {
        self.world.node(1).pod(number)
    }

    /// Starts the agent, anew if it runs, with or without the option.
    fn restart(&mut self, bypass: bool) {
        self.agent.remove_option("--host-bypass");
        if bypass {
            self.agent.set_option("--host-bypass");
        }
        self.agent.start_again(&self.world);
        self.agent.await_ready(&self.world);
        let view = self.agent.view();
        let is_on = || view.config().unwrap().flags & abi::CONFIG_HOST_BYPASS != 0;
        wait::until("shortcuts", PATIENCE, || is_on() == bypass && !view.shortcuts().unwrap().is_empty()).unwrap();
    }

    /// Whom `pod` sees when somebody asks there.
    fn seen(&self, by: &Netns, target: SocketAddr, talk: Talk, pod: &Pod) -> IpAddr {
        let answer = by.enter(|| talk.ask(target, PATIENCE));
        let answer = answer.unwrap_or_else(|e| panic!("{talk:?} at {target}: {e}\n{}", self.agent.log()));
        assert_eq!(answer.name, pod.name(), "{talk:?} at {target}");
        answer.client.ip()
    }

    /// Everybody asks everywhere, and is answered by the pod, which sees who asked.
    fn assert_served_by(&self, pod: &Pod) {
        let other = self.pod(if pod.address() == address::pod(1, 1) { 2 } else { 1 });
        for talk in Talk::ALL {
            for (outside, inside) in address::node(1).both().into_iter().zip(CLUSTER_IP.both()) {
                let target = SocketAddr::new(outside, node_port(Some(talk)));
                assert_eq!(self.seen(self.world.client(), target, talk, pod), CLIENT.like(outside), "{talk:?}");
                assert_eq!(self.seen(other.netns(), target, talk, pod), other.address().like(outside), "{talk:?}");
                let target = SocketAddr::new(inside, talk.port());
                assert_eq!(self.seen(other.netns(), target, talk, pod), other.address().like(inside), "{talk:?}");
                assert_eq!(
                    self.seen(pod.netns(), target, talk, pod),
                    address::node(1).like(inside),
                    "hairpin {talk:?}"
                );
            }
        }
    }
}

/// Gives a pod an interface of its own in place of the bridge's port, with routes to it and everything by its gateway, as
/// Calico and others do.
fn route_pod(node: &Netns, pod: &Pod) {
    let (link, gateway) = (pod.host_interface(), address::gateway(pod.node()));
    let Pair { v4, v6 } = pod.address();
    node.ip(&format!(
        "link set {link} nomaster\naddr add {}/32 dev {link}\naddr add {}/128 dev {link} nodad\n\
         route add {v4}/32 dev {link}\nroute add {v6}/128 dev {link}",
        gateway.v4, gateway.v6
    ))
    .unwrap();
    let mut script = format!("addr del {v4}/24 dev {NIC}\naddr del {v6}/64 dev {NIC}\nneigh flush dev {NIC}\n");
    script += &format!("addr add {v4}/32 dev {NIC}\naddr add {v6}/128 dev {NIC} nodad\n");
    for via in gateway.both() {
        script += &format!("route add {via} dev {NIC}\nroute replace default via {via} dev {NIC}\n");
    }
    pod.netns().ip(&script).unwrap();
}

#[test]
fn the_hosts_firewall_sees_nothing_with_the_option_and_all_of_it_without() {
    let Some(mut node) = bed("past the host's firewall", &[]) else { return };
    for xdp in [true, false] {
        if !xdp {
            node.agent.remove_option("--xdp-on-veth");
        }
        for bypass in [false, true, false] {
            node.restart(bypass);
            let firewall = Firewall::new(node.world.node(1).netns());
            node.assert_served_by(&node.pod(1));
            let forwarded = firewall.forwarded();
            assert_eq!(forwarded == 0, bypass, "{forwarded} packets, bypass {bypass}, XDP {xdp}");
            drop(firewall);
            node.agent.stop();
        }
    }
}

#[test]
fn pods_with_routes_to_themselves_are_served_past_the_firewall_as_those_of_a_bridge_are() {
    let Some(mut node) = bed("routed pods past the host's firewall", &[]) else { return };
    for number in [1, 2] {
        route_pod(node.world.node(1).netns(), &node.pod(number));
    }
    node.restart(true);
    let firewall = Firewall::new(node.world.node(1).netns());
    node.assert_served_by(&node.pod(1));
    assert_eq!(firewall.forwarded(), 0);
}

#[test]
fn a_pod_that_takes_the_place_of_another_is_served_past_the_firewall_too() {
    let Some(mut node) = bed("pods come and go past the host's firewall", &[]) else { return };
    node.restart(true);
    let firewall = Firewall::new(node.world.node(1).netns());
    node.assert_served_by(&node.pod(1));
    let new = node.world.add_pod(1).unwrap();
    let _servers = crate::harness::serve_in(&new);
    node.write(&file(&[3]));
    let ports = Talk::ALL.len() + 1;
    node.agent.await_backends("echo", new.address().both().repeat(ports));
    node.pod(2).delete().unwrap();
    firewall.forwarded();
    node.assert_served_by(&new);
    assert_eq!(firewall.forwarded(), 0);
    // Nothing is remembered of the one that is gone.
    let view = node.agent.view();
    let known: Vec<_> = view.shortcuts().unwrap().into_iter().map(|(index, _)| index).collect();
    assert!(view.pod_macs().unwrap().iter().all(|(_, index)| known.contains(index)));
}

/// A server in a pod that sends much to each of so many clients, once it has got as much.
fn serve_bulk(pod: &Pod, clients: usize) -> thread::JoinHandle<io::Result<()>> {
    let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, BULK))).unwrap();
    thread::spawn(move || {
        for _ in 0..clients {
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut vec![0; MUCH])?;
            stream.write_all(&vec![0x5a; MUCH])?;
        }
        Ok(())
    })
}

fn exchange(target: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&vec![0xa5; MUCH])?;
    let mut answer = vec![0; MUCH];
    stream.read_exact(&mut answer)?;
    assert!(answer.iter().all(|byte| *byte == 0x5a), "what came is what was sent");
    Ok(())
}

#[test]
fn large_transfers_arrive_whole_in_both_directions_from_outside_and_from_pods() {
    let Some(mut node) = bed("large transfers past the host", &[]) else { return };
    node.restart(true);
    let firewall = Firewall::new(node.world.node(1).netns());
    let server = serve_bulk(&node.pod(1), 4);
    let pod = node.pod(2);
    for outside in address::node(1).both() {
        let target = SocketAddr::new(outside, node_port(None));
        for (who, client) in [("outside", node.world.client()), ("pod", pod.netns())] {
            client.enter(|| exchange(target)).unwrap_or_else(|e| panic!("{who} at {target}: {e}"));
        }
    }
    server.join().unwrap().unwrap();
    assert_eq!(firewall.forwarded(), 0);
}

#[test]
fn connections_go_on_when_the_option_is_given_and_taken_away() {
    let Some(mut node) = bed("connections beside a change of the option", &[]) else { return };
    node.restart(false);
    let client = node.world.client();
    let target = |ip| SocketAddr::new(ip, node_port(Some(Talk::Tcp)));
    let open = |ip| LongConnection::open(client, target(ip), Duration::from_millis(5), PATIENCE).unwrap();
    let connections: Vec<_> = address::node(1).both().into_iter().map(open).collect();
    for bypass in [true, false] {
        node.agent.stop();
        node.restart(bypass);
        connections.iter().for_each(|connection| connection.await_exchanges(100, PATIENCE).unwrap());
    }
}
