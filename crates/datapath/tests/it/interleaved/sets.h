/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What two CPUs do at once to a set of flows that begin. */
#ifndef INTERLEAVED_SETS_H
#define INTERLEAVED_SETS_H

#include "client.h"

/* What either of the two has seen in the end. */
static int seen[2];
#define ONE 0
#define OTHER 1

/* Keys and values that are numbers. */
static int store(__u32 number, __u32 value, __u64 flags)
{
	struct flow_key4 key4 = { .src = number };
	struct flow_key6 key6 = { .src = { number } };
	struct flow flow = { .backend = value, .last_seen = ticks };

	return way.v6 ? openings6_store(&key6, &flow, flags) : openings4_store(&key4, &flow, flags);
}

static struct flow *at(__u32 number)
{
	struct flow_key4 key4 = { .src = number };
	struct flow_key6 key6 = { .src = { number } };

	return way.v6 ? openings6_at(&key6) : openings4_at(&key4);
}

/* The value of a key, or 0. */
static int look(__u32 number)
{
	const struct flow *flow = at(number);

	return flow ? flow->backend : 0;
}

static void one_adds(void)
{
	seen[ONE] = store(1, 1, BPF_NOEXIST);
}

static void other_adds(void)
{
	seen[OTHER] = store(1, 2, BPF_NOEXIST);
}

static bool is_nobodys_or_ones(void)
{
	if (seen[ONE] && seen[OTHER])
		return !in_set(flow_set()) && !look(1);
	return in_set(flow_set()) == 1 && (seen[ONE] ? look(1) == 2 : seen[OTHER] && look(1) == 1);
}

static void begin_full(void)
{
	for (__u32 number = 1; number <= OPENING_WAYS; number++)
		store(number, number, BPF_ANY);
}

static void one_needs_a_place(void)
{
	seen[ONE] = store(11, 11, BPF_ANY);
}

static void other_needs_a_place(void)
{
	seen[OTHER] = store(12, 12, BPF_NOEXIST);
}

/* Who looks for the oldest entry while another one is written may find that one, as young as it is; but each is in one place. */
static bool have_places(void)
{
	const bool eleven = look(11) == 11, twelve = look(12) == 12;

	return !seen[ONE] && !seen[OTHER] && (eleven || !look(11)) && (twelve || !look(12)) && (eleven || twelve) &&
	       in_set(flow_set()) == OPENING_WAYS;
}

/* The first one's place is for anybody, once. */
static void begin_full_of_one_that_ended(void)
{
	begin_full();
	at(1)->flags |= FLOW_ENDED;
}

static bool have_places_of_others(void)
{
	return have_places() && look(11) == 11 && look(12) == 12;
}

/* The first two are of connections that go on, the others of another service's. */
static void begin_full_of_two_that_settled(void)
{
	begin_full();
	for (__u32 number = 1; number <= OPENING_WAYS; number++) {
		if (number <= SETTLED_MOST)
			at(number)->flags |= FLOW_SETTLED;
		else
			at(number)->service = 1;
	}
}

static bool settled_have_theirs(void)
{
	return have_places() && look(1) == 1 && look(SETTLED_MOST) == SETTLED_MOST;
}

static void other_looks(void)
{
	seen[OTHER] = (!look(1) || look(1) == 1) && (!look(11) || look(11) == 11);
}

static bool is_whole(void)
{
	return !seen[ONE] && seen[OTHER] && look(11) == 11;
}

#endif
