/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which of the node's addresses a backend on another node sees in a client's stead: by the tunnel of an overlay network it is the
 * tunnel's, as with the kernel's masquerading. Nodes may refuse another one there (rp_filter), and would answer it beside the
 * tunnel. docs/adr/0048-a-tunnels-own-address.md
 */
#ifndef WEIR_TUNNEL_H
#define WEIR_TUNNEL_H

#include "forward.h"

/*
 * Whether packets with a source address come by the interface that a packet has come by: those to it leave there, or by the bridge of which that is a port.
 * A pod that sends in another's name, and whoever does so from outside, would reach that pod in the node's name, past what the host and the CNI have against
 * it. Where one of the two is not known to lead anywhere, or the way is a card, nobody can tell.
 */
static __always_inline bool may_come_from(ctx_t *ctx, const struct packet *p, const bool v6)
{
	__u32 own = ctx_ifindex(ctx), way = way_to(ctx, p, &p->src, config_get(), 1, v6);
	const struct shortcut *port = bpf_map_lookup_elem(&shortcuts, &own);

	if (way == own || !port || (port->bridge && port->bridge == way))
		return true;
	return !bpf_map_lookup_elem(&shortcuts, &way) || bpf_map_lookup_elem(&nics, &way);
}

/*
 * Which of the node's addresses the backend of a new flow sees: decided once for it, as its answers are looked for at that address. Returns FLOW_TUNNEL
 * or 0, or -REASON_NO_ROUTE for what a pod here seems to ask itself and another one does; XDP leaves such to tc, -REASON_LEFT_TO_TC.
 */
static __always_inline int snat_source(ctx_t *ctx, const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct tunnel *tunnel;

	if (!backend)
		return 0;
	if (backend->flags & BACKEND_LOCAL) {
		/* Who wraps has been asked who it is; what has a tag is the interface's that is of its VLAN. */
		if (!addr_equal(&p->src, &backend->addr, v6) || is_unwrapped(p) || p->vlan)
			return 0;
		if (CTX_XDP)
			return -REASON_LEFT_TO_TC;
		return may_come_from(ctx, p, v6) ? 0 : -REASON_NO_ROUTE;
	}
	tunnel = v6 ? &config->tunnel6 : &config->tunnel4;
	return tunnel->ifindex && way_to(ctx, p, &backend->addr, config, 1, v6) == tunnel->ifindex ? FLOW_TUNNEL : 0;
}

/* Functions of their own: few flows ask, and a route needs room on the stack. */
__noinline int snat_source4(ctx_t *ctx, const struct packet *p, const struct flow *flow)
{
	return p && flow ? snat_source(ctx, p, flow, false) : 0;
}

__noinline int snat_source6(ctx_t *ctx, const struct packet *p, const struct flow *flow)
{
	return p && flow ? snat_source(ctx, p, flow, true) : 0;
}

#endif
