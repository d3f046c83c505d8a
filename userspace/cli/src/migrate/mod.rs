//! `weir migrate`: this node from kube-proxy to Weir, or back, step by step. What comes next is decided by what is found; see
//! `weir_migration::plan`.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use weir_core::stage;
use weir_datapath::PinDir;
use weir_migration::plan::{Consent, Direction, Standing, Step, StepKind, next, steps};

use crate::cleanup;
use crate::exit::{Answer, require_rights};
use crate::output::{Kind, Output, Row, Tone};
pub(crate) use ipvs::Ipvs;
use node::Node;
pub(crate) use stage_file::StageFile;

mod ipvs;
mod node;
mod rules;
mod stage_file;

/// Between two looks at a step that takes time.
const LOOK: Duration = Duration::from_millis(500);
/// How often a step may turn out not to be done after it was.
const ATTEMPTS: u32 = 3;

/// Where the stage is kept.
#[derive(Args, Clone, Debug)]
pub(crate) struct StateDir {
    /// Directory of the stage of this node's migration: that of the agent's --state-dir
    #[arg(long, env = "WEIR_STATE_DIR", value_name = "DIR", default_value = stage::DIRECTORY)]
    pub(crate) state_dir: PathBuf,
}

/// Options of `migrate`.
#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    /// From Weir to kube-proxy
    #[arg(long)]
    pub(crate) rollback: bool,
    /// Only say how far this node is, and what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not wait for the end of connections that the proxy before has begun: they break
    #[arg(long)]
    pub(crate) finish: bool,
    /// Go on although Weir's maps and kube-proxy's rules differ, or although no process called kube-proxy is seen
    #[arg(long)]
    pub(crate) force: bool,
    /// Patience with a step that takes time, or somebody else; then the answer is what it waits for
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) wait: u32,
    /// Where the stage is kept.
    #[command(flatten)]
    pub(crate) state: StateDir,
}

#[derive(Clone, Debug, Serialize)]
struct StepRow {
    step: &'static str,
    state: &'static str,
    detail: String,
}

impl Row for StepRow {
    const KIND: Kind = Kind::MigrationStepList;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["STEP", "STATE", "DETAIL"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        vec![self.step.to_owned(), self.state.to_owned(), self.detail.clone()]
    }

    fn name(&self) -> String {
        format!("step/{}", self.step)
    }

    fn tone(&self) -> Tone {
        match self.state {
            "done" => Tone::Good,
            "later" => Tone::Faded,
            "waits" => Tone::Alert,
            _ => Tone::Plain,
        }
    }
}

fn rows(steps: &[Step]) -> Vec<StepRow> {
    let coming = next(steps).map(|step| step.kind);
    let row = |step: &Step| {
        let (state, detail) = match &step.standing {
            Standing::Done(detail) => ("done", detail),
            Standing::Due(detail) if coming == Some(step.kind) => ("next", detail),
            Standing::Waits(detail) if coming == Some(step.kind) => ("waits", detail),
            Standing::Due(detail) | Standing::Waits(detail) => ("later", detail),
        };
        StepRow { step: step.kind.name(), state, detail: detail.clone() }
    };
    steps.iter().map(row).collect()
}

/// Runs the command: does what can be done, and tells how far the node is.
pub(crate) fn run(pins: &PinDir, args: &MigrateArgs, output: &Output) -> Result<Answer> {
    require_rights("cannot look at the node's rules")?;
    let direction = if args.rollback { Direction::ToKubeProxy } else { Direction::ToWeir };
    let consent = Consent { finish: args.finish, force: args.force };
    let file = StageFile::in_dir(&args.state.state_dir);
    let patience = Duration::from_secs(args.wait.into());
    let mut attempts: Option<(StepKind, u32)> = None;
    let mut waits: Option<(StepKind, Instant)> = None;
    let steps = loop {
        let node = Node::look(pins, &file, direction)?;
        let steps = steps(direction, &node.facts, consent);
        let Some(step) = next(&steps).filter(|_| !args.dry_run) else { break steps };
        match &step.standing {
            Standing::Due(what) => {
                let (kind, before) = attempts.filter(|(kind, _)| *kind == step.kind).unwrap_or((step.kind, 0));
                if before == ATTEMPTS {
                    bail!("{}: undone each time; does something else on this node do the opposite?", kind.name());
                }
                attempts = Some((kind, before + 1));
                eprintln!("{}: {what}", kind.name());
                act(kind, &node, pins, &file)?;
            }
            Standing::Waits(_) => {
                let (kind, since) = waits.filter(|(kind, _)| *kind == step.kind).unwrap_or((step.kind, Instant::now()));
                if since.elapsed() >= patience {
                    break steps;
                }
                waits = Some((kind, since));
                sleep(LOOK);
            }
            Standing::Done(_) => break steps,
        }
    };
    output.print(&output.list(&rows(&steps))?)?;
    Ok(if args.dry_run || next(&steps).is_none() { Answer::Yes } else { Answer::No })
}

/// Does a step.
fn act(kind: StepKind, node: &Node, pins: &PinDir, file: &StageFile) -> Result<()> {
    match kind {
        StepKind::TakeOver => file.write(stage::Stage::TakeOver),
        StepKind::RemoveRules => node.rules.remove(),
        StepKind::Finish => {
            file.write(stage::Stage::Alone)?;
            node.rules.remove_keeper()
        }
        StepKind::Drain => file.write(stage::Stage::Drain),
        StepKind::Detach => {
            cleanup::remove(pins)?;
            node.rules.remove_keeper()
        }
        // Others do these, or time does.
        StepKind::Preflight
        | StepKind::Verify
        | StepKind::StopKubeProxy
        | StepKind::RulesComplete
        | StepKind::Drained
        | StepKind::StopAgent => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use weir_migration::plan::Facts;

    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;

    #[test]
    fn a_table_tells_what_is_done_what_comes_next_and_what_then() {
        let facts = Facts {
            agent_runs: true,
            pinned: true,
            in_force: true,
            stage: stage::Stage::TakeOver,
            frontends: 12,
            modes: vec!["nftables"],
            theirs: Some(2),
            ..Facts::default()
        };
        let rows = rows(&steps(Direction::ToWeir, &facts, Consent::default()));
        insta::assert_snapshot!(anstream::adapter::strip_str(&plain(Format::Table).list(&rows).unwrap()), @r"
        STEP              STATE   DETAIL
        preflight         done    an agent runs; nftables
        take-over         done    Weir serves 12 frontends
        verify            done    Weir's maps have every frontend and endpoint of kube-proxy's rules
        stop-kube-proxy   done    no kube-proxy runs on this node
        remove-rules      next    remove kube-proxy's rules (nftables) and nothing else
        finish            later   2 connections that kube-proxy has begun go on, or ended less than two minutes ago; run this again, or cut them by --finish
        ");
    }
}
