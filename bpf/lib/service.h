/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* From the address that a client sends to, to a service and the class of the traffic. */
#ifndef WEIR_SERVICE_H
#define WEIR_SERVICE_H

#include <bpf/bpf_endian.h>

#include "maps.h"
#include "word.h"

/*
 * Bit of a frontend in the filter. Those of one address are near each other: what goes to a client, at any port of it, meets the same few
 * lines of the cache. crates/datapath/src/filter.rs computes the same.
 */
static __always_inline __u32 frontend_filter_hash(__be32 last_word, __be16 port, __u8 proto)
{
	__u64 address = (__u64)last_word * GOLDEN_RATIO;
	__u64 all = ((__u64)last_word << 32 | (__u64)port << 16 | proto) * GOLDEN_RATIO;

	return (address >> (64 - FILTER_BITS) & -(1u << FILTER_NEAR_BITS)) | all >> (64 - FILTER_NEAR_BITS);
}

/* False for addresses that were no frontend since the filter was last made; true proves nothing. */
static __always_inline bool may_be_frontend(const struct addr *addr, __be16 port, __u8 proto)
{
	__u32 hash = frontend_filter_hash(addr->word[3], port, proto);
	__u32 slot = hash >> FILTER_WORD_BITS;
	const struct filter_word *word = bpf_map_lookup_elem(&frontend_filter, &slot);

	return word && word->bits >> (hash & ((1 << FILTER_WORD_BITS) - 1)) & 1;
}

/* Looks an address up among the frontends. Returns NULL if it is none of ours. */
static __always_inline const struct frontend *frontend_lookup(const struct addr *addr, __be16 port, __u8 proto,
							      const bool v6)
{
	if (v6) {
		struct frontend_key6 key = {
			.addr = { addr->word[0], addr->word[1], addr->word[2], addr->word[3] },
		};

		*(word *)&key.port = word_of(port, proto);
		return bpf_map_lookup_elem(&frontends6, &key);
	}
	struct frontend_key4 key = { .addr = addr->word[3] };

	*(word *)&key.port = word_of(port, proto);
	return bpf_map_lookup_elem(&frontends4, &key);
}

/*
 * Whether an address is a cluster IP in use. To be asked where it has no frontend at a port: such packets would otherwise leave for wherever the
 * address is routed to.
 */
static __always_inline bool is_cluster_ip(const struct addr *addr, const bool v6)
{
	const struct frontend *frontend = may_be_frontend(addr, 0, 0) ? frontend_lookup(addr, 0, 0, v6) : NULL;

	return frontend && frontend->kind == KIND_UNUSED_PORT;
}

/* Node ports on these are for the node's own processes, whose sockets are translated. A packet to one is a martian. */
static __always_inline bool is_loopback(const struct addr *addr, const bool v6)
{
	if (v6)
		return !(addr->word[0] | addr->word[1] | addr->word[2]) && addr->word[3] == bpf_htonl(1);
	return (addr->word[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

/* Who connects to 0.0.0.0 or :: gets the host itself (ip_route_output_key_hash_rcu() in net/ipv4/route.c, tcp_v6_connect() in net/ipv6/tcp_ipv6.c). */
static __always_inline void any_to_loopback(struct addr *addr, const bool v6)
{
	if (v6 && !(addr->word[0] | addr->word[1] | addr->word[2] | addr->word[3]))
		addr->word[3] = bpf_htonl(1);
	if (!v6 && !addr->word[3])
		addr->word[3] = bpf_htonl(0x7f000001);
}

/* False for the address that the node does not have. */
static __always_inline bool is_set(const struct addr *addr)
{
	return addr->word[0] | addr->word[3];
}

/* Whether an IPv6 address stands for one of IPv4, as programs have them; none may be in a packet (RFC 4942, 2.2). */
static __always_inline bool is_mapped(const struct addr *addr)
{
	/* Words that are read for this alone take no room on the stack. */
	barrier_var(addr);
	return !(addr->word[0] | addr->word[1] | (addr->word[2] ^ IPV4_MAPPED_PREFIX));
}

/*
 * Whether an address is that of one host, as a sender's has to be: what comes from another one is a martian, which the host drops
 * (ip_route_input_slow() and ip6_rcv_core() in net/), and to which nobody answers.
 */
static __always_inline bool is_one_host(const struct addr *addr, const bool v6)
{
	const __be32 prefix = bpf_htonl(v6 ? 0xff000000 : 0xf0000000),
		     multicast = bpf_htonl(v6 ? 0xff000000 : 0xe0000000);
	const __be32 first = addr->word[v6 ? 0 : 3];

	if (!is_set(addr) || is_loopback(addr, v6) || (first & prefix) == multicast || (v6 && is_mapped(addr)))
		return false;
	/* Broadcast. */
	return v6 || ~first;
}

/* kube-proxy's short circuit: who is inside the cluster may use every endpoint, whatever the external policy says. */
static __always_inline enum traffic_class traffic_class_of(const struct frontend *frontend, bool from_outside)
{
	if (frontend->kind == KIND_CLUSTER_IP)
		return CLASS_INTERNAL;
	return from_outside ? CLASS_EXTERNAL : CLASS_SHORT_CIRCUIT;
}

#endif
