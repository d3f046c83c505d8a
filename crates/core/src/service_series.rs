//! Which services have series of their own in the metrics: as many as the operator allows, and the same ones on every node,
//! since what somebody sums up over all nodes is wrong where one of them counts a service among the others. So nothing that
//! only one node knows decides. All others share one series, so that sums stay true.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Cluster;
use crate::model::{ObjectName, Proxy, Service};

/// The annotation of a Service that asks for series of its own.
pub const ANNOTATION: &str = "weir.dev/metrics";
/// Its only value.
pub const OWN: &str = "own";

/// The services that have series of their own, at most so many: those that ask for it first, then by name. Which of them are
/// served here, and by whom, depends on a node's stage, so another proxy's alone are left out.
#[must_use]
pub fn own(cluster: &Cluster, most: usize) -> BTreeSet<ObjectName> {
    let all = || cluster.services().filter(|service| service.proxy != Proxy::Other);
    let asked = |service: &&Service| service.own_series;
    let rest = all().filter(|service| !asked(service));
    all().filter(asked).chain(rest).take(most).map(|service| service.name.clone()).collect()
}

/// A number of each service that has series of its own, and of the others together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Split<T> {
    /// By service.
    pub own: BTreeMap<ObjectName, T>,
    /// All others.
    pub others: T,
}

/// The new flows of services that have series of their own, counted since they have, and of the others.
#[derive(Clone, Debug, Default)]
pub struct ServiceSeries {
    flows: Split<u64>,
}

impl ServiceSeries {
    /// Takes in the new flows of services since the last time; `own` have series of their own from now on, be it 0: the first
    /// flow counts in a rate only if none was told before. Flows stay where they were counted, also of a service that loses
    /// its series: a sum over all never shrinks by more than series that are gone.
    pub fn count(&mut self, own: &BTreeSet<ObjectName>, flows: &BTreeMap<ObjectName, u64>) {
        self.flows.own.retain(|service, _| own.contains(service));
        for service in own {
            if !self.flows.own.contains_key(service) {
                self.flows.own.insert(service.clone(), 0);
            }
        }
        for (service, new) in flows {
            *self.flows.own.get_mut(service).unwrap_or(&mut self.flows.others) += new;
        }
    }

    /// New flows so far.
    #[must_use]
    pub const fn flows(&self) -> &Split<u64> {
        &self.flows
    }

    /// Divides numbers of services in the same way. Who has series of its own has one here, too, be it 0.
    #[must_use]
    pub fn split(&self, numbers: &BTreeMap<ObjectName, u64>) -> Split<u64> {
        let mut split = Split { own: self.flows.own.keys().map(|service| (service.clone(), 0)).collect(), others: 0 };
        for (service, number) in numbers {
            *split.own.get_mut(service).unwrap_or(&mut split.others) += number;
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Event;

    fn named(numbers: &[(&str, u64)]) -> BTreeMap<ObjectName, u64> {
        numbers.iter().map(|(name, number)| (ObjectName::new("shop", *name), *number)).collect()
    }

    fn names(names: &[&str]) -> BTreeSet<ObjectName> {
        names.iter().map(|name| ObjectName::new("shop", *name)).collect()
    }

    fn service(name: &str, own_series: bool) -> Service {
        Service { own_series, ..Service::new(ObjectName::new("shop", name)) }
    }

    fn cluster(services: &[Service]) -> Cluster {
        let mut cluster = Cluster::default();
        services.iter().for_each(|service| drop(cluster.apply(Event::Service(service.clone()))));
        cluster
    }

    #[test]
    fn those_that_ask_come_first_then_the_others_by_name() {
        let services = [service("a", false), service("b", true), service("c", false), service("z", true)];
        let chosen = [0, 1, 2, 3, 9].map(|most| own(&cluster(&services), most));
        assert_eq!(chosen, [&[][..], &["b"], &["b", "z"], &["a", "b", "z"], &["a", "b", "c", "z"]].map(names));
    }

    #[test]
    fn nodes_choose_alike_whatever_they_use_and_in_whichever_order_they_learn() {
        let mut services = [service("a", false), service("b", false), service("web", true), service("x", false)];
        let here = own(&cluster(&services), 2);
        services.reverse();
        let there = own(&cluster(&services), 2);
        assert_eq!(here, there);

        let used = [named(&[("a", 1), ("web", 3)]), named(&[("b", 5), ("x", 7), ("web", 4)])];
        let [here, there] = used.map(|flows| {
            let mut series = ServiceSeries::default();
            series.count(&here, &flows);
            series.flows().clone()
        });
        assert_eq!(here, Split { own: named(&[("a", 1), ("web", 3)]), others: 0 });
        assert_eq!(there, Split { own: named(&[("a", 0), ("web", 4)]), others: 12 });
    }

    #[test]
    fn another_proxys_services_have_none_and_those_that_a_stage_decides_about_do() {
        let services = [
            Service { proxy: Proxy::Other, ..service("a", true) },
            Service { proxy: Proxy::Unlabelled, ..service("b", false) },
        ];
        assert_eq!(own(&cluster(&services), 9), names(&["b"]));
    }

    #[test]
    fn flows_and_open_ones_are_told_by_service_or_of_the_others_together() {
        let mut series = ServiceSeries::default();
        series.count(&names(&["b", "c"]), &named(&[("a", 1), ("c", 5)]));
        series.count(&names(&["b", "c"]), &named(&[("a", 4), ("c", 2), ("d", 3)]));
        assert_eq!(*series.flows(), Split { own: named(&[("b", 0), ("c", 7)]), others: 8 });
        let open = series.split(&named(&[("a", 10), ("c", 20)]));
        assert_eq!(open, Split { own: named(&[("b", 0), ("c", 20)]), others: 10 });
    }

    #[test]
    fn a_service_that_loses_its_series_leaves_its_flows_behind_and_begins_anew() {
        let mut series = ServiceSeries::default();
        series.count(&names(&["a"]), &named(&[("a", 5), ("b", 1)]));
        series.count(&names(&["b"]), &named(&[("a", 1), ("b", 2)]));
        assert_eq!(*series.flows(), Split { own: named(&[("b", 2)]), others: 2 });
        series.count(&names(&["a"]), &named(&[("a", 3)]));
        assert_eq!(series.flows().own, named(&[("a", 3)]));
    }
}
