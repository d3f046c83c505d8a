//! Endpoints of connections stay with their port for a moment after no EndpointSlice names them any more, without new ones: docs/adr/0064-endpoints-that-are-missing-for-a-moment.md.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::model::ObjectName;
use crate::plan::ServicePlan;
use crate::tables::Departing;

/// For how long. A controller that sorts a Service's endpoints into other slices writes these one after the other, within a fraction of a second, and
/// slices follow a port's new name within a second or two.
pub const LINGER: Duration = Duration::from_secs(5);

/// Since when endpoints are missing, by service, slot and generation.
#[derive(Debug, Default)]
pub struct Departures(BTreeMap<ObjectName, HashMap<(u32, u32), Instant>>);

impl Departures {
    /// Adds to a service's plans those of its endpoints that are missing for less than [`LINGER`]. To be asked whenever the service is written: what
    /// is there again is missing no more.
    pub fn keep(&mut self, service: &ObjectName, plans: &mut [ServicePlan], departing: Vec<Departing>, now: Instant) {
        let before = self.0.remove(service).unwrap_or_default();
        let mut missing = HashMap::new();
        for Departing { plan, slot, generation, backend } in departing {
            let id = (slot, generation);
            let since = before.get(&id).copied().unwrap_or(now);
            if now.duration_since(since) < LINGER
                && let Some(plan) = plans.get_mut(plan)
            {
                plan.backends.push(backend);
                missing.insert(id, since);
            }
        }
        if !missing.is_empty() {
            self.0.insert(service.clone(), missing);
        }
    }

    /// Services of which an endpoint is missing for longer: to be written without it.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = &ObjectName> {
        let is_due = move |since: &Instant| now.duration_since(*since) >= LINGER;
        self.0.iter().filter(move |(_, missing)| missing.values().any(is_due)).map(|(service, _)| service)
    }
}
