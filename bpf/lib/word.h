/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Keys by words. A table hashes a key word by word as soon as it is made. A word that narrower stores have made cannot be loaded before
 * these are in the cache, behind all that came before them: a look-up would begin when the memory of the one before it has arrived,
 * and not beside it. A first packet took a seventh longer.
 */
#ifndef WEIR_WORD_H
#define WEIR_WORD_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* Keys and values are copied and compared by words, whatever they are made of. */
typedef __u32 __attribute__((may_alias)) word;

/* A line of memory that a processor asks for at once, in words. */
#define LINE_WORDS (64 / sizeof(word))

/* Asks for the memory of so many words, by a read of each line: docs/adr/0060-memory-asked-for-before-it-is-needed.md. */
static __always_inline void fetch_words(const word *from, const __u32 words)
{
#pragma unroll
	for (__u32 i = 0; i < words; i += LINE_WORDS)
		(void)*(const volatile word *)(from + i);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte of a word is its lowest");

/* 2^64 over the golden ratio: spreads whatever it multiplies (Knuth, "The Art of Computer Programming", volume 3, 6.4). */
#define GOLDEN_RATIO 0x9e3779b97f4a7c15ull

/* Of two halves, as they follow each other in memory. A byte with nothing behind it is a half, too. */
static __always_inline word word_of(__u16 first, __u16 second)
{
	return first | (word)second << 16;
}

/*
 * Flags of entries in tables are changed by these two alone, those of what is on the stack plainly.
 *
 * Sets bits of the first half of a word. What is read afterwards is read after that on every CPU: of two that set a bit each and then look
 * for the other's, one at least sees it. That takes an exchange, whose result somebody wants. Returns the bits that were set before.
 */
static __always_inline __u16 set_bits(__u16 *half, __u16 bits)
{
	word before = __sync_fetch_and_or((word *)half, bits);

	barrier_var(before);
	return before;
}

/* Clears them in the same way, and loses none that another CPU sets meanwhile. Returns the bits that were set before. */
static __always_inline __u16 clear_bits(__u16 *half, __u16 bits)
{
	word before = __sync_fetch_and_and((word *)half, ~(word)bits);

	barrier_var(before);
	return before;
}

#endif
