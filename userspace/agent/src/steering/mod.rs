//! The loop that steers: every quarter of a second it looks at the load and says which shares of new flows go where.
//!
//! What is decided, and from what, is [`weir_core::steering`]'s. Here are the clock, the sources, the mesh, and the way to
//! and from the writer, which alone writes to the maps.

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

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::Router;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use weir_core::model::{ObjectName, PodUid};
use weir_core::plan::PlanKey;
use weir_core::steering::{Facts, PortState, Reporter, Steering, Target, Write};
use weir_datapath::View;
use weir_kube_watch::events::Events;
use weir_mesh::Link;
use weir_signals::NodeOptions;
use weir_signals::metrics_api::MetricsApi;
use weir_signals::open_flows::OpenByBackend;
use weir_telemetry::metrics::Metrics;

use crate::effective::InForce;
use fallback::{FallbackReader, Strangers};
pub(crate) use mesh::{Key, MeshTask};
use metrics::SteeringCollector;
use open_flows::OpenReader;
pub(crate) use others::OtherNode;
use others::Others;
pub(crate) use picture::Picture;
use pods::PodReader;
use selections::Selections;
use world::{Feeds, World};

/// How often shares are decided (design, section 6).
const TICK: Duration = Duration::from_millis(250);
/// A tick that comes so late knows less of its peers than it seems: their packets wait to be read.
const LATE: Duration = Duration::from_millis(750);
/// Ticks between two looks for nodes without an agent: 5 s. The mesh has heard those that have one by then.
const STRANGERS: u64 = 20;
/// Decisions that wait for the writer. A writer that is behind gets newer ones instead.
const WAITING: usize = 4;

/// What the writer tells the loop.
#[derive(Debug)]
pub(crate) enum Feed {
    /// All ports of a service as the maps hold them; none if it is not steered any more.
    Service(ObjectName, Vec<Target>),
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
    /// Ticks after which an idle flow is not open any more.
    pub(crate) idle: u32,
    /// Who tells of nodes without an agent, if there is an API server.
    pub(crate) metrics_api: Option<MetricsApi>,
    /// Where news of services and nodes are told.
    pub(crate) events: Events,
    /// Most Services with series of their own.
    pub(crate) metrics_services: usize,
}

/// What is decided and what it rests upon. Readers hold the lock for as long as it takes to write a page.
pub(crate) struct Brain {
    steering: Steering,
    world: World,
    link: Option<Link>,
    others: Others,
    reporter: Reporter,
    /// Of this node; empty if it has none, None before the writer has told.
    zone: Option<Arc<str>>,
    ticks: u64,
    /// Of the mesh, on all nodes.
    port: u16,
    /// Decisions sent to the writer, since the start.
    decisions: u64,
}

/// Shared by the loop and those who look at it.
pub(crate) type Shared = Arc<Mutex<Brain>>;

fn locked(brain: &Shared) -> MutexGuard<'_, Brain> {
    // A panic of somebody who held it left numbers at worst.
    brain.lock().unwrap_or_else(PoisonError::into_inner)
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
    metrics_services: usize,
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
        let SteeringOptions { node, signals, kubelet_root, idle, metrics_api, events, metrics_services } = options;
        let (feed, inbox) = mpsc::unbounded_channel();
        let (writes, decided) = mpsc::channel(WAITING);
        let (wanted, uids) = watch::channel(Vec::new());
        let (pod_reader, pod_use) = PodReader::new(&signals.sys, &kubelet_root, uids);
        let (counted, wanted_flows) = watch::channel(false);
        let (open_reader, open) = OpenReader::new(view().context("cannot read the flows")?, idle, wanted_flows);
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
        let steering = Steering::new(node);
        let brain = Arc::new(Mutex::new(Brain {
            steering,
            world,
            link,
            others: Others::default(),
            reporter: Reporter::default(),
            zone: None,
            ticks: 0,
            port,
            decisions: 0,
        }));
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
            metrics_services,
            open: open.clone(),
        };
        Ok((new, Ends { feed, writes: decided, open, direct: told }))
    }

    /// Adds what it counts to the metrics.
    pub(crate) fn register(&self, metrics: &mut Metrics, view: View) {
        let selections = Selections::new(self.metrics_services, self.open.clone());
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
        let Self { fallback, strangers, mesh, addresses, direct, events, metrics_services, .. } = self;
        let turn = f64::from(random()?) / f64::from(u32::MAX);
        let readers =
            tokio::spawn(async move { tokio::join!(pod_reader.run(), open_reader.run(), fallback.run(turn)) });
        let probing = mesh.map(|mesh| tokio::spawn(mesh.run()));
        // Nodes that start together must not decide together.
        let phase = TICK.mul_f64(f64::from(random()?) / f64::from(u32::MAX));
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
                pods.send_if_modified(|known| {
                    let now: Vec<PodUid> = brain.steering.local_pods().collect();
                    let other = *known != now;
                    *known = now;
                    other
                });
            }
            counted.send_if_modified(|known| {
                let wanted = !brain.steering.is_empty() || metrics_services > 0;
                std::mem::replace(known, wanted) != wanted
            });
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

impl Brain {
    fn learn(&mut self, news: Feed, addresses: &watch::Sender<Vec<IpAddr>>) {
        match news {
            Feed::Service(name, targets) => self.steering.put(&name, targets, &self.world),
            Feed::NotWritten(key) => self.steering.not_written(&key),
            Feed::Unwraps(unwraps) => {
                if let Some(link) = &self.link {
                    link.with(|mesh, _| mesh.set_unwraps(unwraps));
                }
            }
            Feed::Nodes { zone, own, peers } => {
                self.zone = Some(zone);
                self.others.replace(peers, own.clone(), &self.steering.nodes());
                self.probe_others();
                addresses.send_if_modified(|known| {
                    let other = *known != own;
                    *known = own;
                    other
                });
            }
        }
    }

    fn probe_others(&self) {
        if let Some(link) = &self.link {
            link.with(|mesh, _| mesh.set_peers(self.others.peers(self.port)));
        }
    }

    fn tick(&mut self, elapsed: Duration, now: Instant) -> Vec<Write> {
        // Nobody is told anything, and there is nothing to decide: the load is not worth a look.
        if self.steering.is_empty() && self.link.is_none() {
            return Vec::new();
        }
        self.link.iter().for_each(Link::hear);
        self.world.look(now, self.link.as_ref(), elapsed < LATE);
        let decided = self.steering.tick(elapsed, &self.world);
        if let Some(link) = &self.link {
            let report = self.steering.report().iter().map(|(id, load)| (*id, *load));
            let spilled = self.steering.spilled();
            let own = self.world.own();
            link.with(|mesh, now| {
                mesh.publish(own, report, now);
                for node in self.world.peers() {
                    let services = spilled.get(node).into_iter().flatten();
                    mesh.spill(node, services.map(|(id, rate)| (*id, *rate)));
                }
            });
        }
        decided
    }

    /// Says which nodes with endpoints the mesh never heard: they run no agent. Right after the start it has heard nobody.
    fn look_for_strangers(&mut self, strangers: &watch::Sender<Strangers>) {
        self.ticks += 1;
        if !self.ticks.is_multiple_of(STRANGERS) {
            return;
        }
        if self.others.has_deleted() && self.others.forget(&self.steering.nodes()) {
            self.probe_others();
        }
        let heard: HashSet<&str> = self.world.heard().collect();
        let mut unheard = self.others.iter().filter(|node| !heard.contains(&*node.name)).peekable();
        let used = if unheard.peek().is_some() { self.steering.nodes() } else { BTreeSet::new() };
        let now = unheard.filter(|node| used.contains(&*node.name));
        let now: Strangers = now.map(|node| (Arc::clone(&node.name), node.capacity)).collect();
        strangers.send_if_modified(|known| {
            let other = *known != now;
            *known = now;
            other
        });
    }

    /// Says which nodes take clients' packets as they are: those that told so and still talk.
    fn tell_direct(&self, direct: &watch::Sender<BTreeSet<Arc<str>>>) {
        direct.send_if_modified(|known| {
            let now: BTreeSet<Arc<str>> = self.world.unwrapping().cloned().collect();
            let other = *known != now;
            *known = now;
            other
        });
    }

    fn hand_over(&mut self, decided: Vec<Write>, writes: &mpsc::Sender<Vec<Write>>) {
        if decided.is_empty() {
            return;
        }
        let count = decided.len() as u64;
        match writes.try_send(decided) {
            Ok(()) => self.decisions += count,
            Err(refused) => {
                let (mpsc::error::TrySendError::Full(late) | mpsc::error::TrySendError::Closed(late)) = refused;
                warn!(services = late.len(), "the writer is behind: decided anew at the next tick");
                late.iter().for_each(|write| self.steering.not_written(&write.key));
            }
        }
    }
}

fn random() -> Result<u32> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("no random numbers: {e}"))?;
    Ok(u32::from_ne_bytes(bytes))
}
