/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets in pieces: the first one has the ports, the later ones are told them. For tc; XDP leaves fragments to it. */
#ifndef WEIR_FRAGMENT_H
#define WEIR_FRAGMENT_H

#include "config.h"
#include "parse.h"

static __always_inline struct fragment_key fragment_key_of(const struct packet *p, bool out)
{
	return (struct fragment_key){
		.src = p->src, .dst = p->dst, .id = p->fragment_id, .proto = p->proto, .out = out
	};
}

/* Whether pieces that come before their first one are kept. */
static __always_inline bool holds_pieces(const struct config *config)
{
	return config->held_pieces >= HELD_REGION;
}

/*
 * Remembers what became of a first piece, and its ports if it was ours. Best effort, and a function of its own for the stack's
 * sake. Returns 1 if later ones wait for it, else 0.
 */
__noinline int fragment_store(const struct packet *p, bool out, bool ours)
{
	const struct config *config = config_get();
	struct fragment_key key;
	struct fragment first;
	struct fragment *known;

	if (!p)
		return 0;
	/* Only what is kept must be told from what passes. */
	if (!ours && !holds_pieces(config))
		return 0;
	key = fragment_key_of(p, out);
	first = (struct fragment){ .sport = p->sport,
				   .dport = p->dport,
				   .last_seen = now_ticks(),
				   .state = ours ? FRAGMENT_OURS : FRAGMENT_FOREIGN };
	if (!bpf_map_update_elem(&fragments, &key, &first, BPF_NOEXIST))
		return 0;
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		return 0;
	known->sport = first.sport;
	known->dport = first.dport;
	known->last_seen = first.last_seen;
	/* Comes last and at once: another CPU may be about to let a later piece wait. */
	return __sync_lock_test_and_set(&known->state, first.state) == FRAGMENT_AWAITED;
}

/*
 * Gives a later piece the ports of the first one, unless that is so long ago that the packet's number may have been used
 * again since. Returns 0, -REASON_FRAGMENT if the first one passed untouched, or -REASON_FRAGMENT_HELD if it did not come.
 */
__noinline int fragment_find(struct packet *p, bool out)
{
	const struct config *config = config_get();
	struct fragment_key key;
	struct fragment *first;
	__u32 state;

	if (!p)
		return -REASON_FRAGMENT;
	key = fragment_key_of(p, out);
	first = bpf_map_lookup_elem(&fragments, &key);
	if (!first)
		return -REASON_FRAGMENT_HELD;
	/* Pieces are few, and this is a barrier: the ports, which were written before it, are read after it. */
	state = __sync_fetch_and_or(&first->state, 0);
	if (state == FRAGMENT_AWAITED || is_idle(now_ticks(), first->last_seen, config->fragment_idle))
		return -REASON_FRAGMENT_HELD;
	if (state == FRAGMENT_FOREIGN)
		return -REASON_FRAGMENT;
	p->sport = first->sport;
	p->dport = first->dport;
	return 0;
}

/* Notes that a later piece waits for the first one. Returns false if that came meanwhile, on another CPU. */
static __always_inline bool fragment_await(const struct fragment_key *key, const struct config *config)
{
	struct fragment awaited = { .last_seen = now_ticks(), .state = FRAGMENT_AWAITED };
	struct fragment *known;
	__u32 state;

	if (!bpf_map_update_elem(&fragments, key, &awaited, BPF_NOEXIST))
		return true;
	known = bpf_map_lookup_elem(&fragments, key);
	if (!known)
		return false;
	state = known->state;
	if (state != FRAGMENT_AWAITED && !is_idle(awaited.last_seen, known->last_seen, config->fragment_idle))
		return false;
	known->last_seen = awaited.last_seen;
	return __sync_val_compare_and_swap(&known->state, state, FRAGMENT_AWAITED) == state;
}

#endif
