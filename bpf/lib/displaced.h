/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Where connections and datagrams go whose place another flow took before it was known that they go on, or whose SYN got none. In a flood an entry lives for a fraction
 * of a second; a client whose ACK and request were lost in a full queue says more later, when the weights may have moved. And which answers have lost
 * their entry, so that none leaves in its endpoint's name: docs/adr/0055-what-a-flood-displaces.md.
 */
#ifndef WEIR_DISPLACED_H
#define WEIR_DISPLACED_H

#include "sets.h"

#define DISPLACED_BACKENDS ((1u << (DISPLACED_TICK - DISPLACED_BACKEND)) - 1)
/* Of a word about answers it is the lowest part. */
#define DISPLACED_TICKS ((1u << (DISPLACED_TAG - DISPLACED_TICK)) - 1)

/* Ticks for which a backend may repeat its answer to a SYN: five times, a minute in all, where a tick is a second. */
#define MOVED_IDLE 64

_Static_assert(OPENING_IDLE <= DISPLACED_TICKS && MOVED_IDLE <= DISPLACED_TICKS, "a memory is older than it can say");

/* The line of a set, in which the low bits of a key's tag name its place; NULL only to the verifier. */
static __always_inline struct displaced *displaced_line(__u32 set)
{
	return bpf_map_lookup_elem(&displaced, &set);
}

/* Asks for the memory of a set's words about flows, or about answers. */
static __always_inline void displaced_fetch(__u32 set, const bool is_flow)
{
	const struct displaced *line = displaced_line(set);

	if (line && is_flow)
		fetch_words((const word *)line->entry, sizeof(line->entry) / (sizeof(word)));
	else if (line)
		fetch_words((const word *)line->answers, sizeof(line->answers) / (sizeof(word)));
}

/* The place of a tag in a line, which the verifier is shown the bound of. */
static __always_inline __u32 displaced_way(__u32 tag)
{
	barrier_var(tag);
	return tag & (DISPLACED_WAYS - 1);
}

/*
 * Remembers where a flow goes whose key has a tag in a set, as its place becomes another flow's, or as it gets none. Functions of their own, as
 * the one that stores has no stack to spare.
 */
static __noinline void displace(__u32 set, __u32 tag, const struct flow *flow)
{
	struct displaced *line = displaced_line(set);

	if (line && flow->backend <= DISPLACED_BACKENDS)
		*(volatile __u64 *)&line->entry[displaced_way(tag)] =
			(__u64)(tag >> 16) << DISPLACED_TAG | (__u64)(now_ticks() & DISPLACED_TICKS) << DISPLACED_TICK |
			(__u64)flow->backend << DISPLACED_BACKEND | bpf_ntohs(flow->snat_port);
}

/* Bits of a word about answers: of the hash, and of the number of the SYN-ACK that there was, where a tick has none. */
static __always_inline __u32 displaced_bits(__u32 tag, __u16 heard)
{
	return (tag ^ (__u32)heard << 8) & ~DISPLACED_TICKS;
}

/* Remembers that the entry for a TCP connection's answers, whose key has a tag in a set, has lost its place. heard: as in struct reply. */
static __noinline void displace_answers(__u32 set, __u32 tag, __u16 heard)
{
	struct displaced *line = displaced_line(set);

	if (line)
		*(volatile __u32 *)&line->answers[displaced_way(tag)] =
			displaced_bits(tag, heard) | (now_ticks() & DISPLACED_TICKS);
}

/* Ticks since it lost its place. */
static __always_inline __u32 displaced_ago(__u64 entry)
{
	return (now_ticks() - (__u32)(entry >> DISPLACED_TICK)) & DISPLACED_TICKS;
}

/*
 * What is remembered of the connection with a hash of its key, or 0. A client asks for so long as for an answer to its SYN, or begins anew. A function
 * of its own, for the stack's sake, like the next one.
 */
__noinline __u64 displaced_find(__u64 hash)
{
	const struct displaced *line = displaced_line(opening_set(hash));
	__u32 tag = opening_tag(hash);
	__u64 entry = line ? *(const volatile __u64 *)&line->entry[displaced_way(tag)] : 0;

	return entry >> DISPLACED_TAG == tag >> 16 && displaced_ago(entry) <= OPENING_IDLE ? entry : 0;
}

/*
 * Whether answers with a hash of their key have lost their entry, and a SYN-ACK with a number (enum heard) is one of them: the one that there was
 * comes again, or there had been none, and from now on this one is that.
 */
__noinline int displaced_answers(__u64 hash, __u16 heard)
{
	struct displaced *line = displaced_line(opening_set(hash));
	__u32 tag = opening_tag(hash), way = displaced_way(tag), word, ago;

	word = line ? *(volatile __u32 *)&line->answers[way] : 0;
	ago = (now_ticks() - word) & DISPLACED_TICKS;
	if (!word || ago > MOVED_IDLE)
		return false;
	if ((word & ~DISPLACED_TICKS) == displaced_bits(tag, heard))
		return true;
	if ((word & ~DISPLACED_TICKS) != displaced_bits(tag, 0) || ago > OPENING_IDLE)
		return false;
	*(volatile __u32 *)&line->answers[way] = displaced_bits(tag, heard) | (word & DISPLACED_TICKS);
	return true;
}

static __always_inline __u32 displaced_backend(__u64 entry)
{
	return entry >> DISPLACED_BACKEND & DISPLACED_BACKENDS;
}

/* The source port (BE) of a connection to a backend, or 0: there was another backend, or it had its client's. */
static __always_inline __be16 displaced_port(__u64 entry, __u32 backend)
{
	return displaced_backend(entry) == backend ? bpf_htons((__u16)entry) : 0;
}

#endif
