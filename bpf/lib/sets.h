/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sets of a few entries each, which are the elements of an array: what the hash of a key names, and what lies where in it.
 * docs/adr/0037-sets-of-flows-that-begin.md
 */
#ifndef WEIR_SETS_H
#define WEIR_SETS_H

#include "config.h"
#include "word.h"

/* Sets of each table, and from one to the next in the upper half of a hash; the loader says how many it has made. */
const volatile __u32 opening_sets = 65536 / OPENING_WAYS;
const volatile __u32 opening_step = (1ull << 32) / (65536 / OPENING_WAYS);

/*
 * Bits of both ports, as they are in a key's word, which move a key by sets, and do not scatter it: a client's next connections are in the next sets,
 * whose memory is near. The lowest bit is not among them, as clients often keep to ports that are as odd (Linux, __inet_hash_connect()).
 * docs/adr/0061-next-ports-in-the-next-sets.md
 */
#define NEAR_BITS 6
#define NEAR_PORTS (((1u << NEAR_BITS) - 1) << 9 | ((1u << NEAR_BITS) - 1) << 25)

_Static_assert(sizeof(struct flow_key4) % (2 * sizeof(word)) == 0 && sizeof(struct flow_key6) % (2 * sizeof(word)) == 0,
	       "keys are made of pairs of words, the ports begin the last one");

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
	bool is_flow;	 /* of the flow itself, not of its answers */
};

#define OPENING_KIND(set_type, key_type, value_type, whom)                                                             \
	(struct opening_kind)                                                                                          \
	{                                                                                                              \
		.words = sizeof(struct key_type) / sizeof(word), .size = sizeof(struct value_type) / sizeof(word),     \
		.stride = sizeof(((struct set_type *)0)->value[0]) / sizeof(word),                                     \
		.last_seen = offsetof(struct value_type, last_seen) / sizeof(word),                                    \
		.flags = offsetof(struct value_type, flags) / sizeof(word),                                            \
		.to = offsetof(struct value_type, whom) / sizeof(word),                                                \
		.is_flow = __builtin_types_compatible_p(struct value_type, struct flow),                               \
	}

/* How far the ports of a key move it: by both, as the client's is the first one of a flow, and the second one of its answers. */
static __always_inline __u64 near_ports(word ports)
{
	return ((ports >> 8) + (ports >> 24)) >> 1 & ((1u << NEAR_BITS) - 1);
}

/*
 * Hash of a key: sums of products of pairs, each word with a number of its own mixed in that nobody outside knows (Thorup,
 * "High Speed Hashing for Integers and Strings", 3.5). Ports of one client that follow each other would be a lattice in these sums,
 * and some sets would get many of them: the last product spreads them. The upper half names the set, so many steps behind that of all keys with the
 * same ports but for NEAR_PORTS; the lower one, which has the ports whole, is the tag.
 */
static __always_inline __u64 opening_hash(const word *key, const __u32 words, __u64 seed, __u32 step)
{
	__u64 odd = GOLDEN_RATIO, hash = seed;
	word ports;

	for (__u32 i = 0; i < words - 2; i += 2) {
		hash += (key[i] + (seed ^ odd)) * (key[i + 1] + (seed ^ (odd * 3)));
		odd *= 5;
	}
	/* What comes later takes no room on the stack before. */
	barrier_var(hash);
	ports = key[words - 2];
	hash += ((ports & ~NEAR_PORTS) + (seed ^ odd)) * (key[words - 1] + (seed ^ (odd * 3)));
	hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull;
	return hash + (near_ports(ports) * step << 32) + (ports * GOLDEN_RATIO >> 32);
}

/* The tag by which a key of a hash is known in its set: none of those that say something else. */
static __always_inline __u32 opening_tag(__u64 hash)
{
	__u32 tag = hash;

	return tag > OPENING_BUSY ? tag : tag + 2;
}

/* The set that keys of a hash are in. */
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

/* Whether CPUs may read in another order than the programs say, as all but x86's do. The loader says so. */
const volatile __u32 reorders_reads = 0;

/*
 * What comes behind is read after the tags: whoever sees one sees what was written before it, and who finds none finds the entry where it has moved.
 * So it is with what an entry's number says, of which the writer has a barrier in front. Of BPF's instructions those are barriers which fetch what they change (Documentation/bpf/standardization/instruction-set.rst, "Atomic operations").
 */
static __always_inline void order_reads(struct opening_head *head)
{
	__u32 before;

	if (!reorders_reads)
		return;
	before = __sync_fetch_and_or(&head->pad[0], 0);
	barrier_var(before);
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
		order_reads(head);
		for (__u32 i = 0; i < kind.words; i++)
			differs |= there[i] ^ key[i];
		if (!differs)
			return way;
	}
	order_reads(head);
	return -1;
}

/* The place of a key in a table, or -1. */
static __always_inline int opening_find(void *table, const word *key, const struct opening_kind kind)
{
	__u64 hash = opening_hash(key, kind.words, hash_seed(), opening_step);
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

/* Takes an entry with a tag that nobody else is writing. While it is written, born says which tag it had. Returns whether it could. */
static __always_inline bool opening_take(struct opening_head *head, __u32 way, __u32 tag)
{
	if (tag == OPENING_BUSY || __sync_val_compare_and_swap(opening_tag_of(head, way), tag, OPENING_BUSY) != tag)
		return false;
	barrier_var(way);
	head->born[way & (OPENING_WAYS - 1)] = tag;
	return true;
}

/* Gives back an entry that was taken and not written. */
static __always_inline void opening_give_back(struct opening_head *head, __u32 way, __u32 tag, __u32 seen)
{
	barrier_var(way);
	head->born[way & (OPENING_WAYS - 1)] = seen;
	__sync_lock_test_and_set(opening_tag_of(head, way), tag);
}

/* Makes an entry the last one to go, of a tick in which it was seen. */
static __always_inline void opening_requeue(struct opening_head *head, __u32 way, __u32 seen)
{
	way &= OPENING_WAYS - 1;
	head->born[way] = seen;
	head->turn[way] = head->next++;
}

#endif
