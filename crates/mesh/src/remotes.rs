//! What is known of every node that sent something or is sent something: its replay window, its budget, what it spills
//! here.

use std::collections::HashMap;
use std::time::Duration;

use weir_core::load::{Inbound, ServiceId};

use crate::budget::Budget;
use crate::config::Config;
use crate::counters::Refusal;
use crate::packet::{Header, NodeId};
use crate::replay::{Order, Window};
use crate::services::{Cursor, Merged};

/// More nodes than a cluster may have (5000, Kubernetes' own limit), so that only a misused key fills the table.
const LIMIT: usize = 10_000;
/// Probes of one node that wait for their replies at a time: more than it sends between two turns, even if one is late. What they tell is
/// taken at once, and must not be more than the budget lets through by much.
const MOST_WAITING: u8 = 4;
/// For how long a peer is taken to spill what it told of.
pub(crate) const SPILL_LIFE: Duration = Duration::from_secs(5);

/// One node, whether it is a peer of this one or not.
#[derive(Debug)]
pub(crate) struct Remote {
    window: Option<Window>,
    /// When a packet of it was admitted last.
    heard: Duration,
    /// When it was heard or sent to.
    used: Duration,
    /// Probes of it that wait for their replies.
    waiting: u8,
    /// Of what is sent to it, probes and replies.
    pub(crate) budget: Budget,
    /// Services that it spills to this node, with new flows per second.
    pub(crate) spilled: Merged<f64>,
    /// Where the services told to it stand.
    pub(crate) services: Cursor,
    /// Where the services spilled to it stand.
    pub(crate) spilling: Cursor,
}

impl Remote {
    /// A probe of it begins to wait for its reply.
    ///
    /// # Errors
    /// [`Refusal::OverBudget`] if too many do.
    pub(crate) fn asks(&mut self) -> Result<(), Refusal> {
        if self.waiting >= MOST_WAITING {
            return Err(Refusal::OverBudget);
        }
        self.waiting += 1;
        Ok(())
    }

    /// A probe of it waits no more.
    pub(crate) const fn answered(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Remotes {
    known: HashMap<NodeId, Remote>,
    config: Config,
    swept: Duration,
}

impl Remotes {
    pub(crate) fn new(config: Config) -> Self {
        Self { known: HashMap::new(), config, swept: Duration::ZERO }
    }

    /// One that is sent to: it has its place in any case.
    pub(crate) fn entry(&mut self, id: NodeId, now: Duration) -> &mut Remote {
        let config = self.config;
        let remote = self.known.entry(id).or_insert_with(|| Remote {
            window: None,
            heard: now,
            used: now,
            waiting: 0,
            budget: Budget::new(config.bytes_per_second),
            spilled: Merged::default(),
            services: Cursor::default(),
            spilling: Cursor::default(),
        });
        remote.used = now;
        remote
    }

    /// Admits an authentic packet once.
    pub(crate) fn admit(&mut self, header: &Header, now: Duration) -> Result<Order, Refusal> {
        self.sweep(now);
        if self.known.len() >= LIMIT && !self.known.contains_key(&header.sender) {
            return Err(Refusal::Crowded);
        }
        let known = self.known.get_mut(&header.sender).and_then(|remote| remote.window.as_mut());
        let order = known.map_or(Ok(None), |window| window.admit(header.epoch, header.sequence).map(Some))?;
        // A refused packet did not come here, so it keeps nobody in memory.
        let remote = self.entry(header.sender, now);
        remote.heard = now;
        Ok(order.unwrap_or_else(|| {
            remote.window = Some(Window::new(header.epoch, header.sequence));
            Order::Newest
        }))
    }

    /// For each service, what nodes spill to this one.
    pub(crate) fn inbound(&self, now: Duration) -> HashMap<ServiceId, Inbound> {
        let mut inbound: HashMap<ServiceId, Inbound> = HashMap::new();
        for (id, rate) in self.known.values().flat_map(|remote| remote.spilled.fresh(SPILL_LIFE, now)) {
            let Inbound { spillers, flows_per_second } = inbound.entry(id).or_default();
            *spillers += 1;
            *flows_per_second += rate;
        }
        inbound
    }

    /// What a node spills to this one, of all services: new flows per second.
    pub(crate) fn sends(&self, id: NodeId, now: Duration) -> f64 {
        let spilled = self.known.get(&id).into_iter().flat_map(|remote| remote.spilled.fresh(SPILL_LIFE, now));
        spilled.map(|(_, rate)| rate).sum()
    }

    /// Forgets who was silent for so long that the time in its old packets protects from them: a packet may be `skew`
    /// ahead of this node's clock when it comes, and is refused when it is `skew` behind. Of one that is sent to it is only what was heard: its clock may have been
    /// set back, so that it seems to be older than it was.
    fn sweep(&mut self, now: Duration) {
        let life = self.config.skew.saturating_mul(2) + Duration::from_secs(1);
        if now.saturating_sub(self.swept) < life / 4 {
            return;
        }
        self.swept = now;
        self.known.retain(|_, remote| now.saturating_sub(remote.used) <= life);
        for remote in self.known.values_mut().filter(|remote| now.saturating_sub(remote.heard) > life) {
            remote.window = None;
        }
    }
}
