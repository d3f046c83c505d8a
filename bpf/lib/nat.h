/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A packet's life. ingress() is for the interface that a client is behind, and for answers to the node's own SNAT ports;
 * egress() is for answers on their way to the client. Both return the reason why the packet leaves the program:
 * below 16 it is untouched, below 32 translated, below 48 answered, from 48 on dropped. p->action, if set, is the verdict.
 */
#ifndef WEIR_NAT_H
#define WEIR_NAT_H

#include "forward.h"
#include "select.h"
#include "service.h"

/* A backend that is a process of this node. */
#define BACKEND_HERE (BACKEND_LOCAL | BACKEND_HOST_NETWORK)

/* The endpoint of a flow, or NULL if it went away since. */
static __always_inline const struct backend *flow_backend(const struct flow *flow)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);

	return backend && backend->generation == flow->generation ? backend : NULL;
}

/* Whether a packet starts over, although its flow is known: a fast client reuses ports, an idle UDP flow has ended. */
static __always_inline bool starts_over(const struct packet *p, const struct flow *flow, const struct config *config,
					__u32 now)
{
	if (p->proto == IPPROTO_TCP)
		return p->syn && flow->flags & FLOW_CLOSING;
	return is_idle(now, flow->last_seen, config->udp_idle);
}

static __always_inline void count_selection(__u32 service, __u32 backend, bool remote)
{
	struct service_counters *of_service = bpf_map_lookup_elem(&service_counters, &service);
	struct backend_counters *of_backend = bpf_map_lookup_elem(&backend_counters, &backend);

	if (of_service)
		__sync_fetch_and_add(remote ? &of_service->remote : &of_service->local, 1);
	if (of_backend)
		__sync_fetch_and_add(&of_backend->flows, 1);
}

static __always_inline void count_refusal(__u32 service, enum reason reason)
{
	struct service_counters *counters = bpf_map_lookup_elem(&service_counters, &service);

	if (counters)
		__sync_fetch_and_add(reason == REASON_NO_ENDPOINTS ? &counters->rejected : &counters->dropped, 1);
}

/*
 * Writes both entries of a new flow. External traffic to another node, and a pod that meets itself, get the node's
 * address as their source; so does a client that already talks to the backend from the same port through another frontend.
 * Returns 0, -REASON_SNAT_EXHAUSTED or -REASON_FLOW_TABLE.
 */
static __always_inline int flow_open(const struct packet *p, struct flow *flow, const struct backend *backend,
				     const struct config *config, bool from_outside, const bool v6)
{
	bool snat = (from_outside && !(backend->flags & BACKEND_LOCAL)) || addr_equal(&p->src, &backend->addr, v6);
	struct reply reply = {
		.frontend = p->dst,
		.client = p->src,
		.frontend_port = p->dport,
		.client_port = p->sport,
		.backend = flow->backend,
		.last_seen = flow->created,
	};

	/* The node cannot be sent its own packets, so of two such flows to a process on it the newer one wins. */
	if (!snat && (backend->flags & BACKEND_HERE) == BACKEND_HERE)
		reply_store(backend, &p->src, p->sport, &reply, BPF_ANY, v6);
	else if (snat || reply_store_direct(p, backend, config, &reply, v6)) {
		reply.flags = FLOW_SNAT;
		flow->flags = FLOW_SNAT;
		flow->snat_port = reply_store_snat(backend, config, &reply, v6);
		if (!flow->snat_port)
			return -REASON_SNAT_EXHAUSTED;
	}
	return flow_store(p, flow, v6) ? -REASON_FLOW_TABLE : 0;
}

/* Selects for a packet that starts a flow and fills in the flow. Returns 0 or a negative reason. */
static __always_inline int flow_start(const struct packet *p, struct flow *flow, bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct frontend *frontend = frontend_lookup(&p->dst, p->dport, p->proto, v6);
	const struct backend *backend;
	const struct service *service;
	bool remote = false;
	int selected;

	if (!frontend || !config)
		return -REASON_NO_FRONTEND;
	/* A reset needs no flow; passed on untranslated it would reach whoever owns the address. */
	if (p->reset)
		return -REASON_STALE;
	if (config->flags & CONFIG_HOLD)
		return -REASON_HELD;
	flow->service = frontend->service;
	service = bpf_map_lookup_elem(&services, &flow->service);
	if (!service)
		return -REASON_BROKEN_TABLE;
	selected = select_backend(service, traffic_class_of(frontend, from_outside),
				  flow_hash(config->hash_seed, p, v6), &remote);
	if (selected < 0) {
		/* XDP leaves it to tc, which answers and counts. */
		if (!CTX_XDP || selected != -REASON_NO_ENDPOINTS)
			count_refusal(flow->service, -selected);
		return selected;
	}
	flow->backend = selected;
	backend = bpf_map_lookup_elem(&backends, &flow->backend);
	if (backend && !(backend->flags & BACKEND_USED)) {
		/* It went away since its reference was read, so the reference has changed, too. */
		selected = select_backend(service, traffic_class_of(frontend, from_outside),
					  flow_hash(config->hash_seed, p, v6), &remote);
		if (selected < 0)
			return selected;
		flow->backend = selected;
		backend = bpf_map_lookup_elem(&backends, &flow->backend);
	}
	if (!backend || !(backend->flags & BACKEND_USED))
		return -REASON_BROKEN_TABLE;
	flow->generation = backend->generation;
	flow->created = flow->last_seen = now_ticks();
	count_selection(flow->service, flow->backend, remote);
	return flow_open(p, flow, backend, config, from_outside, v6);
}

/* Functions of their own, as new flows are rare and the verifier then walks them once. Return as flow_start. */
__noinline int flow_start4(const struct packet *p, struct flow *flow, bool from_outside)
{
	return p && flow ? flow_start(p, flow, from_outside, false) : -REASON_BROKEN_TABLE;
}

__noinline int flow_start6(const struct packet *p, struct flow *flow, bool from_outside)
{
	return p && flow ? flow_start(p, flow, from_outside, true) : -REASON_BROKEN_TABLE;
}

/* Translates a client's packet. Returns a reason. */
static __always_inline int to_backend(ctx_t *ctx, struct packet *p, const struct flow *flow,
				      const struct backend *backend, const struct config *config, const bool v6)
{
	enum reason reason = backend->flags & BACKEND_LOCAL ? REASON_TO_LOCAL : REASON_TO_REMOTE;
	int error;

	if (!(flow->flags & FLOW_SNAT)) {
		p->hand_over = backend->flags & BACKEND_HOST_NETWORK;
		error = ctx_rewrite(ctx, p, false, &backend->addr, backend->port, v6);
		return error ? -error : reason;
	}
	struct bpf_fib_lookup fib = {};
	struct ends to = {
		.src = v6 ? config->node6 : config->node4,
		.dst = backend->addr,
		.sport = flow->snat_port,
		.dport = backend->port,
	};

	if (addr_equal(&p->src, &backend->addr, v6))
		reason = REASON_HAIRPIN;
	error = route_find(ctx, p, &to, &fib, v6);
	error = error ?: send(ctx, p, &to, &fib, v6);
	return error ? -error : reason;
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
	reply->last_seen = now_ticks();
	reply->flags = FLOW_SNAT | FLOW_REPLIED;
	error = send(ctx, p, &to, &fib, v6);
	return error ? -error : REASON_BACK;
}

static __always_inline bool is_snat_port(const struct config *config, __be16 port)
{
	__u16 host = bpf_ntohs(port);

	return host >= config->snat_min && host <= config->snat_max;
}

static __always_inline int ingress(ctx_t *ctx, struct packet *p, const bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend;
	struct flow *known, flow = {};
	int error;

	if (!config)
		return REASON_NO_FRONTEND;
	if (is_snat_port(config, p->dport)) {
		struct reply *reply = reply_lookup(p, v6);

		if (reply && reply->flags & FLOW_SNAT)
			return snat_back(ctx, p, reply, v6);
	}
	if (!may_be_frontend(&p->dst, p->dport, p->proto))
		return REASON_NO_FRONTEND;
	known = flow_lookup(p, v6);
	if (known) {
		__u32 now = now_ticks();

		backend = flow_backend(known);
		if (backend && !starts_over(p, known, config, now)) {
			if (known->last_seen != now)
				known->last_seen = now;
			if (p->ending)
				known->flags |= FLOW_CLOSING;
			return to_backend(ctx, p, known, backend, config, v6);
		}
		if (!backend && p->proto == IPPROTO_TCP && !p->syn)
			return config->flags & CONFIG_RESET_STALE && !p->reset ? REASON_STALE_RESET : REASON_STALE;
	}
	error = v6 ? flow_start6(p, &flow, from_outside) : flow_start4(p, &flow, from_outside);
	if (error)
		return -error;
	backend = bpf_map_lookup_elem(&backends, &flow.backend);
	if (!backend)
		return REASON_BROKEN_TABLE;
	return to_backend(ctx, p, &flow, backend, config, v6);
}

static __always_inline int egress(ctx_t *ctx, struct packet *p, const bool v6)
{
	struct reply *reply = reply_lookup(p, v6);
	__u32 now;
	int error;

	if (!reply || reply->flags & FLOW_SNAT)
		return REASON_NO_REPLY;
	now = now_ticks();
	if (reply->last_seen != now || !(reply->flags & FLOW_REPLIED)) {
		reply->last_seen = now;
		reply->flags |= FLOW_REPLIED;
	}
	error = ctx_rewrite(ctx, p, true, &reply->frontend, reply->frontend_port, v6);
	return error ? -error : REASON_BACK;
}

#endif
