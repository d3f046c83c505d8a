/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Answers in the service's name: a reset for TCP, port unreachable for UDP, and for all packet too big and time exceeded.
 * The packet itself is turned around and sent back out of the interface that it came from. SCTP's ABORT would need a CRC32c;
 * its client hears nothing. For tc; XDP leaves these packets to it.
 */
#ifndef WEIR_REJECT_H
#define WEIR_REJECT_H

#include "ctx_tc.h"
#include "ip_header.h"
#include "pace.h"

/* RFC 792 asks for eight bytes behind the header that is quoted; they hold both ports. */
#define QUOTE_L4 8

struct pseudo4 {
	__be32 src;
	__be32 dst;
	__be16 proto;
	__be16 length;
};

struct pseudo6 {
	struct addr src;
	struct addr dst;
	__be32 length;
	__be32 proto;
};

/* Sum of the pseudo header of a packet from the packet's destination to its source. */
static __always_inline __u64 pseudo_sum(const struct packet *p, __u8 proto, __u16 length, const bool v6)
{
	if (v6) {
		struct pseudo6 pseudo = {
			.src = p->dst, .dst = p->src, .length = bpf_htonl(length), .proto = bpf_htonl(proto)
		};

		return csum_words(&pseudo, sizeof(pseudo));
	}
	struct pseudo4 pseudo = {
		.src = p->dst.word[3], .dst = p->src.word[3], .proto = bpf_htons(proto), .length = bpf_htons(length)
	};

	return csum_words(&pseudo, sizeof(pseudo));
}

/* Writes an IP header from the packet's destination to its source. Returns as ip_store. */
static __always_inline long answer_ip(ctx_t *ctx, const struct packet *p, __u8 proto, __u16 payload, const bool v6)
{
	return ip_store(ctx, p->l3, &p->dst, &p->src, (struct new_ip){ .proto = proto, .payload = payload }, v6);
}

/*
 * Swaps the MAC addresses and sends the frame back; where there are none, by the kernel's route, from which a tunnel to many takes its
 * other end. Returns the verdict, or an error below 0.
 */
static __always_inline long turn_around(ctx_t *ctx, const struct packet *p)
{
	__u8 mac[2][ETH_ALEN], swapped[2][ETH_ALEN];
	long error;

	if (is_headerless(p))
		return bpf_redirect_neigh(ctx->ifindex, NULL, 0, 0);
	error = bpf_skb_load_bytes(ctx, 0, mac, sizeof(mac));
	__builtin_memcpy(swapped[0], mac[1], ETH_ALEN);
	__builtin_memcpy(swapped[1], mac[0], ETH_ALEN);
	error = error ?: bpf_skb_store_bytes(ctx, 0, swapped, sizeof(swapped), 0);
	return error ?: bpf_redirect(ctx->ifindex, 0);
}

/*
 * Whether the kernel has yet to fill in the checksum at the offset. Updating such a field by anything but the pseudo header
 * leaves it alone, any other one changes.
 */
static __always_inline bool checksum_is_partial(ctx_t *ctx, __u32 offset)
{
	__be16 probe = 0;

	bpf_l4_csum_replace(ctx, offset, 0, bpf_htons(1), sizeof(__be16));
	bpf_skb_load_bytes(ctx, offset, &probe, sizeof(probe));
	return !probe;
}

/* Whether the checksum at an offset is yet to come. field: what is there so far. */
static __always_inline bool is_partial_at(ctx_t *ctx, __u32 at, __u16 *field)
{
	__u16 zero = 0;
	bool partial;

	if (bpf_skb_load_bytes(ctx, at, field, sizeof(*field)))
		return false;
	bpf_skb_store_bytes(ctx, at, &zero, sizeof(zero), 0);
	partial = checksum_is_partial(ctx, at);
	bpf_skb_store_bytes(ctx, at, field, sizeof(*field), 0);
	return partial;
}

/*
 * Whether the transport's checksum is yet to come. Whoever fills it in sums up all that is quoted of the transport: together with
 * it that becomes the complement of what is in the field so far, *sum.
 */
static __always_inline bool is_partial(ctx_t *ctx, const struct packet *p, __u64 *sum)
{
	__u16 field = 0;
	bool partial;

	if (p->addresses_only)
		return false;
	partial = is_partial_at(ctx, check_at(p, p->proto == IPPROTO_TCP), &field);
	*sum = (__u16)~field;
	return partial;
}

/* Answers with a reset (RFC 9293, 3.10.7.1). Returns the verdict, or an error below 0. */
static __always_inline long reject_tcp(ctx_t *ctx, const struct packet *p, const bool v6)
{
	const __u32 l4 = p->l3 + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	struct tcphdr tcp, reset = {};
	__u64 sum, field = 0;
	__u32 payload;
	long error = bpf_skb_load_bytes(ctx, p->l4, &tcp, sizeof(tcp));

	payload = p->length - (p->l4 - p->l3) - tcp.doff * 4;
	reset.source = tcp.dest;
	reset.dest = tcp.source;
	reset.doff = sizeof(reset) / 4;
	reset.rst = 1;
	if (tcp.ack) {
		reset.seq = tcp.ack_seq;
	} else {
		reset.ack = 1;
		reset.ack_seq = bpf_htonl(bpf_ntohl(tcp.seq) + tcp.syn + tcp.fin + payload);
	}
	sum = pseudo_sum(p, IPPROTO_TCP, sizeof(reset), v6);
	if (is_partial(ctx, p, &field)) {
		reset.check = csum_fold(sum);
		/* Options and extension headers go first, and the sum that is yet to come with what it is of: the kernel cuts none off. */
		if (p->l4 > l4)
			error = error ?: bpf_skb_adjust_room(ctx, (int)l4 - (int)p->l4, BPF_ADJ_ROOM_MAC, 0);
	} else {
		reset.check = ~csum_fold(sum + csum_words(&reset, sizeof(reset)));
	}
	error = error ?: bpf_skb_change_tail(ctx, l4 + sizeof(reset), 0);
	error = error ?: answer_ip(ctx, p, IPPROTO_TCP, sizeof(reset), v6);
	error = error ?: ctx_store(ctx, l4, &reset, sizeof(reset));
	return error ?: turn_around(ctx, p);
}

/* Bytes of the transport that an error quotes. Of TCP all of the header: the kernel cuts no checksum off that is yet to come. */
static __always_inline __u32 quoted_transport(const struct packet *p)
{
	return p->proto == IPPROTO_TCP && p->piece != PIECE_LATER ? sizeof(struct tcphdr) : QUOTE_L4;
}

#define UNREADABLE (~0ull)

/*
 * Sum of the bytes from an offset on, word by word: a buffer for options and extension headers would not fit on the stack.
 * UNREADABLE if there are fewer. A function of its own, which the verifier walks once for all answers.
 */
__noinline __u64 headers_sum(ctx_t *ctx, __u32 from, __u32 length)
{
	__u64 sum = 0;

	for (__u32 at = 0; at < HEADERS_MAX + sizeof(struct tcphdr) && at < length; at += sizeof(__u32)) {
		__u32 word = 0;

		if (bpf_skb_load_bytes(ctx, from + at, &word, sizeof(word)))
			return UNREADABLE;
		sum += word;
	}
	return sum;
}

/* Answers with an ICMP error that quotes the packet's headers. Returns the verdict, or an error below 0. */
static __always_inline long answer_error(ctx_t *ctx, const struct packet *p, struct icmp_header icmp, const bool v6)
{
	const __u32 header = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	const __u32 quoted = p->l4 - p->l3 + quoted_transport(p);
	const __u16 payload = sizeof(icmp) + quoted;
	__u64 sum = csum_words(&icmp, sizeof(icmp)), to_come = 0;
	const __u32 summed = is_partial(ctx, p, &to_come) ? p->l4 - p->l3 : quoted;
	const __u64 headers = headers_sum(ctx, p->l3, summed);
	long error;

	if (headers == UNREADABLE)
		return -REASON_MALFORMED;
	if (summed < quoted)
		sum += to_come;
	sum += headers;
	if (v6)
		sum += pseudo_sum(p, IPPROTO_ICMPV6, payload, v6);
	icmp.checksum = ~csum_fold(sum);
	error = bpf_skb_change_tail(ctx, p->l3 + quoted, 0);
	error = error ?: bpf_skb_adjust_room(ctx, header + sizeof(icmp), BPF_ADJ_ROOM_MAC, 0);
	error = error ?: answer_ip(ctx, p, v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP, payload, v6);
	error = error ?: ctx_store(ctx, p->l3 + header, &icmp, sizeof(icmp));
	return error ?: turn_around(ctx, p);
}

/* Answers with port unreachable. Returns the verdict, or an error below 0. */
static __always_inline long reject_udp(ctx_t *ctx, const struct packet *p, const bool v6)
{
	struct icmp_header icmp = {
		.type = v6 ? ICMPV6_DEST_UNREACH : ICMP_DEST_UNREACH,
		.code = v6 ? ICMPV6_PORT_UNREACH : ICMP_PORT_UNREACH,
	};

	return answer_error(ctx, p, icmp, v6);
}

/*
 * Tells the sender of a packet that it is too big for its way, and how big it may be. Returns the verdict, or an error below 0.
 */
static __always_inline long too_big(ctx_t *ctx, const struct packet *p, const bool v6)
{
	struct icmp_header icmp = {
		.type = v6 ? ICMPV6_PKT_TOOBIG : ICMP_DEST_UNREACH,
		.code = v6 ? 0 : ICMP_FRAG_NEEDED,
		.rest = bpf_htonl(p->mtu),
	};

	return answer_error(ctx, p, icmp, v6);
}

/* Tells the sender of a packet that it was too many hops away, as who traces its way asks for (RFC 1812, 5.3.1). Returns as too_big. */
static __always_inline long expired(ctx_t *ctx, const struct packet *p, const bool v6)
{
	struct icmp_header icmp = { .type = v6 ? ICMPV6_TIME_EXCEED : ICMP_TIME_EXCEEDED };

	return answer_error(ctx, p, icmp, v6);
}

/* Answers a packet that nobody will serve. Returns the verdict, or an error below 0. */
static __always_inline long reject(ctx_t *ctx, const struct packet *p, const bool v6)
{
	switch (p->proto) {
	case IPPROTO_TCP:
		return reject_tcp(ctx, p, v6);
	case IPPROTO_UDP:
		return reject_udp(ctx, p, v6);
	default:
		return TC_ACT_SHOT;
	}
}

/* Refusals that a CPU tells in a tick, its part of the node's; the loader says how many. */
const volatile __u32 errors_told = ERRORS_TOLD;

/*
 * Whether one more ICMP error may be told: whoever forges a client's address would have the node send him as many as he likes. Counts
 * it, those that say how big packets may be by themselves: a flood of what is refused keeps no sender from learning that. A function of
 * its own, for the stack's sake.
 */
__noinline int may_tell(bool too_big)
{
	struct pace *pace = pace_now();
	__u32 *told;

	if (!pace)
		return false;
	told = too_big ? &pace->too_big : &pace->told;
	/* What is too big may all come to one CPU, from a sender that must learn of it. */
	if (*told >= (too_big ? ERRORS_TOLD : errors_told))
		return false;
	(*told)++;
	return true;
}

/* Answers a packet that nobody will serve. Functions of their own, for the stack's sake. Return the verdict, or an error below 0. */
__noinline int reject4(ctx_t *ctx, const struct packet *p)
{
	if (!p)
		return -REASON_REWRITE_FAILED;
	return reject(ctx, p, false);
}

__noinline int reject6(ctx_t *ctx, const struct packet *p)
{
	if (!p)
		return -REASON_REWRITE_FAILED;
	return reject(ctx, p, true);
}

__noinline int too_big4(ctx_t *ctx, const struct packet *p)
{
	return p ? too_big(ctx, p, false) : -REASON_REWRITE_FAILED;
}

__noinline int too_big6(ctx_t *ctx, const struct packet *p)
{
	return p ? too_big(ctx, p, true) : -REASON_REWRITE_FAILED;
}

__noinline int expired4(ctx_t *ctx, const struct packet *p)
{
	return p ? expired(ctx, p, false) : -REASON_REWRITE_FAILED;
}

__noinline int expired6(ctx_t *ctx, const struct packet *p)
{
	return p ? expired(ctx, p, true) : -REASON_REWRITE_FAILED;
}

#endif
