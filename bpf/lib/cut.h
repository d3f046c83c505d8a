/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * IPv4 packets that are too big for their way and may be cut. The host's stack does so with what it forwards, and never sees what leaves in the
 * node's name (forward.h). Cut is what came, before it is translated: the front piece goes on at once, the rest comes again by the same
 * interface, behind it, as any later piece does: docs/adr/0054-cut-as-they-came.md. For tc: XDP leaves to it what is too big.
 */
#ifndef WEIR_CUT_H
#define WEIR_CUT_H

#include "held.h"
#include "reject.h"

/* Bytes of a packet that every link takes (RFC 791, 3.2): where less is said to fit, nothing is cut. */
#define IPV4_LEAST_MTU 68
/* Offsets of pieces count so many bytes. */
#define PIECE_UNIT 8

/* Whether a card or the kernel has yet to fill in a packet's checksum, for which it needs all of it. Pieces have theirs. */
static __always_inline bool awaits_checksum(ctx_t *ctx, const struct packet *p)
{
	const __u32 at = p->proto == IPPROTO_SCTP ? p->l4 + offsetof(struct sctp_header, check)
						  : check_at(p, p->proto == IPPROTO_TCP);
	__u16 field;

	return !p->piece && is_partial_at(ctx, at, &field);
}

/* Bytes behind the IP header that the front piece of a packet has, or 0 if it cannot be cut: pieces have not all of the options. */
static __always_inline __u32 front_payload(ctx_t *ctx, const struct packet *p)
{
	const __u32 front = (p->mtu - sizeof(struct iphdr)) & ~(PIECE_UNIT - 1);

	if (!p->may_be_cut || !is_transport(p->proto) || is_unwrapped(p) || ctx->gso_size)
		return 0;
	if (p->l4 - p->l3 != sizeof(struct iphdr) || p->mtu < IPV4_LEAST_MTU ||
	    p->length <= sizeof(struct iphdr) + front)
		return 0;
	return awaits_checksum(ctx, p) ? 0 : front;
}

/* Takes down a frame's bytes from an offset to its end. Returns whether there are so many, and room for them. */
static __always_inline bool take_down(ctx_t *ctx, struct held_piece *piece, __u32 from, __u32 length)
{
	piece->length = length;
	return fits(&length) && !bpf_skb_load_bytes(ctx, from, piece->bytes, length);
}

/* The same of the link's header and that of IP. */
static __always_inline bool take_headers(ctx_t *ctx, const struct packet *p, struct held_piece *piece)
{
	__u32 length = p->l3 + sizeof(struct iphdr);

	return fits(&length) && !bpf_skb_load_bytes(ctx, 0, piece->bytes, length);
}

/* Has the frame be a piece that was taken down, with the fields that its header has. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int become_piece(ctx_t *ctx, const struct packet *p, const struct held_piece *piece,
					struct iphdr *ip, __u16 place)
{
	if (become(ctx, piece))
		return -REASON_REWRITE_FAILED;
	ip->frag_off = bpf_htons(place);
	ip->tot_len = bpf_htons(piece->length - p->l3);
	ip->check = 0;
	ip->check = ~csum_fold(csum_words(ip, sizeof(*ip)));
	return ctx_store(ctx, p->l3, ip, sizeof(*ip));
}

/*
 * Cuts a packet, of which the frame at hand is the front piece then. A function of its own: few packets are too big. Returns 0,
 * -REASON_TOO_BIG if it cannot be cut and is as it came, -REASON_UNTOLD or -REASON_REWRITE_FAILED.
 */
__noinline int cut(ctx_t *ctx, struct packet *p)
{
	__u32 slots[] = { 0, 1 }, front = p ? front_payload(ctx, p) : 0;
	struct held_piece *first = bpf_map_lookup_elem(&first_pieces, &slots[0]);
	struct held_piece *rest = bpf_map_lookup_elem(&first_pieces, &slots[1]);
	struct iphdr ip;
	__u16 place;

	if (!p || !front || !first || !rest || bpf_skb_load_bytes(ctx, p->l3, &ip, sizeof(ip)))
		return -REASON_TOO_BIG;
	place = bpf_ntohs(ip.frag_off);
	/* What ends beyond the longest datagram is none. */
	if ((place & IP_OFFSET_MASK) + front / PIECE_UNIT > IP_OFFSET_MASK)
		return -REASON_TOO_BIG;
	/* Where the rest has its headers is payload of the front so far; the link's are alike. */
	if (!take_down(ctx, first, 0, p->l3 + sizeof(ip) + front) ||
	    !take_down(ctx, rest, front, p->l3 + p->length - front) || !take_headers(ctx, p, rest))
		return -REASON_TOO_BIG;
	if (become_piece(ctx, p, rest, &ip, place + front / PIECE_UNIT))
		return -REASON_REWRITE_FAILED;
	/* This CPU has more waiting for it than it may. */
	if (bpf_clone_redirect(ctx, ctx->ifindex, BPF_F_INGRESS))
		return -REASON_UNTOLD;
	if (become_piece(ctx, p, first, &ip, place | IP_MORE_FRAGMENTS))
		return -REASON_REWRITE_FAILED;
	p->frame = first->length;
	p->length = p->frame - p->l3;
	if (!p->piece)
		mark_piece(p, true, bpf_htonl(bpf_ntohs(ip.id)));
	return 0;
}

#endif
