/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A packet's life. ingress() is for the interface that a client is behind, and for answers to the node's own SNAT ports; egress() in egress.h is
 * for answers on their way to the client. Both return the reason why the packet leaves the program: below 16 it is untouched, below 32 translated,
 * below 48 answered, from 48 on dropped. p->action, if set, is the verdict.
 */
#ifndef WEIR_NAT_H
#define WEIR_NAT_H

#include "new_flow.h"
#include "snat.h"

/* Whether a backend still sends to a client that has been silent: datagrams of one side are enough. */
static __always_inline bool is_told(const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct config *config = config_get();
	const struct reply *reply = own_reply(p, flow, v6);

	return reply && reply->flags & FLOW_REPLIED && !is_idle(now_ticks(), reply->last_seen, config->udp_idle);
}

/* Functions of their own: few datagrams come late. */
__noinline int is_told4(const struct packet *p, const struct flow *flow)
{
	return p && flow ? is_told(p, flow, false) : false;
}

__noinline int is_told6(const struct packet *p, const struct flow *flow)
{
	return p && flow ? is_told(p, flow, true) : false;
}

/*
 * Whether each of a client's packets looks for the entry of its answers: until a connection goes on, a flood takes its place in a fraction of a second,
 * also where the flow keeps its own. An answer would leave untranslated, and its client reset the endpoint.
 */
static __always_inline bool may_lose_answers(const struct packet *p, const struct flow *flow)
{
	return p->proto != IPPROTO_UDP && is_opening(flow->flags) && !(flow->flags & FLOW_ENDED);
}

/* Ticks between two packets of a client that speaks all the time. */
#define SPEAKS_ALL_THE_TIME 1

/*
 * Whether a packet looks after the entry for its flow's answers: the first one of a tick does, but of a connection that goes on and whose client speaks
 * all the time the first one of 2^ANSWERS_SHIFT ticks, counted from its beginning so that not all do at once.
 */
static __always_inline bool looks_after(const struct packet *p, const struct flow *flow, __u32 now)
{
	const __u16 begins_or_ends = FLOW_OPENING | FLOW_CLOSING | FLOW_ENDED;

	if (flow->last_seen == now)
		return false;
	if (p->proto != IPPROTO_TCP || flow->flags & begins_or_ends ||
	    is_idle(now, flow->last_seen, SPEAKS_ALL_THE_TIME))
		return true;
	return ((now - flow->created) ^ (flow->last_seen - flow->created)) >> ANSWERS_SHIFT;
}

/*
 * What a packet is to its flow: a fast client reuses ports, an idle UDP flow has ended, another has taken its place, the
 * backend does not answer. SYNs and those of connections that begin ask each time, other packets now and then.
 */
static __always_inline enum next_step step_of(const struct packet *p, const struct flow *flow,
					      const struct config *config, const bool v6)
{
	__u32 now = now_ticks();

	/* What came wrapped ends here: two nodes that know of each other's endpoints would send it to and fro (RFC 2473, 4.1.2). */
	if (is_unwrapped(p) && flow->flags & FLOW_DIRECT)
		return STEP_OVER;
	if (p->proto == IPPROTO_UDP && is_idle(now, flow->last_seen, config->udp_idle) &&
	    !(v6 ? is_told6(p, flow) : is_told4(p, flow)))
		return STEP_OVER;
	if (p->syn && (flow->flags & FLOW_ENDED || (flow->flags & FLOW_DIRECT && flow->flags & FLOW_CLOSING)))
		return STEP_OVER;
	/* Nobody here knows what was answered: a SYN that comes again may be answered late, by a backend that must keep it. */
	if (flow->flags & FLOW_DIRECT || (!p->syn && !looks_after(p, flow, now) && !may_lose_answers(p, flow)))
		return STEP_ON;
	return v6 ? next_step6(p, flow) : next_step4(p, flow);
}

/* What is to become of a packet that keeps the client's address once it is translated. */
static __always_inline enum handover_kind handover_of(const struct backend *backend)
{
	const struct config *config = config_get();

	if (config->flags & CONFIG_HOST_BYPASS &&
	    (backend->flags & (BACKEND_LOCAL | BACKEND_HOST_NETWORK)) == BACKEND_LOCAL)
		return HANDOVER_TO_POD;
	return HANDOVER_DONE;
}

/* Translates a client's packet. Returns a reason. */
static __always_inline int to_backend(ctx_t *ctx, struct packet *p, const struct flow *flow,
				      const struct backend *backend, const bool v6)
{
	enum reason reason = backend->flags & BACKEND_LOCAL ? REASON_TO_LOCAL : REASON_TO_REMOTE;
	int error;

	if (flow->flags & FLOW_DIRECT) {
		reason = REASON_DIRECT;
		error = v6 ? direct_to6(ctx, p, backend) : direct_to4(ctx, p, backend);
	} else if (flow->flags & FLOW_SNAT) {
		if (addr_equal(&p->src, &backend->addr, v6))
			reason = REASON_HAIRPIN;
		error = v6 ? snat_to6(ctx, p, flow, backend) : snat_to4(ctx, p, flow, backend);
	} else if (CTX_XDP && flow->snat_port) {
		/* Few have another port. */
		return REASON_LEFT_TO_TC;
	} else {
		p->hand_over = handover_of(backend);
		/* Where tc cannot be told, it does all of it. */
		if (p->hand_over == HANDOVER_TO_POD && !ctx_hand_over(ctx, HANDOVER_TO_POD))
			return REASON_LEFT_TO_TC;
		error = ctx_rewrite_to(ctx, p, backend, flow->snat_port ?: p->sport, v6);
	}
	return error ? -error : reason;
}

/* As reply_lookup(), but a second datagram back moves its flow to those that go on before. */
static __always_inline struct reply *reply_of_answer(const struct packet *p, const bool v6)
{
	struct reply *reply = reply_lookup(p, v6);

	if (reply && is_answered_again(reply, p) && (v6 ? promote_answered6(reply) : promote_answered4(reply)))
		return reply_lookup(p, v6);
	return reply;
}

/* Whether a packet answers a SYN whose flow begins: what is known of that may be lost by now, or be another's. */
static __always_inline bool answers_syn(const struct packet *p, const struct reply *reply)
{
	const __u16 others = FLOW_CLOSING | FLOW_ENDED | FLOW_MOVED | FLOW_BY_HASH | FLOW_SETTLED;

	return p->syn_ack && (reply->flags & (FLOW_OPENING | others)) == FLOW_OPENING;
}

/*
 * Has a flow whose SYN is answered, and whose place a flood took while that or its answer was sent again, written anew: the client's next packet
 * would be hashed to another backend or get another port. Returns whether the answer may go back: its client has not gone on to another backend or
 * port.
 */
static __always_inline bool restore_asked(const struct packet *p, const struct reply *reply, const bool v6)
{
	const struct backend *backend = backend_at(reply->backend, reply->generation);
	const __be16 port = snat_port_of(reply, p->dport);
	const struct frontend *frontend;
	struct flow *known, flow = {};
	union flow_key key;

	client_key(&key, reply, p->proto, v6);
	known = flow_at(&key, STAGE_ANY, v6);
	if (known)
		return is_to_backend_of(known, reply) && known->snat_port == port;
	frontend = frontend_lookup(&reply->frontend, reply->frontend_port, p->proto, v6);
	if (!frontend || !backend || backend->service != frontend->service)
		return true;
	flow.backend = reply->backend;
	flow.generation = reply->generation;
	flow.service = frontend->service;
	flow.flags = (reply->flags & (FLOW_SNAT | FLOW_TUNNEL | FLOW_RETRIES)) | FLOW_OPENING | FLOW_REPLIED;
	flow.snat_port = port;
	/* A port that was taken a while ago has not just been. */
	flow.created = flow.last_seen = reply->last_seen;
	(void)(v6 ? openings6_store(&key.v6, &flow, BPF_ANY) : openings4_store(&key.v4, &flow, BPF_ANY));
	return true;
}

/* Functions of their own: only answers to SYNs ask. */
__noinline int restore_asked4(const struct packet *p, const struct reply *reply)
{
	return p && reply ? restore_asked(p, reply, false) : false;
}

__noinline int restore_asked6(const struct packet *p, const struct reply *reply)
{
	return p && reply ? restore_asked(p, reply, true) : false;
}

/* Whether a packet is another connection's than the entry which it meets: that is forgotten then, unless its port is but lent. */
static __always_inline bool is_anothers(const struct packet *p, const struct reply *reply, const bool v6)
{
	/* Asked for here, for the stack's sake. */
	if (!may_be_anothers(p, reply, config_get()))
		return false;
	return v6 ? forget_if_anothers6(p) : forget_if_anothers4(p);
}

/* A SYN that no backend has answered. The next one begins anew. Returns whether it is so. */
static __always_inline bool gives_up(const struct packet *p, const bool v6)
{
	if (CTX_XDP)
		return true;
	if (!note(p, SILENCE_LEFT, v6))
		return false;
	flow_forget(p, STAGE_ANY, v6);
	return true;
}

/*
 * The flow that begins with a client's packets, or NULL. When the client goes on after an answer, the flow does: neither a SYN
 * again nor an end shows that it heard of one. Until then one-way flows cost no look at what their backend said.
 */
static __always_inline struct flow *flow_opening(const struct packet *p, const bool v6)
{
	struct flow *flow = flow_lookup(p, STAGE_OPENING, v6);
	const __u16 reset = FLOW_ENDED | FLOW_CLOSING;
	int step;

	/* Another CPU may have moved it between the two questions. */
	if (!flow && !p->syn)
		return flow_lookup(p, STAGE_GOING, v6);
	if (flow && (flow->flags & reset) == reset && !p->ending && p->proto == IPPROTO_TCP)
		(void)(v6 ? revive6(p, flow) : revive4(p, flow));
	if (!flow || p->syn || p->ending || (flow->flags & (FLOW_REPLIED | FLOW_ENDED)) != FLOW_REPLIED)
		return flow;
	if (flow->flags & FLOW_SETTLED && is_young(flow))
		return flow;
	step = v6 ? promote6(p) : promote4(p);
	if (step == PROMOTED_SOON)
		(void)note_gone_on(p, flow);
	if (step != PROMOTED)
		return flow;
	flow = flow_lookup(p, STAGE_GOING, v6);
	if (flow)
		flow_goes_on(p, flow);
	return flow;
}

/* Where a flow's last packet goes back to the client, the flow goes. Returns the reason. */
static __always_inline int was_last_back(const struct packet *p, const struct reply *reply, int reason, const bool v6)
{
	if (reason == REASON_BACK && is_last(p, reply->flags))
		(void)(v6 ? retire_answered6(reply, p->proto) : retire_answered4(reply, p->proto));
	return reason;
}

/*
 * Sends an answer to the node in a client's stead back to that client. Returns a reason, or REASON_NONE: it is no such answer, or may be the
 * host's own.
 */
static __always_inline int answer_to_node(ctx_t *ctx, struct packet *p, const struct config *config, const bool v6)
{
	const enum snat_answer answer = may_be_snat(p, config, v6);
	struct reply *reply;
	bool shared;
	int reason;

	if (answer == SNAT_NO)
		return REASON_NONE;
	reply = reply_of_answer(p, v6);
	/* The host may give any port to what it masquerades itself: who agrees to a connection there answers that one. */
	shared = answer == SNAT_LEFT || config->flags & CONFIG_BESIDE ||
		 (p->syn_ack && reply && reply->flags & FLOW_ENDED);
	if (!reply)
		return !shared && lost_entry(p, v6) ? REASON_STALE : REASON_NONE;
	if (!(reply->flags & FLOW_SNAT) || (shared && is_anothers(p, reply, v6)))
		return REASON_NONE;
	if (reply->flags & FLOW_MOVED)
		return REASON_STALE;
	if (p->syn_ack && !takes_answer(reply, p))
		return REASON_STALE;
	if (answers_syn(p, reply) && !(v6 ? restore_asked6(p, reply) : restore_asked4(p, reply)))
		return REASON_STALE;
	reason = v6 ? snat_back6(ctx, p, reply) : snat_back4(ctx, p, reply);
	if (reason == REASON_BACK)
		count_back(reply, p, v6);
	return was_last_back(p, reply, reason, v6);
}

/*
 * Whether a packet answers what the host has asked from a frontend's port: note_own(). A SYN does not. A function of its own, for the stack's sake, as few
 * packets ask.
 */
__noinline int answers_host(const struct packet *p, struct flow *known)
{
	const __u32 now = now_ticks();

	if (!p || !known || !(known->flags & FLOW_OWN) || p->syn ||
	    is_idle(now, known->last_seen, idle_limit(p->proto, config_get())))
		return false;
	/* Datagrams the host has to go on with: who has been asked once may be a client later. */
	if (p->proto != IPPROTO_UDP && known->last_seen != now)
		known->last_seen = now;
	if (!(known->flags & FLOW_REPLIED))
		set_bits(&known->flags, FLOW_REPLIED);
	return true;
}

/*
 * Begins a flow with a packet that does not go on with the flow that is known of it, or of which none is known; or says why it begins none.
 * known: that flow, or NULL; then the one that the packet goes with, or NULL if another took its place. flow: room for a new one. step: what the
 * packet is to the flow that is known. Returns 0, -REASON_STALE, -REASON_STALE_RESET, -REASON_UNANSWERED, or a negative reason of flow_new().
 */
static __always_inline int flow_anew(ctx_t *ctx, const struct packet *p, struct flow **known, struct flow *flow,
				     enum next_step step, const bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct flow *before = *known;
	int error;

	/* Only the first piece of a datagram starts a flow or is answered. */
	if (p->piece == PIECE_LATER)
		return -REASON_STALE;
	if (before && p->proto == IPPROTO_TCP && !p->syn)
		return config->flags & CONFIG_RESET_STALE && !p->reset ? -REASON_STALE_RESET : -REASON_STALE;
	if (before && step == STEP_GIVE_UP)
		return gives_up(p, v6) ? -REASON_UNANSWERED : -REASON_STALE;
	/* Not before: until here its place on the stack is for keys. */
	*flow = (struct flow){};
	if (before && step == STEP_ELSEWHERE) {
		flow->backend = before->backend;
		/* What an earlier connection has cost is past. */
		flow->flags = is_opening(before->flags) ? before->flags & FLOW_RETRIES : 0;
		/* Beside a flood it goes on: there is no higher number for this one. */
		if (flow->flags == FLOW_RETRIES)
			flow->flags -= FLOW_RETRY;
	}
	error = flow_new(ctx, p, flow, from_outside, v6);
	if (error < 0)
		return error;
	if (error == BEGUN_STAYS && step == STEP_ELSEWHERE)
		return 0;
	/* The one before would hide it. */
	if (before && !(before->flags & FLOW_OPENING))
		flow_forget(p, STAGE_GOING, v6);
	*known = error == BEGUN_STAYS ? flow_lookup(p, STAGE_OPENING, v6) : flow;
	return 0;
}

/* A packet from a client's side. Returns a reason. */
static __always_inline int ingress(ctx_t *ctx, struct packet *p, const bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend;
	struct flow *known, flow;
	int reason, step = STEP_OVER;

	reason = answer_to_node(ctx, p, config, v6);
	if (reason != REASON_NONE)
		return reason;
	if (!may_be_frontend(&p->dst, p->dport, p->proto) && !may_be_frontend(&p->dst, 0, 0) && !is_unwrapped(p))
		return REASON_NO_FRONTEND;
	if (p->syn)
		flow_fetch(p, v6);
	known = flow_lookup(p, STAGE_GOING, v6) ?: flow_opening(p, v6);
	backend = known ? backend_at(known->backend, known->generation) : NULL;
	if (known && backend)
		step = step_of(p, known, config, v6);
	else if (known && answers_host(p, known))
		return REASON_NO_FRONTEND;
	if (step != STEP_ON) {
		reason = -flow_anew(ctx, p, &known, &flow, step, from_outside, v6);
		if (reason)
			return reason;
		backend = known ? bpf_map_lookup_elem(&backends, &known->backend) : NULL;
	}
	if (!known || !backend)
		return REASON_BROKEN_TABLE;
	reason = to_backend(ctx, p, known, backend, v6);
	if (is_translated(reason)) {
		count_to(known, p, v6);
		if (is_last(p, known->flags))
			(void)(v6 ? retire6(p, known) : retire4(p, known));
	}
	return reason;
}

#endif
