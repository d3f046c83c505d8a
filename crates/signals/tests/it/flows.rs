//! New flows, from the datapath's counters.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use weir_abi::{BackendCounters, ServiceCounters};
use weir_signals::FailureKind;
use weir_signals::flows::{FlowCounters, Flows, ServiceFlows};

use crate::build::{at, near};

#[derive(Default)]
struct Counters {
    services: HashMap<u32, ServiceCounters>,
    backends: HashMap<u32, BackendCounters>,
}

#[derive(Clone, Default)]
struct Slots(Rc<RefCell<Counters>>);

#[derive(Debug, thiserror::Error)]
#[error("no slot {0}")]
struct NoSlot(u32);

impl FlowCounters for Slots {
    type Error = NoSlot;

    fn service(&self, slot: u32) -> Result<ServiceCounters, NoSlot> {
        self.0.borrow().services.get(&slot).copied().ok_or(NoSlot(slot))
    }

    fn backend(&self, slot: u32) -> Result<BackendCounters, NoSlot> {
        self.0.borrow().backends.get(&slot).copied().ok_or(NoSlot(slot))
    }
}

impl Slots {
    fn set_service(&self, slot: u32, local: u64, remote: u64) {
        self.0.borrow_mut().services.insert(slot, ServiceCounters { local, remote, rejected: 0, dropped: 0 });
    }

    fn set_backend(&self, slot: u32, flows: u64) {
        self.0.borrow_mut().backends.insert(slot, BackendCounters { flows });
    }
}

/// Services by name, backends by slot and generation.
type Watched = Flows<Slots, &'static str, (u32, u32)>;

fn watched() -> (Slots, Watched) {
    let slots = Slots::default();
    (slots.clone(), Flows::new(slots))
}

#[test]
fn rates_are_per_second_and_what_was_selected_is_offered() {
    let (slots, mut flows) = watched();
    slots.set_service(3, 100, 7);
    slots.set_backend(9, 50);
    flows.watch([("shop", 3)], [((9, 1), 9)]);
    flows.tick(at(0));
    assert!(flows.service(&"shop", at(0)).is_none());
    slots.set_service(3, 150, 32);
    slots.set_backend(9, 75);
    flows.tick(at(250));
    let service = flows.service(&"shop", at(250)).unwrap();
    assert_eq!(service.value, ServiceFlows { local: 200.0, remote: 100.0, rejected: 0.0, dropped: 0.0 });
    assert!(near(service.value.offered(), 300.0));
    assert!(near(flows.backend(&(9, 1), at(250)).unwrap().value, 100.0));
}

#[test]
fn a_slot_that_another_took_is_measured_anew() {
    let (slots, mut flows) = watched();
    slots.set_backend(9, 50);
    flows.watch([], [((9, 1), 9)]);
    flows.tick(at(0));
    // The slot was given to another endpoint, whose counter is past the old one by now.
    flows.watch([], [((9, 2), 9)]);
    slots.set_backend(9, 5000);
    flows.tick(at(250));
    assert!(flows.backend(&(9, 2), at(250)).is_none());
    assert!(flows.backend(&(9, 1), at(250)).is_none());
    slots.set_backend(9, 5010);
    flows.tick(at(500));
    assert!(near(flows.backend(&(9, 2), at(500)).unwrap().value, 40.0));
}

#[test]
fn a_service_that_moved_to_another_slot_is_measured_anew() {
    let (slots, mut flows) = watched();
    slots.set_service(3, 100, 0);
    slots.set_service(4, 100_000, 0);
    flows.watch([("shop", 3)], []);
    flows.tick(at(0));
    flows.watch([("shop", 4)], []);
    flows.tick(at(250));
    assert!(flows.service(&"shop", at(250)).is_none());
    slots.set_service(4, 100_001, 0);
    flows.tick(at(500));
    assert!(near(flows.service(&"shop", at(500)).unwrap().value.local, 4.0));
}

#[test]
fn watching_the_same_again_loses_nothing() {
    let (slots, mut flows) = watched();
    slots.set_service(3, 0, 0);
    flows.watch([("shop", 3)], []);
    flows.tick(at(0));
    flows.watch([("shop", 3), ("new", 5)], []);
    slots.set_service(3, 10, 0);
    flows.tick(at(1000));
    assert!(near(flows.service(&"shop", at(1000)).unwrap().value.local, 10.0));
    assert_eq!(flows.counts().failures(FailureKind::Missing), 1, "slot 5 is not there");
    assert!(flows.problems().any(|problem| problem.to_string().contains("counters of service slot 5: no slot 5")));
    flows.watch([], []);
    assert_eq!(flows.counts().failures(FailureKind::Missing), 1, "counts stay");
}

#[test]
fn counters_that_go_back_are_counted_and_keep_the_last_rate() {
    let (slots, mut flows) = watched();
    slots.set_service(3, 0, 0);
    flows.watch([("shop", 3)], []);
    flows.tick(at(0));
    slots.set_service(3, 10, 0);
    flows.tick(at(1000));
    slots.set_service(3, 2, 0);
    flows.tick(at(2000));
    assert_eq!(flows.counts().failures(FailureKind::Reset), 1);
    let last = flows.service(&"shop", at(2000)).unwrap();
    assert!(near(last.value.local, 10.0));
    assert_eq!(last.age.as_millis(), 1000);
}
