//! The loop: clients open flows, servers serve them, agents look and decide.

use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use weir_core::ejection::Outcome as FlowOutcome;
use weir_core::policies::Kind;

use crate::brain::{Brain, Tick};
use crate::crowd::Queue;
use crate::feed::{Knowledge, is_turn, ticks};
use crate::flows::{Flows, New};
use crate::optimum::{Course, OptimumError};
use crate::record::{Outcome, Record, Sums};
use crate::scenario::{BadScenario, PATIENCE, STEP, STEPS_PER_TICK, Scenario, TICK, chance};
use crate::server::{Served, Server};

/// Utilisation from which some work always waits.
const BUSY: f64 = 0.95;

/// Why a scenario has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It contradicts itself.
    #[error(transparent)]
    Scenario(#[from] BadScenario),
    /// The optimum was not found.
    #[error(transparent)]
    Optimum(#[from] OptimumError),
}

/// Runs a scenario with one policy on every node.
///
/// # Errors
/// [`RunError`] if the scenario contradicts itself or the solver gives up.
pub fn run(scenario: &Scenario, kind: Kind, seed: u64) -> Result<Outcome, RunError> {
    scenario.check()?;
    Ok(run_against(&Course::of(scenario)?, scenario, kind, seed)?)
}

/// Runs it against an optimum that is known, that of the same scenario.
///
/// # Errors
/// [`BadScenario`] if the scenario contradicts itself.
pub fn run_against(best: &Course, scenario: &Scenario, kind: Kind, seed: u64) -> Result<Outcome, BadScenario> {
    scenario.check()?;
    let mut run = Run::new(scenario, kind, seed);
    let steps = u64::try_from(scenario.length.as_millis() / STEP.as_millis()).unwrap_or(u64::MAX);
    for step in 0..steps {
        run.step(step);
    }
    Ok(run.outcome(best, kind, seed))
}

/// A node's part of the model.
struct Site {
    server: Server,
    served: Served,
    brain: Brain,
    phase: u64,
    alive: bool,
    /// Requests that came since the last tick.
    came: f64,
    /// Its clients that wait for their answers.
    crowd: Option<Queue>,
}

struct Run<'a> {
    scenario: &'a Scenario,
    sites: Vec<Site>,
    flows: Flows,
    names: Vec<Arc<str>>,
    record: Record,
    rng: Pcg64,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, kind: Kind, seed: u64) -> Self {
        let mut rng = Pcg64::seed_from_u64(seed);
        let world = &scenario.world;
        let mut site = |node: usize| {
            let (zone, machine) = (world.zone_of(node), world.machines[node]);
            let phase = rng.random_range(0..STEPS_PER_TICK);
            let turn = rng.random_range(0..ticks(scenario.feed.interval).max(1));
            let knowledge = Knowledge::new(world, node, &scenario.feed, turn, &mut rng);
            let cores = f64::from(machine.cores) * (1.0 - machine.background);
            let rate = machine.rate(scenario.work);
            let server = Server { cores, rate, patience: PATIENCE, requests: 0.0 };
            let served = Served { utilisation: 0.0, time: cores / rate, rejected: 0.0 };
            let brain = Brain::new(kind, node - zone.start, zone.len(), machine.cores, &scenario.feed, knowledge);
            let crowd = scenario.crowd().filter(|_| scenario.is_hot(node)).map(Queue::new);
            Site { server, served, brain, phase, alive: true, came: 0.0, crowd }
        };
        let sites = (0..world.len()).map(&mut site).collect();
        let names = (0..world.len()).map(|node| format!("n{node}").into()).collect();
        let record = Record::new(world.len(), &scenario.hot);
        Self { scenario, sites, flows: Flows::new(world), names, record, rng }
    }

    /// The pairs of a node and those of its zone.
    fn row(&self, node: usize) -> Range<usize> {
        let (world, zone) = (&self.scenario.world, self.scenario.world.zone_of(node));
        let start = zone.start * world.zone + (node - zone.start) * zone.len();
        start..start + zone.len()
    }

    fn step(&mut self, step: u64) {
        let now = step as f64 * STEP.as_secs_f64();
        for node in 0..self.sites.len() {
            self.live_or_die(node, self.scenario.alive(node, now));
            self.open(node, now);
        }
        let mut sums = self.serve();
        self.answer();
        sums.time += self.on_the_way();
        let second = usize::try_from(step * u64::try_from(STEP.as_millis()).unwrap_or(0) / 1000).unwrap_or(usize::MAX);
        self.record.step(second, &sums);
        for node in 0..self.sites.len() {
            if is_turn(step, self.sites[node].phase) {
                self.tick(node, step / STEPS_PER_TICK);
            }
        }
        if (step + 1).is_multiple_of(STEPS_PER_TICK) {
            let (world, sites) = (&self.scenario.world, &self.sites);
            self.record.shares(|node| sites[node].brain.shares[node - world.zone_of(node).start]);
        }
    }

    fn live_or_die(&mut self, node: usize, alive: bool) {
        let site = &mut self.sites[node];
        if alive && !site.alive {
            site.brain.restart();
        } else if !alive {
            site.server.requests = 0.0;
        }
        site.alive = alive;
    }

    /// New flows of a node's clients. Queues have chance in their formula and get what comes on average; counters count
    /// what comes by chance.
    fn open(&mut self, node: usize, now: f64) {
        let seconds = STEP.as_secs_f64();
        let life = self.scenario.life.as_secs_f64();
        let part = if life > 0.0 { 1.0 - (-seconds / life).exp() } else { 1.0 };
        let (row, start) = (self.row(node), self.scenario.world.zone_of(node).start);
        let steady = if self.sites[node].alive { self.scenario.offered(node, now) } else { 0.0 };
        let rate = steady + self.sites[node].crowd.as_mut().map_or(0.0, |crowd| crowd.ask(seconds) / seconds);
        let brain = &mut self.sites[node].brain;
        let stays = brain.shares[node - start];
        let local = chance(rate * stays * seconds, &mut self.rng);
        brain.counted.local += local;
        brain.counted.offered += local + chance(rate * (1.0 - stays) * seconds, &mut self.rng);
        let new = New { node, zone: start, rate, seconds, part };
        self.flows.open(row, &new, &brain.shares);
    }

    /// Requests reach servers. What goes to a node that is not there is lost.
    fn serve(&mut self) -> Sums {
        let seconds = STEP.as_secs_f64();
        let mut came = vec![0.0; self.sites.len()];
        for node in 0..self.sites.len() {
            let (row, start) = (self.row(node), self.scenario.world.zone_of(node).start);
            for (came, requests) in came[start..].iter_mut().zip(&self.flows.requests[row]) {
                *came += requests * seconds;
            }
        }
        let mut sums = Sums { requests: came.iter().sum(), ..Sums::default() };
        for (site, came) in self.sites.iter_mut().zip(came) {
            site.came += came;
            if site.alive {
                site.served = site.server.step(came, seconds);
                sums.rejected += site.served.rejected;
                sums.time += came * site.served.time + site.served.rejected * (PATIENCE - site.served.time);
            } else {
                site.served.utilisation = 0.0;
                sums.rejected += came;
                sums.time += came * PATIENCE;
            }
            site.brain.counted.used += site.served.utilisation;
            site.brain.counted.steps += 1.0;
        }
        sums
    }

    /// When those of a crowd who asked in this step will be answered.
    fn answer(&mut self) {
        for node in 0..self.sites.len() {
            let Some(mut crowd) = self.sites[node].crowd.take() else { continue };
            let (row, zone) = (self.row(node), self.scenario.world.zone_of(node));
            let links = self.flows.requests[row].iter().zip(self.scenario.world.rtts(node));
            for ((rate, rtt), site) in links.zip(&self.sites[zone]) {
                crowd.waits(
                    rate * STEP.as_secs_f64(),
                    (site.served.time + f64::from(*rtt)).div_euclid(STEP.as_secs_f64()),
                );
            }
            self.sites[node].crowd = Some(crowd);
        }
    }

    /// Seconds that the requests of a step spend between nodes.
    fn on_the_way(&self) -> f64 {
        let seconds = |node: usize| {
            let requests = &self.flows.requests[self.row(node)];
            requests.iter().zip(self.scenario.world.rtts(node)).map(|(rate, rtt)| rate * f64::from(*rtt)).sum::<f64>()
        };
        (0..self.sites.len()).map(seconds).sum::<f64>() * STEP.as_secs_f64()
    }

    fn tick(&mut self, node: usize, at: u64) {
        let scenario = self.scenario;
        let zone = scenario.world.zone_of(node);
        self.probe(node, at);
        let outcomes = self.outcomes(node);
        let row = self.row(node);
        let life = scenario.life.as_secs_f64();
        let machine = scenario.world.machines[node];
        let came = std::mem::take(&mut self.sites[node].came);
        let foreign = std::mem::take(&mut self.flows.arrived[node]);
        let can = machine.rate(scenario.work) * TICK.as_secs_f64();
        self.record.load(node, came / can);
        for (position, pair) in row.enumerate() {
            let open = self.flows.requests[pair] * (life + self.sites[zone.start + position].served.time);
            let ever = self.flows.ever[pair];
            self.sites[node].brain.sees(position, open, ever);
        }
        let site = &mut self.sites[node];
        site.brain.counted.local += chance(foreign, &mut self.rng);
        // What is measured shakes as what comes does, unless work waits: then nothing is idle.
        if came > 0.0 && site.served.utilisation < BUSY {
            site.brain.counted.used *= chance(came, &mut self.rng) / came;
        }
        let names = &self.names[zone];
        let open = site.server.requests + came / TICK.as_secs_f64() * life;
        let alive = site.alive;
        let tick = Tick { names, at, feed: &scenario.feed, alive, share: 1.0 - machine.background, open };
        self.record.writes += u64::from(site.brain.tick(&tick, &outcomes));
    }

    /// Asks others how they are, and tells them whether this node spills to them.
    fn probe(&mut self, node: usize, at: u64) {
        let scenario = self.scenario;
        let start = scenario.world.zone_of(node).start;
        let late = ticks(scenario.feed.delay);
        if !self.sites[node].alive {
            return;
        }
        for position in self.sites[node].brain.knowledge.asks(at, &scenario.feed) {
            let other = start + position;
            let told = self.sites[other].brain.told(late);
            let (cores, rtt) = (scenario.world.machines[other].cores, scenario.world.rtts(node)[position]);
            let spills = self.sites[node].brain.shares[position] > 0.0;
            self.sites[node].brain.knowledge.learn(position, &self.names[other], &told, cores, rtt);
            self.sites[other].brain.knowledge.hears(node - start, spills, at);
        }
    }

    /// What became of a node's new flows since its last tick.
    fn outcomes(&mut self, node: usize) -> Vec<FlowOutcome> {
        let start = self.scenario.world.zone_of(node).start;
        let row = self.row(node);
        let outcome = |(position, fresh): (usize, &mut f64)| {
            let flows = fresh.floor();
            *fresh -= flows;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of a tick")]
            let flows = flows as u32;
            let (answered, failed_over) = if self.sites[start + position].alive { (flows, 0) } else { (0, flows) };
            FlowOutcome { answered, failed_over, ..FlowOutcome::default() }
        };
        self.flows.fresh[row].iter_mut().enumerate().map(outcome).collect()
    }

    fn outcome(self, best: &Course, kind: Kind, seed: u64) -> Outcome {
        let Self { scenario, record, sites, .. } = self;
        let (first, last) = (whole(scenario.settled.as_secs()), whole(scenario.length.as_secs()));
        let per_second = whole(1000 / ticks_ms());
        let mut moments = record.moments(per_second);
        let mut settled = Vec::new();
        for (second, best) in best.moments() {
            moments[second].distance = Some(moments[second].latency_ms / best.latency_ms - 1.0);
            if second >= first {
                settled.push(best.latency_ms);
            }
        }
        let all = record.since(first);
        let latency_ms = all.time / all.requests * 1000.0;
        let optimum_ms = settled.iter().sum::<f64>() / settled.len() as f64;
        let (local_share, deviation) = record.share(first * per_second..last * per_second);
        Outcome {
            scenario: scenario.name,
            policy: kind.name(),
            seed,
            latency_ms,
            optimum_ms,
            distance: latency_ms / optimum_ms - 1.0,
            rejected: all.rejected / all.requests,
            local_share,
            deviation,
            overload_seconds: f64::from(record.longest_overload()) * TICK.as_secs_f64(),
            writes: record.writes as f64 / sites.len() as f64 / scenario.length.as_secs_f64(),
            moments,
        }
    }
}

fn ticks_ms() -> u64 {
    u64::try_from(TICK.as_millis()).unwrap_or(u64::MAX)
}

fn whole(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
