/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* An IP header of our own: around what is wrapped, and in front of what we answer. */
#ifndef WEIR_IP_HEADER_H
#define WEIR_IP_HEADER_H

#include "csum.h"
#include "parse.h"

/* Hops that such a packet may go, as all that a host begins (IPDEFTTL). */
#define IP_HOPS 64

/* What differs between them beside the addresses. */
struct new_ip {
	__u8 tos; /* or traffic class */
	__u8 proto;
	__u16 payload; /* bytes behind the header */
};

/* Writes an IP header without options at an offset. Returns 0 or -REASON_REWRITE_FAILED. */
static __always_inline int ip_store(ctx_t *ctx, __u32 at, const struct addr *src, const struct addr *dst,
				    const struct new_ip wanted, const bool v6)
{
	if (v6) {
		struct ipv6hdr ip = {
			.version = 6,
			.priority = wanted.tos >> 4,
			.flow_lbl = { wanted.tos << 4 },
			.payload_len = bpf_htons(wanted.payload),
			.nexthdr = wanted.proto,
			.hop_limit = IP_HOPS,
		};

		__builtin_memcpy(&ip.saddr, src, sizeof(ip.saddr));
		__builtin_memcpy(&ip.daddr, dst, sizeof(ip.daddr));
		return ctx_store(ctx, at, &ip, sizeof(ip));
	}
	struct iphdr ip = {
		.version = 4,
		.ihl = sizeof(ip) / 4,
		.tos = wanted.tos,
		.tot_len = bpf_htons(sizeof(ip) + wanted.payload),
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.ttl = IP_HOPS,
		.protocol = wanted.proto,
		.saddr = src->word[3],
		.daddr = dst->word[3],
	};

	ip.check = ~csum_fold(csum_words(&ip, sizeof(ip)));
	return ctx_store(ctx, at, &ip, sizeof(ip));
}

#endif
