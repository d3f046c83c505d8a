//! The maps in memory: what the operations make of them, and whether they lead anywhere wrong.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use weir_abi as abi;
use weir_core::ops::{Dump, FrontendKey, MapOp, SourceRange};

const UDP: u8 = 17;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Maps {
    pub(crate) backends: BTreeMap<u32, abi::Backend>,
    pub(crate) lines: BTreeMap<u32, abi::Line>,
    pub(crate) services: BTreeMap<u32, abi::Service>,
    pub(crate) service_names: BTreeMap<u32, abi::ServiceName>,
    pub(crate) node_names: BTreeMap<u32, abi::NodeName>,
    pub(crate) frontends: BTreeMap<FrontendKey, abi::Frontend>,
    pub(crate) source_ranges: BTreeSet<SourceRange>,
    /// Frontends of UDP with the services whose flows to them may go on.
    pub(crate) flows: BTreeSet<(FrontendKey, u32)>,
    /// Of `backend_counters`, by slot.
    pub(crate) bases: BTreeMap<u32, u32>,
}

/// What the maps mean, without slot numbers: (namespace, name, port name, protocol, family).
pub(crate) type PortId = (String, String, String, u8, u8);
pub(crate) type Endpoint = (IpAddr, u16);
pub(crate) type Shares = Vec<(u32, Endpoint)>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PortContent {
    pub(crate) port: u16,
    pub(crate) endpoints: u32,
    pub(crate) affinity: u32,
    pub(crate) source_ranges: BTreeSet<IpNet>,
    /// Flags, node and zone of each backend.
    pub(crate) backends: BTreeMap<Endpoint, (u8, String, String)>,
    /// Spill, and the upper bound of each endpoint in the local and the remote tier.
    pub(crate) tiers: Vec<(u32, Shares, Shares)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Meaning {
    pub(crate) ports: BTreeMap<PortId, PortContent>,
    pub(crate) frontends: BTreeMap<FrontendKey, (PortId, u32)>,
    pub(crate) nodes: BTreeSet<(String, String)>,
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(bytes[..end].to_vec()).unwrap()
}

impl Maps {
    pub(crate) fn apply(&mut self, op: &MapOp) {
        match op {
            MapOp::PutBackend { id, backend } => {
                let identity = |b: &abi::Backend| (b.flags & abi::BACKEND_USED, b.addr, b.port, b.proto, b.service);
                let old = self.backends.insert(*id, *backend).filter(|old| identity(old) != identity(backend));
                let fresh = old.is_none_or(|old| old.generation != backend.generation);
                assert!(fresh, "backend {id} changed hands with its generation: flows would follow");
            }
            MapOp::ResetBackendCounters { id } => {
                let used = self.backends.get(id).is_some_and(|backend| backend.flags & abi::BACKEND_USED != 0);
                assert!(!used, "counters of backend {id} are reset while it is in use");
            }
            MapOp::PutBase { id, base } => drop(self.bases.insert(*id, *base)),
            MapOp::PutLine { id, line } => {
                let used = self.services.values().any(|service| self.reachable(service).0.contains(id));
                // Bounds may move under a reader, references may not.
                let redrawn = self.lines.get(id).is_some_and(|held| held.r#ref == line.r#ref);
                assert!(!used || redrawn, "references of line {id} change while a service refers to it");
                self.lines.insert(*id, **line);
            }
            MapOp::PutService { id, service } => {
                self.services.insert(*id, *service);
                // Its backends are vacated with it, so its flows are stale.
                self.flows.retain(|(_, owner)| owner != id || service.flags & abi::SERVICE_USED != 0);
            }
            MapOp::ResetServiceCounters { id } => {
                let used = self.services.get(id).is_some_and(|service| service.flags & abi::SERVICE_USED != 0);
                assert!(!used, "counters of service {id} are reset while it is in use");
            }
            MapOp::PutServiceName { id, name } => drop(self.service_names.insert(*id, **name)),
            MapOp::DeleteServiceName { id } => assert!(self.service_names.remove(id).is_some(), "no name {id}"),
            MapOp::PutNodeName { id, name } => drop(self.node_names.insert(*id, **name)),
            MapOp::DeleteNodeName { id } => assert!(self.node_names.remove(id).is_some(), "no node {id}"),
            MapOp::PutFrontend { key, frontend } => {
                self.frontends.insert(*key, *frontend);
                self.flows.extend((key.protocol == UDP).then_some((*key, frontend.service)));
            }
            MapOp::DeleteFrontend { key } => assert!(self.frontends.remove(key).is_some(), "no {key:?}"),
            MapOp::ForgetFlows { key } => {
                assert_eq!(key.protocol, UDP, "{key:?}: only flows of UDP are forgotten");
                let owner = self.frontends.get(key).map(|frontend| frontend.service);
                self.flows.retain(|(other, service)| other != key || owner == Some(*service));
            }
            MapOp::PutSourceRange { range } => assert!(self.source_ranges.insert(*range), "{range:?} again"),
            MapOp::DeleteSourceRange { range } => assert!(self.source_ranges.remove(range), "no {range:?}"),
        }
    }

    fn leads_to(&self, key: &FrontendKey, service: u32) -> bool {
        self.frontends.get(key).is_some_and(|frontend| frontend.service == service)
    }

    /// Whether all flows of UDP belong to the service that has their frontend now.
    pub(crate) fn check_flows(&self) -> Result<(), String> {
        let astray = self.flows.iter().find(|(key, service)| !self.leads_to(key, *service));
        astray.map_or(Ok(()), |(key, service)| Err(format!("flows to {key:?} go on to service {service}")))
    }

    /// What a crash between a frontend and the flows to it leaves behind goes when it is idle.
    pub(crate) fn expire_flows(&mut self) {
        let flows = std::mem::take(&mut self.flows);
        self.flows = flows.into_iter().filter(|(key, service)| self.leads_to(key, *service)).collect();
    }

    /// Applies the operations and checks the maps after each of them.
    pub(crate) fn apply_all(&mut self, ops: &[MapOp]) {
        for (index, op) in ops.iter().enumerate() {
            self.apply(op);
            if let Err(fault) = self.check() {
                panic!("after {op:?}, operation {index} of {ops:#?}: {fault}");
            }
        }
    }

    /// Whether every frontend leads to a service and every service to backends of its own.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (key, frontend) in &self.frontends {
            let service = self.services.get(&frontend.service);
            if service.is_none_or(|service| service.flags & abi::SERVICE_USED == 0) {
                return Err(format!("{key:?} leads to unused service {}", frontend.service));
            }
        }
        let mut line_users = HashMap::new();
        for (slot, service) in &self.services {
            self.check_service(*slot, service)?;
            let (lines, backends) = self.reachable(service);
            for line in lines {
                if !self.lines.contains_key(&line) {
                    return Err(format!("service {slot} leads to missing line {line}"));
                }
                if let Some(other) = line_users.insert(line, slot) {
                    return Err(format!("services {other} and {slot} share line {line}"));
                }
            }
            for id in backends {
                let backend = self.backends.get(&id).filter(|backend| backend.flags & abi::BACKEND_USED != 0);
                let Some(backend) = backend else { return Err(format!("service {slot} leads to unused backend {id}")) };
                if backend.service != *slot {
                    return Err(format!("service {slot} leads to backend {id} of service {}", backend.service));
                }
                if backend.node != 0 && !self.node_names.contains_key(&backend.node) {
                    return Err(format!("backend {id} is on unnamed node {}", backend.node));
                }
            }
        }
        Ok(())
    }

    /// Whether a client that comes back finds the backend that it was sent to, and whether somebody is admitted at all.
    fn check_service(&self, slot: u32, service: &abi::Service) -> Result<(), String> {
        for class in 0..abi::CLASS_COUNT {
            let mut only = *service;
            only.tiers = [only.tiers[class]; abi::CLASS_COUNT];
            let flags = |id: &u32| self.backends.get(id).map_or(0, |backend| backend.flags);
            let unaware = self.reachable(&only).1.into_iter().find(|id| flags(id) & abi::BACKEND_CLASS << class == 0);
            if let Some(id) = unaware {
                return Err(format!(
                    "class {class} of service {slot} leads to backend {id}, which is not of the class"
                ));
            }
        }
        let guarded = service.flags & abi::SERVICE_SOURCE_RANGES != 0;
        if guarded && !self.source_ranges.iter().any(|range| range.service == slot) {
            return Err(format!("service {slot} asks for source ranges and has none"));
        }
        Ok(())
    }

    /// Lines and backends that a service refers to.
    pub(crate) fn reachable(&self, service: &abi::Service) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let (mut lines, mut backends) = (BTreeSet::new(), BTreeSet::new());
        let mut open: Vec<u32> = service.tiers.iter().flat_map(|tiers| [tiers.local, tiers.remote]).collect();
        while let Some(reference) = open.pop() {
            let id = reference & !abi::REF_LINE;
            if reference & abi::REF_LINE == 0 {
                backends.extend((id != 0).then_some(id));
            } else if lines.insert(id) {
                open.extend(self.lines.get(&id).iter().flat_map(|line| line.r#ref));
            }
        }
        (lines, backends)
    }

    /// What a restart reads back.
    pub(crate) fn dump(&self) -> Dump {
        let used: Vec<_> = self.services.iter().filter(|(_, service)| service.flags & abi::SERVICE_USED != 0).collect();
        let lines: BTreeSet<u32> = used.iter().flat_map(|(_, service)| self.reachable(service).0).collect();
        Dump {
            services: used.iter().map(|(slot, service)| (**slot, **service)).collect(),
            backends: self.backends.iter().map(|(slot, backend)| (*slot, *backend)).collect(),
            lines: lines.into_iter().filter_map(|slot| Some((slot, *self.lines.get(&slot)?))).collect(),
            frontends: self.frontends.iter().map(|(key, frontend)| (*key, *frontend)).collect(),
            service_names: self.service_names.iter().map(|(slot, name)| (*slot, *name)).collect(),
            node_names: self.node_names.iter().map(|(number, name)| (*number, *name)).collect(),
            source_ranges: self.source_ranges.iter().copied().collect(),
        }
    }

    pub(crate) fn meaning(&self) -> Meaning {
        let used = self.services.iter().filter(|(_, service)| service.flags & abi::SERVICE_USED != 0);
        let ports = used.map(|(slot, service)| (self.port_id(*slot), self.content(*slot, service))).collect();
        let frontends =
            self.frontends.iter().map(|(key, value)| (*key, (self.port_id(value.service), value.kind))).collect();
        let nodes = self.node_names.values().map(|name| (text(&name.name), text(&name.zone))).collect();
        Meaning { ports, frontends, nodes }
    }

    pub(crate) fn used_backends(&self) -> BTreeMap<u32, abi::Backend> {
        let used = self.backends.iter().filter(|(_, backend)| backend.flags & abi::BACKEND_USED != 0);
        used.map(|(slot, backend)| (*slot, *backend)).collect()
    }

    fn port_id(&self, slot: u32) -> PortId {
        let name = &self.service_names[&slot];
        (text(&name.namespace), text(&name.name), text(&name.port_name), name.proto, name.family)
    }

    fn content(&self, slot: u32, service: &abi::Service) -> PortContent {
        let backends = self.used_backends().into_values().filter(|backend| backend.service == slot);
        let backends = backends.map(|backend| {
            let (node, zone) = match backend.node {
                0 => Default::default(),
                node => (text(&self.node_names[&node].name), text(&self.node_names[&node].zone)),
            };
            ((backend.addr.ip(), backend.port.get()), (backend.flags, node, zone))
        });
        let entries = |root| {
            let mut entries = Vec::new();
            self.entries(root, u32::MAX, &mut entries);
            entries
        };
        let tiers = service.tiers.map(|tiers| (tiers.spill, entries(tiers.local), entries(tiers.remote)));
        PortContent {
            port: self.service_names[&slot].port,
            endpoints: service.endpoints,
            affinity: service.affinity,
            source_ranges: self.ranges_in_force(slot, service),
            backends: backends.collect(),
            tiers: tiers.into(),
        }
    }

    /// The ranges of a service, which must ask for them if it has some.
    fn ranges_in_force(&self, slot: u32, service: &abi::Service) -> BTreeSet<IpNet> {
        let own = self.source_ranges.iter().filter(|range| range.service == slot);
        let ranges: BTreeSet<_> = own.map(|range| range.net).collect();
        assert_eq!(service.flags & abi::SERVICE_SOURCE_RANGES != 0, !ranges.is_empty(), "service {slot}: {ranges:?}");
        ranges
    }

    /// Where new flows to a frontend may go.
    pub(crate) fn choices(&self, key: &FrontendKey, class: usize) -> BTreeSet<IpAddr> {
        let mut service = self.services[&self.frontends[key].service];
        service.tiers = [service.tiers[class]; abi::CLASS_COUNT];
        self.reachable(&service).1.iter().map(|id| self.backends[id].addr.ip()).collect()
    }

    fn entries(&self, reference: u32, upper: u32, entries: &mut Vec<(u32, Endpoint)>) {
        if reference & abi::REF_LINE != 0 {
            let line = &self.lines[&(reference & !abi::REF_LINE)];
            for (bound, next) in line.cumulative.iter().zip(line.r#ref) {
                self.entries(next, upper.min(*bound), entries);
            }
        } else if let Some(backend) = self.backends.get(&reference) {
            entries.push((upper, (backend.addr.ip(), backend.port.get())));
        }
    }
}
