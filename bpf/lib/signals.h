/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What becomes of a backend's flows: the agent steers new ones by it. All CPUs may send to one backend, so its counters are
 * touched when a flow begins, is answered or ends, and every now and then in between.
 */
#ifndef WEIR_SIGNALS_H
#define WEIR_SIGNALS_H

#include "ending.h"

/* Of a connection so many bytes are held back at most. It tells the rest when it ends. */
#define HELD_MAX (1 << 20)
/* Nobody says when datagrams end. Of them less is held back than the flow's bytes shifted by this: of 16 alike none. */
#define HELD_SHIFT 4
/*
 * Units of delay, 100 ms: a SYN that is back sooner was not sent again, but left to tc by XDP or doubled on its way.
 * Clients wait for a second (RFC 6298), and 200 ms at least.
 */
#define SYN_AGAIN (100 * 1000 * 1000 >> DELAY_SHIFT)
/*
 * The same where the backend has answered once. One that still has the connection says so to the first SYN, and to others at
 * most every half a second (net.ipv4.tcp_invalid_ratelimit): nobody who only knows its ports can take it from there.
 */
#define SYN_AGAIN_GOING (900 * 1000 * 1000 >> DELAY_SHIFT)

/* The clock of delays, never 0. It costs 15 ns to read: for the first packets of a flow. */
static __always_inline __u32 now_delay(void)
{
	return bpf_ktime_get_ns() >> DELAY_SHIFT | 1;
}

/* Counts a packet in one direction of a flow. Returns the bytes that the backend's counters are to get now. */
static __always_inline __u32 count_bytes(__u32 *bytes, __u32 *held, const struct packet *p, bool all)
{
	__u32 now = *held + p->frame, total = *bytes + p->frame;
	__u32 most = p->proto == IPPROTO_UDP ? total >> HELD_SHIFT : HELD_MAX;

	/* A new flow's first packet is counted before the table has the flow. */
	all = all || !*bytes;
	*bytes = total;
	*held = all || now > most ? 0 : now;
	return *held ? 0 : now;
}

/* Notes and counts a client's packet that was sent to the backend, which is still the one that the flow remembers. */
static __always_inline void count_to(struct flow *flow, const struct packet *p, const bool v6)
{
	struct backend_counters *counters;
	__u32 now = now_ticks(), bytes;
	bool all = flow->last_seen != now;

	if (all)
		flow->last_seen = now;
	if (p->ending)
		(void)(v6 ? client_ends6(p, flow) : client_ends4(p, flow));
	bytes = count_bytes(&flow->bytes, &flow->held, p, all || flow->flags & FLOW_CLOSING);
	if (!bytes)
		return;
	counters = bpf_map_lookup_elem(&backend_counters, &flow->backend);
	if (counters)
		__sync_fetch_and_add(&counters->bytes_to, bytes);
}

/* Counts the first answer to a flow. TCP may say other things before: an old connection's last ACK, for example. */
static __always_inline void count_answer(struct backend_counters *counters, struct reply *reply, const struct packet *p)
{
	__u32 delay = now_delay() - reply->asked;

	if (reply->flags & FLOW_ASKED_AGAIN) {
		reply->flags &= ~FLOW_ASKED_AGAIN;
	} else if (p->proto == IPPROTO_UDP || p->syn_ack) {
		__sync_fetch_and_add(&counters->answered, 1);
		__sync_fetch_and_add(&counters->delay, delay);
	} else if (p->reset) {
		__sync_fetch_and_add(&counters->refused, 1);
	} else {
		return;
	}
	reply->asked = 0;
}

/* Tells the backend's counters of its packets. The slot may be another's by now. A function of its own: few packets ask. */
__noinline int report_back(struct reply *reply, const struct packet *p, __u32 bytes)
{
	const struct backend *backend;
	struct backend_counters *counters;

	if (!reply || !p)
		return 0;
	backend = bpf_map_lookup_elem(&backends, &reply->backend);
	counters = bpf_map_lookup_elem(&backend_counters, &reply->backend);
	if (!backend || !counters || backend->generation != reply->generation)
		return 0;
	__sync_fetch_and_add(&counters->bytes_from, bytes);
	if (reply->asked)
		count_answer(counters, reply, p);
	return 0;
}

/* Tells a flow that begins that it was answered: now its client's next packet is worth a look at promotion. */
static __always_inline int note_answer(const struct reply *reply, __u8 proto, const bool v6)
{
	struct flow *flow;
	union flow_key key;

	client_key(&key, reply, proto, v6);
	flow = flow_at(&key, STAGE_OPENING, v6);
	if (flow)
		flow->flags |= FLOW_REPLIED;
	return 0;
}

/* Functions of their own: only first answers ask. */
__noinline int note_answer4(const struct reply *reply, __u8 proto)
{
	return reply ? note_answer(reply, proto, false) : 0;
}

__noinline int note_answer6(const struct reply *reply, __u8 proto)
{
	return reply ? note_answer(reply, proto, true) : 0;
}

/* Whether a client's packet shows that it has heard of the SYN-ACK, as far as there was one. */
static __always_inline bool has_heard(const struct packet *p, const struct reply *reply)
{
	return !reply->heard || ((p->heard - reply->heard) & HEARD_MASK) <= 1;
}

/* Notes and counts a backend's packet to its client. */
static __always_inline void count_back(struct reply *reply, const struct packet *p, const bool v6)
{
	__u16 flags = reply->flags | (p->ending ? FLOW_REPLIED | FLOW_CLOSING : FLOW_REPLIED);
	__u32 now = now_ticks(), bytes;
	bool all = reply->last_seen != now || flags & FLOW_CLOSING || reply->asked;

	if (reply->last_seen != now)
		reply->last_seen = now;
	if ((reply->flags & (FLOW_OPENING | FLOW_REPLIED)) == FLOW_OPENING)
		(void)(v6 ? note_answer6(reply, p->proto) : note_answer4(reply, p->proto));
	if (reply->flags != flags)
		reply->flags = flags;
	if (p->syn_ack)
		reply->heard = p->heard;
	if (p->ending)
		(void)(v6 ? backend_ends6(p, reply) : backend_ends4(p, reply));
	bytes = count_bytes(&reply->bytes, &reply->held, p, all);
	if (bytes)
		report_back(reply, p, bytes);
}

/* Whether a datagram is the second one back of a flow that is still among those that begin, and not the rest of the first one. */
static __always_inline bool is_answered_again(const struct reply *reply, const struct packet *p)
{
	return (reply->flags & (FLOW_OPENING | FLOW_REPLIED)) == (FLOW_OPENING | FLOW_REPLIED) &&
	       p->proto == IPPROTO_UDP && p->piece != PIECE_LATER;
}

/*
 * What the answers to a flow must look like, in place: the programs have no stack to spare for a copy. asked: when an answer began to be
 * awaited, or 0.
 */
static __always_inline void reply_of(struct reply *reply, const struct packet *p, const struct flow *flow, __u32 asked)
{
	__builtin_memset(reply, 0, sizeof(*reply));
	__builtin_memcpy(&reply->frontend, &p->dst, sizeof(reply->frontend));
	__builtin_memcpy(&reply->client, &p->src, sizeof(reply->client));
	reply->frontend_port = p->dport;
	reply->client_port = p->sport;
	reply->flags = flow->flags & (FLOW_SNAT | FLOW_OPENING);
	reply->backend = flow->backend;
	reply->generation = flow->generation;
	reply->last_seen = now_ticks();
	reply->asked = asked;
	in_memory(reply);
}

/* What a client's packet is to the flow that is known of it. */
enum next_step {
	STEP_ON = 0,	    /* it goes on with it */
	STEP_OVER = 1,	    /* it begins another one */
	STEP_ELSEWHERE = 2, /* it begins another one at another backend, as this one does not answer */
	STEP_GIVE_UP = 3,   /* there were enough of those */
};

/*
 * A SYN of a flow that is known. It has ended, or is half-closed and at rest: it begins anew. It goes on: its backend tells
 * whether the client still knows of it (RFC 9293, 3.10.7.4), unless it has died since. Or nobody has answered, and another backend
 * is asked. But for the time only judges: what follows may be left to tc, which must come to the same end.
 */
static __always_inline enum next_step syn_step(const struct flow *flow, struct reply *reply,
					       const struct config *config)
{
	const bool again = reply->flags & FLOW_ASKED_AGAIN;

	if (has_ended(flow, reply) || (is_closing(flow, reply) && is_silent(flow, reply, config->tcp_linger)))
		return STEP_OVER;
	if (!reply->asked) {
		reply->asked = now_delay();
		reply->flags |= FLOW_ASKED_AGAIN;
		return STEP_ON;
	}
	if (now_delay() - reply->asked < (again ? SYN_AGAIN_GOING : SYN_AGAIN))
		return STEP_ON;
	if (flow->flags & FLOW_OPENING && (flow->flags & FLOW_RETRIES) == FLOW_RETRIES)
		return STEP_GIVE_UP;
	return STEP_ELSEWHERE;
}

/* An entry of a flow that goes on was missing: nobody tells of evictions but those who come for what is gone. */
static __always_inline void count_lost(void)
{
	__u32 first = 0;
	struct pace *pace = bpf_map_lookup_elem(&paces, &first);

	if (pace)
		pace->lost++;
}

/*
 * What a client's packet is to its flow. What the backend answers must find its way back, so an entry that a full table has
 * lost is written anew; looking for it keeps it in the table, too. If another flow has it by now, this one is over. Of two to
 * a process on the node the one that speaks has it, as when they begin.
 */
static __always_inline enum next_step next_step(const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);
	const struct config *config = config_get();
	struct reply *known, reply;
	union flow_key key;
	__u64 how;
	long error;

	if (!config || !backend)
		return STEP_OVER;
	answer_key(&key, p, flow, backend, config, v6);
	known = reply_at(&key, STAGE_ANY, v6);
	if (known && reply_is_of(known, p, flow, v6))
		return p->syn ? syn_step(flow, known, config) : STEP_ON;
	if (p->syn && flow->flags & FLOW_CLOSING)
		return STEP_OVER;
	if (known && !is_here(backend))
		return STEP_OVER;
	reply_of(&reply, p, flow, p->syn ? now_delay() : 0);
	if (known)
		reply_forget(&key, STAGE_ANY, v6);
	how = is_here(backend) ? BPF_ANY : BPF_NOEXIST;
	if (flow->flags & FLOW_OPENING)
		error = reply_store(&key, &reply, how, STAGE_OPENING, v6);
	else
		error = reply_store(&key, &reply, how, STAGE_GOING, v6);
	if (!error && !known && !(flow->flags & FLOW_OPENING))
		count_lost();
	if (!error)
		return STEP_ON;
	/* Another CPU may have written it, or a busy table had no room now: neither is another flow. */
	known = reply_at(&key, STAGE_ANY, v6);
	return known && !reply_is_of(known, p, flow, v6) ? STEP_OVER : STEP_ON;
}

/* The same for a flow without an entry for its answers: that its client goes on is all that is known. */
static __always_inline bool promote_alone(const struct packet *p, struct flow *flow, const bool v6)
{
	flow->flags &= ~FLOW_OPENING;
	if (flow_store(p, flow, STAGE_GOING, v6)) {
		flow->flags |= FLOW_OPENING;
		return false;
	}
	flow_forget(p, STAGE_OPENING, v6);
	return true;
}

/*
 * Moves a flow that was answered to the tables of those that go on. Returns whether it did: its backend may have said nothing
 * yet, its client not know of it, or a busy table may have no room now. What was found in the tables before is not there any more
 * then.
 */
static __always_inline bool promote(const struct packet *p, struct flow *flow, const bool v6)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend);
	const struct config *config = config_get();
	const bool snat = flow->flags & FLOW_SNAT;
	const struct flow *going;
	struct reply *reply;
	union flow_key key;
	__u32 slot = flow->backend;
	__be16 port = flow->snat_port;

	if (!config || !backend)
		return false;
	if (flow->flags & FLOW_DIRECT)
		return promote_alone(p, flow, v6);
	answer_key(&key, p, flow, backend, config, v6);
	reply = reply_at(&key, STAGE_OPENING, v6);
	if (!reply || !(reply->flags & FLOW_REPLIED) || !reply_is_of(reply, p, flow, v6) || !has_heard(p, reply))
		return false;
	reply->flags &= ~FLOW_OPENING;
	flow->flags &= ~FLOW_OPENING;
	if (reply_store(&key, reply, BPF_ANY, STAGE_GOING, v6) || flow_store(p, flow, STAGE_GOING, v6)) {
		reply->flags |= FLOW_OPENING;
		flow->flags |= FLOW_OPENING;
		return false;
	}
	/* Another flow's may have got its place since it was found. A reply that is not its own will be written anew. */
	going = flow_lookup(p, STAGE_GOING, v6);
	if (going && (going->backend != slot || (snat && going->snat_port != port))) {
		flow_forget(p, STAGE_GOING, v6);
		return false;
	}
	reply_forget(&key, STAGE_OPENING, v6);
	flow_forget(p, STAGE_OPENING, v6);
	return true;
}

/*
 * The same at a second datagram back: a client may ask once for many. Of a flood with others' addresses most get one. Returns
 * whether it did.
 */
static __always_inline bool promote_answered(const struct reply *reply, __u8 proto, const bool v6)
{
	struct packet asked;
	struct flow *flow;

	client_packet(&asked, reply, proto);
	flow = flow_lookup(&asked, STAGE_OPENING, v6);
	return flow && promote(&asked, flow, v6);
}

/* What becomes of a flow whose backend did not answer a SYN. */
enum silence {
	SILENCE_STAYS = 0, /* there is no other backend: it is asked once more */
	SILENCE_LEFT = 1,  /* another one has it: what this one still says is dropped */
	SILENCE_BACK = 2,  /* the other one could not have it: as if nothing had been */
};

/* Notes it at the flow that is known of a client's packet, and at its backend. */
static __always_inline void note_silence(const struct packet *p, enum silence silence, const bool v6)
{
	const struct flow *flow = flow_lookup(p, STAGE_ANY, v6);
	const struct config *config = config_get();
	struct backend_counters *counters;
	const struct backend *backend;
	struct reply *reply;

	if (!flow || !config)
		return;
	backend = bpf_map_lookup_elem(&backends, &flow->backend);
	counters = bpf_map_lookup_elem(&backend_counters, &flow->backend);
	reply = backend ? reply_to(p, flow, backend, config, v6) : NULL;
	if (!counters || !reply || !reply_is_of(reply, p, flow, v6))
		return;
	if (silence == SILENCE_BACK) {
		reply->flags &= ~FLOW_MOVED;
		__sync_fetch_and_add(&counters->balance, 1);
		return;
	}
	reply->asked = now_delay();
	__sync_fetch_and_add(&counters->unanswered, 1);
	if (silence == SILENCE_LEFT) {
		reply->flags |= FLOW_MOVED;
		__sync_fetch_and_add(&counters->balance, -1);
	}
}

/* Functions of their own: few packets ask. */
__noinline int next_step4(const struct packet *p, const struct flow *flow)
{
	return p && flow ? next_step(p, flow, false) : STEP_OVER;
}

__noinline int next_step6(const struct packet *p, const struct flow *flow)
{
	return p && flow ? next_step(p, flow, true) : STEP_OVER;
}

__noinline int promote4(const struct packet *p, struct flow *flow)
{
	return p && flow ? promote(p, flow, false) : false;
}

__noinline int promote6(const struct packet *p, struct flow *flow)
{
	return p && flow ? promote(p, flow, true) : false;
}

__noinline int promote_answered4(const struct reply *reply, __u8 proto)
{
	return reply ? promote_answered(reply, proto, false) : false;
}

__noinline int promote_answered6(const struct reply *reply, __u8 proto)
{
	return reply ? promote_answered(reply, proto, true) : false;
}

__noinline int note_silence4(const struct packet *p, enum silence silence)
{
	if (p)
		note_silence(p, silence, false);
	return 0;
}

__noinline int note_silence6(const struct packet *p, enum silence silence)
{
	if (p)
		note_silence(p, silence, true);
	return 0;
}

#endif
