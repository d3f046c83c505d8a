//! Which endpoints may be used: the rules of kube-proxy. Weights choose among the survivors and never widen the set.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{Endpoint, Family, PodUid, Protocol, Slice};

/// An endpoint of one service port, with the port number of the slice that it came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ResolvedEndpoint<'a> {
    /// Its address.
    pub address: IpAddr,
    /// Its own port.
    pub port: u16,
    /// The node that it runs on.
    pub node: Option<&'a Arc<str>>,
    /// Takes new flows.
    pub ready: bool,
    /// Can answer, even if it takes no new flows.
    pub serving: bool,
    /// On its way out.
    pub terminating: bool,
    /// Zones whose clients should use it.
    pub zone_hints: &'a [Arc<str>],
    /// Nodes whose clients should use it.
    pub node_hints: &'a [Arc<str>],
    /// The Pod that it is.
    pub pod: Option<PodUid>,
}

impl<'a> ResolvedEndpoint<'a> {
    /// An endpoint of a slice at one of the slice's ports.
    #[must_use]
    pub fn new(endpoint: &'a Endpoint, port: u16) -> Self {
        let Endpoint { address, node, ready, serving, terminating, zone_hints, node_hints, pod } = endpoint;
        Self {
            address: *address,
            port,
            node: node.as_ref(),
            ready: *ready,
            serving: *serving,
            terminating: *terminating,
            zone_hints,
            node_hints,
            pod: *pod,
        }
    }

    pub(crate) fn is_on(&self, node: &str) -> bool {
        self.node.is_some_and(|name| **name == *node)
    }
}

/// Where this node is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Location<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its zone; empty if unknown.
    pub zone: &'a str,
}

/// The usable endpoints, as ascending indexes into the list that was categorized.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Categories {
    /// For the policy Cluster.
    pub cluster: Vec<usize>,
    /// For the policy Local. Chosen on its own, not a part of `cluster`.
    pub local: Vec<usize>,
    /// Endpoints that the policy Cluster could use if hints did not narrow it; 0 means that nobody can serve at all.
    pub anywhere: usize,
}

#[derive(Clone, Copy)]
enum TopologyMode {
    Any,
    SameNode,
    SameZone,
}

/// Endpoints of one service port: all slices of the service merged, one entry per address and port, sorted by them.
///
/// Two entries may be one endpoint that moves between slices, or a pod that is going and another one that got its
/// address already. The one that stays wins, then the ready one, then the serving one, then the one that names its node: kube-proxy has the first and
/// the last of these rules, and takes any entry otherwise.
pub fn merge<'a>(
    slices: impl Iterator<Item = &'a Slice>,
    family: Family,
    port_name: &str,
    protocol: Protocol,
) -> Vec<ResolvedEndpoint<'a>> {
    let mut merged = Vec::new();
    for slice in slices.filter(|slice| slice.family == family) {
        for port in slice.ports.iter().filter(|port| *port.name == *port_name && port.protocol == protocol) {
            let endpoints = slice.endpoints.iter().filter(|endpoint| Family::of(endpoint.address) == family);
            merged.extend(endpoints.map(|endpoint| ResolvedEndpoint::new(endpoint, port.port)));
        }
    }
    merged.sort_by_key(|e| (e.address, e.port, e.terminating, Reverse(e.ready), Reverse(e.serving), e.node.is_none()));
    merged.dedup_by_key(|e| (e.address, e.port));
    merged
}

/// Splits the endpoints of a service port into the sets that the traffic policies use.
#[must_use]
pub fn categorize(endpoints: &[ResolvedEndpoint<'_>], here: Location<'_>) -> Categories {
    let mode = topology_mode(endpoints, here);
    let mut cluster = select(endpoints, |e| e.ready && is_available(e, mode, here));
    if cluster.is_empty() {
        cluster = select(endpoints, is_draining);
    }
    let mut local = select(endpoints, |e| e.ready && e.is_on(here.node));
    if local.is_empty() {
        local = select(endpoints, |e| is_draining(e) && e.is_on(here.node));
    }
    let ready = endpoints.iter().filter(|e| e.ready).count();
    // Hints never leave the Cluster set empty while something is ready, so an empty set means none anywhere.
    let anywhere = if ready > 0 { ready } else { cluster.len() };
    Categories { cluster, local, anywhere }
}

/// The last resort: on its way out, but still answering. An endpoint that is ready although it terminates is published
/// whatever its state, and counts as ready.
fn is_draining(endpoint: &ResolvedEndpoint<'_>) -> bool {
    !endpoint.ready && endpoint.serving && endpoint.terminating
}

fn select(endpoints: &[ResolvedEndpoint<'_>], usable: impl Fn(&ResolvedEndpoint<'_>) -> bool) -> Vec<usize> {
    endpoints.iter().enumerate().filter(|(_, e)| usable(e)).map(|(index, _)| index).collect()
}

/// Hints count only if every ready endpoint has them and one names this place: half-written hints would overload a few.
fn topology_mode(endpoints: &[ResolvedEndpoint<'_>], here: Location<'_>) -> TopologyMode {
    let applies = |hints: fn(&ResolvedEndpoint<'_>) -> usize, names: &dyn Fn(&ResolvedEndpoint<'_>) -> bool| {
        let mut ready = endpoints.iter().filter(|e| e.ready);
        ready.clone().all(|e| hints(e) > 0) && ready.any(names)
    };
    if applies(|e| e.node_hints.len(), &|e| names(e.node_hints, here.node)) {
        TopologyMode::SameNode
    } else if applies(|e| e.zone_hints.len(), &|e| names(e.zone_hints, here.zone)) {
        TopologyMode::SameZone
    } else {
        TopologyMode::Any
    }
}

fn is_available(endpoint: &ResolvedEndpoint<'_>, mode: TopologyMode, here: Location<'_>) -> bool {
    match mode {
        TopologyMode::Any => true,
        TopologyMode::SameNode => names(endpoint.node_hints, here.node),
        TopologyMode::SameZone => names(endpoint.zone_hints, here.zone),
    }
}

fn names(hints: &[Arc<str>], name: &str) -> bool {
    !name.is_empty() && hints.iter().any(|hint| **hint == *name)
}
