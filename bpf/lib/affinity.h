/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Session affinity: which backend a client keeps for its new flows. Flows that exist do not ask. */
#ifndef WEIR_AFFINITY_H
#define WEIR_AFFINITY_H

#include "config.h"

/*
 * The backend that a client keeps, unless that one went away, takes no new flows of the class, or the client's latest
 * one is more than limit ticks ago. A new flow prolongs it. Returns the backend's slot, or 0.
 */
static __always_inline __u32 affinity_find(const struct affinity_key *key, enum traffic_class class, __u32 limit)
{
	struct affinity *kept = bpf_map_lookup_elem(&affinities, key);
	const struct backend *backend;
	__u32 now = now_ticks(), id;

	if (!kept || is_idle(now, kept->last_seen, limit))
		return 0;
	id = kept->backend;
	backend = bpf_map_lookup_elem(&backends, &id);
	if (!backend || !(backend->flags & BACKEND_USED) || backend->generation != kept->generation)
		return 0;
	if (!(backend->flags & BACKEND_CLASS << class))
		return 0;
	if (kept->last_seen != now)
		kept->last_seen = now;
	return id;
}

/* Lets a client keep a backend. Best effort: without room it is selected for anew next time. */
static __always_inline void affinity_store(const struct affinity_key *key, __u32 id, __u32 generation)
{
	struct affinity kept = { .backend = id, .generation = generation, .last_seen = now_ticks() };

	bpf_map_update_elem(&affinities, key, &kept, BPF_ANY);
}

#endif
