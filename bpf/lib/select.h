/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which backend a new flow gets. One hash decides both the tier and the entry, so that a retransmission picks the same.
 * crates/core/src/select.rs is the reference model of this file, compared with it on random flows and tables.
 */
#ifndef WEIR_SELECT_H
#define WEIR_SELECT_H

#include "maps.h"
#include "parse.h"

static __always_inline __u64 hash_mix(__u64 h, __u64 word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 32;
}

/* Hash of a flow. The final steps are those of splitmix64. */
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
	h = hash_mix(h, (__u64)p->sport << 32 | (__u64)p->dport << 16 | p->proto);
	h ^= h >> 29;
	h *= 0xbf58476d1ce4e5b9ull;
	return h ^ h >> 32;
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
 * Walks from a tier's reference to a backend. Returns the backend's slot, or 0 if a reference leads nowhere.
 * A function of its own: the verifier walks it once, not on every path that leads here.
 */
__noinline __u32 select_in_tier(__u32 ref, __u32 r)
{
#pragma unroll
	for (int depth = 0; depth < LINE_DEPTH; depth++) {
		const struct line *line;
		__u32 id;

		if (!(ref & REF_LINE))
			return ref;
		id = ref & ~REF_LINE;
		line = bpf_map_lookup_elem(&lines, &id);
		if (!line)
			return 0;
		ref = line->ref[line_search(line, r) & (LINE_ENTRIES - 1)];
	}
	return ref & REF_LINE ? 0 : ref;
}

/*
 * Selects a backend for a new flow; other: of the tier that it would not use, if there are two. Returns the backend's slot,
 * -REASON_NO_ENDPOINTS, -REASON_NO_LOCAL_ENDPOINTS or -REASON_BROKEN_TABLE.
 */
static __always_inline int select_backend(const struct service *service, enum traffic_class class, __u64 hash,
					  bool other)
{
	const struct tiers *tiers = &service->tiers[class];
	__u32 local = tiers->local, far = tiers->remote;
	bool remote;
	__u32 id;

	if (!local && !far)
		return service->endpoints ? -REASON_NO_LOCAL_ENDPOINTS : -REASON_NO_ENDPOINTS;
	remote = !local || (far && (hash & 0xffff) < tiers->spill);
	if (other && local && far)
		remote = !remote;
	id = select_in_tier(remote ? far : local, hash >> 32);
	return id ? (int)id : -REASON_BROKEN_TABLE;
}

#endif
