/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A flood of SYNs for an endpoint on another node, each of which takes a source port from the one before: a SYN passes when it comes
 * again, as that of a client does and one of a forged source does not. docs/adr/0041-first-syns-in-a-flood.md
 */
#ifndef WEIR_FIRST_SYN_H
#define WEIR_FIRST_SYN_H

#include "over.h"

/* Ticks in which all ports have had their turn, at most, if flows that begin lose them before anybody can have answered. */
#define SNAT_LAP 1

/* Whether a flow began with a SYN, by what is known of its answers: of one that was met in its middle none is awaited. */
static __always_inline bool has_asked(const struct reply *reply)
{
	return reply->asked || reply->flags & FLOW_REPLIED;
}

/*
 * Notes that a connection takes its port from another one that has only just begun: the endpoint gets more new ones than it has ports
 * for. Connections that are over sooner are none of those, nor are those whose SYN nobody saw: packets that search in vain move the
 * turn, too. Functions of their own: few flows meet another's entry. Return nothing of use.
 */
static __always_inline int snat_press(struct snat_counter *counter, const struct reply *old, __be16 port, const bool v6)
{
	const struct flow *flow = reply_flow(old, IPPROTO_TCP, v6);

	if (flow && flow->backend == old->backend && flow->snat_port == port && is_opening(flow->flags) &&
	    has_asked(old) && !has_ended(flow, old) && !is_closing(flow, old) &&
	    !is_idle(now_ticks(), flow->created, SNAT_LAP))
		counter->pressed = now_ticks();
	return 0;
}

__noinline int snat_press4(struct snat_counter *counter, const struct reply *old, __be16 port)
{
	return counter && old ? snat_press(counter, old, port, false) : 0;
}

__noinline int snat_press6(struct snat_counter *counter, const struct reply *old, __be16 port)
{
	return counter && old ? snat_press(counter, old, port, true) : 0;
}

/* Whether flows that nobody waited for have lost their source ports of late, as in a flood. */
static __always_inline bool is_pressed(const struct snat_counter *counter)
{
	return !is_idle(now_ticks(), counter->pressed, OPENING_IDLE);
}

/* Whether flows that begin with this packet have to show that somebody waits for an answer. */
static __always_inline bool must_ask_again(const struct packet *p, const struct flow *flow,
					   const struct snat_counter *counter)
{
	return p->syn && p->proto == IPPROTO_TCP && (flow->flags & (FLOW_SNAT | FLOW_RETRIES)) == FLOW_SNAT &&
	       is_pressed(counter);
}

/*
 * Notes the SYN with a hash that was not seen before, until another takes its place: one byte of that, so that the table outlasts the seconds between
 * two SYNs of a client. A function of its own, for the stack's sake. Returns whether it was not.
 */
__noinline int note_first_syn(__u64 hash)
{
	const __u8 tag = (hash & 0xff) ?: 1;
	struct first_syns *line;
	__u32 set = opening_set(hash);

	line = bpf_map_lookup_elem(&first_syns, &set);
	if (!line)
		return false;
	if (line->tag[(hash >> 8) & (FIRST_SYNS - 1)] == tag)
		return false;
	line->tag[(hash >> 8) & (FIRST_SYNS - 1)] = tag;
	return true;
}

#endif
