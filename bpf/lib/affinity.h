/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Session affinity: which backend a client keeps for its new flows. Flows that exist do not ask. */
#ifndef WEIR_AFFINITY_H
#define WEIR_AFFINITY_H

#include "config.h"

/* Flags of the backend that a client keeps; 0: that one went away, or the client's latest flow is more than limit ticks ago. */
static __always_inline __u8 affinity_flags(const struct affinity *kept, __u32 id, __u32 limit)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &id);

	if (!backend || is_idle(now_ticks(), kept->last_seen, limit))
		return 0;
	return backend->flags & BACKEND_USED && backend->generation == kept->generation ? backend->flags : 0;
}

/*
 * The backend that a client keeps, unless it takes no new flows of the class. A new flow prolongs it. Returns the backend's
 * slot, or 0.
 */
static __always_inline __u32 affinity_find(const struct affinity_key *key, enum traffic_class class, __u32 limit)
{
	struct affinity *kept = bpf_map_lookup_elem(&affinities, key);
	__u32 now = now_ticks(), id = kept ? kept->backend : 0;

	if (!kept || !(affinity_flags(kept, id, limit) & BACKEND_CLASS << class))
		return 0;
	if (kept->last_seen != now)
		kept->last_seen = now;
	return id;
}

/*
 * Whether a client keeps the backend that it has, of whatever class, when a flow goes on: unless that began later than the flow for which the
 * client got it, and not elsewhere because nobody answered. Asking prolongs nothing.
 */
static __always_inline bool affinity_stays(const struct affinity_key *key, const struct flow *flow, __u32 limit)
{
	const struct affinity *kept = bpf_map_lookup_elem(&affinities, key);

	if (!kept || !affinity_flags(kept, kept->backend, limit))
		return false;
	return kept->backend == flow->backend || flow->flags & FLOW_RETRIES ||
	       (__s32)(flow->created - kept->last_seen) < 0;
}

/* Lets a client keep a backend. Best effort: without room it is selected for anew next time. */
static __always_inline void affinity_store(const struct affinity_key *key, __u32 id, __u32 generation)
{
	struct affinity kept = { .backend = id, .generation = generation, .last_seen = now_ticks() };

	bpf_map_update_elem(&affinities, key, &kept, BPF_ANY);
}

#endif
