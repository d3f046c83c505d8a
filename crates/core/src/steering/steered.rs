//! One service port: what is remembered of it, and when it is asked about.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::facts::{Facts, FlowRates, Outcomes, ServiceCounts};
use super::target::{Member, Set, Target};
use crate::controller::{Controller, Tick};
use crate::load::Inbound;
use crate::policies::waterfill::constants::SIGNIFICANT;
use crate::policies::{Kind, Reason};

/// Ticks at which a service without flows is asked about: every eighth, 2 s. Each other service costs microseconds, and
/// a cluster has thousands that nobody uses right now.
const IDLE_TICKS: u64 = 8;
/// Ticks at which a service is asked about that is used while nothing can come of it: every fourth, a second.
const CALM_TICKS: u64 = 4;
/// How far below its target a node is calm: no service can fill that between two ticks without a jump of its flows.
const CALM_MARGIN: f64 = 0.15;
/// How long a service counts as used after its last flow: as long as anything is smoothed over ([`waterfill`]).
///
/// [`waterfill`]: crate::policies::waterfill
const IN_USE: Duration = Duration::from_secs(30);

/// How long what an agent before wrote stays, while the new one finds out what it would: a whole share takes 5 s to move,
/// and peers are known within a second. Else each restart would drop the load on the node for that time.
const RESUME: Duration = Duration::from_secs(6);

/// A service port that is steered.
pub(super) struct Steered {
    pub(super) target: Target,
    /// By set; None while nothing has to be decided yet.
    pub(super) controllers: Vec<Option<Controller>>,
    /// By set, what leaves the node by what was found in the maps, and for how long that stays.
    pub(super) held: Vec<Option<(f64, Duration)>>,
    /// What each one decided last.
    pub(super) last: Vec<Option<Tick>>,
    /// Endpoints that are ejected.
    pub(super) out: BTreeSet<SocketAddr>,
    /// Of each backend when it was last looked at.
    pub(super) seen: Box<[Outcomes]>,
    /// The maps may hold something else than what was decided: to be asked at the next tick.
    pub(super) due: bool,
    /// Counts of the service at the last look, and when the controllers were last asked.
    pub(super) looked: ServiceCounts,
    pub(super) counted: ServiceCounts,
    /// Something that must not wait: failures, or more new flows than chance explains.
    pub(super) urgent: bool,
    /// Since the controllers were last asked.
    pub(super) waited: Duration,
    /// Since `counted`: the same, but after a jump the time that it took. What was calm before is known, and would only
    /// make the jump look smaller.
    pub(super) recent: Duration,
    /// Since the last flow; None: there never was one.
    pub(super) unused: Option<Duration>,
    pub(super) rates: FlowRates,
    /// New flows per second from other nodes.
    pub(super) inbound: f64,
    /// Whether those count for it. Peers tell them by service: the first family with endpoints here takes all, and the
    /// other one sees background, as it does of the first one's own flows.
    pub(super) takes_inbound: bool,
    /// Whether this node has endpoints of it.
    pub(super) has_local: bool,
    /// By member, new flows per second to other nodes, smoothed. Empty while nobody uses it.
    pub(super) sent: Vec<f64>,
    pub(super) open_local: u32,
}

impl Steered {
    /// A target; who was known before keeps its memory where its sets are still for the same classes.
    pub(super) fn new(target: Target, before: Option<Self>, facts: &impl Facts) -> Self {
        let kind = target.settings.policy;
        let mut old = before.filter(|before| before.target.slot == target.slot);
        let (seen, sent) = carried(old.as_ref(), &target, facts);
        let known = |old: &mut Option<Self>, classes: u8| {
            let old = old.as_mut()?;
            let at = old.target.sets.iter().position(|set| set.classes == classes)?;
            Some((old.controllers[at].take()?, old.held[at].take()))
        };
        let mut controllers = Vec::with_capacity(target.sets.len());
        let mut held = Vec::with_capacity(target.sets.len());
        for set in &target.sets {
            let spill = f64::from(target.held[set.first_class()]) / 65_536.0;
            let found = (spill > 0.0).then_some((spill, RESUME));
            let (mut controller, left) =
                known(&mut old, set.classes).map_or((None, found), |(c, left)| (Some(c), left));
            held.push(left);
            if let Some(controller) = &mut controller {
                controller.change(kind);
                controller.forget_written();
            }
            // Who stays local until there is load has nothing to decide before: the plan is what it would say, unless the
            // maps say something else.
            let decides = kind != Kind::Waterfill || held.last().is_some_and(Option::is_some);
            controllers.push(controller.or_else(|| decides.then(|| Controller::new(kind))));
        }
        let now = facts.service(target.slot);
        let since = |time: fn(&Self) -> Duration| old.as_ref().map_or(Duration::ZERO, time);
        Self {
            last: target.sets.iter().map(|_| None).collect(),
            out: old.as_ref().map_or_else(BTreeSet::new, |old| old.out.clone()),
            controllers,
            held,
            seen,
            due: true,
            looked: old.as_ref().map_or(now, |old| old.looked),
            counted: old.as_ref().map_or(now, |old| old.counted),
            urgent: old.as_ref().is_some_and(|old| old.urgent),
            waited: since(|old| old.waited),
            recent: since(|old| old.recent),
            unused: old.as_ref().and_then(|old| old.unused),
            rates: old.as_ref().map_or_else(FlowRates::default, |old| old.rates),
            inbound: old.as_ref().map_or(0.0, |old| old.inbound),
            takes_inbound: false,
            has_local: target.members.iter().any(|member| member.local),
            sent,
            open_local: old.as_ref().map_or(0, |old| old.open_local),
            target,
        }
    }

    pub(super) fn forget_written(&mut self) {
        self.controllers.iter_mut().flatten().for_each(Controller::forget_written);
        self.due = true;
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.unused.is_some_and(|unused| unused < IN_USE)
    }

    pub(super) fn inbound_of(&self, facts: &impl Facts) -> Inbound {
        if self.takes_inbound { facts.inbound(self.target.id) } else { Inbound::default() }
    }

    /// Notes time and use.
    pub(super) fn look(&mut self, elapsed: Duration, facts: &impl Facts) {
        self.waited += elapsed;
        self.recent += elapsed;
        let counts = facts.service(self.target.slot);
        let used = counts != self.looked || self.inbound_of(facts).flows_per_second > 0.0;
        self.unused = if used { Some(Duration::ZERO) } else { self.unused.map(|unused| unused + elapsed) };
        if !self.is_in_use() {
            self.urgent = false;
            return;
        }
        let new = counts.rates(self.looked, elapsed).offered() * elapsed.as_secs_f64();
        let before = std::mem::replace(&mut self.looked, counts);
        let expected = self.rates.offered() * elapsed.as_secs_f64();
        let jumped = new > expected + SIGNIFICANT * expected.max(1.0).sqrt();
        if jumped {
            (self.counted, self.recent) = (before, elapsed);
        }
        let mut members = self.target.members.iter().zip(&self.seen);
        let fails = |slot: u32, seen: Outcomes| facts.backend(slot).outcomes().failures() != seen.failures();
        self.urgent = jumped || members.any(|(member, seen)| fails(member.slot, *seen));
    }

    /// Whether it is to be asked now. Each service has its own turn.
    pub(super) fn is_its_turn(&self, ticks: u64, cpu: Option<f64>) -> bool {
        let turn = |pause| ticks.wrapping_add(self.target.slot.into()).is_multiple_of(pause);
        self.due
            || self.urgent
            || if self.is_in_use() { turn(CALM_TICKS) || !self.is_calm(cpu) } else { turn(IDLE_TICKS) }
    }

    /// Whether nothing can come of it soon: the node is far below its target, nothing of it leaves that need not, and
    /// nobody is out.
    fn is_calm(&self, cpu: Option<f64>) -> bool {
        let target = self.target.level();
        let mut decided = self.target.sets.iter().zip(&self.last);
        cpu.is_some_and(|cpu| cpu < target - CALM_MARGIN)
            && decided.all(|(set, tick)| tick.as_ref().is_some_and(|tick| is_settled(&self.target, set, tick)))
    }

    /// The least that any set's policy says, if one says anything.
    pub(super) fn spare(&self, spillers: impl FnOnce() -> u32) -> Option<f64> {
        let mut controllers = self.controllers.iter().flatten().peekable();
        let spillers = controllers.peek().map(|_| spillers())?;
        controllers.filter_map(|controller| controller.spare(spillers)).reduce(f64::min)
    }
}

/// What was counted of the members that stay, as if no new plan had come; of the others from now on.
fn carried(old: Option<&Steered>, target: &Target, facts: &impl Facts) -> (Box<[Outcomes]>, Vec<f64>) {
    let identity = |member: &Member| (member.slot, member.generation);
    let known: BTreeMap<_, _> = old.map_or_else(BTreeMap::new, |old| {
        let members = old.target.members.iter().map(identity).zip(&old.seen).enumerate();
        members.map(|(at, (id, seen))| (id, (*seen, old.sent.get(at).copied().unwrap_or_default()))).collect()
    });
    let count = |member: &Member| match known.get(&identity(member)) {
        Some(counted) => *counted,
        None => (facts.backend(member.slot).outcomes(), 0.0),
    };
    let (seen, sent): (Vec<_>, Vec<_>) = target.members.iter().map(count).unzip();
    (seen.into(), sent)
}

/// Whether a set has nobody out, and endpoints here that get everything and are to keep it, or none here.
fn is_settled(target: &Target, set: &Set, tick: &Tick) -> bool {
    let members = || set.of(&target.members).zip(&tick.decision.shares);
    let has_local = members().any(|(member, _)| member.local);
    let leaves = members().any(|(member, share)| !member.local && *share > 0.0);
    let spills = has_local && leaves && target.settings.policy == Kind::Waterfill;
    // What was just offered is too much, whatever the CPU shows yet: the next tick decides.
    let pressed = |reason: &Reason| matches!(reason, Reason::Local { demand, target } if demand >= target);
    !spills && !tick.ejected.contains(&true) && !tick.decision.reasons.iter().any(pressed)
}
