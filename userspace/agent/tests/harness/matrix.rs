//! Every kind of Service from everybody: who must answer, and whom the server must see.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Service, ServiceStatus};
use weir_testbed::ask::{Answer, PATIENCE};
use weir_testbed::{Node, Pod, address};

use super::Cluster;
use super::callers::Caller;
use super::echo::{Echo, Talk, echo, ready, spec};

/// What clients connect to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalIp,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::ClusterIp, Self::NodePort, Self::LoadBalancer, Self::ExternalIp];

    /// A Service of this kind; `number` makes its external addresses, and must be its own.
    pub(crate) fn service(self, name: &str, number: u8) -> Service {
        match self {
            Self::ClusterIp => echo(name, "ClusterIP"),
            Self::NodePort => echo(name, "NodePort"),
            Self::LoadBalancer => {
                let mut service = echo(name, "LoadBalancer");
                let ingress = external(number)
                    .map(|ip| LoadBalancerIngress { ip: Some(ip.to_string()), ..LoadBalancerIngress::default() });
                let balancer = LoadBalancerStatus { ingress: Some(ingress.to_vec()) };
                service.status = Some(ServiceStatus { load_balancer: Some(balancer), ..ServiceStatus::default() });
                service
            }
            Self::ExternalIp => {
                let mut service = echo(name, "ClusterIP");
                spec(&mut service).external_ips = Some(external(number).map(|ip| ip.to_string()).to_vec());
                service
            }
        }
    }

    /// Where to connect for a Service made with `number`: both families, with NodePort on every node.
    pub(crate) fn targets(self, cluster: &Cluster, echo: &Echo, number: u8, talk: Talk) -> Vec<SocketAddr> {
        match self {
            Self::ClusterIp => echo.cluster_ips(talk).to_vec(),
            Self::NodePort => cluster.world.nodes().iter().flat_map(|node| echo.node_ports(node, talk)).collect(),
            Self::LoadBalancer | Self::ExternalIp => {
                external(number).map(|ip| SocketAddr::new(ip, talk.port())).to_vec()
            }
        }
    }
}

/// Addresses from the range that the router sends to node 1.
pub(crate) fn external(number: u8) -> [IpAddr; 2] {
    [format!("203.0.113.{number}"), format!("2001:db8:203::{number}")].map(|text| text.parse().unwrap())
}

/// Asks a Service of this kind from everybody, over everything, in both families: once with endpoints on all nodes and
/// once with endpoints on node 2 only. Panics with a list of all wrong answers.
pub(crate) fn assert_serves(cluster: &Cluster, kind: Kind, number: u8) {
    let everywhere: Vec<Pod> = cluster.world.nodes().iter().flat_map(Node::pods).collect();
    let far = cluster.world.node(2).pods();
    let mut wrong = Vec::new();
    for (pods, place, number) in [(everywhere, "all", number), (far, "far", number + 1)] {
        let name = format!("{place}-{}", format!("{kind:?}").to_lowercase());
        let served = cluster.serve_echo(&kind.service(&name, number), &ready(&pods));
        for caller in cluster.callers() {
            for talk in Talk::ALL {
                for target in kind.targets(cluster, &served, number, talk) {
                    let answer = cluster.run_as(&caller, || talk.ask(target, PATIENCE));
                    let fault = answer.map_or_else(|e| Some(e.to_string()), |a| fault(&caller, target, &pods, &a));
                    wrong.extend(fault.map(|fault| format!("{caller} asked {name} at {talk:?} {target}: {fault}")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is wrong with an answer to a caller, if something is.
pub(crate) fn fault(caller: &Caller, target: SocketAddr, pods: &[Pod], answer: &Answer) -> Option<String> {
    let Some(server) = pods.iter().find(|pod| pod.name() == answer.name) else {
        return Some(format!("{} is none of its endpoints", answer.name));
    };
    let entry = caller.entry(target.ip());
    if server.node() != entry && pods.iter().any(|pod| pod.node() == entry) {
        return Some(format!("{} answered, although there are endpoints on node {entry}", answer.name));
    }
    let expected = seen_as(caller, entry, server).like(target.ip());
    let seen = answer.client.ip();
    (seen != expected).then(|| format!("{} saw {seen} in place of {expected}", answer.name))
}

/// The client address that a server must see.
fn seen_as(caller: &Caller, entry: u8, server: &Pod) -> address::Pair {
    let near = server.node() == entry;
    let at_home = caller.node() == Some(entry);
    match caller {
        // From elsewhere to the next node is outside traffic, whoever sends it: answers must come back the same way.
        _ if !at_home && !near => address::node(entry),
        // A pod cannot be sent its own address.
        Caller::Pod(pod) if at_home && pod.name() == server.name() => address::node(entry),
        Caller::Pod(pod) => pod.address(),
        // The address of the interface that leads to the pod.
        Caller::Host(node) if at_home && near => address::gateway(*node),
        Caller::Host(node) => address::node(*node),
        Caller::Outside => address::CLIENT,
    }
}
