//! What browsers get, as JSON: the last ten minutes when they come, and then how it stands, once a period. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use weir_telemetry::weights;

use crate::PERIOD;
use crate::history::{History, LENGTH, Point, Series, chosen_nodes};
use crate::sample::{NodeSample, NodeState, Sample, ServiceSample};

/// Endpoints of a set that are told one by one, those with the greatest shares.
pub const ENDPOINTS: usize = 100;

/// The last ten minutes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Past<'a> {
    /// Seconds from one point to the next.
    period: f64,
    /// Points that are kept.
    length: usize,
    /// By name.
    nodes: &'a BTreeMap<Arc<str>, Series>,
    /// Of the service that is asked about; None: it has no place of its own.
    service: Option<&'a Series>,
}

impl<'a> Past<'a> {
    /// With one service, if that is asked for.
    #[must_use]
    pub fn new(history: &'a History, service: Option<&str>) -> Self {
        Self {
            period: PERIOD.as_secs_f64(),
            length: LENGTH,
            nodes: history.nodes(),
            service: service.and_then(|name| history.services().get(name)),
        }
    }
}

/// How everything stands.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Now<'a> {
    /// This node.
    here: &'a str,
    /// Whether the nodes tell each other their load.
    mesh: bool,
    /// The level from which flows leave this node.
    crest: f64,
    /// Service ports that are steered.
    steered: usize,
    /// At most [`NODES`](crate::history::NODES); this one is among them.
    nodes: Vec<NodeView<'a>>,
    /// The other nodes, if there are more.
    more_nodes: Option<MoreNodes>,
    /// Those with a place, the busiest first.
    services: Vec<ServiceSample>,
    /// All others that are in use, if there are any.
    more_services: Option<MoreServices>,
    /// All services together.
    total: ServiceSample,
    /// What keeps this node from knowing more.
    problems: &'a [String],
}

/// A node with its newest point.
#[derive(Clone, Debug, Serialize)]
struct NodeView<'a> {
    #[serde(flatten)]
    node: &'a NodeSample,
    point: Option<PointView>,
}

/// A point as browsers get it, in the order level, spill, flows, failures; null is unknown.
type PointView = [f32; 4];

fn point_view(series: &Series) -> Option<PointView> {
    series.last().map(|Point { level, spill, flows, failures }| [*level, *spill, *flows, *failures])
}

/// Nodes that are not shown one by one.
#[derive(Clone, Debug, Serialize)]
struct MoreNodes {
    count: usize,
    /// Mean of those that tell it.
    level: Option<f64>,
    sent: f64,
    received: f64,
}

/// Services that are not.
#[derive(Clone, Debug, Serialize)]
struct MoreServices {
    count: usize,
    #[serde(flatten)]
    sum: ServiceSample,
    point: Option<PointView>,
}

impl<'a> Now<'a> {
    /// After the sample was [recorded](History::record).
    #[must_use]
    pub fn new(history: &History, sample: &'a Sample) -> Self {
        let here = sample.nodes.iter().find(|node| node.state == NodeState::Here);
        let nodes: Vec<_> = chosen_nodes(sample)
            .map(|node| NodeView { node, point: history.nodes().get(&node.name).and_then(point_view) })
            .collect();
        let shown = |name: &str| nodes.iter().any(|view| *view.node.name == *name);
        let hidden: Vec<_> = sample.nodes.iter().filter(|node| !shown(&node.name)).collect();
        Self {
            here: here.map_or("", |here| &here.name),
            mesh: sample.mesh,
            crest: sample.crest,
            steered: sample.steered,
            more_nodes: more_nodes(&hidden),
            nodes,
            services: services(history, sample),
            more_services: more_services(history, sample),
            total: sample.total(),
            problems: &sample.problems,
        }
    }
}

fn more_nodes(hidden: &[&NodeSample]) -> Option<MoreNodes> {
    let levels: Vec<f64> = hidden.iter().filter_map(|node| node.level).collect();
    (!hidden.is_empty()).then(|| MoreNodes {
        count: hidden.len(),
        level: (!levels.is_empty()).then(|| levels.iter().sum::<f64>() / levels.len() as f64),
        sent: hidden.iter().map(|node| node.sent).sum(),
        received: hidden.iter().map(|node| node.received).sum(),
    })
}

/// Those with a place stay in the list while nobody uses them.
fn services(history: &History, sample: &Sample) -> Vec<ServiceSample> {
    let used: BTreeMap<&str, &ServiceSample> =
        sample.services.iter().map(|service| (&*service.name, service)).collect();
    let kept = history.services().keys().map(|name| match used.get(&**name) {
        Some(service) => (*service).clone(),
        None => ServiceSample { name: Arc::clone(name), ..ServiceSample::default() },
    });
    let mut kept: Vec<_> = kept.collect();
    // As places are given: who only fails is busy, too.
    let busy = |service: &ServiceSample| service.asked() + service.inbound;
    kept.sort_by(|one, other| busy(other).total_cmp(&busy(one)).then(one.name.cmp(&other.name)));
    kept
}

fn more_services(history: &History, sample: &Sample) -> Option<MoreServices> {
    let has_place = |service: &&ServiceSample| history.services().contains_key(&service.name);
    let rest: Vec<_> = sample.services.iter().filter(|service| !has_place(service)).collect();
    (!rest.is_empty()).then(|| MoreServices {
        count: rest.len(),
        sum: rest.into_iter().fold(ServiceSample::default(), ServiceSample::plus),
        point: point_view(history.others()),
    })
}

/// A service as it was asked about.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView<'a> {
    /// As `namespace/name`.
    name: &'a str,
    /// None: it has no place of its own.
    point: Option<PointView>,
    /// None if no service of that name is steered.
    ports: Vec<PortView>,
}

/// A port in one family.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PortView {
    #[serde(flatten)]
    port: weights::Service,
    /// Endpoints that are left out, in all sets.
    left_out: usize,
}

impl<'a> ServiceView<'a> {
    /// Of what the source says of it.
    #[must_use]
    pub fn new(history: &History, name: &'a str, ports: Vec<weights::Service>) -> Self {
        let point = history.services().get(name).and_then(point_view);
        Self { name, point, ports: ports.into_iter().map(port_view).collect() }
    }
}

/// The greatest shares first, and of equal ones in the order in which they came.
fn port_view(mut port: weights::Service) -> PortView {
    let mut left_out = 0;
    for set in &mut port.sets {
        set.endpoints.sort_by(|one, other| other.share.total_cmp(&one.share));
        left_out += set.endpoints.len().saturating_sub(ENDPOINTS);
        set.endpoints.truncate(ENDPOINTS);
    }
    PortView { port, left_out }
}
