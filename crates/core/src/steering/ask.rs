//! One service port's turn: its inputs are put together, its controllers asked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::facts::{BackendCounts, Facts, FlowRates, Outcomes, PodUse};
use super::target::{Member, Set};
use super::{Steered, Write};
use crate::controller::{Controller, Tick, WORTH_WRITING};
use crate::ejection::Outcome;
use crate::load::{NodeLoad, Sample};
use crate::policies::{Endpoint, EndpointLoad, Inputs, Node, Offered, Own, Parameters, PodsLoad};

/// Time constant of what other nodes are told that goes to them: a packet tells of one moment, and theirs are half a second
/// apart. It is well below that of what they calculate with it (5 s, [`waterfill`]).
///
/// [`waterfill`]: crate::policies::waterfill
const SENT_SMOOTHING: Duration = Duration::from_secs(1);

/// What is the same for all sets of a port in a tick.
struct Moment<'a, F> {
    here: &'a Arc<str>,
    facts: &'a F,
    offered: Offered,
    relies_on: Option<NodeLoad>,
    parameters: Parameters,
    /// By member.
    counts: Vec<BackendCounts>,
}

impl Steered {
    /// Asks the controllers, and says what to write.
    pub(super) fn ask(&mut self, here: &Arc<str>, relies_on: Option<NodeLoad>, facts: &impl Facts) -> Option<Write> {
        let counts = facts.service(self.target.slot);
        self.rates = counts.rates(self.counted, self.recent);
        let begun = counts.begun_rate(self.counted, self.recent);
        self.counted = counts;
        let local = self.target.members.iter().filter(|member| member.local);
        self.inbound = self.inbound_of(facts).flows_per_second;
        self.open_local = local.map(|member| facts.open_flows(member.slot, member.generation).going).sum();
        let moment = Moment {
            here,
            facts,
            offered: offered(begun, self.rates, self.inbound, self.open_local),
            relies_on,
            parameters: self.target.settings.parameters,
            counts: self.target.members.iter().map(|member| facts.backend(member.slot)).collect(),
        };
        let mut shares = Default::default();
        let mut moved = false;
        let begun = self.unused.is_some();
        for index in 0..self.target.sets.len() {
            let kind = self.target.settings.policy;
            if begun {
                self.controllers[index].get_or_insert_with(|| Controller::new(kind));
            }
            let Some(tick) = self.ask_set(index, &moment) else { continue };
            if let Some(plan) = &tick.write {
                let set = &self.target.sets[index];
                let write = |class: usize| set.has(class).then(|| plan.clone());
                shares = merged(shares, write);
                moved = true;
            }
            self.last[index] = Some(tick);
        }
        self.count_sent(&moment.counts);
        self.seen = moment.counts.iter().map(|counts| counts.outcomes()).collect();
        (self.waited, self.recent, self.due) = (Duration::ZERO, Duration::ZERO, false);
        let target = &self.target;
        moved.then(|| Write { key: target.key.clone(), slot: target.slot, revision: target.revision, shares })
    }

    /// What goes to each remote backend, as it is told to their nodes.
    fn count_sent(&mut self, counts: &[BackendCounts]) {
        if !self.is_in_use() {
            self.sent = Vec::new();
            return;
        }
        self.sent.resize(self.target.members.len(), 0.0);
        let part = 1.0 - (-self.waited.div_duration_f64(SENT_SMOOTHING)).exp();
        let new = counts.iter().zip(&self.seen).map(|(now, seen)| now.outcomes().since(*seen).gone_on);
        for ((sent, new), member) in self.sent.iter_mut().zip(new).zip(&self.target.members) {
            if !member.local && !self.waited.is_zero() {
                let rate = f64::from(new) / self.waited.as_secs_f64();
                *sent += (rate - *sent) * part;
            }
        }
    }

    /// Notes who is ejected, and says how many were not before. A new plan ends no ejection, and of several sets all eject
    /// the same endpoint for the same failures.
    pub(super) fn newly_out(&mut self) -> u64 {
        let decided = self.target.sets.iter().zip(&self.last).filter_map(|(set, tick)| Some((set, tick.as_ref()?)));
        let members = decided.flat_map(|(set, tick)| set.of(&self.target.members).zip(&tick.ejected));
        let now: BTreeSet<_> = members.filter(|(_, ejected)| **ejected).map(|(member, _)| member.address).collect();
        let begun = now.difference(&self.out).count() as u64;
        self.out = now;
        begun
    }

    fn ask_set<F: Facts>(&mut self, index: usize, moment: &Moment<'_, F>) -> Option<Tick> {
        let set = &self.target.sets[index];
        let controller = self.controllers[index].as_mut()?;
        let members: Vec<(usize, &Member)> =
            set.members.iter().map(|index| (*index as usize, &self.target.members[*index as usize])).collect();
        let (nodes, places) = nodes(&members, moment);
        let mut endpoints = Vec::with_capacity(members.len());
        let mut outcomes = Vec::with_capacity(members.len());
        for ((index, member), place) in members.iter().zip(places) {
            let counts = moment.counts[*index];
            endpoints.push(endpoint(member, place, counts, moment));
            outcomes.push(outcome(member, counts.outcomes().since(self.seen[*index]), moment));
        }
        let own = Own { load: moment.facts.own(), pods: pods(set, &self.target.members, moment) };
        let inputs = Inputs {
            service: self.target.id,
            elapsed: self.recent,
            nodes: &nodes,
            endpoints: &endpoints,
            own: &own,
            offered: moment.offered,
            relies_on: moment.relies_on,
            parameters: &moment.parameters,
        };
        let mut tick = controller.tick(&inputs, &outcomes);
        if let Some((spill, left)) = &mut self.held[index] {
            *left = left.saturating_sub(self.waited);
            if left.is_zero() || tick.decision.spill(&inputs) + WORTH_WRITING >= *spill {
                self.held[index] = None;
            } else {
                tick.write = None;
                controller.forget_written();
            }
        }
        Some(tick)
    }
}

/// Takes over what is there for a class.
fn merged<T, const N: usize>(before: [Option<T>; N], write: impl Fn(usize) -> Option<T>) -> [Option<T>; N] {
    let mut classes = 0..N;
    before.map(|before| classes.next().and_then(&write).or(before))
}

/// What other nodes send straight to the endpoints here is in their counters alone, so that they tell it. Of those flows
/// nobody here knows how long they stay open.
const fn offered(begun: f64, rates: FlowRates, inbound: f64, open_flows: u32) -> Offered {
    let FlowRates { local, remote } = rates;
    Offered {
        flows_per_second: local + remote,
        begun_per_second: begun,
        local_flows_per_second: local + inbound,
        open_flows,
    }
}

/// The nodes of the members, each once, in the members' order; and of each member the place of its node among them.
fn nodes<'a, F: Facts>(members: &[(usize, &Member)], moment: &Moment<'a, F>) -> (Vec<Node<'a>>, Vec<usize>) {
    let mut nodes = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut place = |member: &Member| {
        let local = *member.node == **moment.here;
        let report = if local { None } else { moment.facts.report(&member.node) };
        let interval = report.map(|_| moment.facts.report_interval(&member.node));
        nodes.push(Node { name: Arc::clone(&member.node), local, report, interval });
        nodes.len() - 1
    };
    let places =
        members.iter().map(|(_, member)| *known.entry(&*member.node).or_insert_with(|| place(member))).collect();
    (nodes, places)
}

fn endpoint<F: Facts>(member: &Member, node: usize, counts: BackendCounts, moment: &Moment<'_, F>) -> Endpoint {
    let load = match member.pod.filter(|_| member.local).and_then(|pod| moment.facts.pod(pod)) {
        Some(PodUse { load, .. }) => load,
        None => EndpointLoad::default(),
    };
    Endpoint {
        backend: member.slot as usize,
        address: member.address,
        node,
        load,
        open_flows: moment.facts.open_flows(member.slot, member.generation).all,
        flows: counts.flows,
    }
}

fn outcome<F: Facts>(member: &Member, new: Outcomes, moment: &Moment<'_, F>) -> Outcome {
    Outcome {
        answered: new.answered,
        refused: new.refused,
        failed_over: new.failed_over,
        silent: !member.local && moment.facts.is_silent(&member.node),
    }
}

/// What the set's pods on this node use together; None as soon as it is unknown of one.
fn pods<F: Facts>(set: &Set, members: &[Member], moment: &Moment<'_, F>) -> Option<Sample<PodsLoad>> {
    let mut all: Option<Sample<PodsLoad>> = None;
    for member in set.of(members).filter(|member| member.local) {
        let PodUse { cores, cores_limit, .. } = moment.facts.pod(member.pod?)?;
        let cores = cores?;
        let before = all.unwrap_or(Sample::fresh(PodsLoad { cores: 0.0, limit: Some(0.0) }));
        let limit = before.value.limit.zip(cores_limit).map(|(sum, limit)| sum + limit);
        let value = PodsLoad { cores: before.value.cores + cores.value, limit };
        all = Some(Sample { value, age: before.age.max(cores.age) });
    }
    all
}
