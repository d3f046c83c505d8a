//! A cluster whose traffic crosses nodes, so that every table of the kernel is in use.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Service;
use weir_testbed::node::Pod;
use weir_testbed::objects::service;

use super::traffic::{Client, Traffic, both};
use super::{Agent, Cluster, HTTP, TCP, cluster_sockets, node_port};

/// `service` with a node port.
fn with_node_port(name: &str, port: u16) -> Service {
    let mut service = service(name, port, "TCP");
    service.spec.as_mut().unwrap().type_ = Some("NodePort".to_owned());
    service
}

/// Two nodes with two pods each, and two Services whose endpoints are all on node 2: `web` (HTTP) and `echo` (lines).
pub(crate) struct Busy {
    pub(crate) cluster: Cluster,
    /// A client on node 1.
    pod: Pod,
    web: Service,
    echo: Service,
}

impl Busy {
    pub(crate) fn start(options: &[&str]) -> Self {
        let cluster = Cluster::start(2, 2, options);
        let far = cluster.world.node(2).pods();
        let web = cluster.publish(&with_node_port("web", 80), HTTP, &far);
        let echo = cluster.publish(&with_node_port("echo", 7), TCP, &far);
        let endpoints: Vec<_> = far.iter().flat_map(|pod| pod.address().both()).collect();
        for (name, service) in [("web", &web), ("echo", &echo)] {
            for socket in cluster_sockets(service) {
                cluster.await_frontend(socket.ip(), socket.port());
            }
            cluster.agents.iter().for_each(|agent| agent.await_backends(name, endpoints.clone()));
        }
        let pod = cluster.world.node(1).pod(1);
        Self { cluster, pod, web, echo }
    }

    /// From outside through node 1, from a pod of node 1, from a process on node 1; both families, short and long.
    pub(crate) fn traffic(&self) -> Traffic {
        let mut traffic = self.connections();
        for (name, client, target) in self.routes(&self.web) {
            traffic.stream(name, client, target);
        }
        traffic
    }

    /// Of that only the long connections.
    pub(crate) fn connections(&self) -> Traffic {
        let mut traffic = Traffic::default();
        for (name, client, target) in self.routes(&self.echo) {
            traffic.connection(name, client, target);
        }
        traffic
    }

    fn routes(&self, service: &Service) -> Vec<(&'static str, Client<'_>, SocketAddr)> {
        let (world, node) = (&self.cluster.world, self.cluster.world.node(1));
        let outside =
            both(node.address().both(), node_port(service)).map(|to| ("outside", Client::Netns(world.client()), to));
        let mut routes = outside.to_vec();
        for target in cluster_sockets(service) {
            routes.push(("pod", Client::Netns(self.pod.netns()), target));
            routes.push(("host", Client::Host(node.netns(), &self.cluster.agents[0].cgroup), target));
        }
        routes
    }

    pub(crate) fn agents(&mut self, act: impl FnMut(&mut Agent)) {
        self.cluster.agents.iter_mut().for_each(act);
    }

    pub(crate) fn start_again(&mut self) {
        for agent in &mut self.cluster.agents {
            agent.start_again(&self.cluster.world);
        }
    }

    pub(crate) fn await_ready(&self) {
        self.cluster.agents.iter().for_each(|agent| agent.await_ready(&self.cluster.world));
    }

    pub(crate) fn assert_no_panic(&self) {
        for agent in &self.cluster.agents {
            let log = agent.log();
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}
