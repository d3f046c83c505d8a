/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The tables of flows that begin: arrays of sets with a few entries each. A flow is in the set that its hash names or in none; where all are
 * taken, claim.h says which one goes. Nobody waits for a lock: docs/adr/0037-sets-of-flows-that-begin.md.
 */
#ifndef WEIR_OPENINGS_H
#define WEIR_OPENINGS_H

#include <linux/errno.h>

#include "claim.h"

/*
 * Asks for all memory that a new entry of a set may need, its displaced words' too. It comes together then, while the program goes on, and not
 * line by line behind exchanges that each wait for the writes before them.
 */
static __always_inline void opening_fetch_set(struct opening_head *head, __u32 set, const struct opening_kind kind)
{
	fetch_words((const word *)head, sizeof(*head) / sizeof(word) + OPENING_WAYS * (kind.words + kind.stride));
	displaced_fetch(set, kind.is_flow);
}

/* The same for a hash of a table's key. */
static __always_inline void opening_fetch(void *table, __u64 hash, const struct opening_kind kind)
{
	__u32 set = opening_set(hash);
	struct opening_head *head = bpf_map_lookup_elem(table, &set);

	if (head)
		opening_fetch_set(head, set, kind);
}

/* Flags of a store over an answer's entry that was read, if it is still the one that was written as number turn of its set. */
#define OPENING_OVER(turn) (BPF_EXIST | (__u64)(turn) << 32)

/*
 * Writes an entry. flags: BPF_ANY, BPF_NOEXIST, or OPENING_OVER(). Of two CPUs that write the same new key at once each sees the other's: with BPF_ANY
 * the entry in the first of the two places stays, with the others neither does or the one that was seen in time.
 * Of two that write over the same one, whoever is second does not. Returns 0, -EEXIST, or -EBUSY if other CPUs are writing all entries of the set, or the
 * one that is to be written over is gone.
 */
static __always_inline int opening_store(void *table, const word *key, const word *value, __u64 flags,
					 const struct opening_kind kind)
{
	const struct config *config = config_get();
	__u64 hash = opening_hash(key, kind.words, config->hash_seed, opening_step);
	__u32 set = opening_set(hash), tag = opening_tag(hash);
	struct opening_head *head = bpf_map_lookup_elem(table, &set);
	const bool alone = flags & (BPF_NOEXIST | BPF_EXIST);
	int way, twin;
	word *to;

	if (!head)
		return -EBUSY;
	/* Of a flow its client's SYN has asked for them. */
	if (!kind.is_flow)
		opening_fetch_set(head, set, kind);
	way = opening_way(head, key, tag, OPENING_WAYS, kind);
	if (way >= 0 && flags & BPF_NOEXIST)
		return -EEXIST;
	if (way < 0 && !(flags & BPF_EXIST))
		way = opening_claim_of(head, set, value, config->tcp_idle, kind);
	else if (way >= 0 && !opening_take(head, way, tag))
		way = -1;
	if (way < 0)
		return -EBUSY;
	way &= OPENING_WAYS - 1;
	/* While it is taken nobody else writes it. */
	if (!kind.is_flow && flags & BPF_EXIST && head->turn[way] != flags >> 32) {
		opening_give_back(head, way, tag, opening_seen(head, way, kind));
		return -EBUSY;
	}
	to = opening_value(head, way, kind);
	for (__u32 i = 0; i < kind.size; i++)
		to[i] = value[i];
	to = opening_key(head, way, kind);
	for (__u32 i = 0; i < kind.words; i++)
		to[i] = key[i];
	/* Nobody writes over a flow by what it was. */
	if (!kind.is_flow)
		order_reads(head);
	opening_requeue(head, way, value[kind.last_seen]);
	/* Whoever sees the tag sees the rest: an exchange is a barrier. */
	__sync_lock_test_and_set(opening_tag_of(head, way), tag);
	twin = opening_way(head, key, tag, way, kind);
	if (twin < 0)
		return 0;
	if (!alone && way < twin)
		way = twin;
	__sync_val_compare_and_swap(opening_tag_of(head, way), tag, OPENING_FREE);
	return alone ? -EEXIST : 0;
}

/* How many of a set with an entry are of flows that have settled. */
static __always_inline int opening_settled(void *table, __u32 place, const struct opening_kind kind)
{
	__u32 set = place / OPENING_WAYS;
	struct opening_head *head = bpf_map_lookup_elem(table, &set);
	const word *value = head ? opening_value(head, 0, kind) : NULL;
	int settled = 0;

#pragma clang loop unroll(disable)
	for (__u32 way = 0; value && way < OPENING_WAYS; way++, value += kind.stride) {
		if (head->tag[way] != OPENING_FREE && *(const __u16 *)(value + kind.flags) & FLOW_SETTLED)
			settled++;
	}
	return settled;
}

/* Forgets the entry with a key, if there is one that nobody is writing. */
static __always_inline void opening_drop(void *table, const word *key, const struct opening_kind kind)
{
	const struct config *config = config_get();
	__u64 hash = opening_hash(key, kind.words, config->hash_seed, opening_step);
	__u32 set = opening_set(hash), tag = opening_tag(hash);
	struct opening_head *head = bpf_map_lookup_elem(table, &set);
	int way = head ? opening_way(head, key, tag, OPENING_WAYS, kind) : -1;

	if (way >= 0)
		__sync_val_compare_and_swap(opening_tag_of(head, way), tag, OPENING_FREE);
}

/*
 * A table's own functions. Those that search are the verifier's and the kernel's, too: it walks them once, and all callers
 * share their stack. _find returns a place or -1, _store what opening_store() does, _drop nothing of use.
 */
#define OPENING_TABLE(table, set_type, key_type, value_type, whom)                                                     \
	__noinline int table##_find(const struct key_type *key)                                                        \
	{                                                                                                              \
		return key ? opening_find(&table, (const word *)key,                                                   \
					  OPENING_KIND(set_type, key_type, value_type, whom))                          \
			   : -1;                                                                                       \
	}                                                                                                              \
                                                                                                                       \
	__noinline int table##_store(const struct key_type *key, const struct value_type *value, __u64 flags)          \
	{                                                                                                              \
		return key && value ? opening_store(&table, (const word *)key, (const word *)value, flags,             \
						    OPENING_KIND(set_type, key_type, value_type, whom))                \
				    : -EINVAL;                                                                         \
	}                                                                                                              \
                                                                                                                       \
	__noinline int table##_drop(const struct key_type *key)                                                        \
	{                                                                                                              \
		if (key)                                                                                               \
			opening_drop(&table, (const word *)key, OPENING_KIND(set_type, key_type, value_type, whom));   \
		return 0;                                                                                              \
	}                                                                                                              \
                                                                                                                       \
	__noinline int table##_settled(const struct key_type *key)                                                     \
	{                                                                                                              \
		int place = key ? table##_find(key) : -1;                                                              \
                                                                                                                       \
		return place < 0 ? OPENING_WAYS                                                                        \
				 : opening_settled(&table, place, OPENING_KIND(set_type, key_type, value_type, whom)); \
	}                                                                                                              \
                                                                                                                       \
	/* turn: NULL, or for the number that it was written as, which is read before the rest of it. */               \
	static __always_inline struct value_type *table##_read(const struct key_type *key, __u32 *turn)                \
	{                                                                                                              \
		int place = table##_find(key);                                                                         \
		__u32 number = (__u32)place / OPENING_WAYS;                                                            \
		struct set_type *set = place < 0 ? NULL : bpf_map_lookup_elem(&table, &number);                        \
                                                                                                                       \
		if (!set)                                                                                              \
			return NULL;                                                                                   \
		/* The verifier wants the sum after the question. */                                                   \
		barrier_var(set);                                                                                      \
		if (turn) {                                                                                            \
			*turn = *(volatile __u32 *)&set->head.turn[(__u32)place % OPENING_WAYS];                       \
			/* Whoever sees the number sees what was written under it. */                                  \
			order_reads(&set->head);                                                                       \
		}                                                                                                      \
		return (struct value_type *)&set->value[(__u32)place % OPENING_WAYS];                                  \
	}                                                                                                              \
                                                                                                                       \
	static __always_inline struct value_type *table##_at(const struct key_type *key)                               \
	{                                                                                                              \
		return table##_read(key, NULL);                                                                        \
	}

OPENING_TABLE(openings4, opening_set4, flow_key4, flow, service)
OPENING_TABLE(openings6, opening_set6, flow_key6, flow, service)
OPENING_TABLE(awaited4, awaited_set4, flow_key4, reply, backend)
OPENING_TABLE(awaited6, awaited_set6, flow_key6, reply, backend)

#endif
