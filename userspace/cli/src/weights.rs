//! `weir weights`: how the agent divides new flows among nodes, with the load that it knows of each.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use weir_telemetry::weights::{EndpointSet, Node, Peer, Service, Weights};

use crate::agent;
use crate::args::WeightsArgs;
use crate::exit::Answer;
use crate::output::{Kind, Output, Row, Tone};

/// What a service's new flows do at one node.
#[derive(Clone, Debug, Serialize)]
struct WeightRow {
    service: String,
    port: String,
    classes: String,
    policy: String,
    offered: f64,
    spill: f64,
    node: String,
    share: f64,
    endpoints: usize,
    ejected: usize,
    cpu: Option<f64>,
    rtt: Option<f64>,
    age: Option<f64>,
    silent: bool,
}

impl Row for WeightRow {
    const KIND: Kind = Kind::Weights;

    fn headers(wide: bool) -> Vec<&'static str> {
        let mut headers =
            vec!["SERVICE", "PORT", "POLICY", "FLOWS/S", "SPILL%", "NODE", "SHARE%", "CPU%", "RTT", "AGE", "STATE"];
        if wide {
            headers.extend(["CLASSES", "ENDPOINTS", "EJECTED"]);
        }
        headers
    }

    fn cells(&self, wide: bool) -> Vec<String> {
        let mut cells = vec![
            self.service.clone(),
            self.port.clone(),
            self.policy.clone(),
            format!("{:.1}", self.offered),
            percent(self.spill),
            self.node.clone(),
            percent(self.share),
            self.cpu.map(percent).unwrap_or_default(),
            self.rtt.map(milliseconds).unwrap_or_default(),
            self.age.map(|age| format!("{age:.1}s")).unwrap_or_default(),
            self.state().to_owned(),
        ];
        if wide {
            cells.extend([self.classes.clone(), self.endpoints.to_string(), self.ejected.to_string()]);
        }
        cells
    }

    fn name(&self) -> String {
        format!("service/{}", self.service)
    }

    fn tone(&self) -> Tone {
        if self.silent || self.ejected > 0 {
            Tone::Alert
        } else if self.share > 0.0 {
            Tone::Plain
        } else {
            Tone::Faded
        }
    }
}

impl WeightRow {
    fn state(&self) -> &'static str {
        match (self.silent, self.ejected) {
            (true, _) => "silent",
            (false, 0) => "ok",
            (false, ejected) if ejected == self.endpoints => "ejected",
            (false, _) => "partly ejected",
        }
    }
}

/// `1.5`, without a fraction where there is none.
pub(crate) fn percent(share: f64) -> String {
    let percent = format!("{:.1}", share * 100.0);
    percent.strip_suffix(".0").map_or(percent.clone(), str::to_owned)
}

/// `0.4ms`.
pub(crate) fn milliseconds(seconds: f64) -> String {
    format!("{:.1}ms", seconds * 1000.0)
}

/// `80/TCP`, with the family where it is not the usual one.
pub(crate) fn port(service: &Service) -> String {
    let family = if service.family == 6 { " v6" } else { "" };
    format!("{}/{}{family}", service.port, service.protocol)
}

fn rows(weights: &Weights) -> Vec<WeightRow> {
    let sets = weights.services.iter().flat_map(|service| service.sets.iter().map(move |set| (service, set)));
    sets.flat_map(|(service, set)| set_rows(weights, service, set)).collect()
}

fn set_rows(weights: &Weights, service: &Service, set: &EndpointSet) -> Vec<WeightRow> {
    let mut nodes: BTreeMap<(bool, &str), (f64, usize, usize)> = BTreeMap::new();
    for endpoint in &set.endpoints {
        // This node first.
        let (share, count, ejected) = nodes.entry((!endpoint.local, &endpoint.node)).or_default();
        *share += endpoint.share;
        *count += 1;
        *ejected += usize::from(endpoint.ejected);
    }
    let row = |((remote, node), (share, endpoints, ejected)): ((bool, &str), _)| {
        let peer = weights.peers.iter().find(|peer| remote && peer.name == node);
        let load: Option<&Node> = if remote { peer.and_then(|peer| peer.load.as_ref()) } else { Some(&weights.node) };
        let cpu = load.and_then(|load| load.cpu);
        WeightRow {
            service: format!("{}/{}", service.namespace, service.name),
            port: port(service),
            classes: set.classes.join(","),
            policy: service.policy.clone(),
            offered: service.offered,
            spill: set.spill,
            node: node.to_owned(),
            share,
            endpoints,
            ejected,
            cpu: cpu.map(|cpu| cpu.share),
            rtt: peer.and_then(|peer: &Peer| peer.rtt),
            age: cpu.map(|cpu| cpu.age),
            silent: peer.is_some_and(|peer| peer.silent),
        }
    };
    nodes.into_iter().map(row).collect()
}

fn asked(args: &WeightsArgs, socket: &Path) -> Result<Weights> {
    let service = args.service.as_deref().map(|name| full_name(name, &args.scope.namespace));
    let mut weights = agent::weights(socket, service.as_deref())?;
    let everywhere = args.scope.all_namespaces || service.is_some();
    weights.services.retain(|service| everywhere || service.namespace == args.scope.namespace);
    Ok(weights)
}

/// `NAMESPACE/NAME` of either form.
pub(crate) fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// One answer.
pub(crate) fn frame(args: &WeightsArgs, socket: &Path, output: &Output) -> Result<String> {
    let weights = asked(args, socket)?;
    output.rows(&rows(&weights), WeightRow::KIND, &weights)
}

/// Runs the command.
pub(crate) fn run(args: &WeightsArgs, socket: &Path, output: &Output) -> Result<Answer> {
    let text = frame(args, socket, output)?;
    if text.is_empty() && output.is_table() {
        eprintln!(
            "nothing is steered: no service has had a flow since the agent started, or none is to be; see weir-agent --help"
        );
    }
    output.print(&text)?;
    Ok(Answer::Yes)
}

#[cfg(test)]
pub(crate) mod tests {
    use weir_telemetry::weights::{Endpoint, Reading};

    use std::collections::BTreeMap;

    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;

    fn node(name: &str, cpu: f64, age: f64) -> Node {
        let cpu = Some(Reading { share: cpu, age });
        Node { name: name.to_owned(), cpu, memory: None, network: None, pressure: None, cores: 4.0, bandwidth: 0.0 }
    }

    fn peer(name: &str, cpu: f64, rtt: f64, silent: bool) -> Peer {
        Peer {
            name: name.to_owned(),
            address: "192.0.2.2:10299".to_owned(),
            near: true,
            silent,
            rtt: Some(rtt),
            report_age: Some(0.4),
            unanswered: 0,
            load: Some(node(name, cpu, 0.4)),
        }
    }

    fn endpoint(address: &str, node: &str, share: f64) -> Endpoint {
        Endpoint {
            address: address.to_owned(),
            node: node.to_owned(),
            local: node == "edge-1",
            share,
            ejected: node == "edge-3",
            cpu: None,
            memory: None,
        }
    }

    /// A node that is above its level, a neighbour that takes the rest, one that is gone.
    pub(crate) fn sample() -> Weights {
        let endpoints = vec![
            endpoint("10.244.1.5:8080", "edge-1", 0.625),
            endpoint("10.244.2.6:8080", "edge-2", 0.375),
            endpoint("10.244.3.7:8080", "edge-3", 0.0),
        ];
        let reasons = vec![
            "80.0 flows/s are offered and the node takes 50.0: each costs 1.600 % on top of 0 %; corrected by +0.0 points"
                .to_owned(),
            "edge-2 takes 30.0 flows/s of the 75.0 that it could, 0.8 ms away".to_owned(),
            "1 endpoints failed and get nothing for now".to_owned(),
        ];
        let classes = ["internal", "external"].map(str::to_owned).to_vec();
        let service = Service {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            port: 80,
            port_name: "http".to_owned(),
            protocol: "TCP".to_owned(),
            family: 4,
            policy: "waterfill".to_owned(),
            target: Some(0.8),
            max_spill: 1.0,
            max_rtt: Some(0.02),
            offered: 80.0,
            local: 50.0,
            remote: 30.0,
            inbound: 4.0,
            open_local: 12,
            sets: vec![EndpointSet { classes, spill: 0.375, endpoints, reasons }],
        };
        Weights {
            node: node("edge-1", 0.8, 0.1),
            mesh: true,
            peers: vec![peer("edge-2", 0.25, 0.0008, false), peer("edge-3", 0.25, 0.012, true)],
            mesh_refused: BTreeMap::new(),
            sources: Vec::new(),
            services: vec![service],
        }
    }

    #[test]
    fn each_node_has_a_line_with_its_share_and_load_this_one_first() {
        let text = plain(Format::Table).list(&rows(&sample())).unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        SERVICE    PORT     POLICY      FLOWS/S   SPILL%   NODE     SHARE%   CPU%   RTT      AGE    STATE
        shop/web   80/TCP   waterfill   80.0      37.5     edge-1   62.5     80     <none>   0.1s   ok
        shop/web   80/TCP   waterfill   80.0      37.5     edge-2   37.5     25     0.8ms    0.4s   ok
        shop/web   80/TCP   waterfill   80.0      37.5     edge-3   0        25     12.0ms   0.4s   silent
        ");
    }

    #[test]
    fn scripts_get_what_the_agent_says() {
        let weights = sample();
        let text = plain(Format::Json).rows(&rows(&weights), WeightRow::KIND, &weights).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["kind"], "Weights");
        assert_eq!(document["services"][0]["sets"][0]["endpoints"][1]["share"], 0.375);
        assert_eq!(serde_json::from_str::<Weights>(&text).unwrap(), weights);
    }
}
