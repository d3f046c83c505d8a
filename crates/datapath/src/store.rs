//! The control plane's maps behind one small trait, in the kernel and in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::offset_of;

use weir_abi as abi;
use weir_core::local_endpoints::LocalEndpoints;
use weir_core::ops::{Dump, FrontendKey, MapOp, SourceRange};

use crate::error::Result;
use crate::filter;
use crate::flows::Flows;
use crate::frontends::Frontends;
use crate::map::{Mapped, Table};
use crate::pins::PinDir;
use crate::source_ranges;

/// What the one writer needs of the maps.
pub trait MapStore {
    /// Applies operations in order; flows to be forgotten go together after the others.
    ///
    /// # Errors
    /// The first failure; operations before it are in force, those after it are not.
    fn apply(&mut self, ops: &[MapOp]) -> Result<()>;

    /// Reads everything back.
    ///
    /// # Errors
    /// When the maps cannot be read.
    fn dump(&self) -> Result<Dump>;
}

/// The kernel's maps that the control plane writes.
#[derive(Debug)]
pub struct KernelStore {
    pub(crate) services: Mapped<abi::Service>,
    pub(crate) backends: Mapped<abi::Backend>,
    pub(crate) lines: Mapped<abi::Line>,
    pub(crate) service_counters: Mapped<abi::ServiceCounters>,
    pub(crate) backend_counters: Mapped<abi::BackendCounters>,
    pub(crate) filter: Mapped<abi::FilterWord>,
    pub(crate) frontends: Frontends,
    pub(crate) source_ranges: Table<abi::SourceRangeKey, abi::SourceRange>,
    pub(crate) local_endpoints: Table<abi::LocalKey, abi::LocalEndpoint>,
    /// What `local_endpoints` holds. A reader's is empty.
    pub(crate) locals: LocalEndpoints,
    pub(crate) service_names: Table<u32, abi::ServiceName>,
    pub(crate) node_names: Table<u32, abi::NodeName>,
    pub(crate) flows: Flows,
    /// Those that programs from before a change of size still use, and that are copied once more when they go.
    pub(crate) former_flows: Flows,
}

impl KernelStore {
    /// Opens the maps. `flags`: 0, or `BPF_F_RDONLY`.
    ///
    /// # Errors
    /// No pins there, no right to open them, or another layout.
    pub(crate) fn open(pins: &PinDir, flags: u32) -> Result<Self> {
        Ok(Self {
            services: pins.mapped("services", flags)?,
            backends: pins.mapped("backends", flags)?,
            lines: pins.mapped("lines", flags)?,
            service_counters: pins.mapped("service_counters", flags)?,
            backend_counters: pins.mapped("backend_counters", flags)?,
            filter: pins.mapped("frontend_filter", flags)?,
            frontends: Frontends::open(pins, flags)?,
            source_ranges: pins.table("source_ranges", flags)?,
            local_endpoints: pins.table("local_endpoints", flags)?,
            locals: LocalEndpoints::default(),
            service_names: pins.table("service_names", flags)?,
            node_names: pins.table("node_names", flags)?,
            flows: Flows::open_pinned(pins, flags == 0)?,
            former_flows: Flows::default(),
        })
    }

    fn apply_one(&mut self, op: &MapOp) -> Result<()> {
        let counters = abi::BackendCounters::default();
        let service_counters = abi::ServiceCounters::default();
        match op {
            MapOp::PutBackend { id, backend } => self.put_backend(*id, backend),
            MapOp::ResetBackendCounters { id } => self.backend_counters.set(*id, &counters),
            MapOp::PutBase { id, base } => {
                self.backend_counters.set_word(*id, offset_of!(abi::BackendCounters, base), *base)
            }
            MapOp::PutLine { id, line } => self.lines.set(*id, line),
            MapOp::PutService { id, service } => {
                self.services.set(*id, &on_the_way(self.services.get(*id)?, service))?;
                self.services.set(*id, service)
            }
            MapOp::ResetServiceCounters { id } => self.service_counters.set(*id, &service_counters),
            MapOp::PutServiceName { id, name } => self.service_names.put(id, name, 0),
            MapOp::DeleteServiceName { id } => self.service_names.remove(id).map(drop),
            MapOp::PutNodeName { id, name } => self.node_names.put(id, name, 0),
            MapOp::DeleteNodeName { id } => self.node_names.remove(id).map(drop),
            MapOp::PutFrontend { key, frontend } => {
                if filter::concerns(frontend) {
                    filter::add(&self.filter, key)?;
                }
                self.frontends.put(key, frontend)
            }
            MapOp::DeleteFrontend { key } => self.frontends.remove(key),
            // All of them at once, when every frontend leads where it should.
            MapOp::ForgetFlows { .. } => Ok(()),
            MapOp::PutSourceRange { range } => {
                self.source_ranges.put(&source_ranges::key(range), &abi::SourceRange { allowed: 1 }, 0)
            }
            MapOp::DeleteSourceRange { range } => self.source_ranges.remove(&source_ranges::key(range)).map(drop),
        }
    }

    fn put_backend(&mut self, id: u32, backend: &abi::Backend) -> Result<()> {
        let before = self.backends.get(id)?;
        self.backends.set(id, backend)?;
        for (key, slot) in self.locals.change(id, &before, backend) {
            self.put_local(&key, slot)?;
        }
        Ok(())
    }

    fn put_local(&self, key: &abi::LocalKey, slot: Option<u32>) -> Result<()> {
        let Some(backend) = slot else { return self.local_endpoints.remove(key).map(drop) };
        self.local_endpoints.put(key, &abi::LocalEndpoint { backend }, 0)
    }

    /// Makes the index of this node's endpoints anew, of the backends. Afterwards it follows them.
    pub(crate) fn rebuild_locals(&mut self) -> Result<()> {
        self.locals = LocalEndpoints::default();
        for id in 1..self.backends.len() {
            let backend = self.backends.get(id)?;
            let nothing = abi::Backend { flags: 0, ..backend };
            self.locals.change(id, &nothing, &backend);
        }
        let wanted: HashMap<_, _> = self.locals.entries().collect();
        for (key, _) in self.local_endpoints.entries()? {
            if !wanted.contains_key(&key) {
                self.put_local(&key, None)?;
            }
        }
        wanted.iter().try_for_each(|(key, slot)| self.put_local(key, Some(*slot)))
    }

    /// Forgets the flows that are to be forgotten after these operations, in one pass over the flows.
    fn forget_flows(&self, ops: &[MapOp]) -> Result<()> {
        let mut owners = HashMap::new();
        for op in ops {
            if let MapOp::ForgetFlows { key } = op {
                owners.insert(*key, self.frontends.get(key)?.map(|frontend| frontend.service));
            }
        }
        if owners.is_empty() {
            return Ok(());
        }
        [&self.former_flows, &self.flows].into_iter().try_for_each(|flows| flows.forget(&owners))
    }

    /// Forgets the flows of datagrams that are to no frontend or to another service's. Who was to forget them may have ended before it did.
    ///
    /// # Errors
    /// When a map cannot be read or written.
    pub fn forget_strange_flows(&self) -> Result<()> {
        let owners: HashMap<_, _> =
            self.frontends.entries()?.into_iter().map(|(key, frontend)| (key, frontend.service)).collect();
        let owner = |key: &FrontendKey| owners.get(key).copied();
        [&self.former_flows, &self.flows].into_iter().try_for_each(|flows| flows.forget_strange(owner))
    }

    fn source_ranges(&self) -> Result<Vec<SourceRange>> {
        // Without buckets the kernel begins anew where an entry is gone, and gives some twice.
        let ranges: BTreeSet<_> =
            self.source_ranges.entries()?.iter().filter_map(|(key, _)| source_ranges::range(key)).collect();
        Ok(ranges.into_iter().collect())
    }
}

/// The lines that services refer to, and the lines that those refer to.
fn lines_of(
    services: &[(u32, abi::Service)],
    read: impl Fn(u32) -> Result<Option<abi::Line>>,
) -> Result<Vec<(u32, abi::Line)>> {
    let mut lines = BTreeMap::new();
    let mut open: Vec<u32> =
        services.iter().flat_map(|(_, s)| s.tiers.iter().flat_map(|t| [t.local, t.remote])).collect();
    while let Some(reference) = open.pop() {
        let id = reference & !abi::REF_LINE;
        if reference & abi::REF_LINE == 0 || lines.contains_key(&id) {
            continue;
        }
        if let Some(line) = read(id)? {
            open.extend(line.r#ref);
            lines.insert(id, line);
        }
    }
    Ok(lines.into_iter().collect())
}

impl MapStore for KernelStore {
    fn apply(&mut self, ops: &[MapOp]) -> Result<()> {
        let failed = ops.iter().enumerate().find_map(|(index, op)| Some((index, self.apply_one(op).err()?)));
        let (applied, failure) = match failed {
            Some((index, error)) => (&ops[..index], Some(error)),
            None => (ops, None),
        };
        let forgotten = self.forget_flows(applied);
        failure.map_or(forgotten, Err)
    }

    fn dump(&self) -> Result<Dump> {
        let mut services = Vec::new();
        for id in 1..self.services.len() {
            let service = self.services.get(id)?;
            if service.flags & abi::SERVICE_USED != 0 {
                services.push((id, service));
            }
        }
        let mut backends = Vec::new();
        for id in 1..self.backends.len() {
            let backend = self.backends.get(id)?;
            if backend.flags & abi::BACKEND_USED != 0 || backend.generation != 0 {
                backends.push((id, backend));
            }
        }
        let mut service_names = self.service_names.entries()?;
        service_names.sort_by_key(|(id, _)| *id);
        let mut node_names = self.node_names.entries()?;
        node_names.sort_by_key(|(id, _)| *id);
        let lines = lines_of(&services, |id| (id < self.lines.len()).then(|| self.lines.get(id)).transpose())?;
        let (frontends, source_ranges) = (self.frontends.entries()?, self.source_ranges()?);
        Ok(Dump { services, backends, lines, frontends, service_names, node_names, source_ranges })
    }
}

/// A service whose new tiers are there while those that it loses still are: one of a class that moves to the other tier has one all the time. How many
/// endpoints there are counts where there is no tier: it is known before the last one goes.
fn on_the_way(mut old: abi::Service, new: &abi::Service) -> abi::Service {
    for (tiers, new) in old.tiers.iter_mut().zip(&new.tiers) {
        for (tier, new) in [(&mut tiers.local, new.local), (&mut tiers.remote, new.remote)] {
            *tier = if new == 0 { *tier } else { new };
        }
    }
    old.endpoints = new.endpoints;
    old
}

/// The same maps in memory: for tests of everything above the kernel.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    services: BTreeMap<u32, abi::Service>,
    backends: BTreeMap<u32, abi::Backend>,
    lines: BTreeMap<u32, abi::Line>,
    frontends: BTreeMap<FrontendKey, abi::Frontend>,
    service_names: BTreeMap<u32, abi::ServiceName>,
    node_names: BTreeMap<u32, abi::NodeName>,
    source_ranges: BTreeSet<SourceRange>,
}

impl MapStore for MemoryStore {
    fn apply(&mut self, ops: &[MapOp]) -> Result<()> {
        for op in ops {
            match op {
                MapOp::PutBackend { id, backend } => drop(self.backends.insert(*id, *backend)),
                MapOp::PutLine { id, line } => drop(self.lines.insert(*id, **line)),
                MapOp::PutService { id, service } => drop(self.services.insert(*id, *service)),
                MapOp::PutServiceName { id, name } => drop(self.service_names.insert(*id, **name)),
                MapOp::DeleteServiceName { id } => drop(self.service_names.remove(id)),
                MapOp::PutNodeName { id, name } => drop(self.node_names.insert(*id, **name)),
                MapOp::DeleteNodeName { id } => drop(self.node_names.remove(id)),
                MapOp::PutFrontend { key, frontend } => drop(self.frontends.insert(*key, *frontend)),
                MapOp::DeleteFrontend { key } => drop(self.frontends.remove(key)),
                MapOp::PutSourceRange { range } => drop(self.source_ranges.insert(*range)),
                MapOp::DeleteSourceRange { range } => drop(self.source_ranges.remove(range)),
                // Counters and flows are the kernel's.
                MapOp::ResetBackendCounters { .. }
                | MapOp::PutBase { .. }
                | MapOp::ResetServiceCounters { .. }
                | MapOp::ForgetFlows { .. } => {}
            }
        }
        Ok(())
    }

    fn dump(&self) -> Result<Dump> {
        let used =
            |(id, service): (&u32, &abi::Service)| (service.flags & abi::SERVICE_USED != 0).then_some((*id, *service));
        let services: Vec<_> = self.services.iter().filter_map(used).collect();
        let known = |backend: &abi::Backend| backend.flags & abi::BACKEND_USED != 0 || backend.generation != 0;
        let backends = self.backends.iter().filter(|(_, backend)| known(backend));
        let lines = lines_of(&services, |id| Ok(self.lines.get(&id).copied()))?;
        Ok(Dump {
            services,
            backends: backends.map(|(id, backend)| (*id, *backend)).collect(),
            lines,
            frontends: self.frontends.iter().map(|(key, value)| (*key, *value)).collect(),
            service_names: self.service_names.iter().map(|(id, name)| (*id, *name)).collect(),
            node_names: self.node_names.iter().map(|(id, name)| (*id, *name)).collect(),
            source_ranges: self.source_ranges.iter().copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(tiers: [(u32, u32); abi::CLASS_COUNT], endpoints: u32) -> abi::Service {
        let tiers = tiers.map(|(local, remote)| abi::Tiers { spill: 0, local, remote, pad: 0 });
        abi::Service { tiers, endpoints, flags: abi::SERVICE_USED, affinity: 0, pad: 0 }
    }

    #[test]
    fn a_class_that_moves_to_the_other_tier_has_both_on_the_way() {
        let (old, new) = (service([(1, 0), (0, 2), (3, 4)], 1), service([(0, 5), (6, 0), (0, 0)], 1));
        assert_eq!(on_the_way(old, &new), service([(1, 5), (6, 2), (3, 4)], 1));
    }

    #[test]
    fn a_service_that_loses_its_last_endpoint_is_known_to_have_none_before_its_last_tier_goes() {
        let (old, new) = (service([(1, 0), (0, 2), (3, 4)], 2), service([(0, 0); abi::CLASS_COUNT], 0));
        assert_eq!(on_the_way(old, &new), service([(1, 0), (0, 2), (3, 4)], 0));
    }
}
