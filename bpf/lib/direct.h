/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Direct server return: a client's packet for an endpoint of another node is wrapped as it came, and that node answers the
 * client itself (docs/adr/0030-direct-server-return.md). Wrapped is IP in IP of one family (RFC 2003, RFC 2473), to the
 * endpoint's own address: so it goes where packets to the endpoint go. unwrap.h is the other end.
 */
#ifndef WEIR_DIRECT_H
#define WEIR_DIRECT_H

#include "choose.h"
#include "forward.h"
#include "ip_header.h"

/* The other bits are marks of congestion: whoever unwraps does not look at them, so that none may be set (RFC 6040, 4.3). */
#define WRAPPER_TOS 0xfc

/* Bytes that are put around a packet. */
static __always_inline __u32 wrapper_size(const bool v6)
{
	return v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

/* Whether a packet came wrapped: its endpoint is chosen already. */
static __always_inline bool is_unwrapped(const struct packet *p)
{
	return !CTX_XDP && p->backend;
}

/* Bytes that any sender may send by IPv6, and goes on sending whatever it is told (RFC 8200, 5). */
#define IPV6_LEAST_MTU 1280

/* Bytes that the way of a wrapped packet must let pass. By IPv4 senders are told what fits. */
static __always_inline __u16 wrapped_least(const bool v6)
{
	return v6 ? IPV6_LEAST_MTU + sizeof(struct ipv6hdr) : 1;
}

/* What another node needs to know whose frontend it was; it knows no node ports but at the nodes' first addresses. */
static __always_inline bool is_known_elsewhere(const struct packet *p, const struct addr *node, const bool v6)
{
	const struct frontend *frontend = frontend_lookup(&p->dst, p->dport, p->proto, v6);

	return frontend && (frontend->kind != KIND_NODE_PORT || addr_equal(&p->dst, node, v6));
}

/*
 * Whether a new flow is wrapped for its backend's node. Not if that would not get it: nobody looks into what arrives there by
 * another way than the node's interfaces, a tunnel of the CNI for example. Nor if the client is a node: the one that
 * unwraps may be it, and would drop what seems to come from itself. Nor if what nobody sends any shorter would not fit.
 */
static __always_inline bool goes_direct(ctx_t *ctx, const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct config *config = config_get();
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct addr *node;
	__u32 way;

	if (!backend)
		return false;
	node = v6 ? &config->node6 : &config->node4;
	if (!is_set(node) || !is_known_elsewhere(p, node, v6) || lookup_by(&other_nodes, p->src))
		return false;
	way = way_to(ctx, p, &backend->addr, config, wrapped_least(v6), v6);
	return way && bpf_map_lookup_elem(&nics, &way);
}

/* Functions of their own: few flows ask, and a route needs room on the stack. */
__noinline int goes_direct4(ctx_t *ctx, const struct packet *p, const struct flow *flow)
{
	return p && flow ? goes_direct(ctx, p, flow, false) : false;
}

__noinline int goes_direct6(ctx_t *ctx, const struct packet *p, const struct flow *flow)
{
	return p && flow ? goes_direct(ctx, p, flow, true) : false;
}

/* Decides it for a new flow from outside, which has its backend. */
static __always_inline void choose_way(ctx_t *ctx, const struct packet *p, struct flow *flow, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, flow->backend);

	if (!backend || !(backend->flags & BACKEND_DIRECT) || flow->flags & FLOW_SNAT)
		return;
	/* No answer will tell that the flow goes on: what its client says next does. */
	if (v6 ? goes_direct6(ctx, p, flow) : goes_direct4(ctx, p, flow))
		flow->flags |= FLOW_DIRECT | FLOW_REPLIED;
}

/*
 * Fills in the flow of a packet that came wrapped. Source ranges are looked at here, too: who wraps may know older ones. Returns 0
 * or a negative reason.
 */
static __always_inline int flow_start_unwrapped(const struct packet *p, struct flow *flow,
						const struct frontend *frontend)
{
	const struct backend *backend = lookup_by(&backends, p->backend);
	__u32 generation;

	/* It may have gone since it was found. */
	if (!backend || !is_there(backend, &generation))
		return -REASON_BROKEN_TABLE;
	if (frontend && !is_in_ranges(frontend->kind, backend->service, &p->src))
		return -REASON_SOURCE_RANGE;
	if (flow->backend && flow->backend != p->backend)
		flow->flags += FLOW_RETRY;
	flow->backend = p->backend;
	flow->generation = generation;
	flow->service = backend->service;
	flow->flags |= FLOW_OPENING;
	flow->created = flow->last_seen = now_ticks();
	return 0;
}

/*
 * Makes room in front of the IP header, in which the bytes of the old one may still be. Returns 0, -REASON_REWRITE_FAILED, or
 * -REASON_LEFT_TO_TC of an untouched packet.
 */
static __always_inline int make_room(ctx_t *ctx, struct packet *p, const bool v6)
{
#if CTX_XDP
	struct ethhdr *eth;
	int error;

	if (bpf_xdp_adjust_head(ctx, -(int)wrapper_size(v6)))
		return -REASON_LEFT_TO_TC;
	eth = ctx_eth(ctx);
	if (!eth)
		return -REASON_REWRITE_FAILED;
	eth->h_proto = v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	p->l3 += wrapper_size(v6);
	error = ctx_decrement_ttl(ctx, p, v6);
	p->l3 -= wrapper_size(v6);
	return error;
#else
	const __u64 wrapper = v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	/*
	 * Segments keep their size, of which length_on_way() knows that it fits. A piece has none, and of what it calls a wrapper the kernel changes no
	 * length, as held_release() does (__bpf_skb_change_tail() in net/core/filter.c).
	 */
	const __u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | (p->piece == PIECE_WHOLE ? wrapper : 0);

	if (ctx_decrement_ttl(ctx, p, v6) || bpf_skb_adjust_room(ctx, wrapper_size(v6), BPF_ADJ_ROOM_MAC, flags))
		return -REASON_REWRITE_FAILED;
	return 0;
#endif
}

/* Puts a header around the packet, which is a hop older then. Returns as make_room. */
static __always_inline int wrap(ctx_t *ctx, struct packet *p, const struct ends *to, const bool v6)
{
	const struct new_ip ip = {
		.tos = p->tos & WRAPPER_TOS,
		.proto = v6 ? IPPROTO_IPV6 : IPPROTO_IPIP,
		.payload = p->length,
	};
	int error = make_room(ctx, p, v6);

	return error ?: ip_store(ctx, p->l3, &to->src, &to->dst, ip, v6);
}

/*
 * Sends a client's packet as it is to the backend's node. Returns 0 or a negative reason; with -REASON_TOO_BIG p->mtu is what
 * the client may send.
 */
static __always_inline int direct_to(ctx_t *ctx, struct packet *p, const struct backend *backend, const bool v6)
{
	const struct config *config = config_get();
	__u32 length = length_on_way(ctx, p) + wrapper_size(v6);
	struct ends to = { .dst = backend->addr };
	struct bpf_fib_lookup fib = {};
	int error;

	to.src = v6 ? config->node6 : config->node4;
	error = route_find_for(ctx, p, &to, &fib, length > 0xffff ? 0xffff : length, v6);
	if (error == -REASON_TOO_BIG)
		p->mtu -= wrapper_size(v6);
	error = error ?: wrap(ctx, p, &to, v6);
	return error ?: send_off(ctx, p, &fib);
}

/* Functions of their own, as snat_to4 and snat_to6. */
__noinline int direct_to4(ctx_t *ctx, struct packet *p, const struct backend *backend)
{
	return p && backend ? direct_to(ctx, p, backend, false) : -REASON_BROKEN_TABLE;
}

__noinline int direct_to6(ctx_t *ctx, struct packet *p, const struct backend *backend)
{
	return p && backend ? direct_to(ctx, p, backend, true) : -REASON_BROKEN_TABLE;
}

#endif
