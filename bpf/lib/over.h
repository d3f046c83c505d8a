/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * When a flow is over, and who may have its place: docs/adr/0029-when-a-connection-is-over.md. Nothing frees an entry of answers
 * but a flow that takes it, what shows that there is another connection, or, of datagrams, the agent.
 */
#ifndef WEIR_OVER_H
#define WEIR_OVER_H

#include "flow.h"

/*
 * Ticks after which a flow may be over although nobody ended it. An SCTP association is a connection: it ends by a
 * shutdown or ABORT, and its heartbeats (RFC 9260, 8.3: every 30 s) keep it from being idle.
 */
static __always_inline __u32 idle_limit(__u8 proto, const struct config *config)
{
	return proto == IPPROTO_UDP ? config->udp_idle : config->tcp_idle;
}

/* Whether both sides have closed a connection, or one has reset it. A last FIN or ACK may still come. */
static __always_inline bool has_ended(const struct flow *flow, const struct reply *reply)
{
	return flow->flags & FLOW_ENDED || flow->flags & reply->flags & FLOW_CLOSING;
}

/* Whether one side at least has said that it sends no more. */
static __always_inline bool is_closing(const struct flow *flow, const struct reply *reply)
{
	return (flow->flags | reply->flags) & FLOW_CLOSING;
}

/* Whether nothing has come in either direction for longer than so many ticks. */
static __always_inline bool is_silent(const struct flow *flow, const struct reply *reply, __u32 limit)
{
	__u32 now = now_ticks();

	return is_idle(now, flow->last_seen, limit) && is_idle(now, reply->last_seen, limit);
}

/* Who asks for the place of a flow: what such a one takes beside the places of flows that are over. */
enum claim {
	CLAIM_OPENING = 1, /* from flows that begin */
	CLAIM_ENDED = 2,   /* from those that have only just ended */
	CLAIM_KEPT = 4,	   /* a port that another client's keeps from one connection to the next */
	CLAIM_AGAIN = 8,   /* only from the same client's port, of which the source port was before */

	/* A connection that is met in its middle. The endpoint knows it from another port, and will reset it most likely. */
	CLAIM_FREE = 0,
	/* A new flow for which the source port is the one that was taken longest ago, */
	CLAIM_TURN = CLAIM_OPENING,
	/* after several that were not free, */
	CLAIM_NEED = CLAIM_OPENING | CLAIM_ENDED,
	/* and after so many that most are kept, or beside a flood. */
	CLAIM_ANY = CLAIM_OPENING | CLAIM_ENDED | CLAIM_KEPT,
	/* Whoever wants no other one: the port is the client's, the host's own, or was kept. */
	CLAIM_ONLY = CLAIM_ENDED | CLAIM_KEPT,
};

/*
 * Whether a flow that began a turn ago yields its source port: in the time that all others took to be taken nobody has answered it, or its client
 * did not go on. A client that sends datagrams to one who need not answer does. Who asks two things at once, as resolvers do, is done when both answers
 * are there, and its port is free soon. Of a port that was kept the turn says nothing.
 */
static __always_inline bool opening_yields(const struct flow *flow, const struct reply *reply, __u8 proto)
{
	if (reply->flags & FLOW_KEPT)
		return false;
	if (is_opening(flow->flags))
		return proto == IPPROTO_TCP || !went_on(flow);
	return proto == IPPROTO_UDP && !went_on(flow) && is_silent(flow, reply, ASKED_ONCE_IDLE);
}

/* Ticks for which an endpoint may still remember a connection that is over (TIME_WAIT). tcp_linger is rounded down to whole ticks. */
static __always_inline __u32 remembered_limit(const struct config *config)
{
	return (config->tcp_linger + 1) * TIME_WAIT_LINGERS;
}

/*
 * Whether a flow that has ended yields its place. Ports whose turn comes after it are free for longer, unless all have had
 * their turn while its endpoint may remember it.
 */
static __always_inline bool ended_yields(const struct flow *flow, const struct reply *reply,
					 const struct config *config, enum claim claim)
{
	const __u32 limit = remembered_limit(config);

	return claim & CLAIM_ENDED || is_silent(flow, reply, limit) || !is_idle(now_ticks(), flow->created, limit);
}

/*
 * Whether the port of a flow that keeps it from one connection to the next is passed over by those who take the one that was taken longest
 * ago: its endpoint may still remember it.
 */
static __always_inline bool keeps_port(const struct reply *reply, const struct config *config, enum claim claim)
{
	return !(claim & CLAIM_KEPT) && reply->flags & FLOW_KEPT &&
	       !is_idle(now_ticks(), reply->last_seen, remembered_limit(config));
}

/*
 * Whether a flow is over, so that another may take the place of its reply entry: it has moved on to another backend or
 * port, lost its endpoint, has ended, never got going, or is idle in both directions.
 * port is the flow's SNAT port, or 0. All of it: docs/adr/0029-when-a-connection-is-over.md.
 */
static __always_inline bool flow_is_over(const struct flow *flow, const struct reply *reply, __be16 port,
					 const struct config *config, enum claim claim)
{
	const struct backend *backend;
	__u32 limit;

	if (flow->backend != reply->backend || flow->snat_port != port)
		return true;
	/* An endpoint that left and came back has the same address and starts to number its ports anew. */
	backend = backend_at(flow->backend, flow->generation);
	if (!backend)
		return true;
	if (has_ended(flow, reply))
		return ended_yields(flow, reply, config, claim);
	if (claim & CLAIM_OPENING && opening_yields(flow, reply, backend->proto))
		return true;
	limit = idle_limit(backend->proto, config);
	if (is_opening(flow->flags) && backend->proto != IPPROTO_UDP)
		limit = OPENING_IDLE;
	else if (is_closing(flow, reply))
		limit = config->tcp_half_closed;
	return is_silent(flow, reply, limit);
}

/* The same of the flow that an entry is of. One that was evicted is over. */
static __always_inline bool flow_of_is_over(const struct reply *reply, __be16 port, __u8 proto, enum claim claim,
					    const bool v6)
{
	const struct flow *flow = reply_flow(reply, proto, v6);

	return !flow || flow_is_over(flow, reply, port, config_get(), claim);
}

/* Functions of their own: few flows meet another's entry. */
__noinline int flow_of_is_over4(const struct reply *reply, __be16 port, __u8 proto, enum claim claim)
{
	return reply ? flow_of_is_over(reply, port, proto, claim, false) : true;
}

__noinline int flow_of_is_over6(const struct reply *reply, __be16 port, __u8 proto, enum claim claim)
{
	return reply ? flow_of_is_over(reply, port, proto, claim, true) : true;
}

/* Whether a reply entry is free for another flow: its own was evicted or is over. */
static __always_inline bool reply_is_over(const struct reply *reply, __be16 port, __u8 proto, enum claim claim,
					  const bool v6)
{
	return v6 ? flow_of_is_over6(reply, port, proto, claim) : flow_of_is_over4(reply, port, proto, claim);
}

/* Whether an entry has awaited a backend's answer to a SYN to this frontend, for no longer than its client asks. */
static __always_inline bool awaits_answer(const struct reply *reply, const struct packet *p, __u32 id, __u32 generation,
					  const bool v6)
{
	return reply->backend == id && reply->generation == generation && reply->asked &&
	       !(reply->flags & (FLOW_REPLIED | FLOW_MOVED)) && reply->client_port == p->sport &&
	       reply->frontend_port == p->dport && addr_equal(&reply->frontend, &p->dst, v6) &&
	       !is_idle(now_ticks(), reply->last_seen, OPENING_IDLE);
}

/* Whether datagrams were under way when their endpoint left, or the agent forgot their flow: they were ours, and so are the answers. */
static __always_inline bool is_awaited(const struct flow *flow, const struct reply *reply, __be16 port)
{
	if (!flow)
		return !is_idle(now_ticks(), reply->last_seen, ANSWER_IDLE);
	return flow->backend == reply->backend && flow->snat_port == port && !is_silent(flow, reply, ANSWER_IDLE);
}

/* Whether a flow was over that no table has any more: a full one may have lost one that goes on. */
static __always_inline bool was_over(const struct reply *reply, __be16 port, __u8 proto, const struct config *config)
{
	if (port || reply->flags & FLOW_ENDED)
		return true;
	return proto == IPPROTO_UDP && is_idle(now_ticks(), reply->last_seen, config->udp_idle);
}

/*
 * Whether a backend's packet may be of another connection between the same ports than the entry that it meets: a SYN-ACK, a datagram, or, after the
 * linger, a reset or a TIME_WAIT's ACK where the backend has closed its direction.
 */
static __always_inline bool may_be_anothers(const struct packet *p, const struct reply *reply,
					    const struct config *config)
{
	if (p->syn_ack || p->proto == IPPROTO_UDP)
		return true;
	return reply->flags & FLOW_CLOSING && (p->reset || is_opening(reply->flags)) &&
	       is_idle(now_ticks(), reply->last_seen, config->tcp_linger);
}

/*
 * Whether an entry awaits such a packet all the same: it may answer what its client has just said, or its flow may have lost its place in a flood.
 * flow: the entry's, or NULL. port: its SNAT port, or 0.
 */
static __always_inline bool is_still_ours(const struct packet *p, const struct reply *reply, const struct flow *flow,
					  __be16 port, const struct config *config)
{
	if (p->proto == IPPROTO_UDP)
		return is_awaited(flow, reply, port);
	if (!p->syn_ack)
		return flow && !is_idle(now_ticks(), flow->last_seen, config->tcp_linger);
	return !flow && (reply->flags & (FLOW_OPENING | FLOW_REPLIED | FLOW_ENDED)) == FLOW_OPENING &&
	       !is_idle(now_ticks(), reply->last_seen, OPENING_IDLE);
}

/*
 * Whether a SYN-ACK answers a SYN that has gone to another backend since, or there from another port, in a flood, where nothing was left to note that
 * at.
 */
static __always_inline bool was_left(const struct packet *p, const struct reply *reply, const struct flow *flow,
				     __be16 port)
{
	return p->syn_ack && !(reply->flags & FLOW_SNAT) && flow &&
	       (flow->backend != reply->backend || flow->snat_port != port) &&
	       !is_idle(now_ticks(), reply->last_seen, MOVED_IDLE) &&
	       (reply->flags & (FLOW_OPENING | FLOW_REPLIED)) == FLOW_OPENING;
}

/*
 * Forgets the entry that a packet which looks like an answer to a flow of ours meets, if it is of another connection between the same ports, which
 * began after ours was over: so the rest of that connection finds none. Notes where our flow has left the backend. Returns whether it is another's,
 * as it is where the port of a flow that goes on is lent.
 */
static __always_inline bool forget_if_anothers(const struct packet *p, const bool v6)
{
	const struct config *config = config_get();
	const struct flow *flow;
	struct reply *reply;
	union flow_key key;
	__be16 port;

	packet_key(&key, p, v6);
	reply = reply_at(&key, STAGE_ANY, v6);
	if (!reply || !may_be_anothers(p, reply, config))
		return false;
	if (is_lent(reply))
		return true;
	/* What heard says is true for some hours. */
	end_lending(reply);
	port = snat_port_of(reply, p->dport);
	flow = reply_flow(reply, p->proto, v6);
	if (is_still_ours(p, reply, flow, port, config))
		return false;
	if (was_left(p, reply, flow, port)) {
		set_bits(&reply->flags, FLOW_MOVED);
		return false;
	}
	if (flow ? !flow_is_over(flow, reply, port, config, CLAIM_ONLY) : !was_over(reply, port, p->proto, config))
		return false;
	reply_forget(&key, STAGE_ANY, v6);
	return true;
}

/* Functions of their own: few packets ask. */
__noinline int forget_if_anothers4(const struct packet *p)
{
	return p ? forget_if_anothers(p, false) : false;
}

__noinline int forget_if_anothers6(const struct packet *p)
{
	return p ? forget_if_anothers(p, true) : false;
}

#endif
