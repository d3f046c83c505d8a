/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which backend a new flow gets. One hash decides both the tier and the entry, so that a retransmission picks the same;
 * where open flows count, too, as long as the flow table knows the flow. Whose flow no table may know is selected by the hash alone.
 * crates/core/src/select.rs is the reference model of this file, compared with it on random flows and tables.
 */
#ifndef WEIR_SELECT_H
#define WEIR_SELECT_H

#include "maps.h"
#include "parse.h"
#include "word.h"

static __always_inline __u64 hash_mix(__u64 h, __u64 word)
{
	h = (h ^ word) * GOLDEN_RATIO;
	return h ^ h >> 32;
}

/* The final steps of splitmix64. */
static __always_inline __u64 hash_end(__u64 h)
{
	h ^= h >> 29;
	h *= 0xbf58476d1ce4e5b9ull;
	return h ^ h >> 32;
}

/* A random hash, which no client can predict. */
static __always_inline __u64 random_hash(void)
{
	return (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
}

/* Hash of a flow. */
static __always_inline __u64 flow_hash(__u64 seed, const struct packet *p, const bool v6)
{
	__u64 h = seed;

	if (v6) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			h = hash_mix(h, (__u64)p->src.word[i] << 32 | p->dst.word[i]);
	} else {
		h = hash_mix(h, (__u64)p->src.word[3] << 32 | p->dst.word[3]);
	}
	return hash_end(hash_mix(h, (__u64)p->sport << 32 | (__u64)p->dport << 16 | p->proto));
}

/* Hash of a client with affinity, of which all flows are one. */
static __always_inline __u64 client_hash(__u64 seed, const struct addr *client)
{
	__u64 h = hash_mix(seed, (__u64)client->word[0] << 32 | client->word[1]);

	return hash_end(hash_mix(h, (__u64)client->word[2] << 32 | client->word[3]));
}

/*
 * The entry of a line that holds r: as many as there are bounds below it. No branch, one cache line. The difference's
 * sign is hidden from the compiler, which would make 15 branches of it.
 */
static __always_inline __u32 line_search(const struct line *line, __u32 r)
{
	__u64 index = 0;

#pragma unroll
	for (int i = 0; i < LINE_ENTRIES - 1; i++) {
		__u64 below = (__u64)line->cumulative[i] - r;

		asm volatile("" : "+r"(below));
		index += below >> 63;
	}
	return index;
}

/*
 * A part of the 32-bit range, in one register: the programs have no stack to spare. Its upper half is the lower bound, which
 * is not in it.
 */
typedef __u64 part_t;

static __always_inline __u32 part_end(part_t part)
{
	return part;
}

static __always_inline __u32 part_size(part_t part)
{
	return part_end(part) - (__u32)(part >> 32);
}

/* In 65536ths, 1 at least. Parts that are alike differ by a unit of 2^32, and must compare as equal. */
static __always_inline __u64 part_weight(part_t part)
{
	return ((__u64)part_size(part) + (1 << 15)) >> 16 ?: 1;
}

/*
 * Walks from a tier's reference to the backend whose part holds the upper half of at, and puts its slot in place of the
 * reference; 0 if one leads nowhere. Returns the part.
 */
static __always_inline part_t draw(__u32 *ref, __u64 *at)
{
	part_t part = 0xffffffff;

#pragma unroll
	for (int depth = 0; depth < LINE_DEPTH; depth++) {
		const struct line *line;
		__u32 index, bound;

		if (!(*ref & REF_LINE))
			return part;
		*ref &= ~REF_LINE;
		line = bpf_map_lookup_elem(&lines, ref);
		if (!line) {
			*ref = 0;
			return part;
		}
		/* Else their halves would get registers of their own. */
		asm volatile("" : "+r"(*at), "+r"(part));
		index = line_search(line, *at >> 32);
		if (index)
			part = (__u64)line->cumulative[(index - 1) & (LINE_ENTRIES - 1)] << 32 | part_end(part);
		/* A line's last bound is the whole range, whatever the line above says. */
		bound = line->cumulative[index & (LINE_ENTRIES - 1)];
		if (bound < part_end(part))
			part = part >> 32 << 32 | bound;
		*ref = line->ref[index & (LINE_ENTRIES - 1)];
	}
	if (*ref & REF_LINE)
		*ref = 0;
	return part;
}

/* Where a second draw looks: anywhere but in the first one's part. */
static __always_inline __u64 elsewhere(part_t part, __u64 hash)
{
	__u64 others = (1ull << 32) - part_size(part);

	return (part_end(part) + 1 + ((hash_mix(hash, SECOND_DRAW) >> 32) * others >> 32)) << 32;
}

/*
 * Flows that a backend has open: the agent's count, and the connections that began and ended since. Those that it refused or did not answer, each
 * time that they asked, have not ended before the next count: it would be taken ever again.
 */
static __always_inline __u32 open_flows(const __u32 *id)
{
	const struct backend_counters *counters = bpf_map_lookup_elem(&backend_counters, id);
	__u32 open = counters ? counters->balance + counters->refused + counters->unanswered - counters->base : 0;

	/* Some of those that were counted may have ended before the base was written. */
	return open >> 31 ? 0 : open;
}

/*
 * A backend of a tier; of two drawn, the one with fewer open flows for its weight, and the first if they are alike.
 * Returns its slot, or 0 if a reference leads nowhere. A function of its own: the verifier walks it once, not on every path
 * that leads here.
 */
__noinline __u32 select_in_tier(__u32 ref, __u64 hash, bool of_two)
{
	__u32 one = ref, other = of_two ? ref : 0;
	part_t part, other_part;
	__u64 busy;

	part = draw(&one, &hash);
	if (!other)
		return one;
	hash = elsewhere(part, hash);
	other_part = draw(&other, &hash);
	if (!one || !other || one == other)
		return one;
	busy = open_flows(&other) * part_weight(part);
	return busy < open_flows(&one) * part_weight(other_part) ? other : one;
}

/*
 * Selects a backend for a new flow; other: of the tier that it would not use, if there are two; by_hash: by nothing but the hash.
 * Returns the backend's slot, -REASON_NO_ENDPOINTS, -REASON_NO_LOCAL_ENDPOINTS or -REASON_BROKEN_TABLE.
 */
static __always_inline int select_backend(const struct service *service, enum traffic_class class, __u64 hash,
					  bool other, bool by_hash)
{
	const struct tiers *tiers = &service->tiers[class];
	__u32 local = tiers->local, far = tiers->remote;
	bool remote;
	__u32 id;

	/* Between the two loads it may have come from the other tier, whichever was read first. */
	if (!local && !far) {
		local = *(const volatile __u32 *)&tiers->local;
		far = *(const volatile __u32 *)&tiers->remote;
	}
	if (!local && !far)
		return service->endpoints ? -REASON_NO_LOCAL_ENDPOINTS : -REASON_NO_ENDPOINTS;
	remote = !local || (far && (hash & 0xffff) < tiers->spill);
	if (other && local && far)
		remote = !remote;
	id = select_in_tier(remote ? far : local, hash, !by_hash && service->flags & SERVICE_LEAST_CONN);
	return id ? (int)id : -REASON_BROKEN_TABLE;
}

#endif
