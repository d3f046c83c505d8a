/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Source ports that connections had which a client made from one of its ports: its next one from there gets the same again, so that the
 * endpoint sees one connection after the other of one client. docs/adr/0045-a-clients-port-keeps-its-source-port.md
 */
#ifndef WEIR_KEPT_H
#define WEIR_KEPT_H

#include "flow.h"

/* An entry: a part of the hash of who has the port, and its number. 0: none. */
#define SNAT_KEPT_TAG 0xffff0000

/* Hash of an endpoint, whichever service sends to it. Those of several nodes may differ in the network alone. */
static __always_inline __u64 snat_hash_of(const struct backend *backend)
{
	__u64 h = ((__u64)backend->addr.word[0] << 32 | backend->addr.word[1]) * GOLDEN_RATIO;

	h = ((h ^ h >> 32) + ((__u64)backend->addr.word[2] << 32 | backend->addr.word[3])) * GOLDEN_RATIO;
	return ((h ^ h >> 32) + ((__u64)backend->port << 8 | backend->proto)) * GOLDEN_RATIO;
}

/* The slot of an endpoint's counter. */
static __always_inline __u32 snat_slot_of(const struct backend *backend)
{
	return (snat_hash_of(backend) >> 32) & (SNAT_COUNTERS - 1);
}

/* Hash of a connection's key at its client, and of the endpoint. */
static __always_inline __u64 snat_kept_hash(const union flow_key *key, const struct backend *backend,
					    const struct config *config, const bool v6)
{
	return key_hash(key, config->hash_seed ^ snat_hash_of(backend), v6);
}

static __always_inline __u32 snat_kept_tag(__u64 hash)
{
	return ((__u32)hash & SNAT_KEPT_TAG) ?: 1u << 16;
}

static __always_inline struct snat_kept *snat_kept_line(__u64 hash)
{
	__u32 line = opening_set(hash);

	return bpf_map_lookup_elem(&snat_kept, &line);
}

/* The place of a tag in a line, or SNAT_KEPT_WAYS. */
static __always_inline __u32 snat_kept_way(const struct snat_kept *line, __u32 tag)
{
	__u32 way = 0;

#pragma clang loop unroll(disable)
	while (way < SNAT_KEPT_WAYS && (line->entry[way] & SNAT_KEPT_TAG) != tag)
		way++;
	return way;
}

/* The port (BE) that the client's port had towards the endpoint last, or 0. reply: of a connection that begins, or that no table knows any more. */
static __always_inline __be16 snat_kept_port(const struct reply *reply, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, reply->backend);
	const struct config *config = config_get();
	const struct snat_kept *line;
	union flow_key key;
	__u32 way;
	__u64 hash;

	if (!backend || backend->proto != IPPROTO_TCP)
		return 0;
	client_key(&key, reply, IPPROTO_TCP, v6);
	hash = snat_kept_hash(&key, backend, config, v6);
	line = snat_kept_line(hash);
	way = line ? snat_kept_way(line, snat_kept_tag(hash)) : SNAT_KEPT_WAYS;
	return way < SNAT_KEPT_WAYS ? bpf_htons((__u16)line->entry[way & (SNAT_KEPT_WAYS - 1)]) : 0;
}

/* Keeps the port of a connection that goes on. Where there is no room another one's goes, at random: none is in the way for ever. Returns 0. */
static __always_inline int snat_keep(const struct packet *p, __u32 slot, __be16 port, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, slot);
	const struct config *config = config_get();
	struct snat_kept *line;
	union flow_key key;
	__u32 way, tag;
	__u64 hash;

	if (!backend)
		return 0;
	packet_key(&key, p, v6);
	hash = snat_kept_hash(&key, backend, config, v6);
	tag = snat_kept_tag(hash);
	line = snat_kept_line(hash);
	if (!line)
		return 0;
	way = snat_kept_way(line, tag);
	if (way == SNAT_KEPT_WAYS)
		way = snat_kept_way(line, 0);
	if (way == SNAT_KEPT_WAYS)
		way = bpf_get_prandom_u32();
	line->entry[way & (SNAT_KEPT_WAYS - 1)] = tag | bpf_ntohs(port);
	return 0;
}

/* The port (BE) of a flow in whose middle a client's packet is, if another flow took its place, or 0. */
static __always_inline __be16 snat_displaced_port(const struct reply *reply, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, reply->backend);
	union flow_key key;

	if (!backend)
		return 0;
	client_key(&key, reply, backend->proto, v6);
	return displaced_port(displaced_find(key_hash_here(&key, v6)), reply->backend);
}

/* Functions of their own, for the stack's sake: one of each connection's packets asks. */
__noinline int snat_kept_port4(const struct reply *reply)
{
	return reply ? snat_kept_port(reply, false) : 0;
}

__noinline int snat_kept_port6(const struct reply *reply)
{
	return reply ? snat_kept_port(reply, true) : 0;
}

__noinline int snat_displaced_port4(const struct reply *reply)
{
	return reply ? snat_displaced_port(reply, false) : 0;
}

__noinline int snat_displaced_port6(const struct reply *reply)
{
	return reply ? snat_displaced_port(reply, true) : 0;
}

__noinline int snat_keep4(const struct packet *p, __u32 slot, __be16 port)
{
	return p ? snat_keep(p, slot, port, false) : 0;
}

__noinline int snat_keep6(const struct packet *p, __u32 slot, __be16 port)
{
	return p ? snat_keep(p, slot, port, true) : 0;
}

#endif
