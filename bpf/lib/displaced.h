/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Where connections go whose place another flow took before their client was heard of, or whose SYN got none. In a flood an entry lives for a fraction
 * of a second; a client whose ACK and request were lost in a full queue says more later, when the weights may have moved:
 * docs/adr/0055-what-a-flood-displaces.md.
 */
#ifndef WEIR_DISPLACED_H
#define WEIR_DISPLACED_H

#include "sets.h"

#define DISPLACED_BACKENDS ((1u << (DISPLACED_TICK - DISPLACED_BACKEND)) - 1)
#define DISPLACED_TICKS ((1u << (DISPLACED_TAG - DISPLACED_TICK)) - 1)

_Static_assert(OPENING_IDLE <= DISPLACED_TICKS, "a memory is older than it can say");

/* The place of a key with a hash, which the verifier is shown the bound of. */
static __always_inline __u64 *displaced_place(__u64 hash)
{
	__u32 set = opening_set(hash), way = hash;
	struct displaced *line = bpf_map_lookup_elem(&displaced, &set);

	if (!line)
		return NULL;
	barrier_var(way);
	return &line->entry[way & (DISPLACED_WAYS - 1)];
}

static __always_inline __u64 displaced_tag(__u64 hash)
{
	return (__u32)hash >> 16;
}

/*
 * Remembers where a TCP connection with a key goes, as its place becomes another flow's, or as it gets none. A function of its own, as the one that
 * stores has no stack to spare.
 */
static __noinline void displace(const word *key, const struct flow *flow, __u32 words)
{
	const struct config *config = config_get();
	__u64 hash, *place;

	if (!config || flow->backend > DISPLACED_BACKENDS)
		return;
	hash = words == sizeof(struct flow_key6) / sizeof(word)
		       ? opening_hash(key, sizeof(struct flow_key6) / sizeof(word), config->hash_seed)
		       : opening_hash(key, sizeof(struct flow_key4) / sizeof(word), config->hash_seed);
	place = displaced_place(hash);
	if (place)
		*(volatile __u64 *)place = displaced_tag(hash) << DISPLACED_TAG |
					   (__u64)(now_ticks() & DISPLACED_TICKS) << DISPLACED_TICK |
					   (__u64)flow->backend << DISPLACED_BACKEND | bpf_ntohs(flow->snat_port);
}

/* Ticks since it lost its place. */
static __always_inline __u32 displaced_ago(__u64 entry)
{
	return (now_ticks() - (__u32)(entry >> DISPLACED_TICK)) & DISPLACED_TICKS;
}

/* What is remembered of the connection with a key, or 0. A client asks for so long as for an answer to its SYN, or begins anew. */
static __always_inline __u64 displaced_find(const word *key, const __u32 words)
{
	const struct config *config = config_get();
	__u64 hash = opening_hash(key, words, config ? config->hash_seed : 0);
	__u64 *place = displaced_place(hash), entry = place ? *(volatile __u64 *)place : 0;

	if (entry >> DISPLACED_TAG != displaced_tag(hash) || displaced_ago(entry) > OPENING_IDLE)
		return 0;
	return entry;
}

static __always_inline __u32 displaced_backend(__u64 entry)
{
	return entry >> DISPLACED_BACKEND & DISPLACED_BACKENDS;
}

/* The source port (BE) of a connection to a backend, or 0: there was another backend, or it kept its client's. */
static __always_inline __be16 displaced_port(__u64 entry, __u32 backend)
{
	return displaced_backend(entry) == backend ? bpf_htons((__u16)entry) : 0;
}

#endif
