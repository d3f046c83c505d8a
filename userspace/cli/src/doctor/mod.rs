//! `weir doctor`: what Weir needs of this node, and what may be in its way. Facts are gathered in `facts.rs`; the verdicts
//! are plain functions of them.

mod check;
mod facts;
mod fix;
mod mesh;
mod network;
mod node;
mod proxies;
mod tables;

use std::path::Path;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use weir_datapath::PinDir;

use crate::agent::Agent;
use crate::exit::Answer;
use crate::output::{Output, Row};
use check::{Check, Line, State};
use facts::Facts;
use fix::{Fix, Site};
use tables::TableFacts;

/// Options of `doctor`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DoctorArgs {
    /// Only what is not ok
    #[arg(short, long)]
    quiet: bool,
    /// Do not load the programs to see whether the kernel takes them, which is seconds of work
    #[arg(long)]
    no_load: bool,
}

#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    state: State,
    checks: &'a [Line],
}

/// Runs the command.
pub(crate) fn run(pins: &PinDir, args: &DoctorArgs, socket: &Path, output: &Output) -> Result<Answer> {
    let site = Site::here();
    let facts = Facts::gather(pins, socket, &site, !args.no_load)?;
    let mut checks: Vec<_> = verdicts(&facts).into_iter().map(|check| check.shown(&site)).collect();
    let state = checks.iter().map(|check| check.state).max().unwrap_or(State::Ok);
    if args.quiet {
        checks.retain(|check| check.state != State::Ok);
    }
    output.print(&output.rows(&checks, Line::KIND, &Diagnosis { state, checks: &checks })?)?;
    Ok(if state == State::Fail { Answer::No } else { Answer::Yes })
}

/// All verdicts, in the order in which one would mend things.
fn verdicts(facts: &Facts) -> Vec<Check> {
    let mut checks = node::checks(&facts.node);
    checks.extend(proxies::checks(&facts.proxies));
    checks.extend(network::checks(&facts.network));
    if is_new(&facts.tables, &facts.agent.agent) {
        checks.push(not_started(&facts.tables));
        return checks;
    }
    checks.extend(tables::checks(&facts.tables));
    checks.extend(mesh::checks(&facts.agent));
    checks
}

/// Whether no agent has ever run here, so that nothing can be missing of what it does: installation comes before the start.
fn is_new(tables: &TableFacts, agent: &Agent) -> bool {
    let is_silent = match agent {
        Agent::Silent(_) => true,
        Agent::Running { .. } => false,
    };
    is_silent && tables.maps.is_none() && tables.others.is_empty() && tables.links == 0
}

fn not_started(tables: &TableFacts) -> Check {
    let detail =
        format!("not started yet, and nothing is pinned in {}: no Service is served", tables.pin_dir.display());
    Check::warn("agent", detail, Fix::Restart { running: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_new_as_long_as_no_agent_runs_and_nothing_is_pinned() {
        let silent = || Agent::Silent("no such file".to_owned());
        let running = Agent::Running { healthy: true, components: Vec::new() };
        let with = |change: fn(&mut TableFacts)| {
            let mut tables = TableFacts::default();
            change(&mut tables);
            is_new(&tables, &silent())
        };
        assert!(with(|_| ()));
        assert!(!is_new(&TableFacts::default(), &running));
        assert!(!with(|tables| tables.maps = Some(Err("another layout".to_owned()))));
        assert!(!with(|tables| tables.others.push("/sys/fs/bpf/weir/maps-v3".into())));
        assert!(!with(|tables| tables.links = 1));
        let check = not_started(&TableFacts::default()).shown(&Site::Node);
        assert_eq!(check.state, State::Warn, "`weir doctor` does not fail");
    }
}
