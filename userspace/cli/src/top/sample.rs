//! What `weir top` knows at one moment: counters and tables of the maps, and what the agent says, if it says anything.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use weir_abi as abi;
use weir_datapath::View;
use weir_telemetry::weights::Weights;

use crate::agent;
use crate::index::{Index, selectable};
use crate::time::Now;

/// From here on a packet did not reach an endpoint.
const FIRST_REFUSAL: usize = 32;

/// One look at everything.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Seconds since the first look.
    pub(crate) at: f64,
    /// Name of this node; none as long as nobody tells it.
    pub(crate) here: Option<String>,
    /// Service ports by slot.
    pub(crate) services: BTreeMap<u32, ServiceSample>,
    /// Packets that were dropped or refused, by reason.
    pub(crate) refusals: BTreeMap<usize, u64>,
    /// What the agent says, or why it does not.
    pub(crate) agent: Result<Weights, String>,
}

/// A service port in one family.
#[derive(Clone, Debug)]
pub(crate) struct ServiceSample {
    /// `shop/web`.
    pub(crate) name: String,
    /// `80/TCP`, and the family where it is not the usual one.
    pub(crate) port: String,
    /// Seconds on the kernel's clock: another time is another owner of the slot.
    pub(crate) created: u32,
    /// New flows.
    pub(crate) counters: abi::ServiceCounters,
    /// Flows that backends refused or left without an answer, by slot and generation.
    pub(crate) failures: BTreeMap<(u32, u32), u64>,
    /// Flows that are open.
    pub(crate) open: u64,
    /// Endpoints on this node that new flows may use, and all.
    pub(crate) endpoints: (usize, u32),
    /// Part of new flows to the cluster IP that each node gets, as the tables divide them. No name: unknown.
    pub(crate) shares: BTreeMap<String, f64>,
}

/// What the programs have counted, beside what the control plane wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// By slot of the service.
    pub(crate) services: HashMap<u32, abi::ServiceCounters>,
    /// By slot of the backend.
    pub(crate) failures: HashMap<u32, u64>,
    /// Flows that are open, by slot of the service.
    pub(crate) open: HashMap<u32, u64>,
    /// Packets, by reason.
    pub(crate) refusals: BTreeMap<usize, u64>,
}

impl Counts {
    fn read(view: &View, index: &Index<'_>) -> Result<Self> {
        let mut counts = Self::default();
        for id in index.services.keys() {
            counts.services.insert(*id, view.service_counters(*id)?);
        }
        for id in index.backends.keys() {
            let abi::BackendCounters { refused, unanswered, .. } = view.backend_counters(*id)?;
            counts.failures.insert(*id, u64::from(refused) + u64::from(unanswered));
        }
        let (limits, tick) = (view.idle_limits()?, Now::read()?.tick());
        view.visit_flows(|protocol, flow| {
            if limits.goes_on(protocol, flow, tick) {
                *counts.open.entry(flow.service).or_default() += 1;
            }
        })?;
        for reason in FIRST_REFUSAL..abi::REASON_COUNT {
            let mut packets = 0;
            for hook in 0..abi::HOOK_COUNT {
                packets += view.counters().counter(hook, reason)?.packets;
            }
            if packets > 0 {
                counts.refusals.insert(reason, packets);
            }
        }
        Ok(counts)
    }
}

impl Sample {
    /// Looks at the maps and asks the agent.
    pub(crate) fn read(view: &View, socket: &Path, start: Instant) -> Result<Self> {
        let dump = view.dump()?;
        let index = Index::new(&dump);
        let counts = Counts::read(view, &index)?;
        let at = start.elapsed().as_secs_f64();
        let agent = agent::weights(socket, None).map_err(|error| error.root_cause().to_string());
        Ok(Self::new(at, &index, counts, agent))
    }

    /// Joins what was read.
    pub(crate) fn new(at: f64, index: &Index<'_>, counts: Counts, agent: Result<Weights, String>) -> Self {
        let local = index.backends.values().find(|backend| backend.flags & abi::BACKEND_LOCAL != 0);
        let of_maps = local.map(|backend| index.node(backend.node)).filter(|name| !name.is_empty());
        let here = agent.as_ref().map_or_else(|_| of_maps.map(str::to_owned), |told| Some(told.node.name.clone()));
        // Sorted out once: a cluster may have tens of thousands of each.
        let mut own = index.backends_by_service();
        let sample = |id: &u32| Some((*id, service(*id, index, &own.remove(id).unwrap_or_default(), &counts)?));
        let services = index.ports.keys().filter_map(sample).collect();
        Self { at, here, services, refusals: counts.refusals, agent }
    }
}

fn service(id: u32, index: &Index<'_>, own: &[(u32, &abi::Backend)], counts: &Counts) -> Option<ServiceSample> {
    let (port, service) = (index.ports.get(&id)?, index.services.get(&id)?);
    let spreads = index.spreads(service);
    let is_local = |id: &u32| index.backends.get(id).is_some_and(|backend| backend.flags & abi::BACKEND_LOCAL != 0);
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for (backend, share) in &spreads[abi::CLASS_INTERNAL].backends {
        let node = index.backends.get(backend).map_or("", |backend| index.node(backend.node));
        *shares.entry(node.to_owned()).or_default() += share.fraction();
    }
    let none = abi::ServiceCounters::default();
    Some(ServiceSample {
        name: format!("{}/{}", port.namespace, port.name),
        port: if port.family == 6 { format!("{} v6", port.number()) } else { port.number() },
        created: port.created,
        counters: counts.services.get(&id).copied().unwrap_or(none),
        failures: own
            .iter()
            .map(|(slot, backend)| {
                ((*slot, backend.generation), counts.failures.get(slot).copied().unwrap_or_default())
            })
            .collect(),
        open: counts.open.get(&id).copied().unwrap_or_default(),
        endpoints: (selectable(&spreads).iter().filter(|id| is_local(id)).count(), service.endpoints),
        shares,
    })
}

#[cfg(test)]
mod tests {
    use crate::top::example;

    #[test]
    fn a_service_has_the_failures_of_its_own_backends_that_are_in_use() {
        let sample = example::sample(2);
        let of = |id: u32| -> Vec<_> {
            sample.services[&id].failures.iter().map(|((slot, _), count)| (*slot, *count)).collect()
        };
        assert_eq!(of(1), [(1, 5), (2, 3), (3, 0), (4, 0)]);
        assert_eq!((of(2), of(3)), (vec![(5, 0)], vec![]));
    }
}
