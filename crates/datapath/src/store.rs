//! The control plane's maps behind one small trait, in the kernel and in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::offset_of;

use weir_abi as abi;
use weir_core::local_endpoints::LocalEndpoints;
use weir_core::ops::{Dump, FrontendKey, MapOp, SourceRange};

use crate::error::{Error, Result};
use crate::filter;
use crate::flows::Flows;
use crate::keys::{self, KernelKey};
use crate::layout::spec;
use crate::map::{Mapped, Table};

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
    pub(crate) frontends4: Table<abi::FrontendKey4, abi::Frontend>,
    pub(crate) frontends6: Table<abi::FrontendKey6, abi::Frontend>,
    pub(crate) source_ranges: Table<abi::SourceRangeKey, abi::SourceRange>,
    pub(crate) local_endpoints: Table<abi::LocalKey, abi::LocalEndpoint>,
    /// What `local_endpoints` holds. A reader's is empty.
    pub(crate) locals: LocalEndpoints,
    pub(crate) service_names: Table<u32, abi::ServiceName>,
    pub(crate) node_names: Table<u32, abi::NodeName>,
    pub(crate) flows: Flows,
    /// Those that programs from before a change of size still use, and that are copied once more when they go.
    pub(crate) former_flows: Flows,
    pub(crate) source_range_size: u32,
    pub(crate) frontend_size: u32,
    pub(crate) node_size: u32,
}

fn full(map: &'static str, size: u32) -> impl Fn(Error) -> Error {
    move |error| match &error {
        Error::Io { cause, .. } if matches!(cause.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)) => {
            Error::MapFull { map, size, option: spec(map).option }
        }
        _ => error,
    }
}

impl KernelStore {
    fn apply_one(&mut self, op: &MapOp) -> Result<()> {
        let counters = abi::BackendCounters::default();
        let service_counters = abi::ServiceCounters { local: 0, remote: 0, rejected: 0, dropped: 0 };
        match op {
            MapOp::PutBackend { id, backend } => self.put_backend(*id, backend),
            MapOp::ResetBackendCounters { id } => self.backend_counters.set(*id, &counters),
            MapOp::PutBase { id, base } => {
                self.backend_counters.set_word(*id, offset_of!(abi::BackendCounters, base), *base)
            }
            MapOp::PutLine { id, line } => self.lines.set(*id, line),
            MapOp::PutService { id, service } => self.services.set(*id, service),
            MapOp::ResetServiceCounters { id } => self.service_counters.set(*id, &service_counters),
            MapOp::PutServiceName { id, name } => {
                self.service_names.put(id, name, 0).map_err(full("service_names", self.services.len()))
            }
            MapOp::DeleteServiceName { id } => self.service_names.remove(id).map(drop),
            MapOp::PutNodeName { id, name } => {
                self.node_names.put(id, name, 0).map_err(full("node_names", self.node_size))
            }
            MapOp::DeleteNodeName { id } => self.node_names.remove(id).map(drop),
            MapOp::PutFrontend { key, frontend } => self.put_frontend(key, frontend),
            MapOp::DeleteFrontend { key } => match keys::of_frontend(key) {
                KernelKey::V4(key) => self.frontends4.remove(&key).map(drop),
                KernelKey::V6(key) => self.frontends6.remove(&key).map(drop),
            },
            // All of them at once, when every frontend leads where it should.
            MapOp::ForgetFlows { .. } => Ok(()),
            MapOp::PutSourceRange { range } => {
                let put = self.source_ranges.put(&keys::of_range(range), &abi::SourceRange { allowed: 1 }, 0);
                put.map_err(full("source_ranges", self.source_range_size))
            }
            MapOp::DeleteSourceRange { range } => self.source_ranges.remove(&keys::of_range(range)).map(drop),
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
        let put = self.local_endpoints.put(key, &abi::LocalEndpoint { backend }, 0);
        put.map_err(full("local_endpoints", self.backends.len()))
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

    fn put_frontend(&self, key: &FrontendKey, frontend: &abi::Frontend) -> Result<()> {
        filter::add(&self.filter, key)?;
        match keys::of_frontend(key) {
            KernelKey::V4(key) => {
                self.frontends4.put(&key, frontend, 0).map_err(full("frontends4", self.frontend_size))
            }
            KernelKey::V6(key) => {
                self.frontends6.put(&key, frontend, 0).map_err(full("frontends6", self.frontend_size))
            }
        }
    }

    /// Forgets the flows that are to be forgotten after these operations, in one pass over the flows.
    fn forget_flows(&self, ops: &[MapOp]) -> Result<()> {
        let mut owners = HashMap::new();
        for op in ops {
            if let MapOp::ForgetFlows { key } = op {
                owners.insert(*key, self.owner(key)?);
            }
        }
        if owners.is_empty() {
            return Ok(());
        }
        [&self.former_flows, &self.flows].into_iter().try_for_each(|flows| flows.forget(&owners))
    }

    /// The service that a frontend leads to.
    fn owner(&self, key: &FrontendKey) -> Result<Option<u32>> {
        let frontend = match keys::of_frontend(key) {
            KernelKey::V4(key) => self.frontends4.get(&key)?,
            KernelKey::V6(key) => self.frontends6.get(&key)?,
        };
        Ok(frontend.map(|frontend| frontend.service))
    }

    pub(crate) fn frontends(&self) -> Result<Vec<(FrontendKey, abi::Frontend)>> {
        let v4 = self.frontends4.entries()?.into_iter().map(|(key, value)| (keys::frontend4(&key), value));
        let v6 = self.frontends6.entries()?.into_iter().map(|(key, value)| (keys::frontend6(&key), value));
        let mut all: Vec<_> = v4.chain(v6).collect();
        all.sort_by_key(|(key, _)| *key);
        Ok(all)
    }

    fn source_ranges(&self) -> Result<Vec<SourceRange>> {
        // Without buckets the kernel begins anew where an entry is gone, and gives some twice.
        let ranges: BTreeSet<_> =
            self.source_ranges.entries()?.iter().filter_map(|(key, _)| keys::range(key)).collect();
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
        let (frontends, source_ranges) = (self.frontends()?, self.source_ranges()?);
        Ok(Dump { services, backends, lines, frontends, service_names, node_names, source_ranges })
    }
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
