//! Clusters and nodes with one address family: what there is of it is served to everybody, and what there is not
//! harms nobody.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Talk, echo, ready, slice, spec};
use crate::harness::http;
use crate::harness::matrix::{external, fault};
use crate::harness::{self, Agent, Cluster, SOON};
use k8s_openapi::api::core::v1::Service;
use weir_testbed::apiserver::{ApiServer, User};
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Pod, address, wait};

/// Which addresses there are.
#[derive(Clone, Copy, Debug)]
enum Stack {
    /// IPv6 alone, also for Services.
    V6,
    /// Nodes and pods have IPv4 alone, and Services of both families are asked for.
    V4,
    /// Everything has both, but the Node objects tell IPv4 alone.
    BothToldAsV4,
}

impl Stack {
    /// Two nodes with two pods each and their agents; `None` has been explained.
    fn start(self, what: &str) -> Option<Cluster> {
        if !harness::can_run(what) {
            return None;
        }
        let world = Cluster::world(2, 2);
        match self {
            Self::V6 => world.remove_v4().unwrap(),
            Self::V4 => world.remove_v6().unwrap(),
            Self::BothToldAsV4 => {}
        }
        let [v4, v6] = address::cluster_ips();
        let (ranges, told, router): (_, fn(&IpAddr) -> bool, IpAddr) = match self {
            Self::V6 => (vec![v6], IpAddr::is_ipv6, address::ROUTER_INSIDE.v6.into()),
            Self::V4 | Self::BothToldAsV4 => (vec![v4, v6], IpAddr::is_ipv4, address::ROUTER_INSIDE.v4.into()),
        };
        let api = ApiServer::start_with(Some(world.router()), &ranges).unwrap();
        let mut cluster = Cluster::around(world, api, told);
        let url = cluster.api.url_at(router);
        for node in [1, 2] {
            let kubeconfig = cluster.api.kubeconfig(User::Admin, &url).unwrap();
            let source = ["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
            cluster.agents.push(Agent::with_source(&cluster.world, node, source, &[]));
        }
        cluster.agents.iter().for_each(|agent| agent.await_ready(&cluster.world));
        Some(cluster)
    }

    /// Whether clients reach Services in this family.
    const fn serves(self, ip: IpAddr) -> bool {
        match self {
            Self::V6 => ip.is_ipv6(),
            Self::V4 => ip.is_ipv4(),
            Self::BothToldAsV4 => true,
        }
    }

    /// Makes or changes a load balancer with endpoints in these pods, and waits until every agent has it. `number` makes
    /// its addresses.
    fn publish(self, cluster: &Cluster, service: &Service, number: u8, pods: &[Pod]) -> Echo {
        let served = Echo { service: cluster.objects.apply(service).unwrap() };
        let balancer: Vec<_> = external(number).into_iter().filter(|ip| self.serves(*ip)).collect();
        let served = Echo { service: cluster.objects.set_load_balancer(&served.service, &balancer).unwrap() };
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            let has = |ip: IpAddr| self.serves(ip) && ip.is_ipv6() == v6;
            if address::node(1).both().into_iter().any(has) {
                cluster.objects.apply(&slice(served.name(), suffix, v6, &ready(pods))).unwrap();
            }
        }
        let endpoints: BTreeSet<IpAddr> =
            pods.iter().flat_map(|pod| pod.address().both()).filter(|ip| self.serves(*ip)).collect();
        for (agent, number) in cluster.agents.iter().zip(1..) {
            for target in self.targets(cluster, &served, Talk::Udp, &balancer) {
                // Of the node ports each node has its own.
                let other = (1..=2).any(|node| node != number && address::node(node).both().contains(&target.ip()));
                if !other {
                    agent.await_frontend(target.ip(), target.port(), true);
                }
            }
            agent.await_endpoints(served.name(), &endpoints, &|_| endpoints.clone());
        }
        served
    }

    /// Where clients reach a Service: cluster IPs, node ports of both nodes, and the addresses of its load balancer.
    fn targets(self, cluster: &Cluster, served: &Echo, talk: Talk, balancer: &[IpAddr]) -> Vec<SocketAddr> {
        let cluster_ips = cluster_ips(served);
        let node_ports = cluster.world.nodes().iter().flat_map(|node| served.node_ports(node, talk));
        let others = cluster_ips.iter().chain(balancer).map(|ip| SocketAddr::new(*ip, talk.port()));
        others.chain(node_ports).filter(|target| self.serves(target.ip())).collect()
    }

    /// Asks everything from everybody, with endpoints on both nodes and on the second one alone.
    fn assert_serves(self, cluster: &Cluster) {
        let all: Vec<Pod> = cluster.world.nodes().iter().flat_map(weir_testbed::Node::pods).collect();
        let far = cluster.world.node(2).pods();
        let mut wrong = Vec::new();
        for (name, number, pods) in [("all", 1, all), ("far", 2, far)] {
            let served = self.publish(cluster, &echo(name, "LoadBalancer"), number, &pods);
            for caller in cluster.callers() {
                for talk in Talk::ALL {
                    for target in self.targets(cluster, &served, talk, &external(number)) {
                        let answer = cluster.run_as(&caller, || talk.ask(target, PATIENCE));
                        let fault = answer.map_or_else(|e| Some(e.to_string()), |a| fault(&caller, target, &pods, &a));
                        wrong.extend(fault.map(|fault| format!("{caller} asked {name} at {talk:?} {target}: {fault}")));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
    }
}

fn cluster_ips(served: &Echo) -> Vec<IpAddr> {
    let ips = served.service.spec.as_ref().unwrap().cluster_ips.as_ref().unwrap();
    ips.iter().map(|ip| ip.parse().unwrap()).collect()
}

/// Neither a warning nor an error: one family is no mistake.
fn assert_no_complaint(cluster: &Cluster) {
    for agent in &cluster.agents {
        let log = agent.log();
        let complaints: Vec<_> =
            log.lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

/// A Service whose external policy is Local, with endpoints on node 1: its health is told at both nodes.
fn assert_health_checks(stack: Stack, cluster: &Cluster, number: u8) {
    let mut service = echo("checked", "LoadBalancer");
    spec(&mut service).external_traffic_policy = Some("Local".into());
    let served = stack.publish(cluster, &service, number, &cluster.world.node(1).pods());
    let port = served.service.spec.as_ref().unwrap().health_check_node_port.unwrap().try_into().unwrap();
    for (node, status) in [(1, 200), (2, 503)] {
        for ip in address::node(node).both().into_iter().filter(|ip| stack.serves(*ip)) {
            let ask = || match cluster.world.client().enter(|| http::get(SocketAddr::new(ip, port), "/")) {
                Ok(reply) if reply.status == status => Ok(()),
                other => Err(format!("{other:?}")),
            };
            wait::until_some(&format!("{status} of the health check at {ip}"), SOON, ask).unwrap();
        }
    }
}

/// Clients that stay with their endpoint at every address of a Service.
fn assert_affinity(stack: Stack, cluster: &Cluster, number: u8) {
    /// Of 4 endpoints, as often as this, by chance: once in 200,000 runs.
    const TIMES: usize = 10;
    let mut service = echo("sticky", "LoadBalancer");
    spec(&mut service).session_affinity = Some("ClientIP".into());
    let pods: Vec<_> = cluster.world.nodes().iter().flat_map(weir_testbed::Node::pods).collect();
    let served = stack.publish(cluster, &service, number, &pods);
    for talk in [Talk::Tcp, Talk::Udp] {
        for caller in [Caller::Pod(cluster.world.node(2).pod(1)), Caller::Host(2), Caller::Outside] {
            let at_node_2 = |target: &SocketAddr| caller.entry(target.ip()) == 2;
            let targets = stack.targets(cluster, &served, talk, &external(number));
            // A node's clients are known to that node alone.
            for entry in [true, false] {
                for v6 in [false, true] {
                    let targets = targets.iter().filter(|target| at_node_2(target) == entry && target.is_ipv6() == v6);
                    let names: BTreeSet<_> =
                        targets.flat_map(|target| cluster.names(&caller, talk, *target, TIMES)).collect();
                    assert!(names.len() <= 1, "{caller} over {talk:?}, entering at node 2: {entry}: {names:?}");
                }
            }
        }
    }
}

#[test]
fn a_cluster_of_ipv6_alone_is_served_to_everybody_as_one_of_both() {
    let Some(cluster) = Stack::V6.start("a cluster of IPv6 alone") else { return };
    for node in cluster.world.nodes() {
        let config = cluster.agents[usize::from(node.number()) - 1].view().config().unwrap();
        assert_eq!((config.node4, config.node6.ip()), (weir_abi::Addr::UNSET, node.address().v6.into()));
    }
    Stack::V6.assert_serves(&cluster);
    assert_health_checks(Stack::V6, &cluster, 3);
    assert_affinity(Stack::V6, &cluster, 4);
    assert_no_complaint(&cluster);
}

#[test]
fn services_of_both_families_on_nodes_of_ipv4_alone_are_served_in_ipv4_and_refuse_in_ipv6() {
    let stack = Stack::V4;
    let Some(cluster) = stack.start("nodes of IPv4 alone") else { return };
    stack.assert_serves(&cluster);
    assert_health_checks(stack, &cluster, 3);
    assert_affinity(stack, &cluster, 4);
    let served = stack.publish(&cluster, &echo("both", "LoadBalancer"), 5, &cluster.world.node(2).pods());
    let ips = cluster_ips(&served);
    assert_eq!(ips.len(), 2, "a Service of both families: {ips:?}");
    let v6 = ips.into_iter().find(IpAddr::is_ipv6).unwrap();
    for talk in Talk::ALL {
        let answer = cluster.run_as(&Caller::Host(1), || talk.ask(SocketAddr::new(v6, talk.port()), PATIENCE));
        assert_eq!(answer.map_err(|e| e.io_kind()), Err(Some(ErrorKind::ConnectionRefused)), "{talk:?} at {v6}");
    }
    for agent in &cluster.agents {
        let node_ports = agent.view().dump().unwrap().frontends;
        let kind = weir_abi::KIND_NODE_PORT;
        let wrong: Vec<_> = node_ports.iter().filter(|(key, f)| f.kind == kind && key.address.is_ipv6()).collect();
        assert!(wrong.is_empty(), "node ports at addresses that the node does not have: {wrong:?}");
    }
    assert_no_complaint(&cluster);
}

#[test]
fn a_family_that_the_node_object_does_not_tell_is_served_at_the_nics_own_address() {
    let stack = Stack::BothToldAsV4;
    let Some(cluster) = stack.start("nodes that are told as IPv4 alone") else { return };
    for node in cluster.world.nodes() {
        let config = cluster.agents[usize::from(node.number()) - 1].view().config().unwrap();
        assert_eq!([config.node4.ip(), config.node6.ip()], node.address().both());
    }
    stack.assert_serves(&cluster);
    assert_health_checks(stack, &cluster, 3);
    assert_no_complaint(&cluster);
}
