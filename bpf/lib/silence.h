/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is noted of a backend that did not answer a SYN, and of the one that its flow went to: docs/adr/0021-syns-that-come-again.md */
#ifndef WEIR_SILENCE_H
#define WEIR_SILENCE_H

#include "signals.h"

/* What becomes of a flow whose backend did not answer a SYN. */
enum silence {
	SILENCE_STAYS = 0, /* there is no other backend: it is asked once more */
	SILENCE_LEFT = 1,  /* another one has it: what this one still says is dropped */
	SILENCE_BACK = 2,  /* the other one could not have it: as if nothing had been */
};

/*
 * Notes it at the flow that is known of a client's packet, and at its backend. Returns whether it is so: an answer may be on its way to the
 * client since it was judged, see takes_answer().
 */
static __always_inline bool note_silence(const struct packet *p, enum silence silence, const bool v6)
{
	const struct flow *flow = flow_lookup(p, STAGE_ANY, v6);
	struct reply *reply = flow ? own_reply(p, flow, v6) : NULL;
	struct backend_counters *counters = flow ? lookup_by(&backend_counters, flow->backend) : NULL;
	__u32 asked, next;

	if (!flow || !counters || !reply)
		return true;
	if (silence == SILENCE_BACK) {
		clear_bits(&reply->flags, FLOW_MOVED);
		reply->asked = now_delay();
		balance_add(flow, 1);
		return true;
	}
	asked = reply->asked;
	next = silence == SILENCE_LEFT ? ASKED_ELSEWHERE : now_delay();
	if (!(asked & 1) || __sync_val_compare_and_swap(&reply->asked, asked, next) != asked)
		return false;
	__sync_fetch_and_add(&counters->unanswered, 1);
	if (silence == SILENCE_LEFT) {
		clear_bits(&reply->flags, FLOW_ALONE);
		set_bits(&reply->flags, FLOW_MOVED);
		balance_add(flow, -1);
	} else {
		set_bits(&reply->flags, FLOW_ALONE);
	}
	return true;
}

/* Notes of a flow that has just begun which backend it has left, until its client is heard of: at the entry of its answers, if they come by here. Returns 0. */
static __always_inline int note_left(const struct packet *p, __u32 left, const bool v6)
{
	struct flow *flow = flow_lookup(p, STAGE_OPENING, v6);
	struct reply *reply = flow ? own_reply(p, flow, v6) : NULL;

	if (flow && names_left(flow->flags))
		flow->held = left;
	if (reply && reply->flags & FLOW_RETRIES && !(reply->flags & FLOW_REPLIED))
		reply->held = left;
	return 0;
}

/* Functions of their own: few packets ask. */
__noinline int note_silence4(const struct packet *p, enum silence silence)
{
	return p ? note_silence(p, silence, false) : true;
}

__noinline int note_silence6(const struct packet *p, enum silence silence)
{
	return p ? note_silence(p, silence, true) : true;
}

__noinline int note_left4(const struct packet *p, __u32 left)
{
	return p ? note_left(p, left, false) : 0;
}

__noinline int note_left6(const struct packet *p, __u32 left)
{
	return p ? note_left(p, left, true) : 0;
}

#endif
