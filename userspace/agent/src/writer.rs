//! The one writer: cluster events and interfaces in, map operations and attachments out.
//!
//! Until every watch has delivered its first list nothing is written, so nothing that an earlier agent left is lost. Then
//! everything is planned anew and compared, and what has no owner any more goes away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use weir_abi as abi;
use weir_core::cluster::{Cluster, Dirty, Event};
use weir_core::interfaces::{Attachment, Interface, Patterns};
use weir_core::model::{Family, ObjectName};
use weir_core::ops::{Capacity, MapOp};
use weir_core::plan::{PlanConfig, plan};
use weir_core::tables::Tables;
use weir_datapath::{AttachOptions, Datapath, MapStore};

use crate::args::NodePortAddresses;
use crate::host;
use crate::metrics::WriterMetrics;
use crate::probes::WriterStatus;

mod attach;

/// How long a slot rests before somebody else may own it: longer than any packet stays in a program or a queue.
const GRACE: Duration = Duration::from_secs(5);
/// Events that are applied before their services are written: a burst is written once.
const BATCH: usize = 1024;

/// What the writer is told at its start.
pub(crate) struct Settings {
    pub(crate) plan: PlanConfig,
    pub(crate) nodeport_addresses: Vec<NodePortAddresses>,
    pub(crate) patterns: Patterns,
    pub(crate) attach: AttachOptions,
    pub(crate) xdp_on_veth: bool,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) capacity: Capacity,
    /// All of the configuration but the node's addresses.
    pub(crate) config: abi::Config,
}

/// See the module's description.
pub(crate) struct Writer {
    settings: Settings,
    datapath: Datapath,
    cluster: Cluster,
    tables: Tables,
    dirty: Dirty,
    interfaces: Vec<Interface>,
    attached: BTreeMap<u32, (String, Attachment)>,
    /// Interfaces that could not be attached to, and why. Tried again with the grace period.
    unattached: BTreeMap<u32, String>,
    /// Services that could not be written, and why; what the maps held before stays.
    failed: BTreeMap<ObjectName, String>,
    synced: bool,
    /// An earlier agent's services are served until the first sync.
    adopted: bool,
    status: watch::Sender<WriterStatus>,
    metrics: WriterMetrics,
}

impl Writer {
    /// Takes over the datapath with whatever it holds, and attaches the socket hooks.
    pub(crate) fn new(
        mut datapath: Datapath,
        settings: Settings,
        status: watch::Sender<WriterStatus>,
        metrics: WriterMetrics,
    ) -> Result<Self> {
        let dump = datapath.store().dump()?;
        let tables = Tables::adopt(settings.capacity, &dump);
        info!(services = dump.services.len(), frontends = dump.frontends.len(), "adopted what the maps hold");
        let mut writer = Self {
            settings,
            datapath,
            cluster: Cluster::default(),
            tables,
            dirty: Dirty::default(),
            interfaces: Vec::new(),
            attached: BTreeMap::new(),
            unattached: BTreeMap::new(),
            failed: BTreeMap::new(),
            synced: false,
            adopted: !dump.services.is_empty(),
            status,
            metrics,
        };
        let known = writer.datapath.config()?;
        let addresses = [known.node4, known.node6].map(abi::Addr::ip);
        writer.configure(&addresses)?;
        match writer.settings.cgroup.clone() {
            Some(cgroup) => writer.datapath.attach_cgroup(&cgroup)?,
            None => writer.datapath.detach_cgroup()?,
        }
        writer.publish();
        Ok(writer)
    }

    /// Works until `stop`, or until both sources are closed. What is pinned stays.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut interfaces: watch::Receiver<Vec<Interface>>,
        stop: CancellationToken,
    ) -> Result<()> {
        let mut grace = tokio::time::interval(GRACE);
        // Ticks that were missed must not come at once: slots would not have rested.
        grace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return Ok(()) };
                    let received = Instant::now();
                    self.take(event);
                    while let Some(event) = (self.dirty.services.len() < BATCH).then(|| events.try_recv().ok()).flatten() {
                        self.take(event);
                    }
                    self.write(received)?;
                }
                changed = interfaces.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.interfaces = interfaces.borrow_and_update().clone();
                    self.node_changed()?;
                    self.attach();
                    if self.synced {
                        self.write(Instant::now())?;
                    }
                }
                _ = grace.tick() => {
                    self.tables.release();
                    self.retry()?;
                    if !self.unattached.is_empty() {
                        self.attach();
                    }
                }
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    fn take(&mut self, event: Event) {
        let dirty = self.cluster.apply(event);
        self.dirty.merge(dirty);
    }

    fn write(&mut self, received: Instant) -> Result<()> {
        if !self.cluster.synced() {
            return Ok(());
        }
        if !self.synced {
            return self.first_sync(received);
        }
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.nodes {
            self.node_changed()?;
            self.attach();
        }
        let mut services = dirty.services;
        services.append(&mut self.dirty.services);
        // Where a node lives decides which backends are hosts, and zones decide about hints.
        if dirty.nodes {
            services.extend(self.cluster.services().map(|service| service.name.clone()));
        }
        if services.is_empty() {
            return Ok(());
        }
        self.write_services(&services)?;
        self.metrics.programmed(received.elapsed(), services.len());
        self.publish();
        Ok(())
    }

    /// Writes everything for the first time, and removes what nobody owns. `received` is when the last watch's list came.
    fn first_sync(&mut self, received: Instant) -> Result<()> {
        self.dirty = Dirty::default();
        self.node_changed()?;
        let services: BTreeSet<_> = self.cluster.services().map(|service| service.name.clone()).collect();
        // Before the rest, so that an address that moved to another service is free for it.
        let ops = self.tables.prune(|name| services.contains(name));
        self.apply(&ops)?;
        self.write_services(&services)?;
        self.datapath.rebuild_filter()?;
        self.synced = true;
        self.attach();
        let took = received.elapsed();
        self.metrics.synced(took);
        self.publish();
        info!(services = services.len(), seconds = took.as_secs_f64(), "synced");
        let node = &self.settings.plan.node;
        if self.cluster.node(node).is_none() {
            warn!(%node, "the cluster has no node of this name: no endpoint counts as local; see --node-name");
        }
        host::release_free_memory();
        Ok(())
    }

    /// Plans and writes services; those that are gone first, to make room and to free their addresses.
    fn write_services(&mut self, services: &BTreeSet<ObjectName>) -> Result<()> {
        let (present, gone): (Vec<_>, Vec<_>) = services.iter().partition(|name| self.cluster.service(name).is_some());
        for name in gone.into_iter().chain(present) {
            self.write_service(name)?;
        }
        Ok(())
    }

    fn write_service(&mut self, name: &ObjectName) -> Result<()> {
        let plans = plan(&self.cluster, &self.settings.plan, name);
        match self.tables.replace(name, &plans, host::uptime_seconds()) {
            Ok(update) => {
                for conflict in &update.conflicts {
                    warn!(
                        address = %conflict.key.address,
                        port = conflict.key.port,
                        kept_by = %conflict.kept_by,
                        refused = %conflict.refused,
                        "two services claim one address; the first keeps it"
                    );
                }
                if self.failed.remove(name).is_some() {
                    info!(service = %name, "written after all");
                }
                self.apply(&update.ops)
            }
            Err(cause) => {
                let cause = cause.to_string();
                if self.failed.get(name) != Some(&cause) {
                    error!(service = %name, %cause, "service not written, its old state stays in force");
                }
                self.failed.insert(name.clone(), cause);
                Ok(())
            }
        }
    }

    /// Tries again what found no room; slots may have come free.
    fn retry(&mut self) -> Result<()> {
        if self.failed.is_empty() {
            return Ok(());
        }
        let failed: BTreeSet<_> = self.failed.keys().cloned().collect();
        self.write_services(&failed)?;
        self.publish();
        Ok(())
    }

    /// A map that refuses what the ledger has counted is an error of the writer itself: it starts over from the maps.
    fn apply(&mut self, ops: &[MapOp]) -> Result<()> {
        if let Err(cause) = self.datapath.store().apply(ops) {
            error!(%cause, "writing to the maps failed");
            return Err(cause.into());
        }
        self.metrics.map_ops(ops.len());
        Ok(())
    }

    /// Addresses of this node: what the cluster says, or else what its interfaces carry.
    fn node_addresses(&self) -> Vec<IpAddr> {
        let known = self.cluster.node(&self.settings.plan.node).map(|node| node.addresses.clone()).unwrap_or_default();
        let mut addresses = known.clone();
        for family in [Family::V4, Family::V6] {
            if !known.iter().any(|address| Family::of(*address) == family) {
                let of_nics = self.interfaces.iter().filter(|interface| interface.default_route);
                addresses.extend(of_nics.flat_map(|i| &i.addresses).find(|address| Family::of(**address) == family));
            }
        }
        addresses
    }

    /// Takes over the node's addresses where they changed.
    fn node_changed(&mut self) -> Result<()> {
        let node = self.node_addresses();
        // Until the cluster has named the node's addresses those of the agent before are right: connections carry them.
        if node.is_empty() || !self.cluster.synced() {
            return Ok(());
        }
        self.configure(&node)?;
        let on_interfaces = || self.interfaces.iter().filter(|i| !i.loopback).flat_map(|i| i.addresses.iter().copied());
        let mut served: Vec<IpAddr> = Vec::new();
        for item in &self.settings.nodeport_addresses {
            match item {
                NodePortAddresses::Primary => served.extend(&node),
                NodePortAddresses::Within(cidr) => served.extend(on_interfaces().filter(|ip| cidr.contains(ip))),
            }
        }
        served.sort_unstable();
        served.dedup();
        if served != self.settings.plan.node_port_addresses {
            info!(addresses = ?served, "serving node ports");
            self.settings.plan.node_port_addresses = served;
            self.dirty.services.extend(self.cluster.services().map(|service| service.name.clone()));
        }
        Ok(())
    }

    fn configure(&mut self, node: &[IpAddr]) -> Result<()> {
        let first = |family| {
            let found = node.iter().find(|ip| Family::of(**ip) == family && !ip.is_unspecified());
            found.map_or(abi::Addr::UNSET, |ip| abi::Addr::from(*ip))
        };
        let (node4, node6) = (first(Family::V4), first(Family::V6));
        self.settings.config = abi::Config { node4, node6, ..self.settings.config };
        self.datapath.configure(&self.settings.config)?;
        Ok(())
    }

    fn publish(&self) {
        self.metrics.attached(self.attached.len());
        self.status.send_replace(WriterStatus {
            synced: self.synced,
            adopted: self.adopted,
            nics: self.attached.values().filter(|(_, kind)| *kind == Attachment::Nic).count(),
            pods: self.attached.values().filter(|(_, kind)| *kind == Attachment::Pod).count(),
            unattached: self.unattached.values().next().cloned(),
            failed: self.failed.len(),
            failure: self.failed.iter().next().map(|(name, cause)| format!("{name}: {cause}")),
        });
    }
}
