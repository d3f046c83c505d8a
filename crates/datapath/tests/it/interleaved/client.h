/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A client and the backends of a service, which send by way of the path, and what the path remembers of them. */
#ifndef INTERLEAVED_CLIENT_H
#define INTERLEAVED_CLIENT_H

#include "kernel.h"

/* ---- a client and a backend ---------------------------------------------------------------------------------- */

static struct {
	bool v6;
	bool remote; /* the backend is on another node, and sees this one's address */
	bool later;  /* a tick passes before it gets serious */
	bool settle; /* CONFIG_SETTLE */
	__u8 proto;
} way;

enum who {
	CLIENT = 1,
	FRONTEND = 2,
	BACKEND = 3,
	NODE = 4,
	OTHER_BACKEND = 5
};
enum segment {
	SYN,
	SYN_ACK,
	DATA,
	FIN,
	RESET,
	RESET_OF_NOTHING
};

static struct addr address_of(enum who who)
{
	if (way.v6)
		return (struct addr){ { bpf_htonl(0xfd000000), 0, 0, bpf_htonl(who) } };
	return (struct addr){ { 0, 0, IPV4_MAPPED_PREFIX, bpf_htonl(0x0a000000 | who) } };
}

static enum reset reset_of(enum segment segment)
{
	if (segment == RESET_OF_NOTHING)
		return RESET_LATER;
	return segment == RESET ? RESET_FIRST : RESET_NO;
}

static struct packet packet_of(enum who from, __u16 sport, enum who to, __u16 dport, enum segment segment)
{
	const bool tcp = way.proto == IPPROTO_TCP;

	return (struct packet){
		.src = address_of(from),
		.dst = address_of(to),
		.sport = bpf_htons(sport),
		.dport = bpf_htons(dport),
		.l3 = 14,
		.l4 = 34,
		.proto = way.proto,
		.ttl = 64,
		.length = 60,
		.frame = 74,
		.syn = tcp && segment == SYN,
		.syn_ack = tcp && segment == SYN_ACK,
		.ending = tcp && segment >= FIN,
		.reset = tcp ? reset_of(segment) : RESET_NO,
		.heard = tcp ? HEARD_KNOWN : 0,
	};
}

/* A frame's first bytes, which nobody looks at: where 32 bits point to. */
static ctx_t frame(void)
{
	const __u32 size = 128;
	static void *bytes;

	if (!bytes)
		bytes = mmap((void *)0x10000000, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return (ctx_t){ .data = (long)bytes, .data_end = (long)bytes + size };
}

/* Returns the reason why the packet leaves. */
static int client_sends_from(__u16 port, enum segment segment)
{
	struct packet p = packet_of(CLIENT, port, FRONTEND, 80, segment);
	ctx_t ctx = frame();

	return ingress(&ctx, &p, true, way.v6);
}

static int client_sends(enum segment segment)
{
	return client_sends_from(40000, segment);
}

static int backend_sends(enum segment segment)
{
	/* The first flow of all has the first port. */
	struct packet p = packet_of(BACKEND, 8080, way.remote ? NODE : CLIENT, way.remote ? 1 : 40000, segment);
	ctx_t ctx = frame();

	return way.remote ? ingress(&ctx, &p, true, way.v6) : egress(&ctx, &p, way.v6);
}

/* Slots of backends. */
enum slot {
	FIRST = 1,
	SECOND = 2
};

/* Lets new flows go to a backend. */
static void select_slot(enum slot slot)
{
	for (int class = 0; class < CLASS_COUNT; class ++)
		given.service.tiers[class] =
			(struct tiers){ .local = way.remote ? 0 : slot, .remote = way.remote ? slot : 0 };
}

static void reset(void)
{
	const __u8 here = way.remote ? 0 : BACKEND_LOCAL;

	ticks = 1000;
	nanoseconds = 1ull << 30;
	memset(&written, 0, sizeof(written));
	written.turn.next = 1;
	/* It is known that nothing goes on. */
	going_filter_value.asked = 1;
	for (__u32 word = 0; word < sizeof(going_filter_value.slots) / sizeof(*going_filter_value.slots); word++)
		going_filter_value.slots[word] = ~0ull / GOING_MASK * GOING_NONE;
	for (unsigned int i = 0; i < TABLES; i++)
		tables[i].used = 0;
	memset(&given, 0, sizeof(given));
	config_value = (struct config){ .hash_seed = 0x5eed,
					.flags = way.settle ? CONFIG_SETTLE : 0,
					.flood = ~0u,
					.udp_idle = 300,
					.tcp_idle = 7200,
					.tcp_half_closed = 3600,
					.tcp_linger = 3 };
	config_value.node4 = config_value.node6 = address_of(NODE);
	given.frontend = (struct frontend){ .service = 1, .kind = KIND_EXTERNAL_IP };
	given.filter.bits = ~0ull;
	given.service = (struct service){ .endpoints = 1, .flags = SERVICE_USED };
	select_slot(FIRST);
	for (__u32 slot = FIRST; slot <= SECOND; slot++)
		given.backend[slot] = (struct backend){ .addr = address_of(slot == FIRST ? BACKEND : OTHER_BACKEND),
							.port = bpf_htons(8080),
							.proto = way.proto,
							.flags = BACKEND_USED | here,
							.generation = 1,
							.service = 1 };
	given.ports.answers = ~0ull;
	for (__u32 port = 0; port < 1 << 16; port++)
		given.next[port >> SNAT_NEXT_BITS].port[port & ((1 << SNAT_NEXT_BITS) - 1)] = port;
}

/* ---- what is in the tables ----------------------------------------------------------------------------------- */

static struct opening_head *flow_set(void)
{
	return way.v6 ? &written.openings6.head : &written.openings4.head;
}

static struct opening_head *reply_set(void)
{
	return way.v6 ? &written.awaited6.head : &written.awaited4.head;
}

static int in_set(const struct opening_head *head)
{
	int used = 0;

	for (int i = 0; i < OPENING_WAYS; i++)
		used += head->tag[i] != OPENING_FREE;
	return used;
}

static int in_table(const void *map)
{
	const struct table *table = table_of(map);
	int used = 0;

	for (__u32 i = 0; i < table->used; i++)
		used += table->there[i];
	return used;
}

static int flows_going(void)
{
	return in_table(way.v6 ? (void *)&flows6 : (void *)&flows4);
}

static int replies_going(void)
{
	return in_table(way.v6 ? (void *)&replies6 : (void *)&replies4);
}

/* Flows, and entries of answers, that say that they have settled. */
static int settled(void)
{
	int count = 0;

	for (int i = 0; i < OPENING_WAYS; i++) {
		const struct flow *flow = way.v6 ? &written.openings6.value[i].flow : &written.openings4.value[i];
		const struct reply *reply = way.v6 ? &written.awaited6.value[i] : &written.awaited4.value[i];

		count += flow_set()->tag[i] != OPENING_FREE && flow->flags & FLOW_SETTLED;
		count += reply_set()->tag[i] != OPENING_FREE && reply->flags & FLOW_SETTLED;
	}
	return count;
}

#endif
