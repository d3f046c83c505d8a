//! Services that have just become another proxy's: they are served on until it has had the time to take over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use weir_core::cluster::{Cluster, Event};
use weir_core::model::{ObjectName, Service};

/// kube-proxy writes its rules seconds after it has learnt of a Service, in a large cluster.
const HANDOVER: Duration = Duration::from_secs(10);

/// When each of them is let go.
#[derive(Debug, Default)]
pub(super) struct Handovers(BTreeMap<ObjectName, Instant>);

impl Handovers {
    /// Notes who changes hands in an event that is about to be applied; whether that changed anything.
    pub(super) fn note(&mut self, cluster: &Cluster, event: &Event, now: Instant) -> bool {
        match event {
            Event::Service(service) => self.note_service(cluster, service, now),
            Event::Services(services) => {
                let changes = services.iter().map(|service| self.note_service(cluster, service, now));
                changes.fold(false, |any, changed| any | changed)
            }
            Event::ServiceGone(name) => self.0.remove(name).is_some(),
            Event::Slice(_) | Event::SliceGone(_) | Event::Slices(_) => false,
            Event::Node(_) | Event::NodeGone(_) | Event::Nodes(_) => false,
            Event::ServiceCidr(_) | Event::ServiceCidrGone(_) | Event::ServiceCidrs(_) => false,
        }
    }

    fn note_service(&mut self, cluster: &Cluster, service: &Service, now: Instant) -> bool {
        let was_served = cluster.service(&service.name).is_some_and(|known| cluster.serves(known));
        match (was_served, cluster.serves(service)) {
            (_, true) => self.0.remove(&service.name).is_some(),
            (true, false) => self.0.insert(service.name.clone(), now + HANDOVER).is_none(),
            (false, false) => false,
        }
    }

    /// Takes out those whose time is over.
    pub(super) fn take_due(&mut self, now: Instant) -> BTreeSet<ObjectName> {
        self.0.extract_if(.., |_, until| *until <= now).map(|(name, _)| name).collect()
    }

    /// Those that are still served.
    pub(super) fn names(&self) -> BTreeSet<ObjectName> {
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use weir_core::model::Proxy;

    use super::*;

    fn name() -> ObjectName {
        ObjectName::new("shop", "cart")
    }

    fn service(proxy: Proxy) -> Service {
        Service { proxy, ..Service::new(name()) }
    }

    /// What is left after events that come at once.
    fn after(events: Vec<Event>, now: Instant) -> Handovers {
        let (mut cluster, mut handovers) = (Cluster::default(), Handovers::default());
        for event in events {
            handovers.note(&cluster, &event, now);
            cluster.apply(event);
        }
        handovers
    }

    #[test]
    fn a_service_of_ours_that_becomes_anothers_is_served_on_for_ten_seconds() {
        let now = Instant::now();
        let events = [Proxy::Ours, Proxy::Other, Proxy::Other].map(service).map(Event::Service);
        let mut handovers = after(events.into(), now);
        assert_eq!(handovers.names(), [name()].into());
        assert_eq!(handovers.take_due(now + Duration::from_secs(9)), [].into());
        assert_eq!(handovers.take_due(now + HANDOVER), [name()].into());
        assert_eq!(handovers.names(), [].into(), "let go once");
    }

    #[test]
    fn the_same_holds_for_a_list() {
        let lists = [Proxy::Ours, Proxy::Other].map(|proxy| Event::Services(vec![service(proxy)]));
        assert_eq!(after(lists.into(), Instant::now()).names(), [name()].into());
    }

    #[test]
    fn a_service_that_was_anothers_from_the_start_is_none_of_ours() {
        assert_eq!(after(vec![Event::Service(service(Proxy::Other))], Instant::now()).names(), [].into());
    }

    #[test]
    fn a_service_that_comes_back_or_goes_away_is_forgotten() {
        let moved = || [Proxy::Ours, Proxy::Other].map(service).map(Event::Service).to_vec();
        for last in [Event::Service(service(Proxy::Ours)), Event::ServiceGone(name())] {
            let events = [moved(), vec![last]].concat();
            assert_eq!(after(events, Instant::now()).names(), [].into());
        }
    }
}
