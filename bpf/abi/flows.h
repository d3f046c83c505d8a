/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A part of abi.h, which includes it: what the programs remember of flows. */
#ifndef WEIR_ABI_FLOWS_H
#define WEIR_ABI_FLOWS_H

/* ---- flows: where established ones stay ---------------------------------------------------------------------- */

struct flow_key4 {
	__be32 src;   /* BE */
	__be32 dst;   /* BE */
	__be16 sport; /* BE */
	__be16 dport; /* BE */
	__u8 proto;
	__u8 pad[3];
};

struct flow_key6 {
	__be32 src[4]; /* BE */
	__be32 dst[4]; /* BE */
	__be16 sport;  /* BE */
	__be16 dport;  /* BE */
	__u8 proto;
	__u8 pad[3];
};

enum flow_flags {
	FLOW_SNAT = 1,	  /* the backend sees an address of the node's and snat_port */
	FLOW_CLOSING = 2, /* the client sent FIN or RST; in a reply: the backend did */
	FLOW_REPLIED = 4, /* an answer was seen; in a flow: while it was among the openings */
	/* In a reply: its SYN was not answered and went to another backend; what comes late is dropped. */
	FLOW_MOVED = 8,
	/*
	 * How often the SYN went to another backend before this one, so many times FLOW_RETRY; FLOW_RETRIES at most. In a reply: until the
	 * client has heard of its answer.
	 */
	FLOW_RETRY = 16,
	FLOW_RETRIES = 48,
	/* In openings or awaited: nobody has answered so far, the client does not know yet, or the flow has settled or ended. */
	FLOW_OPENING = 64,
	FLOW_ENDED = 128,  /* both sides have closed it, or one has reset it; a SYN starts a new one */
	FLOW_DIRECT = 256, /* in a flow: it is wrapped for the backend's node, and no answer comes by here */
	FLOW_ALONE = 256,  /* in a reply: no other backend could have its SYN, which came again */
	/* In a reply: asked is of a SYN for what was answered before; whatever the backend says shows that it is there. */
	FLOW_ASKED_AGAIN = 512,
	FLOW_GONE_ON = 512, /* in a flow: its client went on after the answer, once at least */
	/* In a reply: a flood has left no flow beside it, as the client's next packet is hashed alike. */
	FLOW_BY_HASH = 1024,
	/* In a reply: its source port is the one that the client's port had before, and not the one that was taken longest ago. */
	FLOW_KEPT = 2048,
	/* With FLOW_OPENING: it goes on, but has only just begun and may be over soon. No flow that begins takes its place. */
	FLOW_SETTLED = 4096,
	/* With FLOW_SNAT: that address is the tunnel's, by which the backend is reached; else the node's own. */
	FLOW_TUNNEL = 8192,
	/* With FLOW_ENDED: the next packet from this side that ends nothing acknowledges the other's end, the second one, or comes after a reset. */
	FLOW_LAST = 16384,
	/* In a flow: it is no client's but the host's own, which has asked from a frontend's port; its backend is 0, and it has no reply. */
	FLOW_OWN = 32768,
	/* In a reply of datagrams: the host has asked the backend from the same port since the client last did, in a tick that heard tells. */
	FLOW_LENT = 32768,
};

/* What a slot of going_filter says of its keys. Two bits, so that programs can change one beside others. */
enum going {
	GOING_MAY_BE = 0, /* some of them may be in flows or replies */
	GOING_NONE = 1,	  /* none of them is */
	GOING_ASKED = 2,  /* the agent looks whether one is; what is written meanwhile makes it GOING_MAY_BE */
};

/* What is known of the keys of flows and replies, by their hash. */
struct going_filter {
	__u32 asked; /* HOST, 0: look-ups are made without, as too many slots are taken or nobody knows which */
	__u32 pad;
	__u64 slots[1 << (GOING_BITS - GOING_WORD_BITS)]; /* HOST, enum going, the first one lowest */
};

/* From client to frontend. Keyed by the packet as the client sent it. */
struct flow {
	__u32 backend;	  /* HOST, index into backends */
	__u32 generation; /* HOST, of the backend when it was selected */
	__u32 service;	  /* HOST, index into services */
	__u16 flags;	  /* HOST, enum flow_flags */
	__be16 snat_port; /* BE, the port that the backend sees in place of the client's; without FLOW_SNAT with the client's address; 0: none */
	__u32 created;	 /* HOST, in ticks */
	__u32 last_seen; /* HOST, in ticks */
	__u32 bytes;	 /* HOST, of its packets without the first, wraps */
	/* HOST, those of them that backend_counters lack so far. Direct, with FLOW_OPENING and FLOW_RETRIES: as in struct reply. */
	__u32 held;
};

/*
 * As flows6 and openings6 have it: what the kernel keeps of an entry of flows6 is 48 bytes, the key, and this, which fills two cache
 * lines and lies in no third one.
 */
struct flow6 {
	struct flow flow;
	__u32 pad[2];
};

/*
 * Who has heard of a SYN-ACK acknowledges its number or one soon after, and who ends a connection does so behind what the other side has
 * acknowledged. Of these numbers the upper bits are compared: who sends packets in others' names has to guess them, a client that has got or sent
 * some data since has not.
 */
enum heard {
	HEARD_SHIFT = 17,
	HEARD_MASK = 0x7fff,
	HEARD_KNOWN = 0x8000, /* there was one */
	HEARD_FAR = 256,      /* so far behind, in these bits, an end may be: 32 MiB, more than a usual window */
};

/* What asked is where another backend was asked instead. */
#define ASKED_ELSEWHERE 2

/* From backend to client. Keyed by the packet as the backend sends it. */
struct reply {
	struct addr frontend;
	struct addr client;
	__be16 frontend_port; /* BE */
	__be16 client_port;   /* BE */
	__u16 flags;	      /* HOST, enum flow_flags */
	/* HOST, enum heard: what its client's ACK, or once it goes on its end, is near; 0: any. With FLOW_LENT: the tick, & HEARD_MASK */
	__u16 heard;
	__u32 backend;	  /* HOST, index into backends */
	__u32 generation; /* HOST, of the backend when it was selected */
	__u32 last_seen;  /* HOST, in ticks */
	__u32 asked; /* HOST, in units of delay, odd, wraps: since when an answer is awaited; 0: none is; or ASKED_ELSEWHERE */
	__u32 bytes; /* HOST, of its packets, wraps */
	/* HOST, those of them that backend_counters lack so far. With FLOW_RETRIES: the backend that was left for this one, or 0. */
	__u32 held;
};

/*
 * Flows that begin, and what their answers must look like, lie in sets, which are elements of an array: the hash of the key
 * tells which one. docs/adr/0037-sets-of-flows-that-begin.md
 */
struct opening_head {
	__u32 tag[OPENING_WAYS]; /* HOST, hash of the key that an entry has, or OPENING_FREE or OPENING_BUSY */
	/* HOST, in ticks: when it was written, or was spared last; of one that is being written the tag that was there */
	__u32 born[OPENING_WAYS];
	__u32 turn[OPENING_WAYS]; /* HOST, wraps: where none is free goes whose number is furthest behind the next one */
	__u32 next;		  /* HOST, wraps: number that the next entry gets which is written */
	__u32 displaced; /* HOST, wraps: entries that lost their place within OPENING_IDLE ticks of their last packet */
	__u32 pad[2];
};

struct opening_set4 {
	struct opening_head head;
	struct flow_key4 key[OPENING_WAYS];
	struct flow value[OPENING_WAYS];
};

struct opening_set6 {
	struct opening_head head;
	struct flow_key6 key[OPENING_WAYS];
	struct flow6 value[OPENING_WAYS];
};

struct awaited_set4 {
	struct opening_head head;
	struct flow_key4 key[OPENING_WAYS];
	struct reply value[OPENING_WAYS];
};

struct awaited_set6 {
	struct opening_head head;
	struct flow_key6 key[OPENING_WAYS];
	struct reply value[OPENING_WAYS];
};

/* SYNs that were held back, and pass when they come again: a byte of the hash of each one's key, never zero. */
struct first_syns {
	__u8 tag[FIRST_SYNS];
};

/*
 * By the hash of their keys, which names the same set as in openings4 and awaited4: connections, and datagrams' flows, without an entry there, as others
 * took its place before they went on, or none was written in a flood.
 */
struct displaced {
	/*
	 * HOST: bits 16 to 31 of the hash, whose lower bits name the place here; 8 bits of the tick in which it lost its place, 24 of its
	 * index into backends, and its source port or 0. 0: none
	 */
	__u64 entry[DISPLACED_WAYS];
	/*
	 * HOST, of entries for answers: bits 8 to 31 of the hash, of which the lower ones are mixed with what the client has heard (enum heard), and 8
	 * bits of the tick in which it lost its place. 0: none
	 */
	__u32 answers[DISPLACED_WAYS];
};

/* How many flows have begun on a CPU, how many errors it has told, and what it saw missing of those that go on. */
struct pace {
	__u32 tick;  /* HOST, of the last one */
	__u32 flows; /* HOST, in that tick */
	__u32 told;  /* HOST, in that tick, but for too_big */
	__u32 moved; /* HOST, flows of others than TCP that have moved to those that go on, less as many as may in each tick since */
	__u32 flooded; /* HOST, the last tick with more new flows than anybody's clients make; 0: there was none */
	__u32 too_big; /* HOST, in that tick: errors that told a sender how big its packets may be */
	__u64 lost; /* HOST, entries for answers that a full table had evicted, and that a client's packet has brought back */
	__u64 adopted; /* HOST, connections that were met in their middle: an endpoint by hash or by displaced */
};

/* A question to the kernel's routes and the answer: the way of a packet with these ends. It counts for the jiffy in which it was asked. */
struct route {
	__u64 jiffy; /* HOST; 0: there is none */
	__u64 pad;
	struct bpf_fib_lookup asked; /* with no length */
	struct bpf_fib_lookup answer;
};

/*
 * A datagram in pieces: only the first one has ports. Keyed by what all pieces have in common, for as long as they may
 * still be under way.
 */
struct fragment_key {
	struct addr src;
	struct addr dst;
	__be32 id; /* BE; of IPv4 the lower half */
	__u8 proto;
	__u8 out; /* 1: on its way out of an interface; 0: into the node */
	__u8 pad[2];
};

enum fragment_state {
	FRAGMENT_AWAITED = 1, /* later pieces wait for the first one: there are no ports */
	FRAGMENT_OURS = 2,    /* the first one was translated, answered or dropped */
	FRAGMENT_FOREIGN = 3, /* it passed untouched, and so do the others */
};

struct fragment {
	__be16 sport;	 /* BE */
	__be16 dport;	 /* BE */
	__u32 last_seen; /* HOST, in ticks */
	__u32 state;	 /* HOST, enum fragment_state */
};

enum held_state {
	HELD_FREE = 0,
	HELD_BUSY = 1, /* being written, or sent on */
	HELD_USED = 2,
};

/* A piece that came before the first one. */
struct held_piece {
	struct fragment_key key;
	__u32 last_seen; /* HOST, in ticks: when it came */
	__u32 state;	 /* HOST, enum held_state */
	__u16 length;	 /* HOST, of bytes that are in use */
	__u16 l3; /* HOST, where its IP header is: it waits for a first piece that came by an interface of that kind */
	__u32 ifindex;		/* HOST, of the interface by which it comes again, as its link header is for that */
	__u8 bytes[HELD_BYTES]; /* its frame */
};

#endif
