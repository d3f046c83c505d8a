/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The end of a connection, from the packets that say so: each side closes its own direction, and a reset ends both. Of both
 * this is noted at the flow; who asks for its place is told by over.h.
 */
#ifndef WEIR_ENDING_H
#define WEIR_ENDING_H

#include "over.h"

/* Notes that a flow has ended, and takes it out of the balance of its backend, whose slot may be another's by now. */
static __always_inline void flow_end(struct flow *flow)
{
	struct backend_counters *counters = bpf_map_lookup_elem(&backend_counters, &flow->backend);
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);

	if (flow->flags & FLOW_ENDED)
		return;
	flow->flags |= FLOW_ENDED;
	if (counters && backend && backend->generation == flow->generation)
		__sync_fetch_and_add(&counters->balance, -1);
}

/* Whether the backend has closed its direction of a flow. Whose answers do not come by here is believed to have. */
static __always_inline bool backend_has_closed(const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);
	const struct config *config = config_get();
	const struct reply *reply;

	if (!config || !backend)
		return false;
	if (flow->flags & FLOW_DIRECT)
		return true;
	reply = reply_to(p, flow, backend, config, v6);
	return reply && reply_is_of(reply, p, flow, v6) && reply->flags & FLOW_CLOSING;
}

/* Notes an end that a client has sent. The flag first: both sides may do so at the same time. */
static __always_inline int client_ends(const struct packet *p, struct flow *flow, const bool v6)
{
	flow->flags |= FLOW_CLOSING;
	if (p->reset || backend_has_closed(p, flow, v6))
		flow_end(flow);
	return 0;
}

/* Notes an end that a backend has sent, whose reply entry says so already. Its client may have gone on to another flow. */
static __always_inline int backend_ends(const struct packet *p, const struct reply *reply, const bool v6)
{
	struct flow *flow = reply_flow(reply, p->proto, v6);
	__be16 port = reply->flags & FLOW_SNAT ? p->dport : 0;

	if (!flow || flow->backend != reply->backend || flow->generation != reply->generation ||
	    flow->snat_port != port)
		return 0;
	if (p->reset || flow->flags & FLOW_CLOSING)
		flow_end(flow);
	return 0;
}

/* Functions of their own: few packets end something. */
__noinline int client_ends4(const struct packet *p, struct flow *flow)
{
	return p && flow ? client_ends(p, flow, false) : 0;
}

__noinline int client_ends6(const struct packet *p, struct flow *flow)
{
	return p && flow ? client_ends(p, flow, true) : 0;
}

__noinline int backend_ends4(const struct packet *p, const struct reply *reply)
{
	return p && reply ? backend_ends(p, reply, false) : 0;
}

__noinline int backend_ends6(const struct packet *p, const struct reply *reply)
{
	return p && reply ? backend_ends(p, reply, true) : 0;
}

#endif
