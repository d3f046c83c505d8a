//! What an agent that steers says of itself at `/weights`: what it decided, from what, and why. The agent writes it, the
//! command line reads it.
//!
//! Shares are 0 to 1, times and ages are seconds, rates are new flows per second; None is unknown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Path of the document, at the [admin socket](crate::admin).
pub const PATH: &str = "/weights";

/// Everything that stands.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Weights {
    /// This node.
    pub node: Node,
    /// Whether other nodes are probed.
    pub mesh: bool,
    /// The other nodes that may be probed.
    pub peers: Vec<Peer>,
    /// Packets of the mesh that were refused, by reason as `weir_mesh_refused_total` has it; those at zero are left out.
    #[serde(default)]
    pub mesh_refused: BTreeMap<String, u64>,
    /// Where the signals come from.
    pub sources: Vec<Source>,
    /// Service ports that are steered.
    pub services: Vec<Service>,
}

/// How busy a node is.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name.
    pub name: String,
    /// CPU in use.
    pub cpu: Option<Reading>,
    /// Memory in use.
    pub memory: Option<Reading>,
    /// Network in use.
    pub network: Option<Reading>,
    /// Time in which somebody waited for CPU.
    pub pressure: Option<Reading>,
    /// Cores that it can give; 0 if unknown.
    pub cores: f64,
    /// What its network carries, in bits per second each way; 0 if unknown.
    #[serde(default)]
    pub bandwidth: f64,
}

/// A share with its age.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// Of the whole.
    pub share: f64,
    /// Since when it is so.
    pub age: f64,
}

/// Another node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Where it is probed.
    pub address: String,
    /// Whether it is probed all the time, as one of the nearest.
    pub near: bool,
    /// Whether it answered once and does not any more: for the first minute it gets no new flows.
    pub silent: bool,
    /// Round-trip time; none if it does not answer.
    pub rtt: Option<f64>,
    /// Age of what it told last.
    pub report_age: Option<f64>,
    /// Probes in a row without an answer.
    pub unanswered: u32,
    /// What it told, with its age now.
    pub load: Option<Node>,
}

/// A source of signals.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// What it tells.
    pub signal: String,
    /// How often it was read.
    pub reads: u64,
    /// What is wrong with it now.
    pub problem: Option<String>,
}

/// A service port in one family.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Port of the service.
    pub port: u16,
    /// The port's name; may be empty.
    pub port_name: String,
    /// TCP, UDP or SCTP.
    pub protocol: String,
    /// 4 or 6.
    pub family: u8,
    /// The policy in force.
    pub policy: String,
    /// Utilisation up to which flows stay; None: the policy's own.
    pub target: Option<f64>,
    /// Most that may leave the node.
    pub max_spill: f64,
    /// Round-trip time beyond which nothing goes.
    pub max_rtt: Option<f64>,
    /// What clients of this node ask for: connections that went on after the answer, and flows of datagrams.
    pub offered: f64,
    /// Stayed here.
    pub local: f64,
    /// Left.
    pub remote: f64,
    /// Sent here by other nodes, as they tell.
    #[serde(default)]
    pub inbound: f64,
    /// Flows that its endpoints on this node have open, of clients of this node.
    pub open_local: u32,
    /// What was decided, by set of endpoints; none as long as nobody uses it.
    pub sets: Vec<EndpointSet>,
}

/// Endpoints that some traffic classes may use.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSet {
    /// The classes: internal, external, short-circuit.
    pub classes: Vec<String>,
    /// Part of their new flows that leaves the node.
    pub spill: f64,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Why, in words and numbers.
    pub reasons: Vec<String>,
}

/// An endpoint.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Address and port.
    pub address: String,
    /// Its node; empty if unknown.
    pub node: String,
    /// Whether that is this one.
    pub local: bool,
    /// Its share of new flows.
    pub share: f64,
    /// Whether it failed, or its node is silent, and it gets nothing for now.
    pub ejected: bool,
    /// CPU in use of its limit.
    pub cpu: Option<f64>,
    /// Memory in use of its limit.
    pub memory: Option<f64>,
}
