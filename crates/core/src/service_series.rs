//! Which services have series of their own in the metrics: as many as the operator allows, first come, first served. All
//! others share one, so that sums stay true.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ObjectName;

/// A number of each service that has series of its own, and of the others together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Split<T> {
    /// By service.
    pub own: BTreeMap<ObjectName, T>,
    /// All others.
    pub others: T,
}

/// The services that have series of their own, with the new flows that were counted since they have.
#[derive(Clone, Debug)]
pub struct ServiceSeries {
    most: usize,
    flows: Split<u64>,
}

impl ServiceSeries {
    /// At most so many services have their own.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, flows: Split::default() }
    }

    /// Takes in the new flows of services since the last time; `present` are the services that exist. A service that is gone
    /// makes room for one that is used. Its flows stay where they were counted: a sum over all series never shrinks by more
    /// than series that are gone.
    pub fn count(&mut self, present: &BTreeSet<ObjectName>, flows: &BTreeMap<ObjectName, u64>) {
        self.flows.own.retain(|service, _| present.contains(service));
        for (service, new) in flows.iter().filter(|(_, new)| **new > 0) {
            let has_room = self.flows.own.len() < self.most;
            match self.flows.own.get_mut(service) {
                Some(sum) => *sum += new,
                None if has_room => drop(self.flows.own.insert(service.clone(), *new)),
                None => self.flows.others += new,
            }
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

    fn named(numbers: &[(&str, u64)]) -> BTreeMap<ObjectName, u64> {
        numbers.iter().map(|(name, number)| (ObjectName::new("shop", *name), *number)).collect()
    }

    fn present(names: &[&str]) -> BTreeSet<ObjectName> {
        names.iter().map(|name| ObjectName::new("shop", *name)).collect()
    }

    #[test]
    fn the_first_services_that_are_used_have_their_own_and_the_others_share_one() {
        let (mut series, all) = (ServiceSeries::new(2), present(&["a", "b", "c", "d"]));
        series.count(&all, &named(&[("a", 0), ("c", 5)]));
        series.count(&all, &named(&[("b", 1), ("c", 2), ("d", 3)]));
        series.count(&all, &named(&[("a", 4), ("b", 1), ("d", 1)]));
        assert_eq!(*series.flows(), Split { own: named(&[("b", 2), ("c", 7)]), others: 8 });
        let open = series.split(&named(&[("a", 10), ("c", 20)]));
        assert_eq!(open, Split { own: named(&[("b", 0), ("c", 20)]), others: 10 });
    }

    #[test]
    fn a_service_that_is_gone_makes_room_and_one_that_comes_back_begins_anew() {
        let mut series = ServiceSeries::new(1);
        series.count(&present(&["a", "b"]), &named(&[("a", 5), ("b", 1)]));
        series.count(&present(&["b"]), &named(&[("b", 2)]));
        assert_eq!(*series.flows(), Split { own: named(&[("b", 2)]), others: 1 });
        series.count(&present(&["a"]), &named(&[("a", 3)]));
        assert_eq!(series.flows().own, named(&[("a", 3)]));
    }
}
