/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Echo requests to addresses of services, which nobody has: answered in their name where CONFIG_ECHO says so. That tells no more
 * than that this node serves the address; no endpoint hears of it. For tc.
 */
#ifndef WEIR_ECHO_H
#define WEIR_ECHO_H

#include "forward.h"
#include "reject.h"
#include "service.h"

/* Types of ICMP (RFC 792, RFC 4443). */
#define ICMP_ECHO_REPLY 0
#define ICMP_ECHO_REQUEST 8
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY 129

/* Whether an address is one of services. What is the host's own, too, the host answers for, and so do other nodes. */
static __always_inline bool is_ours_alone(ctx_t *ctx, const struct packet *p, const bool v6)
{
	const struct ends to = { .src = p->src, .dst = p->dst };
	struct bpf_fib_lookup fib = {};

	/* Some load balancers have the nodes' own addresses. */
	if (!frontend_lookup(&p->dst, 0, 0, v6) || lookup_by(&other_nodes, p->dst))
		return false;
	/* Of any size. So it says of the host's own addresses, and of those to which it has no way. */
	return route_ask(ctx, p, &to, &fib, 1, v6) != BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* Swaps the addresses, which changes no checksum. Returns 0 or an error. */
static __always_inline long swap_addresses(ctx_t *ctx, const struct packet *p, const bool v6)
{
	const __u32 size = v6 ? sizeof(struct addr) : sizeof(__be32);
	const __u32 at = p->l3 + (v6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr));
	const __be32 *src = v6 ? p->src.word : &p->src.word[3], *dst = v6 ? p->dst.word : &p->dst.word[3];
	long error = bpf_skb_store_bytes(ctx, at, dst, size, 0);

	return error ?: bpf_skb_store_bytes(ctx, at + size, src, size, 0);
}

/* Returns REASON_ECHO with p->action, REASON_NOT_TRANSPORT of an untouched packet, or REASON_REWRITE_FAILED. */
static __always_inline int echo(ctx_t *ctx, struct packet *p, const bool v6)
{
	const __u8 asked = v6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST;
	const __u8 answer = v6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY;
	const __u32 check = p->l4 + offsetof(struct icmp_header, checksum);
	const struct config *config = config_get();
	struct icmp_header icmp;
	long error;

	if (!(config->flags & CONFIG_ECHO) || bpf_skb_load_bytes(ctx, p->l4, &icmp, sizeof(icmp)))
		return REASON_NOT_TRANSPORT;
	if (icmp.type != asked || icmp.code || !is_one_host(&p->src, v6) || !is_ours_alone(ctx, p, v6))
		return REASON_NOT_TRANSPORT;
	/* The first byte of the word that it shares with the code. */
	error = bpf_l4_csum_replace(ctx, check, bpf_htons(asked << 8), bpf_htons(answer << 8), sizeof(__be16));
	error = error ?: bpf_skb_store_bytes(ctx, p->l4, &answer, sizeof(answer), 0);
	error = error ?: swap_addresses(ctx, p, v6);
	error = error ?: ctx_set_ttl(ctx, p, IP_HOPS, v6);
	if (error)
		return REASON_REWRITE_FAILED;
	p->action = turn_around(ctx, p);
	return p->action < 0 ? REASON_REWRITE_FAILED : REASON_ECHO;
}

/* Functions of their own, for the stack's sake. */
__noinline int echo4(ctx_t *ctx, struct packet *p)
{
	return p ? echo(ctx, p, false) : REASON_NOT_TRANSPORT;
}

__noinline int echo6(ctx_t *ctx, struct packet *p)
{
	return p ? echo(ctx, p, true) : REASON_NOT_TRANSPORT;
}

#endif
