//! New flows by how far they went, and new and open flows by Service, put together at each scrape from what the programs
//! count of endpoints and Services.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tokio::sync::watch;
use weir_abi as abi;
use weir_core::model::ObjectName;
use weir_core::service_series::{ServiceSeries, Split};
use weir_datapath::View;
use weir_signals::open_flows::OpenByBackend;

/// New flows by where they went.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Tiers {
    /// This node.
    pub(super) node: u64,
    /// Another one of the same zone.
    pub(super) zone: u64,
    /// Farther, or nobody knows.
    pub(super) other: u64,
}

/// What is told of Services.
#[derive(Clone, Debug, Default)]
pub(super) struct ByService {
    /// New flows so far.
    pub(super) flows: Split<u64>,
    /// Open ones as they were last counted.
    pub(super) open: Split<u64>,
}

/// The counters' last values. Slots change hands and begin at zero then: of what was counted between the last look and the
/// end of an endpoint nothing is known. What an earlier agent left in them is no flow of this agent's time: the sum of what
/// is left is less than that agent told, and whoever asks for a rate would take all of it for new.
#[derive(Debug)]
pub(super) struct Selections {
    tiers: Tiers,
    /// By slot in `backends`: the generation, and new flows.
    backends: HashMap<u32, (u32, u64)>,
    /// By slot in `services`.
    services: HashMap<u32, u64>,
    series: ServiceSeries,
    open: watch::Receiver<OpenByBackend>,
}

impl Selections {
    /// Counts from now on; `by_service`: Services have series of their own.
    pub(super) fn new(view: &View, open: watch::Receiver<OpenByBackend>, by_service: bool) -> Self {
        let (mut backends, mut services) = (HashMap::new(), HashMap::new());
        // Maps that are open have the same size.
        let _ = view.visit_endpoints(|slot, backend, counters| {
            if counters.flows > 0 {
                backends.insert(slot, (backend.generation, counters.flows));
            }
        });
        if by_service {
            services.extend(slots(view).map(|(slot, _, flows)| (slot, flows)).filter(|(_, flows)| *flows > 0));
        }
        Self { tiers: Tiers::default(), backends, services, series: ServiceSeries::default(), open }
    }

    /// Looks at all counters; `zone` is this node's, empty if it has none. Before that is known nothing is looked at: what was
    /// counted would be taken for far away. `own` are the Services with series of their own; without it nothing is told of
    /// any.
    pub(super) fn count(
        &mut self,
        view: &View,
        zone: Option<&str>,
        own: Option<&BTreeSet<ObjectName>>,
    ) -> (Tiers, Option<ByService>) {
        let Some(zone) = zone else { return (self.tiers, None) };
        let Self { tiers, backends, services, series, open } = self;
        let open = open.borrow().clone();
        let mut zones = Zones { view, zone, same: HashMap::new() };
        let mut open_by_slot: HashMap<u32, u64> = HashMap::new();
        // Maps that are open have the same size.
        let _ = view.visit_endpoints(|slot, backend, counters| {
            if own.is_some()
                && let Some(counted) = open.get(&(slot, backend.generation))
            {
                *open_by_slot.entry(backend.service).or_default() += u64::from(counted.at(counters.into()).going);
            }
            let seen = backends.get(&slot).filter(|(generation, _)| *generation == backend.generation);
            let new = since(counters.flows, seen.map_or(0, |(_, flows)| *flows));
            if new == 0 {
                return;
            }
            backends.insert(slot, (backend.generation, counters.flows));
            if backend.flags & abi::BACKEND_LOCAL != 0 {
                tiers.node += new;
            } else if zones.is_same(backend.node) {
                tiers.zone += new;
            } else {
                tiers.other += new;
            }
        });
        let told = own.map(|own| by_name(view, series, own, services, &open_by_slot));
        (*tiers, told)
    }
}

/// Sums up the slots of each Service: it has one for each port and family.
fn by_name(
    view: &View,
    series: &mut ServiceSeries,
    own: &BTreeSet<ObjectName>,
    seen: &mut HashMap<u32, u64>,
    open_by_slot: &HashMap<u32, u64>,
) -> ByService {
    let (mut flows, mut open): (BTreeMap<ObjectName, u64>, BTreeMap<ObjectName, u64>) = Default::default();
    for (slot, name, now) in slots(view) {
        let before = seen.insert(slot, now).unwrap_or(0);
        *open.entry(name.clone()).or_default() += open_by_slot.get(&slot).copied().unwrap_or_default();
        *flows.entry(name).or_default() += since(now, before);
    }
    series.count(own, &flows);
    ByService { flows: series.flows().clone(), open: series.split(&open) }
}

/// The slots that Services have, with the new flows of each that went on: what a flood forges, and what is tried again elsewhere, asks for no
/// more endpoints.
fn slots(view: &View) -> impl Iterator<Item = (u32, ObjectName, u64)> {
    view.service_names().unwrap_or_default().into_iter().filter_map(|(slot, name)| {
        let abi::ServiceCounters { local_gone_on, remote_gone_on, .. } = view.service_counters(slot).ok()?;
        Some((slot, ObjectName::new(text(&name.namespace), text(&name.name)), local_gone_on + remote_gone_on))
    })
}

/// What came since a counter was looked at last; one that changed hands counts from zero.
fn since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// A name as the maps hold it: up to the first zero.
fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    str::from_utf8(&bytes[..end]).unwrap_or_default()
}

/// Which nodes are in this node's zone, by their numbers in the maps. Looked up anew each time: numbers change hands.
struct Zones<'a> {
    view: &'a View,
    zone: &'a str,
    same: HashMap<u32, bool>,
}

impl Zones<'_> {
    fn is_same(&mut self, node: u32) -> bool {
        let Self { view, zone, same } = self;
        *same.entry(node).or_insert_with(|| {
            let name = view.node_name(node).ok().flatten();
            !zone.is_empty() && name.is_some_and(|name| text(&name.zone) == *zone)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_changed_hands_counts_from_zero() {
        assert_eq!([since(7, 5), since(5, 5), since(2, 5)], [2, 0, 2]);
    }

    #[test]
    fn names_end_at_the_first_zero() {
        let mut bytes = [0; abi::NAME_SIZE];
        bytes[..3].copy_from_slice(b"web");
        assert_eq!((text(&bytes), text(&[0; 4]), text(b"all")), ("web", "", "all"));
    }
}
