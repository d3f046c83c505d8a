/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sends a packet on without the host's stack. Only packets that carry the node's address as their source, or whose
 * answer must, go this way: the stack would drop them as martians. Everything else is passed up and routed by the host, or goes by bypass.h.
 */
#ifndef WEIR_FORWARD_H
#define WEIR_FORWARD_H

#include "flow.h"
#include "route.h"

/* Of struct tcphdr: the upper half is the header's length in words. */
#define TCP_WORDS_AT 12

/* Of a TOS what routes may differ by: the rest says whether there is a jam (RFC 3168). */
#define TOS_DSCP 0xfc

/*
 * Bytes of the header that IPv6 packets of segments above 64 KiB have, whose payload's length is 0: hop-by-hop options with that of the jumbogram (RFC 2675;
 * net.core gro_max_size, Linux 5.19 to 6.18).
 */
#define JUMBO_HEADER 8

/* Asks the kernel for the way of so many bytes; of 0 it knows by itself, in tc. Returns as bpf_fib_lookup(). */
static __always_inline long route_ask(ctx_t *ctx, const struct packet *p, const struct ends *to,
				      struct bpf_fib_lookup *fib, __u16 length, const bool v6)
{
	fib->family = v6 ? AF_INET6 : AF_INET;
	fib->l4_protocol = p->proto;
	fib->sport = to->sport;
	fib->dport = to->dport;
	fib->tot_len = length;
	fib->ifindex = ctx_ifindex(ctx);
	if (v6) {
		__builtin_memcpy(fib->ipv6_src, &to->src, sizeof(to->src));
		__builtin_memcpy(fib->ipv6_dst, &to->dst, sizeof(to->dst));
	} else {
		fib->tos = p->tos & TOS_DSCP;
		fib->ipv4_src = to->src.word[3];
		fib->ipv4_dst = to->dst.word[3];
	}
	return length ? route_now(ctx, fib) : bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
}

/* The interface by which packets of the node itself, of so many bytes, get to an address; 0: by none. */
static __always_inline __u32 way_to(ctx_t *ctx, const struct packet *p, const struct addr *dst,
				    const struct config *config, __u16 length, const bool v6)
{
	struct bpf_fib_lookup fib = {};
	struct ends to = { .dst = *dst };
	long found;

	to.src = v6 ? config->node6 : config->node4;
	found = route_ask(ctx, p, &to, &fib, length, v6);
	return found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ? fib.ifindex : 0;
}

/* Bytes of the largest packet that will be on the way: the card cuts what has segments. */
static __always_inline __u32 length_on_way(ctx_t *ctx, const struct packet *p)
{
#if CTX_XDP
	(void)ctx;
	return p->length;
#else
	__u32 headers = p->l4 - p->l3;
	__u8 words = 0;

	if (!ctx->gso_size)
		return p->length;
	/* What tells that it is a jumbogram goes when it is cut (ipv6_hopopt_jumbo_remove() in include/net/ipv6.h). */
	if (p->length == sizeof(struct ipv6hdr) && headers >= sizeof(struct ipv6hdr) + JUMBO_HEADER)
		headers -= JUMBO_HEADER;
	if (p->proto != IPPROTO_TCP)
		return headers + sizeof(struct udphdr) + ctx->gso_size;
	bpf_skb_load_bytes(ctx, p->l4 + TCP_WORDS_AT, &words, sizeof(words));
	return headers + (words >> 4) * 4 + ctx->gso_size;
#endif
}

/*
 * Whether a packet fits the device that it would leave by, of which the kernel was not told the length: it holds the frame against the
 * MTU then, link header and all, whether or not either device has one (__is_skb_forwardable() in net/core/dev.c).
 */
static __always_inline bool fits_device(ctx_t *ctx, const struct packet *p, const struct bpf_fib_lookup *fib)
{
#if CTX_XDP
	(void)ctx, (void)p, (void)fib;
	return true;
#else
	/* Of others than TCP it is not known what a segment's length is of: SCTP has none, and datagrams may be segments or pieces. */
	if (ctx->gso_size && p->proto != IPPROTO_TCP)
		return true;
	return (ctx->gso_size ? length_on_way(ctx, p) : p->frame - p->l3) <= fib->mtu_result;
#endif
}

/* Whether a frame is to a MAC address. */
static __always_inline bool is_frame_to(const ctx_t *ctx, const __u8 *mac)
{
	const struct ethhdr *eth = ctx_eth(ctx);
	const __u16 *to = (const __u16 *)eth, *at = (const __u16 *)mac;

	if (!eth)
		return false;
	return !((to[0] ^ at[0]) | (to[1] ^ at[1]) | (to[2] ^ at[2]));
}

/* Whether a way that was found has a neighbour: before Linux 6.3 it may be one that was asked for in vain, and has no address. */
static __always_inline bool has_neighbour(const struct bpf_fib_lookup *fib)
{
	const __u16 *to = (const __u16 *)fib->dmac;

	return to[0] | to[1] | to[2];
}

/*
 * Finds the way for a packet of so many bytes before anything is written to it.
 * Returns 0, -REASON_NO_ROUTE, -REASON_TOO_BIG with p->mtu, -REASON_TTL_EXCEEDED, or -REASON_LEFT_TO_TC where XDP cannot
 * send it.
 */
static __always_inline int route_find_for(ctx_t *ctx, struct packet *p, const struct ends *to,
					  struct bpf_fib_lookup *fib, __u16 length, const bool v6)
{
	long found;

	/* Whoever sent it is told by tc. */
	if (p->ttl <= 1)
		return CTX_XDP ? -REASON_LEFT_TO_TC : -REASON_TTL_EXCEEDED;
	/* A redirect would send the frame out of the device below the VLAN, tag and all. */
	if (p->vlan)
		return -REASON_LEFT_TO_TC;
	found = route_ask(ctx, p, to, fib, length, v6);
	if (CTX_XDP) {
		if (found != BPF_FIB_LKUP_RET_SUCCESS || !has_neighbour(fib))
			return -REASON_LEFT_TO_TC;
		/* What is not to this interface tc leaves alone. Whose address another one has, XDP does not know. */
		if (fib->ifindex == ctx_ifindex(ctx))
			return is_frame_to(ctx, fib->smac) ? 0 : -REASON_LEFT_TO_TC;
		return bpf_map_lookup_elem(&devices, &fib->ifindex) ? 0 : -REASON_LEFT_TO_TC;
	}
	switch (found) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		if (length ? found == BPF_FIB_LKUP_RET_SUCCESS : fits_device(ctx, p, fib))
			return 0;
		p->mtu = fib->mtu_result;
		return -REASON_TOO_BIG;
	/* redirect_neigh asks for it, and holds the packet meanwhile. */
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return 0;
	default:
		return -REASON_NO_ROUTE;
	}
}

/*
 * Bytes that the way of a packet is asked about. What may be cut on it has to fit the device alone, as 0 says: routers that need
 * less will cut.
 */
static __always_inline __u16 length_asked(ctx_t *ctx, const struct packet *p)
{
	__u32 length = length_on_way(ctx, p);

	/* Of SCTP the kernel does not say how long segments are. */
	return !CTX_XDP && (p->may_be_cut || length > 0xffff) ? 0 : length;
}

/* Finds the way for a packet as it is. Returns as route_find_for. */
static __always_inline int route_find(ctx_t *ctx, struct packet *p, const struct ends *to, struct bpf_fib_lookup *fib,
				      const bool v6)
{
	return route_find_for(ctx, p, to, fib, length_asked(ctx, p), v6);
}

/* Sends the packet the way that route_find found. Sets p->action. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int send_off(ctx_t *ctx, struct packet *p, const struct bpf_fib_lookup *fib)
{
#if CTX_XDP
	struct ethhdr *eth = ctx_eth(ctx);

	if (!eth)
		return -REASON_REWRITE_FAILED;
	__builtin_memcpy(eth->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib->smac, ETH_ALEN);
	p->action = fib->ifindex == ctx_ifindex(ctx) ? XDP_TX : bpf_redirect_map(&devices, fib->ifindex, 0);
#else
	struct bpf_redir_neigh next = { .nh_family = fib->family };

	/* A tunnel to many takes its other end from the route that the kernel finds by itself (ip_tunnel_xmit). */
	if ((fib->ifindex != ctx_ifindex(ctx) || is_headerless(p)) && !bpf_map_lookup_elem(&nics, &fib->ifindex)) {
		p->action = bpf_redirect_neigh(fib->ifindex, NULL, 0, 0);
		return 0;
	}
	/* By a card a neighbour is the way, which is not looked for again. */
	__builtin_memcpy(next.ipv6_nh, fib->ipv6_dst, sizeof(next.ipv6_nh));
	p->action = bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
#endif
	return 0;
}

/* Translates both ends and sends the packet off. Returns 0 or a negative reason. */
static __always_inline int send(ctx_t *ctx, struct packet *p, const struct ends *to, const struct bpf_fib_lookup *fib,
				const bool v6)
{
	return ctx_rewrite_both(ctx, p, to, v6) ?: send_off(ctx, p, fib);
}

#endif
