/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Answers on their way out to a client, by the host's stack. For tc. */
#ifndef WEIR_EGRESS_H
#define WEIR_EGRESS_H

#include "ctx_tc.h"
#include "nat.h"

/* Gives an answer the frontend as its source, and its client's port back, if the backend saw another one; and takes so many hops off its life. */
static __always_inline int ctx_rewrite_back(ctx_t *ctx, const struct packet *p, const struct reply *reply, __u32 hops,
					    const bool v6)
{
	return rewrite_ends(ctx, p, &reply->frontend, &p->dst, reply->frontend_port, reply->client_port, hops, v6);
}

/* What a packet on its way to a client answers. Returns REASON_BACK with its entry, or why it is not to be translated. */
static __always_inline int answered(const struct packet *p, struct reply **found, const bool v6)
{
	const struct config *config = config_get();
	struct reply *reply = reply_of_answer(p, v6);
	bool moved, over;
	__u32 now;

	if (!reply && lost_entry(p, v6))
		return REASON_STALE;
	if (!reply || reply->flags & FLOW_SNAT)
		return REASON_NO_REPLY;
	now = now_ticks();
	moved = reply->flags & FLOW_MOVED;
	if (moved && !is_idle(now, reply->last_seen, MOVED_IDLE))
		return REASON_STALE;
	/* A client may talk to the endpoint itself, from a port that it once used for the service. */
	if (p->proto == IPPROTO_UDP)
		over = is_idle(now, reply->last_seen, config->udp_idle);
	else
		over = reply->flags & FLOW_ENDED && (p->reset || !p->ending);
	if ((p->syn_ack || over) && is_anothers(p, reply, v6))
		return REASON_NO_REPLY;
	if (!moved && reply->flags & FLOW_MOVED)
		return REASON_STALE;
	if (p->syn_ack && !moved && !takes_answer(reply, p))
		return REASON_STALE;
	/* Of one whose client has gone elsewhere that was told above. */
	if (answers_syn(p, reply))
		(void)(v6 ? restore_asked6(p, reply) : restore_asked4(p, reply));
	*found = reply;
	return REASON_BACK;
}

/*
 * Notes at the entry of a flow's answers that the host asks the same endpoint from the same port: what comes back is the host's, until the
 * flow's client says something or the host has asked nothing for more than ANSWER_IDLE ticks. Returns 0.
 */
static __always_inline int lend_port(const struct packet *p, const bool v6)
{
	union flow_key key;
	struct reply *reply;
	struct flow *flow;

	turned_key(&key, p, v6);
	reply = reply_at(&key, STAGE_GOING_FIRST, v6);
	if (!reply || !(reply->flags & FLOW_SNAT))
		return 0;
	reply->heard = now_ticks() & HEARD_MASK;
	set_bits(&reply->flags, FLOW_LENT);
	flow = reply_flow(reply, p->proto, v6);
	/* The first datagram of a tick looks after the entry: the client's next one is to be that. */
	if (flow && flow->snat_port == p->sport && flow->last_seen == now_ticks())
		flow->last_seen--;
	return 0;
}

/* Functions of their own: beside another proxy alone it is asked. */
__noinline int lend_port4(const struct packet *p)
{
	return p ? lend_port(p, false) : 0;
}

__noinline int lend_port6(const struct packet *p)
{
	return p ? lend_port(p, true) : 0;
}

/* Whether a packet that answers nobody may be another proxy's, which masquerades from ports that it draws by lot: one may be of our flows. */
static __always_inline bool may_borrow_port(const struct packet *p)
{
	const struct config *config = config_get();

	return p->proto == IPPROTO_UDP && config->flags & CONFIG_BESIDE;
}

/* Whether a frontend is at an address that the node gives what it asks by itself: others send nothing from there, as the host takes it for a martian. */
static __always_inline bool is_hosts_own(const struct frontend *frontend, const struct packet *p, const bool v6)
{
	return frontend->kind == KIND_NODE_PORT || addr_equal(&p->src, source_of(config_get(), 0, v6), v6);
}

/* Whether a flow is a client's that may go on, whatever the host asks: there, too, an answer may leave that has lost its entry. */
static __always_inline bool is_clients(const struct flow *flow, __u8 proto)
{
	return !(flow->flags & (FLOW_OWN | FLOW_ENDED)) &&
	       !is_idle(now_ticks(), flow->last_seen, idle_limit(proto, config_get()));
}

/*
 * Notes that the host, or whoever it masquerades, asks somebody from the port of a frontend, as nf_nat gives any: what comes back is no client's packet.
 * Only who asks sends a SYN from there. Returns 0.
 */
static __always_inline int note_own(const struct packet *p, const bool v6)
{
	/* Slot 0 is no backend's, and has no such generation. */
	struct flow6 own = { .flow = { .generation = ~0u, .flags = FLOW_OWN } };
	const struct frontend *frontend = frontend_lookup(&p->src, p->sport, p->proto, v6);
	const struct flow *known;
	union flow_key key;

	if (!frontend || !is_hosts_own(frontend, p, v6))
		return 0;
	turned_key(&key, p, v6);
	known = flow_at(&key, STAGE_GOING_FIRST, v6);
	if (known && is_clients(known, p->proto))
		return 0;
	/* A pod may ask whomever it likes. */
	if (!known && !may_move_beside_tcp(true))
		return 0;
	own.flow.created = own.flow.last_seen = now_ticks();
	(void)flow_put_going(&key, &own.flow, v6);
	return 0;
}

/* Functions of their own: few packets leave so. */
__noinline int note_own4(const struct packet *p)
{
	return p ? note_own(p, false) : 0;
}

__noinline int note_own6(const struct packet *p)
{
	return p ? note_own(p, true) : 0;
}

/* Whether a packet that answers nobody may ask from a frontend's port. Beside another proxy it is that one's answers that leave there. */
static __always_inline bool may_ask_from_frontend(const struct packet *p)
{
	const struct config *config = config_get();

	if (!p->syn && (p->proto != IPPROTO_UDP || config->flags & CONFIG_BESIDE))
		return false;
	return may_be_frontend(&p->src, p->sport, p->proto);
}

/* A packet on its way to a client. Returns a reason. */
static __always_inline int egress(ctx_t *ctx, struct packet *p, const bool v6)
{
	struct reply *reply = NULL;
	int error, reason = answered(p, &reply, v6);

	if (!reply) {
		if (may_borrow_port(p))
			(void)(v6 ? lend_port6(p) : lend_port4(p));
		if (reason == REASON_NO_REPLY && may_ask_from_frontend(p))
			(void)(v6 ? note_own6(p) : note_own4(p));
		return reason;
	}
	count_back(reply, p, v6);
	error = ctx_rewrite_back(ctx, p, reply, 0, v6);
	return was_last_back(p, reply, error ? -error : REASON_BACK, v6);
}

#endif
