/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The flow tables: where a flow goes, and what its answers must look like. A flow begins in openings and awaited, and moves to
 * flows and replies when its client goes on after an answer: what a flood can fill evicts no flow that goes on.
 */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include "config.h"
#include "parse.h"

/* Source ports tried for one new flow. The next port is oldest first, so a collision means that most are taken. */
#define SNAT_PROBES 32

static __always_inline struct flow_key4 flow_key4_of(const struct addr *src, const struct addr *dst, __be16 sport,
						     __be16 dport, __u8 proto)
{
	return (struct flow_key4){
		.src = src->word[3], .dst = dst->word[3], .sport = sport, .dport = dport, .proto = proto
	};
}

static __always_inline struct flow_key6 flow_key6_of(const struct addr *src, const struct addr *dst, __be16 sport,
						     __be16 dport, __u8 proto)
{
	return (struct flow_key6){
		.src = { src->word[0], src->word[1], src->word[2], src->word[3] },
		.dst = { dst->word[0], dst->word[1], dst->word[2], dst->word[3] },
		.sport = sport,
		.dport = dport,
		.proto = proto,
	};
}

/* In which pair of tables an entry is: flows and replies, or those of flows that begin. */
enum stage {
	STAGE_GOING = 0,
	STAGE_OPENING = 1,
};

static __always_inline struct flow *flow_at(const struct addr *src, const struct addr *dst, __be16 sport, __be16 dport,
					    __u8 proto, const enum stage stage, const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(src, dst, sport, dport, proto);

		return bpf_map_lookup_elem(stage ? (void *)&openings6 : (void *)&flows6, &key);
	}
	struct flow_key4 key = flow_key4_of(src, dst, sport, dport, proto);

	return bpf_map_lookup_elem(stage ? (void *)&openings4 : (void *)&flows4, &key);
}

/* A flow at either stage, or NULL. */
static __always_inline struct flow *flow_find(const struct addr *src, const struct addr *dst, __be16 sport,
					      __be16 dport, __u8 proto, const bool v6)
{
	struct flow *flow = flow_at(src, dst, sport, dport, proto, STAGE_GOING, v6);

	return flow ?: flow_at(src, dst, sport, dport, proto, STAGE_OPENING, v6);
}

/* The flow at a stage that a client's packet belongs to, or NULL. */
static __always_inline struct flow *flow_lookup(const struct packet *p, const enum stage stage, const bool v6)
{
	return flow_at(&p->src, &p->dst, p->sport, p->dport, p->proto, stage, v6);
}

/* Returns 0 or a negative error of the map. */
static __always_inline long flow_store(const struct packet *p, const struct flow *flow, const enum stage stage,
				       const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(&p->src, &p->dst, p->sport, p->dport, p->proto);

		return bpf_map_update_elem(stage ? (void *)&openings6 : (void *)&flows6, &key, flow, BPF_ANY);
	}
	struct flow_key4 key = flow_key4_of(&p->src, &p->dst, p->sport, p->dport, p->proto);

	return bpf_map_update_elem(stage ? (void *)&openings4 : (void *)&flows4, &key, flow, BPF_ANY);
}

/* Forgets the flow at a stage that a client's packet belongs to, if there is one. */
static __always_inline void flow_forget(const struct packet *p, const enum stage stage, const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(&p->src, &p->dst, p->sport, p->dport, p->proto);

		bpf_map_delete_elem(stage ? (void *)&openings6 : (void *)&flows6, &key);
	} else {
		struct flow_key4 key = flow_key4_of(&p->src, &p->dst, p->sport, p->dport, p->proto);

		bpf_map_delete_elem(stage ? (void *)&openings4 : (void *)&flows4, &key);
	}
}

static __always_inline struct reply *reply_at(const struct addr *src, const struct addr *dst, __be16 sport,
					      __be16 dport, __u8 proto, const enum stage stage, const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(src, dst, sport, dport, proto);

		return bpf_map_lookup_elem(stage ? (void *)&awaited6 : (void *)&replies6, &key);
	}
	struct flow_key4 key = flow_key4_of(src, dst, sport, dport, proto);

	return bpf_map_lookup_elem(stage ? (void *)&awaited4 : (void *)&replies4, &key);
}

/* A reply entry at either stage, or NULL. */
static __always_inline struct reply *reply_find(const struct addr *src, const struct addr *dst, __be16 sport,
						__be16 dport, __u8 proto, const bool v6)
{
	struct reply *reply = reply_at(src, dst, sport, dport, proto, STAGE_GOING, v6);

	return reply ?: reply_at(src, dst, sport, dport, proto, STAGE_OPENING, v6);
}

/* What a backend's packet answers, or NULL. */
static __always_inline struct reply *reply_lookup(const struct packet *p, const bool v6)
{
	return reply_find(&p->src, &p->dst, p->sport, p->dport, p->proto, v6);
}

static __always_inline void reply_forget(const struct addr *src, const struct addr *dst, __be16 sport, __be16 dport,
					 __u8 proto, const enum stage stage, const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(src, dst, sport, dport, proto);

		bpf_map_delete_elem(stage ? (void *)&awaited6 : (void *)&replies6, &key);
	} else {
		struct flow_key4 key = flow_key4_of(src, dst, sport, dport, proto);

		bpf_map_delete_elem(stage ? (void *)&awaited4 : (void *)&replies4, &key);
	}
}

/* Returns 0, or a negative error: -EEXIST with BPF_NOEXIST if the backend already answers somebody there at that stage. */
static __always_inline long reply_store(const struct backend *backend, const struct addr *peer, __be16 peer_port,
					const struct reply *reply, __u64 flags, const enum stage stage, const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(&backend->addr, peer, backend->port, peer_port, backend->proto);

		return bpf_map_update_elem(stage ? (void *)&awaited6 : (void *)&replies6, &key, reply, flags);
	}
	struct flow_key4 key = flow_key4_of(&backend->addr, peer, backend->port, peer_port, backend->proto);

	return bpf_map_update_elem(stage ? (void *)&awaited4 : (void *)&replies4, &key, reply, flags);
}

/*
 * Ticks after which a flow may be over although nobody ended it. An SCTP association is a connection: it ends by a
 * shutdown or ABORT, and its heartbeats (RFC 9260, 8.3: every 30 s) keep it from being idle.
 */
static __always_inline __u32 idle_limit(__u8 proto, const struct config *config)
{
	return proto == IPPROTO_UDP ? config->udp_idle : config->tcp_idle;
}

static __always_inline bool addr_equal(const struct addr *a, const struct addr *b, const bool v6)
{
	if (v6 && (a->word[0] != b->word[0] || a->word[1] != b->word[1] || a->word[2] != b->word[2]))
		return false;
	return a->word[3] == b->word[3];
}

/* Whether a backend is a process of this node. */
static __always_inline bool is_here(const struct backend *backend)
{
	const __u8 here = BACKEND_LOCAL | BACKEND_HOST_NETWORK;

	return (backend->flags & here) == here;
}

/* The flow that a reply entry belongs to, or NULL if it was evicted. */
static __always_inline const struct flow *reply_flow(const struct reply *reply, __u8 proto, const bool v6)
{
	return flow_find(&reply->client, &reply->frontend, reply->client_port, reply->frontend_port, proto, v6);
}

/*
 * Whether a flow is over, so that another may take the place of its reply entry: it has moved on to another backend or
 * port, lost its endpoint, was closed by its client, or is idle in both directions. Nothing else ever frees an entry.
 * port is the flow's SNAT port, or 0.
 */
static __always_inline bool flow_is_over(const struct flow *flow, const struct reply *reply, __be16 port, __u8 proto,
					 const struct config *config)
{
	const struct backend *backend;
	__u32 now = now_ticks(), limit = idle_limit(proto, config);

	if (flow->backend != reply->backend || flow->snat_port != port)
		return true;
	/* An endpoint that left and came back has the same address and starts to number its ports anew. */
	backend = bpf_map_lookup_elem(&backends, &flow->backend);
	if (!backend || backend->generation != flow->generation)
		return true;
	if (flow->flags & FLOW_CLOSING)
		return true;
	/* Its port's turn has come again: nobody has answered in all that time. */
	if (flow->flags & FLOW_OPENING && proto == IPPROTO_TCP)
		limit = OPENING_IDLE;
	return is_idle(now, flow->last_seen, limit) && is_idle(now, reply->last_seen, limit);
}

/* Whether a reply entry is free for another flow: its own was evicted or is over. */
static __always_inline bool reply_is_over(const struct reply *reply, __be16 port, __u8 proto,
					  const struct config *config, const bool v6)
{
	const struct flow *flow = reply_flow(reply, proto, v6);

	return !flow || flow_is_over(flow, reply, port, proto, config);
}

/* Ticks of silence after which two ends that have closed are done: a last FIN that was lost comes again within a second. */
#define CLOSED_IDLE 3

/*
 * Whether a packet that looks like an answer to a flow of ours belongs to another connection between the same ports, which
 * began after ours was over: a SYN-ACK, or the ACK of a TIME_WAIT that stands in its way. The entry goes, so that the rest
 * of that connection finds none.
 */
static __always_inline bool reply_is_anothers(const struct packet *p, const bool v6)
{
	const struct config *config = config_get();
	const struct reply *reply = reply_lookup(p, v6);
	const struct flow *flow;
	__be16 port;

	if (!config || !reply)
		return false;
	if (!p->syn_ack && p->proto != IPPROTO_UDP &&
	    !(reply->flags & FLOW_CLOSING && is_idle(now_ticks(), reply->last_seen, CLOSED_IDLE)))
		return false;
	port = reply->flags & FLOW_SNAT ? p->dport : 0;
	flow = reply_flow(reply, p->proto, v6);
	/* Of a full table an entry may be missing whose flow goes on. */
	if (flow ? !flow_is_over(flow, reply, port, p->proto, config) : !port)
		return false;
	reply_forget(&p->src, &p->dst, p->sport, p->dport, p->proto, STAGE_GOING, v6);
	reply_forget(&p->src, &p->dst, p->sport, p->dport, p->proto, STAGE_OPENING, v6);
	return true;
}

/* Functions of their own: few packets ask. */
__noinline int reply_is_anothers4(const struct packet *p)
{
	return p ? reply_is_anothers(p, false) : false;
}

__noinline int reply_is_anothers6(const struct packet *p)
{
	return p ? reply_is_anothers(p, true) : false;
}

static __always_inline bool is_same_frontend(const struct reply *a, const struct reply *b, const bool v6)
{
	return a->frontend_port == b->frontend_port && addr_equal(&a->frontend, &b->frontend, v6);
}

/* Whether an entry gives its place to a flow that keeps the client's address: it is of the same frontend, or is over. */
static __always_inline bool reply_yields(const struct reply *old, const struct packet *p, const struct config *config,
					 const struct reply *reply, const bool v6)
{
	return is_same_frontend(old, reply, v6) || reply_is_over(old, 0, p->proto, config, v6);
}

/*
 * Stores the reply entry of a flow that keeps the client's address. Returns 0, or an error if the backend already knows
 * this client address and port through another frontend, or the table is full.
 */
static __always_inline long reply_store_direct(const struct packet *p, const struct backend *backend,
					       const struct config *config, const struct reply *reply, const bool v6)
{
	const struct reply *old;

	old = reply_at(&backend->addr, &p->src, backend->port, p->sport, p->proto, STAGE_GOING, v6);
	if (old) {
		if (!reply_yields(old, p, config, reply, v6))
			return -1;
		reply_forget(&backend->addr, &p->src, backend->port, p->sport, p->proto, STAGE_GOING, v6);
	}
	if (!reply_store(backend, &p->src, p->sport, reply, BPF_NOEXIST, STAGE_OPENING, v6))
		return 0;
	old = reply_at(&backend->addr, &p->src, backend->port, p->sport, p->proto, STAGE_OPENING, v6);
	if (old && !reply_yields(old, p, config, reply, v6))
		return -1;
	/* Of a flood only this was written, and it was answered. */
	if (old && !p->syn && old->flags & FLOW_REPLIED && old->generation == reply->generation &&
	    is_same_frontend(old, reply, v6))
		return 0;
	return reply_store(backend, &p->src, p->sport, reply, BPF_ANY, STAGE_OPENING, v6);
}

/* A search for a free source port. */
struct snat_search {
	const struct backend *backend;
	const struct config *config;
	const struct reply *reply;
	struct snat_counter *counter;
	__be16 port; /* BE, what was found; 0 so far */
};

/* The first port from a number on that new flows may take, around the end. Returns 0 if there is none. */
static __always_inline __u32 snat_port_from(__u32 number)
{
	__u32 slot = number >> SNAT_NEXT_BITS;
	const struct snat_next *next = bpf_map_lookup_elem(&snat_next, &slot);

	return next ? next->port[number & ((1 << SNAT_NEXT_BITS) - 1)] : 0;
}

/*
 * The port that was used longest ago, or 0: this time none. The counter is a port number rather than an index, so that
 * ports can come and go without a change of the others' turns. Nobody else gets the port before all others had theirs:
 * past a gap only the CPU whose jump counts has it. SCTP keeps the client's, which its checksum covers.
 */
static __always_inline __be16 snat_take(const struct snat_search *search)
{
	__u32 *counter = &search->counter->next, turn, number, port;

	if (search->backend->proto == IPPROTO_SCTP)
		return search->reply->client_port;
	turn = __sync_fetch_and_add(counter, 1);
	number = turn & 0xffff;
	port = snat_port_from(number);
	if (port != number && __sync_val_compare_and_swap(counter, turn + 1, port + 1) != turn + 1)
		return 0;
	return bpf_htons(port);
}

/* Tries one port. Returns whether the search is over. */
static __always_inline long snat_try(struct snat_search *search, const bool v6)
{
	const struct backend *backend = search->backend;
	const struct config *config = search->config;
	const struct addr *node = v6 ? &config->node6 : &config->node4;
	__be16 port = snat_take(search);
	const struct reply *old;

	if (!port)
		return 0;
	old = reply_at(&backend->addr, node, backend->port, port, backend->proto, STAGE_GOING, v6);
	if (old) {
		if (!reply_is_over(old, port, backend->proto, config, v6))
			return 0;
		reply_forget(&backend->addr, node, backend->port, port, backend->proto, STAGE_GOING, v6);
	}
	if (reply_store(backend, node, port, search->reply, BPF_NOEXIST, STAGE_OPENING, v6)) {
		old = reply_at(&backend->addr, node, backend->port, port, backend->proto, STAGE_OPENING, v6);
		if (!old || !reply_is_over(old, port, backend->proto, config, v6) ||
		    reply_store(backend, node, port, search->reply, BPF_ANY, STAGE_OPENING, v6))
			return 0;
	}
	search->port = port;
	return 1;
}

static long snat_try4(__u32 round __attribute__((unused)), struct snat_search *search)
{
	return snat_try(search, false);
}

static long snat_try6(__u32 round __attribute__((unused)), struct snat_search *search)
{
	return snat_try(search, true);
}

/* The counter of an endpoint, whichever service sends to it; NULL only to the verifier. */
static __always_inline struct snat_counter *snat_counter_of(const struct backend *backend)
{
	__u64 h = (__u64)backend->addr.word[2] << 32 | backend->addr.word[3];
	__u32 slot;

	h = (h ^ ((__u64)backend->port << 8 | backend->proto)) * 0x9e3779b97f4a7c15ull;
	slot = (h >> 32) & (SNAT_COUNTERS - 1);
	return bpf_map_lookup_elem(&snat_counters, &slot);
}

/* Takes a free source port of the node for the flow and stores its reply entry. Returns the port (BE), or 0. */
static __always_inline __be16 reply_store_snat(const struct backend *backend, const struct config *config,
					       const struct reply *reply, const bool v6)
{
	struct snat_counter *counter = snat_counter_of(backend);
	const struct addr *node = v6 ? &config->node6 : &config->node4;
	struct snat_search search = { .backend = backend, .config = config, .reply = reply, .counter = counter };

	if (!counter || !(node->word[0] | node->word[3]))
		return 0;
	/* A loop of the kernel's: the verifier walks one round of it. */
	bpf_loop(backend->proto == IPPROTO_SCTP ? 1 : SNAT_PROBES, v6 ? (void *)snat_try6 : (void *)snat_try4, &search,
		 0);
	return search.port;
}

#endif
