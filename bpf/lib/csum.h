/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The Internet checksum (RFC 1071) and its incremental update (RFC 1624, equation 3). */
#ifndef WEIR_CSUM_H
#define WEIR_CSUM_H

#include <linux/types.h>

/* Folds a sum of 16- and 32-bit words to 16 bits; the complement is left to the caller. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum + (sum >> 16);
}

/* The checksum after a change; diff is the sum of the complements of the old words and of the new words. */
static __always_inline __u16 csum_update(__u16 check, __u64 diff)
{
	return ~csum_fold((__u16)~check + diff);
}

/* Sum of whole 16-bit words. size is a constant and even. */
static __always_inline __u64 csum_words(const void *data, const __u32 size)
{
	const __u16 *word = data;
	__u64 sum = 0;

#pragma unroll
	for (__u32 i = 0; i < size / 2; i++)
		sum += word[i];
	return sum;
}

#endif
