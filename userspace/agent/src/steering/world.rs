//! What the loop knows at a tick: the sources' last samples, the datapath's counters, what peers told.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::watch;
use weir_core::load::{Inbound, NodeLoad, PeerReport, ServiceId};
use weir_core::model::PodUid;
use weir_core::policies::Parameters;
use weir_core::steering::{BackendCounts, Facts, OpenCounts, PodUse, ServiceCounts};
use weir_datapath::View;
use weir_mesh::{Link, PeerState};
use weir_signals::open_flows::OpenByBackend;
use weir_signals::{Counts, Node, NodeOptions};

use super::counters::DatapathCounters;
use super::fallback::Answer;
use super::pods::PodReadings;

/// See the module's description.
pub(super) struct World {
    node: Node,
    counters: DatapathCounters,
    feeds: Feeds,
    now: Instant,
    own: NodeLoad,
    reports: HashMap<Arc<str>, PeerReport>,
    peers: Vec<PeerState>,
    silent: HashSet<Arc<str>>,
    /// Those of whom people are told that they are.
    missed: HashSet<Arc<str>>,
    /// The silent ones are others than at the tick before.
    alarmed: bool,
    inbound: HashMap<ServiceId, Inbound>,
    // Of this tick: a lock for every endpoint would cost more than the copy of a pointer.
    pod_use: PodReadings,
    /// None before the first count: a balance alone says nothing.
    open_flows: Option<OpenByBackend>,
    answer: Answer,
    /// Of nodes without an agent.
    slow: HashMap<Arc<str>, PeerReport>,
}

/// What other tasks read.
pub(super) struct Feeds {
    pub(super) pods: watch::Receiver<PodReadings>,
    pub(super) open: watch::Receiver<OpenByBackend>,
    pub(super) answers: watch::Receiver<Answer>,
}

impl World {
    pub(super) fn new(options: NodeOptions, view: View, feeds: Feeds) -> Result<Self> {
        let counters = DatapathCounters::new(view);
        let node = Node::new(options).context("cannot read this node's load; see --node-cgroup")?;
        Ok(Self {
            node,
            counters,
            alarmed: false,
            feeds,
            now: Instant::now(),
            own: NodeLoad::default(),
            reports: HashMap::new(),
            peers: Vec::new(),
            silent: HashSet::new(),
            missed: HashSet::new(),
            inbound: HashMap::new(),
            pod_use: PodReadings::default(),
            open_flows: None,
            answer: Answer::default(),
            slow: HashMap::new(),
        })
    }

    /// Reads everything. `in_time`: peers that seem silent are, since this agent was not.
    pub(super) fn look(&mut self, now: Instant, link: Option<&Link>, in_time: bool) {
        self.now = now;
        self.node.tick(now);
        self.own = self.node.load(now);
        let Feeds { pods, open, answers } = &mut self.feeds;
        if pods.has_changed().unwrap_or(false) {
            self.pod_use = pods.borrow_and_update().clone();
        }
        if open.has_changed().unwrap_or(false) {
            self.open_flows = Some(open.borrow_and_update().clone());
        }
        if answers.has_changed().unwrap_or(false) {
            self.answer = answers.borrow_and_update().clone();
            let report = |(node, load): (&Arc<str>, &NodeLoad)| (Arc::clone(node), slow_report(node, *load));
            self.slow = self.answer.loads.iter().map(report).collect();
        }
        let age = self.answer.at.map(|at| now.saturating_duration_since(at)).unwrap_or_default();
        self.slow.values_mut().for_each(|report| report.age = age);
        let Some(link) = link else { return };
        let reports = &mut self.reports;
        let (peers, inbound) = link.with(|mesh, now| {
            mesh.reports(now, reports);
            (mesh.peers(now), mesh.inbound(now))
        });
        self.inbound = inbound;
        self.alarmed = false;
        if in_time {
            let silent = names(&peers, PeerState::is_silent);
            self.alarmed = self.silent != silent;
            self.silent = silent;
            self.missed = names(&peers, PeerState::is_missed);
        }
        self.peers = peers;
    }

    /// Nobody looks: what was known of this node is told no more, for it would be told as if it were so now.
    pub(super) fn rest(&mut self) {
        self.node.forget();
        self.own = NodeLoad::default();
    }

    /// The nodes that are probed.
    pub(super) fn peers(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|peer| &*peer.node)
    }

    /// Those of them that run an agent.
    pub(super) fn heard(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().filter(|peer| peer.runs_agent()).map(|peer| &*peer.node)
    }

    /// Those that unwrap clients' packets.
    pub(super) fn unwrapping(&self) -> impl Iterator<Item = &Arc<str>> {
        let talks = |peer: &&PeerState| peer.unwraps && peer.runs_agent() && !self.silent.contains(&peer.node);
        self.peers.iter().filter(talks).map(|peer| &peer.node)
    }

    /// Everything about them, and whether they are missed.
    pub(super) fn peer_states(&self) -> impl Iterator<Item = (&PeerState, Option<&PeerReport>, bool)> {
        self.peers.iter().map(|peer| (peer, self.report(&peer.node), self.missed.contains(&peer.node)))
    }

    /// How long ago each source of this node's load said something last, used or too old to be.
    pub(super) fn ages(&self, now: Instant) -> impl Iterator<Item = (&'static str, Duration)> {
        self.node.ages(now)
    }

    /// How each source fared.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&'static str, Counts, Option<String>)> {
        let node = self.node.sources().map(|(name, counts, problem)| (name, counts, problem.map(ToString::to_string)));
        let pods = ("pods", self.pod_use.counts, self.pod_use.problem.clone());
        node.chain([pods, ("metrics-api", self.answer.counts, self.answer.problem.clone())])
    }
}

fn names(peers: &[PeerState], which: impl Fn(&PeerState) -> bool) -> HashSet<Arc<str>> {
    peers.iter().filter(|peer| which(peer)).map(|peer| Arc::clone(&peer.node)).collect()
}

fn slow_report(node: &Arc<str>, load: NodeLoad) -> PeerReport {
    PeerReport { node: Arc::clone(node), load, services: Vec::new(), rtt: None, age: Duration::ZERO }
}

impl Facts for World {
    fn own(&self) -> NodeLoad {
        self.own
    }

    fn report(&self, node: &str) -> Option<&PeerReport> {
        self.reports.get(node).or_else(|| self.slow.get(node))
    }

    fn report_interval(&self, node: &str) -> Duration {
        let slow = !self.reports.contains_key(node) && self.slow.contains_key(node);
        if slow { self.answer.interval } else { Parameters::REPORT_INTERVAL }
    }

    fn is_silent(&self, node: &str) -> bool {
        self.silent.contains(node)
    }

    fn is_alarmed(&self) -> bool {
        self.alarmed
    }

    fn service(&self, slot: u32) -> ServiceCounts {
        self.counters.service(slot)
    }

    fn backend(&self, slot: u32) -> BackendCounts {
        self.counters.counts(slot)
    }

    fn open_flows(&self, slot: u32, generation: u32) -> OpenCounts {
        let Some(counted) = &self.open_flows else { return OpenCounts::default() };
        counted.get(&(slot, generation)).copied().unwrap_or_default().at(self.counters.balance(slot))
    }

    fn pod(&self, pod: PodUid) -> Option<PodUse> {
        let used = self.pod_use.pods.get(&pod)?;
        let since = self.now.saturating_duration_since(self.pod_use.at?);
        Some(PodUse { cores: used.cores.map(|cores| cores.aged(since)), ..*used })
    }

    fn inbound(&self, service: ServiceId) -> Inbound {
        self.inbound.get(&service).copied().unwrap_or_default()
    }
}
