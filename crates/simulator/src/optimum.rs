//! The least mean latency that anybody could reach who knows all loads, delays and queues, as a linear program.
//!
//! Requests in a node are a convex function of what comes to it ([`crate::server::in_system`]), so its chords are the
//! costs of ever dearer segments. By Little's law the sum over all nodes is the time that all requests take.
//! It is exact up to the chords, and what it finds is judged by the curve itself.

use std::collections::BTreeSet;
use std::ops::Range;

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};

use crate::crowd::Crowd;
use crate::scenario::{PATIENCE, Scenario};
use crate::server::in_system;

/// Utilisations between which costs are linear: finer where the curve bends.
const KNOTS: [f64; 20] = [
    0.0, 0.2, 0.35, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.74, 0.78, 0.82, 0.85, 0.88, 0.91, 0.94, 0.96, 0.98, 0.99, 0.995,
];
/// Nodes that each is linked to at first. More are added as long as one would help.
const NEAREST: usize = 12;
/// Seconds that a link must gain to be worth adding.
const GAIN: f64 = 1e-6;

/// The solver gave up.
#[derive(Debug, thiserror::Error)]
#[error("scenario {scenario}: no optimum at {at:.1} s: {cause}: its loads must be finite")]
pub struct OptimumError {
    scenario: &'static str,
    at: f64,
    cause: String,
}

/// The best that could be done at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Optimum {
    /// Mean latency of all requests in milliseconds; one that must be rejected counts as long as its client waits.
    pub latency_ms: f64,
    /// Share of their requests that hot nodes keep.
    pub local_share: f64,
}

/// The best for the mean loads of a moment, if they lasted.
///
/// # Errors
/// [`OptimumError`] if the solver gives up.
pub fn solve(scenario: &Scenario, at: f64) -> Result<Optimum, OptimumError> {
    if let Some(crowd) = scenario.crowd() {
        return Ok(of_crowd(scenario, &crowd));
    }
    let (mut time, mut requests, mut hot, mut kept) = (0.0, 0.0, 0.0, 0.0);
    let mut start = 0;
    while start < scenario.world.len() {
        let zone = scenario.world.zone_of(start);
        let sites: Vec<Site> = zone.clone().map(|node| Site::new(scenario, node, at)).collect();
        let solved = Zone { scenario, start, sites }.solve().map_err(|cause| OptimumError {
            scenario: scenario.name,
            at,
            cause,
        })?;
        time += solved.time;
        requests += solved.requests;
        hot += solved.hot;
        kept += solved.kept;
        start = zone.end;
    }
    Ok(Optimum { latency_ms: time / requests * 1000.0, local_share: kept / hot })
}

/// With all nodes busy until the last of the crowd is served, whatever the distances.
fn of_crowd(scenario: &Scenario, crowd: &Crowd) -> Optimum {
    let rate = |node: usize| scenario.world.machines[node].rate(scenario.work);
    let all: f64 = (0..scenario.world.len()).map(rate).sum();
    let hot: f64 = scenario.hot.iter().map(|node| rate(*node)).sum();
    Optimum { latency_ms: crowd.least_time(all) * 1000.0, local_share: hot / all }
}

/// Seconds between the moments of a [`Course`].
const EVERY: usize = 5;

/// The best over the time of a scenario, the same for every policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Course(Vec<(usize, Optimum)>);

impl Course {
    /// Solves a moment in the middle of each five seconds, and only those at which loads are others than before.
    ///
    /// # Errors
    /// [`OptimumError`] if the solver gives up.
    pub fn of(scenario: &Scenario) -> Result<Self, OptimumError> {
        let end = usize::try_from(scenario.length.as_secs()).unwrap_or(usize::MAX);
        let mut course: Vec<(usize, Optimum)> = Vec::new();
        let mut before = Vec::new();
        for second in (EVERY / 2..end).step_by(EVERY) {
            let at = second as f64 + 0.5;
            let nodes = 0..scenario.world.len();
            let loads: Vec<(bool, f64)> =
                nodes.map(|node| (scenario.alive(node, at), scenario.offered(node, at))).collect();
            let best = match course.last() {
                Some((_, best)) if loads == before => *best,
                _ => solve(scenario, at)?,
            };
            before = loads;
            course.push((second, best));
        }
        Ok(Self(course))
    }

    /// Seconds, and the best in them.
    pub fn moments(&self) -> impl Iterator<Item = (usize, Optimum)> + '_ {
        self.0.iter().copied()
    }
}

/// A node at that moment.
struct Site {
    cores: f64,
    rate: f64,
    offered: f64,
    hot: bool,
}

impl Site {
    fn new(scenario: &Scenario, node: usize, at: f64) -> Self {
        let machine = scenario.world.machines[node];
        let alive = scenario.alive(node, at);
        let rate = if alive { machine.rate(scenario.work) } else { 0.0 };
        let offered = if alive { scenario.offered(node, at) } else { 0.0 };
        let cores = f64::from(machine.cores) * (1.0 - machine.background);
        Self { cores, rate, offered, hot: scenario.is_hot(node) }
    }

    /// Segments: how many requests per second each takes, and what one of them costs.
    fn segments(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let chord = |knots: &[f64]| {
            let (low, high) = (knots[0], knots[1]);
            let slope = (in_system(self.cores, high) - in_system(self.cores, low)) / ((high - low) * self.rate);
            ((high - low) * self.rate, slope)
        };
        let exists = self.rate > 0.0;
        KNOTS.windows(2).filter(move |_| exists).map(chord)
    }

    /// What one request more costs where so many come; as much as a rejected one if there is no room.
    fn price(&self, load: f64) -> f64 {
        let mut reached = 0.0;
        let open = self.segments().find(|(room, _)| {
            reached += room;
            load < reached - 1e-9
        });
        open.map_or(PATIENCE, |(_, slope)| slope.min(PATIENCE))
    }
}

/// What a zone comes to.
#[derive(Default)]
struct Solved {
    time: f64,
    requests: f64,
    hot: f64,
    kept: f64,
}

struct Zone<'a> {
    scenario: &'a Scenario,
    start: usize,
    sites: Vec<Site>,
}

/// Requests per second on links, by sender and receiver; those to oneself among them.
struct Flow {
    links: Vec<(usize, usize, f64)>,
    rejected: Vec<f64>,
}

impl Zone<'_> {
    fn rtt(&self, from: usize, to: usize) -> f64 {
        f64::from(self.scenario.world.rtts(self.start + from)[to])
    }

    fn all(&self) -> Range<usize> {
        0..self.sites.len()
    }

    fn solve(&self) -> Result<Solved, String> {
        let senders = self.senders();
        let mut links = BTreeSet::new();
        for from in &senders {
            let mut near: Vec<usize> = self.all().filter(|to| to != from && self.sites[*to].rate > 0.0).collect();
            near.sort_by(|a, b| self.rtt(*from, *a).total_cmp(&self.rtt(*from, *b)));
            links.extend(near.into_iter().take(NEAREST).map(|to| (*from, to)));
            links.insert((*from, *from));
        }
        loop {
            let flow = self.program(&senders, &links)?;
            let more = self.worth_adding(&senders, &links, &flow);
            if more.is_empty() {
                return Ok(self.judge(&flow));
            }
            links.extend(more);
        }
    }

    /// The nodes that gain by sending something away. With round-trip times that are shorter than any way round nobody
    /// both sends and receives, so that all others keep just their own.
    fn senders(&self) -> Vec<usize> {
        let price = |node: usize| self.sites[node].price(self.sites[node].offered);
        let prices: Vec<f64> = self.all().map(price).collect();
        let gains = |from: &usize| {
            let others = self.all().filter(|to| to != from && self.sites[*to].rate > 0.0);
            let best = others.map(|to| self.rtt(*from, to) + prices[to]).fold(PATIENCE, f64::min);
            self.sites[*from].offered > 0.0 && (best < prices[*from] || prices[*from] >= PATIENCE)
        };
        self.all().filter(gains).collect()
    }

    fn program(&self, senders: &[usize], links: &BTreeSet<(usize, usize)>) -> Result<Flow, String> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let mut out: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); self.sites.len()];
        let mut into = out.clone();
        let mut reached = BTreeSet::new();
        let mut variables: Vec<(usize, usize, Variable)> = Vec::new();
        for (from, to) in links {
            let variable = problem.add_var(self.rtt(*from, *to), (0.0, f64::INFINITY));
            out[*from].push((variable, 1.0));
            into[*to].push((variable, 1.0));
            reached.insert(*to);
            variables.push((*from, *to, variable));
        }
        let rejected: Vec<Variable> = senders.iter().map(|_| problem.add_var(PATIENCE, (0.0, f64::INFINITY))).collect();
        for (from, rejected) in senders.iter().zip(&rejected) {
            let mut sum = std::mem::take(&mut out[*from]);
            sum.push((*rejected, 1.0));
            problem.add_constraint(&sum, ComparisonOp::Eq, self.sites[*from].offered);
        }
        for to in reached {
            let mut sum = std::mem::take(&mut into[to]);
            for (room, slope) in self.sites[to].segments() {
                sum.push((problem.add_var(slope, (0.0, room)), -1.0));
            }
            let own = if senders.binary_search(&to).is_ok() { 0.0 } else { self.sites[to].offered };
            problem.add_constraint(&sum, ComparisonOp::Eq, -own);
        }
        let solved = problem.solve().map_err(|cause| cause.to_string())?;
        let solution = solved.into_solution().map_err(|stopped| format!("{:?}", stopped.termination_reason()))?;
        let mut lost = vec![0.0; self.sites.len()];
        for (from, variable) in senders.iter().zip(&rejected) {
            lost[*from] = solution.var_value(*variable);
        }
        let links = variables.into_iter().map(|(from, to, variable)| (from, to, solution.var_value(variable)));
        Ok(Flow { links: links.filter(|(_, _, flow)| *flow > 1e-9).collect(), rejected: lost })
    }

    fn loads(&self, flow: &Flow) -> Vec<f64> {
        let sends: BTreeSet<usize> = flow.links.iter().map(|(from, _, _)| *from).collect();
        let stays =
            |node: usize| if sends.contains(&node) { 0.0 } else { self.sites[node].offered - flow.rejected[node] };
        let mut loads: Vec<f64> = self.all().map(stays).collect();
        for (_, to, flow) in &flow.links {
            loads[*to] += flow;
        }
        loads
    }

    /// Links over which a request would be cheaper than it is now.
    fn worth_adding(
        &self,
        senders: &[usize],
        links: &BTreeSet<(usize, usize)>,
        flow: &Flow,
    ) -> BTreeSet<(usize, usize)> {
        let loads = self.loads(flow);
        let prices: Vec<f64> = self.all().map(|node| self.sites[node].price(loads[node])).collect();
        let mut more = BTreeSet::new();
        for from in senders {
            let used = flow.links.iter().filter(|(sender, _, _)| sender == from);
            let used = used.map(|(_, to, _)| self.rtt(*from, *to) + prices[*to]);
            let dearest = used.fold(if flow.rejected[*from] > 1e-9 { PATIENCE } else { 0.0 }, f64::max);
            let new = self.all().filter(|to| self.sites[*to].rate > 0.0 && !links.contains(&(*from, *to)));
            more.extend(new.filter(|to| self.rtt(*from, *to) + prices[*to] < dearest - GAIN).map(|to| (*from, to)));
        }
        more
    }

    fn judge(&self, flow: &Flow) -> Solved {
        let loads = self.loads(flow);
        let mut solved = Solved::default();
        for (site, load) in self.sites.iter().zip(&loads) {
            let utilisation = if site.rate > 0.0 { load / site.rate } else { 0.0 };
            solved.time += in_system(site.cores, utilisation.min(KNOTS[KNOTS.len() - 1]));
            solved.requests += site.offered;
        }
        solved.time += flow.links.iter().map(|(from, to, flow)| flow * self.rtt(*from, *to)).sum::<f64>();
        solved.time += flow.rejected.iter().sum::<f64>() * PATIENCE;
        for (node, site) in self.sites.iter().enumerate().filter(|(_, site)| site.hot) {
            let away = flow.links.iter().filter(|(from, to, _)| *from == node && *to != node);
            solved.hot += site.offered;
            solved.kept += site.offered - flow.rejected[node] - away.map(|(_, _, flow)| flow).sum::<f64>();
        }
        solved
    }
}
