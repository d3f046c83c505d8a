/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the datapath needs of a packet's context, for tc: checksums may still be partial, so all writes go through the
 * kernel's helpers, which know. ctx_xdp.h offers the same functions for XDP.
 */
#ifndef WEIR_CTX_TC_H
#define WEIR_CTX_TC_H

#include "csum.h"
#include "parse.h"
#include "stats.h"

#define CTX_XDP 0

/* Since Linux 6.16: the pseudo header of IPv6 has no header checksum that would even out skb->csum (kernel commit ead7f9b8de65). */
#define CSUM_IPV6 (1ull << 7)
#define ERROR_INVALID (-22)

typedef struct __sk_buff ctx_t;

#include "ctx.h"

/* tc need not be told of what it does itself. */
static __always_inline bool ctx_hand_over(ctx_t *ctx __attribute__((unused)),
					  enum handover_kind kind __attribute__((unused)))
{
	return true;
}

static __always_inline __u64 ctx_length(const ctx_t *ctx)
{
	return ctx->len;
}

static __always_inline __u32 ctx_ifindex(const ctx_t *ctx)
{
	return ctx->ifindex;
}

static __always_inline __u32 l4_check_offset(const struct packet *p)
{
	if (p->proto == IPPROTO_ICMPV6)
		return p->l4 + offsetof(struct icmp_header, checksum);
	return p->l4 + (p->proto == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
}

/* Writes a header that nothing else covers with its checksum. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_store(ctx_t *ctx, __u16 offset, const void *from, const __u32 size)
{
	return bpf_skb_store_bytes(ctx, offset, from, size, BPF_F_RECOMPUTE_CSUM) ? -REASON_REWRITE_FAILED : 0;
}

/* The sum that an address's change adds to checksums, for bpf_l4_csum_replace(). */
static __always_inline __u32 addr_diff(const struct addr *old, const struct addr *addr)
{
	__u64 diff = 0;

	for (int i = 0; i < 4; i++)
		diff += (__u64)(__u32)~old->word[i] + addr->word[i];
	diff = (diff & 0xffffffff) + (diff >> 32);
	return (diff & 0xffffffff) + (diff >> 32);
}

/* The end of an IPv4 header: what a change of an address changes lies in one piece. */
struct ipv4_end {
	__u16 check;
	__u16 addr[4];
};

/* Writes an address into a header with the header's checksum, whose sum stays the same. Returns 0 or an error. */
static __always_inline long store_addr4(ctx_t *ctx, const struct packet *p, const bool source, __be32 addr)
{
	const __u32 offset = offsetof(struct iphdr, check), at = source ? 0 : 2;
	const struct ipv4_end *old = (void *)(long)ctx->data + (p->l3 & (2 * HEADERS_MAX - 1)) + offset;
	struct ipv4_end end;

	if ((void *)(old + 1) > (void *)(long)ctx->data_end)
		return ERROR_INVALID;
	end = *old;
	end.check = csum_update(end.check, (__u64)(__u16)~end.addr[at] + (__u16)~end.addr[at + 1] + addr);
	end.addr[at] = addr;
	end.addr[at + 1] = addr >> 16;
	return bpf_skb_store_bytes(ctx, p->l3 + offset, &end, sizeof(end), 0);
}

/* Replaces the address in the header, and its share of the transport's checksum if any. Returns 0 or an error. */
static __always_inline long rewrite_addr(ctx_t *ctx, const struct packet *p, const bool source, const struct addr *addr,
					 __u64 flags, const bool v6)
{
	const struct addr *old = source ? &p->src : &p->dst;
	__u32 check = l4_check_offset(p);
	long error = 0;

	if (v6) {
		__u32 field = source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr);

		/* Nothing evens out skb->csum, neither a header checksum nor one of the transport. */
		if (p->addresses_only)
			return bpf_skb_store_bytes(ctx, p->l3 + field, addr, sizeof(*addr), BPF_F_RECOMPUTE_CSUM);
		__u32 diff = addr_diff(old, addr);

		error = bpf_l4_csum_replace(ctx, check, 0, diff, flags | BPF_F_PSEUDO_HDR | CSUM_IPV6);
		if (error == ERROR_INVALID)
			error = bpf_l4_csum_replace(ctx, check, 0, diff, flags | BPF_F_PSEUDO_HDR);
		return error ?: bpf_skb_store_bytes(ctx, p->l3 + field, addr, sizeof(*addr), 0);
	}
	__be32 from = old->word[3], to = addr->word[3];

	if (!p->addresses_only)
		error = bpf_l4_csum_replace(ctx, check, from, to, flags | BPF_F_PSEUDO_HDR | sizeof(to));
	return error ?: store_addr4(ctx, p, source, to);
}

/* Replaces one end of the packet: address, and port unless addresses_only. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_rewrite(ctx_t *ctx, const struct packet *p, const bool source, const struct addr *addr,
				       __be16 port, const bool v6)
{
	__u64 flags = p->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 field = p->l4 + (source ? offsetof(struct udphdr, source) : offsetof(struct udphdr, dest));
	__be16 old = source ? p->sport : p->dport;

	if (rewrite_addr(ctx, p, source, addr, flags, v6))
		return -REASON_REWRITE_FAILED;
	if (p->addresses_only || port == old)
		return 0;
	if (bpf_l4_csum_replace(ctx, l4_check_offset(p), old, port, flags | sizeof(port)) ||
	    bpf_skb_store_bytes(ctx, field, &port, sizeof(port), 0))
		return -REASON_REWRITE_FAILED;
	return 0;
}

/* So many hops to live. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_set_ttl(ctx_t *ctx, const struct packet *p, const __u8 ttl, const bool v6)
{
	__u32 field = p->l3 + (v6 ? offsetof(struct ipv6hdr, hop_limit) : offsetof(struct iphdr, ttl));
	/* Of the word that holds time to live and protocol, in network order, the first byte changes. */
	if (!v6 && bpf_l3_csum_replace(ctx, p->l3 + offsetof(struct iphdr, check), bpf_htons(p->ttl << 8),
				       bpf_htons(ttl << 8), sizeof(__be16)))
		return -REASON_REWRITE_FAILED;
	return bpf_skb_store_bytes(ctx, field, &ttl, sizeof(ttl), 0) ? -REASON_REWRITE_FAILED : 0;
}

/* One hop less to live. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_decrement_ttl(ctx_t *ctx, const struct packet *p, const bool v6)
{
	return ctx_set_ttl(ctx, p, p->ttl - 1, v6);
}

/* What changes in an IPv4 header of a packet that goes on from here. */
struct ipv4_rest {
	__be16 ttl_and_proto;
	__u16 check;
	__be32 src;
	__be32 dst;
};

/* Writes both addresses and one hop less to live into a header, with its checksum. Returns 0 or an error. */
static __always_inline long store_rest4(ctx_t *ctx, const struct packet *p, const struct ends *to)
{
	const __u32 offset = offsetof(struct iphdr, ttl);
	const struct ipv4_rest *old = (void *)(long)ctx->data + (p->l3 & (2 * HEADERS_MAX - 1)) + offset;
	struct ipv4_rest rest;

	if ((void *)(old + 1) > (void *)(long)ctx->data_end)
		return ERROR_INVALID;
	rest = (struct ipv4_rest){
		.ttl_and_proto = old->ttl_and_proto - bpf_htons(0x0100),
		.src = to->src.word[3],
		.dst = to->dst.word[3],
	};
	rest.check = csum_update(old->check, (__u64)(__u16)~old->ttl_and_proto + rest.ttl_and_proto + (__u32)~old->src +
						     rest.src + (__u32)~old->dst + rest.dst);
	return bpf_skb_store_bytes(ctx, p->l3 + offset, &rest, sizeof(rest), 0);
}

/* The same of either family, with the addresses' share of the transport's checksum if any. Returns 0 or an error. */
static __always_inline long rewrite_addrs(ctx_t *ctx, const struct packet *p, const struct ends *to, __u64 flags,
					  const bool v6)
{
	__u64 diff = (__u64)addr_diff(&p->src, &to->src) + addr_diff(&p->dst, &to->dst);
	const __u64 sums = p->addresses_only ? BPF_F_RECOMPUTE_CSUM : 0;
	__u32 check = l4_check_offset(p);
	long error = 0;

	diff = (diff & 0xffffffff) + (diff >> 32);
	flags |= BPF_F_PSEUDO_HDR;
	if (!p->addresses_only)
		error = bpf_l4_csum_replace(ctx, check, 0, diff, v6 ? flags | CSUM_IPV6 : flags);
	if (v6 && error == ERROR_INVALID)
		error = bpf_l4_csum_replace(ctx, check, 0, diff, flags);
	if (!v6)
		return error ?: store_rest4(ctx, p, to);
	/* Both addresses lie side by side, there as here. */
	error = error
			?: bpf_skb_store_bytes(ctx, p->l3 + offsetof(struct ipv6hdr, saddr), to, 2 * sizeof(to->src),
					       sums);
	return error ?: ctx_decrement_ttl(ctx, p, true);
}

/* Replaces both ends of a packet that goes on from here, and takes a hop off its life. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_rewrite_both(ctx_t *ctx, const struct packet *p, const struct ends *to, const bool v6)
{
	__u64 flags = p->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 old = p->sport | (__u32)p->dport << 16, ports = to->sport | (__u32)to->dport << 16;

	if (rewrite_addrs(ctx, p, to, flags, v6))
		return -REASON_REWRITE_FAILED;
	if (p->addresses_only || ports == old)
		return 0;
	if (bpf_l4_csum_replace(ctx, l4_check_offset(p), old, ports, flags | sizeof(ports)) ||
	    bpf_skb_store_bytes(ctx, p->l4, &ports, sizeof(ports), 0))
		return -REASON_REWRITE_FAILED;
	return 0;
}

#endif
