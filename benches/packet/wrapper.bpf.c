/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Times a program by BPF_PROG_RUN, whose rounds all see the packet as the last one left it. Each round writes the
 * packet anew from a template, gives it the next flow's addresses, and tail-calls the program under test. What the
 * wrapper itself costs is measured with the null program in its place.
 */
#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TEMPLATE_WORDS 10

struct plan {
	__u64 template[TEMPLATE_WORDS]; /* the frame: 64 bytes of IPv4 or 80 of IPv6 */
	__u32 next;			/* number of the next flow */
	__u32 flows;			/* flows repeat after so many; 0: never */
	__u32 services;			/* flow i goes to service i modulo this */
	__u32 first_service;		/* HOST, last word of the first service's address */
	__u32 v6;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plan);
} plan SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} target SEC(".maps");

/* What the sink has received. Frames arrive on one processor. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

/* Restores the frame. Returns false if it has another length than expected. */
static __always_inline bool restore(struct xdp_md *ctx, const struct plan *p, const int words)
{
	__u64 *data, *end;

	/* Take back what the program under test put in front of the frame. */
	bpf_xdp_adjust_meta(ctx, ctx->data - ctx->data_meta);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + words > end)
		return false;
#pragma unroll
	for (int i = 0; i < words; i++)
		data[i] = p->template[i];
	return true;
}

SEC("xdp")
int bench_wrapper(struct xdp_md *ctx)
{
	__u32 slot = 0, flow, service;
	struct plan *p = bpf_map_lookup_elem(&plan, &slot);
	struct ethhdr *eth;
	struct tcphdr *tcp;
	void *end;

	if (!p || !(p->v6 ? restore(ctx, p, 10) : restore(ctx, p, 8)))
		return XDP_ABORTED;
	flow = p->next++;
	if (p->flows && p->next == p->flows)
		p->next = 0;
	service = flow;
	if (p->services == 1)
		service = 0;
	else if (service >= p->services)
		service %= p->services;
	eth = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (p->v6) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return XDP_ABORTED;
		ip->saddr.in6_u.u6_addr32[3] = bpf_htonl(flow >> 14);
		ip->daddr.in6_u.u6_addr32[3] = bpf_htonl(p->first_service + service);
	} else {
		struct iphdr *ip = (void *)(eth + 1);

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return XDP_ABORTED;
		ip->saddr = bpf_htonl(0xc0000000 + (flow >> 14));
		ip->daddr = bpf_htonl(p->first_service + service);
	}
	tcp->source = bpf_htons(1024 + (flow & 0x3fff));
	bpf_tail_call(ctx, &target, 0);
	return XDP_ABORTED;
}

/* The program that does nothing. */
SEC("xdp")
int bench_null(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_TX;
}

SEC("xdp")
int bench_drop(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_DROP;
}

/* At the far end of a device that live frames are sent to. */
SEC("xdp")
int bench_sink(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 slot = 0;
	__u64 *count = bpf_map_lookup_elem(&arrived, &slot);

	if (count)
		__sync_fetch_and_add(count, 1);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
