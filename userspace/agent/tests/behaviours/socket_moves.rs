//! Addresses that move from one Service to another under a process that keeps its socket.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::CLUSTER;
use crate::harness::callers::{Caller, say};
use crate::harness::echo::{Echo, Member, Talk, echo, spec};
use crate::harness::matrix::external;
use crate::harness::{Agent, Cluster, SOON, text};
use k8s_openapi::api::core::v1::Service;
use weir_testbed::{Pod, wait};

/// In the range of node ports, and clear of those that the API server gives out by itself.
const NODE_PORT: i32 = 30_011;

/// What can move, and who has it.
#[derive(Clone, Copy, Debug)]
enum Moving {
    ExternalIp(u8),
    NodePort,
}

impl Moving {
    /// The Service, with the address that moves or without it.
    fn service(self, name: &str, has_it: bool) -> Service {
        let mut service = echo(name, "ClusterIP");
        match self {
            _ if !has_it => {}
            Self::ExternalIp(number) => {
                spec(&mut service).external_ips = Some(external(number).map(|ip| ip.to_string()).to_vec());
            }
            Self::NodePort => {
                spec(&mut service).type_ = Some("NodePort".into());
                let ports = spec(&mut service).ports.as_mut().unwrap();
                let udp = ports.iter_mut().find(|port| port.name.as_deref() == Some(Talk::Udp.name()));
                udp.unwrap().node_port = Some(NODE_PORT);
            }
        }
        service
    }

    fn targets(self, cluster: &Cluster, node: u8) -> [SocketAddr; 2] {
        match self {
            Self::ExternalIp(number) => external(number).map(|ip| SocketAddr::new(ip, Talk::Udp.port())),
            Self::NodePort => {
                let port = NODE_PORT.try_into().unwrap();
                cluster.world.node(node).address().both().map(|ip| SocketAddr::new(ip, port))
            }
        }
    }
}

/// A process's socket that is connected to nobody, and where it sends.
struct Sender {
    host: u8,
    socket: UdpSocket,
    target: SocketAddr,
}

impl Sender {
    /// A socket for each family, and one of IPv6 that speaks IPv4, on both nodes.
    fn all(cluster: &Cluster, moving: Moving) -> Vec<Self> {
        let mut senders = Vec::new();
        for host in [1, 2] {
            let [v4, v6] = moving.targets(cluster, host);
            let IpAddr::V4(ip) = v4.ip() else { panic!("{v4} is not of IPv4") };
            let mapped = SocketAddr::new(ip.to_ipv6_mapped().into(), v4.port());
            for target in [v4, v6, mapped] {
                let socket = cluster.socket(&Caller::Host(host), target);
                senders.push(Self { host, socket, target });
            }
        }
        senders
    }

    /// Several datagrams in a row are answered by this pod.
    fn assert_answered_by(&self, pod: &Pod, when: &str) {
        for number in 0..3 {
            let Self { host, socket, target } = self;
            let answer = say(socket, Some(*target)).map(|answer| answer.name).map_err(|e| e.kind());
            assert_eq!(answer, Ok(pod.name()), "host of node {host} to {target}, {when}, datagram {number}");
        }
    }
}

/// Waits until an agent's frontends at these addresses are all a Service's.
fn await_owner(agent: &Agent, targets: [SocketAddr; 2], owner: &Echo) {
    let view = agent.view();
    let right = || {
        let dump = view.dump().unwrap();
        let owner_of = |slot: u32| {
            let name = dump.service_names.iter().find(|(id, _)| *id == slot);
            name.map(|(_, name)| text(&name.name).to_owned())
        };
        let udp = |target: SocketAddr| {
            let of_target = move |(key, frontend): &(weir_core::ops::FrontendKey, weir_abi::Frontend)| {
                let udp = weir_core::model::Protocol::Udp.number();
                let same = (key.address, key.port, key.protocol) == (target.ip(), target.port(), udp);
                same.then_some(frontend.service)
            };
            dump.frontends.iter().find_map(of_target).and_then(owner_of)
        };
        let owners: BTreeSet<_> = targets.map(udp).into();
        if owners == [Some(owner.name().to_owned())].into() { Ok(()) } else { Err(format!("{owners:?}")) }
    };
    let what = format!("{targets:?} to be {}'s", owner.name());
    wait::until_some(&what, SOON, right).unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
}

/// Moves the address there and back under sockets that send all the time. Both Services keep their endpoints.
fn assert_follows(cluster: &Cluster, moving: Moving, names: [&str; 2]) {
    let pods = [cluster.world.node(1).pod(1), cluster.world.node(2).pod(2)];
    let publish = |index: usize, has_it: bool| {
        cluster.serve_echo(&moving.service(names[index], has_it), &[Member::ready(&pods[index])])
    };
    let senders = Sender::all(cluster, moving);
    publish(1, false);
    for (round, (owner, other)) in [(0, 1), (1, 0), (0, 1)].into_iter().enumerate() {
        publish(other, false);
        let owner_now = publish(owner, true);
        for (agent, node) in cluster.agents.iter().zip(1..) {
            await_owner(agent, moving.targets(cluster, node), &owner_now);
        }
        for sender in &senders {
            sender.assert_answered_by(&pods[owner], &format!("{} has it, round {round}", names[owner]));
        }
    }
}

#[test]
fn the_next_datagram_to_an_external_ip_goes_to_the_service_that_has_it_now() {
    let Some(cluster) = CLUSTER.join("external IPs that move") else { return };
    assert_follows(&cluster, Moving::ExternalIp(130), ["moves-external-a", "moves-external-b"]);
}

#[test]
fn the_next_datagram_to_a_node_port_goes_to_the_service_that_has_it_now() {
    let Some(cluster) = CLUSTER.join("node ports that move") else { return };
    assert_follows(&cluster, Moving::NodePort, ["moves-port-a", "moves-port-b"]);
}
