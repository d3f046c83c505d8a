/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The one contract between the programs in the kernel and everything outside of it: map keys and values, limits, reasons.
 * crates/abi mirrors it in Rust and compares every field with the BTF of the compiled objects. A change of any layout
 * here needs a new ABI_VERSION, which is part of the pin directory's name; so does one of what programs of two versions that share the
 * maps have to agree on, as who notes what in going_filter, and where.
 *
 * Byte order is named at each field: BE is network order, HOST is the machine's. No bitfields, no pointers, no bool;
 * padding is spelled out and zero. The field names are user interface: `bpftool map dump` prints them.
 */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#include <linux/bpf.h>
#include <linux/types.h>

enum abi {
	ABI_VERSION = 13,

	/* Entries of one line. 16 cumulative weights of 4 bytes fill one cache line. */
	LINE_ENTRIES = 16,
	/* Lines on the way from a service to a backend; 16^4 = 65536 weighted endpoints per tier. */
	LINE_DEPTH = 4,
	/* Set in a reference that names a line; clear in one that names a backend. Reference 0 is the empty tier. */
	REF_LINE = 0x80000000,
	/* Times in flows are ticks, of nearly a second: lib/config.h. */
	/* Ticks after which a connection that nobody has answered is given up: clients ask at 0, 1, 3 and 7 seconds. */
	OPENING_IDLE = 8,
	/* Ticks that a datagram and its answer are under way at most; less could be over with the next beat of the clock. */
	ANSWER_IDLE = 1,
	/*
	 * Ticks for which a source port is kept whose client has sent datagrams in one tick alone: 30 s, where a tick is shortest. So long the kernel keeps
	 * what is no stream (nf_conntrack_udp_timeout).
	 */
	ASKED_ONCE_IDLE = 35,
	/*
	 * Ticks, as a power of two, in which one packet of a client that speaks all the time looks after the entry for its connection's answers. The
	 * answers keep it in use meanwhile; what a table that is too small has lost is missing for so long.
	 */
	ANSWERS_SHIFT = 3,
	/* Entries of a set of flows that begin, and what the tag of one says that no flow has: it is free, or being written. */
	OPENING_WAYS = 4,
	OPENING_FREE = 0,
	OPENING_BUSY = 1,
	/*
	 * Ticks within which the agent takes flows of datagrams that are over out of the tables of those that go on: five minutes, where a tick is
	 * shortest. The kernel would give away the places of silent connections before theirs.
	 */
	IDLE_TAKEN_OUT = 352,
	/* Bytes of its client's after which a connection need not be a short one: a few requests. */
	SETTLED_BYTES = 4096,
	/* ICMP errors that a node tells in a tick, and each CPU of what is too big: as many as Linux in a second (icmp_msgs_per_sec; RFC 4443, 2.4). */
	ERRORS_TOLD = 1000,
	/* Routes that each CPU remembers for a jiffy, as a power of two, and words of what the kernel is asked and answers (struct bpf_fib_lookup). */
	ROUTE_BITS = 9,
	ROUTE_WORDS = 16,
	/* Delays count units of 2^DELAY_SHIFT nanoseconds: microseconds, nearly, without a division. */
	DELAY_SHIFT = 10,
	/* Bits of the frontend filter, as a power of two, and of its words. */
	FILTER_BITS = 20,
	/* Of these so many tell destinations of one address apart: an address has a small part of the filter. */
	FILTER_NEAR_BITS = 16,
	FILTER_WORD_BITS = 6,
	/* Slots of the filter of what goes on, as a power of two, and of its words. It is asked while no more than so many are taken. */
	GOING_BITS = 18,
	GOING_WORD_BITS = 5,
	GOING_MOST = 1 << 15,
	/* Bits of a slot. */
	GOING_MASK = 3,
	/* Counters of source ports: endpoints whose address and port hash alike share one. */
	SNAT_COUNTERS = 4096,
	/* First SYNs of an entry of first_syns: four million of them beside 65,536 places, 4 MiB. A power of two. */
	FIRST_SYNS = 256,
	/* Ports that clients' ports have kept, to an entry of snat_kept: four for each entry of openings4. A power of two. */
	SNAT_KEPT_WAYS = 16,
	/* Flows without a place that are remembered in short, to an entry of displaced: eight for each entry of openings4. A power of two. */
	DISPLACED_WAYS = 32,
	/* From which bit on there is what in such a memory: above the source port the backend, when, and a part of the hash. */
	DISPLACED_BACKEND = 16,
	DISPLACED_TICK = 40,
	DISPLACED_TAG = 48,
	/* So many times config.tcp_linger, rounded up, servers keep a connection that they have closed: TIME_WAIT, a minute. */
	TIME_WAIT_LINGERS = 15,
	/* Port numbers to an entry of snat_next and of snat_ports, as powers of two. */
	SNAT_NEXT_BITS = 2,
	SNAT_WORD_BITS = 6,
	/* Seed of the hash of flows to services of SERVICE_MAGLEV: the same on all nodes. Any number would do. */
	MAGLEV_SEED = 0x6d61676c,
	/* What the hash of a flow is mixed with for the second draw of SERVICE_LEAST_CONN. */
	SECOND_DRAW = 0x7477696e,
	/* Prefixes of cluster IPs that one node knows: clusters have one for each family, rarely a few more. */
	SERVICE_NETWORKS = 8,
	/* The longest frame of a piece that waits for the first one: Ethernet's, two tags, and what a tunnel puts in front. */
	HELD_BYTES = 1600,
	/* Entries of held_pieces that one source's may take: the longest datagram in pieces of 1280 bytes. */
	HELD_REGION = 64,
	/* Names are cut to this many bytes, a final zero included. Kubernetes allows 63 characters. */
	NAME_SIZE = 64,
};

/* An address of either family. IPv4 is v4-mapped (::ffff:a.b.c.d), so word[3] holds it. */
struct addr {
	__be32 word[4]; /* BE */
};

/* ---- frontends: what clients connect to ---------------------------------------------------------------------- */

enum frontend_kind {
	KIND_CLUSTER_IP = 1,
	KIND_NODE_PORT = 2,
	KIND_LOAD_BALANCER = 3,
	KIND_EXTERNAL_IP = 4,
	KIND_UNUSED_PORT = 5, /* all other ports of a cluster IP, which are refused: port 0 and protocol 0 */
	KIND_ADDRESS = 6,     /* a load balancer or external IP as such: port 0 and protocol 0, and not in the filter */
};

struct frontend_key4 {
	__be32 addr; /* BE */
	__be16 port; /* BE */
	__u8 proto;  /* IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP */
	__u8 pad;
};

struct frontend_key6 {
	__be32 addr[4]; /* BE */
	__be16 port;	/* BE */
	__u8 proto;	/* IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP */
	__u8 pad;
};

/*
 * One word of the frontend filter. The bit frontend_filter_hash() of a frontend's last address word, port and protocol is
 * set as long as there is the frontend, and longer: a set bit may be stale or another's, a clear one is final. Packets that
 * are not ours need no lookup.
 */
struct filter_word {
	__u64 bits; /* HOST */
};

struct frontend {
	__u32 service; /* HOST, index into services */
	__u32 kind;    /* HOST, enum frontend_kind */
};

/* ---- services: where new flows go ---------------------------------------------------------------------------- */

/* Which endpoints a packet may use depends on what it was sent to and from where. */
enum traffic_class {
	CLASS_INTERNAL = 0,	 /* to the cluster IP */
	CLASS_EXTERNAL = 1,	 /* from outside to a node port, load balancer or external IP */
	CLASS_SHORT_CIRCUIT = 2, /* from a pod or the node itself to one of those */
	CLASS_COUNT = 3,
};

/* Each word is replaced by one store, none by 0 before the other tier is written: any mix of old and new words is a valid plan. */
struct tiers {
	__u32 spill;  /* HOST, 0..65535: share of new flows that goes to the remote tier */
	__u32 local;  /* HOST, reference: a backend, a line with REF_LINE, or 0 */
	__u32 remote; /* HOST, reference: a backend, a line with REF_LINE, or 0 */
	__u32 pad;
};

enum service_flags {
	SERVICE_USED = 1,	    /* the slot belongs to a service */
	SERVICE_SOURCE_RANGES = 2,  /* its load balancer addresses admit only clients found in source_ranges */
	SERVICE_EXTERNAL_LOCAL = 4, /* externalTrafficPolicy Local: clients of its external addresses keep their own */
	SERVICE_LEAST_CONN = 8,	    /* of two backends drawn by weight, the one with fewer open flows for its weight */
	SERVICE_MAGLEV = 16,	    /* its flows are hashed as on every other node; its lines hold Maglev's table */
};

struct service {
	struct tiers tiers[CLASS_COUNT];
	__u32 endpoints; /* HOST, usable endpoints anywhere; 0 means REJECT where nothing can be selected, else DROP */
	__u32 flags;	 /* HOST, enum service_flags */
	__u32 affinity;	 /* HOST, ticks for which a client keeps its backend after its last new flow; 0: no affinity */
	__u32 pad;
};

/* A weighted choice: entry i is taken when cumulative[i-1] < r <= cumulative[i] for a random 32-bit r. */
struct line {
	__u32 cumulative[LINE_ENTRIES]; /* HOST, inclusive upper bounds; the last used entry and all after it hold 2^32-1 */
	__u32 ref[LINE_ENTRIES];	/* HOST, a backend, or with REF_LINE the next line */
};

enum backend_flags {
	BACKEND_USED = 1,	  /* the slot belongs to an endpoint */
	BACKEND_LOCAL = 2,	  /* on this node */
	BACKEND_HOST_NETWORK = 4, /* its address is a node's own */
	/* Bit BACKEND_CLASS << class: new flows of that class may go here. Affinity asks, the tiers know by themselves. */
	BACKEND_CLASS = 8,
	BACKEND_CLASSES = 56, /* all of these */
	BACKEND_DIRECT = 64,  /* on another node, which takes clients' packets as they are and answers them itself */
};

/* One endpoint of one service port. Slot 0 is never used. */
struct backend {
	struct addr addr;
	__be16 port;	  /* BE */
	__u8 proto;	  /* IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP */
	__u8 flags;	  /* enum backend_flags */
	__u32 generation; /* HOST, changes when the endpoint goes away; flows that remember another one are stale */
	__u32 service;	  /* HOST, index into services */
	__u32 node;	  /* HOST, key in node_names; 0 is unknown */
};

/* Which endpoint of this node a client's packet is for that another node has wrapped. */
struct local_key {
	struct addr addr; /* of the endpoint */
	__u32 service;	  /* HOST, index into services */
	__u32 pad;
};

struct local_endpoint {
	__u32 backend; /* HOST, index into backends */
};

/* Keyed by its address: whose wrapped packets are opened. */
struct other_node {
	__u32 known; /* HOST, always 1 */
};

/* Session affinity: one client, at all addresses of one service port. The node's own processes are one client. */
struct affinity_key {
	struct addr client;
	__u32 service; /* HOST, index into services */
	__u32 pad;
};

struct affinity {
	__u32 backend;	  /* HOST, index into backends */
	__u32 generation; /* HOST, of the backend when it was selected */
	__u32 last_seen;  /* HOST, in ticks: the client's latest new flow */
};

/* loadBalancerSourceRanges, longest prefix first. The prefix covers the service, too: 32 bits and those of the client. */
struct source_range_key {
	__u32 prefixlen; /* HOST, 32..160; of IPv4 clients 128 and more */
	__u32 service;	 /* HOST, index into services */
	struct addr client;
};

struct source_range {
	__u32 allowed; /* HOST, always 1 */
};

/*
 * What became of a backend's flows since the slot was taken; one cache line. All but flows and gone_on is about packets, so
 * connections that are translated at sockets are among these alone. Bytes are those of frames; the flow tables hold some
 * of them back, of a connection at most 2^20 and until it ends, of datagrams a 16th; of both until the first packet of
 * another tick.
 */
struct backend_counters {
	__u64 flows; /* HOST, flows that have begun here, or were to in place of another backend */
	__u64 delay; /* HOST, from the last SYN or the first datagram to the first answer, of all that are answered together */
	__u32 answered; /* HOST, wraps: flows whose first answer was a SYN-ACK, an INIT ACK or a datagram */
	__u32 refused;	/* HOST, wraps: flows whose first answer was a reset */
	__u32 gone_on; /* HOST, wraps: flows that went on after the answer; those of datagrams and sockets count as they begin */
	__u32 going; /* HOST, wraps: connections of these (FLOW_GONE_ON), less those that ended: as balance is of all */
	__u32 unanswered;  /* HOST, wraps: SYNs sent again for want of any answer */
	__u32 failed_over; /* HOST, wraps: connections of these that another backend has taken since */
	__u64 bytes_to;	   /* HOST, from clients */
	__u64 bytes_from;  /* HOST, back to them */
	/*
	 * HOST, wraps: connections that began, less those that ended (FLOW_ENDED). Those that were evicted or forgotten stay in
	 * it, so that only its changes mean something; how many are open, the flow tables say.
	 */
	__u32 balance;
	/*
	 * HOST, by the agent, as it counts the flow tables, for backends of SERVICE_LEAST_CONN: what balance, refused and unanswered
	 * would be together without an open flow. UDP's flows are open for so long as they were counted, and what failed, too: who
	 * answers nobody would be idle for ever.
	 */
	__u32 base;
};

/*
 * By the hash of an endpoint's address, port and protocol. Slots of several services may be one endpoint, which remembers
 * their source ports alike; and it outlives the slots.
 */
struct snat_counter {
	__u32 next;	   /* HOST, wraps: its lower half is the first port number that the next flow may get */
	__u32 pressed;	   /* HOST, in ticks: when a flow that had only just begun lost its port to the next one */
	__u32 long_search; /* HOST, in ticks: when a search for a port was long */
	__u32 pad;
};

/* The node's source ports in a ring. Entry n is about the port numbers from 4n on. */
struct snat_next {
	/* HOST: each number itself if new flows may take that port, else the next one that they may; 0: there is none */
	__u16 port[4];
};

/* By a hash of a client's port, of what it connects to, and of the endpoint: one cache line. */
struct snat_kept {
	__u32 entry[SNAT_KEPT_WAYS]; /* HOST: bits 16 to 31 of the hash, below them a source port; 0: none */
};

/* What arrives at the node's ports. Entry n is about the port numbers from 64n on, the first one in the lowest bit. */
struct snat_ports {
	__u64 answers; /* HOST, ports that new flows may take or once could: an answer to one of ours may come there */
	__u64 left;    /* HOST, those among them that no new flow may take: they are the host's own by now */
};

struct service_counters {
	__u64 local;	/* HOST, flows that have begun and stayed on the node */
	__u64 remote;	/* HOST, those that have left it */
	__u64 rejected; /* HOST, refused for want of endpoints */
	__u64 dropped;	/* HOST, dropped: no endpoint is allowed here, or the client, or nothing could be noted of it */
	/*
	 * HOST: connections of these whose client went on after the answer, which nobody does who sends in another's name. Flows of datagrams and of sockets
	 * count as they begin.
	 */
	__u64 local_gone_on;
	__u64 remote_gone_on;
	__u64 pad[2]; /* a cache line each */
};

#include "abi/flows.h"

/* ---- sockets of processes on the host, and of pods ----------------------------------------------------------- */

/* Of datagrams. With a frontend's address: which backend the socket's go to. With a backend's: which frontend it knows. */
struct socket_key {
	__u64 cookie; /* HOST */
	struct addr addr;
	__be16 port; /* BE */
	__u8 proto;
	__u8 pad[5];
};

struct socket_peer {
	struct addr addr;
	__be16 port; /* BE */
	__u16 pad;
	__u32 backend;	  /* HOST, index into backends */
	__u32 generation; /* HOST, of the backend when it was selected */
};

/* A part of a TCP socket: the frontend that its owner has connected it to, and the backend that it is connected to instead. */
struct connection_peer {
	struct addr frontend;
	struct addr backend;
	__be16 frontend_port; /* BE */
	__be16 backend_port;  /* BE */
};

/* A pod whose TCP connections are translated when they are made. Keyed by the id of its cgroup. */
struct hooked_pod {
	struct addr addr4; /* its own; zero: its IPv4 is translated by packet */
	struct addr addr6; /* its own; zero: its IPv6 is translated by packet */
};

#include "abi/config.h"
#include "abi/reasons.h"

#define ABI_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)
ABI_SIZE(addr, 16);
ABI_SIZE(frontend_key4, 8);
ABI_SIZE(frontend_key6, 20);
ABI_SIZE(filter_word, 8);
ABI_SIZE(going_filter, 65544);
ABI_SIZE(frontend, 8);
ABI_SIZE(tiers, 16);
ABI_SIZE(service, 64);
ABI_SIZE(line, 128);
ABI_SIZE(backend, 32);
ABI_SIZE(local_key, 24);
ABI_SIZE(local_endpoint, 4);
ABI_SIZE(other_node, 4);
ABI_SIZE(affinity_key, 24);
ABI_SIZE(affinity, 12);
ABI_SIZE(source_range_key, 24);
ABI_SIZE(source_range, 4);
ABI_SIZE(backend_counters, 64);
ABI_SIZE(snat_counter, 16);
ABI_SIZE(first_syns, 256);
ABI_SIZE(snat_next, 8);
ABI_SIZE(snat_ports, 16);
ABI_SIZE(snat_kept, 64);
ABI_SIZE(displaced, 384);
ABI_SIZE(service_counters, 64);
ABI_SIZE(flow_key4, 16);
ABI_SIZE(flow_key6, 40);
ABI_SIZE(flow, 32);
ABI_SIZE(flow6, 40);
ABI_SIZE(reply, 64);
ABI_SIZE(pace, 40);
ABI_SIZE(fragment_key, 40);
ABI_SIZE(fragment, 12);
ABI_SIZE(held_piece, 1656);
ABI_SIZE(socket_key, 32);
ABI_SIZE(socket_peer, 28);
ABI_SIZE(connection_peer, 36);
ABI_SIZE(hooked_pod, 32);
ABI_SIZE(network, 32);
ABI_SIZE(tunnel, 24);
ABI_SIZE(config, 400);
ABI_SIZE(device, 8);
ABI_SIZE(shortcut, 8);
ABI_SIZE(service_name, 200);
ABI_SIZE(node_name, 128);
ABI_SIZE(counter, 16);

#endif
