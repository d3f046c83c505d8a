/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets in pieces: the first one has the ports, the later ones are told them. For tc; XDP leaves fragments to it. */
#ifndef WEIR_FRAGMENT_H
#define WEIR_FRAGMENT_H

#include "config.h"
#include "parse.h"

static __always_inline struct fragment_key fragment_key_of(const struct packet *p)
{
	return (struct fragment_key){ .src = p->src, .dst = p->dst, .id = p->fragment_id, .proto = p->proto };
}

/* Remembers the ports of a first piece that was ours. Best effort, and a function of its own for the stack's sake. */
__noinline int fragment_store(const struct packet *p)
{
	struct fragment_key key;
	struct fragment ports;

	if (!p)
		return -REASON_FRAGMENT;
	key = fragment_key_of(p);
	ports = (struct fragment){ .sport = p->sport, .dport = p->dport, .last_seen = now_ticks() };
	return bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY) ? -REASON_FRAGMENT : 0;
}

/*
 * Gives a later piece the ports of the first one, unless that is so long ago that the packet's number may have been used
 * again since. Returns 0 or -REASON_FRAGMENT.
 */
__noinline int fragment_find(struct packet *p)
{
	const struct fragment *ports;
	const struct config *config = config_get();
	struct fragment_key key;

	if (!p || !config)
		return -REASON_FRAGMENT;
	key = fragment_key_of(p);
	ports = bpf_map_lookup_elem(&fragments, &key);
	if (!ports || is_idle(now_ticks(), ports->last_seen, config->fragment_idle))
		return -REASON_FRAGMENT;
	p->sport = ports->sport;
	p->dport = ports->dport;
	return 0;
}

#endif
