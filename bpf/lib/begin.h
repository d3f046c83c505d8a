/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How a flow begins: what may start one, where it goes, and both of its entries. Most is a function of its own: new flows are
 * rare.
 */
#ifndef WEIR_BEGIN_H
#define WEIR_BEGIN_H

#include "choose.h"
#include "direct.h"
#include "pace.h"
#include "place.h"
#include "recall.h"
#include "source_port.h"
#include "step.h"
#include "tunnel.h"

/* Whether a reason asks for an answer in the service's name. */
static __always_inline bool wants_answer(int reason)
{
	return reason >= REASON_NO_ENDPOINTS && reason < REASON_NO_LOCAL_ENDPOINTS;
}

/* Whether a packet that leaves for a reason was translated. */
static __always_inline bool is_translated(int reason)
{
	return reason >= REASON_TO_LOCAL && reason < REASON_NO_ENDPOINTS;
}

/* When the answer to a packet that begins a flow begins to be awaited. One that was there before us is not timed. */
static __always_inline __u32 asked_at(const struct packet *p)
{
	return asks(p) || p->proto == IPPROTO_UDP ? now_delay() : 0;
}

/* What is unsure about the flow that a packet begins: enum unsure. */
static __always_inline __u8 unsure_of(const struct packet *p, const struct config *config)
{
	__u8 unsure = is_flood(config) || !p->syn ? UNSURE_BY_HASH : 0;

	/* Datagrams are remembered always. */
	if (p->proto == IPPROTO_UDP)
		return 0;
	/* It is kept when the flow goes on; of an association that is met in its middle nobody tells when. */
	if (p->proto == IPPROTO_TCP || p->syn)
		unsure |= UNSURE_KEEP_NOTHING;
	return unsure;
}

/*
 * Writes the flow of a new connection, whose entry of answers is written. by_hash: it is one of a flood, and its client's next packet goes to the same
 * backend, which by then has answered. Returns 0 or -REASON_FLOW_TABLE.
 */
static __always_inline int flow_store_new(const struct packet *p, const struct flow *flow, bool by_hash, const bool v6)
{
	if (by_hash)
		return flow_by_hash(p, flow, v6);
	return flow_store(p, flow, STAGE_OPENING, v6) ? -REASON_FLOW_TABLE : 0;
}

/* Whether a packet needs the node's address as its source: external traffic to another node, and a pod that meets itself. */
static __always_inline bool needs_snat(const struct packet *p, const struct backend *backend, bool from_outside,
				       const bool v6)
{
	return (from_outside && !(backend->flags & BACKEND_LOCAL)) || addr_equal(&p->src, &backend->addr, v6);
}

/*
 * Writes both entries of a new flow that keeps its client's address and port. Where it needs another address, only FLOW_SNAT is set, as it may be
 * already. Returns 0, BEGUN_AGAIN, -REASON_FLOW_TABLE, -REASON_BROKEN_TABLE, or BEGUN_ELSE with nothing written, where it needs another port: its
 * client already talks to the backend from the same one through another frontend, or may be another node in the stead of one that does. With
 * another address it would pass network policies by, on this node's way to its pods.
 */
static __always_inline int flow_open(const struct packet *p, struct flow *flow, bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const bool first = p->syn && !(flow->flags & FLOW_RETRIES), flood = first && is_flood(config);
	struct reply reply;
	long error;

	if (!backend)
		return -REASON_BROKEN_TABLE;
	count_pace(p, config);
	if (flow->flags & FLOW_DIRECT)
		return flow_store_new(p, flow, flood, v6);
	if (needs_snat(p, backend, from_outside, v6)) {
		flow->flags |= FLOW_SNAT;
		return 0;
	}
	reply_of(&reply, p, flow, asked_at(p));
	reply.flags |= flood ? FLOW_BY_HASH : 0;
	/* The node cannot be sent its own packets: no masquerade, as with kube-proxy. */
	if (is_here(backend)) {
		flow->flags &= ~FLOW_SNAT;
		reply.flags &= ~FLOW_SNAT;
		error = reply_store_here(p, backend, &reply, first, v6);
		if (error < 0)
			return -REASON_FLOW_TABLE;
	} else if (flow->flags & FLOW_SNAT) {
		return 0;
	} else {
		error = is_from_nodes_port(p) ? -1 : reply_store_client(p, backend, &reply, first, v6);
		if (error < 0)
			return p->proto == IPPROTO_SCTP ? -REASON_FLOW_TABLE : BEGUN_ELSE;
	}
	/* What it goes on with may not move it: an end, or an ACK in its name. */
	if (error == BEGUN_ANSWERED)
		flow->flags |= FLOW_REPLIED;
	/* Of a SYN that went elsewhere the entry must not go on naming the backend that was left. */
	if (error == BEGUN_AGAIN)
		return flow_store_new(p, flow, false, v6) ?: BEGUN_AGAIN;
	return flow_store_new(p, flow, flood, v6);
}

/*
 * Writes both entries of a new flow with FLOW_SNAT, or of one that gets another port with its client's address. Returns 0, -REASON_FIRST_SYN,
 * -REASON_SNAT_EXHAUSTED, -REASON_FLOW_TABLE, -REASON_BROKEN_TABLE, or -REASON_NO_ROUTE on a node without an address of the family.
 */
static __always_inline int flow_open_snat(const struct packet *p, struct flow *flow, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend = lookup_by(&backends, flow->backend);
	struct snat_counter *counter;

	counter = backend ? snat_counter_of(backend) : NULL;
	if (!backend || !counter)
		return -REASON_BROKEN_TABLE;
	if (flow->flags & FLOW_SNAT && !is_set(source_of(config, flow->flags, v6)))
		return -REASON_NO_ROUTE;
	if (must_ask_again(p, flow, counter) && note_first_syn(packet_hash(p, v6)))
		return -REASON_FIRST_SYN;
	flow->snat_port = reply_store_snat(p, flow, asked_at(p), backend, counter, v6);
	/* More ports would not help an association, which has its client's. */
	if (!flow->snat_port)
		return p->proto == IPPROTO_SCTP ? -REASON_FLOW_TABLE : -REASON_SNAT_EXHAUSTED;
	return flow_store_new(p, flow, false, v6);
}

/* What keeps a packet to one of our addresses from starting a flow. Returns 0 or a negative reason. */
static __always_inline int turned_away(const struct packet *p, const struct config *config)
{
	/* Tables that are being filled may lack its flow. */
	if (config->flags & CONFIG_HOLD && bpf_ktime_get_ns() < config->held_until)
		return -REASON_HELD;
	if (config->flags & CONFIG_BESIDE && p->proto != IPPROTO_UDP && !p->syn)
		return -REASON_MID_FLOW;
	/* A reset needs no flow; passed on untranslated it would reach whoever owns the address. */
	return p->reset ? -REASON_STALE : 0;
}

/*
 * Whether an address is one that new flows have in place of their clients': whoever sends in its name would have the answers to others. The host
 * drops that. That of a tunnel which is gone may be anybody's by now.
 */
static __always_inline bool is_own(const struct addr *addr, const struct config *config, const bool v6)
{
	const struct tunnel *tunnel = v6 ? &config->tunnel6 : &config->tunnel4;

	return addr_equal(addr, source_of(config, 0, v6), v6) ||
	       (tunnel->ifindex && addr_equal(addr, &tunnel->addr, v6));
}

/* Whether a packet that no table knows the flow of may be of one that has lost its place. */
static __always_inline bool may_go_on_there(const struct packet *p, const struct flow *flow)
{
	if (p->proto == IPPROTO_TCP)
		return !p->syn || (!flow->backend && was_flooded());
	return p->proto == IPPROTO_UDP;
}

/*
 * Chooses an endpoint of a frontend's service for a packet that starts a flow, and fills in the flow, which may name a backend to avoid, and hold
 * how often that was so. Returns 0, BEGUN_COUNTED or a negative reason.
 */
static __always_inline int flow_fill(const struct packet *p, struct flow *flow, const struct frontend *frontend,
				     const struct config *config, bool from_outside, const bool v6)
{
	struct request request = {};
	__u32 ago = 0;
	int error = 0;

	request.backend = flow->backend;
	request.client = p->src;
	request.hash = flow_hash(flow_seed(config, frontend), p, v6);
	request.service = flow->service = frontend->service;
	request.kind = frontend->kind;
	request.class = traffic_class_of(frontend, from_outside);
	request.unsure = unsure_of(p, config);
	flow->created = flow->last_seen = now_ticks();
	if (may_go_on_there(p, flow))
		ago = v6 ? goes_on_there6(&request, p) : goes_on_there4(&request, p);
	/* For what its client keeps it is no newer than it is. One of datagrams has gone on: it is older than this one. */
	if (ago)
		flow->created -= ago - (p->proto == IPPROTO_TCP);
	else
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
	return error ?: ago && !p->syn ? BEGUN_COUNTED : 0;
}

/*
 * Finds the frontend of a packet that starts a flow, and fills in the flow: flow_fill(), or flow_start_unwrapped() for what came wrapped. Forgets the
 * packet's flow where its address is no service's any more. Returns 0, BEGUN_COUNTED or a negative reason.
 */
static __always_inline int flow_start(const struct packet *p, struct flow *flow, bool from_outside, const bool v6)
{
	const struct config *config = config_get();
	const struct frontend *frontend;
	int error;

	if (is_loopback(&p->dst, v6))
		return -REASON_NO_FRONTEND;
	/* Martians, which the host drops: what leaves in the node's name never gets there. */
	if (!is_one_host(&p->src, v6) || is_own(&p->src, config, v6))
		return -REASON_NO_FRONTEND;
	frontend = frontend_lookup(&p->dst, p->dport, p->proto, v6);
	if (!frontend && !is_unwrapped(p) && !is_cluster_ip(&p->dst, v6)) {
		/* Whoever serves the address now must get the rest of this connection, too. */
		flow_forget(p, STAGE_ANY, v6);
		return -REASON_NO_FRONTEND;
	}
	error = turned_away(p, config);
	if (!error && is_unwrapped(p))
		return flow_start_unwrapped(p, flow, frontend);
	/* A Service's ports are written before its address as such: this one may have come between the two looks. */
	if (!error && !frontend)
		frontend = frontend_lookup(&p->dst, p->dport, p->proto, v6);
	if (error || !frontend)
		return error ?: -REASON_UNUSED_PORT;
	return flow_fill(p, flow, frontend, config, from_outside, v6);
}

/*
 * Functions of their own: new flows are rare, the verifier then walks them once, and none of them has the others'
 * stack. Return what those do that they are of.
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

/*
 * Counts a flow that goes on, and lets its client keep its backend: of a connection neither is done before, as anybody may send its first packet. The
 * service's own counters are of what this node's clients ask for. A function of its own: a connection asks once. Returns 0.
 */
__noinline int note_gone_on(const struct packet *p, const struct flow *flow)
{
	const struct service *service;
	struct affinity_key key = {};

	if (!p || !flow)
		return 0;
	count_gone_on(flow, !is_unwrapped(p));
	if (is_unwrapped(p))
		return 0;
	service = lookup_by(&services, flow->service);
	if (!service || !service->affinity || !backend_at(flow->backend, flow->generation))
		return 0;
	/* Other nodes send the client where the table says, whichever SYN was lost here. */
	if (service->flags & SERVICE_MAGLEV && flow->flags & FLOW_RETRIES)
		return 0;
	key.client = p->src;
	key.service = flow->service;
	if (is_set(&key.client) && !affinity_stays(&key, flow, service->affinity))
		affinity_store(&key, flow->backend, flow->generation, flow->created);
	return 0;
}

/* Notes that a flow which has moved goes on, once: it may have settled before, or seemed to have ended. */
static __always_inline void flow_goes_on(const struct packet *p, struct flow *flow)
{
	if (!(set_bits(&flow->flags, FLOW_GONE_ON) & FLOW_GONE_ON))
		(void)note_gone_on(p, flow);
}

#endif
