/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The kernel's answers about routes, which a CPU remembers for the jiffy in which they came: packets of a flow come in bursts, and to ask costs a third
 * of what is done with one of IPv4, and half with IPv6. docs/adr/0067-routes-of-this-jiffy.md
 */
#ifndef WEIR_ROUTE_H
#define WEIR_ROUTE_H

#include <linux/errno.h>

#include "maps.h"
#include "word.h"

_Static_assert(sizeof(struct bpf_fib_lookup) == ROUTE_WORDS * sizeof(word), "a question is so many words");

/* Whether routes are remembered: not where programs of one CPU may interrupt each other, as the loader says. */
const volatile __u32 remembers_routes = 1;

/* Where a CPU remembers the way of a packet: who asks for places of others does so in vain. NULL only to the verifier. */
static __always_inline struct route *route_place(const struct bpf_fib_lookup *fib)
{
	const word *asked = (const word *)fib;
	/* Ports, and then addresses. */
	__u64 ends = (__u64)(asked[0] ^ asked[1]) << 32;
	__u32 slot;

#pragma unroll
	for (int i = 4; i < 12; i += 2)
		ends += (asked[i] ^ (__u64)asked[i + 1] << 7) * (2 * i + 1);
	/* Of what differs in its upper half alone, as ports do, too. */
	ends *= GOLDEN_RATIO;
	ends = (ends ^ ends >> 32) * GOLDEN_RATIO;
	slot = ends >> (64 - ROUTE_BITS);
	return bpf_map_lookup_elem(&routes, &slot);
}

/* Takes the answer for the question in words if it was asked in this jiffy and has room for so many bytes. Returns whether it did. */
static __always_inline bool route_recall(const struct route *known, word *words, __u16 length)
{
	const word *asked = (const word *)&known->asked, *answer = (const word *)&known->answer;
	__u64 differs = known->jiffy ^ bpf_jiffies64();

#pragma unroll
	for (int i = 0; i < ROUTE_WORDS; i++)
		differs |= asked[i] ^ words[i];
	if (differs || length > known->answer.mtu_result)
		return false;
#pragma unroll
	for (int i = 0; i < ROUTE_WORDS; i++)
		words[i] = answer[i];
	return true;
}

/*
 * Asks the kernel for the way of a packet of fib->tot_len bytes, unless the same was asked in this jiffy: what was found then is no older than packets
 * that are still on their way. A function of its own, for the stack's sake. Returns as bpf_fib_lookup().
 */
__noinline int route_now(ctx_t *ctx, struct bpf_fib_lookup *fib)
{
	word *words = (word *)fib, *to;
	struct route *known;
	__u16 length;
	long found;

	if (!fib)
		return -EINVAL;
	length = fib->tot_len;
	fib->tot_len = 0;
	known = remembers_routes ? route_place(fib) : NULL;
	if (known && route_recall(known, words, length))
		return BPF_FIB_LKUP_RET_SUCCESS;
	/* Words that were read are read anew, and take no room on the stack. */
	barrier();
	if (known) {
		to = (word *)&known->asked;
#pragma unroll
		for (int i = 0; i < ROUTE_WORDS; i++)
			to[i] = words[i];
		known->jiffy = bpf_jiffies64();
	}
	fib->tot_len = length;
	found = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	if (!known)
		return found;
	if (found != BPF_FIB_LKUP_RET_SUCCESS) {
		known->jiffy = 0;
		return found;
	}
	to = (word *)&known->answer;
#pragma unroll
	for (int i = 0; i < ROUTE_WORDS; i++)
		to[i] = words[i];
	return found;
}

#endif
