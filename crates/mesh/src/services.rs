//! Lists of services that do not fit one packet: what is sent of them, and how the parts are put together.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use weir_core::load::{NodeLoad, ServiceId, ServiceLoad};

use crate::body::Report;

/// A report that gets older than this is not sent: who made it stalls, and old numbers must not look fresh.
pub(crate) const STALLED: Duration = Duration::from_secs(2);

/// Where the turn of those that do not always fit stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor(Option<ServiceId>);

/// This node's own report, ready to be cut to size.
#[derive(Clone, Debug, Default)]
pub struct Published {
    made: Duration,
    load: NodeLoad,
    /// By number.
    services: Vec<(ServiceId, ServiceLoad)>,
    /// Places in `services`, the most loaded one first.
    heaviest: Vec<usize>,
}

impl Published {
    /// Made now. Numbers that cannot be true are left out, as if they were not known.
    #[must_use]
    pub fn new(load: NodeLoad, services: impl IntoIterator<Item = (ServiceId, ServiceLoad)>, now: Duration) -> Self {
        // Without its capacity nobody can size a share for the node, so all of its report goes.
        let load = load.checked().unwrap_or_default();
        let services = services.into_iter().filter(|(_, load)| load.checked().is_ok());
        let services: Vec<_> = services.collect::<BTreeMap<_, _>>().into_iter().collect();
        let mut heaviest: Vec<_> = (0..services.len()).collect();
        heaviest.sort_by(|left, right| heavier(&services[*left].1, &services[*right].1));
        Self { made: now, load, services, heaviest }
    }

    /// How many services it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.services.len()
    }

    /// Does it hold no services?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The report with at most so many services: all, or half of them the `wanted` and the most loaded ones, and the
    /// rest in turn, so that everyone is told of within a bounded number of reports. None if it is too old to be sent.
    pub fn report(&self, slots: usize, wanted: &[ServiceId], cursor: &mut Cursor, now: Duration) -> Option<Report> {
        let age = now.saturating_sub(self.made);
        (age < STALLED).then(|| Report {
            age,
            load: self.load,
            services: self.choose(slots, wanted, cursor),
            services_in_all: u16::try_from(self.len()).unwrap_or(u16::MAX),
        })
    }

    fn choose(&self, slots: usize, wanted: &[ServiceId], cursor: &mut Cursor) -> Vec<(ServiceId, ServiceLoad)> {
        if self.len() <= slots {
            return self.services.clone();
        }
        let mut chosen: Vec<usize> = Vec::with_capacity(slots);
        let wanted = wanted.iter().filter_map(|id| self.services.binary_search_by_key(id, |(id, _)| *id).ok());
        for place in wanted.chain(self.heaviest.iter().copied()) {
            if chosen.len() >= slots / 2 {
                break;
            }
            if !chosen.contains(&place) {
                chosen.push(place);
            }
        }
        let fixed = chosen.len();
        let next = cursor.0.map_or(0, |last| self.services.partition_point(|(id, _)| *id <= last));
        let turn = (next..self.len()).chain(0..next).filter(|place| !chosen.contains(place)).take(slots - fixed);
        let turn: Vec<_> = turn.collect();
        if let Some(last) = turn.last() {
            cursor.0 = Some(self.services[*last].0);
        }
        chosen.extend(turn);
        chosen.into_iter().map(|place| self.services[place]).collect()
    }
}

fn heavier(left: &ServiceLoad, right: &ServiceLoad) -> Ordering {
    right.flows_per_second.total_cmp(&left.flows_per_second).then(right.open_flows.cmp(&left.open_flows))
}

/// So many of the services, from where the turn stands.
pub(crate) fn in_turn(services: &[(ServiceId, f64)], slots: usize, cursor: &mut Cursor) -> Vec<(ServiceId, f64)> {
    let next = cursor.0.map_or(0, |last| services.partition_point(|(id, _)| *id <= last));
    let (before, after) = services.split_at(next.min(services.len()));
    let chosen: Vec<_> = after.iter().chain(before).take(slots).copied().collect();
    cursor.0 = chosen.last().map(|(id, _)| *id);
    chosen
}

/// What was told of services, part by part, with the time of it. By number.
#[derive(Clone, Debug)]
pub(crate) struct Merged<V>(Vec<(ServiceId, V, Duration)>);

impl<V> Default for Merged<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: Copy> Merged<V> {
    /// Takes a part that was told now. A complete one replaces what there is; else what is older than `life` is
    /// forgotten.
    pub(crate) fn merge(
        &mut self,
        part: impl IntoIterator<Item = (ServiceId, V)>,
        complete: bool,
        life: Duration,
        now: Duration,
    ) {
        self.0.retain(|(_, _, told)| !complete && now.saturating_sub(*told) < life);
        for (id, value) in part {
            match self.0.binary_search_by_key(&id, |(id, _, _)| *id) {
                Ok(place) => self.0[place] = (id, value, now),
                Err(place) => self.0.insert(place, (id, value, now)),
            }
        }
    }

    /// What is younger than `life`.
    pub(crate) fn fresh(&self, life: Duration, now: Duration) -> impl Iterator<Item = (ServiceId, V)> {
        let fresh = self.0.iter().filter(move |(_, _, told)| now.saturating_sub(*told) < life);
        fresh.map(|(id, value, _)| (*id, *value))
    }
}
