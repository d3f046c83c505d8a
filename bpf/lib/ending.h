/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The end of a connection, from the packets that say so: each side closes its own direction, and a reset ends both. This is noted at
 * the flow, which goes back to the tables that it began in; who asks for its place is told by over.h.
 */
#ifndef WEIR_ENDING_H
#define WEIR_ENDING_H

#include "over.h"
#include "word.h"

_Static_assert(offsetof(struct flow, flags) % sizeof(word) == 0, "flags begin a word");
_Static_assert(offsetof(struct reply, flags) % sizeof(word) == 0, "flags begin a word");

/* Adds to the balance of a flow's backend, whose slot may be another's by now, and to that of those that go on if it is one. */
static __always_inline void balance_add(const struct flow *flow, const int change)
{
	struct backend_counters *counters = lookup_by(&backend_counters, flow->backend);

	if (!counters || !backend_at(flow->backend, flow->generation))
		return;
	__sync_fetch_and_add(&counters->balance, change);
	if (flow->flags & FLOW_GONE_ON)
		__sync_fetch_and_add(&counters->going, change);
}

/* Who says the last word of a connection, which acknowledges the end that came second: FLOW_LAST is noted on that side. */
enum last_word {
	LAST_OF_CLIENT = 1,
	LAST_OF_BACKEND = 2,
	LAST_OF_EITHER = LAST_OF_CLIENT | LAST_OF_BACKEND, /* a reset needs no acknowledgement */
};

/*
 * Notes at a flow and at the entry of its answers, if there is one, that it has ended. Takes it out of the balance of its backend, once: both sides
 * may say so at the same time.
 */
static __always_inline void flow_end(struct flow *flow, struct reply *reply, enum last_word last)
{
	const bool again = flow->flags & FLOW_ENDED;

	if (reply)
		set_bits(&reply->flags, last & LAST_OF_BACKEND && !again ? FLOW_ENDED | FLOW_LAST : FLOW_ENDED);
	if (!(set_bits(&flow->flags, last & LAST_OF_CLIENT && !again ? FLOW_ENDED | FLOW_LAST : FLOW_ENDED) &
	      FLOW_ENDED))
		balance_add(flow, -1);
}

/* The entry of a flow's answers, or NULL: it was evicted, is another's, or answers do not come by here. */
static __always_inline struct reply *own_reply(const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct config *config = config_get();
	struct reply *reply;
	union flow_key key;

	if (!backend || flow->flags & FLOW_DIRECT)
		return NULL;
	answer_key(&key, p, flow, backend, config, v6);
	reply = reply_at(&key, stage_of(flow->flags), v6);
	return reply && reply_is_of(reply, p, flow, v6) ? reply : NULL;
}

/*
 * Whether a reset ends nothing: who begins may be answered what is for an earlier connection between the same ports, resets that and goes on
 * asking (RFC 9293, 3.10.7.3). At another endpoint it might meet the next, or nobody. From another port than the client's the earlier one may
 * have been somebody else's.
 */
static __always_inline bool is_reset_of_another(const struct packet *p, const struct flow *flow,
						const struct reply *reply)
{
	if (!p->reset || p->proto != IPPROTO_TCP || !is_opening(flow->flags))
		return false;
	return flow->snat_port || (reply && !reply->heard);
}

/*
 * Whether an end in a client's name may be its own: it is where its backend awaits what is next, or not far behind. Who only knows a connection's
 * ports would take its place from it with the next SYN; to the backend it goes in any case (RFC 5961, 3.2). Of a flow that begins, or of
 * answers that do not come by here, this is not known.
 */
static __always_inline bool is_believed(const struct packet *p, const struct flow *flow, const bool v6)
{
	const struct reply *reply = own_reply(p, flow, v6);

	if (p->proto != IPPROTO_TCP || !reply || !reply->heard || is_opening(reply->flags))
		return true;
	/* It may have crossed with the latest. */
	return ((p->heard - reply->heard + 1) & HEARD_MASK) <= HEARD_FAR + 1;
}

/*
 * Notes that a client sends no more, and returns the flow where it is now. Of one that begins a copy is yet to be made if it moves; of another one the
 * copy may have been made before the note: promote() takes it along, or it is made there, too.
 */
static __always_inline struct flow *client_closes(const struct packet *p, struct flow *flow, const bool v6)
{
	struct flow *moved;

	if (set_bits(&flow->flags, FLOW_CLOSING) & FLOW_OPENING)
		return flow;
	moved = flow_lookup(p, STAGE_GOING, v6);
	if (!moved || moved->backend != flow->backend || moved->snat_port != flow->snat_port)
		return flow;
	set_bits(&moved->flags, FLOW_CLOSING);
	return moved;
}

/*
 * Notes an end that a client has sent. The flag first: both sides may close at the same time, on two CPUs. A backend whose answers do not come by
 * here is believed to have closed its direction. Returns 0.
 */
static __always_inline int client_ends(const struct packet *p, struct flow *flow, const bool v6)
{
	struct reply *reply;

	/* The first packet of a flow has a copy of what was written. */
	if (flow->flags & FLOW_OPENING)
		flow = flow_lookup(p, STAGE_OPENING, v6) ?: flow;
	if (!is_believed(p, flow, v6))
		return 0;
	if (!p->reset)
		flow = client_closes(p, flow, v6);
	reply = own_reply(p, flow, v6);
	if (is_reset_of_another(p, flow, reply))
		return 0;
	if (p->reset)
		flow = client_closes(p, flow, v6);
	if (p->reset || flow->flags & FLOW_DIRECT || (reply && reply->flags & FLOW_CLOSING))
		flow_end(flow, reply, p->reset || flow->flags & FLOW_DIRECT ? LAST_OF_EITHER : LAST_OF_BACKEND);
	return 0;
}

/*
 * Has a connection go on whose client has reset it and sends all the same: it does not know of that. Somebody in its name may have sent the
 * reset, and only its backend knows the numbers that tell (RFC 5961, 3.2). A SYN soon after it is for the backend to judge, too. Returns 0.
 */
static __always_inline int revive(const struct packet *p, struct flow *flow, const bool v6)
{
	const struct config *config = config_get();
	struct reply *reply;

	if (p->syn && is_idle(now_ticks(), flow->last_seen, config->tcp_linger))
		return 0;
	/* What its backend still sends nobody here knows: whoever goes on in a later tick than that of the last ACK has closed one direction. */
	if (flow->flags & FLOW_DIRECT) {
		if (!p->syn && flow->last_seen != now_ticks() &&
		    clear_bits(&flow->flags, FLOW_ENDED | FLOW_LAST) & FLOW_ENDED)
			balance_add(flow, 1);
		return 0;
	}
	reply = own_reply(p, flow, v6);
	if (!reply || reply->flags & FLOW_CLOSING)
		return 0;
	clear_bits(&reply->flags, FLOW_ENDED | FLOW_LAST);
	if (clear_bits(&flow->flags, FLOW_ENDED | FLOW_CLOSING | FLOW_LAST) & FLOW_ENDED)
		balance_add(flow, 1);
	/* Meanwhile its backend may have reset it, too. */
	if (reply->flags & FLOW_CLOSING)
		flow_end(flow, reply, LAST_OF_EITHER);
	return 0;
}

/*
 * Whether a flow is the one that a backend's packet answers: its client may have gone on to another one, and another flow's entry may be
 * where this one's was.
 */
static __always_inline bool is_answered_by(const struct flow *flow, const struct packet *p, const struct reply *reply,
					   const bool v6)
{
	if (!(reply->flags & FLOW_SNAT) && !addr_equal(&reply->client, &p->dst, v6))
		return false;
	return flow && is_to_backend_of(flow, reply) && flow->snat_port == snat_port_of(reply, p->dport);
}

/*
 * Whether a reset answers an acknowledgement of nothing (RFC 9293, 3.10.7.2), which somebody may have sent in the name of a client whose SYN is yet to
 * be answered, or was. The endpoint awaits that client's own all the same, whose number it knows.
 */
static __always_inline bool is_reset_of_nothing(const struct packet *p, const struct reply *reply)
{
	return p->proto == IPPROTO_TCP && p->reset == RESET_LATER && is_opening(reply->flags) &&
	       (reply->asked || reply->heard);
}

/*
 * Notes an end that a backend has sent. The flow and the entry may be moving to the tables of those that go on: promote() takes along what
 * was noted before it has looked, and what is noted later is noted there, too. Returns 0.
 */
static __always_inline int backend_ends(const struct packet *p, struct reply *reply, const bool v6)
{
	struct reply *moved;
	union flow_key key;
	struct flow *flow;
	__u16 ends;

	if (is_reset_of_nothing(p, reply))
		return 0;
	set_bits(&reply->flags, FLOW_CLOSING);
	packet_key(&key, p, v6);
	moved = reply_at(&key, STAGE_GOING, v6);
	if (moved)
		set_bits(&moved->flags, FLOW_CLOSING);
	/* It is set; but the client's may be looked for only now. */
	client_key(&key, reply, p->proto, v6);
	flow = flow_at(&key, stage_of(reply->flags), v6);
	if (!is_answered_by(flow, p, reply, v6) || !(p->reset || flow->flags & FLOW_CLOSING))
		return 0;
	flow_end(flow, reply, p->reset ? LAST_OF_EITHER : LAST_OF_CLIENT);
	if (moved)
		set_bits(&moved->flags, reply->flags & (FLOW_ENDED | FLOW_LAST));
	ends = flow->flags & (FLOW_ENDED | FLOW_LAST);
	flow = flow_at(&key, STAGE_GOING, v6);
	if (is_answered_by(flow, p, reply, v6))
		set_bits(&flow->flags, ends);
	return 0;
}

/*
 * Whether a packet is the last one of a flow with these flags, or of the entry of its answers: the second end was acknowledged, or a reset
 * needs no acknowledgement. What comes later comes again. Who has closed second may have its end lost, and sends it again to the same backend.
 */
static __always_inline bool is_last(const struct packet *p, __u16 flags)
{
	return flags & FLOW_ENDED && !is_opening(flags) && (p->reset || (!p->ending && flags & FLOW_LAST));
}

/*
 * Moves a flow that has ended back to the tables of those that begin, so that it never costs one that goes on its place. What was
 * found in the other tables before is not there any more then. A packet that comes at the same time may look for the entry of answers
 * in vain: one that comes again, or the second last ACK where both sides close at once. Returns 0.
 */
static __always_inline int retire(const struct packet *p, struct flow *flow, const bool v6)
{
	const struct backend *backend = lookup_by(&backends, flow->backend);
	const struct config *config = config_get();
	struct reply *reply = NULL;
	union flow_key key;

	if (!backend)
		return 0;
	/* It is there. */
	if (flow->flags & FLOW_SETTLED) {
		reply = own_reply(p, flow, v6);
		clear_bits(&flow->flags, FLOW_SETTLED);
		if (reply) {
			clear_bits(&reply->flags, FLOW_SETTLED);
			reply->heard = 0;
		}
		return 0;
	}
	answer_key(&key, p, flow, backend, config, v6);
	if (!(flow->flags & FLOW_DIRECT))
		reply = reply_at(&key, STAGE_GOING, v6);
	if (reply && reply_is_of(reply, p, flow, v6)) {
		set_bits(&reply->flags, FLOW_OPENING);
		/* Its client has heard of the SYN-ACK long ago. */
		reply->heard = 0;
		if (reply_store(&key, reply, BPF_ANY, STAGE_OPENING, v6))
			clear_bits(&reply->flags, FLOW_OPENING);
		else
			reply_forget(&key, STAGE_GOING, v6);
	}
	/* What it had cost is past: from now on bytes are held where a flow that begins names who was left. */
	clear_bits(&flow->flags, FLOW_RETRIES);
	set_bits(&flow->flags, FLOW_OPENING);
	if (flow_store(p, flow, STAGE_OPENING, v6))
		clear_bits(&flow->flags, FLOW_OPENING);
	else
		flow_forget(p, STAGE_GOING, v6);
	return 0;
}

/* The same from the entry of its answers. Its client may have gone on to another flow. Returns 0. */
static __always_inline int retire_answered(const struct reply *reply, __u8 proto, const bool v6)
{
	struct packet asked;
	struct flow *flow;

	client_packet(&asked, reply, proto);
	flow = flow_lookup(&asked, reply->flags & FLOW_SETTLED ? STAGE_OPENING : STAGE_GOING, v6);
	if (!flow || !(flow->flags & FLOW_ENDED) || !is_to_backend_of(flow, reply) ||
	    (flow->flags ^ reply->flags) & FLOW_SETTLED)
		return 0;
	return retire(&asked, flow, v6);
}

/* Functions of their own: few packets end something. */
__noinline int client_ends4(const struct packet *p, struct flow *flow)
{
	return p && flow ? client_ends(p, flow, false) : 0;
}

__noinline int client_ends6(const struct packet *p, struct flow *flow)
{
	return p && flow ? client_ends(p, flow, true) : 0;
}

__noinline int backend_ends4(const struct packet *p, struct reply *reply)
{
	return p && reply ? backend_ends(p, reply, false) : 0;
}

__noinline int backend_ends6(const struct packet *p, struct reply *reply)
{
	return p && reply ? backend_ends(p, reply, true) : 0;
}

__noinline int revive4(const struct packet *p, struct flow *flow)
{
	return p && flow ? revive(p, flow, false) : 0;
}

__noinline int revive6(const struct packet *p, struct flow *flow)
{
	return p && flow ? revive(p, flow, true) : 0;
}

__noinline int retire4(const struct packet *p, struct flow *flow)
{
	return p && flow ? retire(p, flow, false) : 0;
}

__noinline int retire6(const struct packet *p, struct flow *flow)
{
	return p && flow ? retire(p, flow, true) : 0;
}

__noinline int retire_answered4(const struct reply *reply, __u8 proto)
{
	return reply ? retire_answered(reply, proto, false) : 0;
}

__noinline int retire_answered6(const struct reply *reply, __u8 proto)
{
	return reply ? retire_answered(reply, proto, true) : 0;
}

#endif
