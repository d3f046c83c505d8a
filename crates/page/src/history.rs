//! The last ten minutes, of the nodes and services that mattered most. Pure: time is the number of samples.
//!
//! Its size is bounded: [`NODES`] and [`SERVICES`], [`LENGTH`] points of 16 bytes each, less than half a megabyte in all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::sample::{NodeSample, NodeState, Sample, ServiceSample};

/// Samples that are kept: ten minutes of one every two seconds.
pub const LENGTH: usize = 300;
/// Nodes that are shown and remembered one by one; the picture has no room for more.
pub const NODES: usize = 24;
/// Services that are shown and remembered one by one; all further ones together are one more.
pub const SERVICES: usize = 64;
/// How much busier than a service that has a place another one must be to get it: two that are alike must not take turns.
const BUSIER: f64 = 2.0;

/// How it stood in one period. None of the numbers is ever infinite; NaN is unknown.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Of a node: CPU in use, a share. Unknown of services.
    pub level: f32,
    /// Of this node and of services: the share of new flows that left. Of another node: the share of this node's new flows
    /// that went there. Unknown without flows.
    pub spill: f32,
    /// New flows per second, of clients of this node; of another node: those that went there.
    pub flows: f32,
    /// Those of them per second that were refused or not answered.
    pub failures: f32,
}

impl Point {
    const UNKNOWN: Self = Self { level: f32::NAN, spill: f32::NAN, flows: f32::NAN, failures: f32::NAN };

    fn of_service(service: &ServiceSample) -> Self {
        let flows = service.offered();
        Self {
            level: f32::NAN,
            spill: part(service.remote, flows),
            flows: single(flows),
            failures: single(service.failures),
        }
    }

    fn of_node(node: &NodeSample, total: &ServiceSample) -> Self {
        let (spilled, flows) = match node.state {
            NodeState::Here => (total.remote, total.offered()),
            NodeState::Heard | NodeState::Silent | NodeState::Unknown => (node.sent, node.sent),
        };
        Self {
            level: node.level.map_or(f32::NAN, single),
            spill: part(spilled, total.offered()),
            flows: single(flows),
            failures: single(node.failures),
        }
    }
}

/// With three digits behind the point: more would only make the page's data longer.
#[expect(clippy::cast_possible_truncation, reason = "six digits are more than anybody sees")]
fn single(number: f64) -> f32 {
    ((number * 1000.0).round() / 1000.0) as f32
}

fn part(part: f64, whole: f64) -> f32 {
    if whole > 0.0 { single((part / whole).min(1.0)) } else { f32::NAN }
}

/// The points of one node or service, the newest last; shorter than [`LENGTH`] if it came later.
#[derive(Clone, Debug, Default)]
pub struct Series(VecDeque<Point>);

impl Series {
    fn push(&mut self, point: Point) {
        if self.0.len() == LENGTH {
            self.0.pop_front();
        }
        // At once: by doubling it would end with room for 512.
        self.0.reserve_exact(LENGTH - self.0.len());
        self.0.push_back(point);
    }

    /// The newest point.
    #[must_use]
    pub fn last(&self) -> Option<&Point> {
        self.0.back()
    }

    /// How many points there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// New flows in all of them, and failures.
    fn asked(&self) -> f64 {
        let numbers = self.0.iter().flat_map(|point| [point.flows, point.failures]);
        numbers.map(f64::from).filter(|number| number.is_finite()).sum()
    }
}

impl Serialize for Series {
    /// A list for each measure: shorter than a list of points, and what a chart draws.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Lists {
            level: Vec<f32>,
            spill: Vec<f32>,
            flows: Vec<f32>,
            failures: Vec<f32>,
        }
        let list = |measure: fn(&Point) -> f32| self.0.iter().map(measure).collect();
        Lists {
            level: list(|point| point.level),
            spill: list(|point| point.spill),
            flows: list(|point| point.flows),
            failures: list(|point| point.failures),
        }
        .serialize(serializer)
    }
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub struct History {
    nodes: BTreeMap<Arc<str>, Series>,
    services: BTreeMap<Arc<str>, Series>,
    others: Series,
}

impl History {
    /// Takes the sample of one more period.
    pub fn record(&mut self, sample: &Sample) {
        let total = sample.total();
        let nodes = chosen_nodes(sample).map(|node| (Arc::clone(&node.name), Point::of_node(node, &total)));
        record_all(&mut self.nodes, &nodes.collect());
        self.admit(sample);
        let (kept, rest): (Vec<_>, Vec<_>) =
            sample.services.iter().partition(|service| self.services.contains_key(&service.name));
        let kept = kept.into_iter().map(|service| (Arc::clone(&service.name), Point::of_service(service)));
        record_all(&mut self.services, &kept.collect());
        self.others.push(Point::of_service(&rest.into_iter().fold(ServiceSample::default(), ServiceSample::plus)));
    }

    /// Gives places to services that have none: first the free ones, then those of services that are far less busy.
    fn admit(&mut self, sample: &Sample) {
        // Nobody used it for ten minutes.
        self.services.retain(|_, series| series.len() < LENGTH || series.asked() > 0.0);
        let mut newcomers: Vec<_> =
            sample.services.iter().filter(|service| !self.services.contains_key(&service.name)).collect();
        newcomers.sort_by(|one, other| other.asked().total_cmp(&one.asked()).then(one.name.cmp(&other.name)));
        for newcomer in newcomers {
            if self.services.len() >= SERVICES {
                let average = |series: &Series| series.asked() / series.len() as f64;
                // Who has just come has no flows to be judged by.
                let known = self.services.iter().filter(|(_, series)| !series.is_empty());
                let least = known.map(|(name, series)| (average(series), Arc::clone(name)));
                let Some((asked, name)) = least.min_by(|one, other| one.0.total_cmp(&other.0)) else { return };
                // Those behind it are less busy still.
                if newcomer.asked() <= asked * BUSIER {
                    return;
                }
                self.services.remove(&name);
            }
            self.services.insert(Arc::clone(&newcomer.name), Series::default());
        }
    }

    /// The nodes that are remembered, by name.
    #[must_use]
    pub const fn nodes(&self) -> &BTreeMap<Arc<str>, Series> {
        &self.nodes
    }

    /// The services that are remembered, by name.
    #[must_use]
    pub const fn services(&self) -> &BTreeMap<Arc<str>, Series> {
        &self.services
    }

    /// A service that is remembered.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&Series> {
        self.services.get(name)
    }

    /// All services that are not, together.
    #[must_use]
    pub const fn others(&self) -> &Series {
        &self.others
    }
}

/// A point for each series that there is, unknown where nobody tells one, and new series for the others. A series with
/// nothing but unknown points goes.
fn record_all(all: &mut BTreeMap<Arc<str>, Series>, points: &BTreeMap<Arc<str>, Point>) {
    for name in points.keys() {
        all.entry(Arc::clone(name)).or_default();
    }
    for (name, series) in all.iter_mut() {
        series.push(points.get(name).copied().unwrap_or(Point::UNKNOWN));
    }
    all.retain(|_, series| series.0.iter().any(|point| !point.flows.is_nan()));
}

/// The nodes that are shown one by one: this one, and of the others those with flows, then those that are near.
pub(crate) fn chosen_nodes(sample: &Sample) -> impl Iterator<Item = &NodeSample> {
    let mut nodes: Vec<&NodeSample> = sample.nodes.iter().collect();
    if nodes.len() > NODES {
        let flows =
            |node: &NodeSample| if node.state == NodeState::Here { f64::INFINITY } else { node.sent + node.received };
        let distance = |node: &NodeSample| node.rtt.unwrap_or(f64::INFINITY);
        nodes.sort_by(|one, other| {
            let by_flows = flows(other).total_cmp(&flows(one));
            by_flows.then(distance(one).total_cmp(&distance(other))).then(one.name.cmp(&other.name))
        });
        nodes.truncate(NODES);
    }
    nodes.into_iter()
}
