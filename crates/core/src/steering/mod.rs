//! The running loop's pure part: which inputs go to which controller, what is written, and what peers are told.
//!
//! [`Steering`] has one [`Controller`](crate::controller::Controller) for each set of endpoints that a plan allows to some traffic classes of a service's
//! port in a family: most often one, since all classes may use the same. The plan's sets are all that a controller is ever
//! asked about, so traffic policies and topology hints always win. What is known of the world comes from [`Facts`].

mod ask;
mod facts;
mod news;
mod state;
mod steered;
mod target;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use weir_abi as abi;

pub use facts::{BackendCounts, Facts, FlowRates, OpenCounts, Outcomes, PodUse, ServiceCounts};
pub use news::{Ejected, News, Reporter, Spill};
pub use state::{EndpointState, PortState, SetState};
use steered::Steered;
pub use target::{Member, Set, Target};
pub use told::Spilled;
use told::Told;

use crate::load::{NodeLoad, Sample, ServiceId, ServiceLoad, Share};
use crate::model::ObjectName;
use crate::plan::{PlanKey, TierPlan};

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
            steered.takes_inbound = steered.has_local && taken.insert(steered.target.id);
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

fn mean(samples: &[Sample<Share>]) -> Option<Sample<Share>> {
    let age = samples.iter().map(|sample| sample.age).max()?;
    #[expect(clippy::cast_precision_loss, reason = "a cluster has thousands of nodes")]
    let mean = samples.iter().map(|sample| sample.value.get()).sum::<f64>() / samples.len() as f64;
    Some(Sample { value: Share::clamped(mean), age })
}
