/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The tables of flows that begin: arrays of sets with a few entries each. A flow is in the set that its hash names or in none;
 * where all are taken, the one that was written longest ago goes, unless it was used since. Nobody waits for a lock:
 * docs/adr/0037-sets-of-flows-that-begin.md.
 */
#ifndef WEIR_OPENINGS_H
#define WEIR_OPENINGS_H

#include <linux/errno.h>

#include "config.h"

/* Keys and values are copied and compared by words, whatever they are made of. */
typedef __u32 __attribute__((may_alias)) word;

/* Sets of each table; the loader says how many it has made. */
const volatile __u32 opening_sets = 65536 / OPENING_WAYS;

/* A way of a set in four, above it the set: what look-ups return. Negative: there is none. */
#define OPENING_PLACE(set, way) ((int)((set) * OPENING_WAYS + (way)))

/* What a table's entries look like, which the compiler knows. */
struct opening_kind {
	__u32 words;	 /* of a key */
	__u32 size;	 /* of a value, in words */
	__u32 last_seen; /* of a value, in words from its beginning */
};

#define OPENING_KIND(key_type, value_type)                                                                             \
	(struct opening_kind)                                                                                          \
	{                                                                                                              \
		.words = sizeof(struct key_type) / sizeof(word), .size = sizeof(struct value_type) / sizeof(word),     \
		.last_seen = offsetof(struct value_type, last_seen) / sizeof(word),                                    \
	}

/*
 * Hash of a key: sums of products of pairs, each word with a number of its own mixed in that nobody outside knows (Thorup,
 * "High Speed Hashing for Integers and Strings", 3.5). The upper half names the set, the lower one is the tag.
 */
static __always_inline __u64 opening_hash(const word *key, const __u32 words, __u64 seed)
{
	__u64 odd = 0x9e3779b97f4a7c15ull, hash = seed;

	for (__u32 i = 0; i < words; i += 2) {
		hash += (key[i] + (seed ^ odd)) * (key[i + 1] + (seed ^ (odd * 3)));
		odd *= 5;
	}
	return hash ^ hash >> 32;
}

static __always_inline __u32 opening_tag(__u64 hash)
{
	__u32 tag = hash;

	return tag > OPENING_BUSY ? tag : tag + 2;
}

static __always_inline __u32 opening_set(__u64 hash)
{
	return (hash >> 32) * opening_sets >> 32;
}

/* The keys of a set, one after the other, and its values. */
static __always_inline word *opening_key(struct opening_head *head, __u32 way, const struct opening_kind kind)
{
	return (word *)(head + 1) + (way & (OPENING_WAYS - 1)) * kind.words;
}

static __always_inline word *opening_value(struct opening_head *head, __u32 way, const struct opening_kind kind)
{
	return (word *)(head + 1) + OPENING_WAYS * kind.words + (way & (OPENING_WAYS - 1)) * kind.size;
}

/* The entry with a key, other than one, or -1. */
static __always_inline int opening_way(struct opening_head *head, const word *key, __u32 tag, __u32 other,
				       const struct opening_kind kind)
{
#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		const word *there = opening_key(head, way, kind);
		__u32 differs = 0;

		if (way == other || head->tag[way] != tag)
			continue;
		for (__u32 i = 0; i < kind.words; i++)
			differs |= there[i] ^ key[i];
		if (!differs)
			return way;
	}
	return -1;
}

/* The place of a key in a table, or -1. */
static __always_inline int opening_find(void *table, const word *key, const struct opening_kind kind)
{
	const struct config *config = config_get();
	__u64 hash = opening_hash(key, kind.words, config ? config->hash_seed : 0);
	__u32 set = opening_set(hash);
	struct opening_head *head = bpf_map_lookup_elem(table, &set);
	int way = head ? opening_way(head, key, opening_tag(hash), OPENING_WAYS, kind) : -1;

	return way < 0 ? -1 : OPENING_PLACE(set, way);
}

/* Takes an entry that nobody else is writing. Returns whether it could. */
static __always_inline bool opening_take(struct opening_head *head, __u32 way, __u32 tag)
{
	return tag != OPENING_BUSY &&
	       __sync_val_compare_and_swap(&head->tag[way & (OPENING_WAYS - 1)], tag, OPENING_BUSY) == tag;
}

/*
 * Takes an entry for a new key: a free one, or that which was written longest ago. One that was used since is passed over once,
 * so that a client which only ever sends keeps it. Returns the entry, or -1: others are writing all of them.
 */
static __always_inline int opening_claim(struct opening_head *head, const struct opening_kind kind)
{
	__u32 first = head->next;

#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++)
		if (head->tag[way] == OPENING_FREE && opening_take(head, way, OPENING_FREE))
			return way;
#pragma clang loop unroll(disable)
	for (__u32 turn = 0; turn < 2 * OPENING_WAYS; turn++) {
		__u32 way = (first + turn) & (OPENING_WAYS - 1);
		__u32 seen = opening_value(head, way, kind)[kind.last_seen];

		if (turn < OPENING_WAYS && seen != head->born[way]) {
			head->born[way] = seen;
			continue;
		}
		if (!opening_take(head, way, head->tag[way]))
			continue;
		head->next = way + 1;
		return way;
	}
	return -1;
}

/*
 * Writes an entry. flags: BPF_ANY, or BPF_NOEXIST, with which of two CPUs that write the same key at once neither does both.
 * Returns 0, -EEXIST, or -EBUSY if other CPUs are writing all entries of the set.
 */
static __always_inline int opening_store(void *table, const word *key, const word *value, __u64 flags,
					 const struct opening_kind kind)
{
	const struct config *config = config_get();
	__u64 hash = opening_hash(key, kind.words, config ? config->hash_seed : 0);
	__u32 set = opening_set(hash), tag = opening_tag(hash);
	struct opening_head *head = bpf_map_lookup_elem(table, &set);
	word *to;
	int way;

	if (!head)
		return -EBUSY;
	way = opening_way(head, key, tag, OPENING_WAYS, kind);
	if (way >= 0 && flags & BPF_NOEXIST)
		return -EEXIST;
	if (way < 0)
		way = opening_claim(head, kind);
	else if (!opening_take(head, way, tag))
		way = -1;
	if (way < 0)
		return -EBUSY;
	way &= OPENING_WAYS - 1;
	to = opening_value(head, way, kind);
	for (__u32 i = 0; i < kind.size; i++)
		to[i] = value[i];
	to = opening_key(head, way, kind);
	for (__u32 i = 0; i < kind.words; i++)
		to[i] = key[i];
	head->born[way] = value[kind.last_seen];
	/* Whoever sees the tag sees the rest: an exchange is a barrier. */
	__sync_lock_test_and_set(&head->tag[way], tag);
	if (!(flags & BPF_NOEXIST) || opening_way(head, key, tag, way, kind) < 0)
		return 0;
	__sync_val_compare_and_swap(&head->tag[way], tag, OPENING_FREE);
	return -EEXIST;
}

/* Forgets the entry with a key, if there is one that nobody is writing. */
static __always_inline void opening_drop(void *table, const word *key, const struct opening_kind kind)
{
	const struct config *config = config_get();
	__u64 hash = opening_hash(key, kind.words, config ? config->hash_seed : 0);
	__u32 set = opening_set(hash), tag = opening_tag(hash);
	struct opening_head *head = bpf_map_lookup_elem(table, &set);
	int way = head ? opening_way(head, key, tag, OPENING_WAYS, kind) : -1;

	if (way >= 0)
		__sync_val_compare_and_swap(&head->tag[way & (OPENING_WAYS - 1)], tag, OPENING_FREE);
}

/*
 * A table's own functions. Those that search are the verifier's and the kernel's, too: it walks them once, and all callers
 * share their stack. _find returns a place or -1, _store what opening_store() does, _drop nothing of use.
 */
#define OPENING_TABLE(table, set_type, key_type, value_type)                                                           \
	__noinline int table##_find(const struct key_type *key)                                                        \
	{                                                                                                              \
		return key ? opening_find(&table, (const word *)key, OPENING_KIND(key_type, value_type)) : -1;         \
	}                                                                                                              \
                                                                                                                       \
	__noinline int table##_store(const struct key_type *key, const struct value_type *value, __u64 flags)          \
	{                                                                                                              \
		return key && value ? opening_store(&table, (const word *)key, (const word *)value, flags,             \
						    OPENING_KIND(key_type, value_type))                                \
				    : -EINVAL;                                                                         \
	}                                                                                                              \
                                                                                                                       \
	__noinline int table##_drop(const struct key_type *key)                                                        \
	{                                                                                                              \
		if (key)                                                                                               \
			opening_drop(&table, (const word *)key, OPENING_KIND(key_type, value_type));                   \
		return 0;                                                                                              \
	}                                                                                                              \
                                                                                                                       \
	static __always_inline struct value_type *table##_at(const struct key_type *key)                               \
	{                                                                                                              \
		int place = table##_find(key);                                                                         \
		__u32 number = (__u32)place / OPENING_WAYS;                                                            \
		struct set_type *set = place < 0 ? NULL : bpf_map_lookup_elem(&table, &number);                        \
                                                                                                                       \
		if (!set)                                                                                              \
			return NULL;                                                                                   \
		/* The verifier wants the sum after the question. */                                                   \
		barrier_var(set);                                                                                      \
		return &set->value[(__u32)place % OPENING_WAYS];                                                       \
	}

OPENING_TABLE(openings4, opening_set4, flow_key4, flow)
OPENING_TABLE(openings6, opening_set6, flow_key6, flow)
OPENING_TABLE(awaited4, awaited_set4, flow_key4, reply)
OPENING_TABLE(awaited6, awaited_set6, flow_key6, reply)

#endif
