/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a client's packet is to the flow that is known of it, and what it moves: a flow that was answered and goes on leaves the tables that
 * it began in, and one that nobody answers its backend.
 */
#ifndef WEIR_STEP_H
#define WEIR_STEP_H

#include "kept.h"
#include "pace.h"
#include "signals.h"

/* As SYN_AGAIN, where the backend has answered once: one that still has the connection says so at least every half a second. */
#define SYN_AGAIN_GOING (900 * 1000 * 1000 >> DELAY_SHIFT)

/*
 * Ticks after a backend's last packet in which no SYN asks it: it may limit what it says to one packet in half a second
 * (net.ipv4.tcp_invalid_ratelimit), and whoever only knows a connection's ports must not take it from there.
 */
#define SPOKEN_LATELY 1

/* Whether a packet asks its backend to agree to a connection. Of one whose way ends here another node's backend never hears. */
static __always_inline bool asks(const struct packet *p)
{
	return p->syn && p->ttl > 1;
}

/* What a client's packet is to the flow that is known of it. */
enum next_step {
	STEP_ON = 0,	    /* it goes on with it */
	STEP_OVER = 1,	    /* it begins another one */
	STEP_ELSEWHERE = 2, /* it begins another one at another backend, as this one does not answer */
	STEP_GIVE_UP = 3,   /* there were enough of those */
};

/*
 * A SYN of a flow that is known. It has ended, or its backend has closed it and it is at rest: it begins anew. It goes on: its backend tells
 * whether the client still knows of it (RFC 9293, 3.10.7.4). That it says nothing proves nothing: a host drops a SYN with a wrong checksum or an
 * option that it does not expect, and whoever only knows a connection's ports must not take it from there. Or nobody has answered, and another
 * backend is asked. But for the time only judges: what follows may be left to tc, which must come to the same end.
 */
static __always_inline enum next_step syn_step(const struct flow *flow, struct reply *reply,
					       const struct config *config)
{
	const bool again = reply->flags & FLOW_ASKED_AGAIN;

	if (has_ended(flow, reply) || (reply->flags & FLOW_CLOSING && is_silent(flow, reply, config->tcp_linger)))
		return STEP_OVER;
	if (!is_opening(flow->flags))
		return STEP_ON;
	/* So long after neither a SYN nor its answer comes again, by what hosts do unless they are told to: it is another connection's. */
	if (is_silent(flow, reply, MOVED_IDLE))
		return STEP_OVER;
	if (!reply->asked) {
		/* It is there, and need not say so again. */
		if (!is_idle(now_ticks(), reply->last_seen, SPOKEN_LATELY))
			return STEP_ON;
		/* First: to whom answers in between it would be the first answer. */
		set_bits(&reply->flags, FLOW_ASKED_AGAIN);
		reply->asked = now_delay();
		return STEP_ON;
	}
	if (now_delay() - reply->asked < (again ? SYN_AGAIN_GOING : SYN_AGAIN))
		return STEP_ON;
	if ((flow->flags & FLOW_RETRIES) == FLOW_RETRIES && !was_flooded())
		return STEP_GIVE_UP;
	return STEP_ELSEWHERE;
}

/*
 * What a client's packet is to its flow. What the backend answers must find its way back, so an entry that a full table has
 * lost is written anew; looking for it keeps it in the table, too. If another flow has it by now, this one is over. Of two of
 * datagrams to a process on the node the one that speaks has it, as when they begin.
 */
static __always_inline enum next_step next_step(const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct config *config = config_get();
	struct reply *known, reply;
	union flow_key key;
	__u64 how;
	long error;

	if (!backend)
		return STEP_OVER;
	answer_key(&key, p, flow, backend, config, v6);
	known = reply_at(&key, stage_of(flow->flags), v6);
	/* A flood may have given its place to another one since it was found there. */
	if (known && !reply_is_of(known, p, flow, v6))
		known = reply_at(&key, STAGE_ANY, v6);
	if (known && reply_is_of(known, p, flow, v6)) {
		/* Whoever asks last is answered. */
		end_lending(known);
		/* In its set it is in use for as long as its client sends, who may never be answered. */
		if (p->proto == IPPROTO_UDP && !(known->flags & FLOW_REPLIED))
			known->last_seen = now_ticks();
		return asks(p) ? syn_step(flow, known, config) : STEP_ON;
	}
	if (p->syn && flow->flags & FLOW_CLOSING)
		return STEP_OVER;
	if (known && (p->proto != IPPROTO_UDP || !is_here(backend)))
		return STEP_OVER;
	reply_of(&reply, p, flow, asks(p) ? now_delay() : 0);
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
	/* Another CPU may have written it, or a busy table had no room now: neither is another flow. What is there is noted, too. */
	note_written(&key, v6);
	known = reply_at(&key, STAGE_ANY, v6);
	return known && !reply_is_of(known, p, flow, v6) ? STEP_OVER : STEP_ON;
}

/*
 * promote() for direct flows, which have no entry for their answers: a third packet shows that the client goes on. The one that has made the flow may
 * come here twice, left to tc by XDP or cut, and later pieces are no packets of their own. Returns whether it moved.
 */
static __always_inline bool promote_alone(const struct packet *p, struct flow *flow, const bool v6)
{
	const __u32 left = names_left(flow->flags) ? flow->held : 0;

	if (!flow->bytes || p->piece == PIECE_LATER)
		return false;
	if (p->proto != IPPROTO_TCP && !may_move_beside_tcp(false))
		return false;
	clear_bits(&flow->flags, FLOW_OPENING);
	flow->held -= left;
	if (flow_store(p, flow, STAGE_GOING, v6)) {
		flow->held += left;
		set_bits(&flow->flags, FLOW_OPENING);
		return false;
	}
	flow_forget(p, STAGE_OPENING, v6);
	failed_over(left);
	return true;
}

/* Whether a client's packet shows that it has heard of the SYN-ACK, as far as there was one. */
static __always_inline bool has_heard(const struct packet *p, const struct reply *reply)
{
	return !(reply->heard & HEARD_KNOWN) || ((p->heard - reply->heard) & HEARD_MASK) <= 1;
}

/*
 * Notes at a flow that goes on, and at the entry of its answers, what end its client and its backend have told of where both began, since
 * they were copied. Others may have these places by now, so that what seems to be an end is looked up once more.
 */
static __always_inline void take_end_along(const struct packet *p, const struct flow *flow, struct flow *going,
					   const struct reply *reply, const union flow_key *key, const bool v6)
{
	const __u16 ends = FLOW_CLOSING | FLOW_ENDED | FLOW_LAST;
	struct reply *moved;

	if (*(const volatile __u16 *)&reply->flags & ends) {
		reply = reply_at(key, STAGE_OPENING, v6);
		moved = reply && reply_is_of(reply, p, going, v6) ? reply_at(key, STAGE_GOING, v6) : NULL;
		if (moved)
			set_bits(&moved->flags, reply->flags & ends);
	}
	if (*(const volatile __u16 *)&flow->flags & ends) {
		flow = flow_lookup(p, STAGE_OPENING, v6);
		if (flow)
			set_bits(&going->flags, flow->flags & ends);
	}
}

/* Writes both entries of a flow to the tables of those that go on. key: of its answers. Returns whether it could; else neither is left there. */
static __always_inline bool write_going(const struct packet *p, const struct flow *flow, const struct reply *reply,
					const union flow_key *key, const bool v6)
{
	if (reply_store(key, reply, BPF_ANY, STAGE_GOING, v6))
		return false;
	if (!flow_store(p, flow, STAGE_GOING, v6))
		return true;
	/* It would hide the one that counts. */
	reply_forget(key, STAGE_GOING, v6);
	return false;
}

/*
 * Moves a flow that was answered to the tables of those that go on. Returns whether it did: its backend may have said nothing
 * yet, its client not know of it, or a busy table may have no room now. What was found in the tables before is not there any more
 * then.
 */
static __always_inline bool promote(const struct packet *p, struct flow *flow, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct config *config = config_get();
	const __u16 stays = FLOW_OPENING | (flow->flags & FLOW_SETTLED);
	struct flow *going;
	struct reply *reply;
	union flow_key key;
	__u32 slot = flow->backend;
	__be16 port = flow->snat_port;
	__u16 heard;

	if (!backend)
		return false;
	if (flow->flags & FLOW_DIRECT)
		return promote_alone(p, flow, v6);
	answer_key(&key, p, flow, backend, config, v6);
	reply = reply_at(&key, STAGE_OPENING, v6);
	/* What is over stays where it is: its flow was met anew. So does what is lent: it is the host that is answered. */
	if (!reply || (reply->flags & (FLOW_REPLIED | FLOW_ENDED)) != FLOW_REPLIED || is_lent(reply) ||
	    !reply_is_of(reply, p, flow, v6))
		return false;
	/* Of what has settled the client has heard; by now it may have got so much that its number does not tell. */
	if (stays == FLOW_OPENING && !has_heard(p, reply))
		return false;
	if (p->proto != IPPROTO_TCP && !may_move_beside_tcp(false))
		return false;
	if (reply->flags & FLOW_RETRIES)
		count_failover(reply);
	/* From now on it is the client's numbers that are known. */
	heard = reply->heard;
	if (stays == FLOW_OPENING)
		reply->heard = 0;
	clear_bits(&reply->flags, FLOW_OPENING | FLOW_SETTLED | FLOW_LENT);
	clear_bits(&flow->flags, FLOW_OPENING | FLOW_SETTLED);
	/* Of one that was met in its middle this is not known yet. */
	set_bits(&flow->flags, FLOW_REPLIED);
	if (!write_going(p, flow, reply, &key, v6)) {
		reply->heard = heard;
		set_bits(&reply->flags, stays);
		set_bits(&flow->flags, stays);
		return false;
	}
	/* Another flow's may have got its place since it was found. Of a reply that is not its own a later packet tells, and this one is over. */
	going = flow_lookup(p, STAGE_GOING, v6);
	if (going && (going->backend != slot || going->snat_port != port)) {
		flow_forget(p, STAGE_GOING, v6);
		return false;
	}
	if (going)
		take_end_along(p, flow, going, reply, &key, v6);
	reply_forget(&key, STAGE_OPENING, v6);
	flow_forget(p, STAGE_OPENING, v6);
	return true;
}

/* What has become of a flow whose client goes on. */
enum promoted {
	PROMOTED_NOT = 0,  /* it begins: its client may not have heard of the answer */
	PROMOTED = 1,	   /* it has moved */
	PROMOTED_SOON = 2, /* it has settled where it is, and goes on since now */
	PROMOTED_STAYS = 3 /* it has settled where it is, and went on before */
};

/* Of a set so many places may be those of flows that have settled: the rest is for those that begin. */
#define SETTLED_MOST (OPENING_WAYS / 2)

/* Whether a connection may be over soon, as far as can be told: it has begun in this tick, and its client has said little. */
static __always_inline bool is_young(const struct flow *flow)
{
	return flow->created == now_ticks() && flow->bytes < SETTLED_BYTES;
}

/*
 * Lets a connection that was answered and goes on stay where it is, if it has begun in this tick and few others of its sets have settled:
 * many are over before the next one, and moving there and back is what costs most of a short connection. No flow that begins takes its place.
 * One that was met in its middle may be over, as what is known of its answers says, or be the rest of a flood's: that answer was its first.
 * Returns enum promoted.
 */
static __always_inline int flow_settles(const struct packet *p, struct flow *flow, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct config *config = config_get();
	struct reply *reply;
	union flow_key key;

	if (!backend || !(config->flags & CONFIG_SETTLE) || p->proto != IPPROTO_TCP || flow->flags & FLOW_DIRECT ||
	    !is_young(flow))
		return PROMOTED_NOT;
	/* Another CPU was sooner. */
	if (flow->flags & FLOW_SETTLED)
		return PROMOTED_STAYS;
	packet_key(&key, p, v6);
	if ((v6 ? openings6_settled(&key.v6) : openings4_settled(&key.v4)) >= SETTLED_MOST)
		return PROMOTED_NOT;
	answer_key(&key, p, flow, backend, config, v6);
	reply = reply_at(&key, STAGE_OPENING, v6);
	if (!reply || (reply->flags & (FLOW_REPLIED | FLOW_CLOSING | FLOW_ENDED)) != FLOW_REPLIED ||
	    !reply_is_of(reply, p, flow, v6) || !has_heard(p, reply) ||
	    (v6 ? awaited6_settled(&key.v6) : awaited4_settled(&key.v4)) >= SETTLED_MOST)
		return PROMOTED_NOT;
	if (reply->flags & FLOW_RETRIES)
		count_failover(reply);
	reply->heard = 0;
	set_bits(&reply->flags, FLOW_SETTLED);
	if (set_bits(&flow->flags, FLOW_SETTLED | FLOW_REPLIED | FLOW_GONE_ON) & FLOW_GONE_ON)
		return PROMOTED_STAYS;
	return PROMOTED_SOON;
}

/* Lets a client's flow settle, or moves it. The next connection from its port gets the same source port. Returns enum promoted. */
static __always_inline int promote_and_keep(const struct packet *p, const bool v6)
{
	struct flow *flow = flow_lookup(p, STAGE_OPENING, v6);
	__u32 slot = flow ? flow->backend : 0;
	__be16 port = flow && flow->flags & FLOW_SNAT ? flow->snat_port : 0;
	int step;

	if (!flow)
		return PROMOTED_NOT;
	step = flow_settles(p, flow, v6);
	if (step == PROMOTED_NOT && promote(p, flow, v6))
		step = PROMOTED;
	if (step != PROMOTED_NOT && port && p->proto == IPPROTO_TCP)
		(void)(v6 ? snat_keep6(p, slot, port) : snat_keep4(p, slot, port));
	return step;
}

/*
 * promote() at a second datagram back: a client may ask once for many. Of a flood with others' addresses most get one. Returns whether it did.
 */
static __always_inline bool promote_answered(const struct reply *reply, const bool v6)
{
	struct packet asked;
	struct flow *flow;

	client_packet(&asked, reply, IPPROTO_UDP);
	flow = flow_lookup(&asked, STAGE_OPENING, v6);
	return flow && promote(&asked, flow, v6);
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

/* These look for the flow: Linux before 6.2 stores no value out of a function's argument. */
__noinline int promote4(const struct packet *p)
{
	return p ? promote_and_keep(p, false) : PROMOTED_NOT;
}

__noinline int promote6(const struct packet *p)
{
	return p ? promote_and_keep(p, true) : PROMOTED_NOT;
}

__noinline int promote_answered4(const struct reply *reply)
{
	return reply ? promote_answered(reply, false) : false;
}

__noinline int promote_answered6(const struct reply *reply)
{
	return reply ? promote_answered(reply, true) : false;
}

#endif
