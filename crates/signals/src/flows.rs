//! New flows per service and per backend, from the datapath's counters. They count what this node selected: flows that
//! a peer sent straight to a local endpoint are in the peer's counters.

use std::collections::HashMap;
use std::error::Error;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use weir_abi as abi;
use weir_core::load::Sample;

use crate::gauge::Gauge;
use crate::meter::{Meter, SHORTEST_WINDOW};
use crate::source::{Counts, Failure, Source};

/// What the datapath counts, by slot.
pub trait FlowCounters {
    /// Why a slot cannot be read.
    type Error: Error + Send + Sync + 'static;

    /// Counters of a service's slot.
    ///
    /// # Errors
    /// When the slot does not exist or cannot be read.
    fn service(&self, slot: u32) -> Result<abi::ServiceCounters, Self::Error>;

    /// Counters of a backend's slot.
    ///
    /// # Errors
    /// When the slot does not exist or cannot be read.
    fn backend(&self, slot: u32) -> Result<abi::BackendCounters, Self::Error>;
}

/// New flows per second of a service, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceFlows {
    /// Stayed on the node.
    pub local: f64,
    /// Left it.
    pub remote: f64,
    /// Refused for want of endpoints.
    pub rejected: f64,
    /// Dropped, for the policy allows no endpoint here.
    pub dropped: f64,
}

impl ServiceFlows {
    /// What the node's clients offer to the endpoints: all that was selected.
    #[must_use]
    pub fn offered(&self) -> f64 {
        self.local + self.remote
    }
}

/// Flows of a service.
#[derive(Debug)]
pub struct ServiceSource<C> {
    counters: Arc<C>,
    slot: u32,
    meter: Meter<4>,
}

impl<C: FlowCounters> Source for ServiceSource<C> {
    type Value = ServiceFlows;

    fn name(&self) -> &'static str {
        "service-flows"
    }

    fn read(&mut self, now: Instant) -> Result<Option<ServiceFlows>, Failure> {
        let object = || format!("counters of service slot {}", self.slot);
        let counters = self.counters.service(self.slot);
        let abi::ServiceCounters { local, remote, rejected, dropped } =
            counters.map_err(|cause| Failure::Missing { object: object(), cause: cause.into() })?;
        let step = self.meter.advance([local, remote, rejected, dropped], now);
        Ok(step.map_err(|gap| gap.failure(object()))?.map(|step| {
            let [local, remote, rejected, dropped] = step.rates();
            ServiceFlows { local, remote, rejected, dropped }
        }))
    }
}

/// Flows of a backend.
#[derive(Debug)]
pub struct BackendSource<C> {
    counters: Arc<C>,
    slot: u32,
    meter: Meter<1>,
}

impl<C: FlowCounters> Source for BackendSource<C> {
    type Value = f64;

    fn name(&self) -> &'static str {
        "backend-flows"
    }

    fn read(&mut self, now: Instant) -> Result<Option<f64>, Failure> {
        let object = || format!("counters of backend slot {}", self.slot);
        let counters = self.counters.backend(self.slot);
        let abi::BackendCounters { flows } =
            counters.map_err(|cause| Failure::Missing { object: object(), cause: cause.into() })?;
        let step = self.meter.advance([flows], now).map_err(|gap| gap.failure(object()))?;
        Ok(step.map(|step| step.rates()[0]))
    }
}

/// Flows of all services and backends that somebody wants to know. `S` names a service and `B` a backend however slots
/// are used again: a backend's slot with its generation, for example. Another name means that measuring begins anew.
#[derive(Debug)]
pub struct Flows<C, S, B>
where
    C: FlowCounters,
{
    counters: Arc<C>,
    services: HashMap<S, Gauge<ServiceSource<C>>>,
    backends: HashMap<B, Gauge<BackendSource<C>>>,
    past: Counts,
}

impl<C: FlowCounters, S: Eq + Hash, B: Eq + Hash> Flows<C, S, B> {
    /// Nothing is watched yet.
    pub fn new(counters: C) -> Self {
        let counters = Arc::new(counters);
        Self { counters, services: HashMap::new(), backends: HashMap::new(), past: Counts::default() }
    }

    /// Watches exactly these services and backends from now on, each in its slot.
    pub fn watch(
        &mut self,
        services: impl IntoIterator<Item = (S, u32)>,
        backends: impl IntoIterator<Item = (B, u32)>,
    ) {
        let counters = &self.counters;
        follow(
            &mut self.services,
            services,
            &mut self.past,
            |source| source.slot,
            |slot| ServiceSource { counters: Arc::clone(counters), slot, meter: Meter::new(SHORTEST_WINDOW) },
        );
        follow(
            &mut self.backends,
            backends,
            &mut self.past,
            |source| source.slot,
            |slot| BackendSource { counters: Arc::clone(counters), slot, meter: Meter::new(SHORTEST_WINDOW) },
        );
    }

    /// Reads all counters.
    pub fn tick(&mut self, now: Instant) {
        self.services.values_mut().for_each(|gauge| gauge.tick(now));
        self.backends.values_mut().for_each(|gauge| gauge.tick(now));
    }

    /// New flows per second of a service.
    #[must_use]
    pub fn service(&self, service: &S, now: Instant) -> Option<Sample<ServiceFlows>> {
        self.services.get(service)?.sample(now)
    }

    /// New flows per second that this node sends to a backend.
    #[must_use]
    pub fn backend(&self, backend: &B, now: Instant) -> Option<Sample<f64>> {
        self.backends.get(backend)?.sample(now)
    }

    /// How reading went, all together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let services = self.services.values().fold(self.past, |sum, gauge| sum.plus(gauge.counts()));
        self.backends.values().fold(services, |sum, gauge| sum.plus(gauge.counts()))
    }

    /// What is wrong now.
    pub fn problems(&self) -> impl Iterator<Item = &Failure> {
        self.services.values().filter_map(Gauge::problem).chain(self.backends.values().filter_map(Gauge::problem))
    }
}

/// Keeps the gauges of what is still in its slot, makes those that are new.
fn follow<K: Eq + Hash, S: Source>(
    gauges: &mut HashMap<K, Gauge<S>>,
    wanted: impl IntoIterator<Item = (K, u32)>,
    past: &mut Counts,
    slot_of: impl Fn(&S) -> u32,
    make: impl Fn(u32) -> S,
) {
    let mut before = std::mem::take(gauges);
    for (key, slot) in wanted {
        let gauge = match before.remove(&key) {
            Some(gauge) if slot_of(gauge.source()) == slot => gauge,
            Some(gauge) => {
                *past = past.plus(gauge.counts());
                Gauge::new(make(slot))
            }
            None => Gauge::new(make(slot)),
        };
        gauges.insert(key, gauge);
    }
    *past = before.values().fold(*past, |sum, gauge| sum.plus(gauge.counts()));
}
