/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What becomes of a backend's flows: the agent steers new ones by it. All CPUs may send to one backend, so its counters are
 * touched when a flow begins, is answered or ends, and every now and then in between.
 */
#ifndef WEIR_SIGNALS_H
#define WEIR_SIGNALS_H

#include "ending.h"

/* Of a connection so many bytes are held back at most. It tells the rest when it ends. */
#define HELD_MAX (1 << 20)
/* Nobody says when datagrams end. Of them less is held back than the flow's bytes shifted by this: of 16 alike none. */
#define HELD_SHIFT 4
/*
 * Units of delay, 100 ms: a SYN that is back sooner was not sent again, but left to tc by XDP or doubled on its way.
 * Clients wait for a second (RFC 6298), and 200 ms at least.
 */
#define SYN_AGAIN (100 * 1000 * 1000 >> DELAY_SHIFT)
/* The clock of delays, odd. It costs 15 ns to read: for the first packets of a flow. */
static __always_inline __u32 now_delay(void)
{
	return bpf_ktime_get_ns() >> DELAY_SHIFT | 1;
}

/* Counts a packet in one direction of a flow. Returns the bytes that the backend's counters are to get now. */
static __always_inline __u32 count_bytes(__u32 *bytes, __u32 *held, const struct packet *p, bool all)
{
	__u32 now = *held + p->frame, total = *bytes + p->frame;
	__u32 most = p->proto == IPPROTO_UDP ? total >> HELD_SHIFT : HELD_MAX;

	/* A new flow's first packet may be counted at a copy of its entry (flow_anew()): nothing can be held back there. */
	all = all || !*bytes;
	*bytes = total;
	*held = all || now > most ? 0 : now;
	return *held ? 0 : now;
}

/*
 * The same of a packet whose entry has something else where bytes are held: the backend that was left for this one, as long as nobody knows
 * whether the client hears of an answer.
 */
static __always_inline __u32 count_apart(__u32 *bytes, const struct packet *p)
{
	*bytes += p->frame;
	return p->frame;
}

/* Whether a flow with these flags names there which backend it has left. Of all but direct ones the entry of the answers does. */
static __always_inline bool names_left(__u16 flags)
{
	return (flags & (FLOW_DIRECT | FLOW_OPENING)) == (FLOW_DIRECT | FLOW_OPENING) && flags & FLOW_RETRIES;
}

/* Notes and counts a client's packet that was sent to the backend, which is still the one that the flow remembers. */
static __always_inline void count_to(struct flow *flow, const struct packet *p, const bool v6)
{
	struct backend_counters *counters;
	__u32 now = now_ticks(), bytes;
	bool all = flow->last_seen != now;

	if (all)
		flow->last_seen = now;
	if (p->ending)
		(void)(v6 ? client_ends6(p, flow) : client_ends4(p, flow));
	if (names_left(flow->flags))
		bytes = count_apart(&flow->bytes, p);
	else
		bytes = count_bytes(&flow->bytes, &flow->held, p, all || flow->flags & FLOW_CLOSING);
	if (!bytes)
		return;
	counters = lookup_by(&backend_counters, flow->backend);
	if (counters)
		__sync_fetch_and_add(&counters->bytes_to, bytes);
}

/*
 * Counts the first answer to a flow, which was awaited since asked; again: it had answered before. TCP may say other things before, of an
 * earlier connection between the same ports: it is there, and gets the SYN again once its client has reset that. Or it resets what somebody has
 * forged in the client's name, after a SYN that it never got.
 */
static __always_inline void count_answer(struct backend_counters *counters, struct reply *reply, const struct packet *p,
					 __u32 asked, bool again)
{
	__u32 delay = now_delay() - asked;

	if (again) {
		clear_bits(&reply->flags, FLOW_ASKED_AGAIN);
	} else if (p->proto == IPPROTO_UDP || p->syn_ack) {
		__sync_fetch_and_add(&counters->answered, 1);
		__sync_fetch_and_add(&counters->delay, delay);
	} else if (p->reset == RESET_FIRST) {
		__sync_fetch_and_add(&counters->refused, 1);
	}
}

/* The counters of the backend that an entry names, or NULL: the slot may be another's by now. */
static __always_inline struct backend_counters *counters_of(const struct reply *reply)
{
	return backend_at(reply->backend, reply->generation) ? lookup_by(&backend_counters, reply->backend) : NULL;
}

/* Tells the backend's counters of its packets. A function of its own: few packets ask. Returns 0. */
__noinline int report_back(struct reply *reply, const struct packet *p, __u32 bytes)
{
	struct backend_counters *counters = reply && p ? counters_of(reply) : NULL;
	__u32 asked;

	if (!counters)
		return 0;
	__sync_fetch_and_add(&counters->bytes_from, bytes);
	asked = reply->asked;
	/* An answer to a SYN was counted by takes_answer(). */
	if (asked & 1 && !p->syn_ack && !is_reset_of_nothing(p, reply)) {
		count_answer(counters, reply, p, asked, reply->flags & FLOW_ASKED_AGAIN);
		reply->asked = 0;
	}
	return 0;
}

/*
 * Takes the answer to a SYN, the first of which is counted. The client may send the SYN again at the same time as the backend its answer,
 * and another CPU lead that elsewhere: whoever exchanges what is awaited first has it, and the client hears of one backend alone.
 * A function of its own: only answers to SYNs ask. Returns whether the answer may go back.
 */
__noinline int takes_answer(struct reply *reply, const struct packet *p)
{
	struct backend_counters *counters;
	bool again;
	__u32 asked;

	if (!reply || !p)
		return false;
	/* Before it is taken: a SYN that comes after that asks again. */
	again = reply->flags & FLOW_ASKED_AGAIN;
	asked = reply->asked;
	if (asked & 1 && __sync_val_compare_and_swap(&reply->asked, asked, 0) == asked) {
		counters = counters_of(reply);
		if (counters)
			count_answer(counters, reply, p, asked, again);
		return true;
	}
	asked = *(const volatile __u32 *)&reply->asked;
	return asked & 1 || !asked;
}

/* Tells a flow that begins that it was answered: now its client's next packet is worth a look at promotion. Returns 0. */
static __always_inline int note_answer(const struct reply *reply, __u8 proto, const bool v6)
{
	struct flow *flow;
	union flow_key key;

	client_key(&key, reply, proto, v6);
	flow = flow_at(&key, STAGE_OPENING, v6);
	if (flow)
		set_bits(&flow->flags, FLOW_REPLIED);
	return 0;
}

/* Functions of their own: only first answers ask. */
__noinline int note_answer4(const struct reply *reply, __u8 proto)
{
	return reply ? note_answer(reply, proto, false) : 0;
}

__noinline int note_answer6(const struct reply *reply, __u8 proto)
{
	return reply ? note_answer(reply, proto, true) : 0;
}

/* Counts that another backend has a connection in place of this one, which did not answer. */
static __always_inline void failed_over(__u32 backend)
{
	struct backend_counters *counters = backend ? lookup_by(&backend_counters, backend) : NULL;

	if (counters)
		__sync_fetch_and_add(&counters->failed_over, 1);
}

/*
 * Counts it of a connection whose client has heard of this backend's answer: it is there, and let in. Where nobody is heard of, that may
 * be the client's fault, or somebody's in its name; so it may where TCP has said anything but a SYN-ACK, as to somebody who is half-open there.
 * From here on bytes are held in that place. A function of its own: few flows are led elsewhere. Returns 0.
 */
__noinline int count_failover(struct reply *reply)
{
	const struct backend *backend;
	__u32 left;

	if (!reply)
		return 0;
	/* Before: another CPU holds bytes there as soon as it may. */
	left = *(const volatile __u32 *)&reply->held;
	if (!(clear_bits(&reply->flags, FLOW_RETRIES) & FLOW_RETRIES))
		return 0;
	reply->held = 0;
	backend = lookup_by(&backends, reply->backend);
	if (backend && (backend->proto != IPPROTO_TCP || reply->heard & HEARD_KNOWN))
		failed_over(left);
	return 0;
}

/*
 * Notes what a backend has heard of its client, once the flow goes on; until then what its client will have heard of the backend. A later piece does
 * not say.
 */
static __always_inline void note_heard(struct reply *reply, const struct packet *p)
{
	const bool begins = is_opening(reply->flags);

	if (p->syn_ack) {
		reply->heard = begins ? p->heard : 0;
		/* Who agrees has closed nothing: that was the end of an earlier connection between the same ports, sent again. */
		if (begins && (reply->flags & (FLOW_CLOSING | FLOW_ENDED)) == FLOW_CLOSING)
			clear_bits(&reply->flags, FLOW_CLOSING);
	} else if (!begins && !p->ending && p->heard) {
		reply->heard = p->heard;
	}
}

/* Notes and counts a backend's packet to its client. */
static __always_inline void count_back(struct reply *reply, const struct packet *p, const bool v6)
{
	__u32 now = now_ticks(), bytes;
	bool all = reply->last_seen != now || p->ending || reply->flags & FLOW_CLOSING || reply->asked;

	if (reply->last_seen != now)
		reply->last_seen = now;
	if (!(reply->flags & FLOW_REPLIED) && !is_reset_of_nothing(p, reply)) {
		if (reply->flags & FLOW_OPENING)
			(void)(v6 ? note_answer6(reply, p->proto) : note_answer4(reply, p->proto));
		set_bits(&reply->flags, FLOW_REPLIED);
	}
	note_heard(reply, p);
	if (p->ending)
		(void)(v6 ? backend_ends6(p, reply) : backend_ends4(p, reply));
	if (reply->flags & FLOW_RETRIES)
		bytes = count_apart(&reply->bytes, p);
	else
		bytes = count_bytes(&reply->bytes, &reply->held, p, all);
	if (bytes)
		report_back(reply, p, bytes);
}

/* Whether a datagram is the second one back of a flow that is still among those that begin, and not the rest of the first one. */
static __always_inline bool is_answered_again(const struct reply *reply, const struct packet *p)
{
	return (reply->flags & (FLOW_OPENING | FLOW_REPLIED)) == (FLOW_OPENING | FLOW_REPLIED) &&
	       p->proto == IPPROTO_UDP && p->piece != PIECE_LATER;
}

/*
 * What the answers to a flow must look like, in place: the programs have no stack to spare for a copy. asked: when an answer began to be
 * awaited, or 0.
 */
static __always_inline void reply_of(struct reply *reply, const struct packet *p, const struct flow *flow, __u32 asked)
{
	__builtin_memset(reply, 0, sizeof(*reply));
	__builtin_memcpy(&reply->frontend, &p->dst, sizeof(reply->frontend));
	__builtin_memcpy(&reply->client, &p->src, sizeof(reply->client));
	reply->frontend_port = p->dport;
	reply->client_port = p->sport;
	reply->flags = flow->flags & (FLOW_SNAT | FLOW_TUNNEL | FLOW_OPENING);
	if (is_opening(flow->flags))
		reply->flags |= flow->flags & FLOW_RETRIES;
	reply->backend = flow->backend;
	reply->generation = flow->generation;
	reply->last_seen = now_ticks();
	reply->asked = asked;
	in_memory(reply);
}

#endif
