//! Verdicts on the agent, its way to the API server, and the other nodes' agents.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_telemetry::effective::Configuration;
use weir_telemetry::weights::{Peer, Weights};

use super::check::Check;
use super::fix::Fix;
use crate::agent::Agent;

/// Refusals that somebody has to look at, as `weir_mesh_refused_total` names them, with what they mean and what mends them.
fn telling(key_file: &str) -> [(&'static str, &'static str, Fix); 3] {
    let rollout = "kubectl -n kube-system rollout status daemonset/weir";
    [
        ("forged", "another key signed them", Fix::SameKey(key_file.to_owned())),
        ("skewed", "the sender's clock is too far off", "timedatectl set-ntp true".into()),
        ("unknown_version", "from agents of another version", Fix::OfCluster(rollout.to_owned())),
    ]
}

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct AgentFacts {
    pub(crate) agent: Agent,
    /// What it says of its decisions, if it does.
    pub(crate) weights: Option<Weights>,
    /// What it says of what it runs with, if it does.
    pub(crate) configuration: Option<Configuration>,
    /// Addresses that Weir serves.
    pub(crate) frontends: BTreeSet<IpAddr>,
}

/// The verdicts.
pub(crate) fn checks(facts: &AgentFacts) -> Vec<Check> {
    let mut checks = agent(&facts.agent);
    if let Some(configuration) = &facts.configuration {
        checks.push(version(&configuration.version));
        checks.extend(api_server(&configuration.api_servers, &facts.frontends));
    }
    let key = facts.configuration.iter().flat_map(|found| &found.values).find(|value| value.name == "--mesh-key-file");
    let key = key.map_or("", |value| value.value.as_str());
    checks.extend(facts.weights.iter().flat_map(|weights| mesh(weights, key)));
    checks
}

/// Documents and maps are those of one version.
fn version(agents: &str) -> Check {
    let (what, ours) = ("agent version", env!("CARGO_PKG_VERSION"));
    if agents == ours {
        return Check::ok(what, agents);
    }
    let detail = format!("{agents}, and this command is {ours}: what one says the other may not know");
    Check::warn(what, detail, Fix::Restart { running: true })
}

fn agent(agent: &Agent) -> Vec<Check> {
    let (healthy, components) = match agent {
        Agent::Silent(why) => {
            let detail = format!("not running: traffic is served as last programmed, changes are not ({why})");
            return vec![Check::fail("agent", detail, Fix::Restart { running: false })];
        }
        Agent::Running { healthy, components } => (*healthy, components),
    };
    let mut checks = vec![match healthy {
        true => Check::ok("agent", "running, healthy"),
        false => {
            Check::fail("agent", "running, not healthy: updates wait, or the node is on its way out", Fix::ReadLog)
        }
    }];
    checks.extend(components.iter().map(|part| {
        let what = format!("agent {}", part.name);
        let detail = part.reason.clone().unwrap_or_else(|| if part.ready { "ready" } else { "not ready" }.to_owned());
        if part.ready { Check::ok(what, detail) } else { Check::fail(what, detail, Fix::ReadLog) }
    }));
    checks
}

/// An agent that reaches the API server through a Service cannot start on a node without Services.
fn api_server(hosts: &[String], frontends: &BTreeSet<IpAddr>) -> Vec<Check> {
    let what = "api server";
    let check = |host: &String| match host.parse::<IpAddr>() {
        Ok(ip) if frontends.contains(&ip) => {
            let detail = format!("{host} is a Service's address, which Weir itself serves: after a reboot nobody does");
            Check::warn(what, detail, Fix::Value("apiServer.host=ADDRESS"))
        }
        Ok(_) | Err(_) => Check::ok(what, format!("{host}, not through a Service")),
    };
    hosts.iter().map(check).collect()
}

fn mesh(weights: &Weights, key_file: &str) -> Vec<Check> {
    let Weights { mesh, peers, mesh_refused, .. } = weights;
    if !mesh {
        return vec![Check::ok("mesh", "none: this agent has no mesh key")];
    }
    let mut checks = vec![heard(peers)];
    for (reason, meaning, fix) in telling(key_file) {
        let count = mesh_refused.get(reason).copied().unwrap_or_default();
        if count > 0 {
            let detail = format!("{count} packets refused since the agent started: {meaning}");
            checks.push(Check::warn(format!("mesh {reason}"), detail, fix));
        }
    }
    checks
}

fn heard(peers: &[Peer]) -> Check {
    let what = "mesh";
    let answered = || peers.iter().filter(|peer| peer.rtt.is_some() && !peer.silent);
    let slowest = answered().filter_map(|peer| peer.rtt).fold(0.0, f64::max) * 1000.0;
    // Nodes far away are probed rarely, and not at once.
    let wanting: Vec<_> = peers
        .iter()
        .filter(|peer| peer.silent || peer.near && peer.rtt.is_none())
        .map(|peer| peer.name.as_str())
        .collect();
    let detail = format!("{} of {} nodes heard, at most {slowest:.1} ms away", answered().count(), peers.len());
    if wanting.is_empty() {
        return Check::ok(what, detail);
    }
    let detail = format!("{detail}; not {}", wanting.join(", "));
    Check::warn(what, detail, "nc -zuv NODE 10299")
}

#[cfg(test)]
mod tests {
    use weir_telemetry::effective::{Source, Value};

    use super::super::check::State;
    use super::super::check::tests::{find, verdict};
    use super::*;
    use crate::agent::Component;
    use crate::weights::tests::sample;

    fn configuration(api_server: &str) -> Configuration {
        let (scope, name) = ("agent".to_owned(), "--mesh-key-file".to_owned());
        let key = Value { scope, name, value: "/run/secrets/mesh/key".to_owned(), source: Source::Flag };
        let (version, api_servers) = (env!("CARGO_PKG_VERSION").to_owned(), vec![api_server.to_owned()]);
        Configuration { version, api_servers, values: vec![key] }
    }

    fn facts() -> AgentFacts {
        let mut weights = sample();
        weights.peers.iter_mut().for_each(|peer| peer.silent = false);
        let components = vec![Component { name: "maps".to_owned(), ready: true, reason: None }];
        AgentFacts {
            agent: Agent::Running { healthy: true, components },
            weights: Some(weights),
            configuration: Some(configuration("192.0.2.1")),
            frontends: ["10.96.0.1".parse().unwrap()].into(),
        }
    }

    #[test]
    fn refusals_are_called_as_the_mesh_calls_them() {
        let known = weir_mesh::Refusal::ALL.map(weir_mesh::Refusal::label);
        for (reason, ..) in telling("") {
            assert!(known.contains(&reason), "{reason}");
        }
    }

    #[test]
    fn an_agent_that_works_and_hears_all_nodes_is_fine() {
        let checks = checks(&facts());
        assert!(checks.iter().all(|check| check.state == State::Ok), "{checks:#?}");
        assert!(find(&checks, "mesh").detail.contains("nodes heard"));
    }

    #[test]
    fn an_agent_that_is_silent_or_ill_fails() {
        let silent = AgentFacts { agent: Agent::Silent("no such file".to_owned()), weights: None, ..facts() };
        assert_eq!(verdict(&checks(&silent), "agent"), (State::Fail, "systemctl start weir-agent"));
        let part = Component { name: "api-server".to_owned(), ready: false, reason: Some("refused".to_owned()) };
        let ill = AgentFacts { agent: Agent::Running { healthy: false, components: vec![part] }, ..facts() };
        let checks = checks(&ill);
        assert_eq!(find(&checks, "agent").state, State::Fail);
        assert_eq!(find(&checks, "agent api-server").detail, "refused");
    }

    #[test]
    fn an_api_server_behind_a_service_is_told() {
        let through = AgentFacts { configuration: Some(configuration("10.96.0.1")), ..facts() };
        let checks = checks(&through);
        let fix =
            "helm upgrade weir deploy/helm/weir --namespace kube-system --reuse-values --set apiServer.host=ADDRESS";
        assert_eq!(verdict(&checks, "api server"), (State::Warn, fix));
    }

    #[test]
    fn an_agent_of_another_version_is_told() {
        let other = Configuration { version: "0.0.9".to_owned(), ..configuration("192.0.2.1") };
        let checks = checks(&AgentFacts { configuration: Some(other), ..facts() });
        assert_eq!(verdict(&checks, "agent version"), (State::Warn, "systemctl restart weir-agent"));
    }

    #[test]
    fn silent_nodes_other_keys_and_other_clocks_are_told() {
        let mut bad = facts();
        let weights = bad.weights.as_mut().unwrap();
        (weights.peers[0].silent, weights.peers[0].rtt) = (true, None);
        weights.mesh_refused = [("forged".to_owned(), 7), ("skewed".to_owned(), 1), ("replayed".to_owned(), 3)].into();
        let name = weights.peers[0].name.clone();
        let checks = checks(&bad);
        let mesh = find(&checks, "mesh");
        assert!(mesh.detail.starts_with("1 of 2 nodes heard") && mesh.detail.ends_with(&name), "{mesh:?}");
        assert_eq!(mesh.state, State::Warn);
        assert_eq!(verdict(&checks, "mesh forged"), (State::Warn, "sha256sum /run/secrets/mesh/key"));
        assert_eq!(verdict(&checks, "mesh skewed"), (State::Warn, "timedatectl set-ntp true"));
        assert!(checks.iter().all(|check| check.what != "mesh replayed"), "the network duplicates packets");
    }
}
