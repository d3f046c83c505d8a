//! What was taken in and is not written yet: for health checks, and for kube-proxy's metrics.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_core::cluster::{Cluster, Dirty, Event};
use weir_core::model::{Family, ObjectName, Slice};

/// Changes of the cluster, counted as kube-proxy does: those that changed something.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Waiting {
    /// Services that are new, other or gone.
    pub(crate) services: u64,
    /// Services of which slices are new, other or gone.
    pub(crate) endpoints: u64,
}

impl Waiting {
    /// What an event adds that touched `dirty`.
    pub(super) fn of(event: Kind, dirty: &Dirty) -> Self {
        let count = dirty.services.len() as u64;
        match event {
            Kind::Services => Self { services: count, endpoints: 0 },
            Kind::Slices => Self { services: 0, endpoints: count },
            Kind::Nodes | Kind::ServiceCidrs => Self::default(),
        }
    }

    pub(super) const fn add(&mut self, other: Self) {
        let Self { services, endpoints } = other;
        self.services += services;
        self.endpoints += endpoints;
    }
}

/// Kind of the objects that an event is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Services,
    Slices,
    Nodes,
    ServiceCidrs,
}

impl From<&Event> for Kind {
    fn from(event: &Event) -> Self {
        match event {
            Event::Service(_) | Event::ServiceGone(_) | Event::Services(_) => Self::Services,
            Event::Slice(_) | Event::SliceGone(_) | Event::Slices(_) => Self::Slices,
            Event::Node(_) | Event::NodeGone(_) | Event::Nodes(_) => Self::Nodes,
            Event::ServiceCidr(_) | Event::ServiceCidrGone(_) | Event::ServiceCidrs(_) => Self::ServiceCidrs,
        }
    }
}

/// What the writer has yet to write, and since when.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Changes that came since it was last told of them.
    pub(super) new: Waiting,
    /// The oldest change that the writer has not dealt with.
    pub(super) since: Option<Instant>,
    triggers: BTreeMap<ObjectName, Vec<Trigger>>,
}

/// What made a controller change the endpoints of a service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Trigger {
    pub(super) family: Family,
    /// When, in milliseconds since the epoch.
    pub(super) at: i64,
}

impl Pending {
    /// Notes what triggered an event that is about to be applied, if that was later than `start` (milliseconds since
    /// the epoch). As kube-proxy does, the removal of a slice makes those of its service unknown: its annotation tells
    /// of an earlier change.
    pub(super) fn note_triggers(&mut self, cluster: &Cluster, event: &Event, start: i64) {
        match event {
            Event::Slice(slice) => self.note_trigger(cluster, slice, start),
            Event::Slices(slices) => slices.iter().for_each(|slice| self.note_trigger(cluster, slice, start)),
            Event::SliceGone(name) => {
                let of_slice = |service: &ObjectName| cluster.slices(service).any(|slice| slice.name == *name);
                self.triggers.retain(|service, _| !of_slice(service));
            }
            Event::Service(_) | Event::ServiceGone(_) | Event::Services(_) => {}
            Event::Node(_) | Event::NodeGone(_) | Event::Nodes(_) => {}
            Event::ServiceCidr(_) | Event::ServiceCidrGone(_) | Event::ServiceCidrs(_) => {}
        }
    }

    fn note_trigger(&mut self, cluster: &Cluster, slice: &Slice, start: i64) {
        let Some(at) = slice.triggered.filter(|at| *at > start) else { return };
        if cluster.slices(&slice.service).all(|known| known != slice) {
            let of_service = self.triggers.entry(slice.service.clone()).or_default();
            of_service.push(Trigger { family: slice.family, at });
        }
    }

    /// The triggers of a service that was written just now, which are pending no longer.
    pub(super) fn take_triggers(&mut self, service: &ObjectName) -> Vec<Trigger> {
        self.triggers.remove(service).unwrap_or_default()
    }

    /// Forgets all triggers: what was listed at the start tells when it changed and not when we learnt of it.
    pub(super) fn forget_triggers(&mut self) {
        self.triggers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1000;

    fn slice(name: &str, triggered: Option<i64>) -> Slice {
        Slice {
            name: ObjectName::new("shop", name),
            service: service(),
            family: Family::V6,
            ports: Vec::new(),
            endpoints: Vec::new(),
            triggered,
        }
    }

    fn service() -> ObjectName {
        ObjectName::new("shop", "cart")
    }

    /// Applies events one after the other; the trigger times that are pending then.
    fn triggers(events: &[Event]) -> Vec<i64> {
        let (mut cluster, mut pending) = (Cluster::default(), Pending::default());
        for event in events {
            pending.note_triggers(&cluster, event, START);
            cluster.apply(event.clone());
        }
        let taken = pending.take_triggers(&service());
        assert_eq!(pending.take_triggers(&service()), [], "taken once");
        assert!(taken.iter().all(|trigger| trigger.family == Family::V6));
        taken.iter().map(|trigger| trigger.at).collect()
    }

    #[test]
    fn every_change_of_a_slice_has_its_own_trigger() {
        let events = [slice("a", Some(1001)), slice("b", Some(1002)), slice("a", Some(1003))].map(Event::Slice);
        assert_eq!(triggers(&events), [1001, 1002, 1003]);
    }

    #[test]
    fn a_slice_that_tells_no_trigger_or_one_before_our_start_does_not_count() {
        assert_eq!(triggers(&[Event::Slice(slice("a", None)), Event::Slice(slice("b", Some(START)))]), [0; 0]);
    }

    #[test]
    fn a_slice_that_is_repeated_does_not_count_again() {
        let known = slice("a", Some(1001));
        let events = [Event::Slice(known.clone()), Event::Slice(known.clone()), Event::Slices(vec![known])];
        assert_eq!(triggers(&events), [1001]);
    }

    #[test]
    fn the_removal_of_a_slice_makes_the_triggers_of_its_service_unknown() {
        let events = [Event::Slice(slice("a", Some(1001))), Event::SliceGone(ObjectName::new("shop", "a"))];
        assert_eq!(triggers(&events), [0; 0]);
    }

    #[test]
    fn services_and_slices_count_what_they_changed_and_nodes_nothing() {
        let dirty = Dirty { services: [service()].into(), ..Dirty::default() };
        assert_eq!(Waiting::of(Kind::Services, &dirty), Waiting { services: 1, endpoints: 0 });
        assert_eq!(Waiting::of(Kind::Slices, &dirty), Waiting { services: 0, endpoints: 1 });
        assert_eq!(Waiting::of(Kind::Nodes, &dirty), Waiting::default());
        assert_eq!(Waiting::of(Kind::Slices, &Dirty::default()), Waiting::default());
    }
}
