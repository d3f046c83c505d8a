// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Sends every datagram to UDP port 7 back to where it came from. The checksum is left alone: it stays right if it was. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SWAP(a, b)                                                                                                     \
	do {                                                                                                           \
		typeof(a) swapped = (a);                                                                               \
		(a) = (b);                                                                                             \
		(b) = swapped;                                                                                         \
	} while (0)

static __always_inline int reflect(struct ethhdr *eth, struct udphdr *udp, void *end)
{
	unsigned char source[ETH_ALEN];

	if ((void *)(udp + 1) > end || udp->dest != bpf_htons(7))
		return XDP_PASS;
	SWAP(udp->source, udp->dest);
	__builtin_memcpy(source, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, source, ETH_ALEN);
	return XDP_TX;
}

SEC("xdp")
int reflect_udp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip4 = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	int verdict = XDP_PASS;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && (void *)(ip4 + 1) <= end && ip4->protocol == IPPROTO_UDP) {
		verdict = reflect(eth, (void *)(ip4 + 1), end);
		if (verdict == XDP_TX)
			SWAP(ip4->saddr, ip4->daddr);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end && ip6->nexthdr == IPPROTO_UDP) {
		verdict = reflect(eth, (void *)(ip6 + 1), end);
		if (verdict == XDP_TX)
			SWAP(ip6->saddr, ip6->daddr);
	}
	return verdict;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
