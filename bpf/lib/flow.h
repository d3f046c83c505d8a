/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The flow tables: where a flow goes, and what its answers must look like. A flow begins in openings and awaited, and moves to
 * flows and replies when its client goes on after an answer: what a flood can fill evicts no flow that goes on.
 */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include "openings.h"
#include "parse.h"

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

/*
 * In which pair of tables an entry is: flows and replies, or those of flows that begin. A look-up may ask both. Another CPU may move
 * an entry meanwhile, which writes it to the tables of those that go on before it takes it out of the others: whoever looks in the
 * other order misses none.
 */
enum stage {
	STAGE_GOING = 0,
	STAGE_OPENING = 1,
	STAGE_ANY = 2,
};

static __always_inline struct flow *flow_at(const struct addr *src, const struct addr *dst, __be16 sport, __be16 dport,
					    __u8 proto, const enum stage stage, const bool v6)
{
	struct flow *flow = NULL;

	if (v6) {
		struct flow_key6 key = flow_key6_of(src, dst, sport, dport, proto);

		if (stage != STAGE_GOING)
			flow = openings6_at(&key);
		return flow || stage == STAGE_OPENING ? flow : bpf_map_lookup_elem(&flows6, &key);
	}
	struct flow_key4 key = flow_key4_of(src, dst, sport, dport, proto);

	if (stage != STAGE_GOING)
		flow = openings4_at(&key);
	return flow || stage == STAGE_OPENING ? flow : bpf_map_lookup_elem(&flows4, &key);
}

/* A flow at either stage, or NULL. */
static __always_inline struct flow *flow_find(const struct addr *src, const struct addr *dst, __be16 sport,
					      __be16 dport, __u8 proto, const bool v6)
{
	return flow_at(src, dst, sport, dport, proto, STAGE_ANY, v6);
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

		return stage ? openings6_store(&key, flow, BPF_ANY) : bpf_map_update_elem(&flows6, &key, flow, BPF_ANY);
	}
	struct flow_key4 key = flow_key4_of(&p->src, &p->dst, p->sport, p->dport, p->proto);

	return stage ? openings4_store(&key, flow, BPF_ANY) : bpf_map_update_elem(&flows4, &key, flow, BPF_ANY);
}

/* Forgets the flow at a stage that a client's packet belongs to, if there is one. */
static __always_inline void flow_forget(const struct packet *p, const enum stage stage, const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(&p->src, &p->dst, p->sport, p->dport, p->proto);

		(void)(stage ? openings6_drop(&key) : bpf_map_delete_elem(&flows6, &key));
	} else {
		struct flow_key4 key = flow_key4_of(&p->src, &p->dst, p->sport, p->dport, p->proto);

		(void)(stage ? openings4_drop(&key) : bpf_map_delete_elem(&flows4, &key));
	}
}

static __always_inline struct reply *reply_at(const struct addr *src, const struct addr *dst, __be16 sport,
					      __be16 dport, __u8 proto, const enum stage stage, const bool v6)
{
	struct reply *reply = NULL;

	if (v6) {
		struct flow_key6 key = flow_key6_of(src, dst, sport, dport, proto);

		if (stage != STAGE_GOING)
			reply = awaited6_at(&key);
		return reply || stage == STAGE_OPENING ? reply : bpf_map_lookup_elem(&replies6, &key);
	}
	struct flow_key4 key = flow_key4_of(src, dst, sport, dport, proto);

	if (stage != STAGE_GOING)
		reply = awaited4_at(&key);
	return reply || stage == STAGE_OPENING ? reply : bpf_map_lookup_elem(&replies4, &key);
}

/* A reply entry at either stage, or NULL. */
static __always_inline struct reply *reply_find(const struct addr *src, const struct addr *dst, __be16 sport,
						__be16 dport, __u8 proto, const bool v6)
{
	return reply_at(src, dst, sport, dport, proto, STAGE_ANY, v6);
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

		(void)(stage ? awaited6_drop(&key) : bpf_map_delete_elem(&replies6, &key));
	} else {
		struct flow_key4 key = flow_key4_of(src, dst, sport, dport, proto);

		(void)(stage ? awaited4_drop(&key) : bpf_map_delete_elem(&replies4, &key));
	}
}

/* Returns 0, or a negative error: -EEXIST with BPF_NOEXIST if the backend already answers somebody there at that stage. */
static __always_inline long reply_store(const struct backend *backend, const struct addr *peer, __be16 peer_port,
					const struct reply *reply, __u64 flags, const enum stage stage, const bool v6)
{
	if (v6) {
		struct flow_key6 key = flow_key6_of(&backend->addr, peer, backend->port, peer_port, backend->proto);

		return stage ? awaited6_store(&key, reply, flags) : bpf_map_update_elem(&replies6, &key, reply, flags);
	}
	struct flow_key4 key = flow_key4_of(&backend->addr, peer, backend->port, peer_port, backend->proto);

	return stage ? awaited4_store(&key, reply, flags) : bpf_map_update_elem(&replies4, &key, reply, flags);
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

/* Whom a backend answers: the client, or the node in its stead. */
static __always_inline const struct addr *peer_of(const struct packet *p, const struct flow *flow,
						  const struct config *config, const bool v6)
{
	if (!(flow->flags & FLOW_SNAT))
		return &p->src;
	return v6 ? &config->node6 : &config->node4;
}

/* The reply entry of a flow's packets, which may be another flow's, or NULL. */
static __always_inline struct reply *reply_to(const struct packet *p, const struct flow *flow,
					      const struct backend *backend, const struct config *config, const bool v6)
{
	const struct addr *peer = peer_of(p, flow, config, v6);
	__be16 port = flow->flags & FLOW_SNAT ? flow->snat_port : p->sport;

	return reply_find(&backend->addr, peer, backend->port, port, p->proto, v6);
}

/* Whether a reply entry is of the flow that a client's packet belongs to. */
static __always_inline bool reply_is_of(const struct reply *reply, const struct packet *p, const struct flow *flow,
					const bool v6)
{
	return reply->backend == flow->backend && reply->generation == flow->generation &&
	       reply->client_port == p->sport && reply->frontend_port == p->dport &&
	       addr_equal(&reply->client, &p->src, v6) && addr_equal(&reply->frontend, &p->dst, v6);
}

/* The flow that a reply entry belongs to, or NULL if it was evicted. */
static __always_inline struct flow *reply_flow(const struct reply *reply, __u8 proto, const bool v6)
{
	return flow_find(&reply->client, &reply->frontend, reply->client_port, reply->frontend_port, proto, v6);
}

static __always_inline bool is_same_frontend(const struct reply *a, const struct reply *b, const bool v6)
{
	return a->frontend_port == b->frontend_port && addr_equal(&a->frontend, &b->frontend, v6);
}

#endif
