//! A cluster whose traffic crosses nodes, so that every table of the kernel is in use.

use k8s_openapi::api::core::v1::Service;
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
    web: Service,
    echo: Service,
}

impl Busy {
    pub(crate) fn start(options: &[&str]) -> Self {
        let cluster = Cluster::start(2, 2, options);
        let far = cluster.world.node(2).pods();
        let web = cluster.publish(&with_node_port("web", 80), HTTP, &far);
        let echo = cluster.publish(&with_node_port("echo", 7), TCP, &far);
        for service in [&web, &echo] {
            for socket in cluster_sockets(service) {
                cluster.await_frontend(socket.ip(), socket.port());
            }
        }
        Self { cluster, web, echo }
    }

    /// From outside through node 1, from a pod of node 1, from a process on node 1; both families, short and long.
    pub(crate) fn traffic(&self) -> Traffic {
        let world = &self.cluster.world;
        let node = world.node(1);
        let outside = Client::Netns(world.client());
        let pod = node.pod(1);
        let host = Client::Host(node.netns(), &self.cluster.agents[0].cgroup);
        let mut traffic = Traffic::default();
        for target in both(node.address().both(), node_port(&self.web)) {
            traffic.stream("outside", outside, target);
        }
        for target in cluster_sockets(&self.web) {
            traffic.stream("pod", Client::Netns(pod.netns()), target);
            traffic.stream("host", host, target);
        }
        for target in both(node.address().both(), node_port(&self.echo)) {
            traffic.connection("outside", outside, target);
        }
        for target in cluster_sockets(&self.echo) {
            traffic.connection("pod", Client::Netns(pod.netns()), target);
            traffic.connection("host", host, target);
        }
        traffic
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
