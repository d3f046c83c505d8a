/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Later pieces of a packet that came before the first one: their frames are kept for a moment, and come again behind it. The
 * entries are few, those of one source fewer, and nobody's is taken as long as it may be wanted: a flood of pieces without
 * a first one keeps others out for a second and costs no memory. For tc.
 */
#ifndef WEIR_HELD_H
#define WEIR_HELD_H

#include <linux/errno.h>

#include "ctx_tc.h"
#include "fragment.h"

/* Ticks for which a piece waits. Ways of a packet differ by milliseconds. */
#define HELD_IDLE 1

static __always_inline bool is_same_datagram(const struct fragment_key *one, const struct fragment_key *other)
{
	__u32 differs = 0;

#pragma unroll
	for (int word = 0; word < 4; word++)
		differs |=
			(one->src.word[word] ^ other->src.word[word]) | (one->dst.word[word] ^ other->dst.word[word]);
	return !(differs | (one->id ^ other->id)) && one->proto == other->proto && one->out == other->out;
}

/* The first of the HELD_REGION entries in which pieces of a source may wait. */
static __always_inline __u32 held_region(const struct config *config, const struct addr *src)
{
	__u64 words = (__u64)(src->word[0] ^ src->word[2]) << 32 | (src->word[1] ^ src->word[3]);
	__u64 h = (words ^ config->hash_seed) * GOLDEN_RATIO;

	return ((h >> 32) * (config->held_pieces / HELD_REGION) >> 32) * HELD_REGION;
}

static __always_inline bool held_claim(struct held_piece *piece, __u32 state)
{
	return __sync_val_compare_and_swap(&piece->state, state, HELD_BUSY) == state;
}

/* Gives back an entry that was taken. An exchange: what is done with it is done before, on every CPU. */
static __always_inline void held_give_back(struct held_piece *piece)
{
	(void)__sync_lock_test_and_set(&piece->state, HELD_FREE);
}

/* Takes an entry in which nothing waits, or no longer. */
static __always_inline bool held_take(struct held_piece *piece, __u32 now)
{
	__u32 state = piece->state;

	if (state == HELD_BUSY || (state == HELD_USED && !is_idle(now, piece->last_seen, HELD_IDLE)))
		return false;
	return held_claim(piece, state);
}

/* Takes an entry in which a piece of the datagram waits. */
static __always_inline bool held_take_of(struct held_piece *piece, const struct fragment_key *key, __u32 now, __u32 l3)
{
	if (piece->state != HELD_USED || piece->l3 != l3 || !is_same_datagram(&piece->key, key) ||
	    is_idle(now, piece->last_seen, HELD_IDLE))
		return false;
	return held_claim(piece, HELD_USED);
}

/*
 * Whether a frame of this length fits into an entry. Asked right before it is copied: Linux before 6.8 does not conclude from "not 0"
 * that a number is more than 0, and forgets what it knew of one that was on the stack meanwhile.
 */
static __always_inline bool fits(__u32 *length)
{
	barrier_var(*length);
	if (*length < ETH_HLEN)
		return false;
	barrier_var(*length);
	return *length <= HELD_BYTES;
}

/* Takes an entry of a region for a piece. Returns its number, or -1: there is no room. */
__noinline int held_place(__u32 slot, __u32 now)
{
	for (int i = 0; i < HELD_REGION; i++, slot++) {
		struct held_piece *piece = bpf_map_lookup_elem(&held_pieces, &slot);

		if (piece && held_take(piece, now))
			return slot;
	}
	return -1;
}

/* Keeps a piece until the first one comes. Returns 0, or -REASON_FRAGMENT_LOST if there is no room or it is too long. */
__noinline int held_store(ctx_t *ctx, const struct packet *p, bool out)
{
	const struct config *config = config_get();
	struct held_piece *piece;
	struct fragment_key key;
	__u32 now, slot, length = ctx->len;

	if (!p || !holds_pieces(config) || !length || length > HELD_BYTES)
		return -REASON_FRAGMENT_LOST;
	now = now_ticks();
	slot = held_place(held_region(config, &p->src), now);
	piece = bpf_map_lookup_elem(&held_pieces, &slot);
	if (!piece)
		return -REASON_FRAGMENT_LOST;
	key = fragment_key_of(p, out);
	piece->key = key;
	piece->last_seen = now;
	piece->length = length;
	piece->l3 = p->l3;
	piece->ifindex = ctx->ifindex;
	if (fits(&length) && !bpf_skb_load_bytes(ctx, 0, piece->bytes, length)) {
		/* Before it is looked whether the first one has come: that one looks here afterwards. */
		__sync_lock_test_and_set(&piece->state, HELD_USED);
		if (fragment_await(&key, config))
			return 0;
		/* It may have this one already, and is to give it back itself. (A third piece that has it by then is lost, in nanoseconds.) */
		(void)__sync_val_compare_and_swap(&piece->state, HELD_USED, HELD_FREE);
		return -REASON_FRAGMENT_LOST;
	}
	held_give_back(piece);
	return -REASON_FRAGMENT_LOST;
}

/*
 * So long the kernel lets every frame be. It makes none shorter than up to a transport header that the device has noted, which is behind a wrapper here
 * (__bpf_skb_min_len() in net/core/filter.c).
 */
#define HELD_PADDED 128

/* Makes another frame of the one at hand. What trails a short one is no part of its packet, like Ethernet's padding. Returns 0 or an error. */
static __always_inline long become(ctx_t *ctx, const struct held_piece *piece)
{
	__u32 length = piece->length;
	long error;

	if (!fits(&length))
		return -EINVAL;
	error = bpf_skb_change_tail(ctx, length, 0);
	if (error && length < HELD_PADDED)
		error = bpf_skb_change_tail(ctx, HELD_PADDED, 0);
	if (error || !fits(&length))
		return error ?: -EINVAL;
	/* Of one that has grown no card's sum is left, which link headers that differ would spoil. */
	return bpf_skb_store_bytes(ctx, 0, piece->bytes, length, BPF_F_RECOMPUTE_CSUM);
}

/*
 * Lets one that waits in an entry come again, if it is of this datagram. Functions of their own: the verifier walks them once
 * for all entries. Return 0.
 */
__noinline int held_again(ctx_t *ctx, const struct fragment_key *key, __u32 slot, bool out, __u32 l3)
{
	struct held_piece *piece = bpf_map_lookup_elem(&held_pieces, &slot);

	if (!key || !piece || !held_take_of(piece, key, now_ticks(), l3))
		return 0;
	if (!become(ctx, piece))
		bpf_clone_redirect(ctx, piece->ifindex, out ? 0 : BPF_F_INGRESS);
	held_give_back(piece);
	return 0;
}

/*
 * Gives back the entries of pieces that are not to come again: they have passed as their first one does, or are lost. Whatever waits there longer
 * keeps out others. Returns 0.
 */
__noinline int held_forget(const struct packet *p, bool out)
{
	const struct config *config = config_get();
	struct fragment_key key;
	__u32 slot, now = now_ticks();

	if (!p)
		return 0;
	key = fragment_key_of(p, out);
	slot = held_region(config, &p->src);
	for (int i = 0; i < HELD_REGION; i++, slot++) {
		struct held_piece *piece = bpf_map_lookup_elem(&held_pieces, &slot);

		if (piece && held_take_of(piece, &key, now, p->l3))
			held_give_back(piece);
	}
	return 0;
}

/*
 * Lets the pieces that waited for a first one, which is translated by now, come again: the frame at hand becomes each of them
 * for as long as it takes to clone it, and is itself again in the end. Returns 0 or -REASON_REWRITE_FAILED.
 */
__noinline int held_release(ctx_t *ctx, const struct packet *p, bool out)
{
	const struct config *config = config_get();
	struct held_piece *first;
	struct fragment_key key;
	__u32 slot = 0, length = ctx->len;

	first = bpf_map_lookup_elem(&first_pieces, &slot);
	if (!p || !first || !length || length > HELD_BYTES)
		return held_forget(p, out);
	if (!fits(&length) || bpf_skb_load_bytes(ctx, 0, first->bytes, length))
		return held_forget(p, out);
	first->length = length;
	/* A frame that grows has no checksum by the card any more, which would be wrong from now on. */
	if (bpf_skb_change_tail(ctx, length + 1, 0))
		return held_forget(p, out);
	key = fragment_key_of(p, out);
	slot = held_region(config, &p->src);
	for (int i = 0; i < HELD_REGION; i++, slot++)
		held_again(ctx, &key, slot, out, p->l3);
	return become(ctx, first) ? -REASON_REWRITE_FAILED : 0;
}

/* Ends the wait for a first piece, as that is translated or not. Returns as held_release(). */
static __always_inline int held_end(ctx_t *ctx, const struct packet *p, bool out, bool translated)
{
	return translated ? held_release(ctx, p, out) : held_forget(p, out);
}

#endif
