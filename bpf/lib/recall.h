/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Connections of which nothing but a memory is left (displaced.h): what leaves one, and what goes on from it. */
#ifndef WEIR_RECALL_H
#define WEIR_RECALL_H

#include "choose.h"

/*
 * Writes no entry for a flow whose SYN is one of a flood: the client's next packet is hashed alike. Weights may move until then. An earlier
 * connection's from the same port would hide it. Returns 0.
 */
static __always_inline int flow_by_hash(const struct packet *p, const struct flow *flow, const bool v6)
{
	__u64 hash;

	flow_forget(p, STAGE_OPENING, v6);
	if (p->proto != IPPROTO_TCP)
		return 0;
	hash = packet_hash(p, v6);
	displace(opening_set(hash), opening_tag(hash), flow);
	return 0;
}

/* Whether a backend's answer to an earlier SYN between the same ports is still awaited, at a port that it was to go to. */
static __always_inline bool is_awaited_from(const struct backend *backend, __u32 id, const struct packet *p,
					    __be16 port, const bool v6)
{
	const struct reply *reply;
	union flow_key key;

	reply_key(&key, backend, &p->src, port, v6);
	reply = reply_at(&key, STAGE_OPENING, v6);
	return reply && awaits_answer(reply, p, id, backend->generation, v6);
}

/* Whether the set that a hash names has ever lost a flow: if not, none of its words is asked for. */
static __always_inline bool has_displaced(__u64 hash, const bool v6)
{
	const __u32 set = opening_set(hash);
	const struct opening_head *head =
		v6 ? bpf_map_lookup_elem(&openings6, &set) : bpf_map_lookup_elem(&openings4, &set);

	return head && head->displaced;
}

/*
 * Gives the request the backend of a connection, or of datagrams, that others have left nothing else of. Returns 0 if there is none, else how many ticks ago it lost
 * its place, and one. If a SYN that comes again went to another backend, by the weights of now, both might answer it.
 */
static __always_inline __u32 goes_on_there(struct request *request, const struct packet *p, const bool v6)
{
	const __u64 hash = packet_hash(p, v6);
	const __u64 entry = p->proto == IPPROTO_UDP && !has_displaced(hash, v6) ? 0 : displaced_find(hash);
	const __u32 id = displaced_backend(entry);
	const struct backend *backend = id ? lookup_by(&backends, id) : NULL;

	/* Some of the hash is known, so that it may be another's. */
	if (!backend || backend->service != request->service || backend->proto != p->proto ||
	    !is_in_ranges(request->kind, request->service, &request->client))
		return 0;
	if (p->syn && !is_awaited_from(backend, id, p, displaced_port(entry, id) ?: p->sport, v6))
		return 0;
	if (!take(request, id))
		return 0;
	return p->syn ? 1 : displaced_ago(entry) + 1;
}

/*
 * Whether a packet is a SYN-ACK whose connection's entry has lost its place: it would leave in its endpoint's name, and be reset by a client which
 * never asked there. Where the client asks again there is one.
 */
static __always_inline bool lost_entry(const struct packet *p, const bool v6)
{
	return p->syn_ack && p->proto == IPPROTO_TCP && displaced_answers(packet_hash(p, v6), p->heard);
}

/* Functions of their own, for the stack's sake. */
__noinline int goes_on_there4(struct request *request, const struct packet *p)
{
	return request && p ? goes_on_there(request, p, false) : 0;
}

__noinline int goes_on_there6(struct request *request, const struct packet *p)
{
	return request && p ? goes_on_there(request, p, true) : 0;
}

#endif
