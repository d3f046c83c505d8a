/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets that leave in the node's name, from one of its source ports, and what is answered there. */
#ifndef WEIR_SNAT_H
#define WEIR_SNAT_H

#include "forward.h"
#include "signals.h"

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

	to.src = *source_of(config, flow->flags, v6);
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

	error = error ?: send(ctx, p, &to, &fib, v6);
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

/*
 * Whether a packet may answer one that left in the node's name. Few packets are for the node itself, so that the others pay for two comparisons. SCTP
 * flows keep their client's port.
 */
static __always_inline enum snat_answer may_be_snat(const struct packet *p, const struct config *config, const bool v6)
{
	const struct tunnel *tunnel = v6 ? &config->tunnel6 : &config->tunnel4;
	const struct addr *node = v6 ? &config->node6 : &config->node4;
	__u16 port = bpf_ntohs(p->dport);
	__u32 slot = port >> SNAT_WORD_BITS, bit = port & ((1 << SNAT_WORD_BITS) - 1);
	const struct snat_ports *ports;

	if (p->dst.word[3] != node->word[3] && p->dst.word[3] != tunnel->addr.word[3])
		return SNAT_NO;
	if (p->proto == IPPROTO_SCTP)
		return SNAT_MAYBE;
	ports = bpf_map_lookup_elem(&snat_ports, &slot);
	if (!ports || !(ports->answers >> bit & 1))
		return SNAT_NO;
	return ports->left >> bit & 1 ? SNAT_LEFT : SNAT_MAYBE;
}

#endif
