//! The world: four nodes with delays between them, a machine with a CPU quota for each one's pods, HTTP servers that cost
//! CPU time, two Services with node ports, and a client pod on each node.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ObjectReference;
use weir_testbed::apiserver::User;
use weir_testbed::objects::{self, Endpoint, Objects};
use weir_testbed::process::Process;
use weir_testbed::{Admission, ApiServer, Machine, Pod, World, address, ask, wait};

use super::experiments::{NODES, Point, Service};

/// Pods on each node that serve.
const PODS: u8 = 2;
/// Port that they listen on.
const PORT: u16 = 8080;
/// Port of the Services' cluster IPs.
const SERVICE_PORT: u16 = 80;
/// Patience with a server or a rule.
const SOON: Duration = Duration::from_secs(20);

/// See the module's description. Processes and namespaces are gone on drop.
pub(super) struct Bed {
    _servers: Vec<Process>,
    machines: Vec<Machine>,
    objects: Objects,
    api: ApiServer,
    /// In the order of [`Service::ALL`].
    node_ports: [u16; Service::ALL.len()],
    /// Files of whoever runs here.
    files: PathBuf,
    pub(super) world: World,
}

impl Bed {
    /// Builds everything but a proxy.
    ///
    /// # Errors
    /// When a part of it cannot be made.
    pub(super) fn build(first: &Point, directory: &Path) -> Result<Self> {
        let world = World::builder().nodes(NODES).pods_per_node(PODS).delay(4 * first.uplinks[0]).build()?;
        let (mut machines, mut servers) = (Vec::new(), Vec::new());
        for node in world.nodes() {
            // kube-proxy's connection tracking keeps ended connections for two minutes, which is more than one machine
            // has room for when it is four nodes.
            node.netns().sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "10")?;
            let machine = Machine::create(&format!("papers-{}", node.name()), 1.0)?;
            for pod in 1..=PODS {
                servers.push(serve(&world, node.number(), pod, &machine, directory)?);
            }
            machines.push(machine);
        }
        // The client comes last, so that pods that serve have the lowest numbers.
        (1..=NODES).try_for_each(|node| world.add_pod(node).map(drop))?;
        let api = ApiServer::start_in(directory, Some(world.router()), Admission::Alone)?;
        let objects = api.objects()?;
        publish_nodes(&world, &objects)?;
        let mut node_ports = [0; Service::ALL.len()];
        for (service, port) in Service::ALL.into_iter().zip(&mut node_ports) {
            *port = publish(service, &world, &objects)?;
        }
        let files = directory.to_owned();
        let bed = Self { _servers: servers, machines, objects, api, node_ports, files, world };
        bed.await_servers()?;
        Ok(bed)
    }

    /// Where the clients of a node ask for a service: that node's own address, at the service's node port.
    pub(super) fn target(&self, service: Service, node: u8) -> SocketAddr {
        let at = Service::ALL.iter().position(|one| *one == service).expect("the list has all services");
        SocketAddr::new(address::node(node).v4.into(), self.node_ports[at])
    }

    /// The first server of a node, past every proxy.
    pub(super) fn server(node: u8) -> SocketAddr {
        SocketAddr::new(address::pod(node, 1).v4.into(), PORT)
    }

    /// The pod on a node in which its load generator runs.
    pub(super) fn client(&self, node: u8) -> Pod {
        self.world.node(node).pod(PODS + 1)
    }

    /// The machine of a node.
    pub(super) fn machine(&self, node: u8) -> &Machine {
        &self.machines[usize::from(node) - 1]
    }

    /// A file in the directory of the run.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.files.join(name)
    }

    /// The API server, and how nodes reach it.
    pub(super) fn api(&self) -> (&ApiServer, String) {
        (&self.api, self.api.url_at(address::ROUTER_INSIDE.v4.into()))
    }

    /// A kubeconfig for an agent.
    pub(super) fn kubeconfig(&self) -> Result<PathBuf> {
        let (api, url) = self.api();
        Ok(api.kubeconfig(User::Admin, &url)?)
    }

    /// Gives the links their delays and the machines their capacities.
    pub(super) fn set(&self, point: &Point) -> Result<()> {
        let Point { x: _, uplinks, cores, target: _, cost: _, load: _ } = point;
        for ((node, delay), cores) in self.world.nodes().iter().zip(uplinks).zip(cores) {
            node.link().context("the world has links with delay")?.set_delay(*delay);
            self.machine(node.number()).set_cores(*cores)?;
        }
        Ok(())
    }

    /// Annotates a service for Weir.
    pub(super) fn annotate(&self, service: Service, policy: &str, target: Option<f64>) -> Result<()> {
        let mut object = service_object(service);
        let policy = ("weir.dev/policy".to_owned(), policy.to_owned());
        let target = target.map(|target| ("weir.dev/target".to_owned(), target.to_string()));
        object.metadata.annotations = Some([policy].into_iter().chain(target).collect());
        self.objects.apply(&object)?;
        Ok(())
    }

    /// Waits until the clients of all nodes are answered through the proxy.
    pub(super) fn await_answers(&self) -> Result<()> {
        for service in Service::ALL {
            for node in 1..=NODES {
                let target = self.target(service, node);
                let ask = || ask::http_ask(target).map_err(|error| error.to_string());
                let what = format!("an answer of service {} on node {node}", service.name());
                self.client(node).netns().enter(|| wait::until_some(&what, SOON, ask))?;
            }
        }
        Ok(())
    }

    fn await_servers(&self) -> Result<()> {
        for node in self.world.nodes() {
            for pod in (1..=PODS).map(|pod| node.pod(pod)) {
                let target = SocketAddr::new(pod.address().v4.into(), PORT);
                let what = format!("an answer of {}", pod.name());
                let ask = || ask::http_ask(target).map_err(|error| error.to_string());
                self.world.router().enter(|| wait::until_some(&what, SOON, ask))?;
            }
        }
        Ok(())
    }
}

/// Starts the server of a pod, a process of this very program.
fn serve(world: &World, node: u8, pod: u8, machine: &Machine, directory: &Path) -> Result<Process> {
    let name = world.node(node).pod(pod).name();
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command: Command = world.node(node).pod(pod).netns().command(own);
    command.args(["serve-http", "--name", &name, "--port", &PORT.to_string()]);
    machine.attach(&uid(node, pod), &mut command)?;
    Ok(Process::start(command, "the server", &directory.join(format!("{name}.log")))?)
}

fn publish_nodes(world: &World, objects: &Objects) -> Result<()> {
    for node in world.nodes() {
        let object = objects::node(&node.name(), &node.address().both(), None);
        objects.apply(&object)?;
        objects.apply_status(&object)?;
    }
    Ok(())
}

/// Makes a service with its endpoints, and returns its node port.
fn publish(service: Service, world: &World, objects: &Objects) -> Result<u16> {
    let (nodes, pods) = service.endpoints();
    let all: Vec<(u8, u8)> = (1..=nodes).flat_map(|node| (1..=pods).map(move |pod| (node, pod))).collect();
    let endpoints: Vec<Endpoint> = all
        .iter()
        .map(|(node, pod)| Endpoint {
            ip: IpAddr::V4(address::pod(*node, *pod).v4),
            node: world.node(*node).name(),
            ready: true,
        })
        .collect();
    let mut slice = objects::endpoint_slice(service.name(), "v4", PORT, "TCP", &endpoints);
    for (endpoint, (node, pod)) in slice.endpoints.iter_mut().zip(&all) {
        let name = Some(world.node(*node).pod(*pod).name());
        let kind = Some("Pod".into());
        let uid = Some(uid(*node, *pod));
        endpoint.target_ref = Some(ObjectReference { kind, name, uid, ..ObjectReference::default() });
    }
    let made = objects.apply(&service_object(service))?;
    objects.apply(&slice)?;
    let ports = made.spec.and_then(|spec| spec.ports).unwrap_or_default();
    let port = ports.first().and_then(|port| u16::try_from(port.node_port?).ok());
    port.with_context(|| format!("service {} has no node port", service.name()))
}

/// RAP's load comes in by node ports; IPv4, as in the papers.
fn service_object(service: Service) -> k8s_openapi::api::core::v1::Service {
    let mut object = objects::service(service.name(), SERVICE_PORT, "TCP");
    if let Some(spec) = &mut object.spec {
        spec.type_ = Some("NodePort".into());
        spec.ip_family_policy = Some("SingleStack".into());
        spec.ip_families = Some(vec!["IPv4".into()]);
    }
    object
}

/// The uid of a pod, after which its group is called.
fn uid(node: u8, pod: u8) -> String {
    format!("00000000-0000-4000-8000-00000000{node:02}{pod:02}")
}
