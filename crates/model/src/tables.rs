//! What the programs remember: flows, what their answers must look like, who keeps which backend, pieces of datagrams, and what
//! they counted. The kernel's tables may be full; these never are.

use std::collections::{BTreeMap, HashMap};

use weir_abi as abi;
use weir_abi::Addr;

use crate::pace::Pace;
use crate::packet::{End, Key};

/// In which pair of tables an entry is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Stage {
    /// The client goes on after an answer: `flows` and `replies`.
    Going,
    /// It has begun: `openings` and `awaited`.
    Opening,
}

/// Times of the programs' two clocks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Now {
    /// That of flows.
    pub ticks: u32,
    /// That of delays, in units of `2^DELAY_SHIFT` nanoseconds.
    pub delay: u32,
}

impl Now {
    /// Whether what was last seen at a tick has been silent for longer than a limit.
    pub(crate) const fn is_idle(self, last_seen: u32, limit: u32) -> bool {
        self.ticks.wrapping_sub(last_seen) > limit
    }
}

/// Where a client's packets go. Keyed by them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flow {
    /// Slot of its backend.
    pub backend: u32,
    /// Of the backend when it was chosen.
    pub generation: u32,
    /// Slot of its service.
    pub service: u32,
    /// The backend sees an address of the node's with this port.
    pub snat: Option<u16>,
    /// The backend sees the client's address with this port.
    pub other_port: Option<u16>,
    /// It is the tunnel's.
    pub tunnel: bool,
    /// Its packets go wrapped to the backend's node, which answers the client itself.
    pub direct: bool,
    /// It is the host's own, which has asked from a frontend's port, and has no backend.
    pub hosts: bool,
    /// The client has closed its direction.
    pub closing: bool,
    /// Both sides have closed theirs, or one has reset it.
    pub ended: Option<Ended>,
    /// The backend had said something while the flow was among those that begin.
    pub replied: bool,
    /// Backends that were left since they did not answer.
    pub retries: u16,
    /// As it says itself; the table that it is in must agree.
    pub opening: bool,
    /// It goes on, and stays among those that begin for this tick.
    pub settled: bool,
    /// Its client went on after the answer, once at least.
    pub gone_on: bool,
    /// Tick.
    pub created: u32,
    /// Tick.
    pub last_seen: u32,
    /// Of all its packets but the first.
    pub bytes: u32,
    /// Those of them that the backend's counters lack.
    pub held: u32,
}

/// How the end of a connection was noted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ended {
    /// The other side has closed second, so that this one's next word acknowledges it; or one has reset it.
    pub is_last: bool,
}

/// What a backend's packets become. Keyed by them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reply {
    /// Whom the client talks to.
    pub frontend: End,
    /// The client.
    pub client: End,
    /// They come to the node in the client's stead.
    pub snat: bool,
    /// It is the tunnel's address that they come to.
    pub tunnel: bool,
    /// The backend has closed its direction.
    pub closing: bool,
    /// Both sides have closed theirs, or one has reset it.
    pub ended: Option<Ended>,
    /// What its client acknowledges, if there was a SYN-ACK; else 0.
    pub heard: u16,
    /// The lower bits of the tick in which the host has asked from its port, if its client has not since.
    pub lent: Option<u16>,
    /// The backend has said something.
    pub replied: bool,
    /// The client was led elsewhere, as the backend did not answer.
    pub moved: bool,
    /// No other backend could have its SYN, which came again.
    pub alone: bool,
    /// A flood has left no flow beside it.
    pub by_hash: bool,
    /// Its source port is the one that the client's port had before.
    pub kept: bool,
    /// As it says itself.
    pub opening: bool,
    /// Its flow goes on, and stays among those that begin for this tick.
    pub settled: bool,
    /// How often its SYN went to another backend before this one.
    pub retries: u16,
    /// Slot of the backend.
    pub backend: u32,
    /// Of the backend when it was chosen.
    pub generation: u32,
    /// Tick.
    pub last_seen: u32,
    /// Since when a first answer is awaited.
    pub asked: Option<u32>,
    /// It is that of a SYN for what was answered before.
    pub asked_again: bool,
    /// Of its packets.
    pub bytes: u32,
    /// Those of them that the backend's counters lack.
    pub held: u32,
}

impl Flow {
    /// The port that the backend sees in place of the client's.
    pub(crate) fn source_port(&self) -> Option<u16> {
        self.snat.or(self.other_port)
    }

    /// Whether it has not got going so far, or is over.
    pub(crate) const fn is_opening(&self) -> bool {
        self.opening && !self.settled
    }

    /// Whether what it holds is the backend that was left for this one. Of all but direct flows it is in the entry of the answers.
    pub(crate) const fn names_left(&self) -> bool {
        self.direct && self.opening && self.retries > 0
    }
}

impl Reply {
    /// The port that the backend sees in place of the client's, by the one that it answers to.
    pub(crate) fn source_port(&self, answered: u16) -> Option<u16> {
        (self.snat || self.client.port != answered).then_some(answered)
    }

    /// The same of its flow.
    pub(crate) const fn is_opening(&self) -> bool {
        self.opening && !self.settled
    }

    /// Whether it is the answer to a flow of this key.
    pub(crate) fn is_of(&self, key: &Key, flow: &Flow) -> bool {
        (self.backend, self.generation) == (flow.backend, flow.generation)
            && (self.client, self.frontend) == (key.from, key.to)
    }

    /// Whether a client's packet shows that it has heard of the SYN-ACK, as far as there was one.
    pub(crate) const fn was_heard(&self, heard: u16) -> bool {
        self.heard == 0 || heard.wrapping_sub(self.heard) & abi::HEARD_MASK <= 1
    }

    /// The key of its flow.
    pub(crate) const fn flow_key(&self, reply: &Key) -> Key {
        Key { family: reply.family, protocol: reply.protocol, from: self.client, to: self.frontend }
    }
}

/// A table with its entries at both stages.
#[derive(Clone, Debug)]
pub struct Staged<T>([HashMap<Key, T>; 2]);

impl<T> Default for Staged<T> {
    fn default() -> Self {
        Self([HashMap::new(), HashMap::new()])
    }
}

impl<T: Copy> Staged<T> {
    /// All entries of a stage.
    pub fn entries(&self, stage: Stage) -> &HashMap<Key, T> {
        &self.0[stage as usize]
    }

    /// Loses all entries of a stage, as a full table loses some.
    pub fn clear(&mut self, stage: Stage) {
        self.0[stage as usize].clear();
    }

    pub(crate) fn at(&self, stage: Stage, key: &Key) -> Option<T> {
        self.0[stage as usize].get(key).copied()
    }

    /// What goes on hides what begins.
    pub(crate) fn find(&self, key: &Key) -> Option<(Stage, T)> {
        let at = |stage| Some((stage, self.at(stage, key)?));
        at(Stage::Going).or_else(|| at(Stage::Opening))
    }

    pub(crate) fn get_mut(&mut self, stage: Stage, key: &Key) -> Option<&mut T> {
        self.0[stage as usize].get_mut(key)
    }

    pub(crate) fn put(&mut self, stage: Stage, key: Key, entry: T) {
        self.0[stage as usize].insert(key, entry);
    }

    pub(crate) fn forget(&mut self, stage: Stage, key: &Key) {
        self.0[stage as usize].remove(key);
    }

    pub(crate) fn forget_all(&mut self, key: &Key) {
        self.0.iter_mut().for_each(|table| _ = table.remove(key));
    }
}

/// Which datagram a piece is of.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FragmentKey {
    /// Source.
    pub src: Addr,
    /// Destination.
    pub dst: Addr,
    /// The datagram's number.
    pub id: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// On its way out of an interface, not into the node.
    pub out: bool,
}

/// The ports of a datagram in pieces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Tick.
    pub last_seen: u32,
    /// `enum fragment_state` of `bpf/abi.h`.
    pub state: u32,
}

/// A piece that waits for the first one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HeldPiece {
    /// Of which datagram.
    pub key: FragmentKey,
    /// As it came.
    pub frame: Vec<u8>,
    /// Where its IP header is.
    pub l3: usize,
    /// Index of the device that it comes again by.
    pub device: u32,
    /// Tick.
    pub last_seen: u32,
}

/// Whose turn it is of an endpoint's source ports.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Turn {
    /// The first number that the next flow may get.
    pub next: u32,
    /// In ticks: when a flow that had only just begun lost its port to the next one.
    pub pressed: Option<u32>,
    /// In ticks: when a search for a port was long.
    pub long_search: Option<u32>,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// `flows` and `openings`.
    pub flows: Staged<Flow>,
    /// `replies` and `awaited`.
    pub replies: Staged<Reply>,
    /// By client and service.
    pub affinities: HashMap<(Addr, u32), abi::Affinity>,
    /// Datagrams in pieces.
    pub fragments: HashMap<FragmentKey, Fragment>,
    /// Pieces that came before the first one, by their place. All sources have the same places here.
    pub held: BTreeMap<u32, HeldPiece>,
    /// Where the datagrams of sockets were sent to, and which address their owners know.
    pub sockets: HashMap<abi::SocketKey, abi::SocketPeer>,
    /// The same of TCP sockets, by their number.
    pub connections: HashMap<u64, abi::ConnectionPeer>,
    /// By slot of `snat_counters`.
    pub turns: HashMap<u32, Turn>,
    /// SYNs that were held back, by set and place in it: a byte of each one's hash.
    pub(crate) first_syns: HashMap<(u32, u8), u8>,
    /// Source ports that clients' ports had, by what they connected to and the slot of the endpoint's turn.
    pub(crate) kept: HashMap<(Key, u64), u16>,
    /// The backends of connections without a flow, and since when.
    pub(crate) displaced: HashMap<Key, (u32, u32)>,
    /// By slot.
    pub backend_counters: HashMap<u32, abi::BackendCounters>,
    /// By slot.
    pub service_counters: HashMap<u32, abi::ServiceCounters>,
    /// Entries for answers of flows that go on which were gone, and were written anew.
    pub lost: u64,
    /// What was done in the tick that has the last new flow or error.
    pub(crate) pace: Pace,
}

impl Tables {
    pub(crate) fn backend_counters(&mut self, slot: u32) -> &mut abi::BackendCounters {
        self.backend_counters.entry(slot).or_default()
    }

    pub(crate) fn service_counters(&mut self, slot: u32) -> &mut abi::ServiceCounters {
        self.service_counters.entry(slot).or_default()
    }
}
