/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A packet's life. ingress() is for the interface that a client is behind, and for answers to the node's own SNAT ports;
 * egress() is for answers on their way to the client. Both return the reason why the packet leaves the program:
 * below 16 it is untouched, below 32 translated, below 48 answered, from 48 on dropped. p->action, if set, is the verdict.
 */
#ifndef WEIR_NAT_H
#define WEIR_NAT_H

#include "choose.h"
#include "forward.h"
#include "signals.h"

/* Whether a reason asks for an answer in the service's name. */
static __always_inline bool wants_answer(int reason)
{
	return reason >= REASON_NO_ENDPOINTS && reason < REASON_NO_LOCAL_ENDPOINTS;
}

static __always_inline bool is_translated(int reason)
{
	return reason >= REASON_TO_LOCAL && reason < REASON_NO_ENDPOINTS;
}

/* The endpoint of a flow, or NULL if it went away since. */
static __always_inline const struct backend *flow_backend(const struct flow *flow)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);

	return backend && backend->generation == flow->generation ? backend : NULL;
}

/*
 * What a packet is to its flow: a fast client reuses ports, an idle UDP flow has ended, another has taken its place, the
 * backend does not answer. SYNs ask each time, other packets once a tick.
 */
static __always_inline int step_of(const struct packet *p, const struct flow *flow, const struct config *config,
				   const bool v6)
{
	__u32 now = now_ticks();

	if (p->proto == IPPROTO_UDP && is_idle(now, flow->last_seen, config->udp_idle))
		return STEP_OVER;
	if (p->syn && flow->flags & FLOW_CLOSING)
		return STEP_OVER;
	if (!p->syn && flow->last_seen == now)
		return STEP_ON;
	return v6 ? next_step6(p, flow) : next_step4(p, flow);
}

/* When the answer to a packet that begins a flow begins to be awaited. One that was there before us is not timed. */
static __always_inline __u32 asked_by(const struct packet *p)
{
	return p->syn || p->proto == IPPROTO_UDP ? now_delay() : 0;
}

/*
 * Whether this CPU gets more new flows in this tick than anybody's clients make: what can be told from a packet is not
 * remembered then.
 */
static __always_inline bool is_flood(const struct config *config)
{
	__u32 first = 0, now = now_ticks();
	struct pace *pace = bpf_map_lookup_elem(&paces, &first);

	if (!config || !pace || config->flags & CONFIG_BESIDE)
		return false;
	if (pace->tick != now)
		*pace = (struct pace){ .tick = now };
	return pace->flows++ >= config->flood;
}

/*
 * Writes both entries of a new flow that keeps its client's address. External traffic to another node, and a pod that
 * meets itself, need the node's address as their source; so does a client that already talks to the backend from the
 * same port through another frontend. For these, and where FLOW_SNAT is set already, only that is set.
 * Returns 0, -REASON_FLOW_TABLE or -REASON_BROKEN_TABLE.
 */
static __always_inline int flow_open(const struct packet *p, struct flow *flow, bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);
	const bool flood = is_flood(config);
	struct reply reply;

	if (!config || !backend)
		return -REASON_BROKEN_TABLE;
	if ((from_outside && !(backend->flags & BACKEND_LOCAL)) || addr_equal(&p->src, &backend->addr, v6)) {
		flow->flags |= FLOW_SNAT;
		return 0;
	}
	reply = reply_of(p, flow, asked_by(p));
	/*
	 * The node cannot be sent its own packets: no masquerade, as with kube-proxy, and of two such flows to a process on
	 * it the newer one wins.
	 */
	if (is_here(backend)) {
		flow->flags &= ~FLOW_SNAT;
		reply.flags &= ~FLOW_SNAT;
		reply_forget(&backend->addr, &p->src, backend->port, p->sport, p->proto, STAGE_GOING, v6);
		reply_store(backend, &p->src, p->sport, &reply, BPF_ANY, STAGE_OPENING, v6);
	} else if (flow->flags & FLOW_SNAT) {
		return 0;
	} else if (reply_store_direct(p, backend, config, &reply, v6)) {
		flow->flags |= FLOW_SNAT;
		return 0;
	}
	/* Its client's next packet is hashed to the same backend, which by then has answered. */
	if (flood && p->syn)
		return 0;
	return flow_store(p, flow, STAGE_OPENING, v6) ? -REASON_FLOW_TABLE : 0;
}

/* Writes both entries of a new flow with FLOW_SNAT. Returns 0, -REASON_SNAT_EXHAUSTED or -REASON_FLOW_TABLE. */
static __always_inline int flow_open_snat(const struct packet *p, struct flow *flow, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);
	struct reply reply = reply_of(p, flow, asked_by(p));

	if (!config || !backend)
		return -REASON_BROKEN_TABLE;
	flow->snat_port = reply_store_snat(backend, config, &reply, v6);
	if (!flow->snat_port)
		return -REASON_SNAT_EXHAUSTED;
	return flow_store(p, flow, STAGE_OPENING, v6) ? -REASON_FLOW_TABLE : 0;
}

/* What keeps a packet to one of our addresses from starting a flow. Returns 0 or a negative reason. */
static __always_inline int turned_away(const struct packet *p, const struct config *config)
{
	/* Tables that are being filled may lack its flow. */
	if (config->flags & CONFIG_HOLD)
		return -REASON_HELD;
	if (config->flags & CONFIG_BESIDE && p->proto != IPPROTO_UDP && !p->syn)
		return -REASON_MID_FLOW;
	/* A reset needs no flow; passed on untranslated it would reach whoever owns the address. */
	return p->reset ? -REASON_STALE : 0;
}

/*
 * Chooses for a packet that starts a flow and fills in the flow, which may name a backend to avoid, and hold how often that
 * was so. Returns 0 or a negative reason.
 */
static __always_inline int flow_start(const struct packet *p, struct flow *flow, bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct frontend *frontend;
	struct request request = {};
	int error;

	if (!config || is_loopback(&p->dst, v6))
		return -REASON_NO_FRONTEND;
	/* Martians, which the host drops: what leaves in the node's name never gets there. */
	if (is_loopback(&p->src, v6) || !is_set(&p->src))
		return -REASON_NO_FRONTEND;
	frontend = frontend_lookup(&p->dst, p->dport, p->proto, v6);
	if (!frontend && !is_unused_port(&p->dst, v6)) {
		/* Whoever serves the address now must get the rest of this connection, too. */
		flow_forget(p, STAGE_GOING, v6);
		flow_forget(p, STAGE_OPENING, v6);
		return -REASON_NO_FRONTEND;
	}
	error = turned_away(p, config);
	if (error || !frontend)
		return error ?: -REASON_UNUSED_PORT;
	request.backend = flow->backend;
	request.client = p->src;
	request.hash = flow_hash(flow_seed(config, frontend), p, v6);
	request.service = flow->service = frontend->service;
	request.kind = frontend->kind;
	request.class = traffic_class_of(frontend, from_outside);
	error = choose(&request);
	/* XDP leaves it to tc, which answers and counts. */
	if (error && !(CTX_XDP && wants_answer(-error)))
		count_refusal(flow->service, -error);
	if (flow->backend && flow->backend != request.backend)
		flow->flags += FLOW_RETRY;
	flow->backend = request.backend;
	flow->generation = request.generation;
	if (masquerades(config, &request, from_outside, v6))
		flow->flags |= FLOW_SNAT;
	flow->flags |= FLOW_OPENING;
	flow->created = flow->last_seen = now_ticks();
	return error;
}

/*
 * Functions of their own: new flows are rare, the verifier then walks them once, and none of them has the others'
 * stack. Return 0 or a negative reason.
 */
__noinline int flow_start4(const struct packet *p, struct flow *flow, bool from_outside)
{
	return p && flow ? flow_start(p, flow, from_outside, false) : -REASON_BROKEN_TABLE;
}

__noinline int flow_start6(const struct packet *p, struct flow *flow, bool from_outside)
{
	return p && flow ? flow_start(p, flow, from_outside, true) : -REASON_BROKEN_TABLE;
}

__noinline int flow_open4(const struct packet *p, struct flow *flow, bool from_outside)
{
	return p && flow ? flow_open(p, flow, from_outside, false) : -REASON_BROKEN_TABLE;
}

__noinline int flow_open6(const struct packet *p, struct flow *flow, bool from_outside)
{
	return p && flow ? flow_open(p, flow, from_outside, true) : -REASON_BROKEN_TABLE;
}

__noinline int flow_open_snat4(const struct packet *p, struct flow *flow)
{
	return p && flow ? flow_open_snat(p, flow, false) : -REASON_BROKEN_TABLE;
}

__noinline int flow_open_snat6(const struct packet *p, struct flow *flow)
{
	return p && flow ? flow_open_snat(p, flow, true) : -REASON_BROKEN_TABLE;
}

static __always_inline void note(const struct packet *p, enum silence silence, const bool v6)
{
	(void)(v6 ? note_silence6(p, silence) : note_silence4(p, silence));
}

/* Both entries of a new flow. Returns 0 or a negative reason. */
static __always_inline int flow_write(const struct packet *p, struct flow *flow, bool from_outside, const bool v6)
{
	int error = v6 ? flow_open6(p, flow, from_outside) : flow_open4(p, flow, from_outside);

	if (error)
		return error;
	if (!(flow->flags & FLOW_SNAT)) {
		/* Of a flood, an answered one. */
		if (!p->syn && p->proto == IPPROTO_TCP)
			(void)(v6 ? promote6(p, flow) : promote4(p, flow));
		return 0;
	}
	return v6 ? flow_open_snat6(p, flow) : flow_open_snat4(p, flow);
}

/* Not a reason: no other backend than the one to avoid can have the flow. */
#define FLOW_STAYS 1

/* A new flow for a packet. Returns 0, FLOW_STAYS or a negative reason. */
static __always_inline int flow_new(const struct packet *p, struct flow *flow, bool from_outside, const bool v6)
{
	__u32 avoid = flow->backend;
	int error = v6 ? flow_start6(p, flow, from_outside) : flow_start4(p, flow, from_outside);

	if (error || !avoid)
		return error ?: flow_write(p, flow, from_outside, v6);
	if (avoid == flow->backend) {
		note(p, SILENCE_STAYS, v6);
		return FLOW_STAYS;
	}
	note(p, SILENCE_LEFT, v6);
	if (!flow_write(p, flow, from_outside, v6))
		return 0;
	note(p, SILENCE_BACK, v6);
	return FLOW_STAYS;
}

/* Sends a client's packet to a backend in the node's name. Returns 0 or a negative reason. */
static __always_inline int snat_to(ctx_t *ctx, struct packet *p, const struct flow *flow, const struct backend *backend,
				   const bool v6)
{
	const struct config *config = config_get();
	struct bpf_fib_lookup fib = {};
	struct ends to = {
		.dst = backend->addr,
		.sport = flow->snat_port,
		.dport = backend->port,
	};
	int error;

	if (!config)
		return -REASON_BROKEN_TABLE;
	to.src = v6 ? config->node6 : config->node4;
	error = route_find(ctx, p, &to, &fib, v6);
	return error ?: send(ctx, p, &to, &fib, v6);
}

/* Functions of their own: what is sent in somebody else's name needs room on the stack for two addresses and a route. */
__noinline int snat_to4(ctx_t *ctx, struct packet *p, const struct flow *flow, const struct backend *backend)
{
	return p && flow && backend ? snat_to(ctx, p, flow, backend, false) : -REASON_BROKEN_TABLE;
}

__noinline int snat_to6(ctx_t *ctx, struct packet *p, const struct flow *flow, const struct backend *backend)
{
	return p && flow && backend ? snat_to(ctx, p, flow, backend, true) : -REASON_BROKEN_TABLE;
}

/* Translates a client's packet. Returns a reason. */
static __always_inline int to_backend(ctx_t *ctx, struct packet *p, const struct flow *flow,
				      const struct backend *backend, const bool v6)
{
	enum reason reason = backend->flags & BACKEND_LOCAL ? REASON_TO_LOCAL : REASON_TO_REMOTE;
	int error;

	if (flow->flags & FLOW_SNAT) {
		if (addr_equal(&p->src, &backend->addr, v6))
			reason = REASON_HAIRPIN;
		error = v6 ? snat_to6(ctx, p, flow, backend) : snat_to4(ctx, p, flow, backend);
	} else {
		p->hand_over = backend->flags & BACKEND_HOST_NETWORK;
		error = ctx_rewrite(ctx, p, false, &backend->addr, backend->port, v6);
	}
	return error ? -error : reason;
}

/* What a backend's packet answers, or NULL. */
static __always_inline struct reply *reply_of_answer(const struct packet *p, const bool v6)
{
	struct reply *reply = reply_lookup(p, v6);

	if (reply && is_answered_again(reply, p) &&
	    (v6 ? promote_answered6(reply, p->proto) : promote_answered4(reply, p->proto)))
		return reply_lookup(p, v6);
	return reply;
}

/* Translates an answer to one of the node's SNAT ports and sends it to the client. Returns a reason. */
static __always_inline int snat_back(ctx_t *ctx, struct packet *p, struct reply *reply, const bool v6)
{
	struct bpf_fib_lookup fib = {};
	struct ends to = {
		.src = reply->frontend,
		.dst = reply->client,
		.sport = reply->frontend_port,
		.dport = reply->client_port,
	};
	int error = route_find(ctx, p, &to, &fib, v6);

	if (error)
		return -error;
	count_back(reply, p);
	error = send(ctx, p, &to, &fib, v6);
	return error ? -error : REASON_BACK;
}

__noinline int snat_back4(ctx_t *ctx, struct packet *p, struct reply *reply)
{
	return p && reply ? snat_back(ctx, p, reply, false) : REASON_BROKEN_TABLE;
}

__noinline int snat_back6(ctx_t *ctx, struct packet *p, struct reply *reply)
{
	return p && reply ? snat_back(ctx, p, reply, true) : REASON_BROKEN_TABLE;
}

/* What a packet's destination says of it. */
enum snat_answer {
	SNAT_NO = 0, /* it is no answer to the node in a client's stead */
	SNAT_MAYBE = 1,
	SNAT_LEFT = 2, /* it may be one, or the host's own by now */
};

/* Few packets are for the node itself, so that the others pay for one comparison. SCTP flows keep their client's port. */
static __always_inline enum snat_answer may_be_snat(const struct packet *p, const struct config *config, const bool v6)
{
	const struct addr *node = v6 ? &config->node6 : &config->node4;
	__u16 port = bpf_ntohs(p->dport);
	__u32 slot = port >> SNAT_WORD_BITS, bit = port & ((1 << SNAT_WORD_BITS) - 1);
	const struct snat_ports *ports;

	if (p->dst.word[3] != node->word[3])
		return SNAT_NO;
	if (p->proto == IPPROTO_SCTP)
		return SNAT_MAYBE;
	ports = bpf_map_lookup_elem(&snat_ports, &slot);
	if (!ports || !(ports->answers >> bit & 1))
		return SNAT_NO;
	return ports->left >> bit & 1 ? SNAT_LEFT : SNAT_MAYBE;
}

static __always_inline bool is_anothers(const struct packet *p, const bool v6)
{
	return v6 ? reply_is_anothers6(p) : reply_is_anothers4(p);
}

/* Ticks for which a backend may repeat its answer to a SYN: five times, a minute in all, where a tick is a second. */
#define MOVED_IDLE 64

/* A SYN that no backend has answered. The next one begins anew. */
static __always_inline int gives_up(const struct packet *p, const bool v6)
{
	if (!CTX_XDP) {
		note(p, SILENCE_LEFT, v6);
		flow_forget(p, STAGE_GOING, v6);
		flow_forget(p, STAGE_OPENING, v6);
	}
	return REASON_UNANSWERED;
}

/*
 * The flow that begins with a client's packets, or NULL. When the client goes on after an answer, the flow does: neither a SYN
 * again nor an end shows that it heard of one.
 */
static __always_inline struct flow *flow_opening(const struct packet *p, const bool v6)
{
	struct flow *flow = flow_lookup(p, STAGE_OPENING, v6);

	if (!flow || p->syn || p->ending)
		return flow;
	if (v6 ? promote6(p, flow) : promote4(p, flow))
		return flow_lookup(p, STAGE_GOING, v6);
	return flow;
}

static __always_inline int ingress(ctx_t *ctx, struct packet *p, const bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend;
	struct flow *known, flow = {};
	int error, reason, step = STEP_OVER;
	enum snat_answer answer;

	if (!config)
		return REASON_NO_FRONTEND;
	answer = may_be_snat(p, config, v6);
	if (answer != SNAT_NO) {
		struct reply *reply = reply_of_answer(p, v6);
		bool shared = answer == SNAT_LEFT || config->flags & CONFIG_BESIDE;

		if (reply && reply->flags & FLOW_SNAT && !(shared && is_anothers(p, v6))) {
			if (reply->flags & FLOW_MOVED)
				return REASON_STALE;
			return v6 ? snat_back6(ctx, p, reply) : snat_back4(ctx, p, reply);
		}
	}
	if (!may_be_frontend(&p->dst, p->dport, p->proto) && !may_be_frontend(&p->dst, 0, 0))
		return REASON_NO_FRONTEND;
	known = flow_lookup(p, STAGE_GOING, v6);
	if (!known)
		known = flow_opening(p, v6);
	backend = known ? flow_backend(known) : NULL;
	if (known && backend)
		step = step_of(p, known, config, v6);
	if (step != STEP_ON) {
		/* Only the first piece of a datagram starts a flow or is answered. */
		if (p->piece == PIECE_LATER)
			return REASON_STALE;
		if (known && p->proto == IPPROTO_TCP && !p->syn)
			return config->flags & CONFIG_RESET_STALE && !p->reset ? REASON_STALE_RESET : REASON_STALE;
		if (known && step == STEP_GIVE_UP)
			return gives_up(p, v6);
		if (known && step == STEP_ELSEWHERE) {
			flow.backend = known->backend;
			flow.flags = known->flags & FLOW_RETRIES;
		}
		error = flow_new(p, &flow, from_outside, v6);
		if (error < 0)
			return -error;
		if (error != FLOW_STAYS) {
			/* The one before would hide it. */
			if (known && !(known->flags & FLOW_OPENING))
				flow_forget(p, STAGE_GOING, v6);
			known = &flow;
			backend = bpf_map_lookup_elem(&backends, &flow.backend);
		}
	}
	if (!known || !backend)
		return REASON_BROKEN_TABLE;
	reason = to_backend(ctx, p, known, backend, v6);
	if (is_translated(reason))
		count_to(known, p);
	return reason;
}

static __always_inline int egress(ctx_t *ctx, struct packet *p, const bool v6)
{
	const struct config *config = config_get();
	struct reply *reply = reply_of_answer(p, v6);
	__u32 now;
	int error;

	if (!config || !reply || reply->flags & FLOW_SNAT)
		return REASON_NO_REPLY;
	now = now_ticks();
	if (reply->flags & FLOW_MOVED && !is_idle(now, reply->last_seen, MOVED_IDLE))
		return REASON_STALE;
	/* A client may talk to the endpoint itself, from a port that it once used for the service. */
	if ((p->syn_ack || (p->proto == IPPROTO_UDP && is_idle(now, reply->last_seen, config->udp_idle))) &&
	    is_anothers(p, v6))
		return REASON_NO_REPLY;
	count_back(reply, p);
	error = ctx_rewrite(ctx, p, true, &reply->frontend, reply->frontend_port, v6);
	return error ? -error : REASON_BACK;
}

#endif
