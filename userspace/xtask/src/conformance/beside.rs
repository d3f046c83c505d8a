//! Weir beside kube-proxy, as README.md tells: its commands, as they stand there, on a cluster that has kube-proxy. A service goes
//! over by its label and back again, with connections that go on in both, and then all of it is taken out.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use weir_testbed::wait;

use super::chart::{AGENTS, Chart, Tag};
use super::cluster::Cluster;
use super::held::{Held, Over};
use super::programs::Programs;
use super::{readme, removal, rollout};

/// How the command begins that gives Weir a service.
const LABEL: &str = "kubectl label service ";

/// The service, and what stands for it in the README.
const SERVICE: [(&str, &str); 2] = [(" NAME ", " web "), (" NAMESPACE ", " default ")];

/// Patience with proxies that hear of a label: Weir serves for ten to fifteen seconds more after one that goes.
const SOON: Duration = Duration::from_secs(60);

/// Installs, gives it the service `web` and takes it back, and removes all of it. The service answers at `targets`.
///
/// # Errors
/// When a command of the README does not do what it says, or a connection breaks.
pub(super) fn try_out(cluster: &Cluster, programs: &Programs, targets: &[SocketAddr]) -> Result<()> {
    let chart = cluster.chart(programs);
    // UDP flows may change their endpoint with the proxy.
    let hold =
        || targets.iter().map(|target| Held::start(cluster.world(), *target, Over::Tcp)).collect::<Result<Vec<_>>>();
    let before = hold()?;
    for command in readme::block(readme::INSTALL)? {
        install(cluster, programs, command).with_context(|| format!("README.md's `{command}`"))?;
    }
    await_served(&chart, true)?;
    rollout::check_agents(&chart, Tag::Before)?;
    rollout::ask_all(cluster.world(), targets)?;
    ensure!(new_flows(&chart)? > 0, "the service has the label, and no flow of it is Weir's");
    let with_weir = hold()?;

    let label = filled(readme::command(readme::INSTALL, LABEL)?);
    let (key, _) = label.rsplit_once('=').with_context(|| format!("no value in `{label}`"))?;
    chart.shell(&format!("{key}-"))?;
    await_served(&chart, false)?;
    let flows = new_flows(&chart)?;
    rollout::ask_all(cluster.world(), targets)?;
    ensure!(new_flows(&chart)? == flows, "the service is kube-proxy's again, and new flows are Weir's");
    let talks = before.into_iter().chain(with_weir);
    let asked = talks.map(Held::finish).sum::<Result<u64>>().context("over and back by the label")?;
    println!("beside kube-proxy: {} connections over and back by the label, {asked} requests", 2 * targets.len());

    removal::remove(&chart, targets)?;
    rollout::ask_all(cluster.world(), targets)
}

/// Runs a command of the installation where it is to be run.
fn install(cluster: &Cluster, programs: &Programs, command: &str) -> Result<()> {
    let chart = cluster.chart(programs);
    match command.split(' ').next() {
        // It takes minutes: the archive is there, or there would be no cluster.
        Some("make") => ensure!(command == "make image", "it does not make the image"),
        Some("ctr") => cluster.deliver(programs)?,
        Some("helm") => drop(chart.shell(&format!("{command} {}", chart.machine()?))?),
        Some("kubectl") => drop(chart.shell(&filled(command))?),
        _ => bail!("nobody knows who is to run it"),
    }
    Ok(())
}

/// A command with its service's name.
fn filled(command: &str) -> String {
    SERVICE.iter().fold(command.to_owned(), |text, (blank, value)| text.replace(blank, value))
}

/// Waits until all agents serve the service with an endpoint on each node, or none does.
fn await_served(chart: &Chart<'_>, served: bool) -> Result<()> {
    let what = if served { "the service to be Weir's" } else { "the service to be kube-proxy's" };
    let look = || {
        let rows = services(chart).map_err(|error| format!("{error:#}"))?;
        let is_right = |row: &Value| {
            let has_address = row["addresses"].as_array().is_some_and(|all| !all.is_empty());
            if served { has_address && row["endpoints"]["all"] == AGENTS } else { !has_address }
        };
        // Two ports in two families.
        let well = if served { rows.len() == 4 * AGENTS } else { true };
        if well && rows.iter().all(is_right) { Ok(()) } else { Err(format!("{rows:?}")) }
    };
    wait::until_some(what, SOON, look)?;
    Ok(())
}

/// How many flows of the service Weir has begun.
fn new_flows(chart: &Chart<'_>) -> Result<u64> {
    let count = |row: &Value| ["local", "remote"].iter().filter_map(|way| row["newFlows"][way].as_u64()).sum::<u64>();
    Ok(services(chart)?.iter().map(count).sum())
}

/// What all agents say of the service.
fn services(chart: &Chart<'_>) -> Result<Vec<Value>> {
    let said =
        chart.kubectl(&["weir", "services", "web", "--namespace", "default", "--all-nodes", "--output", "json"])?;
    let answers: Value = serde_json::from_str(&said).with_context(|| format!("`kubectl weir` says {said:?}"))?;
    let nodes = answers["items"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(nodes.len() == AGENTS, "not all nodes answer: {said}");
    Ok(nodes.iter().filter_map(|node| node["answer"]["items"].as_array()).flatten().cloned().collect())
}
