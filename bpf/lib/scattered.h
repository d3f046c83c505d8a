/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Whether a packet's headers are where programs can read them, or in fragments of it. For tc. */
#ifndef WEIR_SCATTERED_H
#define WEIR_SCATTERED_H

#include "ctx_tc.h"

/* Enough for Ethernet, two tags, IPv6 with some extension headers, and TCP. */
#define LINEAR_BYTES 160
/* Where a transport header ends that begins at network, in bytes from the frame's beginning; LINEAR_BYTES for others than TCP and UDP. */
static __always_inline __u32 headers_of(__u32 network, __u8 proto)
{
	if (proto == IPPROTO_TCP)
		return network + sizeof(struct tcphdr);
	return proto == IPPROTO_UDP ? network + sizeof(struct udphdr) : LINEAR_BYTES;
}

/*
 * Whether headers may be in fragments, where drivers may leave them. Payload stays there: what was pulled out of them neither card nor
 * receiver can join again without a copy. A function of its own, which the verifier walks once for all hooks.
 */
__noinline int is_scattered(ctx_t *ctx, bool headerless)
{
	const __u32 link = headerless ? 0 : sizeof(struct ethhdr);
	void *network = (void *)(long)ctx->data + link;
	const struct ipv6hdr *ip6 = network;
	const struct iphdr *ip = network;
	void *end = (void *)(long)ctx->data_end;
	__u32 linear = ctx->data_end - ctx->data, wanted = LINEAR_BYTES;

	if ((void *)(ip + 1) <= end && ctx->protocol == bpf_htons(ETH_P_IP) && ip->ihl == sizeof(*ip) / 4)
		wanted = headers_of(link + sizeof(*ip), ip->protocol);
	else if ((void *)(ip6 + 1) <= end && ctx->protocol == bpf_htons(ETH_P_IPV6))
		wanted = headers_of(link + sizeof(*ip6), ip6->nexthdr);
	return linear < wanted && linear < ctx->len;
}

/* Whether headers may be in fragments, as far as lengths tell: most packets need not be asked more. */
static __always_inline bool may_be_scattered(const ctx_t *ctx)
{
	const __u32 linear = ctx->data_end - ctx->data;

	return linear < LINEAR_BYTES && linear < ctx->len;
}

#endif
