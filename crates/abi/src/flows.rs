//! What the programs write: flows, the pieces of their packets, and sockets; and whose sockets are translated.

use crate::enums::{DISPLACED_WAYS, FIRST_SYNS, FLOW_OPENING, FLOW_SETTLED, HELD_BYTES, OPENING_WAYS, ROUTE_WORDS};
use crate::{Addr, Be16, Be32};

/// See `struct flow_key4` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowKey4 {
    /// Src.
    pub src: Be32,
    /// Dst.
    pub dst: Be32,
    /// Sport.
    pub sport: Be16,
    /// Dport.
    pub dport: Be16,
    /// Proto.
    pub proto: u8,
    /// Zero.
    pub pad: [u8; 3],
}

/// See `struct flow_key6` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowKey6 {
    /// Src.
    pub src: [Be32; 4],
    /// Dst.
    pub dst: [Be32; 4],
    /// Sport.
    pub sport: Be16,
    /// Dport.
    pub dport: Be16,
    /// Proto.
    pub proto: u8,
    /// Zero.
    pub pad: [u8; 3],
}

/// From client to frontend. Keyed by the packet as the client sent it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Flow {
    /// Index into backends.
    pub backend: u32,
    /// Of the backend when it was selected.
    pub generation: u32,
    /// Index into services.
    pub service: u32,
    /// Enum flow_flags.
    pub flags: u16,
    /// The port that the backend sees in place of the client's, without FLOW_SNAT with the client's address; 0: none.
    pub snat_port: Be16,
    /// In ticks.
    pub created: u32,
    /// In ticks.
    pub last_seen: u32,
    /// Of its packets without the first, wraps.
    pub bytes: u32,
    /// Those of them that `backend_counters` lack so far.
    /// Of a direct flow that begins, with [`FLOW_RETRIES`](crate::FLOW_RETRIES): as in [`Reply`].
    pub held: u32,
}

impl Flow {
    /// `is_opening()` in `bpf/lib/flow.h`: whether it has not got going so far, or is over.
    #[must_use]
    pub const fn is_opening(&self) -> bool {
        self.flags & (FLOW_OPENING | FLOW_SETTLED) == FLOW_OPENING
    }
}

/// As `flows6` and `openings6` have it: see `struct flow6` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Flow6 {
    /// The flow.
    pub flow: Flow,
    /// Zero.
    pub pad: [u32; 2],
}

impl AsRef<Flow> for Flow {
    fn as_ref(&self) -> &Flow {
        self
    }
}

impl AsRef<Flow> for Flow6 {
    fn as_ref(&self) -> &Flow {
        &self.flow
    }
}

/// From backend to client. Keyed by the packet as the backend sends it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Reply {
    /// Frontend.
    pub frontend: Addr,
    /// Client.
    pub client: Addr,
    /// Frontend port.
    pub frontend_port: Be16,
    /// Client port.
    pub client_port: Be16,
    /// Enum flow_flags.
    pub flags: u16,
    /// What the client's ACK must begin with, and of a flow that goes on its end: see [`HEARD_KNOWN`](crate::HEARD_KNOWN). 0: any may.
    pub heard: u16,
    /// Index into backends.
    pub backend: u32,
    /// Of the backend when it was selected.
    pub generation: u32,
    /// In ticks.
    pub last_seen: u32,
    /// In units of delay, wraps: when an answer began to be awaited. 0: none is.
    pub asked: u32,
    /// Of its packets, wraps.
    pub bytes: u32,
    /// Those of them that `backend_counters` lack so far.
    /// With [`FLOW_RETRIES`](crate::FLOW_RETRIES): the backend that was left for this one, or 0.
    pub held: u32,
}

/// What a set of flows that begin knows of its entries.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpeningHead {
    /// Hash of the key that an entry has, or OPENING_FREE or OPENING_BUSY.
    pub tag: [u32; OPENING_WAYS],
    /// In ticks: when it was written, or was spared last.
    pub born: [u32; OPENING_WAYS],
    /// Wraps: where none is free goes whose number is furthest behind the next one.
    pub turn: [u32; OPENING_WAYS],
    /// Wraps: number that the next entry gets which is written.
    pub next: u32,
    /// Wraps: entries that lost their place within OPENING_IDLE ticks of their last packet.
    pub displaced: u32,
    /// Zero.
    pub pad: [u32; 2],
}

/// A few flows that begin, or what their answers must look like: an element of an array, which the hash of a key names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpeningSet<K, V> {
    /// Which entries there are.
    pub head: OpeningHead,
    /// Their keys.
    pub key: [K; OPENING_WAYS],
    /// Their values.
    pub value: [V; OPENING_WAYS],
}

/// See `struct opening_set4` in `bpf/abi.h`.
pub type OpeningSet4 = OpeningSet<FlowKey4, Flow>;
/// See `struct opening_set6` in `bpf/abi.h`.
pub type OpeningSet6 = OpeningSet<FlowKey6, Flow6>;
/// See `struct awaited_set4` in `bpf/abi.h`.
pub type AwaitedSet4 = OpeningSet<FlowKey4, Reply>;
/// See `struct awaited_set6` in `bpf/abi.h`.
pub type AwaitedSet6 = OpeningSet<FlowKey6, Reply>;

/// See `struct going_filter` in `bpf/abi/flows.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct GoingFilter {
    /// 0: look-ups are made without.
    pub asked: u32,
    /// Zero.
    pub pad: u32,
    /// Two bits for each slot, the first one lowest: [`GOING_MAY_BE`](crate::GOING_MAY_BE), [`GOING_NONE`](crate::GOING_NONE) or
    /// [`GOING_ASKED`](crate::GOING_ASKED).
    pub slots: [u64; 1 << (crate::GOING_BITS - crate::GOING_WORD_BITS)],
}

/// `NEAR_BITS` in `bpf/lib/sets.h`.
const NEAR_BITS: u32 = 6;

/// So many bits.
const NEAR: u32 = (1 << NEAR_BITS) - 1;

/// `NEAR_PORTS` in `bpf/lib/sets.h`: bits of both ports, as they are in a key's word, which move a key by sets and do not scatter it.
const NEAR_PORTS: u32 = NEAR << 9 | NEAR << 25;

/// `GOLDEN_RATIO` in `bpf/lib/word.h`.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// `opening_hash()` in `bpf/lib/sets.h`, of the words of a key as they lie in memory: its ports, and its protocol, come last.
/// `step` is [`opening_step`] of the sets that the hash is to name one of.
#[must_use]
pub fn opening_hash(key: &[u32], seed: u64, step: u32) -> u64 {
    let ports = key.iter().nth_back(1).copied().unwrap_or_default();
    let mut odd = GOLDEN_RATIO;
    let mut hash = seed;
    let mut pairs = key.chunks_exact(2).peekable();
    while let Some(pair) = pairs.next() {
        let first = if pairs.peek().is_some() { pair[0] } else { pair[0] & !NEAR_PORTS };
        let (first, second) = (u64::from(first), u64::from(pair[1]));
        let product = first.wrapping_add(seed ^ odd).wrapping_mul(second.wrapping_add(seed ^ odd.wrapping_mul(3)));
        hash = hash.wrapping_add(product);
        odd = odd.wrapping_mul(5);
    }
    hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let near = ((ports >> 8) + (ports >> 24)) >> 1 & NEAR;
    let own = u64::from(ports).wrapping_mul(GOLDEN_RATIO) >> 32;
    hash.wrapping_add((u64::from(near) * u64::from(step)) << 32).wrapping_add(own)
}

/// From one of so many sets to the next one in the upper half of a hash.
#[must_use]
pub fn opening_step(sets: u32) -> u32 {
    u32::try_from((1_u64 << 32) / u64::from(sets.max(1))).unwrap_or(u32::MAX)
}

/// `opening_set()` in `bpf/lib/sets.h`: which of so many sets a hash names.
#[must_use]
pub const fn opening_set(hash: u64, sets: u32) -> u32 {
    (((hash >> 32) * sets as u64) >> 32) as u32
}

/// SYNs that were held back, and pass when they come again.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FirstSyns {
    /// A byte of the hash of each one's key, never zero.
    pub tag: [u8; FIRST_SYNS],
}

/// Connections that others took the place of; see `struct displaced` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Displaced {
    /// Of each a part of its hash, when, its backend and its source port; 0: none.
    pub entry: [u64; DISPLACED_WAYS],
    /// Of each entry for answers a part of its hash, and when; 0: none.
    pub answers: [u32; DISPLACED_WAYS],
}

/// A question to the kernel's routes and the answer, in words of `struct bpf_fib_lookup`: the way of a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Route {
    /// In which it was asked, and counts; 0: there is none.
    pub jiffy: u64,
    /// Zero.
    pub pad: u64,
    /// With no length.
    pub asked: [u32; ROUTE_WORDS],
    /// The same with what the kernel has found.
    pub answer: [u32; ROUTE_WORDS],
}

/// How many flows have begun on a CPU, how many errors it has told, and what it saw missing of those that go on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Pace {
    /// Of the last one.
    pub tick: u32,
    /// In that tick.
    pub flows: u32,
    /// In that tick, but for `too_big`.
    pub told: u32,
    /// In that tick: flows of others than TCP that have moved to those that go on.
    pub moved: u32,
    /// The last tick with more new flows than anybody's clients make; 0: there was none.
    pub flooded: u32,
    /// In that tick: errors that told a sender how big its packets may be.
    pub too_big: u32,
    /// Entries for answers that a full table had evicted, and that a client's packet has brought back.
    pub lost: u64,
    /// Connections that were met in their middle, and got an endpoint by their hash or by what a flood had left of them.
    pub adopted: u64,
}

/// A datagram in pieces: only the first one has ports. Keyed by what all pieces have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FragmentKey {
    /// Src.
    pub src: Addr,
    /// Dst.
    pub dst: Addr,
    /// Of IPv4 the lower half.
    pub id: Be32,
    /// Proto.
    pub proto: u8,
    /// 1: on its way out of an interface; 0: into the node.
    pub out: u8,
    /// Zero.
    pub pad: [u8; 2],
}

/// See `struct fragment` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Fragment {
    /// Sport.
    pub sport: Be16,
    /// Dport.
    pub dport: Be16,
    /// In ticks.
    pub last_seen: u32,
    /// Enum fragment_state.
    pub state: u32,
}

/// A piece that came before the first one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct HeldPiece {
    /// What all pieces of its datagram have in common.
    pub key: FragmentKey,
    /// In ticks: when it came.
    pub last_seen: u32,
    /// Enum held_state.
    pub state: u32,
    /// Of bytes that are in use.
    pub length: u16,
    /// Where its IP header is: it waits for a first piece that came by an interface of that kind.
    pub l3: u16,
    /// Of the interface by which it comes again, as its link header is for that.
    pub ifindex: u32,
    /// Its frame.
    pub bytes: [u8; HELD_BYTES],
}

/// Of datagrams. With a frontend's address: which backend the socket's go to. With a backend's: which frontend it knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SocketKey {
    /// Cookie.
    pub cookie: u64,
    /// Addr.
    pub addr: Addr,
    /// Port.
    pub port: Be16,
    /// Proto.
    pub proto: u8,
    /// Zero.
    pub pad: [u8; 5],
}

/// See `struct socket_peer` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SocketPeer {
    /// Addr.
    pub addr: Addr,
    /// Port.
    pub port: Be16,
    /// Zero.
    pub pad: u16,
    /// Index into backends.
    pub backend: u32,
    /// Of the backend when it was selected.
    pub generation: u32,
}

/// A part of a TCP socket: the frontend that its owner has connected it to, and the backend that it is connected to instead.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionPeer {
    /// Address of the frontend.
    pub frontend: Addr,
    /// Address of the backend.
    pub backend: Addr,
    /// Port of the frontend.
    pub frontend_port: Be16,
    /// Port of the backend.
    pub backend_port: Be16,
}

/// A pod whose TCP connections are translated when they are made. Keyed by the id of its cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct HookedPod {
    /// Its own; [`Addr::UNSET`]: its IPv4 is translated by packet.
    pub addr4: Addr,
    /// Its own; [`Addr::UNSET`]: its IPv6 is translated by packet.
    pub addr6: Addr,
}
