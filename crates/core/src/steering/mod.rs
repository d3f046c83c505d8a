//! The running loop's pure part: which inputs go to which controller, what is written, and what peers are told.
//!
//! [`Steering`] has one [`Controller`] for each set of endpoints that a plan allows to some traffic classes of a service's
//! port in a family: most often one, since all classes may use the same. The plan's sets are all that a controller is ever
//! asked about, so traffic policies and topology hints always win. What is known of the world comes from [`Facts`].

mod ask;
mod facts;
mod news;
mod state;
mod target;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_abi as abi;

pub use facts::{BackendCounts, Facts, FlowRates, PodUse, ServiceCounts};
pub use news::{Ejected, News, Reporter, Spill};
pub use state::{EndpointState, PortState, SetState};
pub use target::{Member, Set, Target};
pub use told::Spilled;
use told::Told;

use crate::controller::{Controller, Tick};
use crate::load::{Inbound, NodeLoad, Sample, ServiceId, ServiceLoad, Share};
use crate::model::ObjectName;
use crate::plan::{PlanKey, TierPlan};
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

/// Time constant of what other nodes are told that goes to them: a packet tells of one moment, and theirs are half a second
/// apart. It is well below that of what they calculate with it (5 s, [`waterfill`]).
///
/// [`waterfill`]: crate::policies::waterfill
const SENT_SMOOTHING: Duration = Duration::from_secs(1);

/// How long what an agent before wrote stays, while the new one finds out what it would: a whole share takes 5 s to move,
/// and peers are known within a second. Else each restart would drop the load on the node for that time.
const RESUME: Duration = Duration::from_secs(6);

/// New shares for the maps.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// Whose.
    pub key: PlanKey,
    /// Slot in `services`.
    pub slot: u32,
    /// Of the [`Target`] that was asked about: another plan may have come since.
    pub revision: u64,
    /// By traffic class, with slots in `backends` as indexes; None stays as it is.
    pub shares: [Option<TierPlan>; abi::CLASS_COUNT],
}

/// All service ports that are steered.
pub struct Steering {
    here: Arc<str>,
    ports: BTreeMap<PlanKey, Steered>,
    ticks: u64,
    /// Since the start.
    ejections: u64,
    told: Told,
}

/// One of them.
struct Steered {
    target: Target,
    /// By set; None while nothing has to be decided yet.
    controllers: Vec<Option<Controller>>,
    /// By set, what leaves the node by what was found in the maps, and for how long that stays.
    held: Vec<Option<(f64, Duration)>>,
    /// What each one decided last.
    last: Vec<Option<Tick>>,
    /// Endpoints that are ejected.
    out: BTreeSet<SocketAddr>,
    /// Of each backend when it was last looked at.
    seen: Box<[BackendCounts]>,
    /// The maps may hold something else than what was decided: to be asked at the next tick.
    due: bool,
    /// Counts of the service at the last look, and when the controllers were last asked.
    looked: ServiceCounts,
    counted: ServiceCounts,
    /// Something that must not wait: failures, or more new flows than chance explains.
    urgent: bool,
    /// Since the controllers were last asked.
    waited: Duration,
    /// Since `counted`: the same, but after a jump the time that it took. What was calm before is known, and would only
    /// make the jump look smaller.
    recent: Duration,
    /// Since the last flow; None: there never was one.
    unused: Option<Duration>,
    rates: FlowRates,
    /// New flows per second from other nodes.
    inbound: f64,
    /// Whether those count for it. Peers tell them by service: the first family with endpoints here takes all, and the
    /// other one sees background, as it does of the first one's own flows.
    takes_inbound: bool,
    /// By member, new flows per second to other nodes, smoothed. Empty while nobody uses it.
    sent: Vec<f64>,
    open_local: u32,
}

impl Steering {
    /// Nothing is steered yet on this node.
    #[must_use]
    pub fn new(here: Arc<str>) -> Self {
        Self { here, ports: BTreeMap::new(), ticks: 0, ejections: 0, told: Told::default() }
    }

    /// Takes all ports of a service as they are in the maps from now on; none of them if it is not steered.
    pub fn put(&mut self, service: &ObjectName, targets: Vec<Target>, facts: &impl Facts) {
        let keys: BTreeSet<PlanKey> = targets.iter().map(|target| target.key.clone()).collect();
        for gone in self.keys_of(service).into_iter().filter(|key| !keys.contains(key)) {
            self.ports.remove(&gone);
        }
        let mut taken = BTreeSet::new();
        for target in targets {
            let before = self.ports.remove(&target.key);
            let key = target.key.clone();
            let mut steered = Steered::new(target, before, facts);
            steered.takes_inbound = steered.target.has_local() && taken.insert(steered.target.id);
            self.ports.insert(key, steered);
        }
    }

    fn keys_of(&self, service: &ObjectName) -> Vec<PlanKey> {
        self.of(service).map(|(key, _)| key.clone()).collect()
    }

    fn of<'a>(&'a self, service: &'a ObjectName) -> impl Iterator<Item = (&'a PlanKey, &'a Steered)> {
        let first = PlanKey::first_of(service);
        self.ports.range(first..).take_while(move |(key, _)| key.service == *service)
    }

    /// A write was not made: the next tick writes anew.
    pub fn not_written(&mut self, key: &PlanKey) {
        if let Some(steered) = self.ports.get_mut(key) {
            steered.forget_written();
        }
    }

    /// The backends on this node that are pods.
    pub fn local_pods(&self) -> impl Iterator<Item = crate::model::PodUid> {
        let members = self.ports.values().flat_map(|steered| &steered.target.members);
        members.filter(|member| member.local).filter_map(|member| member.pod)
    }

    /// The other nodes that have endpoints of anything.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<&str> {
        let members = self.ports.values().flat_map(|steered| &steered.target.members);
        members.filter(|member| !member.local).map(|member| &*member.node).collect()
    }

    /// Decides, `elapsed` after the tick before.
    pub fn tick(&mut self, elapsed: Duration, facts: &impl Facts) -> Vec<Write> {
        self.ticks = self.ticks.wrapping_add(1);
        let relied_on = self.relied_on(facts);
        let (here, ticks) = (Arc::clone(&self.here), self.ticks);
        let cpu = facts.own().cpu.map(|cpu| cpu.value.get());
        let alarmed = facts.is_alarmed();
        let mut writes = Vec::new();
        self.told.clear();
        for steered in self.ports.values_mut() {
            steered.look(elapsed, facts);
            if alarmed || steered.is_its_turn(ticks, cpu) {
                let relies_on = steered.target.settings.relies_on.as_ref();
                let relies_on = relies_on.and_then(|name| relied_on.get(name).copied());
                writes.extend(steered.ask(&here, relies_on, facts));
                self.ejections += steered.newly_out();
            }
            self.told.add(steered, facts);
        }
        self.told.finish();
        writes
    }

    /// How busy the services are that others rely on: the mean of the nodes that they run on, as far as that is known.
    fn relied_on(&self, facts: &impl Facts) -> BTreeMap<ObjectName, NodeLoad> {
        let names: BTreeSet<_> =
            self.ports.values().filter_map(|port| port.target.settings.relies_on.clone()).collect();
        let load = |name: &ObjectName| {
            let members = self.of(name).flat_map(|(_, steered)| &steered.target.members);
            let nodes: BTreeSet<&Arc<str>> = members.map(|member| &member.node).collect();
            let loads = nodes
                .into_iter()
                .filter_map(|node| if **node == *self.here { facts.own().cpu } else { facts.report(node)?.load.cpu });
            mean(&loads.collect::<Vec<_>>())
        };
        names.into_iter().map(|name| (name.clone(), NodeLoad { cpu: load(&name), ..NodeLoad::default() })).collect()
    }

    /// What peers are told of the services that this node has endpoints of and knows the cost of, as of the last tick. Of
    /// the others they judge by the node's size and load and their own cost, until their flows have taught this node its
    /// own.
    #[must_use]
    pub const fn report(&self) -> &BTreeMap<ServiceId, ServiceLoad> {
        &self.told.report
    }

    /// The services whose flows go to other nodes, by node, with new flows per second, as of the last tick: of both
    /// families, and of clients outside that came to this node.
    #[must_use]
    pub const fn spilled(&self) -> &Spilled {
        &self.told.spilled
    }

    /// Everything as it stands, for people.
    pub fn states(&self) -> impl Iterator<Item = PortState<'_>> {
        self.ports.values().map(Steered::state)
    }

    /// How many endpoints are ejected.
    #[must_use]
    pub fn ejected(&self) -> usize {
        self.ports.values().map(|steered| steered.out.len()).sum()
    }

    /// How often an endpoint was ejected, since the start.
    #[must_use]
    pub const fn ejections(&self) -> u64 {
        self.ejections
    }

    /// This node's name.
    #[must_use]
    pub fn here(&self) -> &str {
        &self.here
    }

    /// How many service ports are steered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether nothing is steered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}

impl Steered {
    /// A target; who was known before keeps its memory where its sets are still for the same classes.
    fn new(target: Target, before: Option<Self>, facts: &impl Facts) -> Self {
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
            sent,
            open_local: old.as_ref().map_or(0, |old| old.open_local),
            target,
        }
    }

    fn forget_written(&mut self) {
        self.controllers.iter_mut().flatten().for_each(Controller::forget_written);
        self.due = true;
    }

    fn is_in_use(&self) -> bool {
        self.unused.is_some_and(|unused| unused < IN_USE)
    }

    fn inbound_of(&self, facts: &impl Facts) -> Inbound {
        if self.takes_inbound { facts.inbound(self.target.id) } else { Inbound::default() }
    }

    /// Notes time and use.
    fn look(&mut self, elapsed: Duration, facts: &impl Facts) {
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
        self.urgent = jumped || members.any(|(member, seen)| facts.backend(member.slot).failed != seen.failed);
    }

    /// Whether it is to be asked now. Each service has its own turn.
    fn is_its_turn(&self, ticks: u64, cpu: Option<f64>) -> bool {
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
    fn spare(&self, spillers: impl FnOnce() -> u32) -> Option<f64> {
        let mut controllers = self.controllers.iter().flatten().peekable();
        let spillers = controllers.peek().map(|_| spillers())?;
        controllers.filter_map(|controller| controller.spare(spillers)).reduce(f64::min)
    }
}

/// What was counted of the members that stay, as if no new plan had come; of the others from now on.
fn carried(old: Option<&Steered>, target: &Target, facts: &impl Facts) -> (Box<[BackendCounts]>, Vec<f64>) {
    let identity = |member: &Member| (member.slot, member.generation);
    let known: BTreeMap<_, _> = old.map_or_else(BTreeMap::new, |old| {
        let members = old.target.members.iter().map(identity).zip(&old.seen).enumerate();
        members.map(|(at, (id, seen))| (id, (*seen, old.sent.get(at).copied().unwrap_or_default()))).collect()
    });
    let count = |member: &Member| match known.get(&identity(member)) {
        Some(counted) => *counted,
        None => (facts.backend(member.slot), 0.0),
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

fn mean(samples: &[Sample<Share>]) -> Option<Sample<Share>> {
    let age = samples.iter().map(|sample| sample.age).max()?;
    #[expect(clippy::cast_precision_loss, reason = "a cluster has thousands of nodes")]
    let mean = samples.iter().map(|sample| sample.value.get()).sum::<f64>() / samples.len() as f64;
    Some(Sample { value: Share::clamped(mean), age })
}
