//! The one writer: cluster events and interfaces in, map operations and attachments out.
//!
//! Until every watch has delivered its first list nothing is written, so nothing that an earlier agent left is lost. Then
//! everything is planned anew and compared, and what has no owner any more goes away. Maps in which nothing was found get their
//! programs after that: those of an agent of another ABI version go on serving from theirs until then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use weir_abi as abi;
use weir_core::cluster::{Cluster, Dirty, Event};
use weir_core::departures::Departures;
use weir_core::interfaces::{Attachment, Interface, Patterns};
use weir_core::ops::{Capacity, MapOp};
use weir_core::plan::PlanConfig;
use weir_core::sockets::may_strand;
use weir_core::source_ports::{HostPorts, PortSet};
use weir_core::steering::Write;
use weir_core::tables::Tables;
use weir_datapath::{AttachOptions, Datapath, MapStore};
use weir_kube_watch::events::Events;

use crate::health_checks::HealthChecks;
use crate::host;
use crate::metrics::{KubeProxyMetrics, WriterMetrics};
use crate::node_ports::NodePortAddresses;
use crate::probes::WriterStatus;
use crate::stage::CurrentStage;
use complaints::Complaints;
use handover::Handovers;
use no_local::NoLocalServices;
pub(crate) use steered::Steered;
use waiting::Pending;

pub(crate) use no_local::NoLocal;
pub(crate) use waiting::Waiting;

mod attach;
mod complaints;
mod direct;
mod former;
mod handover;
mod no_local;
mod node;
mod publish;
mod service_networks;
mod services;
mod shortcuts;
mod source_ports;
mod stage;
mod steered;
mod tunnels;
mod waiting;

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
    /// Whether clients' packets go to other nodes as they are, and others' are taken.
    pub(crate) direct: bool,
    /// Those that new flows to other nodes may take as their source, as far as the host does not use them.
    pub(crate) snat_ports: RangeInclusive<u16>,
    /// What the host does with its ports.
    pub(crate) host_ports: watch::Receiver<HostPorts>,
    /// Whose Services are served.
    pub(crate) stage: CurrentStage,
    /// All of the configuration but the node's addresses.
    pub(crate) config: abi::Config,
}

/// Where the writer tells what it does.
pub(crate) struct Outlets {
    pub(crate) status: watch::Sender<WriterStatus>,
    pub(crate) health_checks: watch::Sender<HealthChecks>,
    pub(crate) events: Events,
    pub(crate) metrics: WriterMetrics,
    pub(crate) kube_proxy: KubeProxyMetrics,
    /// Told when connected UDP sockets may have lost their endpoint.
    pub(crate) stranded: Arc<Notify>,
    pub(crate) steered: Steered,
}

/// See the module's description.
pub(crate) struct Writer {
    settings: Settings,
    datapath: Datapath,
    cluster: Cluster,
    tables: Tables,
    steered: Steered,
    dirty: Dirty,
    pending: Pending,
    handovers: Handovers,
    departures: Departures,
    no_local: NoLocalServices,
    /// Those that new flows may take now; none before they were first written.
    source_ports: Option<PortSet>,
    /// Whether the host hands out some of these as well.
    shares_ports: bool,
    /// Interfaces that packets may take past the host's stack; none before they were first written.
    shortcuts: Option<BTreeMap<u32, abi::Shortcut>>,
    complaints: Complaints,
    /// None before they were listed: the loopback device is always one.
    interfaces: Vec<Interface>,
    /// This node's addresses, as the loop, peers' tables and direct server return know them.
    known_as: Vec<IpAddr>,
    /// What `--nodeport-addresses` names and the node does not have.
    unmatched: Vec<NodePortAddresses>,
    attached: BTreeMap<u32, (String, Attachment)>,
    /// Interfaces that could not be attached to, and why. Tried again with the grace period.
    unattached: BTreeMap<u32, String>,
    /// Interfaces that are not wanted were rid of what an agent before has left there.
    swept: bool,
    synced: bool,
    /// An earlier agent's services are served until the first sync. Else nothing is attached before.
    adopted: bool,
    /// The same, or those of an agent of another ABI version.
    was_served: bool,
    /// Until when connections are left to programs of another ABI version, if there are any behind ours.
    former: Option<Instant>,
    /// When all that was known was last written.
    last_updated: Option<Timestamp>,
    /// Milliseconds since the epoch.
    started: i64,
    status: watch::Sender<WriterStatus>,
    health_checks: watch::Sender<HealthChecks>,
    metrics: WriterMetrics,
    kube_proxy: KubeProxyMetrics,
    stranded: Arc<Notify>,
}

impl Writer {
    /// Takes over the datapath with whatever it holds. Where that is something, the socket hooks serve by it from now on.
    pub(crate) fn new(mut datapath: Datapath, settings: Settings, outlets: Outlets) -> Result<Self> {
        let dump = datapath.store().dump()?;
        let tables = Tables::adopt(settings.capacity, &dump);
        info!(services = dump.services.len(), frontends = dump.frontends.len(), "adopted what the maps hold");
        let adopted = datapath.serves()? && !dump.services.is_empty();
        let was_served = adopted || !datapath.attached_interfaces()?.is_empty();
        let Outlets { status, health_checks, events, metrics, kube_proxy, stranded, steered } = outlets;
        let mut cluster = Cluster::default();
        cluster.set_stage(settings.stage.get());
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut writer = Self {
            settings,
            datapath,
            cluster,
            tables,
            steered,
            dirty: Dirty::default(),
            pending: Pending::default(),
            handovers: Handovers::default(),
            departures: Departures::default(),
            no_local: NoLocalServices::default(),
            source_ports: None,
            shares_ports: false,
            shortcuts: None,
            complaints: Complaints::new(events),
            interfaces: Vec::new(),
            known_as: Vec::new(),
            unmatched: Vec::new(),
            attached: BTreeMap::new(),
            unattached: BTreeMap::new(),
            swept: false,
            synced: false,
            adopted,
            was_served,
            former: None,
            last_updated: None,
            started: i64::try_from(started.as_millis()).unwrap_or(i64::MAX),
            status,
            health_checks,
            metrics,
            kube_proxy,
            stranded,
        };
        let known = writer.datapath.config()?;
        let addresses = [known.node4, known.node6].map(abi::Addr::ip);
        writer.adopt_found(&known);
        // Programs that serve read the flags all the time: not a packet of former ones' connections may come in between.
        if adopted {
            writer.keep_former()?;
        }
        writer.configure(&addresses)?;
        writer.update_source_ports()?;
        if adopted {
            writer.datapath.begin_serving()?;
            writer.attach_sockets()?;
        }
        writer.publish();
        Ok(writer)
    }

    /// Works until `stop`, or until both sources are closed. What is pinned stays.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut interfaces: watch::Receiver<Vec<Interface>>,
        mut shares: mpsc::Receiver<Vec<Write>>,
        stop: CancellationToken,
    ) -> Result<()> {
        let mut settings = self.steered.settings.clone();
        let mut host_ports = self.settings.host_ports.clone();
        let mut stage = self.settings.stage.clone();
        let mut open = self.steered.open.clone();
        let mut direct = self.steered.direct.clone();
        let mut grace = tokio::time::interval(GRACE);
        // Ticks that were missed must not come at once: slots would not have rested.
        grace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Wherever a turn gets stuck, health checks learn of it; the grace period makes one when nothing happens.
            self.status.send_modify(|status| status.heartbeat = Some(Instant::now()));
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
                    self.node_changed(false)?;
                    self.attach()?;
                    self.write(Instant::now())?;
                }
                Some(decided) = shares.recv() => self.steer(decided)?,
                Ok(()) = settings.changed() => {
                    self.settings_changed();
                    self.write(Instant::now())?;
                }
                Ok(()) = open.changed() => self.write_bases()?,
                Ok(()) = direct.changed() => self.update_direct()?,
                Ok(()) = host_ports.changed() => self.update_source_ports()?,
                () = stage.changed() => self.stage_changed()?,
                _ = grace.tick() => {
                    self.tables.release();
                    self.metrics.map_entries(self.tables.uses());
                    self.retry()?;
                    self.end_former()?;
                    if !self.unattached.is_empty() {
                        self.attach()?;
                    }
                    // Endpoints that came since may tell which one leads to them.
                    if self.is_attached() {
                        self.update_tunnels()?;
                    }
                }
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    fn take(&mut self, event: Event) {
        self.pending.note_triggers(&self.cluster, &event, self.started);
        if self.handovers.note(&self.cluster, &event, Instant::now()) {
            self.settings.plan.handing_over = self.handovers.names();
        }
        let kind = (&event).into();
        let dirty = self.cluster.apply(event);
        let waiting = Waiting::of(kind, &dirty);
        if waiting.services > 0 {
            self.steered.services_changed();
        }
        self.pending.new.add(waiting);
        self.dirty.merge(dirty);
    }

    /// Whether it is known what is to be served, and on which interfaces: the first listing of these may come later.
    fn is_informed(&self) -> bool {
        self.cluster.synced() && !self.interfaces.is_empty()
    }

    /// Writes what waits. `received` is when the oldest of it came.
    fn write(&mut self, received: Instant) -> Result<()> {
        if !self.is_informed() {
            return Ok(());
        }
        self.queued(received);
        if !self.synced {
            return self.first_sync(received);
        }
        if self.dirty.is_empty() {
            return Ok(());
        }
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.nodes {
            self.node_changed(true)?;
            self.attach()?;
        }
        if dirty.nodes || dirty.service_networks {
            self.update_service_networks()?;
        }
        let mut services = dirty.services;
        services.append(&mut self.dirty.services);
        // Where nodes live decides which backends are hosts, their zones about what is near, and this node's zone about hints to all.
        if dirty.places.nodes.contains(&*self.settings.plan.node) {
            services.extend(self.cluster.services().map(|service| service.name.clone()));
        } else if dirty.nodes {
            services.extend(self.cluster.services_at(&dirty.places));
        }
        if !services.is_empty() {
            self.write_services(&services)?;
            self.leave_node_ports(&services)?;
            self.metrics.programmed(received.elapsed(), services.len());
        }
        self.settle(received);
        Ok(())
    }

    /// Writes everything for the first time, and removes what nobody owns. `received` is when the last watch's list came.
    fn first_sync(&mut self, received: Instant) -> Result<()> {
        // What was listed tells when it changed, not when we learnt of it.
        self.pending.forget_triggers();
        self.node_changed(true)?;
        self.update_service_networks()?;
        self.update_source_ports()?;
        self.dirty = Dirty::default();
        let services: BTreeSet<_> = self.cluster.services().map(|service| service.name.clone()).collect();
        // Before the rest, so that an address that moved to another service is free for it.
        let ops = self.tables.prune(|name| services.contains(name));
        self.apply(&ops)?;
        self.write_services(&services)?;
        // The agent before may have ended between a removal and the look at flows and sockets.
        if self.adopted {
            self.datapath.store().forget_strange_flows()?;
        }
        self.datapath.rebuild_filter()?;
        self.synced = true;
        if !self.adopted {
            self.keep_former()?;
            self.leave_to_others()?;
            self.datapath.begin_serving()?;
            self.attach_sockets()?;
        }
        // Whoever connects anew is translated from now on.
        self.stranded.notify_one();
        self.attach()?;
        let took = received.elapsed();
        self.metrics.synced(took);
        self.settle(received);
        info!(services = services.len(), seconds = took.as_secs_f64(), "synced");
        if let Some(node) = self.unknown_node() {
            warn!(%node, "the cluster has no node of this name: no endpoint counts as local; see --node-name");
        }
        host::release_free_memory();
        Ok(())
    }

    /// A map that refuses what the ledger has counted is an error of the writer itself: it starts over from the maps.
    fn apply(&mut self, ops: &[MapOp]) -> Result<()> {
        if let Err(cause) = self.datapath.store().apply(ops) {
            error!(%cause, "writing to the maps failed");
            return Err(cause.into());
        }
        self.metrics.map_ops(ops);
        self.metrics.map_entries(self.tables.uses());
        if (self.synced || self.adopted) && ops.iter().any(may_strand) {
            self.stranded.notify_one();
        }
        Ok(())
    }
}
