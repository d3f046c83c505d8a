/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Both ends of a TCP or UDP packet rewritten, for tc, in two calls of the kernel, which take most of the time. The first changes the
 * transport's checksum by the addresses, and shows what that covers; the second writes everything from the IP header's fields to the end
 * of the transport's: docs/adr/0051-headers-in-one-piece.md.
 */
#ifndef WEIR_REWRITE_H
#define WEIR_REWRITE_H

#include "csum.h"
#include "word.h"

/* What is written of an IP header begins with the word that has its time to live, and ends with the addresses. */
#define IPV4_FIELDS offsetof(struct iphdr, ttl)
#define IPV6_FIELDS offsetof(struct ipv6hdr, payload_len)
#define IPV4_WORDS ((sizeof(struct iphdr) - IPV4_FIELDS) / sizeof(word))
#define IPV6_WORDS ((sizeof(struct ipv6hdr) - IPV6_FIELDS) / sizeof(word))
/* Of a transport header it is all, options apart. */
#define TCP_WORDS (sizeof(struct tcphdr) / sizeof(word))
#define UDP_WORDS (sizeof(struct udphdr) / sizeof(word))

_Static_assert(offsetof(struct iphdr, saddr) == IPV4_FIELDS + sizeof(word), "addresses behind one word");
_Static_assert(offsetof(struct ipv6hdr, saddr) == IPV6_FIELDS + sizeof(word), "addresses behind one word");
_Static_assert(offsetof(struct tcphdr, check) == 4 * sizeof(word), "first half of its word");
_Static_assert(offsetof(struct udphdr, check) == sizeof(word) + sizeof(__u16), "last half of its word");

/* So many words of the headers, or NULL: they are not there. */
static __always_inline const word *header_words(const ctx_t *ctx, __u32 offset, const __u32 words)
{
	const word *at = (void *)(long)ctx->data + (offset & (2 * HEADERS_MAX - 1));

	return (void *)(at + words) > (void *)(long)ctx->data_end ? NULL : at;
}

/*
 * Writes what changes the packet's sum, which the card may have taken (skb->csum): the kernel corrects that. Returns 0 or
 * -REASON_REWRITE_FAILED.
 */
static __always_inline int ctx_store(ctx_t *ctx, __u16 offset, const void *from, const __u32 size)
{
	return bpf_skb_store_bytes(ctx, offset, from, size, BPF_F_RECOMPUTE_CSUM) ? -REASON_REWRITE_FAILED : 0;
}

/* A transport's checksum, as it is in the header. */
static __always_inline __u16 check_of(const word *transport, const bool tcp)
{
	return tcp ? transport[4] : transport[1] >> 16;
}

/* The sum that other addresses add to a checksum. */
static __always_inline __u32 ends_diff(const struct packet *p, const struct addr *src, const struct addr *dst,
				       const bool v6)
{
	__u64 diff = 0;

	for (int i = v6 ? 0 : 3; i < 4; i++)
		diff += (__u64)(__u32)~p->src.word[i] + src->word[i] + (__u32)~p->dst.word[i] + dst->word[i];
	diff = (diff & 0xffffffff) + (diff >> 32);
	return (diff & 0xffffffff) + (diff >> 32);
}

/* What a checksum in a header is of. */
enum covers {
	COVERS_NOTHING = 0,   /* there is none */
	COVERS_ADDRESSES = 1, /* the pseudo header: whoever sends it adds the rest */
	COVERS_ALL = 2,
	COVERS_UNKNOWN = 3,
};

/*
 * What a checksum is of, by what a change of addresses has made of it (inet_proto_csum_replace_by_diff() in net/core/utils.c): of all it is
 * the complement of a sum, and goes the other way.
 */
static __always_inline enum covers covered_by(__u16 before, __u16 after, __u16 diff)
{
	__u16 change = csum_fold((__u64)after + (__u16)~before);

	if (!diff || diff == 0xffff)
		return COVERS_UNKNOWN;
	if (change == diff)
		return COVERS_ADDRESSES;
	return change == (__u16)~diff ? COVERS_ALL : COVERS_UNKNOWN;
}

/* The first field of an IP header with so many hops less to live, where diff changes what an IPv4 header's checksum is of. */
static __always_inline word first_field(word first, __u32 hops, __u64 diff, const bool v6)
{
	__u16 lives = first, left = lives - hops, check = first >> 16;

	if (v6)
		return first - (hops << 24);
	return word_of(left, csum_update(check, diff + (__u16)~lives + left));
}

/* The fields of an IP header with other addresses and so many hops less to live. */
static __always_inline void ip_fields(word *to, const word *ip, const struct addr *src, const struct addr *dst,
				      __u32 hops, const bool v6)
{
	__u64 diff = (__u64)(__u32)~ip[1] + src->word[3] + (__u32)~ip[2] + dst->word[3];

	to[0] = first_field(ip[0], hops, diff, v6);
	if (v6) {
		__builtin_memcpy(to + 1, src, sizeof(*src));
		__builtin_memcpy(to + 5, dst, sizeof(*dst));
		return;
	}
	to[1] = src->word[3];
	to[2] = dst->word[3];
}

/* A transport header with other ports. What its checksum is of, says how that changes. */
static __always_inline void transport_fields(word *to, const word *transport, __u32 ports, enum covers covers,
					     const bool tcp)
{
	__u16 check = check_of(transport, tcp);

	for (__u32 i = 1; i < (tcp ? TCP_WORDS : UDP_WORDS); i++)
		to[i] = transport[i];
	to[0] = ports;
	if (covers != COVERS_ALL)
		return;
	check = csum_update(check, (__u64)(__u32)~transport[0] + ports);
	if (tcp)
		to[4] = word_of(check, transport[4] >> 16);
	else
		to[1] = word_of(transport[1], check ?: 0xffff);
}

/* Where a transport's checksum is. */
static __always_inline __u32 check_at(const struct packet *p, const bool tcp)
{
	return p->l4 + (tcp ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
}

/*
 * Changes a transport's checksum by what other addresses add to it, and where that does not show what it is of, by ports. Datagrams may have
 * no checksum. Returns enum covers, or -REASON_REWRITE_FAILED.
 */
static __always_inline int check_ends(ctx_t *ctx, const struct packet *p, __u32 diff, __u32 ports, const bool tcp)
{
	const __u32 words = tcp ? TCP_WORDS : UDP_WORDS;
	const __u64 flags = tcp ? 0 : BPF_F_MARK_MANGLED_0;
	const word *transport = header_words(ctx, p->l4, words);
	/* Two halves in a word, which takes less room on the stack. */
	__u32 seen = word_of(transport ? check_of(transport, tcp) : 0, csum_fold(diff));
	enum covers covers;
	__u32 old;

	barrier_var(seen);
	if (!tcp && !(__u16)seen)
		return COVERS_NOTHING;
	if (bpf_l4_csum_replace(ctx, check_at(p, tcp), 0, diff, flags | BPF_F_PSEUDO_HDR))
		return -REASON_REWRITE_FAILED;
	transport = header_words(ctx, p->l4, words);
	if (!transport)
		return -REASON_REWRITE_FAILED;
	covers = covered_by(seen, check_of(transport, tcp), seen >> 16);
	old = transport[0];
	if (covers == COVERS_UNKNOWN && ports != old &&
	    bpf_l4_csum_replace(ctx, check_at(p, tcp), old, ports, flags | sizeof(ports)))
		return -REASON_REWRITE_FAILED;
	return covers;
}

/* rest: both ports as they follow each other, and in the upper half hops. to: room for the headers. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int rewrite(ctx_t *ctx, const struct packet *p, const struct addr *src, const struct addr *dst,
				   __u64 rest, word *to, const bool v6, const bool tcp)
{
	const __u32 ip_at = v6 ? IPV6_FIELDS : IPV4_FIELDS, ip_words = v6 ? IPV6_WORDS : IPV4_WORDS;
	const __u32 words = tcp ? TCP_WORDS : UDP_WORDS;
	int covers = check_ends(ctx, p, ends_diff(p, src, dst, v6), rest, tcp);
	const word *ip, *transport;

	if (covers < 0)
		return covers;
	/* What is read anew takes no room on the stack. */
	barrier();
	ip = header_words(ctx, p->l3 + ip_at, ip_words);
	transport = header_words(ctx, p->l4, words);
	if (!ip || !transport)
		return -REASON_REWRITE_FAILED;
	ip_fields(to, ip, src, dst, rest >> 32, v6);
	transport_fields(to + ip_words, transport, rest, covers, tcp);
	barrier();
	/*
	 * A card may have summed up the packet, headers and all (CHECKSUM_COMPLETE). bpf_l4_csum_replace() has corrected skb->csum for the addresses
	 * (BPF_F_PSEUDO_HDR). Not for the ports: their change and that of the checksum's field cancel out, so that where it was asked about these they
	 * are stored without BPF_F_RECOMPUTE_CSUM.
	 */
	if (p->l4 == p->l3 + ip_at + ip_words * sizeof(word) && covers != COVERS_UNKNOWN)
		return ctx_store(ctx, p->l3 + ip_at, to, (ip_words + words) * sizeof(word));
	/* Options or extension headers are in between, or the sums differ. */
	if (ctx_store(ctx, p->l3 + ip_at, to, ip_words * sizeof(word)) ||
	    bpf_skb_store_bytes(ctx, p->l4, to + ip_words, words * sizeof(word),
				covers == COVERS_UNKNOWN ? 0 : BPF_F_RECOMPUTE_CSUM))
		return -REASON_REWRITE_FAILED;
	return 0;
}

/* Functions of their own, for the stack's sake, which the verifier walks once. Return as rewrite(). */
#define REWRITE(name, v6, tcp)                                                                                         \
	__noinline int name(ctx_t *ctx, const struct packet *p, const struct addr *src, const struct addr *dst,        \
			    __u64 rest)                                                                                \
	{                                                                                                              \
		word to[(v6 ? IPV6_WORDS : IPV4_WORDS) + (tcp ? TCP_WORDS : UDP_WORDS)];                               \
                                                                                                                       \
		return p && src && dst ? rewrite(ctx, p, src, dst, rest, to, v6, tcp) : -REASON_REWRITE_FAILED;        \
	}

REWRITE(rewrite_tcp4, false, true)
REWRITE(rewrite_tcp6, true, true)
REWRITE(rewrite_udp4, false, false)
REWRITE(rewrite_udp6, true, false)

/*
 * Both addresses, where no checksum but the header's covers them, and so many hops less to live, in one write. Functions of their own, too.
 * Return as rewrite().
 */
#define REWRITE_IP(name, v6)                                                                                           \
	__noinline int name(ctx_t *ctx, const struct packet *p, const struct addr *src, const struct addr *dst,        \
			    __u32 hops)                                                                                \
	{                                                                                                              \
		word to[v6 ? IPV6_WORDS : IPV4_WORDS];                                                                 \
		const __u32 at = p ? p->l3 + (v6 ? IPV6_FIELDS : IPV4_FIELDS) : 0;                                     \
		const word *ip = header_words(ctx, at, sizeof(to) / sizeof(word));                                     \
                                                                                                                       \
		if (!p || !src || !dst || !ip)                                                                         \
			return -REASON_REWRITE_FAILED;                                                                 \
		ip_fields(to, ip, src, dst, hops, v6);                                                                 \
		return ctx_store(ctx, at, to, sizeof(to));                                                             \
	}

REWRITE_IP(rewrite_ip4, false)
REWRITE_IP(rewrite_ip6, true)

/* Both ends of a packet, without its ports if addresses_only, and so many hops less to live. Returns as rewrite(). */
static __always_inline int rewrite_ends(ctx_t *ctx, const struct packet *p, const struct addr *src,
					const struct addr *dst, __be16 sport, __be16 dport, __u32 hops, const bool v6)
{
	const __u64 rest = (__u64)hops << 32 | word_of(sport, dport);

	if (p->addresses_only)
		return v6 ? rewrite_ip6(ctx, p, src, dst, hops) : rewrite_ip4(ctx, p, src, dst, hops);
	if (p->proto == IPPROTO_TCP)
		return v6 ? rewrite_tcp6(ctx, p, src, dst, rest) : rewrite_tcp4(ctx, p, src, dst, rest);
	return v6 ? rewrite_udp6(ctx, p, src, dst, rest) : rewrite_udp4(ctx, p, src, dst, rest);
}

#endif
