//! Samples and sources to make others of.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use weir_page::{NodeSample, NodeState, Sample, ServiceSample, Source};
use weir_telemetry::weights;

/// A node that is heard, half full.
pub(crate) fn node(name: &str) -> NodeSample {
    NodeSample { name: name.into(), state: NodeState::Heard, level: Some(0.5), ..NodeSample::default() }
}

/// This node.
pub(crate) fn here() -> NodeSample {
    NodeSample { state: NodeState::Here, ..node("node1") }
}

/// A service whose flows stay.
pub(crate) fn service(name: &str, local: f64) -> ServiceSample {
    ServiceSample { name: name.into(), local, ..ServiceSample::default() }
}

/// What this node tells of these services, alone.
pub(crate) fn sample(services: Vec<ServiceSample>) -> Sample {
    Sample { nodes: vec![here()], services, steered: 9, crest: 0.8, mesh: true, problems: Vec::new() }
}

/// A port of a service with endpoints that have these shares.
pub(crate) fn port(shares: &[f64]) -> weights::Service {
    let endpoint = |(index, share): (usize, &f64)| weights::Endpoint {
        address: format!("10.0.0.{index}:80"),
        node: "node2".into(),
        local: false,
        share: *share,
        ejected: false,
        cpu: None,
        memory: None,
    };
    let set = weights::EndpointSet {
        classes: vec!["internal".into()],
        spill: 1.0,
        endpoints: shares.iter().enumerate().map(endpoint).collect(),
        reasons: vec!["no endpoint here".into()],
    };
    weights::Service {
        namespace: "shop".into(),
        name: "web".into(),
        port: 80,
        port_name: String::new(),
        protocol: "TCP".into(),
        family: 4,
        policy: "waterfill".into(),
        target: None,
        max_spill: 1.0,
        max_rtt: None,
        offered: 4.0,
        local: 0.0,
        remote: 4.0,
        inbound: 0.0,
        open_local: 0,
        sets: vec![set],
    }
}

/// Tells the sample that was put in last.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) sample: Mutex<Sample>,
    pub(crate) services: Mutex<BTreeMap<String, Vec<weights::Service>>>,
}

impl Told {
    pub(crate) fn new(sample: Sample) -> Arc<Self> {
        Arc::new(Self { sample: Mutex::new(sample), ..Self::default() })
    }
}

impl Source for Told {
    fn sample(&self) -> Sample {
        self.sample.lock().unwrap().clone()
    }

    fn service(&self, name: &str) -> Vec<weights::Service> {
        self.services.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}
