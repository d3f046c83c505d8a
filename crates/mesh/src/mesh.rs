//! The protocol: datagrams and times in, datagrams and reports out. No sockets, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_core::load::{Inbound, NodeLoad, PeerReport, ServiceId, ServiceLoad};

use crate::body::{Body, SERVICE, SPILLED, UNWRAPS};
use crate::budget::{self, size_on_wire};
use crate::config::Config;
use crate::counters::{Counters, Refusal};
use crate::keys::KeyRing;
use crate::packet::{self, ENVELOPE, Header, Kind, MAX_PACKET, MIN_PACKET, NodeId, Opened};
use crate::peers::{ClockMoved, Peer, PeerState};
use crate::remotes::{Remotes, SPILL_LIFE};
use crate::replay::Order;
use crate::schedule::Schedule;
use crate::services::{self, Published};

/// Room for services that a probe offers to a peer which has not told how many it has.
const GUESS: usize = 4;
/// This part of a packet's room is for what is spilled to its receiver, the rest for services.
const SPILLED_PART: usize = 4;
/// Datagrams do not wait longer than that in a socket's buffer; if they seem to, the clock was set.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Now {
    /// Of a clock that is never set, since any fixed moment.
    pub steady: Duration,
    /// Of the node's clock, which the kernel's timestamps follow, since 1970.
    pub wall: Duration,
}

/// A datagram as it came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The payload; one byte longer than [`MAX_PACKET`] is enough to be refused.
    pub bytes: &'a [u8],
    /// Where it came from. Replies go there.
    pub from: SocketAddr,
    /// When the kernel received it, by the node's clock. None if it does not tell; then a busy agent looks far.
    pub stamp: Option<Duration>,
}

impl Arrival<'_> {
    /// When it arrived. A stamp that cannot be true is none.
    fn time(&self, now: Now) -> Duration {
        let possible = |stamp: &Duration| *stamp <= now.wall && now.wall - *stamp < LONGEST_WAIT;
        self.stamp.filter(possible).unwrap_or(now.wall)
    }
}

/// A datagram to send at once: it tells the time at which it was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// To whom.
    pub to: SocketAddr,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// A peer's probe that was taken and waits for its reply.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    sender: NodeId,
    from: SocketAddr,
    exchange: u64,
    key: usize,
    /// Of the probe, in bytes. The reply is never longer, so that nothing is gained by a forged source address.
    length: usize,
    /// When it arrived, by the node's clock.
    arrived: Duration,
}

/// What a packet needs besides its body.
struct Letter {
    kind: Kind,
    receiver: NodeId,
    exchange: u64,
    /// The least length, in bytes.
    length: usize,
    key: usize,
    to: SocketAddr,
}

/// The mesh as one node sees it.
#[derive(Debug)]
pub struct Mesh {
    me: NodeId,
    config: Config,
    keys: KeyRing,
    epoch: u64,
    sequence: u64,
    published: Option<Published>,
    unwraps: bool,
    peers: BTreeMap<NodeId, Peer>,
    remotes: Remotes,
    schedule: Schedule,
    counters: Counters,
    rng: fastrand::Rng,
}

impl Mesh {
    /// The mesh of a node without peers. `config` is [checked](Config::checked) by the caller. `seed` spreads the
    /// probes of nodes over time; nothing secret hangs on it.
    #[must_use]
    pub fn new(node: &str, config: Config, keys: KeyRing, seed: u64, now: Now) -> Self {
        Self {
            me: NodeId::of(node),
            config,
            keys,
            epoch: packet::nanos(now.wall),
            sequence: 0,
            published: None,
            unwraps: false,
            peers: BTreeMap::new(),
            remotes: Remotes::new(config),
            schedule: Schedule::new(config),
            counters: Counters::default(),
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Other keys from now on.
    pub fn set_keys(&mut self, keys: KeyRing) {
        self.keys = keys;
    }

    /// The nodes that may be probed, by name and the address of their mesh. The node itself is left out.
    pub fn set_peers(&mut self, peers: impl IntoIterator<Item = (Arc<str>, SocketAddr)>) {
        let mut before = std::mem::take(&mut self.peers);
        for (name, address) in peers {
            let id = NodeId::of(&name);
            if id == self.me {
                continue;
            }
            let mut peer = before.remove(&id).unwrap_or_else(|| Peer::new(name, address));
            peer.moved(address);
            self.peers.insert(id, peer);
        }
        let ids: BTreeSet<_> = self.peers.keys().copied().collect();
        self.schedule.set(&ids, &mut self.rng);
    }

    /// What this node tells of itself from now on. It stops telling if this is not called for 2 s.
    pub fn publish(&mut self, load: NodeLoad, services: impl IntoIterator<Item = (ServiceId, ServiceLoad)>, now: Now) {
        self.published = Some(Published::new(load, services, now.steady));
    }

    /// Whether this node takes clients' packets that are wrapped, and answers the clients itself. Told from now on.
    pub const fn set_unwraps(&mut self, unwraps: bool) {
        self.unwraps = unwraps;
    }

    /// The services whose flows this node spills to a peer from now on, with new flows per second. Told to it, so that
    /// it can divide what it spares, and knows what its endpoints get past its own datapath. Rates that cannot be true
    /// are left out.
    pub fn spill(&mut self, node: &str, services: impl IntoIterator<Item = (ServiceId, f64)>) {
        if let Some(peer) = self.peers.get_mut(&NodeId::of(node)) {
            let possible = |(_, rate): &(ServiceId, f64)| {
                ServiceLoad { flows_per_second: *rate, ..ServiceLoad::default() }.checked().is_ok()
            };
            let services: BTreeMap<_, _> = services.into_iter().filter(possible).collect();
            peer.spilled = services.into_iter().collect();
        }
    }

    /// For each service, what nodes told within the last 5 s that they spill to this one.
    #[must_use]
    pub fn inbound(&self, now: Now) -> HashMap<ServiceId, Inbound> {
        self.remotes.inbound(now.steady)
    }

    /// Brings what is known of the peers' reports up to date, by node; nothing older than 30 s stays. In place: it is asked
    /// for several times a second, and there are thousands of services.
    pub fn reports(&self, now: Now, known: &mut HashMap<Arc<str>, PeerReport>) {
        known.retain(|node, _| self.peers.contains_key(&NodeId::of(node)));
        for peer in self.peers.values() {
            peer.tell(now.steady, known);
        }
    }

    /// Every peer with its distance, for people.
    #[must_use]
    pub fn peers(&self, now: Now) -> Vec<PeerState> {
        let state = |(id, peer): (&NodeId, &Peer)| {
            peer.state(self.schedule.is_near(*id), self.remotes.sends(*id, now.steady), now.steady)
        };
        self.peers.iter().map(state).collect()
    }

    /// Sums since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A datagram could not be sent.
    pub(crate) const fn unsent(&mut self) {
        self.counters.unsent += 1;
    }

    /// When to ask [`Mesh::probe`] again, by the steady clock. None while there are no peers.
    #[must_use]
    pub fn next_probe(&self) -> Option<Duration> {
        self.schedule.next()
    }

    /// The next probe that is due. Ask until there is none, each time with a fresh clock.
    pub fn probe(&mut self, now: Now) -> Option<Transmit> {
        loop {
            let peers = &self.peers;
            let distance = |id| peers.get(&id).and_then(Peer::distance);
            let id = self.schedule.take(now.steady, distance, &mut self.rng)?;
            let Some(peer) = self.peers.get(&id) else { continue };
            let (to, key) = (peer.address, peer.key());
            let Some(length) = self.probe_length(id, peer.services_in_all, to, now) else {
                self.counters.probes_held_back += 1;
                continue;
            };
            let exchange = self.rng.u64(..);
            if let Some(peer) = self.peers.get_mut(&id) {
                self.counters.probes_lost += peer.probed(exchange, now);
            }
            let body = self.body(id, length, Duration::ZERO, now);
            self.counters.probes_sent += 1;
            let letter = Letter { kind: Kind::Probe, receiver: id, exchange, length, key, to };
            return Some(self.send(&letter, &body, now));
        }
    }

    /// As long as the longer of both reports, and at most half of what may be sent now: the other half is for replies.
    fn probe_length(&mut self, id: NodeId, told: u16, to: SocketAddr, now: Now) -> Option<usize> {
        let services = self.own_services().max(told.into()).max(GUESS);
        let spilled = self.peers.get(&id).map_or(0, |peer| peer.spilled.len());
        let need = (ENVELOPE + services * SERVICE + spilled * SPILLED + UNWRAPS).min(MAX_PACKET);
        let stock = self.remotes.entry(id, now.steady).budget.available(now.steady);
        let length = need.min((stock / 2).saturating_sub(budget::headers(to)));
        (length >= MIN_PACKET).then_some(length)
    }

    fn own_services(&self) -> usize {
        self.published.as_ref().map_or(0, Published::len)
    }

    /// What a packet of this length tells a node.
    fn body(&mut self, to: NodeId, length: usize, held: Duration, now: Now) -> Body {
        let own = self.own_services();
        let all = self.peers.get(&to).map_or(&[][..], |peer| &peer.spilled);
        let room = length.saturating_sub(ENVELOPE);
        let unwraps = self.unwraps && room >= UNWRAPS;
        let room = if unwraps { room - UNWRAPS } else { room };
        let remote = self.remotes.entry(to, now.steady);
        // What the services do not need is free.
        let part = (room / SPILLED_PART).max(room.saturating_sub(own * SERVICE));
        let slots = (part / SPILLED).min(u8::MAX.into());
        let spilled = services::in_turn(all, slots, &mut remote.spilling);
        let wanted: Vec<_> = remote.spilled.fresh(SPILL_LIFE, now.steady).map(|(id, _)| id).collect();
        let slots = (room - spilled.len() * SPILLED) / SERVICE;
        let published = self.published.as_ref();
        Body {
            held,
            spilled_in_all: u16::try_from(all.len()).unwrap_or(u16::MAX),
            spilled,
            unwraps,
            report: published.and_then(|own| own.report(slots, &wanted, &mut remote.services, now.steady)),
        }
    }

    fn send(&mut self, letter: &Letter, body: &Body, now: Now) -> Transmit {
        let Letter { kind, receiver, exchange, length, key, to } = *letter;
        self.sequence += 1;
        let (sender, epoch, sequence, time) = (self.me, self.epoch, self.sequence, now.wall);
        let header = Header { kind, sender, receiver, epoch, sequence, time, exchange };
        let bytes = packet::seal(&header, &body.encode(), length, &self.keys, key);
        let size = size_on_wire(to, bytes.len());
        // The body was made to fit what is available.
        self.remotes.entry(receiver, now.steady).budget.spend(size, now.steady);
        self.counters.bytes_sent += size as u64;
        Transmit { to, bytes }
    }

    /// Takes a datagram and replies to it at once, if it is a probe. Who has better to tell soon asks in two steps.
    ///
    /// # Errors
    /// The [`Refusal`], which is counted. Nothing is learnt from a refused one.
    pub fn receive(&mut self, arrival: Arrival<'_>, now: Now) -> Result<Option<Transmit>, Refusal> {
        let question = self.hear(arrival, now)?;
        question.map(|question| self.reply(&question, now)).transpose()
    }

    /// Takes a datagram. A probe is answered with by [`Mesh::reply`], which tells how long it waited.
    ///
    /// # Errors
    /// The [`Refusal`], which is counted. Nothing is learnt from a refused one.
    pub fn hear(&mut self, arrival: Arrival<'_>, now: Now) -> Result<Option<Question>, Refusal> {
        let result = self.accept(arrival, now);
        self.counted(result)
    }

    /// The reply to a probe.
    ///
    /// # Errors
    /// [`Refusal::OverBudget`], which is counted, if its sender has had too much meanwhile.
    pub fn reply(&mut self, question: &Question, now: Now) -> Result<Transmit, Refusal> {
        let Question { sender: receiver, from: to, exchange, key, length, arrived } = *question;
        self.remotes.entry(receiver, now.steady).answered();
        let length = self.reply_length(receiver, to, length, now);
        let length = self.counted(length)?;
        let body = self.body(receiver, length, now.wall.saturating_sub(arrived), now);
        self.counters.replies_sent += 1;
        // Not padded: the prober's room may be larger than what there is to tell.
        let letter = Letter { kind: Kind::Reply, receiver, exchange, length: 0, key, to };
        Ok(self.send(&letter, &body, now))
    }

    fn counted<T>(&mut self, result: Result<T, Refusal>) -> Result<T, Refusal> {
        result.inspect_err(|refusal| self.counters.refuse(*refusal))
    }

    fn accept(&mut self, arrival: Arrival<'_>, now: Now) -> Result<Option<Question>, Refusal> {
        let Opened { header, body, key } = packet::open(arrival.bytes, self.me, &self.keys)?;
        let arrived = arrival.time(now);
        if header.time.abs_diff(arrived) > self.config.skew {
            return Err(Refusal::Skewed);
        }
        let order = self.remotes.admit(&header, now.steady)?;
        let body = Body::decode(body)?;
        let held = now.wall.saturating_sub(arrived);
        if let Some(peer) = self.peers.get_mut(&header.sender) {
            peer.heard(now.steady.saturating_sub(held));
        }
        match header.kind {
            Kind::Probe => {
                let Header { sender, exchange, .. } = header;
                let (from, length) = (arrival.from, arrival.bytes.len());
                self.reply_length(sender, from, length, now)?;
                self.remotes.entry(sender, now.steady).asks()?;
                self.learn(&header, &body, order, held, now);
                self.schedule.probed_by(sender, now.steady.saturating_sub(held), &mut self.rng);
                Ok(Some(Question { sender, from, exchange, key, length, arrived }))
            }
            Kind::Reply => {
                let peer = self.peers.get_mut(&header.sender).ok_or(Refusal::Unsolicited)?;
                let sent = peer.answered(header.exchange, now).ok_or(Refusal::Unsolicited)?;
                self.counters.replies_received += 1;
                match peer.measure(sent, arrived, now, body.held) {
                    Ok(()) => {}
                    Err(ClockMoved) => self.counters.clocks_moved += 1,
                }
                self.learn(&header, &body, order, held, now);
                Ok(None)
            }
        }
    }

    /// The most that the reply to a probe of this length may take now, in bytes of payload.
    fn reply_length(&mut self, to: NodeId, at: SocketAddr, probe: usize, now: Now) -> Result<usize, Refusal> {
        let stock = self.remotes.entry(to, now.steady).budget.available(now.steady);
        let length = probe.min(stock.saturating_sub(budget::headers(at)));
        if length >= MIN_PACKET { Ok(length) } else { Err(Refusal::OverBudget) }
    }

    /// A packet that was overtaken tells nothing new.
    fn learn(&mut self, header: &Header, body: &Body, order: Order, waited: Duration, now: Now) {
        match order {
            Order::Late => return,
            Order::Newest => {}
        }
        let Some(peer) = self.peers.get_mut(&header.sender) else { return };
        let spilled = body.spilled.iter().copied();
        let remote = self.remotes.entry(header.sender, now.steady);
        remote.spilled.merge(spilled, body.spilled_is_complete(), SPILL_LIFE, now.steady);
        peer.unwraps = body.unwraps;
        if let Some(report) = &body.report {
            peer.learn(report, waited, now.steady);
        }
    }
}
