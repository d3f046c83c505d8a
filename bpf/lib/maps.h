/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * All maps, and nothing else. Sizes are defaults; the loader sets them from its options before it creates the maps.
 * The arrays that the control plane rewrites are mmapable: a weight change is a store, not a system call.
 */
#ifndef WEIR_MAPS_H
#define WEIR_MAPS_H

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "abi.h"

/*
 * A look-up by what a function of its own was given a pointer to: Linux before 6.2 takes no key out of a function's argument, so it
 * is copied to the stack.
 */
#define lookup_by(map, key)                                                                                            \
	({                                                                                                             \
		typeof(key) copy = (key);                                                                              \
		bpf_map_lookup_elem(map, &copy);                                                                       \
	})

#define MMAPABLE_ARRAY(map, value_type, size)                                                                          \
	struct {                                                                                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                                      \
		__uint(max_entries, size);                                                                             \
		__uint(map_flags, BPF_F_MMAPABLE);                                                                     \
		__type(key, __u32);                                                                                    \
		__type(value, struct value_type);                                                                      \
	} map SEC(".maps")

/*
 * A map of one value that programs have as a variable: where it lies they know, and look nothing up. The loader has the map stand for the
 * section of the variable (docs/adr/0062-what-has-one-value-is-a-variable.md); to libbpf the two are strangers.
 */
#define VARIABLE(map, value_type)                                                                                      \
	MMAPABLE_ARRAY(map, value_type, 1);                                                                            \
	struct value_type map##_value SEC(".data." #map)

#define MAP(map, kind, flags, key_type, value_type, size)                                                              \
	struct {                                                                                                       \
		__uint(type, kind);                                                                                    \
		__uint(max_entries, size);                                                                             \
		__uint(map_flags, flags);                                                                              \
		__type(key, key_type);                                                                                 \
		__type(value, value_type);                                                                             \
	} map SEC(".maps")

/* What the agent tells the programs about the node. */
VARIABLE(config, config);

/* Written by the control plane. */
MMAPABLE_ARRAY(services, service, 32768);
MMAPABLE_ARRAY(backends, backend, 262144);
MMAPABLE_ARRAY(lines, line, 65536);
MAP(frontends4, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, struct frontend_key4, struct frontend, 131072);
MAP(frontends6, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, struct frontend_key6, struct frontend, 131072);

MMAPABLE_ARRAY(frontend_filter, filter_word, (1 << (FILTER_BITS - FILTER_WORD_BITS)));

/* Clients that load balancer addresses admit, where they do not admit all. */
MAP(source_ranges, BPF_MAP_TYPE_LPM_TRIE, BPF_F_NO_PREALLOC, struct source_range_key, struct source_range, 16384);

/* Names, for people; no program reads them. */
MAP(service_names, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, __u32, struct service_name, 32768);
MAP(node_names, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, __u32, struct node_name, 8192);

/* Interfaces that XDP may redirect to. */
MAP(devices, BPF_MAP_TYPE_DEVMAP_HASH, 0, __u32, struct device, 256);

/* Interfaces that packets may take past the host's stack. */
MAP(shortcuts, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, __u32, struct shortcut, 4096);
/* Written by the programs: the interface that frames of a pod came from last, by its MAC address in the key's first bytes. */
MAP(pod_macs, BPF_MAP_TYPE_LRU_HASH, 0, __u64, __u32, 1024);

/* Pods whose TCP sockets are translated, by the id of their cgroup. */
MAP(hooked_pods, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, __u64, struct hooked_pod, 4096);

/* The source ports that new flows may take, and those at which answers may arrive, by port number. */
MMAPABLE_ARRAY(snat_next, snat_next, (1 << (16 - SNAT_NEXT_BITS)));
MMAPABLE_ARRAY(snat_ports, snat_ports, (1 << (16 - SNAT_WORD_BITS)));

/* The node's interfaces, by index; the value is not used. */
MAP(nics, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, __u32, __u32, 256);

/* What opens the packets that other nodes have wrapped: this node's endpoints, and who the others are. */
MAP(local_endpoints, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, struct local_key, struct local_endpoint, 65536);
MAP(other_nodes, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, struct addr, struct other_node, 16384);

/* Written by the programs. */
MAP(flows4, BPF_MAP_TYPE_LRU_HASH, 0, struct flow_key4, struct flow, 131072);
MAP(flows6, BPF_MAP_TYPE_LRU_HASH, 0, struct flow_key6, struct flow6, 131072);
MAP(replies4, BPF_MAP_TYPE_LRU_HASH, 0, struct flow_key4, struct reply, 131072);
MAP(replies6, BPF_MAP_TYPE_LRU_HASH, 0, struct flow_key6, struct reply, 131072);
VARIABLE(going_filter, going_filter);
/* Flows that begin, have settled, or have ended. A flood fills these and evicts no other. */
MMAPABLE_ARRAY(openings4, opening_set4, 65536 / OPENING_WAYS);
MMAPABLE_ARRAY(openings6, opening_set6, 65536 / OPENING_WAYS);
MMAPABLE_ARRAY(awaited4, awaited_set4, 65536 / OPENING_WAYS);
MMAPABLE_ARRAY(awaited6, awaited_set6, 65536 / OPENING_WAYS);
MMAPABLE_ARRAY(first_syns, first_syns, 65536 / OPENING_WAYS);
/* Source ports that clients' ports had. */
MMAPABLE_ARRAY(snat_kept, snat_kept, 65536 / OPENING_WAYS);
/* Where connections go that a flood has left nothing else of, and which answers have lost their entry. */
MMAPABLE_ARRAY(displaced, displaced, 65536 / OPENING_WAYS);
MAP(routes, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u32, struct route, (1 << ROUTE_BITS));
MAP(paces, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u32, struct pace, 1);
MAP(affinities, BPF_MAP_TYPE_LRU_HASH, 0, struct affinity_key, struct affinity, 65536);
MAP(fragments, BPF_MAP_TYPE_LRU_HASH, 0, struct fragment_key, struct fragment, 8192);
/* Pieces that came before the first one, by their source; and of each CPU a first one, while those that waited, or were cut off it, take its place. */
MMAPABLE_ARRAY(held_pieces, held_piece, 512);
MAP(first_pieces, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u32, struct held_piece, 2);
MAP(socket_peers, BPF_MAP_TYPE_LRU_HASH, 0, struct socket_key, struct socket_peer, 65536);
/* In the sockets themselves. */
MAP(connection_peers, BPF_MAP_TYPE_SK_STORAGE, BPF_F_NO_PREALLOC, int, struct connection_peer, 0);
MMAPABLE_ARRAY(backend_counters, backend_counters, 262144);
MMAPABLE_ARRAY(service_counters, service_counters, 32768);
MMAPABLE_ARRAY(snat_counters, snat_counter, SNAT_COUNTERS);

/* Index: hook * REASON_COUNT + reason. */
MAP(counters, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u32, struct counter, (HOOK_COUNT * REASON_COUNT));

/* The backend of a slot, or NULL: the slot is another's by now. */
static __always_inline const struct backend *backend_at(__u32 slot, __u32 generation)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &slot);

	return backend && backend->generation == generation ? backend : NULL;
}

/*
 * Most enumerations are used as plain numbers, so the compiler would leave them out of BTF, from which crates/abi compares
 * every constant. A function that mentions them all keeps them in. Nothing calls it, so it never gets into the kernel.
 */
struct enumerations {
	enum abi abi;
	enum frontend_kind frontend_kind;
	enum traffic_class traffic_class;
	enum service_flags service_flags;
	enum backend_flags backend_flags;
	enum flow_flags flow_flags;
	enum going going;
	enum heard heard;
	enum fragment_state fragment_state;
	enum held_state held_state;
	enum config_flags config_flags;
	enum shortcut_kind shortcut_kind;
	enum hook hook;
	enum reason reason;
};

int keep_enumerations(const struct enumerations *all __attribute__((unused)))
{
	return 0;
}

#endif
