/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The receiving end of direct.h: what another node has wrapped for an endpoint of this one. For tc; to XDP it is not transport.
 * All else of its kind is left alone: tunnels of a CNI look the same.
 */
#ifndef WEIR_UNWRAP_H
#define WEIR_UNWRAP_H

#include "ctx_tc.h"
#include "direct.h"
#include "fragment.h"

/* Whether a packet has nothing but another one of its family in it. */
static __always_inline bool is_wrapper(const struct packet *p, const bool v6)
{
	return p->proto == (v6 ? IPPROTO_IPV6 : IPPROTO_IPIP) && !p->piece && p->l3 == sizeof(struct ethhdr) &&
	       p->l4 == sizeof(struct ethhdr) + wrapper_size(v6);
}

/* The slot of a service's endpoint on this node by its address, or 0. */
static __always_inline __u32 local_endpoint(__u32 service, const struct addr *addr)
{
	const struct local_key key = { .addr = *addr, .service = service };
	const struct local_endpoint *found = bpf_map_lookup_elem(&local_endpoints, &key);

	return found ? found->backend : 0;
}

/*
 * What the inner packet is to, or NULL. A node port was asked for at the address of the node that wraps; it is the same at this
 * one's.
 */
static __always_inline const struct frontend *inner_frontend(const struct packet *outer, const struct packet *inner,
							     const struct config *config, const bool v6)
{
	const struct addr *node = v6 ? &config->node6 : &config->node4;
	const struct frontend *frontend = frontend_lookup(&inner->dst, inner->dport, inner->proto, v6);

	if (frontend || !addr_equal(&inner->dst, &outer->src, v6))
		return frontend;
	frontend = frontend_lookup(node, inner->dport, inner->proto, v6);
	return frontend && frontend->kind == KIND_NODE_PORT ? frontend : NULL;
}

/* The slot of the endpoint that a wrapped packet is for, or 0: it is none of ours. */
static __always_inline __u32 endpoint_of(const struct packet *outer, const struct packet *inner, const bool v6)
{
	const struct config *config = config_get();
	const struct frontend *frontend;
	const struct flow *flow;
	__u32 endpoint = 0;

	/* What else goes through tunnels costs one load. */
	if (!may_be_frontend(&inner->dst, inner->dport, inner->proto) && !addr_equal(&inner->dst, &outer->src, v6))
		return 0;
	frontend = inner_frontend(outer, inner, config, v6);
	if (frontend)
		endpoint = local_endpoint(frontend->service, &outer->dst);
	if (endpoint)
		return endpoint;
	/* The address may have left the service since: its connections go on. */
	flow = flow_lookup(inner, STAGE_ANY, v6);
	return flow ? local_endpoint(flow->service, &outer->dst) : 0;
}

/* Whether the address of a wrapped piece without ports is one that is asked for services: no other one waits for its first piece. */
static __always_inline bool may_be_for_service(const struct packet *outer, const struct packet *inner, const bool v6)
{
	return addr_equal(&inner->dst, &outer->src, v6) || frontend_lookup(&inner->dst, 0, 0, v6);
}

/*
 * Takes the wrapper off a packet that is for us. Returns 0, and p is about what was in it; else a negative reason:
 * -REASON_NOT_TRANSPORT for one that is none of ours, which is untouched.
 */
static __always_inline int unwrap(ctx_t *ctx, struct packet *p, const bool v6)
{
	const struct config *config = config_get();
	const __u32 size = wrapper_size(v6);
	struct packet inner = { .frame = p->frame - size };
	struct cursor cursor = ctx_cursor(ctx);
	int error;

	/* In IPv6 the mapped address of another node is not that node's: whoever lets it in has looked at IPv4's addresses alone. */
	if (!(config->flags & CONFIG_UNWRAP) || (v6 && is_mapped(&p->src)) || !lookup_by(&other_nodes, p->src))
		return -REASON_NOT_TRANSPORT;
	cursor.pos += sizeof(struct ethhdr) + size;
	if (cursor.pos > cursor.end)
		return -REASON_MALFORMED;
	error = parse_ip(&cursor, &inner, v6);
	/* From here on it is about what the frame will be. */
	inner.l3 -= size;
	inner.l4 -= size;
	inner.vlan = p->vlan;
	if (!error && inner.piece == PIECE_LATER)
		error = fragment_find(&inner, false);
	/* It waits as it came, wrapped, and comes again so. */
	if (error == -REASON_FRAGMENT_HELD && may_be_for_service(p, &inner, v6)) {
		*p = inner;
		return error;
	}
	if (error)
		return -REASON_NOT_TRANSPORT;
	inner.backend = endpoint_of(p, &inner, v6);
	if (!inner.backend)
		return -REASON_NOT_TRANSPORT;
	if (bpf_skb_adjust_room(ctx, -(int)size, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return -REASON_REWRITE_FAILED;
	*p = inner;
	return 0;
}

/* Functions of their own: few packets are wrapped, and two packets need room on the stack. */
__noinline int unwrap4(ctx_t *ctx, struct packet *p)
{
	return p ? unwrap(ctx, p, false) : -REASON_NOT_TRANSPORT;
}

__noinline int unwrap6(ctx_t *ctx, struct packet *p)
{
	return p ? unwrap(ctx, p, true) : -REASON_NOT_TRANSPORT;
}

#endif
