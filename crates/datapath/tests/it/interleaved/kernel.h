/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A kernel for bpf/lib, compiled for this machine: its helpers, its maps, and another CPU that comes between two steps. A step is a
 * load or a store, which the compiler tells of (-fsanitize-coverage=trace-loads,trace-stores), an exchange, or what is done with a map.
 */
#ifndef INTERLEAVED_KERNEL_H
#define INTERLEAVED_KERNEL_H

#include <string.h>
#include <sys/mman.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

/* Of what is no part of either's work, or all of a step. */
#define AT_ONCE __attribute__((noinline, no_sanitize("coverage")))

static void meanwhile(void);
static void *map_lookup(void *map, const void *key);
static long map_update(void *map, const void *key, const void *value, __u64 flags);
static long map_delete(void *map, const void *key);
static long repeat(__u32 rounds, void *round, void *state);
static __u64 ticks, nanoseconds;

#define bpf_map_lookup_elem(map, key) (meanwhile(), map_lookup((void *)(map), key))
#define bpf_map_update_elem(map, key, value, flags) (meanwhile(), map_update((void *)(map), key, value, flags))
#define bpf_map_delete_elem(map, key) (meanwhile(), map_delete((void *)(map), key))
#define __sync_val_compare_and_swap(at, old, new) (meanwhile(), __sync_val_compare_and_swap(at, old, new))
#define __sync_lock_test_and_set(at, new) (meanwhile(), __sync_lock_test_and_set(at, new))
#define __sync_fetch_and_or(at, bits) (meanwhile(), __sync_fetch_and_or(at, bits))
#define __sync_fetch_and_and(at, bits) (meanwhile(), __sync_fetch_and_and(at, bits))
#define bpf_loop(rounds, round, state, flags) repeat(rounds, round, state)
/* Time stands still but for what a scenario lets pass. */
#define bpf_jiffies64() (ticks << tick_shift)
#define bpf_ktime_get_ns() nanoseconds
#define bpf_get_prandom_u32() 4
/* What becomes of the frame is others' business. */
#define bpf_skb_store_bytes(...) 0
#define bpf_skb_load_bytes(...) 0
#define bpf_skb_adjust_room(...) 0
#define bpf_l3_csum_replace(...) 0
#define bpf_l4_csum_replace(...) 0
#define bpf_csum_diff(...) 0
#define bpf_fib_lookup(...) BPF_FIB_LKUP_RET_SUCCESS
#define bpf_redirect_neigh(...) TC_ACT_REDIRECT

#include "lib/ctx_tc.h"
/* The context comes first. */
#include "lib/egress.h"

/* ---- the other CPU ------------------------------------------------------------------------------------------- */

typedef void (*work_t)(void);

static work_t other;
static int steps_until_other;

/* What happens before a step of either. */
static AT_ONCE void meanwhile(void)
{
	work_t work = other;

	if (!work || steps_until_other--)
		return;
	other = NULL;
	work();
}

#define ACCESS(size)                                                                                                   \
	void __sanitizer_cov_load##size(const void *at __attribute__((unused)))                                        \
	{                                                                                                              \
		meanwhile();                                                                                           \
	}                                                                                                              \
                                                                                                                       \
	void __sanitizer_cov_store##size(const void *at __attribute__((unused)))                                       \
	{                                                                                                              \
		meanwhile();                                                                                           \
	}

ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

/* Functions are no steps; the compiler does not tell of accesses alone. */
void __sanitizer_cov_trace_pc(void)
{
}

/* ---- the maps ------------------------------------------------------------------------------------------------ */

#define ENTRIES 16
/* Slots; the first one is nobody's. */
#define BACKENDS 3

/* A hash table. What was deleted keeps its place, as somebody may still be reading it. */
struct table {
	void *map;
	__u32 key_size, value_size, used;
	bool there[ENTRIES];
	__u8 key[ENTRIES][sizeof(struct flow_key6)];
	__u8 value[ENTRIES][sizeof(struct reply)];
};

static struct table tables[] = {
	{ .map = &flows4, .key_size = sizeof(struct flow_key4), .value_size = sizeof(struct flow) },
	{ .map = &flows6, .key_size = sizeof(struct flow_key6), .value_size = sizeof(struct flow6) },
	{ .map = &replies4, .key_size = sizeof(struct flow_key4), .value_size = sizeof(struct reply) },
	{ .map = &replies6, .key_size = sizeof(struct flow_key6), .value_size = sizeof(struct reply) },
};
#define TABLES (sizeof(tables) / sizeof(*tables))

/* All flows that begin meet in one set. */
static struct {
	struct opening_set4 openings4;
	struct opening_set6 openings6;
	struct awaited_set4 awaited4;
	struct awaited_set6 awaited6;
	struct backend_counters backend[BACKENDS];
	struct service_counters service;
	struct snat_counter turn;
	struct snat_kept kept;
	struct displaced displaced;
	struct pace pace;
} written;

static struct {
	struct frontend frontend;
	struct filter_word filter;
	struct service service;
	struct backend backend[BACKENDS];
	struct snat_ports ports;
	struct snat_next next[1 << (16 - SNAT_NEXT_BITS)];
} given;

static AT_ONCE struct table *table_of(const void *map)
{
	for (unsigned int i = 0; i < TABLES; i++)
		if (tables[i].map == map)
			return &tables[i];
	return NULL;
}

/* Where a key is in a table, or -1. */
static AT_ONCE int place_in(const struct table *table, const void *key)
{
	for (__u32 i = 0; i < table->used; i++)
		if (table->there[i] && !memcmp(table->key[i], key, table->key_size))
			return i;
	return -1;
}

static AT_ONCE void *map_lookup(void *map, const void *key)
{
	const struct {
		void *map, *value;
	} single[] = {
		{ &openings4, &written.openings4 },	 { &openings6, &written.openings6 },
		{ &awaited4, &written.awaited4 },	 { &awaited6, &written.awaited6 },
		{ &service_counters, &written.service }, { &snat_counters, &written.turn },
		{ &snat_kept, &written.kept },		 { &paces, &written.pace },
		{ &frontends4, &given.frontend },	 { &frontends6, &given.frontend },
		{ &frontend_filter, &given.filter },	 { &services, &given.service },
		{ &snat_ports, &given.ports },		 { &displaced, &written.displaced },
	};
	struct table *table = table_of(map);
	int place = table ? place_in(table, key) : -1;

	for (unsigned int i = 0; i < sizeof(single) / sizeof(*single); i++)
		if (single[i].map == map)
			return single[i].value;
	if (map == &snat_next)
		return &given.next[*(const __u32 *)key];
	if (map == &backends)
		return &given.backend[*(const __u32 *)key];
	if (map == &backend_counters)
		return &written.backend[*(const __u32 *)key];
	return place < 0 ? NULL : table->value[place];
}

static AT_ONCE long map_update(void *map, const void *key, const void *value, __u64 flags)
{
	struct table *table = table_of(map);
	int place = table ? place_in(table, key) : -1;

	if (!table || (place < 0 && table->used == ENTRIES))
		return -ENOMEM;
	if (place >= 0 && flags & BPF_NOEXIST)
		return -EEXIST;
	if (place < 0)
		place = table->used++;
	memcpy(table->key[place], key, table->key_size);
	memcpy(table->value[place], value, table->value_size);
	table->there[place] = true;
	return 0;
}

static AT_ONCE long map_delete(void *map, const void *key)
{
	struct table *table = table_of(map);
	int place = table ? place_in(table, key) : -1;

	if (place < 0)
		return -ENOENT;
	table->there[place] = false;
	return 0;
}

static long repeat(__u32 rounds, void *round, void *state)
{
	for (__u32 i = 0; i < rounds; i++)
		if (((long (*)(__u32, void *))round)(i, state))
			return i + 1;
	return rounds;
}

#endif
