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
#include "word.h"

/* Sets of each table; the loader says how many it has made. */
const volatile __u32 opening_sets = 65536 / OPENING_WAYS;

/* A way of a set in four, above it the set: what look-ups return. Negative: there is none. */
#define OPENING_PLACE(set, way) ((int)((set) * OPENING_WAYS + (way)))

/* What a table's entries look like, which the compiler knows. */
struct opening_kind {
	__u32 words;	 /* of a key */
	__u32 size;	 /* of a value, in words */
	__u32 stride;	 /* from one to the next, in words */
	__u32 last_seen; /* of a value, in words from its beginning */
	__u32 flags;	 /* the same; they begin a word */
	__u32 to;	 /* the same of whom the flow is to */
};

#define OPENING_KIND(set_type, key_type, value_type, whom)                                                             \
	(struct opening_kind)                                                                                          \
	{                                                                                                              \
		.words = sizeof(struct key_type) / sizeof(word), .size = sizeof(struct value_type) / sizeof(word),     \
		.stride = sizeof(((struct set_type *)0)->value[0]) / sizeof(word),                                     \
		.last_seen = offsetof(struct value_type, last_seen) / sizeof(word),                                    \
		.flags = offsetof(struct value_type, flags) / sizeof(word),                                            \
		.to = offsetof(struct value_type, whom) / sizeof(word),                                                \
	}

/*
 * Hash of a key: sums of products of pairs, each word with a number of its own mixed in that nobody outside knows (Thorup,
 * "High Speed Hashing for Integers and Strings", 3.5). Ports of one client that follow each other would be a lattice in these sums,
 * and some sets would get many of them: the last product spreads them. The upper half names the set, the lower one is the tag.
 */
static __always_inline __u64 opening_hash(const word *key, const __u32 words, __u64 seed)
{
	__u64 odd = 0x9e3779b97f4a7c15ull, hash = seed;

	for (__u32 i = 0; i < words; i += 2) {
		hash += (key[i] + (seed ^ odd)) * (key[i + 1] + (seed ^ (odd * 3)));
		odd *= 5;
	}
	return (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull;
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
	return (word *)(head + 1) + OPENING_WAYS * kind.words + (way & (OPENING_WAYS - 1)) * kind.stride;
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

/* The tag of an entry. What the compiler knows of its number the verifier may not: the bound is put before its eyes. */
static __always_inline __u32 *opening_tag_of(struct opening_head *head, __u32 way)
{
	barrier_var(way);
	return &head->tag[way & (OPENING_WAYS - 1)];
}

/* Takes an entry that nobody else is writing. Returns whether it could. */
static __always_inline bool opening_take(struct opening_head *head, __u32 way, __u32 tag)
{
	return tag != OPENING_BUSY && __sync_val_compare_and_swap(opening_tag_of(head, way), tag, OPENING_BUSY) == tag;
}

/* Makes an entry the last one to go, of a tick in which it was seen. */
static __always_inline void opening_requeue(struct opening_head *head, __u32 way, __u32 seen)
{
	way &= OPENING_WAYS - 1;
	head->born[way] = seen;
	head->turn[way] = head->next++;
}

/* What an entry is to who wants a place: the upper bits of its rank, above how many were written since. */
enum opening_rank {
	OPENING_RANK_SPARED_USED = 0, /* or being written */
	OPENING_RANK_SPARED = 1,
	OPENING_RANK_USED = 2,
	OPENING_RANK_UNUSED = 3,
	OPENING_RANK_ENDED = 4,
	OPENING_RANK_FREE = 5,
	OPENING_RANK_SHIFT = 29,
};

#define OPENING_AGE ((1u << OPENING_RANK_SHIFT) - 1)

/* The tick in which an entry was seen last. */
static __always_inline __u32 opening_seen(struct opening_head *head, __u32 way, const struct opening_kind kind)
{
	return opening_value(head, way, kind)[kind.last_seen];
}

/* What is marked of a set's entries: a rank for each, and above that the number that the next one gets which is written. */
enum opening_marks {
	OPENING_MARK = 4, /* bits of a rank */
	OPENING_NEXT = OPENING_MARK * OPENING_WAYS,
	OPENING_EACH = 0x1111, /* times a rank: all have it */
};

/* Whether an entry was written since the others were marked: what was marked of it was the one's before. */
static __always_inline bool opening_is_new(struct opening_head *head, __u32 way, __u32 marks)
{
	/* By as many bits as are left of the number. No room on the stack is taken for them. */
	barrier_var(marks);
	return (__s32)((head->turn[way] << OPENING_NEXT) - (marks & -(1u << OPENING_NEXT))) >= 0;
}

/* The higher, the sooner an entry goes. */
static __always_inline __u32 opening_rank(struct opening_head *head, __u32 way, __u32 marks)
{
	__u32 age;

	/* Addresses that are made anew each time take no room on the stack. */
	barrier_var(head);
	barrier_var(marks);
	age = (head->next - head->turn[way]) & OPENING_AGE;
	if (head->tag[way] == OPENING_BUSY)
		return 0;
	if (head->tag[way] == OPENING_FREE)
		return (__u32)OPENING_RANK_FREE << OPENING_RANK_SHIFT;
	if (opening_is_new(head, way, marks))
		return (__u32)OPENING_RANK_UNUSED << OPENING_RANK_SHIFT | age;
	return marks >> way * OPENING_MARK << OPENING_RANK_SHIFT | age;
}

/* What opening_claim() returns beside the entry: a bit for each that is passed over, from this one on. */
#define OPENING_PASSED 8
/* The same: those go to the end of the line. */
#define OPENING_LAST 16

/*
 * Which entries are passed over, once, for one with a rank: those that were used since they were written, and whose turn it was before;
 * of those that are spared none for one that is not.
 */
static __always_inline int opening_passed(struct opening_head *head, __u32 rank, __u32 marks)
{
	/* Where all were used all are passed over, and the oldest goes. */
	const bool all = !(rank >> OPENING_RANK_SHIFT & 1);
	/* Ranks above the first one, and so many. */
	const __u32 from = all ? rank & ~OPENING_AGE : rank - (1u << OPENING_RANK_SHIFT);
	const __u32 count = all ? OPENING_AGE : OPENING_AGE - (rank & OPENING_AGE);
	__u32 passed = 0;

#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		if (opening_rank(head, way, marks) - from - 1 < count)
			passed |= 1 << way;
	}
	return passed << OPENING_PASSED | (all ? 0 : OPENING_LAST);
}

/*
 * Takes an entry for a new key: a free one, else that of a flow which has ended, else that which was written longest ago, of those that are
 * not spared before the others. One that
 * was used since is passed over once, so that a client which only ever sends keeps it. A function of its own, which the verifier
 * walks once for all tables. Returns the entry and which are passed over, or -1: others are writing all of them.
 */
__noinline int opening_claim(struct opening_head *head, __u32 marks)
{
	__u32 most = 0, first = 0, seen = OPENING_BUSY;

	if (!head)
		return -1;
#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		__u32 tag = head->tag[way], rank = opening_rank(head, way, marks);

		if (rank <= most)
			continue;
		most = rank;
		first = way;
		seen = tag;
	}
	if (!opening_take(head, first, seen)) {
		/* Another CPU was sooner: what it has written is the last one to go. */
		__u32 others = OPENING_WAYS - 1;

#pragma clang loop unroll(disable)
		while (others && !opening_take(head, first + others, head->tag[(first + others) & (OPENING_WAYS - 1)]))
			others--;
		if (!others)
			return -1;
		first = (first + others) & (OPENING_WAYS - 1);
	}
	return first | (most >> OPENING_RANK_SHIFT <= OPENING_RANK_UNUSED ? opening_passed(head, most, marks) : 0);
}

/*
 * What is marked of a set for a flow that begins with a value. theirs: the set's first value; the next one begins so many words after it,
 * and what is read of it lies in them. Entries to somebody else are spared, so that a flood takes the places of its own SYNs. Where the others have most of the set, theirs
 * go, and those to the same are spared. Of long ago none is. A function of its own, as the one that stores has no stack to spare.
 */
static __noinline __u32 opening_marks(const struct opening_head *head, const word *theirs, const word *value,
				      __u32 stride, __u32 at)
{
	/* The number is read before the rest. */
	__u32 marks = *(const volatile __u32 *)&head->next << OPENING_NEXT, spared = 0;
	const __u32 last_seen = at & 0xff, flags = at >> 8 & 0xff, to = at >> 16;

#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++, theirs += stride) {
		__u32 seen = theirs[last_seen], rank = OPENING_RANK_UNUSED - (seen != head->born[way]);
		bool recent = value[last_seen] - seen <= OPENING_IDLE;

		if (*(const __u16 *)(theirs + flags) & FLOW_ENDED)
			rank = OPENING_RANK_ENDED;
		marks |= rank << way * OPENING_MARK;
		if (!recent || *(const __u32 *)(theirs + to) == *(const __u32 *)(value + to))
			continue;
		spared |= OPENING_RANK_USED << way * OPENING_MARK;
	}
	/* How many: the sum of all is in the upper mark. */
	if ((spared / OPENING_RANK_USED * OPENING_EACH >> (OPENING_NEXT - OPENING_MARK) & 7) >= OPENING_WAYS - 1)
		spared = ~spared & OPENING_RANK_USED * OPENING_EACH;
	return marks & ~spared;
}

/* Claims an entry for a value, by what the others' say now, and passes over. Returns the entry, or -1. */
static __always_inline int opening_claim_of(struct opening_head *head, const word *value,
					    const struct opening_kind kind)
{
	__u32 marks = opening_marks(head, opening_value(head, 0, kind), value, kind.stride,
				    kind.last_seen | kind.flags << 8 | kind.to << 16);
	int claimed = opening_claim(head, marks);

	if (claimed < 1 << OPENING_PASSED)
		return claimed;
#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		if (!(claimed >> OPENING_PASSED >> way & 1))
			continue;
		head->born[way] = opening_seen(head, way, kind);
		if (claimed & OPENING_LAST)
			head->turn[way] = head->next++;
	}
	return claimed & (OPENING_WAYS - 1);
}

/*
 * Writes an entry. flags: BPF_ANY, or BPF_NOEXIST. Of two CPUs that write the same new key at once each sees the other's: with BPF_ANY
 * the entry in the first of the two places stays, with BPF_NOEXIST neither does or the one that was seen in time.
 * Returns 0, -EEXIST, or -EBUSY if other CPUs are writing all entries of the set.
 */
static __always_inline int opening_store(void *table, const word *key, const word *value, __u64 flags,
					 const struct opening_kind kind)
{
	const struct config *config = config_get();
	__u64 hash = opening_hash(key, kind.words, config ? config->hash_seed : 0);
	__u32 set = opening_set(hash), tag = opening_tag(hash);
	struct opening_head *head = bpf_map_lookup_elem(table, &set);
	int way, twin;
	word *to;

	if (!head)
		return -EBUSY;
	way = opening_way(head, key, tag, OPENING_WAYS, kind);
	if (way >= 0 && flags & BPF_NOEXIST)
		return -EEXIST;
	if (way < 0)
		way = opening_claim_of(head, value, kind);
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
	opening_requeue(head, way, value[kind.last_seen]);
	/* Whoever sees the tag sees the rest: an exchange is a barrier. */
	__sync_lock_test_and_set(opening_tag_of(head, way), tag);
	twin = opening_way(head, key, tag, way, kind);
	if (twin < 0)
		return 0;
	if (!(flags & BPF_NOEXIST) && way < twin)
		way = twin;
	__sync_val_compare_and_swap(opening_tag_of(head, way), tag, OPENING_FREE);
	return flags & BPF_NOEXIST ? -EEXIST : 0;
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
		return (struct value_type *)&set->value[(__u32)place % OPENING_WAYS];                                  \
	}

OPENING_TABLE(openings4, opening_set4, flow_key4, flow, service)
OPENING_TABLE(openings6, opening_set6, flow_key6, flow, service)
OPENING_TABLE(awaited4, awaited_set4, flow_key4, reply, backend)
OPENING_TABLE(awaited6, awaited_set6, flow_key6, reply, backend)

#endif
