//! A service with endpoints on this node and on others, as a policy sees it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use weir_core::load::{NodeLoad, PeerReport, Sample, ServiceId, ServiceLoad, Share};
use weir_core::policies::{Decision, Endpoint, EndpointLoad, Inputs, Node, Offered, Own, Parameters, Policy};

pub(crate) const SERVICE: ServiceId = ServiceId(1);
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// What is asked about. The first node is this one.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) own: Own,
    pub(crate) offered: Offered,
    pub(crate) parameters: Parameters,
    pub(crate) peers: Vec<Option<PeerReport>>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) relies_on: Option<NodeLoad>,
    pub(crate) elapsed: Duration,
}

impl Scene {
    /// One endpoint on this node, which uses some CPU, and one on the node of each report.
    pub(crate) fn new(cpu: f64, peers: Vec<PeerReport>) -> Self {
        let endpoints = (0..=peers.len()).map(|node| endpoint(node, node)).collect();
        Self {
            own: Own { load: node_load(cpu), pods: None },
            offered: Offered::default(),
            parameters: Parameters::default(),
            peers: peers.into_iter().map(Some).collect(),
            endpoints,
            relies_on: None,
            elapsed: TICK,
        }
    }

    /// New flows per second from clients of this node, of which the node's endpoints get some.
    pub(crate) fn offers(mut self, flows: f64, local: f64) -> Self {
        self.offered =
            Offered { flows_per_second: flows, begun_per_second: flows, local_flows_per_second: local, open_flows: 0 };
        self
    }

    pub(crate) fn without_local_endpoints(mut self) -> Self {
        self.endpoints.retain(|endpoint| endpoint.node != 0);
        self
    }

    pub(crate) fn ask<R>(&self, question: impl FnOnce(&Inputs<'_>) -> R) -> R {
        let name = |index: usize| Arc::from(format!("n{index}"));
        let here = Node { name: name(0), local: true, report: None, interval: None };
        let others = self.peers.iter().enumerate().map(|(index, report)| Node {
            name: name(index + 1),
            local: false,
            report: report.as_ref(),
            interval: None,
        });
        let nodes: Vec<_> = [here].into_iter().chain(others).collect();
        question(&Inputs {
            service: SERVICE,
            elapsed: self.elapsed,
            nodes: &nodes,
            endpoints: &self.endpoints,
            own: &self.own,
            offered: self.offered,
            relies_on: self.relies_on,
            parameters: &self.parameters,
        })
    }

    pub(crate) fn decide(&self, policy: &mut impl Policy) -> Decision {
        self.ask(|inputs| policy.decide(inputs))
    }

    /// The decision after some time in which nothing changes.
    pub(crate) fn settle(&self, policy: &mut impl Policy, seconds: u32) -> Decision {
        (1..seconds * 4).for_each(|_| drop(self.decide(policy)));
        self.decide(policy)
    }
}

pub(crate) fn endpoint(backend: usize, node: usize) -> Endpoint {
    let address = SocketAddr::from((Ipv4Addr::from(0x0a00_0001 + u32::try_from(backend).unwrap()), 80));
    Endpoint { backend, address, node, load: EndpointLoad::default(), open_flows: 0, flows: 0 }
}

pub(crate) fn share(number: f64) -> Option<Sample<Share>> {
    Some(Sample::fresh(Share::new(number).unwrap()))
}

/// A node of 2 cores.
pub(crate) fn node_load(cpu: f64) -> NodeLoad {
    NodeLoad { cpu: share(cpu), memory: share(0.3), network: None, pressure: None, capacity: 2.0, bandwidth: 0.0 }
}

/// The report of a node that takes `spare` flows per second.
pub(crate) fn peer(index: usize, cpu: f64, spare: f64, rtt_ms: u64) -> PeerReport {
    PeerReport {
        node: Arc::from(format!("n{index}")),
        load: node_load(cpu),
        services: vec![(SERVICE, ServiceLoad { flows_per_second: 0.0, open_flows: 0, spare })],
        rtt: Some(Duration::from_millis(rtt_ms)),
        age: Duration::ZERO,
    }
}

/// Shares are equal within a millionth.
#[track_caller]
pub(crate) fn assert_shares(decision: &Decision, expected: &[f64]) {
    let same = decision.shares.len() == expected.len()
        && decision.shares.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(same, "{:?} instead of {expected:?}: {:?}", decision.shares, decision.reasons);
}
