//! The nodes that this one probes: how far they are, and what they told.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_core::load::{NodeLoad, PeerReport, ServiceId, ServiceLoad};

use crate::body::Report;
use crate::mesh::Now;
use crate::services::Merged;

/// A reply that takes longer is lost. No two nodes of a cluster are that far from each other.
const PATIENCE: Duration = Duration::from_secs(2);
/// Probes that may be open: one per interval, unless a peer is both near and in turn.
const OPEN: usize = 8;
/// After this time without anything from it a peer that is probed all the time is silent: three turns, so that two
/// packets each way were lost, and new flows stay away from a node within 2 s of its loss.
const SILENCE: Duration = Duration::from_millis(1500);
/// After this time without anything from it a peer counts as one that runs no agent: its own endpoints' failures then say
/// whether the node is there. Longer than Kubernetes takes to find a dead node and its endpoints unready, 40 s.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// After so many probes without an answer a peer is nobody's neighbour.
const SILENT: u32 = 3;
/// The distance is the least of so many measurements: queues and busy agents only ever add to it.
const MEASUREMENTS: usize = 5;
/// How much faster the clock of the wall may run than the steady one before it was set.
const CLOCK_SLACK: Duration = Duration::from_millis(1);
/// A service that was not told of for so long is not reported: older data decides nothing.
const SERVICE_LIFE: Duration = Duration::from_secs(10);
/// A report that is older is not handed out.
const REPORT_LIFE: Duration = Duration::from_secs(30);

/// A probe without an answer.
#[derive(Clone, Copy, Debug)]
struct Open {
    exchange: u64,
    sent: Now,
}

/// A round trip that could not be measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ClockMoved;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: Arc<str>,
    pub(crate) address: SocketAddr,
    /// Services that this node spills to it, by number, with new flows per second.
    pub(crate) spilled: Vec<(ServiceId, f64)>,
    /// When something authentic came from it last.
    heard: Option<Duration>,
    /// Whether it takes clients' packets that are wrapped.
    pub(crate) unwraps: bool,
    /// How many services it has, as far as it told.
    pub(crate) services_in_all: u16,
    open: Vec<Open>,
    unanswered: u32,
    measured: Vec<Duration>,
    /// Where the next measurement goes.
    next: usize,
    held: Duration,
    /// The node's load, when it came, and its age then.
    load: Option<(NodeLoad, Duration, Duration)>,
    services: Merged<ServiceLoad>,
}

/// What is known of a peer, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerState {
    /// The peer's node.
    pub node: Arc<str>,
    /// Where it is probed.
    pub address: SocketAddr,
    /// Is it one of the nearest, which are probed all the time?
    pub near: bool,
    /// Round-trip time, without the time that the peer held the probe; None if it does not answer.
    pub rtt: Option<Duration>,
    /// How long the peer held the last probe: its agent is busy if that is long.
    pub held: Duration,
    /// Probes in a row without an answer.
    pub unanswered: u32,
    /// Whether it has answered the last probe, or that was sent within the last 1.5 s.
    pub answers: bool,
    /// How long ago its last report was made.
    pub report_age: Option<Duration>,
    /// How long ago something authentic came from it, a probe of its own included.
    pub heard: Option<Duration>,
    /// Whether it told last that it takes clients' packets that are wrapped, and answers the clients itself.
    pub unwraps: bool,
    /// New flows per second that it told within the last 5 s to send to this node, of all services.
    pub sends: f64,
}

impl PeerState {
    /// Whether it was heard once and does not answer any more: 1.5 s after the last packet of one that is near, three
    /// turns of another one. It stays so until it is heard again, for who is told of it has to know for longer than who decides.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        let missed = if self.near { 1 } else { 2 };
        self.heard.is_some_and(|heard| heard > SILENCE) && self.unanswered >= missed
    }

    /// Whether it is missed and gets no new flows for that: for a minute, by which Kubernetes knows of a dead node.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.runs_agent() && self.is_missed()
    }

    /// Whether something came from it within the last minute, or since it was asked last: with a thousand peers more time than that passes between
    /// two probes of one that is far, and so until it is known that its agent is gone.
    #[must_use]
    pub fn runs_agent(&self) -> bool {
        self.heard.is_some_and(|heard| heard <= FORGOTTEN || self.answers)
    }
}

impl Peer {
    pub(crate) fn new(name: Arc<str>, address: SocketAddr) -> Self {
        Self {
            name,
            address,
            spilled: Vec::new(),
            heard: None,
            unwraps: false,
            services_in_all: 0,
            open: Vec::new(),
            unanswered: 0,
            measured: Vec::new(),
            next: 0,
            held: Duration::ZERO,
            load: None,
            services: Merged::default(),
        }
    }

    /// At another address it is as far as it turns out to be.
    pub(crate) fn moved(&mut self, address: SocketAddr) {
        if self.address != address {
            self.address = address;
            self.open.clear();
            self.measured.clear();
            self.unanswered = 0;
            self.heard = None;
            self.unwraps = false;
        }
    }

    /// Something authentic came from it.
    pub(crate) const fn heard(&mut self, now: Duration) {
        self.heard = Some(now);
    }

    /// The key for the next probe: after one without an answer, the other one. While a key is replaced, a peer may not
    /// have the new one yet.
    pub(crate) const fn key(&self) -> usize {
        self.unanswered as usize
    }

    /// A probe goes out. Returns how many before it were lost.
    pub(crate) fn probed(&mut self, exchange: u64, sent: Now) -> u64 {
        let before = self.open.len();
        self.open.retain(|open| sent.steady.saturating_sub(open.sent.steady) < PATIENCE);
        if self.open.len() == OPEN {
            self.open.remove(0);
        }
        let lost = before - self.open.len();
        self.open.push(Open { exchange, sent });
        // One is on its way as a rule, so only those before it are missed.
        self.unanswered = self.unanswered.saturating_add(1);
        lost as u64
    }

    /// Is this an answer to an open probe? Then it is open no more.
    pub(crate) fn answered(&mut self, exchange: u64, now: Now) -> Option<Now> {
        let place = self.open.iter().position(|open| open.exchange == exchange)?;
        let open = self.open.remove(place);
        (now.steady.saturating_sub(open.sent.steady) < PATIENCE).then(|| {
            self.unanswered = 0;
            open.sent
        })
    }

    /// Takes the measurement of an exchange. `arrived` is this node's clock when the reply arrived.
    pub(crate) fn measure(&mut self, sent: Now, arrived: Duration, now: Now, held: Duration) -> Result<(), ClockMoved> {
        let possible = now.steady.saturating_sub(sent.steady) + CLOCK_SLACK;
        let elapsed = arrived.checked_sub(sent.wall).filter(|elapsed| *elapsed <= possible).ok_or(ClockMoved)?;
        let rtt = elapsed.checked_sub(held).ok_or(ClockMoved)?;
        self.held = held;
        if self.measured.len() < MEASUREMENTS {
            self.measured.push(rtt);
        } else {
            self.measured[self.next % MEASUREMENTS] = rtt;
        }
        self.next = (self.next + 1) % MEASUREMENTS;
        Ok(())
    }

    /// Takes what it told, `waited` before now.
    pub(crate) fn learn(&mut self, report: &Report, waited: Duration, now: Duration) {
        self.services_in_all = report.services_in_all;
        self.load = Some((report.load, now, report.age + waited));
        let complete = report.services.len() == usize::from(report.services_in_all);
        self.services.merge(report.services.iter().copied(), complete, SERVICE_LIFE, now);
    }

    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.measured.iter().min().copied()
    }

    /// How far it is; None if that is not known, or if it does not answer.
    pub(crate) fn distance(&self) -> Option<Duration> {
        self.rtt().filter(|_| self.unanswered <= SILENT)
    }

    /// Takes its place among the reports, or leaves it.
    pub(crate) fn tell(&self, now: Duration, known: &mut HashMap<Arc<str>, PeerReport>) {
        let age = self.report_age(now).filter(|age| *age < REPORT_LIFE);
        let Some(((load, _, _), age)) = self.load.zip(age) else {
            known.remove(&self.name);
            return;
        };
        let mut services =
            known.get_mut(&self.name).map(|known| std::mem::take(&mut known.services)).unwrap_or_default();
        services.clear();
        services.extend(self.services.fresh(SERVICE_LIFE, now));
        let node = Arc::clone(&self.name);
        known.insert(Arc::clone(&node), PeerReport { node, load, services, rtt: self.rtt(), age });
    }

    fn report_age(&self, now: Duration) -> Option<Duration> {
        self.load.map(|(_, came, age)| now.saturating_sub(came) + age)
    }

    fn answers(&self, now: Duration) -> bool {
        let waits = |open: &Open| now.saturating_sub(open.sent.steady) <= SILENCE;
        self.unanswered == 0 || (self.unanswered == 1 && self.open.last().is_some_and(waits))
    }

    pub(crate) fn state(&self, near: bool, sends: f64, now: Duration) -> PeerState {
        PeerState {
            node: Arc::clone(&self.name),
            address: self.address,
            near,
            rtt: self.distance(),
            held: self.held,
            // The last one may still be on its way.
            unanswered: self.unanswered.saturating_sub(1),
            answers: self.answers(now),
            report_age: self.report_age(now),
            heard: self.heard.map(|heard| now.saturating_sub(heard)),
            unwraps: self.unwraps,
            sends,
        }
    }
}
