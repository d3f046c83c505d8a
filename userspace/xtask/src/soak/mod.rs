//! `soak`: a cluster in use while everything in it changes, and whether it is as before in the end.
//!
//! It runs in a child process, see [`crate::guard`].

mod census;
mod churn;
mod claims;
mod cluster;
mod queues;
mod report;
mod request;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::claim::Claim;
use crate::guard::{self, Stop};
use crate::origin::Origin;
use crate::progress::Step;
use crate::requirements::{self, Programs};
use crate::section;
use census::{Census, Held};
use churn::{Churn, Gone, Happened};
use claims::{Judged, Lost, Seen};
use cluster::Cluster;
use traffic::{Asked, Outcome, Traffic};

/// Minutes of a whole run.
const MINUTES: u32 = 24;
/// How long there is traffic before the first count, which the last one is compared with.
const SETTLE: Duration = Duration::from_secs(15);
/// Time between two counts.
const SAMPLE: Duration = Duration::from_secs(10);
/// How soon everything must be as before.
const GIVEN_BACK: Duration = Duration::from_secs(120);
/// How soon flows must be over when there is no more traffic: datagrams' are after the two minutes of `--udp-idle`.
const FORGOTTEN: Duration = Duration::from_secs(150);
/// What agents that are done with all changes do by themselves.
const CALM: Duration = Duration::from_secs(5);

/// Options of the soak.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How long things change
    #[arg(long, value_name = "N", default_value_t = MINUTES, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Seed of what happens when
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/soak.json")]
    output: PathBuf,
    /// Where a whole run leaves its table
    #[arg(long, value_name = "FILE", default_value = "docs/performance.md")]
    report: PathBuf,
}

/// What is written.
#[derive(Debug, Serialize)]
struct Figures {
    origin: Origin,
    minutes: u32,
    asked: Asked,
    happened: Vec<Happened>,
    failures: Vec<Judged>,
    /// Datagrams without an answer.
    lost: Lost,
    /// Services that did not answer in time.
    late: Vec<String>,
    gone: Vec<Gone>,
    /// Of each node: the first count and the last.
    nodes: Vec<[Census; 2]>,
    /// What flows hold: before all traffic, with it and after it.
    held: Vec<[Held; 3]>,
    samples: Vec<Census>,
    claims: Vec<Claim>,
}

/// Runs it, prints and writes what was seen. Fails where a claim does not hold.
///
/// # Errors
/// When this machine cannot run it, or a part of it fails.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let programs = requirements::cluster("soak")?;
    guard::supervise(|directory, stop| {
        let Options { minutes, seed: _, output, report } = options;
        let figures = soak(options, &programs, directory, stop)?;
        let lacks = (*minutes < MINUTES).then(|| format!("{minutes} of {MINUTES} minutes"));
        section::finish(&figures, output, report, lacks.as_deref())
    })
}

fn soak(options: &Options, programs: &Programs, directory: &Path, stop: &Stop) -> Result<Figures> {
    let Options { minutes, seed, output: _, report: _ } = options;
    let origin = Origin::of(format!("make soak MINUTES={minutes} SEED={seed}"))?;
    let step = Step::begin("building nodes, pods and an API server");
    let mut cluster = Cluster::build(&programs.agent, directory)?;
    step.done();
    let before = held(&cluster)?;
    let begin = Instant::now();
    let mut traffic = Traffic::start(&cluster, begin)?;
    stop.sleep(SETTLE)?;
    let first = count(&cluster, begin)?;
    let mut samples = first.clone();
    let time = Duration::from_secs(60) * *minutes;
    let step = Step::begin("everything changes");
    let (mut churn, mut counted) = (Churn::new(*seed, begin), Instant::now());
    while begin.elapsed() < SETTLE + time {
        churn.step(&mut cluster, stop)?;
        traffic.look_after(&cluster.world);
        if counted.elapsed() >= SAMPLE {
            counted = Instant::now();
            samples.extend(count(&cluster, begin)?);
            step.show(format!("{:.0} of {} s", begin.elapsed().as_secs_f64(), time.as_secs()));
        }
    }
    step.done();
    churn.restore(&mut cluster)?;
    traffic.look_after(&cluster.world);
    let given_back = ("waiting for everything to be as before", GIVEN_BACK);
    let same = |now: &Census, first: &Census| now.differences(first).is_empty();
    let last = await_before(given_back, &first, stop, || count(&cluster, begin), same)?;
    let (seconds, during) = (begin.elapsed().as_secs_f64(), held(&cluster)?);
    let Outcome { asked, failures, lost } = traffic.stop(&cluster.world);
    let forgotten = ("waiting for flows to be over", FORGOTTEN);
    let after = await_before(forgotten, &before, stop, || held(&cluster), Held::is_within)?;
    let held = before.into_iter().zip(during).zip(after);
    let held: Vec<[Held; 3]> = held.map(|((before, during), after)| [before, during, after]).collect();
    samples.extend(last.clone());
    let mut panics = 0;
    for agent in &cluster.agents {
        panics += agent.panics()?;
    }
    let Churn { gone, happened, late, .. } = churn;
    let failures = claims::judge(failures, &gone);
    let lost = claims::judge_lost(lost, &gone);
    let nodes: Vec<[Census; 2]> = first.into_iter().zip(last).map(|(first, last)| [first, last]).collect();
    let seen =
        Seen { seconds, asked, failures: &failures, lost: &lost, late: late.len(), nodes: &nodes, held: &held, panics };
    let claims = claims::of(&seen);
    Ok(Figures { origin, minutes: *minutes, asked, happened, failures, lost, late, gone, nodes, held, samples, claims })
}

/// Counts on both nodes.
fn count(cluster: &Cluster, begin: Instant) -> Result<Vec<Census>> {
    let at = begin.elapsed().as_secs_f64();
    let nodes = cluster.world.nodes().iter().zip(&cluster.agents);
    nodes.map(|(node, agent)| Census::take(node.number(), agent.id()?, at)).collect()
}

/// Counts what flows hold on both nodes.
fn held(cluster: &Cluster) -> Result<Vec<Held>> {
    cluster.world.nodes().iter().map(|node| Held::count(node.number())).collect()
}

/// Counts again and again until each node's count is as the one before, as long as that may take. Returns the last one.
fn await_before<T>(
    (what, limit): (&'static str, Duration),
    before: &[T],
    stop: &Stop,
    count: impl Fn() -> Result<Vec<T>>,
    is_as: impl Fn(&T, &T) -> bool,
) -> Result<Vec<T>> {
    let step = Step::begin(what);
    let since = Instant::now();
    loop {
        stop.sleep(CALM)?;
        let now = count()?;
        if now.iter().zip(before).all(|(now, before)| is_as(now, before)) || since.elapsed() > limit {
            step.done();
            return Ok(now);
        }
    }
}
