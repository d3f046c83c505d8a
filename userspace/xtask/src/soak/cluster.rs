//! The cluster: two nodes, a real API server, an agent on each node, and pods that come and go.
//!
//! On each node pod 1 is a client. The others are the endpoints of `web`, but for one on node 1, which is alone behind
//! `flooded`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointPort;
use weir_testbed::apiserver::User;
use weir_testbed::objects::{self, Endpoint, Objects};
use weir_testbed::process::Process;
use weir_testbed::serve::{self, Server};
use weir_testbed::{ApiServer, Cgroup, Node, Pod, World, address};

use crate::service_file::external;
use crate::{guard, health, mesh_key};

/// Endpoints of `web` on each node.
pub(super) const ENDPOINTS: u8 = 3;
/// Patience with an agent that starts or ends.
const SOON: Duration = Duration::from_secs(60);
/// The external address that is flooded, and its service.
const FLOODED: u8 = 9;
pub(super) const FLOODED_PORT: u16 = 80;

/// What a port of `web` is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Talk {
    Http,
    Lines,
    Udp,
}

impl Talk {
    pub(super) const ALL: [Self; 3] = [Self::Http, Self::Lines, Self::Udp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Lines => "lines",
            Self::Udp => "udp",
        }
    }

    const fn protocol(self) -> &'static str {
        match self {
            Self::Http | Self::Lines => "TCP",
            Self::Udp => "UDP",
        }
    }

    pub(super) const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Lines | Self::Udp => 7,
        }
    }

    /// Of the pods.
    const fn target(self) -> u16 {
        match self {
            Self::Http => 8080,
            Self::Lines => 7000,
            Self::Udp => 7001,
        }
    }

    pub(super) const fn node_port(self) -> u16 {
        match self {
            Self::Http => 30_080,
            Self::Lines => 30_007,
            Self::Udp => 30_008,
        }
    }
}

/// An endpoint of `web`.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) pod: Pod,
    pub(super) ready: bool,
}

/// See the module's description. Processes, threads and namespaces are gone on drop.
pub(super) struct Cluster {
    // Agents go before the namespaces that they live in.
    pub(super) agents: Vec<Agent>,
    pub(super) objects: Objects,
    api: ApiServer,
    servers: BTreeMap<String, [Server; 3]>,
    pub(super) members: Vec<Member>,
    pub(super) world: World,
}

impl Cluster {
    /// Builds all of it; returns when the agents are ready.
    ///
    /// # Errors
    /// When a part of it cannot be made or does not get ready.
    pub(super) fn build(agent: &Path, directory: &Path) -> Result<Self> {
        let world = World::builder().nodes(2).pods_per_node(1 + ENDPOINTS).build()?;
        let api = ApiServer::start_in(directory, Some(world.router()), weir_testbed::Admission::Alone)?;
        let objects = api.objects()?;
        for node in world.nodes() {
            let object = objects::node(&node.name(), &node.address().both(), None);
            objects.apply(&object)?;
            objects.apply_status(&object)?;
        }
        let key = directory.join("mesh.key");
        mesh_key::write(&key)?;
        let mut cluster =
            Self { agents: Vec::new(), objects, api, servers: BTreeMap::new(), members: Vec::new(), world };
        let pods: Vec<Pod> = cluster.world.nodes().iter().flat_map(|node| node.pods().split_off(1)).collect();
        pods.into_iter().try_for_each(|pod| cluster.enlist(pod))?;
        cluster.objects.apply(&web())?;
        cluster.publish()?;
        cluster.publish_flooded()?;
        let kubeconfig = cluster.api.kubeconfig(User::Admin, &cluster.api.url_at(address::ROUTER_INSIDE.v4.into()))?;
        for node in cluster.world.nodes() {
            let mut agent = Agent::new(node, agent, &kubeconfig, &key, directory)?;
            agent.start(node)?;
            cluster.agents.push(agent);
        }
        Ok(cluster)
    }

    /// Starts the servers of a pod and makes it an endpoint of `web`, from the next publication on.
    pub(super) fn enlist(&mut self, pod: Pod) -> Result<()> {
        self.serve(&pod)?;
        self.members.push(Member { pod, ready: true });
        Ok(())
    }

    /// Ends the servers of a pod that is gone.
    pub(super) fn bury(&mut self, pod: &Pod) {
        self.servers.remove(&pod.name());
    }

    /// Tells the API server of the endpoints of `web`.
    pub(super) fn publish(&self) -> Result<()> {
        let ports = Talk::ALL.map(|talk| EndpointPort {
            name: Some(talk.name().into()),
            port: Some(talk.target().into()),
            protocol: Some(talk.protocol().into()),
            ..EndpointPort::default()
        });
        for v6 in [false, true] {
            let endpoints: Vec<Endpoint> =
                self.members.iter().map(|member| endpoint(&member.pod, v6, member.ready)).collect();
            let mut slice = objects::endpoint_slice("web", suffix(v6), 0, "TCP", &endpoints);
            slice.address_type = family(v6).into();
            slice.ports = Some(ports.to_vec());
            self.objects.apply(&slice)?;
        }
        Ok(())
    }

    /// Where `web` answers on a node, from outside.
    pub(super) fn node_port(&self, node: u8, talk: Talk) -> [SocketAddr; 2] {
        self.world.node(node).address().both().map(|ip| SocketAddr::new(ip, talk.node_port()))
    }

    /// The cluster IPs of `web`.
    pub(super) fn cluster_ips(&self) -> Result<[IpAddr; 2]> {
        let found: Option<Service> = self.objects.get(&web())?;
        let ips = found.and_then(|service| service.spec?.cluster_ips).context("the API server has lost Service web")?;
        let ips: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        <[IpAddr; 2]>::try_from(ips).map_err(|ips| anyhow::anyhow!("Service web has the cluster IPs {ips:?}"))
    }

    /// What a flood is sent to.
    pub(super) fn flooded(&self) -> [SocketAddr; 2] {
        external(FLOODED).map(|ip| SocketAddr::new(ip, FLOODED_PORT))
    }

    fn serve(&mut self, pod: &Pod) -> Result<()> {
        // What remains is ours: a server's kernel resets some connections whose packets several CPUs handle.
        pod.receive_on_one_cpu()?;
        let name = pod.name();
        let servers = [
            serve::http(pod.netns(), &name, Talk::Http.target())?,
            serve::tcp_echo(pod.netns(), &name, Talk::Lines.target())?,
            serve::udp_echo(pod.netns(), &name, Talk::Udp.target())?,
        ];
        self.servers.insert(name, servers);
        Ok(())
    }

    fn publish_flooded(&mut self) -> Result<()> {
        let pod = self.world.add_pod(1)?;
        self.serve(&pod)?;
        let mut service = objects::service("flooded", FLOODED_PORT, "TCP");
        service.spec.get_or_insert_default().external_ips = Some(external(FLOODED).map(|ip| ip.to_string()).to_vec());
        self.objects.apply(&service)?;
        publish_endpoints(&self.objects, "flooded", &[pod])
    }
}

/// The Service of all that is asked.
fn web() -> Service {
    let mut service = objects::service("web", 80, "TCP");
    let spec = service.spec.get_or_insert_default();
    spec.type_ = Some("NodePort".into());
    let port = |talk: Talk| ServicePort {
        name: Some(talk.name().into()),
        port: talk.port().into(),
        node_port: Some(talk.node_port().into()),
        protocol: Some(talk.protocol().into()),
        ..ServicePort::default()
    };
    spec.ports = Some(Talk::ALL.map(port).to_vec());
    service
}

/// Tells the API server that these pods are the endpoints of a Service with one port, of HTTP.
pub(super) fn publish_endpoints(objects: &Objects, service: &str, pods: &[Pod]) -> Result<()> {
    for v6 in [false, true] {
        let endpoints: Vec<Endpoint> = pods.iter().map(|pod| endpoint(pod, v6, true)).collect();
        let mut slice = objects::endpoint_slice(service, suffix(v6), Talk::Http.target(), "TCP", &endpoints);
        // Without endpoints nobody could tell.
        slice.address_type = family(v6).into();
        objects.apply(&slice)?;
    }
    Ok(())
}

/// The name of a Service's EndpointSlice ends so.
pub(super) const fn suffix(v6: bool) -> &'static str {
    if v6 { "v6" } else { "v4" }
}

const fn family(v6: bool) -> &'static str {
    if v6 { "IPv6" } else { "IPv4" }
}

fn endpoint(pod: &Pod, v6: bool, ready: bool) -> Endpoint {
    let [v4_ip, v6_ip] = pod.address().both();
    Endpoint { ip: if v6 { v6_ip } else { v4_ip }, node: format!("node{}", pod.node()), ready }
}

/// The agent of a node. Its pins outlive it; the run's end removes them.
pub(super) struct Agent {
    node: u8,
    process: Option<Process>,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    _cgroup: Cgroup,
}

impl Agent {
    fn new(node: &Node, program: &Path, kubeconfig: &Path, key: &Path, logs: &Path) -> Result<Self> {
        let (name, number) = (node.name(), node.number());
        let cgroup = Cgroup::create(&format!("soak-{name}"))?;
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--node-name={name}"),
            format!("--pin-dir={}", guard::pin_dir(number).root().display()),
            format!("--cgroup={}", cgroup.path().display()),
            format!("--mesh-key-file={}", key.display()),
            // Endpoints of both nodes all the time.
            "--spread=random".into(),
            // The world switches the offloads of the NICs' peers off.
            "--xdp-on-veth".into(),
        ];
        let log = logs.join(format!("weir-agent-{name}.log"));
        let (process, program) = (None, program.to_owned());
        Ok(Self { node: number, process, program, arguments: arguments.into(), log, _cgroup: cgroup })
    }

    /// Starts it and waits until it is ready.
    pub(super) fn start(&mut self, node: &Node) -> Result<()> {
        ensure!(self.process.is_none(), "weir-agent on node {} runs already", self.node);
        let mut command = node.netns().command(&self.program);
        command.args(&self.arguments);
        let process = self.process.insert(Process::start(command, "weir-agent", &self.log)?);
        health::await_ready(node, process, SOON)
    }

    /// Ends it as an operator would.
    pub(super) fn terminate(&mut self) -> Result<()> {
        let status = self.running()?.terminate(SOON)?;
        ensure!(status.success(), "weir-agent on node {} has ended with {status} after SIGTERM", self.node);
        Ok(())
    }

    /// Ends it as a crash would.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.running()?.kill()?;
        Ok(())
    }

    /// The id of its process.
    pub(super) fn id(&self) -> Result<u32> {
        let process = self.process.as_ref();
        process.map(Process::id).with_context(|| format!("weir-agent on node {} does not run", self.node))
    }

    /// Lines of its log that name a panic.
    pub(super) fn panics(&self) -> Result<usize> {
        let text = std::fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&text).lines().filter(|line| line.contains("panicked at")).count())
    }

    fn running(&mut self) -> Result<Process> {
        self.process.take().with_context(|| format!("weir-agent on node {} does not run", self.node))
    }
}
