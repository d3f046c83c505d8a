//! `/weights`: what is decided, from what and why, as one document for `weir weights` and `weir explain`.
//!
//! It names all nodes, Services and endpoints, so it is told at the admin socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use serde::Deserialize;
use weir_abi as abi;
use weir_core::load::{NodeLoad, PeerReport, Sample, Share};
use weir_core::model::Protocol;
use weir_core::steering::{EndpointState, Facts, PortState, SetState};
use weir_mesh::{PeerState, Refusal};
use weir_telemetry::weights::{Endpoint, EndpointSet, Node, PATH, Peer, Reading, Service, Source, Weights};

use super::{Brain, Shared, locked};

/// What is asked for.
#[derive(Debug, Default, Deserialize)]
struct Question {
    /// Only this service: NAMESPACE/NAME.
    service: Option<String>,
}

/// Serves the document.
pub(super) fn router(brain: Shared) -> Router {
    let weights = move |Query(question): Query<Question>| {
        let brain = Arc::clone(&brain);
        // The lock is held for as long as it takes to copy.
        async move { axum::Json(weights(&locked(&brain), &question)) }
    };
    Router::new().route(PATH, get(weights))
}

fn weights(brain: &Brain, question: &Question) -> Weights {
    let asked = |state: &PortState<'_>| {
        question.service.as_ref().is_none_or(|service| *service == state.target.key.service.to_string())
    };
    let source = |(signal, counts, problem): (_, weir_signals::Counts, _)| {
        let signal: &str = signal;
        Source { signal: signal.to_owned(), reads: counts.reads(), problem }
    };
    Weights {
        node: node(brain.steering.here(), &brain.world.own()),
        mesh: brain.link.is_some(),
        peers: brain.world.peer_states().map(peer).collect(),
        mesh_refused: mesh_refused(brain),
        sources: brain.world.sources().map(source).collect(),
        services: brain.steering.states().filter(asked).map(|state| service(&state, brain)).collect(),
    }
}

fn mesh_refused(brain: &Brain) -> BTreeMap<String, u64> {
    let Some(link) = &brain.link else { return BTreeMap::new() };
    let counters = link.with(|mesh, _| *mesh.counters());
    let all = Refusal::ALL.into_iter().map(|reason| (reason.label().to_owned(), counters.refused(reason)));
    all.filter(|(_, count)| *count > 0).collect()
}

fn node(name: &str, load: &NodeLoad) -> Node {
    let NodeLoad { cpu, memory, network, pressure, capacity, bandwidth } = *load;
    let reading = |sample: Option<Sample<Share>>| {
        sample.map(|Sample { value, age }| Reading { share: value.get(), age: age.as_secs_f64() })
    };
    Node {
        name: name.to_owned(),
        cpu: reading(cpu),
        memory: reading(memory),
        network: reading(network),
        pressure: reading(pressure),
        cores: capacity,
        bandwidth,
    }
}

fn peer((state, report, silent): (&PeerState, Option<&PeerReport>, bool)) -> Peer {
    let PeerState {
        node: name,
        address,
        near,
        rtt,
        held: _,
        unanswered,
        answers: _,
        report_age,
        heard: _,
        unwraps: _,
        sends: _,
    } = state;
    // A sample grows old with the report that brought it.
    let aged = |report: &PeerReport| {
        let NodeLoad { cpu, memory, network, pressure, capacity, bandwidth } = report.load;
        let aged = |sample: Option<Sample<Share>>| sample.map(|sample| sample.aged(report.age));
        let (cpu, memory, network, pressure) = (aged(cpu), aged(memory), aged(network), aged(pressure));
        node(name, &NodeLoad { cpu, memory, network, pressure, capacity, bandwidth })
    };
    Peer {
        name: name.to_string(),
        address: address.to_string(),
        near: *near,
        silent,
        rtt: rtt.as_ref().map(Duration::as_secs_f64),
        report_age: report_age.as_ref().map(Duration::as_secs_f64),
        unanswered: *unanswered,
        load: report.map(aged),
    }
}

pub(super) fn service(state: &PortState<'_>, brain: &Brain) -> Service {
    let PortState { target, rates, inbound, open_local, sets } = state;
    let parameters = &target.settings.parameters;
    Service {
        namespace: target.key.service.namespace.to_string(),
        name: target.key.service.name.to_string(),
        port: target.port,
        port_name: target.key.port_name.to_string(),
        protocol: match target.key.protocol {
            Protocol::Tcp => "TCP".to_owned(),
            Protocol::Udp => "UDP".to_owned(),
            Protocol::Sctp => "SCTP".to_owned(),
        },
        family: target.key.family.number(),
        policy: target.settings.policy.name().to_owned(),
        target: parameters.target.map(Share::get),
        max_spill: parameters.max_spill.get(),
        max_rtt: parameters.max_rtt.as_ref().map(Duration::as_secs_f64),
        offered: rates.offered(),
        local: rates.local,
        remote: rates.remote,
        inbound: *inbound,
        open_local: *open_local,
        sets: sets.iter().map(|set| endpoint_set(set, brain)).collect(),
    }
}

fn endpoint_set(set: &SetState<'_>, brain: &Brain) -> EndpointSet {
    const CLASSES: [(usize, &str); abi::CLASS_COUNT] = [
        (abi::CLASS_INTERNAL, "internal"),
        (abi::CLASS_EXTERNAL, "external"),
        (abi::CLASS_SHORT_CIRCUIT, "short-circuit"),
    ];
    let endpoint = |state: &EndpointState<'_>| {
        let EndpointState { member, share, ejected } = *state;
        let used = member.pod.and_then(|pod| brain.world.pod(pod));
        Endpoint {
            address: member.address.to_string(),
            node: member.node.to_string(),
            local: member.local,
            share,
            ejected,
            cpu: used.and_then(|used| used.load.cpu).map(Share::get),
            memory: used.and_then(|used| used.load.memory).map(Share::get),
        }
    };
    EndpointSet {
        classes: CLASSES
            .iter()
            .filter(|(class, _)| set.classes & (1 << class) != 0)
            .map(|(_, name)| (*name).to_owned())
            .collect(),
        spill: set.spill,
        endpoints: set.endpoints.iter().map(endpoint).collect(),
        reasons: set.reasons.iter().map(ToString::to_string).collect(),
    }
}
