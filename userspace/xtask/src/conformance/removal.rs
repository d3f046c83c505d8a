//! What pages say for nodes that have no `weir` of their own: `kubectl debug` runs it there. With it the chart is taken away
//! again as its notes tell: nodes serve on without agents, until the line for each node has been run.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use super::chart::{AGENTS, Chart, ROLLOUT};
use super::cluster::NODES;
use super::held::{Over, Talk};
use crate::guard;

const MIGRATION: &str = include_str!("../../../../docs/migration.md");

/// The directory of pins on a node that has the machine to itself.
const PIN_DIR: &str = "/sys/fs/bpf/weir";

/// How the lines begin that run `weir` on a node that has none.
const ON_A_NODE: &str = "kubectl debug node/NODE ";

/// How they find the pods of them all.
const DEBUGGERS: &str = " -l app.kubernetes.io/managed-by=kubectl-debug";

/// The image of the stage `tools`, as the manual calls it.
const TOOLS: &str = "YOUR_REGISTRY/weir-tools:0.1.0";

/// Removes the release, and then what its agents have left in the kernel.
///
/// # Errors
/// When a service is not served on by nodes without agents, or a line of the notes does not do what it says.
pub(super) fn remove(chart: &Chart<'_>, targets: &[SocketAddr]) -> Result<()> {
    let notes = chart.notes()?;
    chart.uninstall()?;
    for target in targets {
        for over in Over::ALL {
            ask(chart, *target, over).with_context(|| format!("{target} without agents, over {}", over.name()))?;
        }
    }
    let cleanup = line(&notes, ON_A_NODE, "weir cleanup")?;
    for number in 1..=NODES {
        let pins = guard::pin_dir(number);
        ensure!(pins.exists()?, "nothing is pinned in {} before it is cleaned", pins.root().display());
        start(chart, &on_node(chart, cleanup, number))?;
    }
    let said = finish(chart, &notes)?;
    for number in 1..=NODES {
        let pins = guard::pin_dir(number);
        ensure!(!pins.exists()?, "`{cleanup}` leaves {}, and says:\n{said}", pins.root().display());
    }
    let detached = said.lines().filter(|line| line.ends_with(" detached")).count();
    ensure!(detached > AGENTS, "`{cleanup}` detached {detached} programs on {AGENTS} nodes, and says:\n{said}");
    for target in targets {
        ensure!(ask(chart, *target, Over::Tcp).is_err(), "{target} answers although nothing is pinned any more");
    }
    Ok(())
}

/// Looks how far a node's migration is, by the line of the manual: it sees the agent and the node's rules.
///
/// # Errors
/// When it does not.
pub(super) fn look(chart: &Chart<'_>, image: &str) -> Result<()> {
    let look = on_node(chart, line(MIGRATION, ON_A_NODE, "weir migrate --dry-run")?, 1).replace(TOOLS, image);
    start(chart, &look)?;
    let said = finish(chart, &chart.notes()?)?;
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

/// Runs a line of kubectl, taken apart as by a shell; the lines have no quotes.
fn start(chart: &Chart<'_>, line: &str) -> Result<String> {
    chart.kubectl(&line.split_whitespace().skip(1).collect::<Vec<_>>())
}

/// Waits until what was started has succeeded, takes it away, and returns what it said.
fn finish(chart: &Chart<'_>, notes: &str) -> Result<String> {
    let logs = line(notes, "kubectl logs ", DEBUGGERS)?;
    let ended = start(chart, &format!("{} {ROLLOUT}", line(notes, "kubectl wait pods ", DEBUGGERS)?));
    let said = start(chart, logs);
    ended.with_context(|| format!("it says:\n{said:?}"))?;
    let said = said?;
    start(chart, line(notes, "kubectl delete pods ", DEBUGGERS)?)?;
    Ok(said)
}

fn ask(chart: &Chart<'_>, target: SocketAddr, over: Over) -> Result<String> {
    chart.world.client().enter(|| Talk::open(target, over)?.ask())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

    use super::*;

    #[test]
    fn the_pages_have_the_lines() {
        let notes = include_str!("../../../../deploy/helm/weir/templates/NOTES.txt");
        let cleanup = line(notes, ON_A_NODE, "weir cleanup").unwrap();
        assert!(cleanup.contains(&format!("--pin-dir=/host{PIN_DIR}")), "{cleanup}");
        for begin in ["kubectl wait pods ", "kubectl logs ", "kubectl delete pods "] {
            assert!(line(notes, begin, DEBUGGERS).is_ok(), "{begin}");
        }
        let look = line(MIGRATION, ON_A_NODE, "weir migrate --dry-run").unwrap();
        assert!(look.contains(&format!("--pin-dir=/host{PIN_DIR}")) && look.contains(TOOLS), "{look}");
        assert!(line(notes, "kubectl drain ", "").is_err());
    }
}
