//! What a policy is asked about.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::ability::{Factors, Level};
use crate::load::{NodeLoad, PeerReport, Sample, ServiceId, Share};

/// Everything that one decision for one service on one node rests upon.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The service.
    pub service: ServiceId,
    /// Time since the decision before.
    pub elapsed: Duration,
    /// Nodes that have usable endpoints. One of them may be this one.
    pub nodes: &'a [Node<'a>],
    /// The usable endpoints, without those that are ejected.
    pub endpoints: &'a [Endpoint],
    /// This node.
    pub own: &'a Own,
    /// What clients of this node ask of the service.
    pub offered: Offered,
    /// How busy the service is that this one relies on (`weir.dev/relies-on`).
    pub relies_on: Option<NodeLoad>,
    /// What the service's owner wants.
    pub parameters: &'a Parameters,
}

/// A node that has usable endpoints.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it is this node.
    pub local: bool,
    /// What it told; None for this node, and for one that tells nothing.
    pub report: Option<&'a PeerReport>,
    /// How often it reports, if not as [`Parameters::report_interval`] says: a node without an agent is slower.
    pub interval: Option<Duration>,
}

/// A usable endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Endpoint {
    /// Index in the plan's backends.
    pub backend: usize,
    /// Its address and port.
    pub address: SocketAddr,
    /// Index of its node in [`Inputs::nodes`].
    pub node: usize,
    /// What it uses of its limits.
    pub load: EndpointLoad,
    /// Flows from this node that it has open, whether they went on or not: one that answers nobody must not seem idle.
    pub open_flows: u32,
    /// New flows from this node that it ever got, whether they went on or not: one that refuses all must not seem unused.
    pub flows: u64,
}

/// What an endpoint uses of its limits. What is unknown is None.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndpointLoad {
    /// CPU.
    pub cpu: Option<Share>,
    /// Memory.
    pub memory: Option<Share>,
    /// Network.
    pub network: Option<Share>,
}

/// This node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Own {
    /// How busy it is.
    pub load: NodeLoad,
    /// What the service's endpoints on this node use together.
    pub pods: Option<Sample<PodsLoad>>,
}

/// What the pods of a service on this node use together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PodsLoad {
    /// Cores in use.
    pub cores: f64,
    /// Cores that their limits allow together; None if one of them has no limit.
    pub limit: Option<f64>,
}

/// A service's flows on this node, counted by the datapath: they have no age.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offered {
    /// New flows per second from clients of this node that went on, wherever they went.
    pub flows_per_second: f64,
    /// All that began, be their first packets forged: what [`Endpoint::flows`] grow by together.
    pub begun_per_second: f64,
    /// New flows per second that the node's own endpoints got, from clients of any node.
    pub local_flows_per_second: f64,
    /// Flows that went on, and that the node's own endpoints have open.
    pub open_flows: u32,
}

/// What the owner of a service, or the configuration, wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Utilisation up to which flows stay (`weir.dev/target`); None is the policy's own level.
    pub target: Option<Share>,
    /// Most that may leave the node (`weir.dev/max-spill`) as long as it has endpoints.
    pub max_spill: Share,
    /// Round-trip time beyond which no flow goes (`weir.dev/max-rtt`).
    pub max_rtt: Option<Duration>,
    /// What the requests need most (`weir.dev/request-class`).
    pub request_class: Factors<Level>,
    /// How often nodes report: under a second by the mesh, 15 s by metrics.k8s.io. Ages are judged by it.
    pub report_interval: Duration,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            target: None,
            max_spill: Share::ALL,
            max_rtt: None,
            request_class: Factors { cpu: Level::High, memory: Level::High, network: Level::High },
            report_interval: Self::REPORT_INTERVAL,
        }
    }
}

/// How far a node's report can be trusted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reading {
    /// As it is.
    Fresh,
    /// No longer for more than what the node gets already.
    Frozen,
}

impl Parameters {
    /// Of the mesh: under 1 s.
    pub const REPORT_INTERVAL: Duration = Duration::from_secs(1);
    /// Intervals without a report until a node gets no more than it has: 3.
    pub const FROZEN_AFTER_INTERVALS: u32 = 3;
    /// Age at which a node gets nothing any more: 10 s.
    pub const INELIGIBLE_AFTER: Duration = Duration::from_secs(10);
    /// The same for a feed that is slower: one interval more than frozen.
    pub const INELIGIBLE_AFTER_INTERVALS: u32 = 4;

    /// What a report of some age is good for; None: nothing.
    #[must_use]
    pub fn reading(&self, age: Duration) -> Option<Reading> {
        let slow_feed = self.report_interval.saturating_mul(Self::INELIGIBLE_AFTER_INTERVALS);
        if age > Self::INELIGIBLE_AFTER.max(slow_feed) {
            None
        } else if age > self.report_interval.saturating_mul(Self::FROZEN_AFTER_INTERVALS) {
            Some(Reading::Frozen)
        } else {
            Some(Reading::Fresh)
        }
    }
}

impl Inputs<'_> {
    /// How many endpoints each node has.
    #[must_use]
    pub fn endpoints_by_node(&self) -> Vec<u32> {
        let mut count = vec![0; self.nodes.len()];
        for endpoint in self.endpoints {
            count[endpoint.node] += 1;
        }
        count
    }

    /// Whether an endpoint is on this node.
    #[must_use]
    pub fn is_local(&self, endpoint: usize) -> bool {
        self.nodes[self.endpoints[endpoint].node].local
    }

    /// What a report of a node, of some age, is good for; None: nothing.
    #[must_use]
    pub fn reading(&self, node: usize, age: Duration) -> Option<Reading> {
        let report_interval = self.nodes[node].interval.unwrap_or(self.parameters.report_interval);
        Parameters { report_interval, ..*self.parameters }.reading(age)
    }

    /// Index of this node, if it has usable endpoints.
    #[must_use]
    pub fn here(&self) -> Option<usize> {
        self.endpoints.iter().map(|endpoint| endpoint.node).find(|node| self.nodes[*node].local)
    }

    /// How busy a node is, if it told so and that is not too old. Lies are as good as silence.
    #[must_use]
    pub fn load_of(&self, node: usize) -> Option<NodeLoad> {
        let Node { local, report, .. } = &self.nodes[node];
        if *local {
            return self.own.load.checked().ok();
        }
        let report = report.filter(|report| self.reading(node, report.age).is_some())?;
        let mut load = report.load.checked().ok()?;
        // A node can report in time and yet measure nothing any more.
        let young = |age: Duration| self.reading(node, age.saturating_add(report.age)).is_some();
        load.cpu = load.cpu.filter(|cpu| young(cpu.age));
        load.memory = load.memory.filter(|memory| young(memory.age));
        load.network = load.network.filter(|network| young(network.age));
        Some(load)
    }

    /// Round-trip time to a node; None if it was never measured.
    #[must_use]
    pub fn rtt_of(&self, node: usize) -> Option<Duration> {
        let Node { local, report, .. } = &self.nodes[node];
        if *local { Some(Duration::ZERO) } else { report.and_then(|report| report.rtt) }
    }

    /// Whether a node is as near as the service's owner wants. One that was never measured is not.
    #[must_use]
    pub fn is_near_enough(&self, node: usize) -> bool {
        self.parameters.max_rtt.is_none_or(|most| self.rtt_of(node).is_some_and(|rtt| rtt <= most))
    }
}
