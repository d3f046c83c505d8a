//! What agents get to know of each other, how late, and how old it is when they use it.

use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use weir_core::load::{NodeLoad, PeerReport, Sample, ServiceId, ServiceLoad, Share};
use weir_core::policies::Parameters;

use crate::scenario::{STEPS_PER_TICK, TICK};
use crate::world::World;

/// The service that is simulated.
pub(crate) const SERVICE: ServiceId = ServiceId(1);
/// For how long a node is taken to spill after it said so, as in the mesh: 5 s.
const SPILL_LIFE: u64 = 20;
/// Memory in use of every node: nothing here needs any.
const MEMORY: Share = Share::clamped(0.3);

/// Where agents' knowledge comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feed {
    /// Between two reports of a near node.
    pub interval: Duration,
    /// How old a report is when it comes, and what a node knows of its own utilisation.
    pub delay: Duration,
    /// How many of the nearest nodes report each interval.
    pub nearest: usize,
    /// How many of the others do, in turn.
    pub sample: usize,
    /// Whether nodes tell what they can take, or only how busy they are.
    pub tells_spare: bool,
}

impl Feed {
    /// The mesh with its defaults: the nearest 16 and 4 others twice a second.
    pub const MESH: Self =
        Self { interval: Duration::from_millis(500), delay: Duration::ZERO, nearest: 16, sample: 4, tells_spare: true };

    /// Everything that is measured is that old when it is used. Counters of the datapath never are.
    #[must_use]
    pub const fn aged(delay: Duration) -> Self {
        Self { interval: TICK, delay, ..Self::MESH }
    }

    /// Nodes and their usage as metrics.k8s.io has them: once in 15 s, and nobody tells what it can take.
    pub const METRICS_API: Self = Self {
        interval: Duration::from_secs(15),
        delay: Duration::from_secs(1),
        nearest: usize::MAX,
        sample: 0,
        tells_spare: false,
    };

    /// How often agents are told to expect reports.
    pub(crate) fn report_interval(&self) -> Duration {
        self.interval.max(self.delay).max(Parameters::REPORT_INTERVAL)
    }
}

/// Ticks of a time, rounded.
#[expect(clippy::cast_possible_truncation, reason = "minutes at most")]
pub(crate) const fn ticks(time: Duration) -> u64 {
    ((time.as_millis() + TICK.as_millis() / 2) / TICK.as_millis()) as u64
}

/// What a node told at some tick.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// CPU in use, others' included.
    pub(crate) cpu: Share,
    /// Network in use.
    pub(crate) network: Share,
    /// Cores that the service's pods used.
    pub(crate) pods: f64,
    /// The service there.
    pub(crate) service: ServiceLoad,
    /// Whether it told what it could take.
    pub(crate) spare: bool,
    /// Whether it was there.
    pub(crate) alive: bool,
    /// The tick.
    pub(crate) at: u64,
}

impl Told {
    /// As the words that policies read.
    pub(crate) fn load(&self, cores: u32) -> NodeLoad {
        NodeLoad {
            cpu: Some(Sample::fresh(self.cpu)),
            memory: Some(Sample::fresh(MEMORY)),
            network: Some(Sample::fresh(self.network)),
            pressure: None,
            capacity: f64::from(cores),
            bandwidth: 0.0,
        }
    }
}

/// What one agent knows of the others of its zone.
pub(crate) struct Knowledge {
    /// By position in the zone.
    pub(crate) reports: Vec<Option<PeerReport>>,
    /// The ticks at which it was so.
    made: Vec<u64>,
    /// When each node last told that it spills here.
    spilled: Vec<Option<u64>>,
    nearest: Vec<usize>,
    others: Vec<usize>,
    turn: usize,
    phase: u64,
}

impl Knowledge {
    /// Of a node that knows nobody yet.
    pub(crate) fn new(world: &World, node: usize, feed: &Feed, phase: u64, rng: &mut Pcg64) -> Self {
        let zone = world.zone_of(node);
        let rtts = world.rtts(node);
        let mut nearest: Vec<usize> = (0..zone.len()).filter(|other| zone.start + other != node).collect();
        nearest.sort_by(|a, b| rtts[*a].total_cmp(&rtts[*b]));
        let mut others = nearest.split_off(feed.nearest.min(nearest.len()));
        others.shuffle(rng);
        let (reports, made, spilled) = (vec![None; zone.len()], vec![0; zone.len()], vec![None; zone.len()]);
        Self { reports, made, spilled, nearest, others, turn: 0, phase }
    }

    /// Whom it asks at a tick, by position in the zone.
    pub(crate) fn asks(&mut self, tick: u64, feed: &Feed) -> Vec<usize> {
        if !(tick + self.phase).is_multiple_of(ticks(feed.interval).max(1)) {
            return Vec::new();
        }
        let mut asked = self.nearest.clone();
        let sample = feed.sample.min(self.others.len());
        asked.extend((0..sample).map(|more| self.others[(self.turn + more) % self.others.len()]));
        self.turn += sample;
        asked
    }

    /// Takes what a node told, if it is there to do so.
    pub(crate) fn learn(&mut self, position: usize, name: &Arc<str>, told: &Told, cores: u32, rtt: f32) {
        if !told.alive {
            return;
        }
        let services = told.spare.then_some((SERVICE, told.service)).into_iter().collect();
        let (node, rtt) = (Arc::clone(name), Some(Duration::from_secs_f32(rtt)));
        let report = PeerReport { node, load: told.load(cores), services, rtt, age: Duration::ZERO };
        self.reports[position] = Some(report);
        self.made[position] = told.at;
    }

    /// Sets the ages of all reports to those of a tick, and forgets what no policy would use.
    pub(crate) fn grow_older(&mut self, tick: u64, longest: u64) {
        for (report, made) in self.reports.iter_mut().zip(&self.made) {
            let age = tick.saturating_sub(*made);
            if age > longest {
                *report = None;
            } else if let Some(report) = report {
                report.age = TICK * u32::try_from(age).unwrap_or(u32::MAX);
            }
        }
    }

    /// A node says whether it spills here.
    pub(crate) fn hears(&mut self, position: usize, spills: bool, tick: u64) {
        self.spilled[position] = spills.then_some(tick);
    }

    /// How many nodes said so of late.
    pub(crate) fn spillers(&self, tick: u64) -> u32 {
        let fresh = |at: &&Option<u64>| at.is_some_and(|at| at + SPILL_LIFE >= tick);
        u32::try_from(self.spilled.iter().filter(fresh).count()).unwrap_or(u32::MAX)
    }
}

/// The step of a tick at which a node's agent decides.
pub(crate) const fn is_turn(step: u64, phase: u64) -> bool {
    step % STEPS_PER_TICK == phase % STEPS_PER_TICK
}
