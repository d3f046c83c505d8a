/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The agent, which looks through the tables from time to time. */
#ifndef INTERLEAVED_AGENT_H
#define INTERLEAVED_AGENT_H

#include "kernel.h"

#define GOING_WORDS (sizeof(going_filter_value.slots) / sizeof(*going_filter_value.slots))
static __u64 taken[GOING_WORDS];

static AT_ONCE void agent_asks(void)
{
	memset(taken, 0, sizeof(taken));
	for (__u32 word = 0; word < GOING_WORDS; word++)
		going_filter_value.slots[word] = ~0ull / GOING_MASK * GOING_ASKED;
}

static AT_ONCE void agent_reads(const struct table *table)
{
	for (__u32 i = 0; i < table->used; i++) {
		__u32 slot = going_slot((const word *)table->key[i], table->key_size / sizeof(word));

		if (table->there[i])
			taken[slot >> GOING_WORD_BITS] |= (__u64)GOING_MASK << going_shift(slot);
	}
}

static AT_ONCE void agent_answers(void)
{
	for (__u32 word = 0; word < GOING_WORDS; word++) {
		__u64 now = going_filter_value.slots[word], asked = now & ~0ull / GOING_MASK * GOING_ASKED;

		going_filter_value.slots[word] = (now & ~asked) | (asked & ~taken[word]) >> 1;
	}
}

/* What the agent does with the filter of what goes on: it asks for all slots, reads the tables, and takes the others for empty. */
static void agent_looks(void)
{
	agent_asks();
	for (unsigned int i = 0; i < TABLES; i++) {
		meanwhile();
		agent_reads(&tables[i]);
	}
	meanwhile();
	agent_answers();
	meanwhile();
}

#endif
