/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The flow tables: where a flow goes, and what its answers must look like. A flow begins in openings and awaited, and moves to
 * flows and replies when its client goes on after an answer: what a flood can fill evicts no flow that goes on.
 */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include "going.h"
#include "openings.h"
#include "parse.h"

/* Keeps what was filled in out of registers, which would be on the stack beside it. */
static __always_inline void in_memory(const void *what)
{
	asm volatile("" : : "r"(what) : "memory");
}

/* Of either family. */
union flow_key {
	struct flow_key4 v4;
	struct flow_key6 v6;
};

/* The last two words of a key, whole: word.h. */
static __always_inline void key_end(word *end, __be16 sport, __be16 dport, __u8 proto)
{
	end[0] = word_of(sport, dport);
	end[1] = word_of(proto, 0);
}

/* Fills in a key, in place: the programs have no stack to spare for a copy. */
static __always_inline void flow_key_of(union flow_key *key, const struct addr *src, const struct addr *dst,
					__be16 sport, __be16 dport, __u8 proto, const bool v6)
{
	if (v6) {
		__builtin_memcpy(key->v6.src, src, sizeof(key->v6.src));
		__builtin_memcpy(key->v6.dst, dst, sizeof(key->v6.dst));
		key_end((word *)&key->v6.sport, sport, dport, proto);
	} else {
		key->v4.src = src->word[3];
		key->v4.dst = dst->word[3];
		key_end((word *)&key->v4.sport, sport, dport, proto);
	}
}

/* Hash of a key with a seed: with the node's it names the set among those that begin. */
static __always_inline __u64 key_hash(const union flow_key *key, __u64 seed, const bool v6)
{
	return v6 ? opening_hash((const word *)&key->v6, sizeof(key->v6) / sizeof(word), seed, opening_step)
		  : opening_hash((const word *)&key->v4, sizeof(key->v4) / sizeof(word), seed, opening_step);
}

/* The same with this node's seed. Functions of their own, for the stack's sake. */
__noinline __u64 key_hash4(const struct flow_key4 *key)
{
	return key ? key_hash((const union flow_key *)key, hash_seed(), false) : 0;
}

__noinline __u64 key_hash6(const struct flow_key6 *key)
{
	return key ? key_hash((const union flow_key *)key, hash_seed(), true) : 0;
}

static __always_inline __u64 key_hash_here(const union flow_key *key, const bool v6)
{
	return v6 ? key_hash6(&key->v6) : key_hash4(&key->v4);
}

/* Key of what a packet belongs to: a client's to a flow, a backend's to the entry of a flow's answers. */
static __always_inline void packet_key(union flow_key *key, const struct packet *p, const bool v6)
{
	flow_key_of(key, &p->src, &p->dst, p->sport, p->dport, p->proto, v6);
}

/* Key of what goes the other way than a packet. */
static __always_inline void turned_key(union flow_key *key, const struct packet *p, const bool v6)
{
	flow_key_of(key, &p->dst, &p->src, p->dport, p->sport, p->proto, v6);
}

/* Hash of packet_key() with this node's seed. Functions of their own, too: each SYN's, which call no others. */
static __always_inline __u64 hash_packet(const struct packet *p, const bool v6)
{
	union flow_key key;

	packet_key(&key, p, v6);
	return key_hash(&key, hash_seed(), v6);
}

__noinline __u64 packet_hash4(const struct packet *p)
{
	return p ? hash_packet(p, false) : 0;
}

__noinline __u64 packet_hash6(const struct packet *p)
{
	return p ? hash_packet(p, true) : 0;
}

static __always_inline __u64 packet_hash(const struct packet *p, const bool v6)
{
	return v6 ? packet_hash6(p) : packet_hash4(p);
}

/*
 * In which pair of tables an entry is: flows and replies, or those of flows that begin. A look-up may ask both. Another CPU may move
 * an entry meanwhile, which writes it to the tables of those that go on and notes it before it takes it out of the others: whoever looks in the
 * other order misses none; whoever looks among those that go on first, since most are there, looks there again.
 */
enum stage {
	STAGE_GOING = 0,
	STAGE_OPENING = 1,
	STAGE_ANY = 2,
	STAGE_GOING_FIRST = 3, /* any, which most likely goes on */
};

/* False for a key that is in neither flows nor replies; true proves nothing. */
static __always_inline bool may_be_going(const union flow_key *key, const bool v6)
{
	if (!is_going_known())
		return true;
	return v6 ? going6_may_be(&key->v6) : going4_may_be(&key->v4);
}

/* Notes an entry of either that has been written. */
static __always_inline void note_written(const union flow_key *key, const bool v6)
{
	(void)(v6 ? going6_note(&key->v6) : going4_note(&key->v4));
}

/* The flow with a key among those that go on, or NULL. */
static __always_inline struct flow *flow_at_going(const union flow_key *key, const bool v6)
{
	if (!may_be_going(key, v6))
		return NULL;
	return v6 ? bpf_map_lookup_elem(&flows6, &key->v6) : bpf_map_lookup_elem(&flows4, &key->v4);
}

/* The flow with a key at a stage, or NULL. */
static __always_inline struct flow *flow_at(const union flow_key *key, const enum stage stage, const bool v6)
{
	struct flow *flow = NULL;

	if (stage == STAGE_GOING_FIRST)
		flow = flow_at_going(key, v6);
	if (!flow && stage != STAGE_GOING)
		flow = v6 ? openings6_at(&key->v6) : openings4_at(&key->v4);
	if (flow || stage == STAGE_OPENING)
		return flow;
	return flow_at_going(key, v6);
}

/* The flow at a stage that a client's packet belongs to, or NULL. */
static __always_inline struct flow *flow_lookup(const struct packet *p, const enum stage stage, const bool v6)
{
	union flow_key key;

	packet_key(&key, p, v6);
	return flow_at(&key, stage, v6);
}

/* Asks for the memory that a client's SYN will need, if it begins a flow. */
static __always_inline void flow_fetch(const struct packet *p, const bool v6)
{
	const __u64 hash = packet_hash(p, v6);

	if (v6)
		opening_fetch(&openings6, hash, OPENING_KIND(opening_set6, flow_key6, flow, service));
	else
		opening_fetch(&openings4, hash, OPENING_KIND(opening_set4, flow_key4, flow, service));
}

/* Writes the flow with a key to those that go on. Returns 0 or a negative error of the map. */
static __always_inline long flow_put_going(const union flow_key *key, const struct flow *flow, const bool v6)
{
	long error = v6 ? bpf_map_update_elem(&flows6, &key->v6, flow, BPF_ANY)
			: bpf_map_update_elem(&flows4, &key->v4, flow, BPF_ANY);

	if (error)
		return error;
	note_written(key, v6);
	return 0;
}

/* Writes the flow that a client's packet belongs to. stage: STAGE_GOING or STAGE_OPENING. Returns 0 or a negative error of the map. */
static __always_inline long flow_store(const struct packet *p, const struct flow *flow, const enum stage stage,
				       const bool v6)
{
	union flow_key key;

	packet_key(&key, p, v6);
	if (stage == STAGE_OPENING)
		return v6 ? openings6_store(&key.v6, flow, BPF_ANY) : openings4_store(&key.v4, flow, BPF_ANY);
	return flow_put_going(&key, flow, v6);
}

/* Forgets the flow at a stage, or at any, that a client's packet belongs to, if there is one. */
static __always_inline void flow_forget(const struct packet *p, const enum stage stage, const bool v6)
{
	union flow_key key;

	packet_key(&key, p, v6);
	if (stage != STAGE_OPENING)
		(void)(v6 ? bpf_map_delete_elem(&flows6, &key.v6) : bpf_map_delete_elem(&flows4, &key.v4));
	if (stage != STAGE_GOING)
		(void)(v6 ? openings6_drop(&key.v6) : openings4_drop(&key.v4));
}

/* Key of what a backend says to somebody at a port. */
static __always_inline void reply_key(union flow_key *key, const struct backend *backend, const struct addr *peer,
				      __be16 port, const bool v6)
{
	flow_key_of(key, &backend->addr, peer, backend->port, port, backend->proto, v6);
}

/* The entry of answers with a key among those of flows that go on, or NULL. */
static __always_inline struct reply *reply_at_going(const union flow_key *key, const bool v6)
{
	if (!may_be_going(key, v6))
		return NULL;
	return v6 ? bpf_map_lookup_elem(&replies6, &key->v6) : bpf_map_lookup_elem(&replies4, &key->v4);
}

/* The entry of answers with a key at a stage, or NULL. */
static __always_inline struct reply *reply_at(const union flow_key *key, const enum stage stage, const bool v6)
{
	struct reply *reply = NULL;

	if (stage == STAGE_GOING_FIRST)
		reply = reply_at_going(key, v6);
	if (!reply && stage != STAGE_GOING)
		reply = v6 ? awaited6_at(&key->v6) : awaited4_at(&key->v4);
	if (reply || stage == STAGE_OPENING)
		return reply;
	return reply_at_going(key, v6);
}

/* What a backend's packet answers, or NULL. */
static __always_inline struct reply *reply_lookup(const struct packet *p, const bool v6)
{
	union flow_key key;

	packet_key(&key, p, v6);
	return reply_at(&key, p->syn_ack ? STAGE_ANY : STAGE_GOING_FIRST, v6);
}

/* Forgets the entry of answers with a key at a stage, or at any, if there is one. */
static __always_inline void reply_forget(const union flow_key *key, const enum stage stage, const bool v6)
{
	if (stage != STAGE_OPENING)
		(void)(v6 ? bpf_map_delete_elem(&replies6, &key->v6) : bpf_map_delete_elem(&replies4, &key->v4));
	if (stage != STAGE_GOING)
		(void)(v6 ? awaited6_drop(&key->v6) : awaited4_drop(&key->v4));
}

/* stage: STAGE_GOING or STAGE_OPENING. Returns 0, or a negative error: -EEXIST with BPF_NOEXIST if the backend already answers somebody there at that stage. */
static __always_inline long reply_store(const union flow_key *key, const struct reply *reply, __u64 flags,
					const enum stage stage, const bool v6)
{
	long error;

	if (stage == STAGE_OPENING)
		return v6 ? awaited6_store(&key->v6, reply, flags) : awaited4_store(&key->v4, reply, flags);
	error = v6 ? bpf_map_update_elem(&replies6, &key->v6, reply, flags)
		   : bpf_map_update_elem(&replies4, &key->v4, reply, flags);
	if (error)
		return error;
	note_written(key, v6);
	return 0;
}

/* Whether a flow with these flags, or of answers with them, has not got going so far, or is over. */
static __always_inline bool is_opening(__u16 flags)
{
	return (flags & (FLOW_OPENING | FLOW_SETTLED)) == FLOW_OPENING;
}

/* Whether a flow's client has said something in a later tick than the one that it began in. */
static __always_inline bool went_on(const struct flow *flow)
{
	return flow->last_seen != flow->created;
}

/* Where the other half of a flow with these flags is looked for first. */
static __always_inline enum stage stage_of(__u16 flags)
{
	return flags & FLOW_OPENING ? STAGE_ANY : STAGE_GOING_FIRST;
}

/* Whether a backend is a process of this node. */
static __always_inline bool is_here(const struct backend *backend)
{
	const __u8 here = BACKEND_LOCAL | BACKEND_HOST_NETWORK;

	return (backend->flags & here) == here;
}

/* The node's address that the backend sees of a flow with these flags, or of answers with them. */
static __always_inline const struct addr *source_of(const struct config *config, __u16 flags, const bool v6)
{
	if (flags & FLOW_TUNNEL)
		return v6 ? &config->tunnel6.addr : &config->tunnel4.addr;
	return v6 ? &config->node6 : &config->node4;
}

/* Key of the answers to a flow's packets: they go to the client, or to the node in its stead. */
static __always_inline void answer_key(union flow_key *key, const struct packet *p, const struct flow *flow,
				       const struct backend *backend, const struct config *config, const bool v6)
{
	if (flow->flags & FLOW_SNAT)
		reply_key(key, backend, source_of(config, flow->flags, v6), flow->snat_port, v6);
	else
		reply_key(key, backend, &p->src, flow->snat_port ?: p->sport, v6);
}

/* The port (BE) that a flow has in place of its client's, by the entry of its answers and the port that these go to, or 0. */
static __always_inline __be16 snat_port_of(const struct reply *reply, __be16 port)
{
	return reply->flags & FLOW_SNAT || reply->client_port != port ? port : 0;
}

/* Whether a flow goes to the backend that an entry awaits the answers of. */
static __always_inline bool is_to_backend_of(const struct flow *flow, const struct reply *reply)
{
	return flow->backend == reply->backend && flow->generation == reply->generation;
}

/* Whether a reply entry is of the flow that a client's packet belongs to. */
static __always_inline bool reply_is_of(const struct reply *reply, const struct packet *p, const struct flow *flow,
					const bool v6)
{
	return is_to_backend_of(flow, reply) && reply->client_port == p->sport && reply->frontend_port == p->dport &&
	       addr_equal(&reply->client, &p->src, v6) && addr_equal(&reply->frontend, &p->dst, v6);
}

/* Key of the flow that a reply entry belongs to. */
static __always_inline void client_key(union flow_key *key, const struct reply *reply, __u8 proto, const bool v6)
{
	flow_key_of(key, &reply->client, &reply->frontend, reply->client_port, reply->frontend_port, proto, v6);
}

/* What of a client's packet can be told from its reply entry, in place. */
static __always_inline void client_packet(struct packet *p, const struct reply *reply, __u8 proto)
{
	__builtin_memset(p, 0, sizeof(*p));
	__builtin_memcpy(&p->src, &reply->client, sizeof(p->src));
	__builtin_memcpy(&p->dst, &reply->frontend, sizeof(p->dst));
	p->sport = reply->client_port;
	p->dport = reply->frontend_port;
	p->proto = proto;
	in_memory(p);
}

/* The flow that a reply entry belongs to, or NULL if it was evicted. */
static __always_inline struct flow *reply_flow(const struct reply *reply, __u8 proto, const bool v6)
{
	union flow_key key;

	client_key(&key, reply, proto, v6);
	return flow_at(&key, stage_of(reply->flags), v6);
}

/* Whether the host has asked from the port of a flow of datagrams since its client said something, and may be answered. */
static __always_inline bool is_lent(const struct reply *reply)
{
	return reply->flags & FLOW_LENT && ((now_ticks() - reply->heard) & HEARD_MASK) <= ANSWER_IDLE;
}

/* The answers to a flow of datagrams are its client's again. */
static __always_inline void end_lending(struct reply *reply)
{
	if (!(reply->flags & FLOW_LENT))
		return;
	clear_bits(&reply->flags, FLOW_LENT);
	reply->heard = 0;
}

/* Whether two entries are of answers in the name of the same frontend. */
static __always_inline bool is_same_frontend(const struct reply *a, const struct reply *b, const bool v6)
{
	return a->frontend_port == b->frontend_port && addr_equal(&a->frontend, &b->frontend, v6);
}

#endif
