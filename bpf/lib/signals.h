/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What becomes of a backend's flows: the agent steers new ones by it. All CPUs may send to one backend, so its counters are
 * touched when a flow begins, is answered or ends, and every now and then in between.
 */
#ifndef WEIR_SIGNALS_H
#define WEIR_SIGNALS_H

#include "flow.h"

/* Of a connection so many bytes are held back at most. It tells the rest when it ends. */
#define HELD_MAX (1 << 20)
/* Nobody says when datagrams end. Of them less is held back than the flow's bytes shifted by this: of 16 alike none. */
#define HELD_SHIFT 4
/*
 * Units of delay, 100 ms: a SYN that is back sooner was not sent again, but left to tc by XDP or doubled on its way.
 * Clients wait for a second (RFC 6298), and 200 ms at least.
 */
#define SYN_AGAIN (100 * 1000 * 1000 >> DELAY_SHIFT)

/* The clock of delays, never 0. It costs 15 ns to read: for the first packets of a flow. */
static __always_inline __u32 now_delay(void)
{
	return bpf_ktime_get_ns() >> DELAY_SHIFT | 1;
}

/* Counts a packet in one direction of a flow. Returns the bytes that the backend's counters are to get now. */
static __always_inline __u32 count_bytes(__u32 *bytes, __u32 *held, const struct packet *p, bool all)
{
	__u32 now = *held + p->frame, total = *bytes + p->frame;
	__u32 most = p->proto == IPPROTO_UDP ? total >> HELD_SHIFT : HELD_MAX;

	/* A new flow's first packet is counted before the table has the flow. */
	all = all || !*bytes;
	*bytes = total;
	*held = all || now > most ? 0 : now;
	return *held ? 0 : now;
}

/* Notes and counts a client's packet that was sent to the backend, which is still the one that the flow remembers. */
static __always_inline void count_to(struct flow *flow, const struct packet *p)
{
	struct backend_counters *counters;
	__u32 now = now_ticks(), bytes;
	bool all = flow->last_seen != now;

	if (all)
		flow->last_seen = now;
	if (p->ending)
		flow->flags |= FLOW_CLOSING;
	bytes = count_bytes(&flow->bytes, &flow->held, p, all || flow->flags & FLOW_CLOSING);
	if (!bytes)
		return;
	counters = bpf_map_lookup_elem(&backend_counters, &flow->backend);
	if (counters)
		__sync_fetch_and_add(&counters->bytes_to, bytes);
}

/* Counts the first answer to a flow. TCP may say other things before: an old connection's last ACK, for example. */
static __always_inline void count_answer(struct backend_counters *counters, struct reply *reply, const struct packet *p)
{
	__u32 delay = now_delay() - reply->asked;

	if (p->proto == IPPROTO_UDP || p->syn_ack) {
		__sync_fetch_and_add(&counters->answered, 1);
		__sync_fetch_and_add(&counters->delay, delay);
	} else if (p->reset) {
		__sync_fetch_and_add(&counters->refused, 1);
	} else {
		return;
	}
	reply->asked = 0;
}

/* Tells the backend's counters of its packets. The slot may be another's by now. A function of its own: few packets ask. */
__noinline int report_back(struct reply *reply, const struct packet *p, __u32 bytes)
{
	const struct backend *backend;
	struct backend_counters *counters;

	if (!reply || !p)
		return 0;
	backend = bpf_map_lookup_elem(&backends, &reply->backend);
	counters = bpf_map_lookup_elem(&backend_counters, &reply->backend);
	if (!backend || !counters || backend->generation != reply->generation)
		return 0;
	__sync_fetch_and_add(&counters->bytes_from, bytes);
	if (reply->asked)
		count_answer(counters, reply, p);
	return 0;
}

/* Notes and counts a backend's packet to its client. */
static __always_inline void count_back(struct reply *reply, const struct packet *p)
{
	__u16 flags = reply->flags | (p->ending ? FLOW_REPLIED | FLOW_CLOSING : FLOW_REPLIED);
	__u32 now = now_ticks(), bytes;
	bool all = reply->last_seen != now || flags & FLOW_CLOSING || reply->asked;

	if (reply->last_seen != now)
		reply->last_seen = now;
	if (reply->flags != flags)
		reply->flags = flags;
	bytes = count_bytes(&reply->bytes, &reply->held, p, all);
	if (bytes)
		report_back(reply, p, bytes);
}

/* The reply entry of a flow, or NULL if it was evicted. */
static __always_inline struct reply *flow_reply(const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);
	const struct config *config = config_get();

	if (!config || !backend)
		return NULL;
	if (flow->flags & FLOW_SNAT)
		return reply_find(&backend->addr, v6 ? &config->node6 : &config->node4, backend->port, flow->snat_port,
				  p->proto, v6);
	return reply_find(&backend->addr, &p->src, backend->port, p->sport, p->proto, v6);
}

/*
 * A SYN of a flow that is known. Returns whether it begins another one, for the backend has refused or ended that. If
 * there was no answer so far, it is counted, and its own is awaited.
 */
static __always_inline bool syn_again(const struct packet *p, const struct flow *flow, const bool v6)
{
	struct reply *reply = flow_reply(p, flow, v6);
	struct backend_counters *counters;
	__u32 now;

	if (!reply || reply->flags & FLOW_CLOSING)
		return reply;
	now = now_delay();
	if (!reply->asked || now - reply->asked < SYN_AGAIN)
		return false;
	reply->asked = now;
	counters = bpf_map_lookup_elem(&backend_counters, &flow->backend);
	if (counters)
		__sync_fetch_and_add(&counters->unanswered, 1);
	return false;
}

/* Functions of their own: few packets ask. */
__noinline int syn_again4(const struct packet *p, const struct flow *flow)
{
	return p && flow ? syn_again(p, flow, false) : false;
}

__noinline int syn_again6(const struct packet *p, const struct flow *flow)
{
	return p && flow ? syn_again(p, flow, true) : false;
}

#endif
