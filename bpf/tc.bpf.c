/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * tc on the node's interfaces and on the host side of the pods': the baseline that does everything. Untouched and passed
 * packets leave with TC_ACT_UNSPEC, so that programs of others behind ours still see them.
 */
#include <linux/pkt_cls.h>

#include "lib/ctx_tc.h"
/* The context comes first: what follows is the same code for XDP and tc. */
#include "lib/fragment.h"
#include "lib/icmp.h"
#include "lib/nat.h"
#include "lib/reject.h"

/* Enough for Ethernet, two tags, IPv6 with some extension headers, and TCP. */
#define LINEAR_BYTES 160

/* Whether XDP has translated this packet on the same interface. */
static __always_inline bool handed_over(const ctx_t *ctx)
{
	const struct handover *handover = (void *)(long)ctx->data_meta;

	return (void *)(handover + 1) <= (void *)(long)ctx->data && handover->magic == HANDOVER_MAGIC;
}

/* Answers a packet whose reason asks for it, and sets p->action. Returns the reason why the packet leaves. */
static __always_inline int answer(ctx_t *ctx, struct packet *p, int reason, const bool v6)
{
	if (reason == REASON_TOO_BIG) {
		p->action = v6 ? too_big6(ctx, p) : too_big4(ctx, p);
		return p->action < 0 ? reason : REASON_TOO_BIG_TOLD;
	}
	if (!wants_answer(reason))
		return reason;
	p->action = v6 ? reject6(ctx, p) : reject4(ctx, p);
	return p->action < 0 ? REASON_REWRITE_FAILED : reason;
}

/* Functions of their own: each family has its own stack, and the verifier walks each once for all hooks. */
__noinline int in4(ctx_t *ctx, struct packet *p, bool from_outside)
{
	return p ? ingress(ctx, p, from_outside, false) : REASON_MALFORMED;
}

__noinline int in6(ctx_t *ctx, struct packet *p, bool from_outside)
{
	return p ? ingress(ctx, p, from_outside, true) : REASON_MALFORMED;
}

__noinline int out4(ctx_t *ctx, struct packet *p)
{
	return p ? egress(ctx, p, false) : REASON_MALFORMED;
}

__noinline int out6(ctx_t *ctx, struct packet *p)
{
	return p ? egress(ctx, p, true) : REASON_MALFORMED;
}

static __always_inline bool is_egress(const enum hook hook)
{
	return hook == HOOK_NIC_EGRESS || hook == HOOK_POD_EGRESS;
}

/* Returns a reason. */
static __always_inline int translate(ctx_t *ctx, struct cursor *cursor, struct packet *p, const enum hook hook,
				     const bool v6)
{
	const bool out = is_egress(hook);
	int error = parse_ip(cursor, p, v6);

	if (!error && p->piece == PIECE_LATER)
		error = fragment_find(p);
	/* A tag that the card took off the frame is a tag. */
	p->vlan |= ctx->vlan_present;
	if (error == -REASON_NOT_TRANSPORT && is_icmp(p, v6))
		return v6 ? icmp6(ctx, p, !out) : icmp4(ctx, p, !out);
	if (error)
		return -error;
	if (out)
		return v6 ? out6(ctx, p) : out4(ctx, p);
	return v6 ? in6(ctx, p, hook == HOOK_NIC_INGRESS) : in4(ctx, p, hook == HOOK_NIC_INGRESS);
}

/*
 * Whether a packet that nobody has translated is about to leave the node for a cluster IP. None is out there, and it may
 * come back in a loop. Another proxy on this node has had its chance by now.
 */
static __always_inline bool is_to_nobody(const struct packet *p)
{
	const struct config *config = config_get();

	return config && in_service_network(config, &p->dst);
}

/*
 * Whether a piece whose ports nobody knows is on its way to a cluster IP: it came before the first one, or that was cut
 * within its transport header. No host has the address; what may have other things to say at the other frontends, has.
 * A function of its own, for the stack's sake.
 */
__noinline int is_lost(const struct packet *p, bool v6)
{
	const struct config *config = config_get();

	/* The other proxy may have the connection. */
	if (!p || !config || (config->flags & CONFIG_BESIDE && p->proto != IPPROTO_UDP))
		return false;
	return v6 ? is_unused_port(&p->dst, true) : is_unused_port(&p->dst, false);
}

static __always_inline int family(ctx_t *ctx, struct cursor *cursor, struct packet *p, const enum hook hook,
				  const bool v6)
{
	const bool out = is_egress(hook);
	int reason = translate(ctx, cursor, p, hook, v6);

	if (!out)
		reason = answer(ctx, p, reason, v6);
	if (!out && reason == REASON_FRAGMENT && is_lost(p, v6))
		reason = REASON_FRAGMENT_LOST;
	if (hook == HOOK_NIC_EGRESS && reason < REASON_TO_LOCAL && is_to_nobody(p))
		reason = REASON_NO_SERVICE;
	/* The others share its fate, and that of the untouched ones needs no memory. */
	if (p->piece == PIECE_FIRST && reason >= REASON_TO_LOCAL && reason != REASON_FRAGMENT_LOST)
		fragment_store(p);
	return reason;
}

/* Returns TC_ACT_UNSPEC, TC_ACT_SHOT or TC_ACT_REDIRECT. */
static __always_inline int handle(ctx_t *ctx, const enum hook hook)
{
	__u64 length = ctx_length(ctx);
	struct packet p = { .frame = length };
	struct cursor cursor;
	int next, reason;

	if (hook == HOOK_NIC_INGRESS && handed_over(ctx)) {
		count(hook, REASON_XDP_DONE, length);
		return TC_ACT_UNSPEC;
	}
	/* Drivers may leave headers in fragments. */
	if (ctx->data + LINEAR_BYTES > ctx->data_end && ctx->data_end - ctx->data < ctx->len)
		bpf_skb_pull_data(ctx, ctx->len < LINEAR_BYTES ? ctx->len : LINEAR_BYTES);
	cursor = ctx_cursor(ctx);
	next = parse_ethernet(&cursor, &p);
	reason = next < 0 ? -next : REASON_NOT_IP;
	if (next == bpf_htons(ETH_P_IP))
		reason = family(ctx, &cursor, &p, hook, false);
	else if (next == bpf_htons(ETH_P_IPV6))
		reason = family(ctx, &cursor, &p, hook, true);
	count(hook, reason, length);
	if (reason >= REASON_NO_LOCAL_ENDPOINTS)
		return TC_ACT_SHOT;
	return p.action ? p.action : TC_ACT_UNSPEC;
}

SEC("classifier")
int weir_nic_in(ctx_t *ctx)
{
	return handle(ctx, HOOK_NIC_INGRESS);
}

SEC("classifier")
int weir_nic_out(ctx_t *ctx)
{
	return handle(ctx, HOOK_NIC_EGRESS);
}

SEC("classifier")
int weir_pod_in(ctx_t *ctx)
{
	return handle(ctx, HOOK_POD_INGRESS);
}

SEC("classifier")
int weir_pod_out(ctx_t *ctx)
{
	return handle(ctx, HOOK_POD_EGRESS);
}

char LICENSE[] SEC("license") = "GPL";
