/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Session affinity: which backend a client keeps for its new flows. Flows that exist do not ask. */
#ifndef WEIR_AFFINITY_H
#define WEIR_AFFINITY_H

#include "config.h"

_Static_assert(BACKEND_CLASSES == BACKEND_CLASS * ((1 << CLASS_COUNT) - 1), "a bit for each class");

/*
 * The classes of traffic whose new flows of a client may go to the backend that it keeps, as bits of a backend's flags; 0: that one went away or
 * takes none, or the client's latest flow is more than limit ticks ago.
 */
static __always_inline __u8 affinity_classes(const struct affinity *kept, __u32 id, __u32 limit)
{
	const struct backend *backend = backend_at(id, kept->generation);

	if (!backend || is_idle(now_ticks(), kept->last_seen, limit) || !(backend->flags & BACKEND_USED))
		return 0;
	return backend->flags & BACKEND_CLASSES;
}

/*
 * The backend that a client keeps, unless it takes no new flows of the class. A new flow prolongs it. Returns the backend's
 * slot, or 0.
 */
static __always_inline __u32 affinity_find(const struct affinity_key *key, enum traffic_class class, __u32 limit)
{
	struct affinity *kept = bpf_map_lookup_elem(&affinities, key);
	__u32 now = now_ticks(), id = kept ? kept->backend : 0;

	if (!kept || !(affinity_classes(kept, id, limit) & BACKEND_CLASS << class))
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

	if (!kept || !affinity_classes(kept, kept->backend, limit))
		return false;
	return kept->backend == flow->backend || flow->flags & FLOW_RETRIES ||
	       (__s32)(flow->created - kept->last_seen) < 0;
}

/*
 * When a client that keeps nothing any more had its latest flow; 0: it keeps something, or nothing is known. First packets do not change it, so
 * that all of what the client begins at once is told the same; what it gets next need not be what it had.
 */
static __always_inline __u32 affinity_past(const struct affinity_key *key, __u32 limit)
{
	const struct affinity *kept = bpf_map_lookup_elem(&affinities, key);

	return kept && !affinity_classes(kept, kept->backend, limit) ? kept->last_seen : 0;
}

/* Lets a client keep a backend from a tick on. Best effort: without room it is selected for anew next time. */
static __always_inline void affinity_store(const struct affinity_key *key, __u32 id, __u32 generation, __u32 tick)
{
	struct affinity kept = { .backend = id, .generation = generation, .last_seen = tick };

	bpf_map_update_elem(&affinities, key, &kept, BPF_ANY);
}

#endif
