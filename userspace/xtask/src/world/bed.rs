//! The world: a client outside, and for each proxy, and each way without one, two nodes with a pod each. Proxies that have the same
//! number of services share an API server.
//!
//! Every proxy has two Services of its own, both in both families and with node ports: one with the pod of its first node,
//! which connections come to, and one with the pod of its second.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path as File, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{EndpointPort, EndpointSlice};
use nix::unistd::Pid;
use weir_testbed::address::Pair;
use weir_testbed::bulk::Bulk;
use weir_testbed::objects::{self, Endpoint, Objects};
use weir_testbed::process::{Process, installed};
use weir_testbed::{Admission, ApiServer, Netns, Node, Pod, World, address, ask, wait};

use super::plan::Load;
use super::way::{Backend, Family, Path, Proxy, Way};

/// Patience with a server that starts.
const SOON: Duration = Duration::from_secs(20);
/// Requests to the API server under way at once.
const CONCURRENCY: usize = 4;
/// Services that are not there to be measured have no more endpoints than those that are.
const ENDPOINTS: u32 = 1;
/// Services of all proxies together: one for each and each kind of pod.
const OWN_SERVICES: u16 = 10;
/// Below this they have no room.
pub(super) const FEWEST_SERVICES: u32 = OWN_SERVICES as u32;

/// A port of every Service.
#[derive(Clone, Copy)]
struct Port {
    name: &'static str,
    /// Its place among a Service's ports.
    index: u16,
    /// Of the cluster IP.
    port: u16,
    /// Of the pod.
    target: u16,
}

/// Each path has a port of its own in the pods: connections that one of them has left behind are not in the other's way.
const NODE_PORT: Port = Port { name: "node-port", index: 0, port: 80, target: 8080 };
const CLUSTER_IP: Port = Port { name: "cluster-ip", index: 1, port: 81, target: 8081 };
const BULK: Port = Port { name: "bulk", index: 2, port: 5201, target: 5201 };
const PORTS: [Port; 3] = [NODE_PORT, CLUSTER_IP, BULK];
/// Node ports count up from here, ten for each Service.
const FIRST_NODE_PORT: u16 = 31_000;
/// Numbers of the Services' cluster IPs count up from here: the API server takes them from the other end first.
const FIRST_CLUSTER_IP: u16 = 16;
/// Pairs of nodes without a proxy: see [`pair_without`].
const PAIRS_WITHOUT: u16 = 2;

/// See the module's description. Processes and namespaces are gone on drop.
pub(super) struct Bed {
    servers: Vec<Process>,
    clusters: Vec<Cluster>,
    pub(super) world: World,
}

/// An API server with a number of services.
struct Cluster {
    services: u32,
    api: ApiServer,
}

impl Bed {
    /// Builds everything but the proxies.
    ///
    /// # Errors
    /// When a part of it cannot be made.
    pub(super) fn build(services: &[u32], directory: &File) -> Result<Self> {
        let pairs = usize::from(PAIRS_WITHOUT) + services.len() * Proxy::ALL.len();
        let nodes = u8::try_from(2 * pairs).context("too many numbers of services")?;
        let world = World::builder().nodes(nodes).build()?;
        let mut servers = Vec::new();
        for node in world.nodes() {
            servers.extend(serve(&node.pod(1), directory)?);
        }
        let mut bed = Self { servers, clusters: Vec::new(), world };
        bed.await_servers()?;
        bed.detour()?;
        for (number, services) in (0..).zip(services) {
            let cluster = bed.start_cluster(number, *services, directory)?;
            bed.clusters.push(cluster);
        }
        Ok(bed)
    }

    /// The two nodes of a proxy; connections come to the first.
    pub(super) fn nodes(&self, services: u32, proxy: Proxy) -> [&Node; 2] {
        self.pair(pair_of(self.number_of(services), proxy))
    }

    /// The API server that knows so many services, and how nodes reach it.
    pub(super) fn api(&self, services: u32) -> (&ApiServer, String) {
        let api = &self.clusters[usize::from(self.number_of(services))].api;
        (api, api.url_at(address::ROUTER_INSIDE.v4.into()))
    }

    /// Whom the client asks.
    pub(super) fn target(&self, way: Way, backend: Backend, family: Family, load: Load) -> SocketAddr {
        let Way { path, services, proxy } = way;
        let port = port_of(path, load);
        let (pair, port) = match path {
            Path::Direct | Path::Routed => (self.pod(way, backend).address(), port.target),
            Path::NodePort => (self.nodes(services, proxy)[0].address(), node_port(proxy, backend, port)),
            Path::ClusterIp => (cluster_ip(self.number_of(services), proxy, backend), port.port),
        };
        SocketAddr::new(of_family(pair, family), port)
    }

    /// The pod that answers there.
    pub(super) fn pod(&self, way: Way, backend: Backend) -> Pod {
        let nodes = match way.path {
            Path::Direct | Path::Routed => self.pair(pair_without(way.path)),
            Path::NodePort | Path::ClusterIp => self.nodes(way.services, way.proxy),
        };
        nodes[usize::from(index(backend))].pod(1)
    }

    /// The processes of pods.
    pub(super) fn servers(&self) -> Vec<Pid> {
        self.servers.iter().map(|server| Pid::from_raw(server.id().cast_signed())).collect()
    }

    /// Where all connections come from.
    pub(super) fn client(&self) -> &Netns {
        self.world.client()
    }

    /// Waits until the client is answered by the right pod.
    ///
    /// # Errors
    /// When it is not in time, or another one answers.
    pub(super) fn await_answer(&self, way: Way, backend: Backend, family: Family, limit: Duration) -> Result<()> {
        let target = self.target(way, backend, family, Load::Burst);
        let what = format!("an answer of the {backend} pod through {} at {target}", way.proxy);
        let ask = || ask::http_ask(target).map_err(|error| error.to_string());
        let answer = self.client().enter(|| wait::until_some(&what, limit, ask))?;
        let wanted = self.pod(way, backend).name();
        ensure!(answer.name == wanted, "{target} is answered by {} in place of {wanted}", answer.name);
        Ok(())
    }

    /// The place of a cluster in the list of them.
    fn number_of(&self, services: u32) -> u16 {
        let found = (0..).zip(&self.clusters).find(|(_, cluster)| cluster.services == services);
        found.expect("ways have numbers of services that the world was built with").0
    }

    fn pair(&self, number: u16) -> [&Node; 2] {
        let (nodes, first) = (self.world.nodes(), 2 * usize::from(number));
        [&nodes[first], &nodes[first + 1]]
    }

    /// Has the pod of [`Way::ROUTED`] reached by way of its first node, in both directions.
    fn detour(&self) -> Result<()> {
        let [first, second] = self.pair(pair_without(Path::Routed));
        // Who is told of a shorter way takes it.
        let told = [("net/ipv4/conf/all/send_redirects", "0"), ("net/ipv4/conf/eth0/send_redirects", "0")];
        first.netns().sysctls(&told)?;
        for pods in address::pod_cidrs(second.number()) {
            self.world.route_via(pods, first.number())?;
        }
        let back =
            address::CLIENT.both().map(|client| format!("route add {client} via {}", first.address().like(client)));
        second.netns().ip(&back.join("\n"))?;
        Family::ALL.into_iter().try_for_each(|family| self.await_answer(Way::ROUTED, Backend::Remote, family, SOON))
    }

    fn start_cluster(&self, number: u16, services: u32, directory: &File) -> Result<Cluster> {
        let directory = directory.join(format!("cluster-{services}"));
        fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let api = ApiServer::start_in(&directory, Some(self.world.router()), Admission::Alone)?;
        let objects = api.objects()?;
        for proxy in Proxy::ALL {
            let nodes = self.pair(pair_of(number, proxy));
            for node in nodes {
                let object = objects::node(&node.name(), &node.address().both(), None);
                objects.apply(&object)?;
                objects.apply_status(&object)?;
            }
            for (backend, node) in Backend::ALL.into_iter().zip(nodes) {
                publish(&objects, proxy, backend, cluster_ip(number, proxy, backend), node)?;
                for ip in cluster_ip(number, proxy, backend).both() {
                    self.world.route_via(ip.into(), nodes[0].number())?;
                }
            }
        }
        let others = services.saturating_sub(FEWEST_SERVICES);
        let bulk = Bulk { services: others, endpoints: ENDPOINTS, nodes: 2, concurrency: CONCURRENCY };
        let took = bulk.create_dual_stack(&objects)?;
        println!("{services} services are made, {others} of them in {:.0} s", took.as_secs_f64());
        Ok(Cluster { services, api })
    }

    fn await_servers(&self) -> Result<()> {
        for node in self.world.nodes() {
            let pod = node.pod(1);
            for target in [NODE_PORT, CLUSTER_IP].into_iter().flat_map(|port| pod.sockets(port.target)) {
                let ask = || ask::http_ask(target).map_err(|error| error.to_string());
                let what = format!("an answer of {} at {target}", pod.name());
                self.client().enter(|| wait::until_some(&what, SOON, ask))?;
            }
        }
        Ok(())
    }
}

/// Starts the servers of a pod: those of HTTP are processes of this very program.
fn serve(pod: &Pod, directory: &File) -> Result<Vec<Process>> {
    let name = pod.name();
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let log = |port: Port| -> PathBuf { directory.join(format!("{name}-{}.log", port.name)) };
    let http = |port: Port| {
        let mut command = pod.netns().command(&own);
        command.args(["serve-http", "--name", &name, "--port", &port.target.to_string()]);
        Process::start(command, "the server", &log(port))
    };
    let mut bulk = pod.netns().command(installed("iperf3")?);
    bulk.args(["-s", "-p", &BULK.target.to_string()]);
    Ok(vec![http(NODE_PORT)?, http(CLUSTER_IP)?, Process::start(bulk, "iperf3", &log(BULK))?])
}

/// Makes a Service of a proxy, with the pod of a node.
fn publish(objects: &Objects, proxy: Proxy, backend: Backend, ip: Pair, node: &Node) -> Result<()> {
    let name = service_name(proxy, backend);
    objects.apply(&service(&name, proxy, backend, ip))?;
    for (suffix, ip) in ["v4", "v6"].into_iter().zip(node.pod(1).address().both()) {
        objects.apply(&endpoint_slice(&name, suffix, ip, node))?;
    }
    Ok(())
}

fn service(name: &str, proxy: Proxy, backend: Backend, ip: Pair) -> Service {
    let mut object = objects::service(name, NODE_PORT.port, "TCP");
    let spec = object.spec.get_or_insert_default();
    spec.type_ = Some("NodePort".into());
    spec.cluster_ip = Some(ip.v4.to_string());
    spec.cluster_ips = Some(ip.both().map(|ip| ip.to_string()).into());
    let port = |port: Port| ServicePort {
        name: Some(port.name.into()),
        port: port.port.into(),
        node_port: Some(node_port(proxy, backend, port).into()),
        protocol: Some("TCP".into()),
        ..ServicePort::default()
    };
    spec.ports = Some(PORTS.map(port).into());
    object
}

fn endpoint_slice(service: &str, suffix: &str, ip: IpAddr, node: &Node) -> EndpointSlice {
    let endpoint = Endpoint { ip, node: node.name(), ready: true };
    let mut slice = objects::endpoint_slice(service, suffix, NODE_PORT.target, "TCP", &[endpoint]);
    let port = |port: Port| EndpointPort {
        name: Some(port.name.into()),
        port: Some(port.target.into()),
        protocol: Some("TCP".into()),
        ..EndpointPort::default()
    };
    slice.ports = Some(PORTS.map(port).into());
    slice
}

fn service_name(proxy: Proxy, backend: Backend) -> String {
    let proxy = match proxy {
        Proxy::None => "none",
        Proxy::Weir => "weir",
        Proxy::Bypass => "bypass",
        Proxy::Dsr => "dsr",
        Proxy::Iptables => "iptables",
        Proxy::Nftables => "nftables",
    };
    format!("{proxy}-{backend}")
}

/// The port that a load on a path needs. Without a service there is no path: connections go where a node port's do.
fn port_of(path: Path, load: Load) -> Port {
    match (load, path) {
        (Load::Bulk, _) => BULK,
        (
            Load::Paced | Load::Burst | Load::Keepalive | Load::Sustained,
            Path::Direct | Path::Routed | Path::NodePort,
        ) => NODE_PORT,
        (Load::Paced | Load::Burst | Load::Keepalive | Load::Sustained, Path::ClusterIp) => CLUSTER_IP,
    }
}

/// A proxy's place among those that serve something; 0 of none.
const fn position(proxy: Proxy) -> u16 {
    match proxy {
        Proxy::None | Proxy::Weir => 0,
        Proxy::Iptables => 1,
        Proxy::Nftables => 2,
        Proxy::Bypass => 3,
        Proxy::Dsr => 4,
    }
}

const fn index(backend: Backend) -> u16 {
    match backend {
        Backend::Local => 0,
        Backend::Remote => 1,
    }
}

/// The two nodes of a proxy, counted in pairs.
const fn pair_of(cluster: u16, proxy: Proxy) -> u16 {
    PAIRS_WITHOUT + cluster * (OWN_SERVICES / 2) + position(proxy)
}

/// The two nodes of a way without a proxy, counted in pairs.
const fn pair_without(path: Path) -> u16 {
    match path {
        Path::Routed => 1,
        Path::Direct | Path::NodePort | Path::ClusterIp => 0,
    }
}

/// The number of a Service among those of all proxies.
const fn number(proxy: Proxy, backend: Backend) -> u16 {
    2 * position(proxy) + index(backend)
}

/// The same in every cluster: their nodes differ.
const fn node_port(proxy: Proxy, backend: Backend, port: Port) -> u16 {
    FIRST_NODE_PORT + 10 * number(proxy, backend) + port.index
}

/// Another one in every cluster: the client has one route to it.
fn cluster_ip(cluster: u16, proxy: Proxy, backend: Backend) -> Pair {
    let last = FIRST_CLUSTER_IP + cluster * OWN_SERVICES + number(proxy, backend);
    let [high, low] = last.to_be_bytes();
    Pair { v4: Ipv4Addr::new(10, 96, high, low), v6: Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, last) }
}

fn of_family(pair: Pair, family: Family) -> IpAddr {
    match family {
        Family::V4 => pair.v4.into(),
        Family::V6 => pair.v6.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn services_share_neither_cluster_ips_nor_node_ports() {
        let own = || Proxy::ALL.into_iter().flat_map(|proxy| Backend::ALL.map(|backend| (proxy, backend)));
        assert_eq!(own().count(), usize::from(OWN_SERVICES));
        let of = |cluster| own().map(move |(proxy, backend)| cluster_ip(cluster, proxy, backend).both());
        let ips: BTreeSet<_> = [0, 1].into_iter().flat_map(of).collect();
        assert_eq!(ips.len(), 20);
        let net = address::cluster_ips();
        assert!(ips.iter().flatten().all(|ip| net.iter().any(|net| net.contains(ip))), "{ips:?}");
        let ports: BTreeSet<_> =
            own().flat_map(|(proxy, backend)| PORTS.map(|port| node_port(proxy, backend, port))).collect();
        assert_eq!(ports.len(), 30);
        assert!(ports.iter().all(|port| (30_000..=32_767).contains(port)));
    }

    #[test]
    fn every_proxy_of_every_cluster_has_nodes_of_its_own() {
        let of = |cluster| Proxy::ALL.map(move |proxy| pair_of(cluster, proxy));
        let without = [Path::Direct, Path::Routed].map(pair_without);
        let pairs: Vec<_> = without.into_iter().chain([0, 1].into_iter().flat_map(of)).collect();
        assert_eq!(pairs, [0, 1, 2, 5, 6, 3, 4, 7, 10, 11, 8, 9]);
    }
}
