//! The enumerations of `bpf/abi.h`: same names, same numbers.

// enum abi
/// `ABI_VERSION` of `enum abi`.
pub const ABI_VERSION: u32 = 13;
/// `LINE_ENTRIES` of `enum abi`.
pub const LINE_ENTRIES: usize = 16;
/// `LINE_DEPTH` of `enum abi`.
pub const LINE_DEPTH: usize = 4;
/// `REF_LINE` of `enum abi`.
pub const REF_LINE: u32 = 0x8000_0000;
/// Ticks after which a connection that nobody has answered is given up: clients ask at 0, 1, 3 and 7 seconds.
pub const OPENING_IDLE: u32 = 8;
/// Ticks that a datagram and its answer are under way at most; less could be over with the next beat of the clock.
pub const ANSWER_IDLE: u32 = 1;
/// Ticks for which a source port is kept whose client has sent datagrams in one tick alone: 30 s, where a tick is shortest.
pub const ASKED_ONCE_IDLE: u32 = 35;
/// Ticks, as a power of two, in which one packet of a client that speaks all the time looks after the entry for its answers.
pub const ANSWERS_SHIFT: u32 = 3;
/// Entries of a set of flows that begin.
pub const OPENING_WAYS: usize = 4;
/// The tag of an entry that is free.
pub const OPENING_FREE: u32 = 0;
/// The tag of an entry that is being written.
pub const OPENING_BUSY: u32 = 1;
/// Ticks within which the agent takes flows of datagrams that are over out of the tables of those that go on.
pub const IDLE_TAKEN_OUT: u32 = 352;
/// Bytes of its client's after which a connection need not be a short one.
pub const SETTLED_BYTES: u32 = 4096;
/// ICMP errors that a node's CPUs together tell in a tick, at most, and each CPU of what is too big.
pub const ERRORS_TOLD: u32 = 1000;
/// Routes that each CPU remembers for a jiffy, as a power of two.
pub const ROUTE_BITS: u32 = 9;
/// Words of what the kernel is asked about a route, and answers.
pub const ROUTE_WORDS: usize = 16;
/// Delays count units of two to the power of this in nanoseconds; see [`crate::ticks::delay`].
pub const DELAY_SHIFT: u32 = 10;
/// Bits of the frontend filter, as a power of two.
pub const FILTER_BITS: u32 = 20;
/// `FILTER_NEAR_BITS` of `enum abi`.
pub const FILTER_NEAR_BITS: u32 = 16;
/// Bits of a word of the frontend filter, as a power of two.
pub const FILTER_WORD_BITS: u32 = 6;
/// Slots of the filter of what goes on, as a power of two.
pub const GOING_BITS: u32 = 18;
/// Slots of a word of it, as a power of two.
pub const GOING_WORD_BITS: u32 = 5;
/// Slots that are taken while it is asked, at most.
pub const GOING_MOST: u32 = 1 << 15;
/// Bits of a slot.
pub const GOING_MASK: u32 = 3;
/// `SNAT_COUNTERS` of `enum abi`.
pub const SNAT_COUNTERS: usize = 4096;
/// SYNs that an entry of `first_syns` has room for.
pub const FIRST_SYNS: usize = 256;
/// Ports that an entry of `snat_kept` has room for.
pub const SNAT_KEPT_WAYS: usize = 16;
/// Flows without a place that an entry of `displaced` remembers.
pub const DISPLACED_WAYS: usize = 32;
/// The lowest bit of the backend in such a memory; below it is the source port.
pub const DISPLACED_BACKEND: u32 = 16;
/// The lowest bit of when it was, above the backend.
pub const DISPLACED_TICK: u32 = 40;
/// The lowest bit of the part of the hash, above that.
pub const DISPLACED_TAG: u32 = 48;
/// So many times [`Config::tcp_linger`](crate::Config::tcp_linger), and a tick more each, servers keep a connection that they have closed.
pub const TIME_WAIT_LINGERS: u32 = 15;
/// Port numbers to an entry of snat_next, as a power of two.
pub const SNAT_NEXT_BITS: u32 = 2;
/// Port numbers to an entry of snat_ports, as a power of two.
pub const SNAT_WORD_BITS: u32 = 6;
/// Seed of the hash of flows to services of [`SERVICE_MAGLEV`]: the same on all nodes.
pub const MAGLEV_SEED: u32 = 0x6d61_676c;
/// What the hash of a flow is mixed with for the second draw of [`SERVICE_LEAST_CONN`].
pub const SECOND_DRAW: u32 = 0x7477_696e;
/// Prefixes of cluster IPs that one node knows.
pub const SERVICE_NETWORKS: usize = 8;
/// The longest frame of a piece that waits for the first one.
pub const HELD_BYTES: usize = 1600;
/// Entries of `held_pieces` that one source's may take.
pub const HELD_REGION: u32 = 64;
/// `NAME_SIZE` of `enum abi`.
pub const NAME_SIZE: usize = 64;

// enum frontend_kind
/// `KIND_CLUSTER_IP` of `enum frontend_kind`.
pub const KIND_CLUSTER_IP: u32 = 1;
/// `KIND_NODE_PORT` of `enum frontend_kind`.
pub const KIND_NODE_PORT: u32 = 2;
/// `KIND_LOAD_BALANCER` of `enum frontend_kind`.
pub const KIND_LOAD_BALANCER: u32 = 3;
/// `KIND_EXTERNAL_IP` of `enum frontend_kind`.
pub const KIND_EXTERNAL_IP: u32 = 4;
/// All other ports of a cluster IP, which are refused: port 0 and protocol 0.
pub const KIND_UNUSED_PORT: u32 = 5;
/// A load balancer or external IP as such: port 0 and protocol 0, and not in the filter.
pub const KIND_ADDRESS: u32 = 6;

// enum traffic_class
/// To the cluster IP.
pub const CLASS_INTERNAL: usize = 0;
/// From outside to a node port, load balancer or external IP.
pub const CLASS_EXTERNAL: usize = 1;
/// From a pod or the node itself to one of those.
pub const CLASS_SHORT_CIRCUIT: usize = 2;
/// `CLASS_COUNT` of `enum traffic_class`.
pub const CLASS_COUNT: usize = 3;

// enum service_flags
/// The slot belongs to a service.
pub const SERVICE_USED: u32 = 1;
/// Its load balancer addresses admit only clients found in source_ranges.
pub const SERVICE_SOURCE_RANGES: u32 = 2;
/// externalTrafficPolicy Local: clients of its external addresses keep their own.
pub const SERVICE_EXTERNAL_LOCAL: u32 = 4;
/// Of two backends drawn by weight, the one with fewer open flows for its weight.
pub const SERVICE_LEAST_CONN: u32 = 8;
/// Its flows are hashed as on every other node; its lines hold Maglev's table.
pub const SERVICE_MAGLEV: u32 = 16;

// enum going
/// Some of a slot's keys may be among what goes on.
pub const GOING_MAY_BE: u32 = 0;
/// None of them is.
pub const GOING_NONE: u32 = 1;
/// The agent looks whether one is.
pub const GOING_ASKED: u32 = 2;

// enum backend_flags
/// The slot belongs to an endpoint.
pub const BACKEND_USED: u8 = 1;
/// On this node.
pub const BACKEND_LOCAL: u8 = 2;
/// Its address is a node's own.
pub const BACKEND_HOST_NETWORK: u8 = 4;
/// Shifted by a `CLASS_*`: new flows of that class may go here.
pub const BACKEND_CLASS: u8 = 8;
/// All of these.
pub const BACKEND_CLASSES: u8 = 56;
/// On another node, which takes clients' packets as they are and answers them itself.
pub const BACKEND_DIRECT: u8 = 64;

// enum flow_flags
/// The backend sees an address of the node's and snat_port.
pub const FLOW_SNAT: u16 = 1;
/// The client sent FIN or RST; in a reply: the backend did.
pub const FLOW_CLOSING: u16 = 2;
/// A reply was seen.
pub const FLOW_REPLIED: u16 = 4;
/// In a reply: its SYN was not answered and went to another backend; what comes late is dropped.
pub const FLOW_MOVED: u16 = 8;
/// How often the SYN went to another backend, so many times this; [`FLOW_RETRIES`] at most.
pub const FLOW_RETRY: u16 = 16;
/// See [`FLOW_RETRY`].
pub const FLOW_RETRIES: u16 = 48;
/// In a reply: `asked` is of a SYN for what was answered before.
pub const FLOW_ASKED_AGAIN: u16 = 512;
/// In a flow: its client went on after the answer, once at least.
pub const FLOW_GONE_ON: u16 = 512;
/// In a reply: a flood has left no flow beside it, as the client's next packet is hashed alike.
pub const FLOW_BY_HASH: u16 = 1024;
/// In a reply: its source port is the one that the client's port had before, and not the one that was taken longest ago.
pub const FLOW_KEPT: u16 = 2048;
/// With [`FLOW_OPENING`]: it goes on, but began in this tick, and may be over soon.
pub const FLOW_SETTLED: u16 = 4096;
/// With [`FLOW_SNAT`]: that address is the tunnel's, by which the backend is reached; else the node's own.
pub const FLOW_TUNNEL: u16 = 8192;
/// With [`FLOW_ENDED`]: the next packet from this side that ends nothing acknowledges the other's end, the second one, or comes after a reset.
pub const FLOW_LAST: u16 = 16384;
/// In a flow: it is no client's but the host's own, which has asked from a frontend's port; its backend is 0, and it has no reply.
pub const FLOW_OWN: u16 = 32768;
/// In a reply of datagrams: the host has asked the backend from the same port since the client last did, in a tick that `heard` tells.
pub const FLOW_LENT: u16 = 32768;
/// In `openings*` or `awaited*`: nobody has answered so far, the client does not know yet, or the flow has settled or ended.
pub const FLOW_OPENING: u16 = 64;
/// Both sides have closed it, or one has reset it; a SYN starts a new one.
pub const FLOW_ENDED: u16 = 128;
/// In a flow: it is wrapped for the backend's node, and no answer comes by here.
pub const FLOW_DIRECT: u16 = 256;
/// In a reply: no other backend could have its SYN, which came again.
pub const FLOW_ALONE: u16 = 256;

// enum fragment_state
/// Later pieces wait for the first one: there are no ports.
pub const FRAGMENT_AWAITED: u32 = 1;
/// The first one was translated, answered or dropped.
pub const FRAGMENT_OURS: u32 = 2;
/// The first one passed untouched, and so do the others.
pub const FRAGMENT_FOREIGN: u32 = 3;

// enum heard
/// Bits of the numbers of TCP that are not compared.
pub const HEARD_SHIFT: u32 = 17;
/// Those that are.
pub const HEARD_MASK: u16 = 0x7fff;
/// There was one.
pub const HEARD_KNOWN: u16 = 0x8000;
/// So far behind what was acknowledged, in these bits, an end may be.
pub const HEARD_FAR: u16 = 256;

// enum held_state
/// `HELD_FREE` of `enum held_state`.
pub const HELD_FREE: u32 = 0;
/// Being written, or sent on.
pub const HELD_BUSY: u32 = 1;
/// `HELD_USED` of `enum held_state`.
pub const HELD_USED: u32 = 2;

// enum config_flags
/// Answer TCP packets of vanished backends with a reset; else drop them.
pub const CONFIG_RESET_STALE: u32 = 1;
/// Flow tables are being replaced: the first packet of a new flow is dropped, to come again.
pub const CONFIG_HOLD: u32 = 2;
/// Another proxy serves other services here: a connection that begins in its middle is left to it, not adopted.
pub const CONFIG_BESIDE: u32 = 4;
/// Towards this node's pods, too, the node is the source of what is sent to external addresses, or from outside.
pub const CONFIG_MASQUERADE_EXTERNAL: u32 = 8;
/// And of what pods send to cluster IPs. Only with the one above.
pub const CONFIG_MASQUERADE_ALL: u32 = 16;
/// [`HookedPod`](crate::HookedPod)s are in force.
pub const CONFIG_POD_SOCKETS: u32 = 32;
/// Echo requests to addresses of services are answered.
pub const CONFIG_ECHO: u32 = 64;
/// [`Shortcut`](crate::Shortcut)s are in force.
pub const CONFIG_HOST_BYPASS: u32 = 128;
/// Connections that go on stay where they began for the rest of that tick: [`FLOW_SETTLED`].
pub const CONFIG_SETTLE: u32 = 256;
/// What other nodes wrap is opened: direct server return is in use here, or was.
pub const CONFIG_UNWRAP: u32 = 512;

// enum shortcut_kind
/// To whoever the kernel's neighbour table says: what leads outside, and taps.
pub const SHORTCUT_NEIGHBOUR: u32 = 1;
/// One pod, whose own end can be reached.
pub const SHORTCUT_PEER: u32 = 2;
/// Pods, behind its ports.
pub const SHORTCUT_BRIDGE: u32 = 3;

// enum hook
/// `HOOK_XDP` of `enum hook`.
pub const HOOK_XDP: u32 = 0;
/// `HOOK_NIC_INGRESS` of `enum hook`.
pub const HOOK_NIC_INGRESS: u32 = 1;
/// `HOOK_NIC_EGRESS` of `enum hook`.
pub const HOOK_NIC_EGRESS: u32 = 2;
/// `HOOK_POD_INGRESS` of `enum hook`.
pub const HOOK_POD_INGRESS: u32 = 3;
/// `HOOK_POD_EGRESS` of `enum hook`.
pub const HOOK_POD_EGRESS: u32 = 4;
/// `HOOK_SOCKET` of `enum hook`.
pub const HOOK_SOCKET: u32 = 5;
/// `HOOK_COUNT` of `enum hook`.
pub const HOOK_COUNT: usize = 6;

// enum reason
/// `REASON_NONE` of `enum reason`.
pub const REASON_NONE: u32 = 0;
/// `REASON_NOT_IP` of `enum reason`.
pub const REASON_NOT_IP: u32 = 1;
/// Neither TCP nor UDP nor SCTP.
pub const REASON_NOT_TRANSPORT: u32 = 2;
/// The first fragment was not seen.
pub const REASON_FRAGMENT: u32 = 3;
/// Shorter than its headers say.
pub const REASON_MALFORMED: u32 = 4;
/// `REASON_NO_FRONTEND` of `enum reason`.
pub const REASON_NO_FRONTEND: u32 = 5;
/// On egress: not an answer to a flow of ours.
pub const REASON_NO_REPLY: u32 = 6;
/// XDP cannot do it: no neighbour, VLAN tag, other device.
pub const REASON_LEFT_TO_TC: u32 = 7;
/// Tc: XDP translated it already.
pub const REASON_XDP_DONE: u32 = 8;
/// Of a connection that another proxy has begun.
pub const REASON_MID_FLOW: u32 = 9;
/// In a frame to another machine, or to several.
pub const REASON_OTHER_HOST: u32 = 10;
/// `REASON_TO_LOCAL` of `enum reason`.
pub const REASON_TO_LOCAL: u32 = 16;
/// `REASON_TO_REMOTE` of `enum reason`.
pub const REASON_TO_REMOTE: u32 = 17;
/// `REASON_BACK` of `enum reason`.
pub const REASON_BACK: u32 = 18;
/// `REASON_HAIRPIN` of `enum reason`.
pub const REASON_HAIRPIN: u32 = 19;
/// An ICMP error about a packet of a flow.
pub const REASON_ERROR_TOLD: u32 = 20;
/// Wrapped for another node, which answers the client itself.
pub const REASON_DIRECT: u32 = 21;
/// `REASON_NO_ENDPOINTS` of `enum reason`.
pub const REASON_NO_ENDPOINTS: u32 = 32;
/// `REASON_STALE_RESET` of `enum reason`.
pub const REASON_STALE_RESET: u32 = 33;
/// A cluster IP's, but no service's.
pub const REASON_UNUSED_PORT: u32 = 34;
/// No backend answered the SYN that came again.
pub const REASON_UNANSWERED: u32 = 35;
/// As `REASON_TOO_BIG`, and its sender knows by now.
pub const REASON_TOO_BIG_TOLD: u32 = 36;
/// An echo request to an address of a service.
pub const REASON_ECHO: u32 = 37;
/// As `REASON_TTL_EXCEEDED`, and its sender knows by now.
pub const REASON_TTL_TOLD: u32 = 38;
/// `REASON_NO_LOCAL_ENDPOINTS` of `enum reason`.
pub const REASON_NO_LOCAL_ENDPOINTS: u32 = 48;
/// `REASON_STALE` of `enum reason`.
pub const REASON_STALE: u32 = 49;
/// `REASON_SNAT_EXHAUSTED` of `enum reason`.
pub const REASON_SNAT_EXHAUSTED: u32 = 50;
/// `REASON_NO_ROUTE` of `enum reason`.
pub const REASON_NO_ROUTE: u32 = 51;
/// `REASON_TTL_EXCEEDED` of `enum reason`.
pub const REASON_TTL_EXCEEDED: u32 = 52;
/// A reference led nowhere: a bug, or a map of another writer.
pub const REASON_BROKEN_TABLE: u32 = 53;
/// `REASON_REWRITE_FAILED` of `enum reason`.
pub const REASON_REWRITE_FAILED: u32 = 54;
/// The flow could not be stored.
pub const REASON_FLOW_TABLE: u32 = 55;
/// For the MTU of the way to the other node.
pub const REASON_TOO_BIG: u32 = 56;
/// A new flow while the flow tables are being replaced.
pub const REASON_HELD: u32 = 57;
/// From outside of loadBalancerSourceRanges.
pub const REASON_SOURCE_RANGE: u32 = 58;
/// To a cluster IP that no service has, or back out to a port that none has.
pub const REASON_NO_SERVICE: u32 = 59;
/// To a cluster IP, as `REASON_FRAGMENT`.
pub const REASON_FRAGMENT_LOST: u32 = 60;
/// To a cluster IP: it comes again, behind the first one, and is counted then.
pub const REASON_FRAGMENT_HELD: u32 = 61;
/// In a flood for an endpoint on another node: its flow begins with the next one.
pub const REASON_FIRST_SYN: u32 = 62;
/// As `REASON_NO_ENDPOINTS` and the like, and its sender is one too many to be told.
pub const REASON_UNTOLD: u32 = 63;
/// `REASON_COUNT` of `enum reason`.
pub const REASON_COUNT: usize = 64;
