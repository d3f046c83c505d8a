/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * tc on the node's interfaces and on the host side of the pods': the baseline that does everything. Untouched and passed
 * packets leave with TC_ACT_UNSPEC, so that programs of others behind ours still see them.
 */
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

#include "lib/ctx_tc.h"
/* The context comes first: what follows is the same code for XDP and tc. */
#include "lib/bypass.h"
#include "lib/cut.h"
#include "lib/egress.h"
#include "lib/echo.h"
#include "lib/fragment.h"
#include "lib/held.h"
#include "lib/icmp.h"
#include "lib/nat.h"
#include "lib/reject.h"
#include "lib/scattered.h"
#include "lib/unwrap.h"

/*
 * The upper half of skb->tc_index, of a packet that was translated on its way in: on its way out it is known to be no answer, and not the host's
 * own. The lower half is others': Cilium has flags there, queues and classifiers take it for the number of a class.
 */
#define TRANSLATED 0x5700
#define TRANSLATED_MASK 0xff00

/* Of a tag: the VLAN that it names, or 0 where it only says how urgent the frame is (IEEE 802.1Q). */
#define VLAN_ID 0x0fff

/* What XDP, which has translated this packet on the same interface, says of it. */
static __always_inline enum handover_kind handed_over(const ctx_t *ctx)
{
	const struct handover *handover = (void *)(long)ctx->data_meta;

	if ((void *)(handover + 1) > (void *)(long)ctx->data || handover->magic != HANDOVER_MAGIC)
		return HANDOVER_NONE;
	return handover->kind;
}

/* An answer to what came wrapped leaves for its client, not for the node that has wrapped it. Returns the verdict. */
static __always_inline int on_its_way(ctx_t *ctx, const struct packet *p, long verdict)
{
	return verdict == TC_ACT_REDIRECT && is_unwrapped(p) ? bpf_redirect_neigh(ctx->ifindex, NULL, 0, 0) : verdict;
}

/* Answers a packet whose reason asks for it, and sets p->action. Returns the reason why the packet leaves. */
static __always_inline int answer(ctx_t *ctx, struct packet *p, int reason, const bool v6)
{
	const bool too_big = reason == REASON_TOO_BIG && (v6 || p->piece != PIECE_LATER);
	const bool expired = reason == REASON_TTL_EXCEEDED && p->piece != PIECE_LATER;
	int told;

	/* Nobody is told what became of an error or a later piece (RFC 1122, 3.2.2), but by IPv6 how big those may be (RFC 4443, 2.4). */
	if ((too_big || expired) && !is_icmp(p, v6)) {
		if (!may_tell(too_big))
			return REASON_UNTOLD;
		if (too_big)
			told = v6 ? too_big6(ctx, p) : too_big4(ctx, p);
		else
			told = v6 ? expired6(ctx, p) : expired4(ctx, p);
		p->action = on_its_way(ctx, p, told);
		if (p->action < 0)
			return reason;
		return too_big ? REASON_TOO_BIG_TOLD : REASON_TTL_TOLD;
	}
	if (reason == REASON_NOT_TRANSPORT && is_icmp(p, v6))
		return v6 ? echo6(ctx, p) : echo4(ctx, p);
	if (!wants_answer(reason))
		return reason;
	/* A reset is no error: it is no longer than what it answers. */
	if (p->proto == IPPROTO_UDP && !may_tell(false))
		return REASON_UNTOLD;
	p->action = on_its_way(ctx, p, v6 ? reject6(ctx, p) : reject4(ctx, p));
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

/* Translates a packet that was read, or could not be for some reason. Returns a reason. */
static __always_inline int translate(ctx_t *ctx, struct packet *p, int error, const enum hook hook, const bool out,
				     const bool v6)
{
	if (!error && p->piece == PIECE_LATER)
		error = fragment_find(p, out);
	if (!error && p->hand_over)
		return REASON_XDP_DONE;
	if (!out && error == -REASON_NOT_TRANSPORT && hook == HOOK_NIC_INGRESS && is_wrapper(p, v6))
		error = v6 ? unwrap6(ctx, p) : unwrap4(ctx, p);
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
	return in_service_network(config_get(), &p->dst);
}

/*
 * Whether a packet that nobody has translated is about to leave by the interface that it came in by, for an address of services: at a
 * port that none has. Whoever sent it here would do so again, until its TTL ends. Nodes have such addresses, too, and what their
 * ports are is theirs to say. A function of its own, for the stack's sake.
 */
__noinline int comes_round(ctx_t *ctx, const struct packet *p, bool v6)
{
	const struct config *config = config_get();
	const struct frontend *frontend;

	if (!p || ctx->ingress_ifindex != ctx->ifindex || config->flags & CONFIG_BESIDE)
		return false;
	frontend = v6 ? frontend_lookup(&p->dst, 0, 0, true) : frontend_lookup(&p->dst, 0, 0, false);
	if (!frontend || lookup_by(&other_nodes, p->dst))
		return false;
	/* The latter is a cluster IP's, where nobody says which networks those are of. */
	return frontend->kind == KIND_ADDRESS || frontend->kind == KIND_UNUSED_PORT;
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
	if (!p || (config->flags & CONFIG_BESIDE && p->proto != IPPROTO_UDP))
		return false;
	return v6 ? is_cluster_ip(&p->dst, true) : is_cluster_ip(&p->dst, false);
}

/*
 * What becomes of a piece without ports. On its way out, or to an address that hosts have, it passes untouched also where a copy waits
 * (docs/adr/0014-fragments.md). Returns a reason.
 */
static __always_inline int unknown_piece(ctx_t *ctx, const struct packet *p, int reason, const bool out, const bool v6)
{
	const bool kept = reason == REASON_FRAGMENT_HELD && !held_store(ctx, p, out);

	if (out || !is_lost(p, v6))
		return REASON_FRAGMENT;
	return kept ? REASON_FRAGMENT_HELD : REASON_FRAGMENT_LOST;
}

/* Cuts a packet that is too big for its way, if it may be, and translates the front piece. Returns the reason. */
static __always_inline int cut_to_size(ctx_t *ctx, struct packet *p, int reason, const enum hook hook)
{
	int error;

	if (reason != REASON_TOO_BIG)
		return reason;
	error = cut(ctx, p);
	return error ? -error : in4(ctx, p, hook == HOOK_NIC_INGRESS);
}

/* Notes what became of a first piece: the others share its fate. What is left comes again by another interface. Returns the reason. */
static __always_inline int first_piece(ctx_t *ctx, const struct packet *p, int reason, const bool out)
{
	if (fragment_store(p, out, reason >= REASON_TO_LOCAL) && held_end(ctx, p, out, is_translated(reason)))
		return REASON_REWRITE_FAILED;
	return reason;
}

/*
 * What becomes of an IP packet, in this order: it is translated, and cut if it is too big (IPv4); it is sent past the host, or answered; held, if it is
 * a piece without ports, or noted, if it is a first piece; on the way out dropped, if it is to nobody. error: of parse_ip(). Returns a reason.
 */
static __always_inline int process(ctx_t *ctx, struct packet *p, int error, const enum hook hook, const bool out,
				   const bool v6)
{
	int reason = translate(ctx, p, error, hook, out, v6);

	if (!out && !v6)
		reason = cut_to_size(ctx, p, reason, hook);
	if (!out)
		reason = answer(ctx, p, pass_by(ctx, p, reason, hook, v6), v6);
	if (reason == REASON_FRAGMENT || reason == REASON_FRAGMENT_HELD)
		reason = unknown_piece(ctx, p, reason, out, v6);
	else if (p->piece == PIECE_FIRST && is_transport(p->proto) && reason != REASON_MALFORMED &&
		 reason != REASON_LEFT_TO_TC)
		reason = first_piece(ctx, p, reason, out);
	if (out && hook == HOOK_NIC_EGRESS && reason < REASON_TO_LOCAL && (is_to_nobody(p) || comes_round(ctx, p, v6)))
		reason = REASON_NO_SERVICE;
	return reason;
}

/* Parses an IP packet and does the rest. Returns a reason. */
static __always_inline int family(ctx_t *ctx, struct cursor *cursor, struct packet *p, const enum hook hook,
				  const bool v6)
{
	int error;

	/* In registers it would be on the stack twice. */
	in_memory(p);
	error = parse_ip(cursor, p, v6);
	/* A tag that the card took off the frame is a tag, unless it names no VLAN: the host takes that frame for its own. */
	p->vlan |= ctx->vlan_present && ctx->vlan_tci & VLAN_ID;
	return process(ctx, p, error, hook, is_egress(hook), v6);
}

static __always_inline bool is_marked(const ctx_t *ctx)
{
	return (ctx->tc_index & TRANSLATED_MASK) == TRANSLATED;
}

/* What an earlier node on the same machine, or a pod that sends on what it gets, has marked is not ours. */
static __always_inline void mark_translated(ctx_t *ctx, bool translated)
{
	const __u32 others = ctx->tc_index & ~TRANSLATED_MASK;
	__u32 marked = others | TRANSLATED;

	/* The kernel lets no program write a part of the field. */
	barrier_var(marked);
	if (translated)
		ctx->tc_index = marked;
	else if (is_marked(ctx))
		ctx->tc_index = others;
}

/*
 * The verdict on a packet that is not dropped. What goes to a neighbour loses its link header there, and one that never had any is
 * dropped for it: it gets an empty one, at the very end, as all else knows where its bytes are (__bpf_redirect_neigh() in
 * net/core/filter.c). A tag that names no VLAN the host takes off what it forwards; it is of the link that the frame came by.
 */
static __always_inline int verdict(ctx_t *ctx, const struct packet *p, const bool headerless)
{
	if (headerless && p->action == TC_ACT_REDIRECT && bpf_skb_change_head(ctx, sizeof(struct ethhdr), 0))
		return TC_ACT_SHOT;
	/* Any other tag has kept it from being redirected, or goes back with an answer. */
	if (!headerless && p->action == TC_ACT_REDIRECT && ctx->vlan_present && !(ctx->vlan_tci & VLAN_ID) &&
	    bpf_skb_vlan_pop(ctx))
		return TC_ACT_SHOT;
	return p->action ? p->action : TC_ACT_UNSPEC;
}

/*
 * Whether a frame is not to the node's interface: to another machine, which a card that listens to everything lets in, or to all. The
 * kernel neither forwards such a frame nor hands it to a connection: two nodes would answer for one that an announced address is at.
 * docs/adr/0053-frames-of-others.md
 */
static __always_inline bool is_of_others(const ctx_t *ctx, const enum hook hook, const bool headerless)
{
	return hook == HOOK_NIC_INGRESS && !headerless && ctx->pkt_type != PACKET_HOST;
}

/* headerless: frames begin with the IP header. Returns TC_ACT_UNSPEC, TC_ACT_SHOT or TC_ACT_REDIRECT. */
static __always_inline int handle(ctx_t *ctx, const enum hook hook, const bool headerless)
{
	__u64 length = ctx_length(ctx);
	struct packet p = { .frame = length };
	struct cursor cursor;
	int next, reason;

	if (is_egress(hook) && is_marked(ctx)) {
		count(hook, REASON_NO_REPLY, length);
		return TC_ACT_UNSPEC;
	}
	if (is_of_others(ctx, hook, headerless)) {
		count(hook, REASON_OTHER_HOST, length);
		mark_translated(ctx, false);
		return TC_ACT_UNSPEC;
	}
	if (hook == HOOK_NIC_INGRESS && !headerless)
		p.hand_over = handed_over(ctx);
	if (p.hand_over == HANDOVER_DONE) {
		count(hook, REASON_XDP_DONE, length);
		mark_translated(ctx, true);
		return TC_ACT_UNSPEC;
	}
	if (hook == HOOK_POD_INGRESS && bypasses_host())
		note_pod(ctx);
	/* Without memory for it the kernel would read no further either, or take it for the host's. */
	if (may_be_scattered(ctx) && is_scattered(ctx, headerless) &&
	    bpf_skb_pull_data(ctx, ctx->len < LINEAR_BYTES ? ctx->len : LINEAR_BYTES)) {
		count(hook, REASON_REWRITE_FAILED, length);
		return TC_ACT_SHOT;
	}
	cursor = ctx_cursor(ctx);
	next = headerless ? (int)ctx->protocol : parse_ethernet(&cursor, &p);
	reason = next < 0 ? -next : REASON_NOT_IP;
	if (next == bpf_htons(ETH_P_IP))
		reason = family(ctx, &cursor, &p, hook, false);
	else if (next == bpf_htons(ETH_P_IPV6))
		reason = family(ctx, &cursor, &p, hook, true);
	count(hook, reason, length);
	/* An answer may pass a second interface of the node's: a VLAN's and its card. */
	if (is_egress(hook) && is_translated(reason))
		mark_translated(ctx, true);
	else if (!is_egress(hook))
		mark_translated(ctx, is_translated(reason) || reason == REASON_XDP_DONE);
	if (reason >= REASON_NO_LOCAL_ENDPOINTS)
		return TC_ACT_SHOT;
	/* Only now, when nothing else needs the stack. */
	if (hook == HOOK_POD_INGRESS && was_last_past_host(&p))
		(void)take_back(&p);
	return verdict(ctx, &p, headerless);
}

SEC("classifier")
int weir_nic_in(ctx_t *ctx)
{
	return handle(ctx, HOOK_NIC_INGRESS, false);
}

SEC("classifier")
int weir_nic_out(ctx_t *ctx)
{
	return handle(ctx, HOOK_NIC_EGRESS, false);
}

/* The same for interfaces without link headers: WireGuard, IP in IP, tun, PPP. */
SEC("classifier")
int weir_l3_in(ctx_t *ctx)
{
	return handle(ctx, HOOK_NIC_INGRESS, true);
}

SEC("classifier")
int weir_l3_out(ctx_t *ctx)
{
	return handle(ctx, HOOK_NIC_EGRESS, true);
}

SEC("classifier")
int weir_pod_in(ctx_t *ctx)
{
	return handle(ctx, HOOK_POD_INGRESS, false);
}

SEC("classifier")
int weir_pod_out(ctx_t *ctx)
{
	return handle(ctx, HOOK_POD_EGRESS, false);
}

char LICENSE[] SEC("license") = "GPL";
