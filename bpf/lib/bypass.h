/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Past the host's stack, with CONFIG_HOST_BYPASS: what was translated for a pod of this node goes straight to the pod, and the
 * pod's answers straight to their clients. Both ways or none: connection tracking that saw one of them would take it for
 * invalid. For tc, which XDP hands its packets over to. What cannot go this way goes up, as without the flag.
 */
#ifndef WEIR_BYPASS_H
#define WEIR_BYPASS_H

#include <linux/if_packet.h>

#include "ctx_tc.h"
#include "egress.h"

static __always_inline bool bypasses_host(void)
{
	return config_get()->flags & CONFIG_HOST_BYPASS;
}

/*
 * Notes behind which interface a pod is, as bridges do: its frames tell. One that takes another's address gets from here what it
 * would get from the bridge, and nothing where there is no bridge. Returns 0.
 */
__noinline int note_pod(ctx_t *ctx)
{
	__u32 ifindex = ctx_ifindex(ctx);
	const __u32 *known;
	__u64 mac = 0;

	if (bpf_skb_load_bytes(ctx, ETH_ALEN, &mac, ETH_ALEN))
		return 0;
	known = bpf_map_lookup_elem(&pod_macs, &mac);
	if (!(known && *known == ifindex) && bpf_map_lookup_elem(&shortcuts, &ifindex))
		bpf_map_update_elem(&pod_macs, &mac, &ifindex, BPF_ANY);
	return 0;
}

/* The interface whose other end is the pod that a route leads to, or 0: it is not known, or is no pod's. */
static __always_inline __u32 pod_behind(const struct bpf_fib_lookup *fib, const struct shortcut *way)
{
	const struct shortcut *port;
	const __u32 *ifindex;
	__u64 mac = 0;

	__builtin_memcpy(&mac, fib->dmac, ETH_ALEN);
	/* The kernel is yet to ask for its address. */
	if (!mac)
		return 0;
	if (way->kind == SHORTCUT_PEER)
		return fib->ifindex;
	if (way->kind != SHORTCUT_BRIDGE)
		return 0;
	ifindex = bpf_map_lookup_elem(&pod_macs, &mac);
	port = ifindex ? bpf_map_lookup_elem(&shortcuts, ifindex) : NULL;
	return port && port->kind == SHORTCUT_PEER && port->bridge == fib->ifindex ? *ifindex : 0;
}

/* Sends a packet that is translated and one hop older the way that route_find found. Returns a verdict. */
static __always_inline int take_shortcut(ctx_t *ctx, const struct bpf_fib_lookup *fib, const struct shortcut *way)
{
	__u32 pod = pod_behind(fib, way);
	__u8 macs[2 * ETH_ALEN];

	if (!pod) {
		/* The look-up has put the next hop in the destination's place: asking once is enough. */
		struct bpf_redir_neigh next = { .nh_family = fib->family };

		if (fib->family == AF_INET6)
			__builtin_memcpy(next.ipv6_nh, fib->ipv6_dst, sizeof(next.ipv6_nh));
		else
			next.ipv4_nh = fib->ipv4_dst;
		/* Without a neighbour it asks for one and holds the packet meanwhile. */
		return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
	}
	__builtin_memcpy(macs, fib->dmac, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, fib->smac, ETH_ALEN);
	if (bpf_skb_store_bytes(ctx, 0, macs, sizeof(macs), 0))
		return TC_ACT_SHOT;
	/* What came by a bridge to another port was not for the host, and the pod would go by that. */
	if (ctx->pkt_type != PACKET_HOST && bpf_skb_change_type(ctx, PACKET_HOST))
		return TC_ACT_SHOT;
	return bpf_redirect_peer(pod, 0);
}

/* Where a packet is for now that it is translated. Returns 0 or an error. */
static __always_inline long load_destination(ctx_t *ctx, const struct packet *p, struct addr *dst, const bool v6)
{
	if (v6)
		return bpf_skb_load_bytes(ctx, p->l3 + offsetof(struct ipv6hdr, daddr), dst, sizeof(*dst));
	return bpf_skb_load_bytes(ctx, p->l3 + offsetof(struct iphdr, daddr), &dst->word[3], sizeof(dst->word[3]));
}

/* Sends a client's packet that was translated on to the pod, where there is a way: sets p->action then. Returns a reason. */
static __always_inline int to_pod(ctx_t *ctx, struct packet *p, int reason, const bool v6)
{
	struct ends to = { .src = p->src, .sport = p->sport, .dport = p->dport };
	struct bpf_fib_lookup fib = {};
	const struct shortcut *way;

	if (load_destination(ctx, p, &to.dst, v6) || route_find(ctx, p, &to, &fib, v6))
		return reason;
	way = bpf_map_lookup_elem(&shortcuts, &fib.ifindex);
	if (!way)
		return reason;
	if (ctx_decrement_ttl(ctx, p, v6))
		return REASON_REWRITE_FAILED;
	p->action = take_shortcut(ctx, &fib, way);
	return reason;
}

/* Translates a pod's answer and sends it on, where there is a way: sets p->action then. Returns a reason. */
static __always_inline int past_host(ctx_t *ctx, struct packet *p, struct reply *reply, const bool v6)
{
	struct ends to = { .src = p->src, .dst = p->dst, .sport = p->sport, .dport = p->dport };
	struct bpf_fib_lookup fib = {};
	const struct shortcut *way;
	int error;

	if (route_find(ctx, p, &to, &fib, v6))
		return REASON_NO_FRONTEND;
	way = bpf_map_lookup_elem(&shortcuts, &fib.ifindex);
	if (!way)
		return REASON_NO_FRONTEND;
	count_back(reply, p, v6);
	error = ctx_rewrite_back(ctx, p, reply, 1, v6);
	if (error)
		return -error;
	p->action = take_shortcut(ctx, &fib, way);
	if (is_last(p, reply->flags))
		p->ending = v6 ? ENDING_LAST6 : ENDING_LAST4;
	return REASON_BACK;
}

/*
 * A pod's packet that is none to a service. If it is an answer to a client that is outside or in a pod here, it is translated and
 * sent on: sets p->action then. The route is that of the pod's own packet, as it would be in the stack. Returns a reason.
 */
static __always_inline int from_pod(ctx_t *ctx, struct packet *p, const bool v6)
{
	struct reply *reply = NULL;

	/* What is to be dropped is dropped where it leaves. */
	answered(p, &reply, v6);
	return reply ? past_host(ctx, p, reply, v6) : REASON_NO_FRONTEND;
}

/* Whether a packet that past_host() has sent on is its flow's last. */
static __always_inline bool was_last_past_host(const struct packet *p)
{
	return p->ending >= ENDING_LAST4;
}

/* Takes the flow of such a packet back to the tables that it began in. Returns nothing of use. */
__noinline int take_back(const struct packet *p)
{
	const bool v6 = p && p->ending == ENDING_LAST6;
	const struct reply *reply = !p ? NULL : v6 ? reply_lookup(p, true) : reply_lookup(p, false);

	if (!reply)
		return 0;
	return v6 ? retire_answered6(reply, p->proto) : retire_answered4(reply, p->proto);
}

/* Whether packets to the pod that a packet comes from may go past the host: if not, what it says and asks goes by it, too. */
__noinline int has_shortcut(ctx_t *ctx)
{
	__u32 own = ctx->ifindex;

	return bpf_map_lookup_elem(&shortcuts, &own) != NULL;
}

/* Functions of their own: each has its own stack. */
__noinline int to_pod4(ctx_t *ctx, struct packet *p, int reason)
{
	return p ? to_pod(ctx, p, reason, false) : REASON_MALFORMED;
}

__noinline int to_pod6(ctx_t *ctx, struct packet *p, int reason)
{
	return p ? to_pod(ctx, p, reason, true) : REASON_MALFORMED;
}

__noinline int from_pod4(ctx_t *ctx, struct packet *p)
{
	return p ? from_pod(ctx, p, false) : REASON_MALFORMED;
}

__noinline int from_pod6(ctx_t *ctx, struct packet *p)
{
	return p ? from_pod(ctx, p, true) : REASON_MALFORMED;
}

/* Sends a packet past the host's stack if it may go there, on its way in. Returns its reason. */
static __always_inline int pass_by(ctx_t *ctx, struct packet *p, int reason, const enum hook hook, const bool v6)
{
	/* By an interface without link headers no answer goes past the host. */
	if (!bypasses_host() || is_headerless(p))
		return reason;
	if (hook == HOOK_POD_INGRESS && !has_shortcut(ctx))
		return reason;
	if (hook == HOOK_POD_INGRESS && reason == REASON_NO_FRONTEND)
		return v6 ? from_pod6(ctx, p) : from_pod4(ctx, p);
	/* The host may put pieces together, and one of them alone may be too long for the way to the pod: all go to it. */
	if (p->piece || p->hand_over != HANDOVER_TO_POD || (reason != REASON_TO_LOCAL && reason != REASON_XDP_DONE))
		return reason;
	return v6 ? to_pod6(ctx, p, reason) : to_pod4(ctx, p, reason);
}

#endif
