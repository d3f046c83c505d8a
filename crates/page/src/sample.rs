//! What the page is made of: how the nodes and the services stood in the last period, as numbers.
//!
//! Shares are 0 to 1, rates are new flows per second, times are seconds; None is unknown.

use std::sync::Arc;

use serde::Serialize;
use weir_telemetry::weights;

/// Who knows how it stands. Answers are given on the thread that asks: they must be quick.
pub trait Source: Send + Sync + 'static {
    /// What happened since the last time. There is one who asks, once a [`PERIOD`](crate::PERIOD).
    fn sample(&self) -> Sample;

    /// All ports of a service, called `namespace/name`, with what was decided and why; none if it is not steered.
    fn service(&self, name: &str) -> Vec<weights::Service>;
}

/// How everything stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// This node first, then the others in any order.
    pub nodes: Vec<NodeSample>,
    /// The services in use, in any order.
    pub services: Vec<ServiceSample>,
    /// How many service ports are steered, those that nobody uses included.
    pub steered: usize,
    /// The level from which flows leave this node: utilisation, a share.
    pub crest: f64,
    /// Whether the nodes tell each other their load.
    pub mesh: bool,
    /// What keeps this node from knowing more, in words.
    pub problems: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSample {
    /// Its name.
    pub name: Arc<str>,
    /// What is known of it.
    pub state: NodeState,
    /// CPU in use.
    pub level: Option<f64>,
    /// Memory in use.
    pub memory: Option<f64>,
    /// Network in use.
    pub network: Option<f64>,
    /// Cores that it can give; 0 if unknown.
    pub cores: f64,
    /// Round-trip time from this node.
    pub rtt: Option<f64>,
    /// New flows that clients of this node sent to its endpoints.
    pub sent: f64,
    /// New flows that it sent to endpoints of this node, as it tells.
    pub received: f64,
    /// New flows that its endpoints got from clients of all nodes, as far as it tells.
    pub served: Option<f64>,
    /// New flows from here that its endpoints refused or did not answer.
    pub failures: f64,
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It is this one.
    Here,
    /// It tells how it is.
    Heard,
    /// It did, and does not any more: it gets no new flows.
    Silent,
    /// Nobody heard of it within the last minute, or it runs no agent.
    #[default]
    Unknown,
}

/// A service, its ports and both families together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSample {
    /// As `namespace/name`.
    pub name: Arc<str>,
    /// New flows of clients of this node that stayed here.
    pub local: f64,
    /// Those that left.
    pub remote: f64,
    /// New flows that other nodes sent here, as they tell.
    pub inbound: f64,
    /// New flows of clients of this node that were refused or not answered.
    pub failures: f64,
}

impl ServiceSample {
    /// What clients of this node asked for.
    #[must_use]
    pub fn offered(&self) -> f64 {
        self.local + self.remote
    }

    /// All that they asked for, be it in vain.
    #[must_use]
    pub fn asked(&self) -> f64 {
        self.offered() + self.failures
    }

    /// All that it had to do with this node.
    #[must_use]
    pub fn traffic(&self) -> f64 {
        self.offered() + self.inbound
    }

    /// Adds another one's flows to these; the name stays.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        let Self { name: _, local, remote, inbound, failures } = other;
        Self {
            name: self.name,
            local: self.local + local,
            remote: self.remote + remote,
            inbound: self.inbound + inbound,
            failures: self.failures + failures,
        }
    }
}

impl Sample {
    /// All services together.
    #[must_use]
    pub fn total(&self) -> ServiceSample {
        self.services.iter().fold(ServiceSample::default(), ServiceSample::plus)
    }
}
