//! A Service with a port for each kind of server in the pods, and its endpoints in any state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use weir_abi as abi;
use weir_core::ops::Dump;
use weir_testbed::address::Pair;
use weir_testbed::ask::{self, Answer};
use weir_testbed::{Node, Pod, World, objects, wait};

use super::{Agent, Cluster, HTTP, SOON, TCP, UDP, text};

/// What client and server speak; each has a port of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Talk {
    Http,
    Tcp,
    Udp,
}

impl Talk {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Tcp, Self::Udp];

    /// Name of the Service's port.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    pub(crate) fn protocol(self) -> &'static str {
        match self {
            Self::Http | Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// The Service's port. TCP and UDP share a number, as DNS does.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Tcp | Self::Udp => 7,
        }
    }

    /// The pods' port.
    pub(crate) fn target(self) -> u16 {
        match self {
            Self::Http => HTTP,
            Self::Tcp => TCP,
            Self::Udp => UDP,
        }
    }

    /// Asks once, in the calling thread's namespace.
    pub(crate) fn ask(self, server: SocketAddr, limit: Duration) -> weir_testbed::Result<Answer> {
        match self {
            Self::Http => ask::http_ask_within(server, limit),
            Self::Tcp => ask::tcp_ask_within(server, limit),
            Self::Udp => ask::udp_ask_within(server, limit),
        }
    }
}

/// An endpoint, as its controller sees it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) address: Pair,
    pub(crate) node: String,
    pub(crate) ready: bool,
    pub(crate) serving: bool,
    pub(crate) terminating: bool,
}

impl Member {
    /// A pod that takes connections.
    pub(crate) fn ready(pod: &Pod) -> Self {
        let node = format!("node{}", pod.node());
        Self { address: pod.address(), node, ready: true, serving: true, terminating: false }
    }

    /// A pod that still serves, but shall get no new connections.
    pub(crate) fn resting(pod: &Pod) -> Self {
        Self { ready: false, ..Self::ready(pod) }
    }

    /// A pod whose readiness probe fails.
    pub(crate) fn failing(pod: &Pod) -> Self {
        Self { serving: false, ..Self::resting(pod) }
    }

    /// A pod that serves on its way out.
    pub(crate) fn draining(pod: &Pod) -> Self {
        Self { terminating: true, ..Self::resting(pod) }
    }

    /// A process with the address of its node.
    pub(crate) fn on_host(node: &Node) -> Self {
        Self { address: node.address(), node: node.name(), ready: true, serving: true, terminating: false }
    }
}

/// Ready endpoints in these pods.
pub(crate) fn ready(pods: &[Pod]) -> Vec<Member> {
    pods.iter().map(Member::ready).collect()
}

/// A Service of a type (`ClusterIP`, `NodePort`, `LoadBalancer`) in both families, with all three ports.
pub(crate) fn echo(name: &str, kind: &str) -> Service {
    let mut service = objects::service(name, 1, "TCP");
    let port = |talk: Talk| ServicePort {
        name: Some(talk.name().into()),
        port: talk.port().into(),
        protocol: Some(talk.protocol().into()),
        ..ServicePort::default()
    };
    let spec = spec(&mut service);
    spec.type_ = Some(kind.to_owned());
    spec.ports = Some(Talk::ALL.map(port).to_vec());
    service
}

/// What is to be changed of a Service.
pub(crate) fn spec(service: &mut Service) -> &mut ServiceSpec {
    service.spec.as_mut().unwrap()
}

/// An EndpointSlice `SERVICE-SUFFIX` in one family, with all three ports.
pub(crate) fn slice(service: &str, suffix: &str, v6: bool, members: &[Member]) -> EndpointSlice {
    let mut slice = objects::endpoint_slice(service, suffix, 1, "TCP", &[]);
    slice.address_type = if v6 { "IPv6".into() } else { "IPv4".into() };
    let port = |talk: Talk| EndpointPort {
        name: Some(talk.name().into()),
        port: Some(talk.target().into()),
        protocol: Some(talk.protocol().into()),
        ..EndpointPort::default()
    };
    slice.ports = Some(Talk::ALL.map(port).to_vec());
    let endpoint = |member: &Member| Endpoint {
        addresses: vec![if v6 { member.address.v6.to_string() } else { member.address.v4.to_string() }],
        conditions: Some(EndpointConditions {
            ready: Some(member.ready),
            serving: Some(member.serving),
            terminating: Some(member.terminating),
        }),
        node_name: Some(member.node.clone()),
        ..Endpoint::default()
    };
    slice.endpoints = members.iter().map(endpoint).collect();
    slice
}

/// A Service as the API server has it.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    pub(crate) service: Service,
}

impl Echo {
    pub(crate) fn name(&self) -> &str {
        self.service.metadata.name.as_deref().unwrap()
    }

    /// Both cluster IPs with the port, IPv4 first.
    pub(crate) fn cluster_ips(&self, talk: Talk) -> [SocketAddr; 2] {
        let mut sockets = super::cluster_sockets(&self.service);
        sockets.sort_by_key(SocketAddr::is_ipv6);
        sockets.iter_mut().for_each(|socket| socket.set_port(talk.port()));
        sockets.try_into().unwrap()
    }

    pub(crate) fn node_port(&self, talk: Talk) -> u16 {
        let ports = self.service.spec.as_ref().unwrap().ports.as_ref().unwrap();
        let port = ports.iter().find(|port| port.name.as_deref() == Some(talk.name())).unwrap();
        port.node_port.unwrap().try_into().unwrap()
    }

    /// Both addresses of a node with the node port, IPv4 first.
    pub(crate) fn node_ports(&self, node: &Node, talk: Talk) -> [SocketAddr; 2] {
        node.address().both().map(|ip| SocketAddr::new(ip, self.node_port(talk)))
    }

    /// Both cluster IPs, and both addresses of every node with the node port.
    pub(crate) fn everywhere(&self, world: &World, talk: Talk) -> Vec<SocketAddr> {
        let node_ports = world.nodes().iter().flat_map(|node| self.node_ports(node, talk));
        self.cluster_ips(talk).into_iter().chain(node_ports).collect()
    }

    fn external_ips(&self) -> Vec<IpAddr> {
        let spec = self.service.spec.as_ref().unwrap();
        let balancer = self.service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = balancer.into_iter().flat_map(|balancer| balancer.ingress.iter().flatten());
        let texts = ingress.filter_map(|ingress| ingress.ip.as_deref());
        let texts = texts.chain(spec.external_ips.iter().flatten().map(String::as_str));
        texts.map(|ip| ip.parse().unwrap()).collect()
    }

    /// Everything that clients may connect to on a node.
    fn frontends(&self, node: &Node) -> Vec<SocketAddr> {
        let mut all = Vec::new();
        for talk in Talk::ALL {
            all.extend(self.cluster_ips(talk));
            all.extend(self.external_ips().into_iter().map(|ip| SocketAddr::new(ip, talk.port())));
            if self.service.spec.as_ref().unwrap().type_.as_deref() != Some("ClusterIP") {
                all.extend(self.node_ports(node, talk));
            }
        }
        all
    }
}

impl Cluster {
    /// Makes or changes a Service with all its endpoints, and waits until every agent has it.
    pub(crate) fn serve_echo(&self, service: &Service, members: &[Member]) -> Echo {
        let mut echo = Echo { service: self.objects.apply(service).unwrap() };
        if let Some(status) = &service.status {
            let ingress = status.load_balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
            let addresses: Vec<_> = ingress.map(|ingress| ingress.ip.as_deref().unwrap().parse().unwrap()).collect();
            echo.service = self.objects.set_load_balancer(&echo.service, &addresses).unwrap();
        }
        self.set_members(&echo, members);
        for (agent, node) in self.agents.iter().zip(self.world.nodes()) {
            for frontend in echo.frontends(node) {
                agent.await_frontend(frontend.ip(), frontend.port(), true);
            }
        }
        echo
    }

    /// Replaces the endpoints, one slice a family, and waits until every agent sends new connections there.
    pub(crate) fn set_members(&self, echo: &Echo, members: &[Member]) {
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            self.objects.apply(&slice(echo.name(), suffix, v6, members)).unwrap();
        }
        self.await_members(echo, members);
    }

    /// Waits until every agent sends new connections to the members that are ready, and keeps the flows of all that serve;
    /// TCP connections of the others, too.
    pub(crate) fn await_members(&self, echo: &Echo, members: &[Member]) {
        let addresses = |usable: fn(&Member) -> bool| -> BTreeSet<IpAddr> {
            members.iter().filter(|member| usable(member)).flat_map(|member| member.address.both()).collect()
        };
        let mut chosen = addresses(|member| member.ready);
        if chosen.is_empty() {
            chosen = addresses(|member| member.serving && member.terminating);
        }
        let kept = |talk| match talk {
            Talk::Http | Talk::Tcp => addresses(|_| true),
            Talk::Udp => addresses(|member| member.ready || member.serving),
        };
        for agent in &self.agents {
            agent.await_endpoints(echo.name(), &chosen, &kept);
        }
    }
}

impl Agent {
    /// Waits until new connections from inside the cluster get these endpoints at external addresses, and those that
    /// `kept` names for each port are held.
    pub(crate) fn await_endpoints(
        &self,
        service: &str,
        chosen: &BTreeSet<IpAddr>,
        kept: &dyn Fn(Talk) -> BTreeSet<IpAddr>,
    ) {
        let view = self.view();
        let what = format!("endpoints {chosen:?} of {service} in the maps of {}", self.pins.display());
        let right = || {
            let dump = view.dump().unwrap();
            for talk in Talk::ALL {
                let (found, held) = endpoints(&dump, service, talk);
                if found != *chosen || held != kept(talk) {
                    return Err(format!("{talk:?}: chosen {found:?} of {held:?}"));
                }
            }
            Ok(())
        };
        wait::until_some(&what, SOON, right).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
    }

    /// New flows of a Service's port in one family so far.
    pub(crate) fn flows_of(&self, echo: &Echo, talk: Talk, v6: bool) -> abi::ServiceCounters {
        let view = self.view();
        let family = if v6 { 6 } else { 4 };
        let dump = view.dump().unwrap();
        let ids = slots(&dump, echo.name(), talk);
        let id = ids.into_iter().find(|(_, name)| name.family == family).unwrap().0;
        view.service_counters(id).unwrap()
    }

    /// Packets that left a hook for a reason so far.
    pub(crate) fn packets(&self, hook: u32, reason: u32) -> u64 {
        self.view().counters().counter(hook as usize, reason as usize).unwrap().packets
    }
}

/// Slots of a Service's port, one for each family.
fn slots<'a>(dump: &'a Dump, service: &str, talk: Talk) -> Vec<(u32, &'a abi::ServiceName)> {
    let same = |name: &abi::ServiceName| text(&name.name) == service && text(&name.port_name) == talk.name();
    dump.service_names.iter().filter(|(_, name)| same(name)).map(|(id, name)| (*id, name)).collect()
}

/// Addresses that new connections from inside the cluster may get at external addresses, and all that are held, both
/// families together.
fn endpoints(dump: &Dump, service: &str, talk: Talk) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
    let lines: BTreeMap<u32, &abi::Line> = dump.lines.iter().map(|(id, line)| (*id, line)).collect();
    let backends: BTreeMap<u32, &abi::Backend> = dump.backends.iter().map(|(id, backend)| (*id, backend)).collect();
    let ids: BTreeSet<u32> = slots(dump, service, talk).into_iter().map(|(id, _)| id).collect();
    let mut open: Vec<u32> = Vec::new();
    for (_, service) in dump.services.iter().filter(|(id, _)| ids.contains(id)) {
        let tiers = service.tiers[abi::CLASS_SHORT_CIRCUIT];
        open.extend([tiers.local, tiers.remote]);
    }
    let mut chosen = BTreeSet::new();
    while let Some(reference) = open.pop() {
        if reference & abi::REF_LINE != 0 {
            open.extend(lines.get(&(reference & !abi::REF_LINE)).iter().flat_map(|line| line.r#ref));
        } else if reference != 0 {
            chosen.extend(backends.get(&reference).map(|backend| backend.addr.ip()));
        }
    }
    let used = dump.backends.iter().filter(|(_, b)| b.flags & abi::BACKEND_USED != 0 && ids.contains(&b.service));
    (chosen, used.map(|(_, backend)| backend.addr.ip()).collect())
}
