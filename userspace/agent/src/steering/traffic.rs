//! What flows since the last look, for the page: pure, from counters that only grow.
//!
//! Rates are counted anew, over a period of the page: those that decisions are made by are about quarters of a second.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_core::load::ServiceId;
use weir_core::model::ObjectName;
use weir_core::steering::{BackendCounts, Facts, Outcomes, ServiceCounts, Target};
use weir_page::ServiceSample;

/// Where counts come from: memory, no system calls.
pub(super) trait Counted {
    /// Of a service's slot.
    fn service(&self, slot: u32) -> ServiceCounts;
    /// Of a backend's slot.
    fn backend(&self, slot: u32) -> BackendCounts;
}

impl<F: Facts> Counted for F {
    fn service(&self, slot: u32) -> ServiceCounts {
        Facts::service(self, slot)
    }

    fn backend(&self, slot: u32) -> BackendCounts {
        Facts::backend(self, slot)
    }
}

/// Counts at the last look.
#[derive(Default)]
pub(super) struct Seen {
    at: Option<Instant>,
    looks: u64,
    ports: HashMap<(u32, ServiceId), Port>,
}

/// Of a port.
struct Port {
    /// The look that saw it.
    look: u64,
    counts: ServiceCounts,
    /// By slot and generation; of a port that was never in use since the first look none.
    backends: HashMap<(u32, u32), Outcomes>,
}

/// What happened between two looks. Rates are new flows per second.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Traffic {
    pub(super) services: BTreeMap<ObjectName, ServiceSample>,
    /// By the node of their endpoint.
    pub(super) nodes: BTreeMap<Arc<str>, Flows>,
}

/// Flows of this node's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Flows {
    /// New ones.
    pub(super) sent: f64,
    /// Those that were refused or not answered.
    pub(super) failures: f64,
}

impl Seen {
    /// Each port with what other nodes send there. Nothing is told of the time before the first look.
    pub(super) fn look<'a>(
        &mut self,
        ports: impl Iterator<Item = (&'a Target, f64)>,
        counted: &impl Counted,
        now: Instant,
    ) -> Traffic {
        let elapsed = self.at.replace(now).map(|at| now.saturating_duration_since(at));
        self.looks += 1;
        let mut traffic = Traffic::default();
        for (target, inbound) in ports {
            self.look_at(target, inbound, elapsed.unwrap_or_default(), counted, &mut traffic);
        }
        let look = self.looks;
        self.ports.retain(|_, port| port.look == look);
        traffic
    }

    fn look_at(
        &mut self,
        target: &Target,
        inbound: f64,
        elapsed: Duration,
        counted: &impl Counted,
        traffic: &mut Traffic,
    ) {
        let counts = counted.service(target.slot);
        let port = self.ports.entry((target.slot, target.id)).or_insert_with(|| Port {
            look: 0,
            counts,
            backends: HashMap::new(),
        });
        port.look = self.looks;
        let before = mem::replace(&mut port.counts, counts);
        // What is not used costs nothing but this.
        if before == counts && inbound <= 0.0 {
            return;
        }
        let failures = port.look_at_backends(target, elapsed, counted, &mut traffic.nodes);
        let rates = counts.rates(before, elapsed);
        let name = || ServiceSample { name: target.key.service.to_string().into(), ..ServiceSample::default() };
        let service = traffic.services.entry(target.key.service.clone()).or_insert_with(name);
        service.local += rates.local;
        service.remote += rates.remote;
        service.inbound += inbound;
        service.failures += failures;
    }
}

impl Port {
    /// Adds up flows by node. Returns how many failed, per second.
    fn look_at_backends(
        &mut self,
        target: &Target,
        elapsed: Duration,
        counted: &impl Counted,
        nodes: &mut BTreeMap<Arc<str>, Flows>,
    ) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "flows of seconds")]
        let rate = |count: u64| if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() };
        let before = mem::take(&mut self.backends);
        let mut failures = 0.0;
        for member in &target.members {
            let id = (member.slot, member.generation);
            let counts = counted.backend(member.slot).outcomes();
            let new = counts.since(before.get(&id).copied().unwrap_or(counts));
            let (flows, failed) = (u64::from(new.gone_on), new.failed());
            self.backends.insert(id, counts);
            if flows == 0 && failed == 0 {
                continue;
            }
            let there = nodes.entry(Arc::clone(&member.node)).or_default();
            there.sent += rate(flows);
            there.failures += rate(failed);
            failures += rate(failed);
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use weir_core::model::{Family, Protocol};
    use weir_core::plan::PlanKey;
    use weir_core::settings::Settings;
    use weir_core::steering::Member;

    use super::*;

    /// Counts by slot.
    #[derive(Default)]
    struct Counters {
        services: HashMap<u32, ServiceCounts>,
        backends: HashMap<u32, BackendCounts>,
    }

    impl Counted for Counters {
        fn service(&self, slot: u32) -> ServiceCounts {
            self.services.get(&slot).copied().unwrap_or_default()
        }

        fn backend(&self, slot: u32) -> BackendCounts {
            self.backends.get(&slot).copied().unwrap_or_default()
        }
    }

    impl Counters {
        fn add(&mut self, service: u32, (local, remote): (u64, u64), backends: [(u32, u64, u32); 2]) {
            let counts = self.services.entry(service).or_default();
            counts.local += local;
            counts.remote += remote;
            for (slot, flows, failed) in backends {
                let counts = self.backends.entry(slot).or_default();
                counts.flows += flows;
                counts.gone_on += u32::try_from(flows).unwrap();
                counts.unanswered += failed;
            }
        }
    }

    /// A port with an endpoint on this node, at slot 1, and one on another, at slot 2.
    fn target(slot: u32, port_name: &str, generation: u32) -> Target {
        let service = ObjectName::new("shop", "web");
        let member = |slot: u32, node: &str| Member {
            slot,
            generation,
            address: SocketAddr::from(([10, 0, 0, 1], 80)),
            node: node.into(),
            local: node == "here",
            pod: None,
        };
        Target {
            id: ServiceId(slot.into()),
            settings: Settings::default().of(&service, None),
            key: PlanKey { service, port_name: port_name.into(), protocol: Protocol::Tcp, family: Family::V4 },
            port: 80,
            slot,
            revision: 1,
            held: Default::default(),
            members: [member(1, "here"), member(2, "there")].into(),
            sets: Vec::new(),
        }
    }

    fn look(seen: &mut Seen, ports: &[Target], counters: &Counters, now: Instant) -> Traffic {
        seen.look(ports.iter().map(|target| (target, 0.0)), counters, now)
    }

    #[test]
    fn flows_are_told_by_service_and_by_node_as_rates_since_the_last_look() {
        let (mut seen, mut counters, start) = (Seen::default(), Counters::default(), Instant::now());
        let ports = [target(7, "http", 1), target(8, "admin", 1)];
        counters.add(7, (500, 500), [(1, 500, 0), (2, 500, 9)]);
        assert_eq!(look(&mut seen, &ports, &counters, start), Traffic::default(), "nothing of the time before");
        counters.add(7, (1, 1), [(1, 1, 0), (2, 1, 0)]);
        look(&mut seen, &ports, &counters, start + Duration::from_secs(2));
        counters.add(7, (20, 6), [(1, 20, 0), (2, 6, 2)]);
        counters.add(8, (2, 0), [(1, 2, 0), (2, 0, 0)]);
        let traffic = look(&mut seen, &ports, &counters, start + Duration::from_secs(4));
        let web = &traffic.services[&ObjectName::new("shop", "web")];
        assert_eq!((&*web.name, web.local, web.remote, web.failures), ("shop/web", 11.0, 3.0, 1.0));
        assert_eq!(traffic.nodes["there"], Flows { sent: 3.0, failures: 1.0 });
    }

    #[test]
    fn what_nobody_uses_is_not_told_unless_other_nodes_send_there() {
        let (mut seen, counters, start) = (Seen::default(), Counters::default(), Instant::now());
        let port = target(7, "http", 1);
        assert_eq!(look(&mut seen, std::slice::from_ref(&port), &counters, start), Traffic::default());
        let traffic = seen.look([(&port, 4.0)].into_iter(), &counters, start + Duration::from_secs(2));
        assert_eq!(traffic.services[&port.key.service].inbound, 4.0);
        assert!(traffic.nodes.is_empty());
    }

    #[test]
    fn a_slot_that_changed_hands_brings_no_flows_of_its_last_owner() {
        let (mut seen, mut counters, start) = (Seen::default(), Counters::default(), Instant::now());
        for second in [0, 2] {
            counters.add(7, (1, 0), [(1, 1, 0), (2, 0, 0)]);
            look(&mut seen, &[target(7, "http", 1)], &counters, start + Duration::from_secs(second));
        }
        counters.add(7, (900, 0), [(1, 900, 0), (2, 0, 0)]);
        let other = Target { id: ServiceId(99), ..target(7, "http", 2) };
        let traffic = look(&mut seen, &[other], &counters, start + Duration::from_secs(4));
        assert_eq!(traffic, Traffic::default());
    }
}
