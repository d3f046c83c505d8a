/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the datapath needs of a packet's context, for tc: checksums may still be partial, which the kernel's helpers know, and all writes go
 * through them. ctx_xdp.h offers the same functions for XDP.
 */
#ifndef WEIR_CTX_TC_H
#define WEIR_CTX_TC_H

#include "csum.h"
#include "parse.h"
#include "stats.h"

#define CTX_XDP 0

typedef struct __sk_buff ctx_t;

#include "ctx.h"
#include "rewrite.h"

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

/* So many hops to live. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_set_ttl(ctx_t *ctx, const struct packet *p, const __u8 ttl, const bool v6)
{
	const __u32 field = p->l3 + (v6 ? IPV6_FIELDS : IPV4_FIELDS);
	const word *old = header_words(ctx, field, 1);
	word first;

	if (!old)
		return -REASON_REWRITE_FAILED;
	first = first_field(*old, p->ttl - ttl, 0, v6);
	return ctx_store(ctx, field, &first, sizeof(first));
}

/* One hop less to live. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_decrement_ttl(ctx_t *ctx, const struct packet *p, const bool v6)
{
	return ctx_set_ttl(ctx, p, p->ttl - 1, v6);
}

/*
 * Replaces the destination by a backend, and the source port, which may be the client's as before; neither port if addresses_only. Returns 0 or
 * -REASON_REWRITE_FAILED.
 */
static __always_inline int ctx_rewrite_to(ctx_t *ctx, const struct packet *p, const struct backend *backend,
					  __be16 sport, const bool v6)
{
	return rewrite_ends(ctx, p, &p->src, &backend->addr, sport, backend->port, 0, v6);
}

/* Replaces both ends of a packet that goes on from here, and takes a hop off its life. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ctx_rewrite_both(ctx_t *ctx, const struct packet *p, const struct ends *to, const bool v6)
{
	return rewrite_ends(ctx, p, &to->src, &to->dst, to->sport, to->dport, 1, v6);
}

#endif
