//! The play: spread evenly, local first, the local pods die; then what [`super::spill`] shows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::agent::Spread;
use super::stage::{PODS, ROUND_TRIP, SERVICE, Stage};
use super::table::{self, Disturbance, Row, Takeover};
use super::traffic::{Tally, Traffic, WORKERS};
use super::{NODES, spill};
use crate::guard::Stop;
use crate::progress::Step;
use crate::requirements::Programs;

/// Length of a phase.
const PHASE: Duration = Duration::from_secs(4);

/// Time between two looks at the counters in a phase.
pub(super) const GLANCE: Duration = Duration::from_millis(250);

/// The same while the first answer from another node is awaited.
const CLOSE_LOOK: Duration = Duration::from_millis(2);

/// Connections that were opened under the last spread are over after this.
const SETTLE: Duration = Duration::from_millis(250);

/// Plays. With `keep` the world stays up until the stop sign.
///
/// # Errors
/// When a part of the world fails, or at the stop sign.
pub(super) fn play(keep: bool, programs: &Programs, directory: &Path, stop: &Stop) -> Result<()> {
    let step = Step::begin("building nodes, pods and links");
    let mut stage = Stage::build(directory)?;
    stop.check()?;
    step.done();
    let step = Step::begin("starting weir-agent on each node");
    stage.start_agents(programs, &Spread::Random)?;
    stop.check()?;
    step.done();

    println!(
        "\n{NODES} nodes with {} ms between them, {PODS} HTTP pods on each behind service {SERVICE}; a pod on node 1 asks, \
         {} requests at a time,\na new connection for each, half of them IPv4 and half IPv6.\n\n{}",
        ROUND_TRIP.as_millis(),
        2 * WORKERS,
        table::header(),
    );
    let mut traffic = stage.start_traffic()?;
    let spread = phase("spread evenly, as kube-proxy", &mut traffic, stop)?;
    let restart = restart(&mut stage, &mut traffic, stop)?;
    let local = phase("local first", &mut traffic, stop)?;
    let (takeover, died) = takeover(&mut stage, &mut traffic, stop)?;
    drop(traffic);
    let spilled = spill::play(&mut stage, programs, stop)?;
    println!("\n{}\n{spilled}", table::summary(&spread, &local, &restart, (takeover, &died)));

    if keep {
        println!("\n{}", stage.guide(programs));
        stop.wait();
    }
    Ok(())
}

/// Counts for a while and prints a row.
fn phase(name: &'static str, traffic: &mut Traffic, stop: &Stop) -> Result<Row> {
    let step = Step::timed(name, PHASE);
    stop.sleep(SETTLE)?;
    traffic.take()?;
    let mut total = Tally::new()?;
    count(&step, traffic, &mut total, Instant::now() + PHASE, stop)?;
    drop(step);
    let row = Row::new(name, &total);
    println!("{row}");
    Ok(row)
}

/// Adds up what happens until `end`, and shows it.
fn count(step: &Step, traffic: &mut Traffic, total: &mut Tally, end: Instant, stop: &Stop) -> Result<()> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stop.sleep(left.min(GLANCE))?;
        let now = traffic.take()?;
        total.add(&now)?;
        step.show(glance(&now));
    }
}

fn glance(tally: &Tally) -> String {
    let [first, second, third] = tally.shares().map(|share| share * 100.0);
    let (rate, p50) = (tally.per_second(), tally.quantile_ms(0.5));
    format!("{rate:.0}/s, p50 {p50:.2} ms, node1 {first:.0}% node2 {second:.0}% node3 {third:.0}%")
}

/// Restarts the agents under load, local first from now on.
fn restart(stage: &mut Stage, traffic: &mut Traffic, stop: &Stop) -> Result<Disturbance> {
    let step = Step::begin("restarting the agents, local first");
    traffic.take()?;
    stage.restart_agents(&Spread::LocalFirst)?;
    stop.sleep(SETTLE)?;
    let meanwhile = Disturbance::new(&traffic.take()?);
    drop(step);
    Ok(meanwhile)
}

/// Kills the pods of node 1 and takes them off the list of endpoints, as Kubernetes would.
fn takeover(stage: &mut Stage, traffic: &mut Traffic, stop: &Stop) -> Result<(Takeover, Disturbance)> {
    const NAME: &str = "local pods killed";
    let step = Step::timed(NAME, PHASE);
    traffic.take()?;
    let death = Instant::now();
    stage.kill_servers(1);
    stage.publish()?;
    let mut total = Tally::new()?;
    let mut last_failure = None;
    let mut first_answer = None;
    let quiet = |last: Option<Duration>| last.is_none_or(|last| death.elapsed() > last + SETTLE);
    // Until others have answered and nothing has failed for a while: one of the two alone may come too early.
    while (first_answer.is_none() || !quiet(last_failure)) && death.elapsed() < PHASE {
        stop.check()?;
        std::thread::sleep(CLOSE_LOOK);
        let now = traffic.take()?;
        if now.failed() > 0 {
            last_failure = Some(death.elapsed());
        }
        if now.elsewhere() > 0 {
            first_answer.get_or_insert_with(|| death.elapsed());
        }
        total.add(&now)?;
    }
    count(&step, traffic, &mut total, death + PHASE, stop)?;
    drop(step);
    println!("{}", Row::new(NAME, &total));
    let Some(first_answer) = first_answer else {
        anyhow::bail!(
            "no other node has answered within {PHASE:?} after the pods of node 1 died; see the agents' logs"
        );
    };
    Ok((Takeover { first_answer, last_failure }, Disturbance::new(&total)))
}
