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

#include "ctx.h"

/* Tells tc what to do with this packet. Drivers may have no room for it: returns whether there was. */
static __always_inline bool ctx_hand_over(ctx_t *ctx, enum handover_kind kind)
{
	struct handover *handover;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*handover)))
		return false;
	handover = (void *)(long)ctx->data_meta;
	if ((void *)(handover + 1) > (void *)(long)ctx->data)
		return false;
	handover->magic = HANDOVER_MAGIC;
	handover->kind = kind;
	return true;
}

static __always_inline __u64 ctx_length(const ctx_t *ctx)
{
	return ctx->data_end - ctx->data;
}

static __always_inline __u32 ctx_ifindex(const ctx_t *ctx)
{
	return ctx->ingress_ifindex;
}

/* The byte at an offset below HEADERS_MAX. Whoever reads there compares with the end first. */
static __always_inline void *ctx_at(const ctx_t *ctx, __u16 offset)
{
	return (void *)(long)ctx->data + (offset & (2 * HEADERS_MAX - 1));
}

/* Writes a header. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_store(ctx_t *ctx, __u16 offset, const void *from, const __u32 size)
{
	void *to = ctx_at(ctx, offset);

	if (to + size > (void *)(long)ctx->data_end)
		return -REASON_REWRITE_FAILED;
	__builtin_memcpy(to, from, size);
	return 0;
}

/* Replaces one end of the packet: address, and port unless addresses_only. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_rewrite(ctx_t *ctx, const struct packet *p, const bool source, const struct addr *addr,
				       __be16 port, const bool v6)
{
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip6 = ctx_at(ctx, p->l3);
	struct iphdr *ip4 = ctx_at(ctx, p->l3);
	struct udphdr *ports = ctx_at(ctx, p->l4);
	struct tcphdr *tcp = ctx_at(ctx, p->l4);
	__be16 *old_port = source ? &ports->source : &ports->dest;
	__be32 *old;
	__u64 diff = 0;

	if ((v6 ? (void *)(ip6 + 1) : (void *)(ip4 + 1)) > end || (void *)(ports + 1) > end)
		return -REASON_REWRITE_FAILED;
	if (v6) {
		old = source ? ip6->saddr.in6_u.u6_addr32 : ip6->daddr.in6_u.u6_addr32;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			diff += (__u64)(__u32)~old[i] + addr->word[i];
			old[i] = addr->word[i];
		}
	} else {
		old = source ? &ip4->saddr : &ip4->daddr;
		diff = (__u64)(__u32)~*old + addr->word[3];
		*old = addr->word[3];
		ip4->check = csum_update(ip4->check, diff);
	}
	if (p->addresses_only)
		return 0;
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

/* Replaces the destination by a backend. What gets another source port is left to tc. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_rewrite_to(ctx_t *ctx, const struct packet *p, const struct backend *backend,
					  __be16 sport __attribute__((unused)), const bool v6)
{
	return ctx_rewrite(ctx, p, false, &backend->addr, backend->port, v6);
}

/* One hop less to live. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_decrement_ttl(ctx_t *ctx, const struct packet *p, const bool v6)
{
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip6 = ctx_at(ctx, p->l3);
	struct iphdr *ip4 = ctx_at(ctx, p->l3);

	if ((v6 ? (void *)(ip6 + 1) : (void *)(ip4 + 1)) > end)
		return -REASON_REWRITE_FAILED;
	if (v6) {
		ip6->hop_limit--;
	} else {
		ip4->ttl--;
		/* The word is time to live and protocol: in network order one hop is 0x0100. */
		ip4->check = csum_update(ip4->check, (__u16)~bpf_htons(0x0100));
	}
	return 0;
}

/* Replaces both ends of a packet that goes on from here, and takes a hop off its life. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_rewrite_both(ctx_t *ctx, const struct packet *p, const struct ends *to, const bool v6)
{
	int error = ctx_rewrite(ctx, p, true, &to->src, to->sport, v6);

	error = error ?: ctx_rewrite(ctx, p, false, &to->dst, to->dport, v6);
	return error ?: ctx_decrement_ttl(ctx, p, v6);
}

#endif
