/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A filter in front of flows and replies: most packets of short connections are of none of these, and each look-up in vain waits for
 * memory that nobody else has touched. Programs note what they write there; the agent finds out what is gone:
 * docs/adr/0050-a-filter-of-what-goes-on.md.
 */
#ifndef WEIR_GOING_H
#define WEIR_GOING_H

#include "sets.h"

/* Slot of a key of so many words. crates/datapath/src/going.rs computes the same. */
static __always_inline __u32 going_slot(const word *key, const __u32 words)
{
	__u64 hash = opening_hash(key, words, 0, 1u << (32 - GOING_BITS));

	/*
	 * One word to keep, and not those of the key. It is also what keeps the compiler from taking a question to the filter for one whose
	 * answer stays the same.
	 */
	barrier_var(hash);
	return hash >> (64 - GOING_BITS);
}

static __always_inline __u32 going_shift(__u32 slot)
{
	return 2 * (slot & ((1 << GOING_WORD_BITS) - 1));
}

/* Whether the filter is worth a question. */
static __always_inline bool is_going_known(void)
{
	return going_filter_value.asked;
}

/* Whether a key with this slot may be in the tables of what goes on. */
static __always_inline bool may_go_on(__u32 slot)
{
	return (going_filter_value.slots[slot >> GOING_WORD_BITS] >> going_shift(slot) & GOING_MASK) != GOING_NONE;
}

/* Notes that a key with this slot is there. An exchange, whose result somebody wants, is a barrier: the entry is seen before. */
static __always_inline int note_going(__u32 slot)
{
	__u64 before = __sync_fetch_and_and(&going_filter_value.slots[slot >> GOING_WORD_BITS],
					    ~((__u64)GOING_MASK << going_shift(slot)));

	barrier_var(before);
	return 0;
}

/*
 * Of either family; functions of their own, for the stack's sake. _may_be is false for a key that is in neither table, true proves nothing.
 * _note is for after an entry was written: of one that is noted first the agent could ask after the note, and read before the entry. Until
 * then it is found where it began. It returns nothing of use.
 */
#define GOING_KEYS(family)                                                                                             \
	__noinline int going##family##_may_be(const struct flow_key##family *key)                                      \
	{                                                                                                              \
		return key ? may_go_on(going_slot((const word *)key, sizeof(*key) / sizeof(word))) : true;             \
	}                                                                                                              \
                                                                                                                       \
	__noinline int going##family##_note(const struct flow_key##family *key)                                        \
	{                                                                                                              \
		return key ? note_going(going_slot((const word *)key, sizeof(*key) / sizeof(word))) : 0;               \
	}

GOING_KEYS(4)
GOING_KEYS(6)

#endif
