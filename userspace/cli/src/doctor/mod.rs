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

use crate::exit::Answer;
use crate::output::{Output, Row};
use check::{Check, Line, State};
use facts::Facts;
use fix::Site;

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
    checks.extend(tables::checks(&facts.tables));
    checks.extend(mesh::checks(&facts.agent));
    checks
}
