//! The conformance tests: Kubernetes' own end-to-end tests of services, unchanged, on a real cluster on this machine,
//! with weir-agent or kube-proxy.
//!
//! Everything runs in a child process, see [`crate::guard`]: however it ends, its parent removes what it has made.

mod beside;
mod chart;
mod cluster;
mod control_plane;
mod e2e;
mod exclusions;
mod held;
mod images;
mod node;
mod programs;
mod proxy;
mod readme;
mod removal;
pub(crate) mod report;
pub(crate) mod rollout;
mod summary;
mod template;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use weir_testbed::{bpffs, cgroup};

use crate::guard::{self, Stop};
use cluster::Cluster;
use programs::Programs;
use proxy::Proxy;
use summary::Summary;

/// Where results and logs go, below the root of the tree.
const RESULTS: &str = "target/conformance";

/// The same for runs of some tests only: the report is about all.
const FOCUSED_RESULTS: &str = "target/conformance/focused";

/// Options of the conformance tests.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// What serves Services
    #[arg(long, value_enum, default_value_t = Proxy::Weir)]
    proxy: Proxy,
    /// Run only the tests whose name this regular expression finds [default: all that concern services]
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Tests that run at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    procs: u8,
    /// Leave the cluster up afterwards, with commands to look around in it, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// The agent to test [default: the one beside this program]
    #[arg(long, env = "WEIR_AGENT", value_name = "FILE")]
    agent: Option<PathBuf>,
    /// More options for the agent, separated by spaces
    #[arg(long, env = "WEIR_AGENT_OPTIONS", value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    agent_options: String,
}

impl Options {
    /// A cluster with this proxy, for something else than the tests.
    fn with_proxy(proxy: Proxy) -> Self {
        Self { proxy, focus: None, procs: 1, keep: false, agent: None, agent_options: String::new() }
    }

    /// The directory for the results of this run.
    fn results(&self) -> Result<PathBuf> {
        let directory = if self.focus.is_some() { FOCUSED_RESULTS } else { RESULTS };
        std::path::absolute(directory).context("cannot tell where the results go")
    }
}

/// Runs the tests and removes the cluster, also on Ctrl-C. Fails when a test failed, or was skipped for a reason that is
/// not on the list in [`summary`].
///
/// # Errors
/// When this machine cannot run the cluster, or a part of it fails. The error says what to do about it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "a cluster takes network namespaces and containers, which only root may make: run `sudo make conformance`"
        );
    }
    let programs = Programs::find(options)?;
    if options.proxy == Proxy::Chart {
        let image = programs.image()?;
        ensure!(options.agent.is_none(), "the chart's agents are those of {}: leave --agent out", image.display());
    }
    bpffs::ensure_mounted().context("the agents pin their maps on bpffs")?;
    cgroup::root().context("the agents attach their socket hooks to a cgroup")?;
    let results = options.results()?;
    std::fs::create_dir_all(&results).with_context(|| format!("cannot make {}", results.display()))?;
    guard::supervise(|directory, stop| test(options, &programs, directory, stop))
}

fn test(options: &Options, programs: &Programs, directory: &Path, stop: &Stop) -> Result<ExitCode> {
    let mut cluster = Cluster::start(options, programs, directory, stop)?;
    let report = e2e::run(options, programs, &mut cluster, stop)?;
    let summary = Summary::read(&report, options, programs)?;
    summary.write(&options.results()?.join(options.proxy.summary()))?;
    println!("\n{summary}");
    if options.keep {
        println!("\n{}", cluster.guide(programs));
        stop.wait();
    }
    Ok(if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
