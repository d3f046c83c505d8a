//! A step of load at one node, and the time until new flows go where they finally go.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use weir_abi as abi;
use weir_datapath::View;
use weir_testbed::Netns;
use weir_testbed::load::{Load, RunningLoad};

use crate::demo::stage::{ADDRESSES, SERVICE, Stage};
use crate::guard::Stop;
use crate::progress::Step;
use crate::spread::Spread;

/// What each node's machine has.
pub(super) const CORES: f64 = 0.25;
/// What a request costs its server.
const COST: Duration = Duration::from_micros(500);
/// New flows per second at node 1 before the step, and more from then on: a third of what it takes up to its level, and
/// then almost twice as much as that.
pub(super) const BEFORE: u32 = 100;
pub(super) const MORE: u32 = 450;
/// At the other nodes: enough for them to know what a flow costs.
const ELSEWHERE: u32 = 20;
/// Requests that may wait at once: more than what queues up until the overflow leaves, or the load would fall by itself.
const WORKERS: usize = 160;
/// How long the load before is watched, at least.
const CALM: Duration = Duration::from_secs(12);
/// How long the load after it is, and its end, whose mean is the final re-steering.
const AFTER: Duration = Duration::from_secs(12);
const FINAL: Duration = Duration::from_secs(4);
/// Time between two looks at the counters.
const GLANCE: Duration = Duration::from_millis(20);
/// A share of flows is that of the flows of this time: fewer say little.
const SECOND: Duration = Duration::from_secs(1);
/// The part of the final re-steering that counts.
const PART: f64 = 0.9;
/// Patience with the way home.
const HOME: Duration = Duration::from_secs(90);

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    before_per_second: u32,
    after_per_second: u32,
    /// Time until the share in the maps is 90 % of the final one.
    pub(super) time_ms: Spread,
    /// Of new flows in the second after that, by the datapath's counters, the part that left the node, in parts of the
    /// final one.
    pub(super) flows_then: Spread,
    repetitions: Vec<Repetition>,
}

/// One step.
#[derive(Debug, Serialize)]
struct Repetition {
    time_ms: f64,
    flows_then: f64,
    /// Of new flows that leave the node, finally.
    final_share: f64,
    /// The same in each second after the step.
    by_second: Vec<f64>,
}

/// A look at the maps.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    flows: abi::ServiceCounters,
    /// What the maps let leave.
    spill: f64,
}

/// Makes the steps.
///
/// # Errors
/// When a part of the world fails, or nothing left the node.
pub(super) fn measure(stage: &Stage, repetitions: u32, stop: &Stop) -> Result<Figures> {
    let slot = Slot::find(stage)?;
    let _elsewhere = [2, 3].map(|node| paced(stage.world().node(node).pod(1).netns(), ELSEWHERE));
    let _base = paced(stage.client().netns(), BEFORE)?;
    let mut done = Vec::new();
    for _ in 0..repetitions {
        let step = Step::begin("a step of load");
        stop.sleep(CALM)?;
        slot.await_home(stop)?;
        done.push(one(&slot, stage, stop)?);
        step.done();
    }
    let all = |figure: fn(&Repetition) -> f64| {
        Spread::of(done.iter().map(figure).collect()).context("no repetition was asked for")
    };
    Ok(Figures {
        before_per_second: BEFORE,
        after_per_second: BEFORE + MORE,
        time_ms: all(|one| one.time_ms)?,
        flows_then: all(|one| one.flows_then)?,
        repetitions: done,
    })
}

/// Requests to the service at a fixed rate.
pub(super) fn paced(netns: &Netns, per_second: u32) -> Result<RunningLoad> {
    let target: SocketAddr = ADDRESSES[0];
    Ok(Load::http(target).cost(COST).concurrency(WORKERS).rate(per_second).start(netns)?)
}

fn one(slot: &Slot, stage: &Stage, stop: &Stop) -> Result<Repetition> {
    let begin = Instant::now();
    let load = paced(stage.client().netns(), MORE)?;
    let mut looks = vec![slot.look(begin)?];
    while begin.elapsed() < AFTER {
        stop.check()?;
        thread::sleep(GLANCE);
        looks.push(slot.look(begin)?);
    }
    drop(load);
    let late: Vec<Look> = looks.iter().filter(|look| look.at >= AFTER - FINAL).copied().collect();
    let final_share = share(late[0], late[late.len() - 1]).context("no new flow at the end")?;
    ensure!(final_share > 0.1, "only {final_share:.3} of the flows left node 1 in the end; see `weir explain`");
    let spill = late.iter().map(|look| look.spill).sum::<f64>() / late.len() as f64;
    let reached = looks.iter().find(|look| look.spill >= PART * spill).context("the final share was never reached")?;
    let then = looks.iter().find(|look| look.at >= reached.at + SECOND).context("the final share came too late")?;
    let flows_then = share(*reached, *then).context("no new flow after the step")? / final_share;
    let seconds: Vec<&Look> = (0..=AFTER.as_secs())
        .filter_map(|second| looks.iter().find(|look| look.at >= Duration::from_secs(second)))
        .collect();
    let by_second = seconds.windows(2).filter_map(|two| share(*two[0], *two[1])).collect();
    Ok(Repetition { time_ms: reached.at.as_secs_f64() * 1000.0, flows_then, final_share, by_second })
}

/// Of new flows between two looks, the part that left the node.
fn share(before: Look, after: Look) -> Option<f64> {
    let remote = after.flows.remote - before.flows.remote;
    let all = remote + after.flows.local - before.flows.local;
    (all > 0).then(|| remote as f64 / all as f64)
}

/// The service in the maps of node 1.
pub(super) struct Slot {
    view: View,
    id: u32,
}

impl Slot {
    /// Its port in IPv4.
    pub(super) fn find(stage: &Stage) -> Result<Self> {
        let view = stage.maps(1)?;
        let dump = view.dump()?;
        let own = |name: &abi::ServiceName| name.family == 4 && name.name.starts_with(SERVICE.as_bytes());
        let found = dump.service_names.iter().find(|(_, name)| own(name)).map(|(id, _)| *id);
        Ok(Self { view, id: found.with_context(|| format!("service {SERVICE} is not in the maps"))? })
    }

    fn look(&self, begin: Instant) -> Result<Look> {
        let flows = self.view.service_counters(self.id)?;
        Ok(Look { at: begin.elapsed(), flows, spill: self.spill()? })
    }

    fn spill(&self) -> Result<f64> {
        Ok(f64::from(self.view.service(self.id)?.tiers[abi::CLASS_INTERNAL].spill) / 65536.0)
    }

    fn await_home(&self, stop: &Stop) -> Result<()> {
        let begin = Instant::now();
        while self.spill()? > 0.0 {
            ensure!(begin.elapsed() < HOME, "flows still leave node 1 {HOME:?} after its load has fallen");
            stop.sleep(GLANCE)?;
        }
        Ok(())
    }
}
