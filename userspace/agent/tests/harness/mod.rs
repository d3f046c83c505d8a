//! A cluster in network namespaces: a real API server, nodes with a `weir-agent` each, pods that answer.

#![allow(dead_code, reason = "each test program uses its part of the harness")]
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

pub(crate) mod agent;
pub(crate) mod busy;
pub(crate) mod callers;
pub(crate) mod clients;
pub(crate) mod echo;
pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod kernel;
pub(crate) mod machine;
pub(crate) mod matrix;
pub(crate) mod shared;
mod sizes;
pub(crate) mod slots;
pub(crate) mod standalone;
pub(crate) mod traffic;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub(crate) use agent::Agent;
use k8s_openapi::api::core::v1::Service;
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use weir_testbed::apiserver::{ApiServer, Lent};
use weir_testbed::node::Pod;
use weir_testbed::objects::{self, Endpoint, Objects};
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, World, bpffs, require_root};

/// Patience with anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Ports of the servers in every pod.
pub(crate) const HTTP: u16 = 8080;
pub(crate) const TCP: u16 = 7000;
pub(crate) const UDP: u16 = 7001;

/// What a test starts from: nodes with pods that serve, nothing else.
pub(crate) struct Cluster {
    // Agents go before the namespaces that they live in.
    pub(crate) agents: Vec<Agent>,
    pub(crate) api: Lent,
    pub(crate) objects: Objects,
    servers: Vec<Server>,
    pub(crate) world: World,
}

/// True when the machine can run these tests; else it has been said why not.
pub(crate) fn can_run(what: &str) -> bool {
    kernel::remember();
    require_root(what) && ApiServer::require(what)
}

/// Has the CPU that the thread is on run it from now on, the threads that it starts, and so all that their packets bring about, one
/// after the other.
pub(crate) fn stay_on_one_cpu() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

impl Cluster {
    /// Nodes with pods, registered with the API server, an agent on each; returns when all are ready.
    pub(crate) fn start(nodes: u8, pods: u8, options: &[&str]) -> Self {
        let mut cluster = Self::without_agents(nodes, pods);
        for node in 1..=nodes {
            let agent = Agent::start(&cluster.world, &cluster.api, node, options);
            cluster.agents.push(agent);
        }
        cluster.agents.iter().for_each(|agent| agent.await_ready(&cluster.world));
        cluster
    }

    /// The same, no agent yet.
    pub(crate) fn without_agents(nodes: u8, pods: u8) -> Self {
        let world = Self::world(nodes, pods);
        let api = ApiServer::lent(world.router()).unwrap();
        Self::around(world, api, |_| true)
    }

    /// The nodes and pods of a cluster to come.
    pub(crate) fn world(nodes: u8, pods: u8) -> World {
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        bpffs::ensure_mounted().unwrap();
        World::builder().nodes(nodes).pods_per_node(pods).build().unwrap()
    }

    /// A world whose pods serve and whose nodes are registered with those of their addresses that `told` picks; no agent
    /// yet.
    pub(crate) fn around(world: World, api: impl Into<Lent>, told: fn(&IpAddr) -> bool) -> Self {
        let api = api.into();
        let objects = api.objects().unwrap();
        let mut servers = Vec::new();
        for node in world.nodes() {
            let addresses: Vec<_> = node.address().both().into_iter().filter(told).collect();
            let object = objects::node(&node.name(), &addresses, None);
            objects.apply(&object).unwrap();
            objects.apply_status(&object).unwrap();
            for pod in node.pods() {
                servers.extend(serve_in(&pod));
            }
        }
        Self { agents: Vec::new(), api, objects, servers, world }
    }

    /// A Service in both families with its slices, of endpoints in these pods, on the pods' `port`.
    pub(crate) fn publish(&self, service: &Service, port: u16, pods: &[Pod]) -> Service {
        let made = self.objects.apply(service).unwrap();
        self.set_endpoints(service, port, pods);
        made
    }

    /// Replaces the endpoints of a Service.
    pub(crate) fn set_endpoints(&self, service: &Service, port: u16, pods: &[Pod]) {
        let name = service.metadata.name.as_deref().unwrap();
        let spec = service.spec.as_ref().unwrap();
        let protocol = spec.ports.as_ref().unwrap()[0].protocol.as_deref().unwrap();
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            let endpoints: Vec<_> = pods
                .iter()
                .map(|pod| Endpoint {
                    ip: if v6 { pod.address().v6.into() } else { pod.address().v4.into() },
                    node: format!("node{}", pod.node()),
                    ready: true,
                })
                .collect();
            let mut slice = objects::endpoint_slice(name, suffix, port, protocol, &endpoints);
            slice.address_type = if v6 { "IPv6".into() } else { "IPv4".into() };
            self.objects.apply(&slice).unwrap();
        }
    }

    /// Starts the servers in a pod that came later.
    pub(crate) fn serve(&mut self, pod: &Pod) {
        self.servers.extend(serve_in(pod));
    }

    /// Waits until an agent's maps hold this many frontends of an address and port.
    pub(crate) fn await_frontend(&self, address: IpAddr, port: u16) {
        for agent in &self.agents {
            agent.await_frontend(address, port, true);
        }
    }
}

/// The servers of a pod, of whose connections none fails by itself.
pub(crate) fn serve_in(pod: &Pod) -> [Server; 3] {
    pod.receive_on_one_cpu().unwrap();
    let name = pod.name();
    [
        serve::http(pod.netns(), &name, HTTP).unwrap(),
        serve::tcp_echo(pod.netns(), &name, TCP).unwrap(),
        serve::udp_echo(pod.netns(), &name, UDP).unwrap(),
    ]
}

/// Cluster IPs that the API server gave a Service, with its first port.
pub(crate) fn cluster_sockets(service: &Service) -> Vec<SocketAddr> {
    let spec = service.spec.as_ref().unwrap();
    let port = u16::try_from(spec.ports.as_ref().unwrap()[0].port).unwrap();
    let ips = spec.cluster_ips.as_ref().unwrap();
    ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect()
}

/// The node port of a Service's first port.
pub(crate) fn node_port(service: &Service) -> u16 {
    let port = service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].node_port.unwrap();
    u16::try_from(port).unwrap()
}

/// The text of a name in a map.
pub(crate) fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap()
}
