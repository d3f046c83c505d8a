/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The kernel's answers about routes, which a CPU remembers for the jiffy in which they came: packets of a flow come in bursts, and to ask costs as much
 * as all else that is done with one of them. docs/adr/0067-routes-of-this-jiffy.md
 */
#ifndef WEIR_ROUTE_H
#define WEIR_ROUTE_H

#include <linux/errno.h>

#include "maps.h"
#include "word.h"

_Static_assert(sizeof(struct bpf_fib_lookup) == ROUTE_WORDS * sizeof(word), "a question is so many words");

/* Where a CPU remembers the way of a packet: who asks for places of others does so in vain. NULL only to the verifier. */
static __always_inline struct route *route_place(const struct bpf_fib_lookup *fib)
{
	const word *asked = (const word *)fib;
	/* Ports, and then addresses. */
	__u64 ends = (__u64)(asked[0] ^ asked[1]) << 32;
	__u32 slot;

#pragma unroll
	for (int i = 4; i < 12; i += 2)
		ends += (__u64)(asked[i] ^ asked[i + 1] << 7) * (2 * i + 1);
	slot = ends * GOLDEN_RATIO >> (64 - ROUTE_BITS);
	return bpf_map_lookup_elem(&routes, &slot);
}

/*
 * Asks the kernel for the way of a packet of fib->tot_len bytes, unless the same was asked in this jiffy: what was found then is no older than packets
 * that are still on their way. A function of its own, for the stack's sake. Returns as bpf_fib_lookup().
 */
__noinline int route_now(ctx_t *ctx, struct bpf_fib_lookup *fib)
{
	const __u64 now = bpf_jiffies64();
	word *words = (word *)fib, *asked, *answer;
	struct route *known;
	__u64 differs;
	__u16 length;
	long found;

	if (!fib)
		return -EINVAL;
	length = fib->tot_len;
	fib->tot_len = 0;
	known = route_place(fib);
	if (!known)
		return BPF_FIB_LKUP_RET_UNREACHABLE;
	asked = (word *)&known->asked;
	answer = (word *)&known->answer;
	differs = known->jiffy ^ now;
#pragma unroll
	for (int i = 0; i < ROUTE_WORDS; i++)
		differs |= asked[i] ^ words[i];
	if (!differs && length <= known->answer.mtu_result) {
#pragma unroll
		for (int i = 0; i < ROUTE_WORDS; i++)
			words[i] = answer[i];
		return BPF_FIB_LKUP_RET_SUCCESS;
	}
	known->jiffy = 0;
#pragma unroll
	for (int i = 0; i < ROUTE_WORDS; i++)
		asked[i] = words[i];
	fib->tot_len = length;
	found = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	if (found != BPF_FIB_LKUP_RET_SUCCESS)
		return found;
#pragma unroll
	for (int i = 0; i < ROUTE_WORDS; i++)
		answer[i] = words[i];
	known->jiffy = now;
	return found;
}

#endif
