/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A new flow for a packet, from the choice of its backend to its entries, and what is tried where these cannot be written. */
#ifndef WEIR_NEW_FLOW_H
#define WEIR_NEW_FLOW_H

#include "begin.h"
#include "silence.h"

/* note_silence() */
static __always_inline bool note(const struct packet *p, enum silence silence, const bool v6)
{
	return v6 ? note_silence6(p, silence) : note_silence4(p, silence);
}

/* Both entries of a new flow. Returns 0, BEGUN_AGAIN or a negative reason. */
static __always_inline int flow_write(ctx_t *ctx, const struct packet *p, struct flow *flow, bool from_outside,
				      const bool v6)
{
	int error = v6 ? flow_open6(p, flow, from_outside) : flow_open4(p, flow, from_outside);
	struct flow *moved;

	if (error == BEGUN_ELSE)
		return v6 ? flow_open_snat6(p, flow) : flow_open_snat4(p, flow);
	if (error)
		return error;
	if (!(flow->flags & FLOW_SNAT)) {
		/* Of a flood, an answered one. Of a direct one the client's next packet tells that it goes on. */
		if (p->syn || p->ending || p->proto != IPPROTO_TCP || flow->flags & FLOW_DIRECT)
			return 0;
		error = v6 ? promote6(p) : promote4(p);
		if (error == PROMOTED_NOT)
			return 0;
		flow->flags = error == PROMOTED ? flow->flags & ~FLOW_OPENING : flow->flags | FLOW_SETTLED;
		if (error == PROMOTED_SOON)
			(void)note_gone_on(p, flow);
		moved = error == PROMOTED ? flow_lookup(p, STAGE_GOING, v6) : NULL;
		if (moved)
			flow_goes_on(p, moved);
		return 0;
	}
	error = v6 ? snat_source6(ctx, p, flow) : snat_source4(ctx, p, flow);
	if (error < 0)
		return error;
	flow->flags |= error;
	return v6 ? flow_open_snat6(p, flow) : flow_open_snat4(p, flow);
}

/* Chooses for a new flow. Returns 0, BEGUN_COUNTED or a negative reason. */
static __always_inline int flow_choose(ctx_t *ctx, const struct packet *p, struct flow *flow, bool from_outside,
				       const bool v6)
{
	int chosen = v6 ? flow_start6(p, flow, from_outside) : flow_start4(p, flow, from_outside);

	if (chosen >= 0 && from_outside)
		choose_way(ctx, p, flow, v6);
	return chosen;
}

/* Counts a flow that has begun. The service's own counters are of what this node's clients ask for: who wraps has counted it. */
static __always_inline void count_begun(const struct packet *p, const struct flow *flow)
{
	const struct backend *backend = backend_at(flow->backend, flow->generation);

	if (!backend)
		return;
	if (!is_unwrapped(p))
		count_selection(flow->service, backend, false);
	count_flow(flow->backend, backend, false);
}

/* The same of one that was drawn for in another's place, and has not begun: it is not open. */
static __always_inline void count_asked(const struct packet *p, const struct flow *flow)
{
	count_begun(p, flow);
	/* Of datagrams none is in the balance. */
	if (p->proto != IPPROTO_UDP)
		balance_add(flow, -1);
}

/* Both entries of a new flow, as flow_write(). It counts as one from then on. chosen: flow_choose() */
static __always_inline int flow_write_counted(ctx_t *ctx, const struct packet *p, struct flow *flow, bool from_outside,
					      int chosen, const bool v6)
{
	int error = flow_write(ctx, p, flow, from_outside, v6);

	if (!error && chosen != BEGUN_COUNTED)
		count_begun(p, flow);
	return error;
}

/* Counts a flow for which there was a backend, and no place for its entries, unless tc comes to it. Returns the error. */
static __always_inline int not_begun(const struct packet *p, const struct flow *flow, int error)
{
	if (!is_unwrapped(p) && error != -REASON_LEFT_TO_TC)
		count_refusal(flow->service, -error);
	return error;
}

/*
 * Whether a flow that finds no place at its endpoint may find one at another: an association whose port somebody else's has there, which the endpoint cannot
 * tell from this, or one for which no source port is left. What goes on in the middle has its endpoint.
 */
static __always_inline bool may_go_beside(const struct packet *p, int error)
{
	if (error == -REASON_SNAT_EXHAUSTED)
		return p->syn || p->proto == IPPROTO_UDP;
	return error == -REASON_FLOW_TABLE && p->proto == IPPROTO_SCTP && p->syn;
}

/*
 * A new flow at another endpoint than the one that it was chosen for, and where it finds no place. because: why, which is what it returns where there is no
 * other one. Returns 0 or a negative reason.
 */
static __always_inline int flow_beside(ctx_t *ctx, const struct packet *p, struct flow *flow, bool from_outside,
				       int because, const bool v6)
{
	const __u32 taken = flow->backend;
	int error, chosen;

	*flow = (struct flow){ .backend = taken };
	chosen = flow_choose(ctx, p, flow, from_outside, v6);
	if (chosen < 0)
		return chosen;
	if (flow->backend == taken)
		return not_begun(p, flow, because);
	/* Nobody was silent. */
	flow->flags &= ~FLOW_RETRIES;
	error = flow_write_counted(ctx, p, flow, from_outside, chosen, v6);
	if (error)
		count_asked(p, flow);
	return error < 0 ? not_begun(p, flow, error) : 0;
}

/* A new flow that was chosen for, at the only backend that it may have. Returns 0, BEGUN_AGAIN or a negative reason. */
static __always_inline int flow_write_or_beside(ctx_t *ctx, const struct packet *p, struct flow *flow,
						bool from_outside, int chosen, const bool v6)
{
	int error = flow_write_counted(ctx, p, flow, from_outside, chosen, v6);

	if (may_go_beside(p, error))
		return flow_beside(ctx, p, flow, from_outside, error, v6);
	return error < 0 ? not_begun(p, flow, error) : error;
}

/* A new flow for a packet. Returns 0, BEGUN_STAYS or a negative reason. */
static __always_inline int flow_new(ctx_t *ctx, const struct packet *p, struct flow *flow, bool from_outside,
				    const bool v6)
{
	__u32 avoid = flow->backend;
	int error, chosen = flow_choose(ctx, p, flow, from_outside, v6);

	if (chosen < 0)
		return chosen;
	if (!avoid) {
		error = flow_write_or_beside(ctx, p, flow, from_outside, chosen, v6);
		if (error != BEGUN_AGAIN)
			return error;
		/* It is left as if it had been known. */
		avoid = flow->backend;
		*flow = (struct flow){ .backend = avoid };
		chosen = flow_choose(ctx, p, flow, from_outside, v6);
		if (chosen < 0)
			return chosen;
	}
	if (avoid == flow->backend) {
		(void)note(p, SILENCE_STAYS, v6);
		return BEGUN_STAYS;
	}
	/* It has answered meanwhile. */
	if (!note(p, SILENCE_LEFT, v6))
		return BEGUN_STAYS;
	if (!flow_write_counted(ctx, p, flow, from_outside, chosen, v6)) {
		(void)(v6 ? note_left6(p, avoid) : note_left4(p, avoid));
		return 0;
	}
	count_asked(p, flow);
	(void)note(p, SILENCE_BACK, v6);
	return BEGUN_STAYS;
}

#endif
