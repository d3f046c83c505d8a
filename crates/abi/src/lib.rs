//! Rust view of `bpf/abi.h`: the keys, values, limits and reasons that kernel and user space share.
//!
//! Layouts are `repr(C)` and free of padding; `tests/btf.rs` compares every field with the BTF of the compiled objects.
//! Fields typed [`Be16`] and [`Be32`] are in network byte order, all others in the machine's.
#![no_std]
#![forbid(unsafe_code)]

mod config;
mod enums;
mod flows;
mod hook;
pub mod names;
mod net;
mod source_ports;
pub mod ticks;

pub use enums::*;
pub use flows::*;
pub use hook::Hook;
pub use net::{Addr, Be16, Be32};
pub use source_ports::{SnatCounter, SnatKept, SnatNext, SnatPorts};

/// See `struct frontend_key4` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FrontendKey4 {
    /// Addr.
    pub addr: Be32,
    /// Port.
    pub port: Be16,
    /// IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP.
    pub proto: u8,
    /// Zero.
    pub pad: u8,
}

/// See `struct frontend_key6` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FrontendKey6 {
    /// Addr.
    pub addr: [Be32; 4],
    /// Port.
    pub port: Be16,
    /// IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP.
    pub proto: u8,
    /// Zero.
    pub pad: u8,
}

/// One word of the frontend filter: a clear bit says that an address is no frontend.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FilterWord {
    /// One bit for each hash.
    pub bits: u64,
}

/// See `struct frontend` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Frontend {
    /// Index into services.
    pub service: u32,
    /// Enum frontend_kind.
    pub kind: u32,
}

/// Each word is replaced by one store; any mix of old and new words is a valid plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Tiers {
    /// 0..65535: share of new flows that goes to the remote tier.
    pub spill: u32,
    /// Reference: a backend, a line with REF_LINE, or 0.
    pub local: u32,
    /// Reference: a backend, a line with REF_LINE, or 0.
    pub remote: u32,
    /// Zero.
    pub pad: u32,
}

/// See `struct service` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Service {
    /// Tiers.
    pub tiers: [Tiers; CLASS_COUNT],
    /// Usable endpoints anywhere; 0 means REJECT where nothing can be selected, else DROP.
    pub endpoints: u32,
    /// Enum service_flags.
    pub flags: u32,
    /// Ticks for which a client keeps its backend after its last new flow; 0: no affinity.
    pub affinity: u32,
    /// Zero.
    pub pad: u32,
}

/// A weighted choice: entry i is taken when cumulative[i-1] < r <= cumulative[i] for a random 32-bit r.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Line {
    /// Inclusive upper bounds; the last used entry and all after it hold 2^32-1.
    pub cumulative: [u32; LINE_ENTRIES],
    /// A backend, or with REF_LINE the next line.
    pub r#ref: [u32; LINE_ENTRIES],
}

/// One endpoint of one service port. Slot 0 is never used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Backend {
    /// Addr.
    pub addr: Addr,
    /// Port.
    pub port: Be16,
    /// IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP.
    pub proto: u8,
    /// Enum backend_flags.
    pub flags: u8,
    /// Changes when the endpoint goes away; flows that remember another one are stale.
    pub generation: u32,
    /// Index into services.
    pub service: u32,
    /// Key in nodes; 0 is unknown.
    pub node: u32,
}

/// Which endpoint of this node a client's packet is for that another node has wrapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LocalKey {
    /// Of the endpoint.
    pub addr: Addr,
    /// Index into services.
    pub service: u32,
    /// Zero.
    pub pad: u32,
}

/// See `struct local_endpoint` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LocalEndpoint {
    /// Index into backends.
    pub backend: u32,
}

/// Keyed by its address: whose wrapped packets are opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OtherNode {
    /// Always 1.
    pub known: u32,
}

/// Session affinity: one client, at all addresses of one service port. The node's own processes are one client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AffinityKey {
    /// Client.
    pub client: Addr,
    /// Index into services.
    pub service: u32,
    /// Zero.
    pub pad: u32,
}

/// See `struct affinity` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Affinity {
    /// Index into backends.
    pub backend: u32,
    /// Of the backend when it was selected.
    pub generation: u32,
    /// In ticks: the client's latest new flow.
    pub last_seen: u32,
}

/// loadBalancerSourceRanges, longest prefix first. The prefix covers the service, too: 32 bits and those of the client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SourceRangeKey {
    /// 32..160; of IPv4 clients 128 and more.
    pub prefixlen: u32,
    /// Index into services.
    pub service: u32,
    /// Client.
    pub client: Addr,
}

/// See `struct source_range` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SourceRange {
    /// Always 1.
    pub allowed: u32,
}

/// What became of a backend's flows since the slot was taken. All but `flows` and `gone_on` is about packets, so connections that
/// are translated at sockets are among these alone. Bytes are those of frames; the flow tables hold some of them back, of a
/// connection at most 2^20 and until it ends, of datagrams a 16th; of both until the first packet of another tick.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct BackendCounters {
    /// Flows that have begun here, or were to in place of another backend.
    pub flows: u64,
    /// From the last SYN or the first datagram to the first answer, of all that are answered together, in units of
    /// `2^DELAY_SHIFT` nanoseconds.
    pub delay: u64,
    /// Flows whose first answer was a SYN-ACK, an INIT ACK or a datagram. Wraps.
    pub answered: u32,
    /// Flows whose first answer was a reset. Wraps.
    pub refused: u32,
    /// Flows that went on after the answer; those of datagrams and sockets count as they begin. Wraps.
    pub gone_on: u32,
    /// Connections of these ([`FLOW_GONE_ON`]), less those that ended: as `balance` is of all. Wraps.
    pub going: u32,
    /// SYNs sent again for want of any answer. Wraps.
    pub unanswered: u32,
    /// Connections of these that another backend has taken since: their client is there, and is let in. Wraps.
    pub failed_over: u32,
    /// Bytes from clients.
    pub bytes_to: u64,
    /// Bytes back to them.
    pub bytes_from: u64,
    /// Connections that began, less those that ended ([`FLOW_ENDED`]). Wraps, and only its changes mean something: those that
    /// were evicted or forgotten stay in it.
    pub balance: u32,
    /// By the agent: what the balance would be without an open flow. Kept up for backends of [`SERVICE_LEAST_CONN`].
    pub base: u32,
}

impl BackendCounters {
    /// `open_flows()` in `bpf/lib/select.h`, before the base is taken off: what began and has not ended, and what the backend failed. Wraps.
    #[must_use]
    pub const fn begun_or_failed(&self) -> u32 {
        self.balance.wrapping_add(self.refused).wrapping_add(self.unanswered)
    }
}

/// See `struct service_counters` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ServiceCounters {
    /// Flows that have begun and stayed on the node.
    pub local: u64,
    /// Those that have left it.
    pub remote: u64,
    /// Refused for want of endpoints.
    pub rejected: u64,
    /// Dropped: no endpoint is allowed here, or the client, or nothing could be noted of it.
    pub dropped: u64,
    /// Connections of `local` whose client went on after the answer, which nobody does who sends in another's name. Flows of
    /// datagrams and of sockets count as they begin.
    pub local_gone_on: u64,
    /// The same of `remote`.
    pub remote_gone_on: u64,
    /// A cache line each.
    pub pad: [u64; 2],
}

/// Addresses that equal `addr` in the bits of `mask`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Network {
    /// Of IPv4 v4-mapped.
    pub addr: Addr,
    /// Of IPv4 at least 96 bits.
    pub mask: Addr,
}

/// A way to other nodes' pods that is not one of the node's interfaces, and has an address of its own: an overlay network's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Tunnel {
    /// Source of SNAT by that way, of flows from before it went, too; zero: there was none.
    pub addr: Addr,
    /// Index of the interface; 0: there is none, so that no new flow takes it.
    pub ifindex: u32,
    /// Zero.
    pub pad: u32,
}

/// See `struct config` in `bpf/abi/config.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Config {
    /// Network namespace of the node.
    pub netns_cookie: u64,
    /// Drawn once per boot.
    pub hash_seed: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`: [`CONFIG_HOLD`] ends then, as its agent may have ended before.
    pub held_until: u64,
    /// Source of SNAT; zero: no IPv4.
    pub node4: Addr,
    /// Source of SNAT; zero: no IPv6.
    pub node6: Addr,
    /// Of IPv4.
    pub tunnel4: Tunnel,
    /// Of IPv6.
    pub tunnel6: Tunnel,
    /// Enum config_flags.
    pub flags: u32,
    /// Ticks of silence of both sides after which a UDP flow is selected anew.
    pub udp_idle: u32,
    /// Ticks after which an idle TCP flow may lose its SNAT port to one that needs it.
    pub tcp_idle: u32,
    /// ABI_VERSION of the writer.
    pub abi_version: u32,
    /// Ticks after which the pieces of a packet are given up.
    pub fragment_idle: u32,
    /// How many of the next field are in use.
    pub service_networks: u32,
    /// New flows on a CPU in a tick above which no SYN is remembered that its answer does not need; 0: never.
    pub flood: u32,
    /// As `tcp_idle`, where one side has closed.
    pub tcp_half_closed: u32,
    /// As `tcp_idle`, where [`FLOW_ENDED`] is set.
    pub tcp_linger: u32,
    /// Entries of `held_pieces` in use; below [`HELD_REGION`] none is held.
    pub held_pieces: u32,
    /// Where cluster IPs come from.
    pub service_network: [Network; SERVICE_NETWORKS],
}

/// Where XDP may redirect to; the kernel's `struct bpf_devmap_val`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Device {
    /// Index of the interface.
    pub ifindex: u32,
    /// A file descriptor when written; 0: none runs on the way out.
    pub program: u32,
}

/// An interface that packets may take past the host's stack, with [`CONFIG_HOST_BYPASS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Shortcut {
    /// One of `SHORTCUT_*`.
    pub kind: u32,
    /// Index of the bridge that it is a port of; 0: of none.
    pub bridge: u32,
}

/// Only for people: the kernel never reads these two.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ServiceName {
    /// Namespace.
    pub namespace: [u8; NAME_SIZE],
    /// Name.
    pub name: [u8; NAME_SIZE],
    /// Port name.
    pub port_name: [u8; NAME_SIZE],
    /// The service port.
    pub port: u16,
    /// Proto.
    pub proto: u8,
    /// 4 or 6.
    pub family: u8,
    /// Seconds since boot.
    pub created: u32,
}

/// See `struct node_name` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct NodeName {
    /// Name.
    pub name: [u8; NAME_SIZE],
    /// Zone.
    pub zone: [u8; NAME_SIZE],
}

/// See `struct counter` in `bpf/abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}
