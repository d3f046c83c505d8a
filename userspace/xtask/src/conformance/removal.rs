//! What pages say for nodes that have no `weir` of their own: `kubectl debug` runs it there. With it the chart is taken away
//! again as the README tells: nodes serve on without agents, until the line for each node has been run.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use super::chart::{AGENTS, Chart};
use super::cluster::NODES;
use super::readme::{self, TAKE_OUT};
use super::rollout;
use crate::guard;

const MIGRATION: &str = include_str!("../../../../docs/migration.md");

/// The directory of pins on a node that has the machine to itself.
const PIN_DIR: &str = "/sys/fs/bpf/weir";

/// How the lines begin that run `weir` on a node that has none.
const ON_A_NODE: &str = "kubectl debug node/NODE ";

/// How lines begin that are about the pods of them all.
const WAIT: &str = "kubectl wait pods ";
const LOGS: &str = "kubectl logs ";
const DELETE: &str = "kubectl delete pods ";

/// The image of the stage `tools`, as the manual calls it.
const TOOLS: &str = "YOUR_REGISTRY/weir-tools:0.1.0";

/// Removes the release, and then what its agents have left in the kernel, by the commands of the README.
///
/// # Errors
/// When a service is not served by nodes without agents, or a command does not do what it says.
pub(super) fn remove(chart: &Chart<'_>, targets: &[SocketAddr]) -> Result<()> {
    let mut said = String::new();
    for command in readme::block(TAKE_OUT)? {
        let context = || format!("README.md's `{command}`");
        if command.starts_with(ON_A_NODE) {
            (1..=NODES).try_for_each(|number| chart.shell(&on_node(chart, command, number)).map(drop))
        } else if command.starts_with(WAIT) {
            let ended = chart.shell(command);
            said = chart.shell(line(MIGRATION, LOGS, "")?)?;
            ended.map(drop).with_context(|| format!("the pods say:\n{said}"))
        } else {
            chart.shell(command).map(drop)
        }
        .with_context(context)?;
        if command.starts_with("helm uninstall ") {
            rollout::ask_all(chart.world, targets).context("nodes without agents")?;
            let pinned = pinned()?;
            ensure!(pinned == AGENTS, "{pinned} of {AGENTS} nodes have something pinned before they are cleaned");
        }
    }
    let pinned = pinned()?;
    ensure!(pinned == 0, "{pinned} of {AGENTS} nodes have something pinned after the last command, which say:\n{said}");
    let detached = said.lines().filter(|line| line.ends_with(" detached")).count();
    ensure!(detached > AGENTS, "{detached} programs were detached on {AGENTS} nodes, which say:\n{said}");
    Ok(())
}

/// How many nodes have something pinned.
fn pinned() -> Result<usize> {
    let found = (1..=NODES).map(|number| Ok(guard::pin_dir(number).exists()?)).collect::<Result<Vec<_>>>()?;
    Ok(found.into_iter().filter(|exists| *exists).count())
}

/// Looks how far the first node's migration is, by the line of the manual: it sees the agent and the node's rules.
///
/// # Errors
/// When it does not.
pub(super) fn look(chart: &Chart<'_>, tools: &str) -> Result<()> {
    let look = on_node(chart, line(MIGRATION, ON_A_NODE, "weir migrate --dry-run")?, 1).replace(TOOLS, tools);
    chart.shell(&look)?;
    let ended = chart.shell(readme::command(TAKE_OUT, WAIT)?);
    let said = chart.shell(line(MIGRATION, LOGS, "")?)?;
    ended.with_context(|| format!("`{look}` says:\n{said}"))?;
    chart.shell(readme::command(TAKE_OUT, DELETE)?)?;
    ensure!(said.contains("an agent runs; no rules of kube-proxy"), "`{look}` says:\n{said}");
    Ok(())
}

/// The line of a page that begins so and has these words.
fn line<'a>(page: &'a str, begin: &str, has: &str) -> Result<&'a str> {
    let found = page.lines().map(str::trim).find(|line| line.starts_with(begin) && line.contains(has));
    found.with_context(|| format!("no line `{begin}... {has} ...` in:\n{page}"))
}

/// A line for a node of ours: those that share a machine have their pins beside each other.
fn on_node(chart: &Chart<'_>, line: &str, number: u8) -> String {
    let (node, pins) = (chart.world.node(number).name(), guard::pin_dir(number));
    line.replace("/NODE ", &format!("/{node} ")).replace(PIN_DIR, &pins.root().display().to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use super::*;

    #[test]
    fn the_pages_have_the_lines() {
        let cleanup = readme::command(TAKE_OUT, ON_A_NODE).unwrap();
        assert!(cleanup.contains(&format!("--pin-dir=/host{PIN_DIR}")), "{cleanup}");
        for begin in [WAIT, DELETE] {
            assert!(readme::command(TAKE_OUT, begin).is_ok(), "{begin}");
        }
        assert!(line(MIGRATION, LOGS, "").is_ok());
        let look = line(MIGRATION, ON_A_NODE, "weir migrate --dry-run").unwrap();
        assert!(look.contains(&format!("--pin-dir=/host{PIN_DIR}")) && look.contains(TOOLS), "{look}");
        assert!(line(MIGRATION, "kubectl drain ", "").is_err());
    }
}
