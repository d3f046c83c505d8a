//! The loop that steers: every quarter of a second it looks at the load and says which shares of new flows go where.
//!
//! What is decided, and from what, is [`weir_core::steering`]'s. Here are the clock, the sources, the mesh, and the way to
//! and from the writer, which alone writes to the maps.

mod brain;
mod counters;
mod fallback;
mod mesh;
mod metrics;
mod news;
mod open_flows;
mod others;
mod picture;
mod pods;
mod selections;
mod snapshot;
mod traffic;
mod world;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::Router;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::info;
use weir_core::model::{ObjectName, PodUid};
use weir_core::plan::PlanKey;
use weir_core::steering::{PortState, Steering, Target, Write};
use weir_datapath::View;
use weir_kube_watch::events::Events;
use weir_mesh::Link;
use weir_signals::NodeOptions;
use weir_signals::metrics_api::MetricsApi;
use weir_signals::open_flows::OpenByBackend;
use weir_telemetry::metrics::Metrics;

use crate::channel::publish;
use crate::effective::InForce;
use crate::host;
use brain::{Brain, Shared, locked};
use fallback::{FallbackReader, Strangers};
pub(crate) use mesh::{Key, MeshTask};
use metrics::SteeringCollector;
use open_flows::OpenReader;
pub(crate) use others::OtherNode;
pub(crate) use picture::Picture;
use pods::PodReader;
use selections::Selections;
use world::{Feeds, World};

/// How often shares are decided.
const TICK: Duration = Duration::from_millis(250);
/// Decisions that wait for the writer. A writer that is behind gets newer ones instead.
const WAITING: usize = 4;

/// What the writer tells the loop.
#[derive(Debug)]
pub(crate) enum Feed {
    /// All ports of a service as the maps hold them; none if it is not steered any more.
    Service(ObjectName, Vec<Target>),
    /// The Services that have series of their own in the metrics.
    OwnSeries(BTreeSet<ObjectName>),
    /// A decision was not written.
    NotWritten(PlanKey),
    /// Whether this node takes clients' packets from others as they are.
    Unwraps(bool),
    /// The zone and the addresses of this node, and those of the others by name.
    Nodes {
        /// This node's; empty if unknown.
        zone: Arc<str>,
        /// This node's.
        own: Vec<IpAddr>,
        /// All others.
        peers: Vec<OtherNode>,
    },
}

/// The writer's ends.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) feed: mpsc::UnboundedSender<Feed>,
    pub(crate) writes: mpsc::Receiver<Vec<Write>>,
    /// Open flows as they were last counted.
    pub(crate) open: watch::Receiver<OpenByBackend>,
    /// Nodes that take clients' packets as they are, and answer.
    pub(crate) direct: watch::Receiver<BTreeSet<Arc<str>>>,
}

/// What the loop is told at its start.
pub(crate) struct SteeringOptions {
    pub(crate) node: Arc<str>,
    /// Where the load of this node is read.
    pub(crate) signals: NodeOptions,
    /// Kubelet's `--cgroup-root`.
    pub(crate) kubelet_root: String,
    /// Who tells of nodes without an agent, if there is an API server.
    pub(crate) metrics_api: Option<MetricsApi>,
    /// Where news of services and nodes are told.
    pub(crate) events: Events,
    /// Whether Services have series of their own in the metrics.
    pub(crate) by_service: bool,
}

/// See the module's description.
pub(crate) struct SteeringLoop {
    brain: Shared,
    feed: mpsc::UnboundedReceiver<Feed>,
    writes: mpsc::Sender<Vec<Write>>,
    pods: watch::Sender<Vec<PodUid>>,
    pod_reader: PodReader,
    open_reader: OpenReader,
    /// Whether open flows matter to anybody.
    counted: watch::Sender<bool>,
    fallback: FallbackReader,
    strangers: watch::Sender<Strangers>,
    mesh: Option<MeshTask>,
    addresses: watch::Sender<Vec<IpAddr>>,
    direct: watch::Sender<BTreeSet<Arc<str>>>,
    events: Events,
    by_service: bool,
    open: watch::Receiver<OpenByBackend>,
}

impl SteeringLoop {
    /// A loop over the pinned maps, and what the writer needs to talk to it. `key`: the mesh's; without it nobody is
    /// probed.
    pub(crate) fn new(
        options: SteeringOptions,
        view: impl Fn() -> weir_datapath::Result<View>,
        key: Option<Key>,
    ) -> Result<(Self, Ends)> {
        let SteeringOptions { node, signals, kubelet_root, metrics_api, events, by_service } = options;
        let (feed, inbox) = mpsc::unbounded_channel();
        let (writes, decided) = mpsc::channel(WAITING);
        let (wanted, uids) = watch::channel(Vec::new());
        let (pod_reader, pod_use) = PodReader::new(&signals.sys, &kubelet_root, uids);
        let (counted, wanted_flows) = watch::channel(false);
        let (open_reader, open) = OpenReader::new(view().context("cannot read the flows")?, wanted_flows);
        let (strangers, unknown) = watch::channel(Strangers::new());
        let (fallback, answers) = FallbackReader::new(metrics_api, unknown);
        let (addresses, own) = watch::channel(Vec::new());
        let (direct, told) = watch::channel(BTreeSet::new());
        let port = key.as_ref().map_or(0, |key| key.port);
        let mesh = key.map(|key| MeshTask::new(&node, key, own)).transpose()?;
        if mesh.is_none() {
            info!("no --mesh-key-file: other nodes are not probed, only metrics.k8s.io tells of them, if it is there");
        }
        let link = mesh.as_ref().map(|mesh| mesh.link().clone());
        let feeds = Feeds { pods: pod_use, open: open.clone(), answers };
        let world = World::new(signals, view().context("cannot read the counters")?, feeds)?;
        let brain = Arc::new(Mutex::new(Brain::new(Steering::new(node), world, link, port)));
        let new = Self {
            brain,
            feed: inbox,
            writes,
            pods: wanted,
            pod_reader,
            open_reader,
            counted,
            fallback,
            strangers,
            mesh,
            addresses,
            direct,
            events,
            by_service,
            open: open.clone(),
        };
        Ok((new, Ends { feed, writes: decided, open, direct: told }))
    }

    /// Adds what it counts to the metrics.
    pub(crate) fn register(&self, metrics: &mut Metrics, view: View) {
        let selections = Selections::new(&view, self.open.clone(), self.by_service);
        let collector = SteeringCollector::new(Arc::clone(&self.brain), view, selections);
        metrics.root().register_collector(Box::new(collector));
    }

    /// `/weights`: everything as it stands.
    pub(crate) fn router(&self) -> Router {
        snapshot::router(Arc::clone(&self.brain))
    }

    /// What the page shows.
    pub(crate) fn picture(&self) -> Picture {
        Picture::new(Arc::clone(&self.brain))
    }

    /// What the Services that are steered are served with, as it stands when it is asked for.
    pub(crate) fn in_force(&self) -> impl Fn() -> InForce + Clone + Send + Sync + use<> {
        let brain = Arc::clone(&self.brain);
        move || {
            let brain = locked(&brain);
            brain
                .steering
                .states()
                .map(|PortState { target, .. }| (target.key.service.clone(), target.settings.clone()))
                .collect()
        }
    }

    /// Decides until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<()> {
        let Self { brain, mut feed, writes, pods, pod_reader, open_reader, counted, .. } = self;
        let Self { fallback, strangers, mesh, addresses, direct, events, by_service, .. } = self;
        let turn = by_chance()?;
        let readers =
            tokio::spawn(async move { tokio::join!(pod_reader.run(), open_reader.run(), fallback.run(turn)) });
        let probing = mesh.map(|mesh| tokio::spawn(mesh.run()));
        // Nodes that start together must not decide together.
        let phase = TICK.mul_f64(by_chance()?);
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + phase, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => break,
            }
            let now = Instant::now();
            let elapsed = now - std::mem::replace(&mut last, now);
            let mut brain = locked(&brain);
            let mut services = false;
            while let Ok(news) = feed.try_recv() {
                services |= matches!(news, Feed::Service(..));
                brain.learn(news, &addresses);
            }
            // Once for all of them: a change of a node concerns every service.
            if services {
                publish(&pods, brain.steering.local_pods().collect());
            }
            publish(&counted, !brain.steering.is_empty() || by_service);
            let decided = brain.tick(elapsed, now);
            brain.look_for_strangers(&strangers);
            brain.hand_over(decided, &writes);
            brain.tell_direct(&direct);
            // What peers are told is from this tick, and they are told last: nobody waits for it here.
            brain.link.iter().for_each(Link::speak);
            let news = brain.look_for_news(now);
            news.into_iter().for_each(|news| news::tell(&events, brain.steering.here(), news));
        }
        readers.abort();
        if let Some(probing) = probing {
            probing.abort();
        }
        Ok(())
    }
}

/// From 0 to 1.
fn by_chance() -> Result<f64> {
    Ok(f64::from(u32::from_ne_bytes(host::random()?)) / f64::from(u32::MAX))
}
