//! What the loop knows and decides, between two ticks and for those who look at it.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tracing::warn;
use weir_core::model::ObjectName;
use weir_core::steering::{Facts, Reporter, Steering, Write};
use weir_mesh::Link;

use super::Feed;
use super::fallback::Strangers;
use super::others::Others;
use super::world::World;
use crate::channel::publish;

/// A tick that comes so late knows less of its peers than it seems: their packets wait to be read.
const LATE: Duration = Duration::from_millis(750);
/// Ticks between two looks for nodes without an agent: 5 s. The mesh has heard those that have one by then.
const STRANGERS: u64 = 20;

/// What is decided and what it rests upon. Readers hold the lock for as long as it takes to write a page.
pub(super) struct Brain {
    pub(super) steering: Steering,
    pub(super) world: World,
    pub(super) link: Option<Link>,
    pub(super) others: Others,
    pub(super) reporter: Reporter,
    /// Of this node; empty if it has none, None before the writer has told.
    pub(super) zone: Option<Arc<str>>,
    /// Services with series of their own in the metrics; None before the writer has told, or if nobody asked for any.
    pub(super) own_series: Option<Arc<BTreeSet<ObjectName>>>,
    pub(super) ticks: u64,
    /// Of the mesh, on all nodes.
    pub(super) port: u16,
    /// Decisions sent to the writer, since the start.
    pub(super) decisions: u64,
}

/// Shared by the loop and those who look at it.
pub(super) type Shared = Arc<Mutex<Brain>>;

/// The brain, for as long as the guard lives.
pub(super) fn locked(brain: &Shared) -> MutexGuard<'_, Brain> {
    // A panic of somebody who held it left numbers at worst.
    brain.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Brain {
    /// Nothing is known yet. `port`: the mesh's.
    pub(super) fn new(steering: Steering, world: World, link: Option<Link>, port: u16) -> Self {
        Self {
            steering,
            world,
            link,
            others: Others::default(),
            reporter: Reporter::default(),
            zone: None,
            own_series: None,
            ticks: 0,
            port,
            decisions: 0,
        }
    }

    /// Takes what the writer says; addresses of this node go on to the mesh.
    pub(super) fn learn(&mut self, news: Feed, addresses: &watch::Sender<Vec<IpAddr>>) {
        match news {
            Feed::Service(name, targets) => self.steering.put(&name, targets, &self.world),
            Feed::OwnSeries(services) => self.own_series = Some(Arc::new(services)),
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
                publish(addresses, own);
            }
        }
    }

    fn probe_others(&self) {
        if let Some(link) = &self.link {
            link.with(|mesh, _| mesh.set_peers(self.others.peers(self.port)));
        }
    }

    /// Looks at the world and decides; then peers are told.
    pub(super) fn tick(&mut self, elapsed: Duration, now: Instant) -> Vec<Write> {
        // Nobody is told anything, and there is nothing to decide: the load is not worth a look.
        if self.steering.is_empty() && self.link.is_none() {
            self.world.rest();
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
    pub(super) fn look_for_strangers(&mut self, strangers: &watch::Sender<Strangers>) {
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
        publish(strangers, now);
    }

    /// Says which nodes take clients' packets as they are: those that told so and still talk.
    pub(super) fn tell_direct(&self, direct: &watch::Sender<BTreeSet<Arc<str>>>) {
        publish(direct, self.world.unwrapping().cloned().collect());
    }

    /// Sends decisions to the writer; what it has no room for is decided anew.
    pub(super) fn hand_over(&mut self, decided: Vec<Write>, writes: &mpsc::Sender<Vec<Write>>) {
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
