/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The place of a new flow's answers, where it has its client's own address and port. With another port: source_port.h. */
#ifndef WEIR_PLACE_H
#define WEIR_PLACE_H

#include "direct.h"
#include "signals.h"

/* Whether an entry is of the same slot, and of the same endpoint in it: slots that were never used number theirs alike. */
static __always_inline bool is_same_backend(const struct reply *old, const struct reply *reply)
{
	return old->backend == reply->backend && old->generation == reply->generation;
}

/* Whether an entry is of the same client and port, and of the same frontend. */
static __always_inline bool is_of_client(const struct reply *old, const struct reply *reply, const bool v6)
{
	return old->client_port == reply->client_port && addr_equal(&old->client, &reply->client, v6) &&
	       is_same_frontend(old, reply, v6);
}

/* Whether an entry gives its place to a flow that keeps the client's address and port: it is of the same frontend, or is over. */
static __always_inline bool reply_yields(const struct reply *old, const struct packet *p, const struct reply *reply,
					 const bool v6)
{
	return is_of_client(old, reply, v6) ||
	       reply_is_over(old, snat_port_of(old, p->sport), p->proto, CLAIM_ONLY, v6);
}

/* What functions that begin a flow return beside 0 and negative reasons. */
enum begun {
	/* The backend to avoid keeps the flow, as no other one can have it or an answer has come. */
	BEGUN_STAYS = 1,
	/* A SYN came again of a flow that no table knows. Its backend's answer has been awaited since. */
	BEGUN_AGAIN = 2,
	/* A flow of which a flood has left no more than where it goes was counted when it began. */
	BEGUN_COUNTED = 3,
	/* The flow cannot have its client's port towards the backend: it gets another one. */
	BEGUN_ELSE = 4,
	/* Of a flow that a flood has left no entry of the backend has answered already. */
	BEGUN_ANSWERED = 5,
};

/*
 * Whether an entry awaits the answer to the same SYN, which a flood has left no flow of: for longer than it takes, and not for so long
 * that it would be another connection's. Of one that came wrapped somebody else chooses the endpoint, and one whose way ends here asks nobody.
 */
static __always_inline bool is_unanswered(const struct reply *old, const struct packet *p, const struct reply *reply,
					  const bool v6)
{
	return !is_unwrapped(p) && reply->asked && awaits_answer(old, p, reply->backend, reply->generation, v6) &&
	       (__s32)(reply->asked - old->asked) >= SYN_AGAIN;
}

/* Whether an entry, if there is one, is that of the connection which a packet goes on with: of a flood only this was written, and it was answered. */
static __always_inline bool is_answered_already(const struct reply *old, const struct packet *p,
						const struct reply *reply, const bool v6)
{
	return old && !p->syn &&
	       (old->flags & (FLOW_OPENING | FLOW_REPLIED | FLOW_MOVED)) == (FLOW_OPENING | FLOW_REPLIED) &&
	       is_same_backend(old, reply) && is_of_client(old, reply, v6);
}

/*
 * Takes back an entry that was just stored among those that begin, if another CPU has moved one with the same key to those that go on since that was
 * looked for there. Returns whether it did.
 */
static __always_inline bool take_back_if_going(const union flow_key *key, const bool v6)
{
	if (!reply_at(key, STAGE_GOING, v6))
		return false;
	reply_forget(key, STAGE_OPENING, v6);
	return true;
}

/*
 * Stores the reply entry of a flow that keeps the client's address. first: it is that of a SYN which is not known to come again.
 * Returns 0, BEGUN_AGAIN, BEGUN_ANSWERED, or an error if the backend already knows this client address and port through another frontend, or the
 * table is full.
 */
static __always_inline long reply_store_client(const struct packet *p, const struct backend *backend,
					       const struct reply *reply, bool first, const bool v6)
{
	const struct reply *old;
	union flow_key key;

	reply_key(&key, backend, &p->src, p->sport, v6);
	old = reply_at(&key, STAGE_GOING, v6);
	if (old) {
		if (!reply_yields(old, p, reply, v6))
			return -1;
		reply_forget(&key, STAGE_GOING, v6);
	}
	if (!reply_store(&key, reply, BPF_NOEXIST, STAGE_OPENING, v6))
		return take_back_if_going(&key, v6) ? -1 : 0;
	old = reply_at(&key, STAGE_OPENING, v6);
	if (old && !reply_yields(old, p, reply, v6))
		return -1;
	if (old && first && is_unanswered(old, p, reply, v6))
		return BEGUN_AGAIN;
	if (is_answered_already(old, p, reply, v6))
		return BEGUN_ANSWERED;
	return reply_store(&key, reply, BPF_ANY, STAGE_OPENING, v6);
}

/*
 * The same where the endpoint is a process of this node: its flows cannot have another source. Of two flows of datagrams from the same port the
 * newer one wins; of two connections the newer one gets no place, unless nobody has answered the older one or that is over.
 * Returns 0, BEGUN_AGAIN, BEGUN_ANSWERED, or a negative error.
 */
static __always_inline long reply_store_here(const struct packet *p, const struct backend *backend,
					     const struct reply *reply, bool first, const bool v6)
{
	const struct reply *old;
	union flow_key key;

	reply_key(&key, backend, &p->src, p->sport, v6);
	old = p->proto == IPPROTO_UDP ? NULL : reply_at(&key, STAGE_ANY, v6);
	/* What the process says to the newer one's SYN would have the client reset it. Not where nobody has answered: somebody may have forged that. */
	if (old && (old->flags & (FLOW_OPENING | FLOW_REPLIED)) != FLOW_OPENING && !reply_yields(old, p, reply, v6))
		return -1;
	if (old && first && is_unanswered(old, p, reply, v6))
		return BEGUN_AGAIN;
	if (is_answered_already(old, p, reply, v6))
		return BEGUN_ANSWERED;
	reply_forget(&key, STAGE_GOING, v6);
	/* Without an entry the answer would leave with the node's own address. */
	return reply_store(&key, reply, BPF_ANY, STAGE_OPENING, v6);
}

#endif
