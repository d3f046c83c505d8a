//! `bench-steering`: how fast shares follow a step of load, what the steering costs the agent, and whether changes of
//! shares break connections.
//!
//! Nodes are those of the demo, each with a machine of its own. Runs in a child process, see [`crate::guard`].

mod connections;
mod cost;
mod step;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
pub(crate) use connections::{Held, Holder, hold};
use serde::Serialize;
use weir_testbed::figures;

use crate::demo::stage::Stage;
use crate::guard::{self, Stop};
use crate::origin;
use crate::requirements::{self, Programs};
use crate::spread::Spread;

/// Options of the benchmark.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Only one part
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// How often the step of load is made
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/steering.json")]
    output: PathBuf,
}

/// The parts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Part {
    /// A step of load at one node
    Step,
    /// CPU time of the agent
    Cost,
    /// Open connections while shares change
    Connections,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Figures {
    kernel: String,
    /// Whether the programs were built with optimisation: figures of others are no results.
    release: bool,
    /// Of the machine, over a minute, before and after.
    load_average: [f64; 2],
    step: Option<step::Figures>,
    cost: Option<cost::Figures>,
    connections: Option<connections::Figures>,
}

/// Measures, prints and writes the figures.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let programs = requirements::nodes("bench-steering")?;
    guard::supervise(|directory, stop| {
        let figures = measure(options, &programs, directory, stop)?;
        print(&figures);
        figures::write(&options.output, &figures)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn measure(options: &Options, programs: &Programs, directory: &Path, stop: &Stop) -> Result<Figures> {
    let wanted = |part: Part| options.only.is_none_or(|only| only == part);
    let before = load_average()?;
    let (mut step, mut connections, mut cost) = (None, None, None);
    if wanted(Part::Step) || wanted(Part::Connections) {
        let mut stage = Stage::build(&fresh(directory, "steps")?)?;
        stage.limit(step::CORES)?;
        stage.follow_the_load(programs)?;
        if wanted(Part::Step) {
            step = Some(step::measure(&stage, options.reps, stop)?);
        }
        if wanted(Part::Connections) {
            connections = Some(connections::measure(&stage, stop)?);
        }
    }
    if wanted(Part::Cost) {
        cost = Some(cost::measure(programs, &fresh(directory, "cost")?, stop)?);
    }
    let (kernel, release) = (origin::kernel()?, !cfg!(debug_assertions));
    Ok(Figures { kernel, release, load_average: [before, load_average()?], step, cost, connections })
}

fn fresh(directory: &Path, name: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

fn load_average() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").context("cannot tell the load average")?;
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.with_context(|| format!("/proc/loadavg says {text:?}"))
}

fn print(figures: &Figures) {
    let Figures { kernel, release, load_average: [before, after], step, cost, connections } = figures;
    let build = if *release { "release" } else { "development build: no results" };
    println!("\nLinux {kernel}, {build}, load average {before:.1} before, {after:.1} after");
    println!("{:<64} {:>12} {:>14} {:>8}", "WHAT", "MEDIAN", "SPREAD", "BAR");
    let row = |what: &str, median: String, spread: String, bar: &str| {
        println!("{what:<64} {median:>12} {spread:>14} {bar:>8}");
    };
    if let Some(step) = step {
        let (time, then) = (step.time_ms, step.flows_then);
        let spread = format!("{:.0}-{:.0}", time.least, time.most);
        row("step of load: time to 90 % of the final share", format!("{:.0} ms", time.median), spread, "500 ms");
        let spread = format!("{:.2}-{:.2}", then.least, then.most);
        row("  flows that left in the second after it, of the final share", format!("{:.2}", then.median), spread, "");
    }
    if let Some(cost) = cost {
        let percent = |part: f64| format!("{:.2} %", part * 100.0);
        let range = |spread: Spread| format!("{:.2}-{:.2}", spread.least * 100.0, spread.most * 100.0);
        let cost::Figures { services, in_use, peers, fixed, ticking, meshed, seconds: _ } = *cost;
        let part = |what: &str, of: Spread, bar: &str| row(what, percent(of.median), range(of), bar);
        part(&format!("agent, of a core: {services} services, {in_use} in use, not steered"), fixed, "");
        part("  what ticking adds", ticking, "1 %");
        part(&format!("  what a mesh of {peers} peers adds"), meshed, "0.3 %");
    }
    if let Some(connections::Figures { open, updates, seconds, broken }) = connections {
        let what = format!("{open} open connections, {updates} changes of shares in {seconds:.0} s: broken");
        row(&what, broken.to_string(), String::new(), "0");
    }
}
