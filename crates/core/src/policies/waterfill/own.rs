//! What this node itself takes of a service: offered load, cost of a flow, room up to the target.

use std::time::Duration;

use super::constants::{BAD_NEWS, DRAIN, GOOD_NEWS, LONGEST_FLOW, SIGNIFICANT, SMOOTHING};
use super::meter::{Level, Meter};
use super::smooth::{History, Smoothed};
use crate::load::{NodeLoad, Sample, Share};
use crate::policies::{Inputs, Offered, Own, PodsLoad, Reading};

/// What is known of this node over time.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnState {
    offered: Smoothed,
    /// The last tick showed a significant rise, and as likely as not only a part of it.
    rose: bool,
    inbound: Smoothed,
    done: History,
    open_flows: Option<u32>,
    backlog: Backlog,
    cpu: Meter,
    network: Meter,
    pods: Meter,
    others: Others,
}

/// Flows that pile up from the beginning of a step until the share follows it. Long flows look alike: of them no more than
/// come in these ticks is held against the node, and not for long.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    flows: f64,
    /// Open flows before the step.
    calm: u32,
    /// Flows that came since.
    came: f64,
    /// The tick before was in it.
    rising: bool,
}

impl Backlog {
    /// Takes the open flows of the tick before and of this one, and the flows per second that came in it. Answers with the
    /// flows per second that are to be done of what piled up.
    fn follow(&mut self, open: [u32; 2], local: f64, rising: bool, elapsed: Duration) -> f64 {
        let [before, open] = open;
        if rising && !self.rising {
            (self.calm, self.came) = (before, 0.0);
        }
        self.came += local * elapsed.as_secs_f64();
        let more = f64::from(open.saturating_sub(self.calm));
        let most =
            if rising || self.rising { self.came } else { self.flows * (-elapsed.div_duration_f64(DRAIN)).exp() };
        self.flows = more.min(most);
        self.rising = rising;
        self.flows / DRAIN.as_secs_f64()
    }
}

/// CPU in use by others than the service's pods. Pods are read more seldom than the node, and a reading is about the time
/// since the one before: only over that time can the two be compared, or each step of the load would look like others'.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    /// Of the node, since the last reading of the pods.
    used: f64,
    span: Duration,
    /// Of that reading.
    age: Option<Duration>,
    share: f64,
}

impl Others {
    /// The pods' part of the node's utilisation now.
    fn part(&mut self, used: f64, pods: Sample<f64>, elapsed: Duration) -> f64 {
        self.used += used * elapsed.as_secs_f64();
        self.span += elapsed;
        let is_new = self.age.is_none_or(|age| pods.age < age + elapsed / 2);
        self.age = Some(pods.age);
        if is_new {
            let mean = if self.span.is_zero() { used } else { self.used / self.span.as_secs_f64() };
            (self.share, self.used, self.span) = ((mean - pods.value).max(0.0), 0.0, Duration::ZERO);
        }
        (used - self.share).max(0.0)
    }
}

/// What this node takes, now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Room {
    /// New flows per second from clients of this node.
    pub(super) offered: f64,
    /// Utilisation up to which the node takes flows.
    pub(super) target: f64,
    /// New flows per second of the service that the node takes at its target, from anywhere.
    pub(super) total: f64,
    /// New flows per second that come from other nodes.
    pub(super) inbound: f64,
    /// Flows per second that are to be done of those that wait since a step.
    pub(super) backlog: f64,
    /// Utilisation if all of the offered flows stay, of the scarcest resource.
    pub(super) demand: f64,
    /// Utilisation of that resource as it is.
    pub(super) used: f64,
    /// What a new flow per second costs of it; None if that is not known yet.
    pub(super) cost: Option<f64>,
    /// Whether `cost` is more than a guess.
    pub(super) learned: bool,
    /// Utilisation of it that is not the service's.
    pub(super) background: f64,
    /// Time until a change of the share shows in `used`.
    pub(super) delay: Duration,
}

impl Room {
    /// New flows per second from clients of this node that it takes now.
    pub(super) fn own(&self) -> f64 {
        (self.steady() - self.backlog).max(0.0)
    }

    /// The same once nothing waits.
    pub(super) fn steady(&self) -> f64 {
        (self.total - self.inbound).max(0.0)
    }

    /// Utilisation if all of the offered flows stay and no others come.
    pub(super) fn own_demand(&self) -> f64 {
        self.demand - self.cost.unwrap_or(0.0) * self.inbound
    }
}

impl OwnState {
    /// The offered load, smoothed: a significant rise at once, and what the tick after shows of it; all else slowly.
    pub(super) fn offered(&mut self, offered: &Offered, elapsed: Duration) -> f64 {
        let seconds = elapsed.as_secs_f64();
        let now = finite(offered.flows_per_second);
        let expected = self.offered.get().unwrap_or(now) * seconds;
        let significant = now * seconds - expected > SIGNIFICANT * expected.max(1.0).sqrt();
        let up = if significant || self.rose { BAD_NEWS } else { SMOOTHING };
        self.rose = significant;
        self.offered.follow_unevenly(now, elapsed, up, GOOD_NEWS)
    }

    /// Whether the last tick showed a significant rise.
    pub(super) const fn rose(&self) -> bool {
        self.rose
    }

    /// What the node takes up to `target`, while `spill` of its own flows leaves. None if its CPU is unknown or old.
    pub(super) fn room(&mut self, inputs: &Inputs<'_>, offered: f64, spill: f64, target: f64) -> Option<Room> {
        let Own { load, pods } = inputs.own;
        let NodeLoad { cpu, network, capacity, memory: _, pressure: _, bandwidth: _ } = load.checked().ok()?;
        let Sample { value: used, age } =
            cpu.filter(|cpu| inputs.parameters.reading(cpu.age) == Some(Reading::Fresh))?;
        let elapsed = inputs.elapsed;
        let local = finite(inputs.offered.local_flows_per_second);
        let foreign = local - finite(inputs.offered.flows_per_second) * (1.0 - spill);
        let inbound = self.inbound.follow(foreign, elapsed, SMOOTHING).max(0.0);
        let open = inputs.offered.open_flows;
        let before = self.open_flows.replace(open).unwrap_or(open);
        let backlog = self.backlog.follow([before, open], local, self.rose, elapsed);
        let work = self.work(before, open, local, elapsed, age);

        let pods = pods.filter(|pods| pods.value.cores.is_finite() && pods.value.cores >= 0.0);
        let part = pods.filter(|_| capacity > 0.0).map(|pods| {
            let reading = Sample { value: pods.value.cores / capacity, age: pods.age };
            self.others.part(used.get(), reading, elapsed)
        });
        let mut levels = vec![self.cpu.read(used.get(), part, work, elapsed)];
        if let Some(network) = network {
            levels.push(self.network.read(network.value.get(), None, work, elapsed));
        }
        if let Some(Sample { value: PodsLoad { cores, limit: Some(limit) }, .. }) = pods.filter(has_limit) {
            let of_limit = Share::clamped(cores / limit).get();
            levels.push(self.pods.read(of_limit, Some(of_limit), work, elapsed));
        }
        let delay = age + life(&inputs.offered) + SMOOTHING;
        let room = scarcest(&levels, offered, inbound, target, delay)?;
        Some(Room { backlog, ..room })
    }

    /// Flows per second that the node's endpoints got done when its CPU was measured. A queue that grows is not done
    /// yet; but long flows grow like queues, so that half of what comes always counts.
    fn work(&mut self, before: u32, open: u32, local: f64, elapsed: Duration, age: Duration) -> f64 {
        let growth = (f64::from(open) - f64::from(before)) / elapsed.as_secs_f64().max(1e-3);
        let done = local - growth.clamp(0.0, local / 2.0);
        self.done.add(done, elapsed, age)
    }
}

fn has_limit(pods: &Sample<PodsLoad>) -> bool {
    pods.value.limit.is_some_and(|limit| limit.is_finite() && limit > 0.0)
}

/// By Little's law.
fn life(offered: &Offered) -> Duration {
    let rate = finite(offered.local_flows_per_second);
    if rate <= 0.0 {
        return Duration::ZERO;
    }
    let seconds = f64::from(offered.open_flows) / rate;
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_FLOW).min(LONGEST_FLOW)
}

fn scarcest(levels: &[Level], offered: f64, inbound: f64, target: f64, delay: Duration) -> Option<Room> {
    let rooms = levels.iter().map(|level| {
        let Level { used, cost, learned, background } = *level;
        let (demand, total) = match cost {
            Some(cost) => (background + cost * (offered + inbound), (target - background).max(0.0) / cost),
            // Nothing was ever done here: all of it is welcome if the node is below its target.
            None if used < target => (used, offered + inbound),
            None => (used, 0.0),
        };
        Room { offered, target, total, inbound, backlog: 0.0, demand, used, cost, learned, background, delay }
    });
    let worse = |a: Room, b: Room| if b.demand > a.demand { b } else { a };
    let least = |a: Room, b: Room| Room { total: a.total.min(b.total), ..worse(a, b) };
    rooms.reduce(least)
}

fn finite(number: f64) -> f64 {
    if number.is_finite() { number.max(0.0) } else { 0.0 }
}
