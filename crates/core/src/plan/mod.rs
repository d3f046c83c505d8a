//! From the snapshot to what one service should look like in the maps, still without slot numbers.

mod frontends;
mod refusal;
mod selector;
mod source_ranges;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use weir_abi as abi;
use weir_abi::ticks::TickClock;

use crate::cluster::Cluster;
use crate::endpoints::{self, Categories, Location, ResolvedEndpoint};
use crate::model::{Family, ObjectName, PodUid, Protocol, Service, ServicePort, TrafficPolicy};
use crate::ops::FrontendKey;
pub(crate) use frontends::has_family;
pub use refusal::{Refusal, refusals};
pub use selector::Selector;
pub(crate) use selector::table_tiers;

/// What planning needs to know of this node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlanConfig {
    /// Name of this node.
    pub node: Arc<str>,
    /// Addresses of this node that answer at node ports.
    pub node_port_addresses: Vec<IpAddr>,
    /// All addresses that this node's interfaces carry: endpoints there are processes of this node, whoever names them.
    pub carried_addresses: BTreeSet<IpAddr>,
    /// Whether `spec.externalIPs` are served.
    pub external_ips: bool,
    /// How new flows spread over the usable endpoints.
    pub spread: Spread,
    /// The kernel's clock, in which affinity is counted.
    pub clock: TickClock,
    /// Services that another proxy is taking over right now: they keep their frontends until it has had the time to.
    pub handing_over: BTreeSet<ObjectName>,
}

/// How new flows spread over the usable endpoints.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spread {
    /// To endpoints of this node as long as it has any.
    LocalFirst,
    /// To each endpoint the same share, wherever it is.
    Random,
}

/// Identity of a plan: one port of a service in one family.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PlanKey {
    /// The service.
    pub service: ObjectName,
    /// Name of the port; may be empty.
    pub port_name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Family of the frontends and the backends.
    pub family: Family,
}

impl PlanKey {
    /// What sorts before all plans of a service.
    pub(crate) fn first_of(service: &ObjectName) -> Self {
        let (port_name, protocol, family) = (Arc::default(), Protocol::Tcp, Family::V4);
        Self { service: service.clone(), port_name, protocol, family }
    }
}

/// What one port of a service should be in one family.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServicePlan {
    /// Identity.
    pub key: PlanKey,
    /// Port of the service.
    pub port: u16,
    /// What clients connect to, each with its `abi::KIND_*`.
    pub frontends: Vec<(FrontendKey, u32)>,
    /// Every endpoint that may have flows, sorted by address and port. A tier need not use it: it may be draining.
    pub backends: Vec<BackendPlan>,
    /// Where new flows go, by `abi::CLASS_*`.
    pub tiers: [TierPlan; abi::CLASS_COUNT],
    /// How the kernel selects by them.
    pub selector: Selector,
    /// Who decides on the shares.
    pub shares: Shares,
    /// Endpoints usable from somewhere; 0 rejects, more drops where the tiers of a class are empty.
    pub endpoints: u32,
    /// Whether none of those is ready: those that are going serve on for want of others.
    pub last_resort: bool,
    /// Ticks for which a client keeps its endpoint after its last new flow; 0: no affinity.
    pub affinity: u32,
    /// Whether clients of external addresses keep their own address whatever is masqueraded: policy `Local`.
    pub external_local: bool,
    /// Clients that load balancer addresses admit, of the plan's family, sorted, without host bits; empty admits all.
    pub source_ranges: Vec<IpNet>,
}

/// One endpoint of a plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BackendPlan {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The node that it runs on.
    pub node: Option<Arc<str>>,
    /// Zone of that node; empty if unknown.
    pub zone: Arc<str>,
    /// Whether it runs on this node.
    pub local: bool,
    /// Whether its address is a node's own.
    pub host_network: bool,
    /// The Pod that it is.
    pub pod: Option<PodUid>,
}

/// Who decides how new flows are divided among the endpoints of the tiers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Shares {
    /// The plan.
    #[default]
    Planned,
    /// What watches the load ([`crate::steering`]): what the maps hold stays for endpoints that stay, until it decides
    /// again. The plan says which endpoints may be used, and how a new service begins.
    Steered,
}

/// Where new flows of one traffic class go.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TierPlan {
    /// Share of new flows that goes to `remote`, in 65536ths.
    pub spill: u16,
    /// Endpoints of this node: index in the plan's backends, and weight.
    pub local: Vec<(usize, u32)>,
    /// Endpoints of other nodes: index in the plan's backends, and weight.
    pub remote: Vec<(usize, u32)>,
}

/// Plans a service: one plan per port and family, none if it does not exist.
///
/// A service of another proxy has plans without frontends: what it has in the maps goes on for the connections that
/// began here. UDP flows do not: without their frontend they are forgotten, and select anew at the other proxy. Whoever
/// writes the maps leaves those plans alone if they hold nothing of it ([`crate::tables::Tables::holds`]).
#[must_use]
pub fn plan(cluster: &Cluster, config: &PlanConfig, name: &ObjectName) -> Vec<ServicePlan> {
    let Some(service) = cluster.service(name) else { return Vec::new() };
    let mut claimed = HashSet::new();
    let mut plans: Vec<ServicePlan> = Vec::new();
    for port in &service.ports {
        for family in [Family::V4, Family::V6] {
            let key = PlanKey {
                service: service.name.clone(),
                port_name: Arc::clone(&port.name),
                protocol: port.protocol,
                family,
            };
            if plans.iter().any(|plan| plan.key == key) {
                continue;
            }
            let frontends = frontends::frontends(service, port, family, config, &mut claimed);
            if is_served(service, family, &frontends) {
                let plan = plan_port(cluster, config, service, port, key, frontends);
                plans.push(if is_ours(cluster, service, config) { plan } else { without_new_flows(plan) });
            }
        }
    }
    plans
}

/// Whether clients find a service here.
fn is_ours(cluster: &Cluster, service: &Service, config: &PlanConfig) -> bool {
    cluster.serves(service) || config.handing_over.contains(&service.name)
}

/// What is left of a plan when another proxy takes new flows. The number of endpoints stays: a packet that is on its
/// way in at this moment is dropped, and comes again to the other proxy, instead of being refused.
fn without_new_flows(plan: ServicePlan) -> ServicePlan {
    ServicePlan { frontends: Vec::new(), tiers: Default::default(), affinity: 0, source_ranges: Vec::new(), ..plan }
}

/// A family is served if the service has a cluster IP in it. A service of a static file may have none at all: then
/// whatever frontend it has will do.
fn is_served(service: &Service, family: Family, frontends: &[(FrontendKey, u32)]) -> bool {
    has_family(service, family) && (!service.cluster_ips.is_empty() || !frontends.is_empty())
}

fn plan_port(
    cluster: &Cluster,
    config: &PlanConfig,
    service: &Service,
    port: &ServicePort,
    key: PlanKey,
    frontends: Vec<(FrontendKey, u32)>,
) -> ServicePlan {
    let here = cluster.node(&config.node);
    let zone = here.map_or("", |node| &node.zone);
    let mut merged = endpoints::merge(cluster.slices(&service.name), key.family, &port.name, port.protocol);
    merged.retain(|endpoint| keeps_flows(endpoint, port.protocol) && refusal::can_translate(port, endpoint.port));
    let categories = endpoints::categorize(&merged, Location { node: &config.node, zone });
    let backends: Vec<_> = merged.iter().map(|endpoint| backend(cluster, config, endpoint)).collect();

    let Categories { cluster: cluster_set, local: local_set, anywhere } = &categories;
    let tier = |policy: TrafficPolicy| match policy {
        TrafficPolicy::Cluster => tier(cluster_set, &backends, config.spread),
        TrafficPolicy::Local => tier(local_set, &backends, config.spread),
    };
    let mut tiers: [TierPlan; abi::CLASS_COUNT] = Default::default();
    tiers[abi::CLASS_INTERNAL] = tier(service.internal_policy);
    tiers[abi::CLASS_EXTERNAL] = tier(service.external_policy);
    tiers[abi::CLASS_SHORT_CIRCUIT] = tier(TrafficPolicy::Cluster);
    // The node's first address of a family is its own one, as for kube-proxy.
    let node = here.and_then(|node| node.addresses.iter().copied().find(|ip| Family::of(*ip) == key.family));
    let source_ranges = source_ranges::source_ranges(service, key.family, node);
    let endpoints = u32::try_from(*anywhere).unwrap_or(u32::MAX);
    ServicePlan {
        key,
        port: port.port,
        frontends,
        backends,
        tiers,
        selector: Selector::default(),
        shares: Shares::Planned,
        endpoints,
        last_resort: endpoints > 0 && !merged.iter().any(|endpoint| endpoint.ready),
        external_local: service.external_policy == TrafficPolicy::Local,
        affinity: service.affinity.map_or(0, |seconds| affinity(config.clock, seconds)),
        source_ranges,
    }
}

/// As kube-proxy cleans up: an endpoint that no longer serves loses its UDP flows. Connections end with the endpoint.
fn keeps_flows(endpoint: &ResolvedEndpoint<'_>, protocol: Protocol) -> bool {
    match protocol {
        Protocol::Udp => endpoint.ready || endpoint.serving,
        Protocol::Tcp | Protocol::Sctp => true,
    }
}

/// Rounded up: a client keeps its endpoint for at least as long as it was promised, and 0 would be no affinity at all.
fn affinity(clock: TickClock, seconds: u32) -> u32 {
    let time = Duration::from_secs(seconds.into());
    let ticks = clock.ticks(time);
    if clock.duration(ticks) < time { ticks + 1 } else { ticks }
}

fn backend(cluster: &Cluster, config: &PlanConfig, endpoint: &ResolvedEndpoint<'_>) -> BackendPlan {
    let node = endpoint.node.and_then(|name| cluster.node(name));
    BackendPlan {
        address: endpoint.address,
        port: endpoint.port,
        node: endpoint.node.cloned(),
        zone: node.map_or_else(Arc::default, |node| Arc::clone(&node.zone)),
        local: is_local(cluster, config, endpoint),
        host_network: cluster.is_node_address(endpoint.address) || config.carried_addresses.contains(&endpoint.address),
        pod: endpoint.pod,
    }
}

/// An endpoint that names no node, as those written by hand, is on the node whose address it has. What this node carries the kernel takes for
/// its own, whatever else is said of it.
fn is_local(cluster: &Cluster, config: &PlanConfig, endpoint: &ResolvedEndpoint<'_>) -> bool {
    match endpoint.node {
        _ if config.carried_addresses.contains(&endpoint.address) => true,
        Some(node) => *node == config.node,
        None => cluster.node(&config.node).is_some_and(|node| node.addresses.contains(&endpoint.address)),
    }
}

fn tier(set: &[usize], backends: &[BackendPlan], spread: Spread) -> TierPlan {
    let (local, remote): (Vec<_>, Vec<_>) = set.iter().map(|index| (*index, 1)).partition(|(i, _)| backends[*i].local);
    let spill = match spread {
        Spread::LocalFirst if local.is_empty() => u16::MAX,
        Spread::LocalFirst => 0,
        Spread::Random => share(remote.len(), set.len()),
    };
    TierPlan { spill, local, remote }
}

/// A part of a whole in 65536ths; all of it is 65535, where the empty local tier passes the rest on.
fn share(part: usize, whole: usize) -> u16 {
    if whole == 0 {
        return u16::MAX;
    }
    let scaled = (part as u64 * 65_536 + whole as u64 / 2) / whole as u64;
    u16::try_from(scaled).unwrap_or(u16::MAX)
}
