/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a CPU has done in this tick, and whether that is a flood. */
#ifndef WEIR_PACE_H
#define WEIR_PACE_H

#include "config.h"
#include "parse.h"

/* This CPU's numbers, of the tick in which something was counted last; NULL only to the verifier. */
static __always_inline struct pace *pace_get(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&paces, &first);
}

/* Entries among those that go on which a CPU may fill with others than TCP's; the loader says how many. 0: all. */
const volatile __u32 room_beside_tcp = 0;

/* So many may come at once in any case: a few clients that begin in one tick. */
#define MOVED_LEAST 8

/* As many may move in each tick as fill that room until those of datagrams are idle and taken out. */
static __always_inline __u32 moved_each_tick(void)
{
	return room_beside_tcp / (config_get()->udp_idle + IDLE_TAKEN_OUT) ?: 1;
}

/* The same, from zero on with each tick. */
static __always_inline struct pace *pace_now(void)
{
	struct pace *pace = pace_get();
	__u32 now = now_ticks();
	__u64 past;

	if (pace && pace->tick != now) {
		past = (__u64)(now - pace->tick) * moved_each_tick();
		pace->tick = now;
		pace->flows = 0;
		pace->told = 0;
		pace->too_big = 0;
		pace->moved -= past > pace->moved ? pace->moved : past;
	}
	return pace;
}

/*
 * Whether this CPU has got more new flows of late than anybody's clients make. Beside them packets of others are lost in queues, and of a SYN
 * that nobody has answered it is not known whose fault that is.
 */
static __always_inline bool was_flooded(void)
{
	const struct pace *pace = pace_get();

	return pace && pace->flooded && !is_idle(now_ticks(), pace->flooded, OPENING_IDLE);
}

/* Whether so many new flows in a tick are more than anybody's clients make. */
static __always_inline bool is_too_many(const struct pace *pace, const struct config *config)
{
	return config->flood && !(config->flags & CONFIG_BESIDE) && pace->flows >= config->flood;
}

/* Whether this CPU has got too many in this tick: what can be told from a packet is not remembered then. */
static __always_inline bool is_flood(const struct config *config)
{
	const struct pace *pace = pace_get();

	return pace && is_too_many(pace, config) && pace->tick == now_ticks();
}

/* Counts a new flow of this tick, and whether it is a connection that began long ago. */
static __always_inline void count_pace(const struct packet *p, const struct config *config)
{
	struct pace *pace = pace_now();

	if (!pace)
		return;
	pace->flows++;
	if (is_too_many(pace, config))
		pace->flooded = pace->tick;
	if (!p->syn && p->proto != IPPROTO_UDP)
		pace->adopted++;
}

/* Counts an entry of a flow that goes on which was missing: nobody tells of evictions but those who come for what is gone. */
static __always_inline void count_lost(void)
{
	struct pace *pace = pace_get();

	if (pace)
		pace->lost++;
}

/*
 * Whether one more flow of datagrams, or an association, may move to those that go on. Two packets in anybody's name make one, if they are
 * answered, and who asks a name server makes many that are over soon. So fast that they would take all of that room until those of
 * datagrams are idle and taken out they stay where they began, and silent connections keep their places. hosts: it is the host's own, which has no other place,
 * and comes before those. Counts it. A function of its own: few packets ask.
 */
__noinline int may_move_beside_tcp(bool hosts)
{
	struct pace *pace = room_beside_tcp ? pace_now() : NULL;
	__u32 most = moved_each_tick();

	if (!pace)
		return true;
	if (pace->moved >= (most > MOVED_LEAST ? most : MOVED_LEAST) << hosts)
		return false;
	pace->moved++;
	return true;
}

#endif
