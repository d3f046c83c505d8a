/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which entry of a set gives its place to a new one: one function decides for all tables, from a few bits of each. */
#ifndef WEIR_CLAIM_H
#define WEIR_CLAIM_H

#include "displaced.h"

/* What an entry is to who wants a place: the upper bits of its rank, above how many were written since. */
enum opening_rank {
	OPENING_RANK_SPARED_USED = 0, /* or being written */
	OPENING_RANK_SPARED = 1,
	OPENING_RANK_USED = 2,
	OPENING_RANK_UNUSED = 3,
	OPENING_RANK_ENDED = 4,
	OPENING_RANK_FREE = 5,
	OPENING_RANK_KEPT = 8, /* a mark alone: as if it were being written */
	OPENING_RANK_SHIFT = 29,
};

#define OPENING_AGE ((1u << OPENING_RANK_SHIFT) - 1)

/* The tick in which an entry was seen last. */
static __always_inline __u32 opening_seen(struct opening_head *head, __u32 way, const struct opening_kind kind)
{
	return opening_value(head, way, kind)[kind.last_seen];
}

/* What is marked of a set's entries: a rank for each, and above that the number that the next one gets which is written. */
enum opening_marks {
	OPENING_MARK = 4, /* bits of a rank */
	OPENING_NEXT = OPENING_MARK * OPENING_WAYS,
	OPENING_EACH = 0x1111, /* times a rank: all have it */
};

/*
 * Numbers before the next one, of what is kept or stays for long: far from those that look new, in either direction. Other CPUs count on
 * while one that marks reads, and what it has marked may get its number from another one that began later.
 */
#define OPENING_LONG_AGO (1u << (32 - OPENING_NEXT - 2))

/* Whether an entry was written since the others were marked: what was marked of it was the one's before. */
static __always_inline bool opening_is_new(struct opening_head *head, __u32 way, __u32 marks)
{
	/* By as many bits as are left of the number. No room on the stack is taken for them. */
	barrier_var(marks);
	return (__s32)((head->turn[way] << OPENING_NEXT) - (marks & -(1u << OPENING_NEXT))) >= 0;
}

/* The higher, the sooner an entry goes. */
static __always_inline __u32 opening_rank(struct opening_head *head, __u32 way, __u32 marks)
{
	__u32 age;

	/* Addresses that are made anew each time take no room on the stack. */
	barrier_var(head);
	barrier_var(marks);
	age = (head->next - head->turn[way]) & OPENING_AGE;
	if (head->tag[way] == OPENING_BUSY)
		return 0;
	if (head->tag[way] == OPENING_FREE)
		return (__u32)OPENING_RANK_FREE << OPENING_RANK_SHIFT;
	if (opening_is_new(head, way, marks))
		return (__u32)OPENING_RANK_UNUSED << OPENING_RANK_SHIFT | age;
	if (marks >> way * OPENING_MARK & OPENING_RANK_KEPT)
		return 0;
	return marks >> way * OPENING_MARK << OPENING_RANK_SHIFT | age;
}

/* Takes an entry that is neither being written nor kept. Returns its rank, or 0 if it could not. */
static __always_inline __u32 opening_take_ranked(struct opening_head *head, __u32 way, __u32 marks)
{
	__u32 tag = head->tag[way], rank = opening_rank(head, way, marks);

	return rank && opening_take(head, way, tag) ? rank : 0;
}

/* What opening_claim() returns beside the entry: a bit for each that is passed over, from this one on. */
#define OPENING_PASSED 8
/* The same: those go to the end of the line. */
#define OPENING_LAST 16
/* The same: what had the entry may still be needed. */
#define OPENING_TAKEN 32

/*
 * Which entries are passed over, once, for one with a rank: those that were used since they were written, and whose turn it was before;
 * of those that are spared none for one that is not.
 */
static __always_inline int opening_passed(struct opening_head *head, __u32 rank, __u32 marks)
{
	/* Where all were used all are passed over, and the oldest goes. */
	const bool all = !(rank >> OPENING_RANK_SHIFT & 1);
	/* Ranks above the first one, and so many. */
	const __u32 from = all ? rank & ~OPENING_AGE : rank - (1u << OPENING_RANK_SHIFT);
	const __u32 count = all ? OPENING_AGE : OPENING_AGE - (rank & OPENING_AGE);
	__u32 passed = 0;

#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		if (opening_rank(head, way, marks) - from - 1 < count)
			passed |= 1 << way;
	}
	return passed << OPENING_PASSED | (all ? 0 : OPENING_LAST);
}

/*
 * Takes an entry for a new key: a free one, else that of a flow which has ended, else that which was written longest ago, of those that are
 * not spared before the others. One that
 * was used since is passed over once, so that a client which only ever sends keeps it. A function of its own, which the verifier
 * walks once for all tables. Returns the entry and which are passed over, or -1: others are writing all of them.
 */
__noinline int opening_claim(struct opening_head *head, __u32 marks)
{
	__u32 most = 0, first = 0, seen = OPENING_BUSY;

	if (!head)
		return -1;
#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		__u32 tag = head->tag[way], rank = opening_rank(head, way, marks);

		if (rank <= most)
			continue;
		most = rank;
		first = way;
		seen = tag;
	}
	if (!opening_take(head, first, seen)) {
		/* Another CPU was sooner: what it has written is the last one to go. */
		__u32 others = OPENING_WAYS - 1;

#pragma clang loop unroll(disable)
		while (others && !(most = opening_take_ranked(head, (first + others) & (OPENING_WAYS - 1), marks)))
			others--;
		if (!others)
			return -1;
		first = (first + others) & (OPENING_WAYS - 1);
	}
	if (most >> OPENING_RANK_SHIFT > OPENING_RANK_UNUSED)
		return first;
	return first | OPENING_TAKEN | opening_passed(head, most, marks);
}

/*
 * What is marked of a set for a flow that begins with a value. theirs: the set's first value. at: where in each, in words, is when it was seen
 * last, its flags, and whom it is to; and how far it is to the next one. A byte each, the first in the lowest. open: ticks that a connection is
 * open without a word.
 *
 * What has settled goes on, and is kept. Entries to somebody else are spared, so that a flood takes the places of its own SYNs. Where the others
 * have most of the set, theirs go, and those to the same are spared. Of long ago none is. A function of its own, as the one that stores has no
 * stack to spare.
 */
static __noinline __u32 opening_marks(struct opening_head *head, const word *theirs, const word *value, __u32 open,
				      __u32 at)
{
	/* The number is read before the rest. */
	__u32 marks = *(const volatile __u32 *)&head->next << OPENING_NEXT, spared = 0;

#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		__u32 seen, now, rank = OPENING_RANK_UNUSED;
		__u16 known;

		/* What is made anew each time takes no room on the stack. */
		barrier_var(at);
		seen = theirs[at & 0xff];
		now = value[at & 0xff];
		known = *(const __u16 *)(theirs + (at >> 8 & 0xff));
		if ((known & (FLOW_SETTLED | FLOW_MOVED)) == FLOW_SETTLED &&
		    !is_idle(now, seen, known & FLOW_ENDED ? OPENING_IDLE : open)) {
			rank = OPENING_RANK_KEPT;
		} else if (known & FLOW_ENDED) {
			rank = OPENING_RANK_ENDED;
		} else if (seen != head->born[way]) {
			rank = OPENING_RANK_USED;
		}
		marks |= rank << way * OPENING_MARK;
		/* What is written anew for an answer that comes again is older than some. */
		if (!is_idle(now, seen, OPENING_IDLE) && rank != OPENING_RANK_KEPT &&
		    *(const __u32 *)(theirs + (at >> 16 & 0xff)) != *(const __u32 *)(value + (at >> 16 & 0xff)))
			spared |= OPENING_RANK_USED << way * OPENING_MARK;
		theirs += at >> 24;
		barrier_var(head);
		/* So many others are written beside one that stays for long that its number would look like a new one. */
		if (rank == OPENING_RANK_KEPT || (__s32)(head->next - head->turn[way]) > (__s32)OPENING_LONG_AGO)
			head->turn[way] = head->next - OPENING_LONG_AGO;
	}
	/* How many: the sum of all is in the upper mark. */
	if ((spared / OPENING_RANK_USED * OPENING_EACH >> (OPENING_NEXT - OPENING_MARK) & 7) >= OPENING_WAYS - 1)
		spared = ~spared & OPENING_RANK_USED * OPENING_EACH;
	return marks & ~spared;
}

/*
 * Notes that an entry of a set that was taken gives its place to another one while somebody may still ask for it. now: of that one. Another CPU that
 * has just passed over the entry may say something else in place of its tag: a word is lost then.
 */
static __always_inline void opening_displace(struct opening_head *head, __u32 set, __u32 way, __u32 now,
					     const struct opening_kind kind)
{
	const __u32 seen = opening_seen(head, way, kind);
	const word *value = opening_value(head, way, kind);
	__u8 proto;

	if (is_idle(now, seen, kind.is_flow ? OPENING_IDLE : MOVED_IDLE))
		return;
	/* Two CPUs that count at once may count one. */
	if (!is_idle(now, seen, OPENING_IDLE))
		head->displaced++;
	proto = (__u8)opening_key(head, way, kind)[kind.words - 1];
	/* Who only ever sends datagrams is never known for one that goes on. */
	if (proto != IPPROTO_TCP && (proto != IPPROTO_UDP || !kind.is_flow))
		return;
	/* Its tag opening_take() has left there. */
	if (kind.is_flow)
		displace(set, head->born[way], (const struct flow *)value);
	else
		displace_answers(set, head->born[way], ((const struct reply *)value)->heard);
}

/* Claims an entry of a set for a value, by what the others' say now, and passes over. Returns the entry, or -1. */
static __always_inline int opening_claim_of(struct opening_head *head, __u32 set, const word *value, __u32 open,
					    const struct opening_kind kind)
{
	__u32 marks = opening_marks(head, opening_value(head, 0, kind), value, open,
				    kind.last_seen | kind.flags << 8 | kind.to << 16 | kind.stride << 24);
	int claimed = opening_claim(head, marks);

	if (claimed < OPENING_TAKEN)
		return claimed;
	opening_displace(head, set, claimed & (OPENING_WAYS - 1), value[kind.last_seen], kind);
#pragma clang loop unroll(disable)
	for (__u32 way = 0; way < OPENING_WAYS; way++) {
		if (!(claimed >> OPENING_PASSED >> way & 1))
			continue;
		head->born[way] = opening_seen(head, way, kind);
		if (claimed & OPENING_LAST)
			head->turn[way] = head->next++;
	}
	return claimed & (OPENING_WAYS - 1);
}

#endif
