//! What the page shows: how the nodes and the services stood since the last look, from the same facts as the decisions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_core::load::{NodeLoad, PeerReport, Sample, Share};
use weir_core::model::ObjectName;
use weir_core::policies::waterfill::constants::TARGET;
use weir_core::steering::Facts;
use weir_mesh::PeerState;
use weir_page::{NodeSample, NodeState, Sample as PageSample, Source};
use weir_telemetry::weights;

use super::traffic::{Flows, Seen, Traffic};
use super::{Brain, Shared, locked, snapshot};

/// See the module's description.
pub(crate) struct Picture {
    brain: Shared,
    seen: Mutex<Seen>,
}

impl Picture {
    pub(super) fn new(brain: Shared) -> Self {
        Self { brain, seen: Mutex::default() }
    }
}

impl Source for Picture {
    fn sample(&self) -> PageSample {
        // A panic of somebody who held it left a rate wrong at worst.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let brain = locked(&self.brain);
        let traffic = seen.look(brain.steering.ports(), &brain.world, Instant::now());
        let levels = brain.steering.ports().map(|(target, _)| target.level());
        PageSample {
            nodes: nodes(&brain, &traffic),
            services: traffic.services.into_values().collect(),
            steered: brain.steering.len(),
            crest: levels.reduce(f64::min).unwrap_or(TARGET),
            mesh: brain.link.is_some(),
            problems: brain
                .world
                .sources()
                .filter_map(|(name, _, problem)| Some(format!("{name}: {}", problem?)))
                .collect(),
        }
    }

    fn service(&self, name: &str) -> Vec<weights::Service> {
        let Some((namespace, name)) = name.split_once('/') else { return Vec::new() };
        let brain = locked(&self.brain);
        let service = ObjectName::new(namespace, name);
        brain.steering.states_of(&service).map(|state| snapshot::service(&state, &brain)).collect()
    }
}

/// This node, then all that the cluster has.
fn nodes(brain: &Brain, traffic: &Traffic) -> Vec<NodeSample> {
    let states = brain.world.peer_states();
    let peers: HashMap<&str, (&PeerState, bool)> =
        states.map(|(peer, ..)| (&*peer.node, (peer, brain.world.is_silent(&peer.node)))).collect();
    let here = brain.steering.here();
    let served = traffic.services.values().fold(0.0, |sum, service| sum + service.local + service.inbound);
    let own = NodeSample {
        name: here.into(),
        state: NodeState::Here,
        served: Some(served),
        ..loaded(&brain.world.own(), Duration::ZERO, traffic.nodes.get(here))
    };
    let other = |name: &Arc<str>| {
        let peer = peers.get(&**name).copied();
        other_node(name, peer, brain.world.report(name), traffic.nodes.get(name))
    };
    std::iter::once(own).chain(brain.others.iter().map(|node| other(&node.name))).collect()
}

fn other_node(
    name: &Arc<str>,
    peer: Option<(&PeerState, bool)>,
    report: Option<&PeerReport>,
    flows: Option<&Flows>,
) -> NodeSample {
    let (load, age) = report.map_or_else(Default::default, |report| (report.load, report.age));
    let silent = peer.is_some_and(|(_, silent)| silent);
    let told = report
        .map(|report| report.services.iter().map(|(_, load)| load.flows_per_second))
        .filter(|told| told.len() > 0);
    NodeSample {
        name: Arc::clone(name),
        state: match (silent, report) {
            (true, _) => NodeState::Silent,
            (false, Some(_)) => NodeState::Heard,
            (false, None) => NodeState::Unknown,
        },
        rtt: peer.and_then(|(peer, _)| peer.rtt).map(|rtt| rtt.as_secs_f64()),
        received: peer.map_or(0.0, |(peer, _)| peer.sends),
        served: told.map(Iterator::sum),
        ..loaded(&load, age, flows)
    }
}

/// A level as old as this says nothing about now.
const STALE: Duration = Duration::from_secs(60);

fn loaded(load: &NodeLoad, age: Duration, flows: Option<&Flows>) -> NodeSample {
    let NodeLoad { cpu, memory, network, pressure: _, capacity, bandwidth: _ } = *load;
    let known = |sample: Option<Sample<Share>>| {
        sample.filter(|sample| sample.age.saturating_add(age) < STALE).map(|sample| sample.value.get())
    };
    let Flows { sent, failures } = flows.copied().unwrap_or_default();
    NodeSample {
        level: known(cpu),
        memory: known(memory),
        network: known(network),
        cores: capacity,
        sent,
        failures,
        ..NodeSample::default()
    }
}
