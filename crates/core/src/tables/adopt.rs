//! A restart: who owns what the maps hold. What cannot be explained is kept apart as an orphan until it is pruned, so that
//! no slot of it is taken while something may still lead there.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use weir_abi as abi;

use super::frontends::{Claim, Frontends, NOBODY, is_of_address};
use super::names::{NodeNumbers, text};
use super::pool::Pool;
use super::{Orphans, Port, Tables, endpoint, roots};
use crate::lines;
use crate::model::{Family, ObjectName, Protocol};
use crate::ops::{Capacity, Dump, FrontendKey, SourceRange};

type Lines<'a> = HashMap<u32, &'a abi::Line>;

impl Tables {
    /// The ledger of maps that an earlier writer filled, as read back in `dump`. Services are recognised by their names,
    /// their backends by address and port; both keep their slots and content until they are replaced or pruned.
    /// Whatever is inconsistent is removed by the first [`Tables::prune`].
    #[must_use]
    pub fn adopt(capacity: Capacity, dump: &Dump) -> Self {
        let mut tables = Self::new(capacity);
        let lines: Lines<'_> = dump.lines.iter().map(|(slot, line)| (*slot, line)).collect();
        let mut ports = named_ports(capacity, dump);
        tables.adopt_nodes(dump);
        tables.adopt_backends(dump, &mut ports);
        let trees = tables.consistent_trees(&ports, &lines);
        ports.retain(|slot, _| trees.contains_key(slot));

        for slot in trees.into_values().flatten() {
            if let Some(line) = lines.get(&slot) {
                tables.lines.insert(slot, Box::new(**line));
            }
        }
        tables.set_orphans_apart(dump, &ports, &lines);
        tables.adopt_frontends(dump, &mut ports);
        tables.adopt_source_ranges(dump, &mut ports);
        // The nodes of orphans too: their names stay until the orphans go.
        for (slot, backend) in &dump.backends {
            if backend.flags & abi::BACKEND_USED != 0 && (1..capacity.backends).contains(slot) {
                tables.nodes.count(backend.node);
            }
        }
        for (slot, port) in ports {
            tables.slots.entry(port.service.clone()).or_default().push(slot);
            tables.ports.insert(slot, port);
        }
        tables.adopt_pools();
        tables
    }

    fn adopt_nodes(&mut self, dump: &Dump) {
        let used = dump.node_names.iter().map(|(number, _)| *number).collect();
        self.nodes = NodeNumbers::new(self.capacity.nodes, &used);
        for (number, name) in &dump.node_names {
            self.nodes.adopt(*number, *name);
        }
    }

    /// Gives each port the backends that name it. Those that fit no port are orphans.
    fn adopt_backends(&mut self, dump: &Dump, ports: &mut BTreeMap<u32, Port>) {
        let mut lists: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let range = 1..self.capacity.backends;
        for (slot, backend) in dump.backends.iter().filter(|(slot, _)| range.contains(slot)) {
            // A number that has lost its name says nothing, and the next plan gives the endpoint another one.
            let node = if self.nodes.contains(backend.node) { backend.node } else { 0 };
            self.set_backend(*slot, abi::Backend { node, ..*backend });
            if backend.flags & abi::BACKEND_USED == 0 {
                continue;
            }
            match ports.get(&backend.service) {
                Some(port) if fits(port, backend.proto, backend.addr.ip()) => {
                    lists.entry(backend.service).or_default().push(*slot);
                }
                Some(_) | None => {
                    self.orphans.backends.insert(*slot);
                }
            }
        }
        for (slot, mut list) in lists {
            list.sort_by_key(|id| (endpoint(&self.backend(*id)), *id));
            let mut seen = None;
            let (unique, twins): (Vec<_>, Vec<_>) = list.into_iter().partition(|id| {
                let endpoint = endpoint(&self.backend(*id));
                seen.replace(endpoint) != Some(endpoint)
            });
            self.orphans.backends.extend(twins);
            if let Some(port) = ports.get_mut(&slot) {
                port.backends = unique.into();
            }
        }
    }

    /// By port, the lines of its tiers, if they lead to its own backends and to nothing that another port uses.
    fn consistent_trees(&self, ports: &BTreeMap<u32, Port>, lines: &Lines<'_>) -> BTreeMap<u32, Vec<u32>> {
        let mut trees: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut users: HashMap<u32, u32> = HashMap::new();
        for (slot, port) in ports {
            let own: HashSet<u32> = port.backends.iter().copied().collect();
            let mut found = Vec::new();
            let distinct: BTreeSet<_> = roots(&port.content).filter(|root| *root != 0).collect();
            let consistent = distinct.iter().all(|root| tree_is_consistent(*root, &own, lines, &mut found));
            found.iter().for_each(|line| *users.entry(*line).or_default() += 1);
            if consistent {
                trees.insert(*slot, found);
            }
        }
        trees.retain(|_, found| found.iter().all(|line| users.get(line) == Some(&1)));
        trees
    }

    /// Reserves every slot that is used, or referred to, by what belongs to none of the ports.
    fn set_orphans_apart(&mut self, dump: &Dump, ports: &BTreeMap<u32, Port>, lines: &Lines<'_>) {
        let range = 1..self.capacity.services;
        let known = |slot: &u32| ports.contains_key(slot);
        let adopted: HashSet<u32> = ports.values().flat_map(|port| port.backends.iter().copied()).collect();
        let Orphans { services, names, backends, lines: orphan_lines, source_ranges: _ } = &mut self.orphans;
        names.extend(dump.service_names.iter().map(|(slot, _)| *slot).filter(|slot| !known(slot)));
        services.extend(names.iter().filter(|slot| range.contains(slot)));
        for (slot, service) in dump.services.iter().filter(|(slot, _)| range.contains(slot) && !known(slot)) {
            if service.flags & abi::SERVICE_USED != 0 {
                services.insert(*slot);
            }
            let mut open: Vec<u32> = roots(service).collect();
            while let Some(reference) = open.pop() {
                let id = reference & !abi::REF_LINE;
                if reference & abi::REF_LINE == 0 {
                    backends.extend((1..self.capacity.backends).contains(&id).then_some(id));
                } else if (0..self.capacity.lines).contains(&id) && orphan_lines.insert(id) {
                    open.extend(lines.get(&id).iter().flat_map(|line| line.r#ref));
                }
            }
        }
        for (slot, backend) in &dump.backends {
            let in_range = (1..self.capacity.backends).contains(slot);
            if in_range && backend.flags & abi::BACKEND_USED != 0 {
                backends.insert(*slot);
            }
        }
        backends.retain(|slot| !adopted.contains(slot));
        orphan_lines.retain(|slot| !self.lines.contains_key(slot));
    }

    fn adopt_frontends(&mut self, dump: &Dump, ports: &mut BTreeMap<u32, Port>) {
        self.frontends = Frontends::new(self.capacity.frontends);
        let mut claims: BTreeMap<u32, Vec<FrontendKey>> = BTreeMap::new();
        for (key, frontend) in &dump.frontends {
            let port = ports.get(&frontend.service);
            let slot = match port.filter(|port| is_frontend_of(port, key, frontend.kind)) {
                Some(_) => frontend.service,
                None => NOBODY,
            };
            self.frontends.adopt(*key, Claim { slot, kind: frontend.kind });
            claims.entry(slot).or_default().push(*key);
        }
        for (slot, keys) in claims {
            if let Some(port) = ports.get_mut(&slot) {
                port.claims = keys.into();
            }
        }
    }

    /// The slot of a range without a service is reserved: who got it would admit the range.
    fn adopt_source_ranges(&mut self, dump: &Dump, ports: &mut BTreeMap<u32, Port>) {
        let mut lists: BTreeMap<u32, Vec<IpNet>> = BTreeMap::new();
        let ranges: BTreeSet<&SourceRange> = dump.source_ranges.iter().collect();
        self.source_ranges = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        for range in ranges {
            match ports.get(&range.service) {
                Some(port) if port.family == Family::of(range.net.addr()) => {
                    lists.entry(range.service).or_default().push(range.net);
                }
                port => {
                    self.orphans.source_ranges.insert(*range);
                    let in_range = (1..self.capacity.services).contains(&range.service);
                    self.orphans.services.extend((port.is_none() && in_range).then_some(range.service));
                }
            }
        }
        for (slot, list) in lists {
            if let Some(port) = ports.get_mut(&slot) {
                port.source_ranges = list.into();
            }
        }
    }

    fn adopt_pools(&mut self) {
        let Orphans { services, names: _, backends, lines, source_ranges: _ } = &self.orphans;
        let used = self.ports.keys().chain(services).copied().collect();
        self.port_pool = Pool::new(1, self.capacity.services, &used);
        let owned = self.ports.values().flat_map(|port| &port.backends);
        let used = owned.chain(backends).copied().collect();
        self.backend_pool = Pool::new(1, self.capacity.backends, &used);
        let used = self.lines.keys().chain(lines).copied().collect();
        self.line_pool = Pool::new(0, self.capacity.lines, &used);
    }
}

/// Used slots of `services` whose names say whose they are. Of two with the same name the first counts.
fn named_ports(capacity: Capacity, dump: &Dump) -> BTreeMap<u32, Port> {
    let names: HashMap<u32, &abi::ServiceName> = dump.service_names.iter().map(|(slot, name)| (*slot, name)).collect();
    let mut keys = HashSet::new();
    let mut ports = BTreeMap::new();
    for (slot, content) in &dump.services {
        let used = content.flags & abi::SERVICE_USED != 0 && (1..capacity.services).contains(slot);
        let Some(port) = names.get(slot).filter(|_| used).and_then(|name| port(name, *content)) else { continue };
        if keys.insert((port.service.clone(), Arc::clone(&port.port_name), port.protocol, port.family)) {
            ports.insert(*slot, port);
        }
    }
    ports
}

fn port(name: &abi::ServiceName, content: abi::Service) -> Option<Port> {
    let abi::ServiceName { namespace, name, port_name, port, proto, family, created } = name;
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = protocols.into_iter().find(|protocol| protocol.number() == *proto)?;
    let family = [Family::V4, Family::V6].into_iter().find(|known| known.number() == *family)?;
    Some(Port {
        service: ObjectName::new(text(namespace)?, text(name)?),
        port_name: text(port_name)?.into(),
        protocol,
        family,
        port: *port,
        created: *created,
        content,
        backends: Box::default(),
        claims: Box::default(),
        source_ranges: Box::default(),
        thin: false,
    })
}

fn fits(port: &Port, proto: u8, address: IpAddr) -> bool {
    port.protocol.number() == proto && port.family == Family::of(address)
}

fn is_frontend_of(port: &Port, key: &FrontendKey, kind: u32) -> bool {
    let protocol = if is_of_address(kind) { port.protocol.number() } else { key.protocol };
    fits(port, protocol, key.address)
}

/// Whether a reference leads to the port's own backends alone. Adds its lines to `found`.
fn tree_is_consistent(root: u32, own: &HashSet<u32>, lines: &Lines<'_>, found: &mut Vec<u32>) -> bool {
    if root & abi::REF_LINE == 0 {
        return own.contains(&root);
    }
    let mut leads_home = true;
    let complete = lines::walk(root, &|slot| lines.get(&slot).copied(), &mut |slot, line| {
        found.push(slot);
        let last = line.cumulative.iter().position(|upper| *upper == u32::MAX).unwrap_or(abi::LINE_ENTRIES - 1);
        let (used, unused) = line.r#ref.split_at(last + 1);
        leads_home &= used.iter().all(|next| next & abi::REF_LINE != 0 || own.contains(next));
        leads_home &= unused.iter().all(|next| *next == 0);
    });
    complete && leads_home
}
