//! The proxies under test, one on each node: agents of this tree, or real kube-proxies.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;
use weir_testbed::KubeProxy;
use weir_testbed::kube_proxy::Mode;
use weir_testbed::process::Process;

use super::bed::Bed;
use super::experiments::{Contender, NODES, Point, Service};
use crate::guard::Stop;
use crate::{guard, health, mesh_key};

/// Patience with an agent that starts or stops.
const SOON: Duration = Duration::from_secs(60);
/// Patience with agents that are to learn of a change.
const KNOWN: Duration = Duration::from_secs(20);
/// Time between two questions whether they have.
const GLANCE: Duration = Duration::from_millis(100);

/// What runs.
pub(super) enum Proxies {
    /// Agents, by node.
    Weir(Vec<Process>),
    /// kube-proxies, by node.
    KubeProxy(Mode, Vec<KubeProxy>),
}

impl Proxies {
    /// Starts those that a contender needs, and waits until they serve.
    ///
    /// # Errors
    /// When one does not; the error quotes its log.
    pub(super) fn start(contender: Contender, agent: &PathBuf, bed: &Bed, stop: &Stop) -> Result<Self> {
        let started = match contender {
            Contender::Weir(_) => Self::Weir(start_agents(agent, bed, stop)?),
            Contender::KubeProxy(mode) => {
                let (api, url) = bed.api();
                let start = |node| {
                    stop.check()?;
                    Ok(KubeProxy::start_in(mode, api, &url, bed.world.node(node))?)
                };
                Self::KubeProxy(mode, (1..=NODES).map(start).collect::<Result<_>>()?)
            }
        };
        bed.await_answers()?;
        Ok(started)
    }

    /// Whether a contender can run on these.
    pub(super) fn serve(&self, contender: Contender) -> bool {
        match (self, contender) {
            (Self::Weir(_), Contender::Weir(_)) => true,
            (Self::KubeProxy(running, _), Contender::KubeProxy(wanted)) => *running == wanted,
            (Self::Weir(_), Contender::KubeProxy(_)) | (Self::KubeProxy(..), Contender::Weir(_)) => false,
        }
    }

    /// Waits until they know what has changed: Weir the policy and how far nodes are from each other. What they have not
    /// found out in time is said, and their own affair.
    ///
    /// # Errors
    /// When the policy is not in force in time, so that another one would be measured.
    pub(super) fn learn(
        &self,
        contender: Contender,
        service: Service,
        point: &Point,
        bed: &Bed,
        stop: &Stop,
    ) -> Result<()> {
        let Contender::Weir(policy) = contender else { return Ok(()) };
        bed.annotate(service, policy, point.target)?;
        for node in 1..=NODES {
            let settings = await_known(stop, || has_settings(&weights(node)?, policy, service, point.target))?;
            if let Err(seen) = settings {
                bail!("the agent of node {node} has not learnt within {KNOWN:?}: {seen}");
            }
            if let Err(seen) = await_known(stop, || has_measured(&weights(node)?, node, point))? {
                println!("the agent of node {node} has not found out within {KNOWN:?}: {seen}");
            }
        }
        Ok(())
    }

    /// Ends them and removes what they have left in the kernel.
    ///
    /// # Errors
    /// When one does not end.
    pub(super) fn stop(self) -> Result<()> {
        match self {
            Self::Weir(agents) => {
                for agent in agents {
                    agent.terminate(SOON)?;
                }
                (1..=NODES).try_for_each(|node| guard::pin_dir(node).remove_all(false).map(drop))?;
            }
            Self::KubeProxy(_, proxies) => proxies.into_iter().try_for_each(KubeProxy::stop)?,
        }
        Ok(())
    }
}

fn start_agents(agent: &PathBuf, bed: &Bed, stop: &Stop) -> Result<Vec<Process>> {
    let key = bed.file("mesh.key");
    mesh_key::write(&key)?;
    let mut agents = Vec::new();
    for node in 1..=NODES {
        let machine = bed.machine(node);
        let mut command = bed.world.node(node).netns().command(agent);
        command.arg("--kubeconfig").arg(bed.kubeconfig()?);
        command.arg("--node-name").arg(bed.world.node(node).name());
        command.arg("--pin-dir").arg(guard::pin_dir(node).root());
        command.arg("--cgroup").arg(machine.path());
        command.arg("--mesh-key-file").arg(&key);
        command.args(["--node-cgroup", &machine.group(), "--kubelet-cgroup-root", &machine.group()]);
        // Four sets of maps on one machine.
        command.args(["--max-flows=131072", "--max-sockets=4096", "--max-backends=1024", "--max-services=1024"]);
        let log = bed.file(&format!("weir-agent-node{node}.log"));
        agents.push(Process::start(command, "weir-agent", &log)?);
    }
    for (node, process) in (1..=NODES).zip(&mut agents) {
        stop.check()?;
        health::await_ready(bed.world.node(node), process, SOON)?;
    }
    Ok(agents)
}

/// Looks until there is no complaint, or it is too late: then the last one.
fn await_known(stop: &Stop, look: impl Fn() -> Result<(), String>) -> Result<Result<(), String>> {
    let end = Instant::now() + KNOWN;
    loop {
        let seen = look();
        if seen.is_ok() || Instant::now() > end {
            return Ok(seen);
        }
        stop.sleep(GLANCE)?;
    }
}

/// What the agent of a node says of its weights.
fn weights(node: u8) -> Result<Value, String> {
    let body = health::weights(&guard::pin_dir(node)).map_err(|error| error.to_string())?;
    serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
}

/// Whether a node has measured the delays of a point, and has heard of the others' load.
fn has_measured(weights: &Value, node: u8, point: &Point) -> Result<(), String> {
    let peers = weights["peers"].as_array().map_or(&[][..], Vec::as_slice);
    for other in (1..=NODES).filter(|other| *other != node) {
        let name = format!("node{other}");
        let peer = peers.iter().find(|peer| peer["name"] == *name).ok_or_else(|| format!("it does not know {name}"))?;
        let measured = peer["rtt"].as_f64().ok_or_else(|| format!("the delay to {name} is not known"))?;
        if !peer["load"]["cpu"]["share"].is_f64() {
            return Err(format!("the load of {name} is not known"));
        }
        if !is_about(measured, point.round_trip(node, other)) {
            return Err(format!("the delay to {name} is {measured} s"));
        }
    }
    Ok(())
}

/// Whether a node steers a service by a policy.
fn has_settings(weights: &Value, policy: &str, service: Service, target: Option<f64>) -> Result<(), String> {
    let services = weights["services"].as_array().map_or(&[][..], Vec::as_slice);
    let found = services.iter().find(|known| known["name"] == service.name());
    let found = found.ok_or_else(|| format!("it does not steer service {}", service.name()))?;
    // Nobody has said a target: then it is not told.
    if found["policy"] != policy || found["target"].as_f64() != target {
        return Err(format!(
            "service {} has policy {} with target {}",
            service.name(),
            found["policy"],
            found["target"]
        ));
    }
    Ok(())
}

/// A busy machine adds to a delay and takes nothing away.
fn is_about(measured: f64, round_trip: Duration) -> bool {
    let nominal = round_trip.as_secs_f64();
    (0.9 * nominal..1.3 * nominal + 0.002).contains(&measured)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_in_force_when_the_agent_says_so() {
        let weights = json!({"services": [{"name": "web", "policy": "rap", "target": 0.5}, {"name": "edge", "policy": "waterfill"}]});
        assert!(has_settings(&weights, "rap", Service::Web, Some(0.5)).is_ok());
        assert!(has_settings(&weights, "waterfill", Service::Edge, None).is_ok());
        for (policy, target) in [("rap", None), ("rap", Some(0.6)), ("waterfill", Some(0.5))] {
            assert!(has_settings(&weights, policy, Service::Web, target).is_err(), "{policy} {target:?}");
        }
    }

    #[test]
    fn a_delay_may_be_a_little_longer_than_it_should_be() {
        let nominal = Duration::from_millis(10);
        assert!(is_about(0.0101, nominal) && is_about(0.014, nominal));
        assert!(!is_about(0.005, nominal) && !is_about(0.018, nominal));
    }
}
