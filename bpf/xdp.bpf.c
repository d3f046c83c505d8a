/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * XDP on the node's interfaces: the accelerator. It does what needs no help of the stack, passes translated packets up
 * or sends them on, and leaves everything else untouched to tc, which can do it all.
 */
#include "lib/ctx_xdp.h"
/* The context comes first: what follows is the same code for XDP and tc. */
#include "lib/nat.h"

/* Functions of their own: the verifier walks each once, not for every way in which headers can be stacked. */
__noinline int in4(ctx_t *ctx, struct packet *p)
{
	return p ? ingress(ctx, p, true, false) : REASON_MALFORMED;
}

__noinline int in6(ctx_t *ctx, struct packet *p)
{
	return p ? ingress(ctx, p, true, true) : REASON_MALFORMED;
}

/* Parses an IP packet and does the rest. Returns a reason. */
static __always_inline int family(ctx_t *ctx, struct cursor *cursor, struct packet *p, const bool v6)
{
	int error = parse_ip(cursor, p, v6);

	/* Which pieces belong together, tc knows. */
	if (p->piece)
		return REASON_LEFT_TO_TC;
	if (error)
		return -error;
	return v6 ? in6(ctx, p) : in4(ctx, p);
}

/* Returns XDP_PASS, XDP_DROP, XDP_TX or XDP_REDIRECT. */
SEC("xdp")
int weir_xdp(ctx_t *ctx)
{
	struct cursor cursor = ctx_cursor(ctx);
	__u64 length = ctx_length(ctx);
	struct packet p = { .frame = length };
	int next = parse_ethernet(&cursor, &p);
	int reason = next < 0 ? -next : REASON_NOT_IP;

	if (next == bpf_htons(ETH_P_IP))
		reason = family(ctx, &cursor, &p, false);
	else if (next == bpf_htons(ETH_P_IPV6))
		reason = family(ctx, &cursor, &p, true);
	/* To answer, a packet must be built: tc does that. */
	if (wants_answer(reason))
		reason = REASON_LEFT_TO_TC;
	count(HOOK_XDP, reason, length);
	if (reason >= REASON_NO_LOCAL_ENDPOINTS)
		return XDP_DROP;
	if (p.action)
		return p.action;
	/* Best effort: without room tc looks it up once more, mostly in vain. */
	if (p.hand_over == HANDOVER_DONE)
		ctx_hand_over(ctx, HANDOVER_DONE);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
