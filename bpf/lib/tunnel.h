/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which of the node's addresses a backend on another node sees in a client's stead: by the tunnel of an overlay network it is the
 * tunnel's, as with the kernel's masquerading. Nodes may refuse another one there (rp_filter), and would answer it beside the
 * tunnel. docs/adr/0048-a-tunnels-own-address.md
 */
#ifndef WEIR_TUNNEL_H
#define WEIR_TUNNEL_H

#include "forward.h"

/* Decided once for a flow: its answers are looked for at that address. */
static __always_inline bool leaves_by_tunnel(ctx_t *ctx, const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct tunnel *tunnel;

	if (!backend || backend->flags & BACKEND_LOCAL)
		return false;
	tunnel = v6 ? &config->tunnel6 : &config->tunnel4;
	return tunnel->ifindex && way_to(ctx, p, &backend->addr, config, 1, v6) == tunnel->ifindex;
}

/* Functions of their own: few flows ask, and a route needs room on the stack. Return whether it is so. */
__noinline int leaves_by_tunnel4(ctx_t *ctx, const struct packet *p, const struct flow *flow)
{
	return p && flow ? leaves_by_tunnel(ctx, p, flow, false) : false;
}

__noinline int leaves_by_tunnel6(ctx_t *ctx, const struct packet *p, const struct flow *flow)
{
	return p && flow ? leaves_by_tunnel(ctx, p, flow, true) : false;
}

#endif
