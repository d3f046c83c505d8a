/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the datapath needs of a packet's context, for XDP: frames with real checksums, written in place.
 * ctx_tc.h offers the same functions for tc.
 */
#ifndef WEIR_CTX_XDP_H
#define WEIR_CTX_XDP_H

#include "csum.h"
#include "parse.h"
#include "stats.h"

#define CTX_XDP 1

typedef struct xdp_md ctx_t;

/* In front of a packet that XDP translated and passed up: tc leaves it alone. */
struct handover {
	__u32 magic;
};
#define HANDOVER_MAGIC 0x77656972

static __always_inline struct cursor ctx_cursor(const ctx_t *ctx)
{
	void *data = (void *)(long)ctx->data;

	return (struct cursor){ .start = data, .pos = data, .end = (void *)(long)ctx->data_end };
}

static __always_inline __u64 ctx_length(const ctx_t *ctx)
{
	return ctx->data_end - ctx->data;
}

static __always_inline __u32 ctx_ifindex(const ctx_t *ctx)
{
	return ctx->ingress_ifindex;
}

/* Replaces one end of the packet, address and port. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_rewrite(ctx_t *ctx, const struct packet *p, const struct headers *headers,
				       const bool source, const struct addr *addr, __be16 port, const bool v6)
{
	void *end = (void *)(long)ctx->data_end;
	struct udphdr *ports = headers->transport;
	struct tcphdr *tcp = headers->transport;
	__be16 *old_port = source ? &ports->source : &ports->dest;
	__be32 *old;
	__u64 diff = 0;

	if (v6) {
		struct ipv6hdr *ip = headers->ip;

		old = source ? ip->saddr.in6_u.u6_addr32 : ip->daddr.in6_u.u6_addr32;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			diff += (__u64)(__u32)~old[i] + addr->word[i];
			old[i] = addr->word[i];
		}
	} else {
		struct iphdr *ip = headers->ip;

		old = source ? &ip->saddr : &ip->daddr;
		diff = (__u64)(__u32)~*old + addr->word[3];
		*old = addr->word[3];
		ip->check = csum_update(ip->check, diff);
	}
	if ((void *)(ports + 1) > end)
		return -REASON_REWRITE_FAILED;
	diff += (__u16)~*old_port + port;
	*old_port = port;
	if (p->proto == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end)
			return -REASON_REWRITE_FAILED;
		tcp->check = csum_update(tcp->check, diff);
	} else if (ports->check) {
		__u16 check = csum_update(ports->check, diff);

		ports->check = check ?: 0xffff;
	}
	return 0;
}

/* One hop less to live. Returns 0; tc's twin can fail. */
static __always_inline int ctx_decrement_ttl(ctx_t *ctx __attribute__((unused)),
					     const struct packet *p __attribute__((unused)),
					     const struct headers *headers, const bool v6)
{
	if (v6) {
		((struct ipv6hdr *)headers->ip)->hop_limit--;
	} else {
		struct iphdr *ip = headers->ip;

		ip->ttl--;
		/* The word is time to live and protocol: in network order one hop is 0x0100. */
		ip->check = csum_update(ip->check, (__u16)~bpf_htons(0x0100));
	}
	return 0;
}

#endif
