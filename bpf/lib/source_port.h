/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The place of a new flow's answers, where it has another port than its client's: of the client's own address, or a source port of the node's. */
#ifndef WEIR_SOURCE_PORT_H
#define WEIR_SOURCE_PORT_H

#include "first_syn.h"
#include "kept.h"
#include "place.h"

/*
 * Source ports whose turn it is that are tried for one new flow. Those that many connections have taken one after the other, and keep, are a
 * run of them; while a flood takes them, a collision means that most are taken. Where most are in use each search would take as long: who
 * comes soon after a long one tries fewer.
 */
#define SNAT_PROBES 512
#define SNAT_PROBES_SHORT 128
#define SNAT_PROBES_PRESSED 32
/* Ticks after a long search in which that is so. */
#define SNAT_SHORT 1
/* After so many a port that another client's port keeps is taken: before, there may be free ones behind all of those. */
#define SNAT_PROBES_KEPT 256
/* The first so many of them are not taken from flows that have ended only just now, nor from those that keep theirs. */
#define SNAT_CHOICE 16
/* Ports that are tried for a flow that keeps its client's address alone; after so many also those of flows that begin. */
#define OTHER_PORTS 64
#define OTHER_PORTS_FREE 56
/* Ports below are for who may have them: some servers trust such clients. */
#define FIRST_OTHER_PORT 1024
/* Tried for a connection that is met in its middle: its endpoint will reset it most likely. */
#define SNAT_PROBES_MID_FLOW 16

/* A search for a free source port. */
struct snat_search {
	struct reply reply;
	const struct backend *backend;
	struct snat_counter *counter; /* of the backend */
	__be16 port;		      /* BE, what was found; 0 so far */
	__u16 probes;		      /* ports that are tried, whose turn it is or by the hash */
	__u16 hash;		      /* of the flow */
	bool goes_on;		      /* it is of a flow that no table knows any more */
	__u8 claim;		      /* enum claim, of this round: here for the stack's sake */
};

/* The first port from a number on that new flows may take, around the end. Returns 0 if there is none. */
static __always_inline __u32 snat_port_from(__u32 number)
{
	__u32 slot = number >> SNAT_NEXT_BITS;
	const struct snat_next *next = bpf_map_lookup_elem(&snat_next, &slot);

	return next ? next->port[number & ((1 << SNAT_NEXT_BITS) - 1)] : 0;
}

/* Whether new flows may take a port (host byte order). */
static __always_inline bool is_given_out(__u32 port)
{
	return port && snat_port_from(port) == port;
}

/*
 * Whether a packet comes from another node, by a port that nodes give out, and not to processes of their own: an endpoint here may be talking there
 * to one of that node's clients, of whom nothing is known here, and whoever sends this in the node's name would have that translated. A function of
 * its own, for the stack's sake.
 */
__noinline int is_from_nodes_port(const struct packet *p)
{
	/* SCTP has all ports of its clients. What came wrapped is a client's of the node that has wrapped it. */
	return p && p->proto != IPPROTO_SCTP && !is_unwrapped(p) && is_given_out(bpf_ntohs(p->sport)) &&
	       lookup_by(&other_nodes, p->src);
}

/* The counter of an endpoint, whichever service sends to it; NULL only to the verifier. */
static __always_inline struct snat_counter *snat_counter_of(const struct backend *backend)
{
	__u32 slot = snat_slot_of(backend);

	return bpf_map_lookup_elem(&snat_counters, &slot);
}

/*
 * The port that was used longest ago, or 0: this time none. The counter is a port number rather than an index, so that
 * ports can come and go without a change of the others' turns. Nobody else takes it in turn before all others had theirs:
 * past a gap only the CPU whose jump counts has it. SCTP keeps the client's, which its checksum covers.
 */
static __always_inline __be16 snat_take(const struct snat_search *search)
{
	__u32 *counter = &search->counter->next, turn, number, port;

	if (search->backend->proto == IPPROTO_SCTP)
		return search->reply.client_port;
	turn = __sync_fetch_and_add(counter, 1);
	number = turn & 0xffff;
	port = snat_port_from(number);
	if (port != number && __sync_val_compare_and_swap(counter, turn + 1, port + 1) != turn + 1)
		return 0;
	return bpf_htons(port);
}

/*
 * The port that the flow had, where a packet in its middle is all that is known of it, or the one of a connection before from the client's port; 0: none,
 * or the host has come to use it. One that was kept is younger than its turn says.
 */
static __always_inline __be16 snat_again(struct snat_search *search, const bool v6)
{
	const __be16 kept = v6 ? snat_kept_port6(&search->reply) : snat_kept_port4(&search->reply);
	__be16 port = 0;

	if (search->goes_on)
		port = v6 ? snat_displaced_port6(&search->reply) : snat_displaced_port4(&search->reply);
	port = port ?: kept;
	if (port == kept)
		search->reply.flags |= FLOW_KEPT;
	return is_given_out(bpf_ntohs(port)) ? port : 0;
}

/* Whether the entry at a port gives its place to the new flow. If the port was kept for that, it must be of the same client. */
static __always_inline bool snat_yields(const struct reply *old, const struct snat_search *search, __be16 port,
					const bool v6)
{
	if (search->claim & CLAIM_AGAIN ? !is_of_client(old, &search->reply, v6)
					: keeps_port(old, config_get(), search->claim))
		return false;
	return reply_is_over(old, snat_port_of(old, port), search->backend->proto, search->claim, v6);
}

/* Whether the first round of a search is for a port that the flow or the client's port had before. */
static __always_inline bool snat_keeps_port(const struct snat_search *search)
{
	return (search->backend->proto == IPPROTO_TCP || search->goes_on) && search->reply.flags & FLOW_SNAT;
}

/* Whether a search is for a flow that keeps its client's address. */
static __always_inline bool snat_keeps_client(const struct snat_search *search)
{
	return !(search->reply.flags & FLOW_SNAT);
}

/*
 * The port (BE) of a round for a flow that keeps its client's address, or 0: not this one. The hash decides, so that a connection which no table knows
 * any more gets it again. None that nodes give out: the client may be one, and the endpoint talk to a client of its there. Node ports, at least, are
 * none of these.
 */
static __always_inline __be16 other_port(const struct snat_search *search, __u32 round)
{
	const __u32 spread = (__u16)(search->hash + round * (__u16)(GOLDEN_RATIO >> 48));
	const __u32 number = FIRST_OTHER_PORT + (spread * (0x10000 - FIRST_OTHER_PORT) >> 16);

	return is_given_out(number) || bpf_htons(number) == search->reply.client_port ? 0 : bpf_htons(number);
}

/* Whether a search is for a connection that is met in its middle. */
static __always_inline bool snat_is_mid_flow(const struct snat_search *search)
{
	return search->backend->proto == IPPROTO_TCP && search->goes_on;
}

/* Who asks for the port of a round. */
static __always_inline enum claim snat_claim(__u32 round, const struct snat_search *search, bool pressed)
{
	const bool keeps = snat_keeps_port(search);

	if (!round && keeps)
		return CLAIM_ONLY | CLAIM_AGAIN;
	if (search->backend->proto == IPPROTO_SCTP)
		return CLAIM_ONLY;
	/* Somebody in the client's name may have begun flows from nearly all of them. */
	if (snat_keeps_client(search))
		return round < OTHER_PORTS_FREE ? CLAIM_ONLY : CLAIM_ANY;
	if (snat_is_mid_flow(search))
		return CLAIM_FREE;
	if (round < SNAT_CHOICE + keeps)
		return CLAIM_TURN;
	return pressed || round >= SNAT_PROBES_KEPT + keeps ? CLAIM_ANY : CLAIM_NEED;
}

/* Tries one port. Returns whether the search is over. */
static __always_inline long snat_try(__u32 round, struct snat_search *search, const bool v6)
{
	const bool pressed = is_pressed(search->counter), keeps = snat_keeps_port(search);
	const struct reply *old;
	union flow_key key;
	__be16 port;
	__u32 turn;

	if (round >= SNAT_PROBES_PRESSED + keeps && pressed)
		return 1;
	/* Somebody may see to it that each search is long, and leave a free port here and there. */
	if (round == SNAT_PROBES_SHORT + keeps)
		search->counter->long_search = now_ticks();
	search->claim = snat_claim(round, search, pressed);
	search->reply.flags &= ~FLOW_KEPT;
	if (snat_keeps_client(search))
		port = other_port(search, round);
	else
		port = search->claim & CLAIM_AGAIN ? snat_again(search, v6) : snat_take(search);
	if (!port)
		return 0;
	/* The configuration is asked for here, for the stack's sake. */
	reply_key(&key, search->backend,
		  snat_keeps_client(search) ? &search->reply.client : source_of(config_get(), search->reply.flags, v6),
		  port, v6);
	old = reply_at(&key, STAGE_GOING, v6);
	if (old) {
		if (!snat_yields(old, search, port, v6))
			return 0;
		reply_forget(&key, STAGE_GOING, v6);
	}
	if (reply_store(&key, &search->reply, BPF_NOEXIST, STAGE_OPENING, v6)) {
		old = v6 ? awaited6_read(&key.v6, &turn) : awaited4_read(&key.v4, &turn);
		if (!old || !snat_yields(old, search, port, v6))
			return 0;
		if (!(search->claim & CLAIM_AGAIN) && search->backend->proto == IPPROTO_TCP)
			(void)(v6 ? snat_press6(search->counter, old, port) : snat_press4(search->counter, old, port));
		/* Another CPU may give it to somebody else meanwhile. */
		if (reply_store(&key, &search->reply, OPENING_OVER(turn), STAGE_OPENING, v6))
			return 0;
		if (take_back_if_going(&key, v6))
			return 0;
	} else if (take_back_if_going(&key, v6)) {
		return 0;
	}
	search->port = port;
	return 1;
}

static long snat_try4(__u32 round, struct snat_search *search)
{
	return snat_try(round, search, false);
}

static long snat_try6(__u32 round, struct snat_search *search)
{
	return snat_try(round, search, true);
}

/* Ports that a search tries beside one that is remembered. */
static __always_inline __u32 snat_probes(const struct snat_search *search)
{
	const __u8 proto = search->backend->proto;

	if (proto == IPPROTO_SCTP)
		return 1;
	if (snat_keeps_client(search))
		return OTHER_PORTS;
	if (snat_is_mid_flow(search))
		return SNAT_PROBES_MID_FLOW;
	return is_idle(now_ticks(), search->counter->long_search, SNAT_SHORT) ? SNAT_PROBES : SNAT_PROBES_SHORT;
}

/*
 * Passes over ports after a short search in vain, as many as a long one would have tried: what is free behind a long run of ports in use is reached
 * after as many searches, or hardly more where new flows may not take every number.
 */
static __always_inline void snat_pass_over(const struct snat_search *search)
{
	const __u32 tried = is_pressed(search->counter) ? SNAT_PROBES_PRESSED : search->probes;

	if (tried < SNAT_PROBES && search->probes >= SNAT_PROBES_SHORT)
		__sync_fetch_and_add(&search->counter->next, SNAT_PROBES - tried);
}

/*
 * Takes a free source port for a flow, with FLOW_SNAT of the node's, and stores its reply entry. asked: when the answer began to be awaited. Returns
 * the port (BE), or 0.
 */
static __always_inline __be16 reply_store_snat(const struct packet *p, const struct flow *flow, __u32 asked,
					       const struct backend *backend, struct snat_counter *counter,
					       const bool v6)
{
	struct snat_search search;

	search.backend = backend;
	search.counter = counter;
	search.port = 0;
	reply_of(&search.reply, p, flow, asked);
	search.goes_on = p->proto == IPPROTO_TCP ? !p->syn : went_on(flow);
	search.hash = flow_hash(hash_seed(), p, v6) >> 48;
	/* From here on all of it is there alone, for the stack's sake. */
	in_memory(&search);
	search.probes = snat_probes(&search);
	in_memory(&search);
	/* A loop of the kernel's: the verifier walks one round of it. */
	bpf_loop(search.probes + snat_keeps_port(&search), v6 ? (void *)snat_try6 : (void *)snat_try4, &search, 0);
	if (!search.port)
		snat_pass_over(&search);
	return search.port;
}

#endif
