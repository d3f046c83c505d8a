/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Two CPUs at once. While one of them works, the other one comes between two of its steps, and has done all of its own work before
 * the first one goes on; so for each of the steps, down to single loads and stores. mod.rs compiles and runs it.
 *
 *     interleaved NAME	plays the scenarios of this name; prints what does not hold, and fails then
 *     interleaved hash SEED STEP WORD...	prints the hash of a key
 */
#include <stdio.h>
#include <stdlib.h>

#include "agent.h"
#include "client.h"
#include "sets.h"

/* ---- scenarios ----------------------------------------------------------------------------------------------- */

/* A flow of which the backend has answered the first packet. */
static void begin_answered(void)
{
	client_sends(SYN);
	backend_sends(SYN_ACK);
}

static void begin_nothing(void)
{
}

static void one_client_sends(void)
{
	seen[ONE] = client_sends(DATA) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

static void other_client_sends(void)
{
	seen[OTHER] = client_sends(DATA) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

static void other_backend_sends(void)
{
	seen[OTHER] = backend_sends(DATA) == REASON_BACK;
}

/*
 * Both came through as packets of the flow that was there, which goes on now, and is nowhere else: among those that go on, or where it
 * began.
 */
static bool is_moved(void)
{
	const bool stays = way.settle && way.proto == IPPROTO_TCP && !way.later;

	return seen[ONE] && seen[OTHER] && written.backend[FIRST].flows == 1 && !written.pace.lost &&
	       flows_going() == !stays && replies_going() == !stays && in_set(flow_set()) == stays &&
	       in_set(reply_set()) == stays && settled() == 2 * stays;
}

/* Whatever the agent has found, the flow is found by its client and its backend. */
static bool is_known(void)
{
	return flows_going() + in_set(flow_set()) == 1 && replies_going() + in_set(reply_set()) == 1 &&
	       client_sends(DATA) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL) &&
	       backend_sends(DATA) == REASON_BACK && written.backend[FIRST].flows == 1 && !written.pace.lost;
}

/* A connection that goes on, or will with its client's next packet, and the turn of its source port has come again. */
static void begin_whose_turn_comes(void)
{
	begin_answered();
	client_sends(DATA);
	written.turn.next = 1;
}

static void other_begins_elsewhere(void)
{
	seen[OTHER] = client_sends_from(40001, SYN) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

/* Each has a source port of its own, if it has one of the node's. */
static bool have_ports(void)
{
	const struct packet one = packet_of(CLIENT, 40000, FRONTEND, 80, DATA),
			    two = packet_of(CLIENT, 40001, FRONTEND, 80, DATA);
	const struct flow *flow = flow_lookup(&one, STAGE_ANY, way.v6), *other = flow_lookup(&two, STAGE_ANY, way.v6);

	return seen[ONE] && seen[OTHER] && flow && other && (!way.remote || flow->snat_port != other->snat_port);
}

/* A connection that is over for long enough for anybody to have its source port, whose turn has come again, and which its client's next one keeps. */
static void begin_whose_port_is_kept(void)
{
	begin_whose_turn_comes();
	client_sends(FIN);
	backend_sends(FIN);
	client_sends(DATA);
	ticks += 4 * config_value.tcp_linger;
	nanoseconds += 10ull << 30;
}

static void one_begins_again(void)
{
	seen[ONE] = client_sends(SYN) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

/* A connection that both sides have closed, but for the last ACK. */
static void begin_closed(void)
{
	begin_answered();
	client_sends(DATA);
	client_sends(FIN);
	backend_sends(FIN);
}

static void other_backend_closes(void)
{
	seen[OTHER] = backend_sends(FIN) == REASON_BACK;
}

static void other_backend_resets(void)
{
	seen[OTHER] = backend_sends(RESET) == REASON_BACK;
}

/* What somebody has drawn from it, who has sent an acknowledgement in the client's name. */
static void other_backend_resets_nothing(void)
{
	seen[OTHER] = backend_sends(RESET_OF_NOTHING) == REASON_BACK;
}

static void other_client_closes(void)
{
	seen[OTHER] = client_sends(FIN) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

static void one_client_closes(void)
{
	seen[ONE] = client_sends(FIN) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

/* A connection that goes on, or does by the client's packet that comes next. */
static void begin_going(void)
{
	begin_answered();
	client_sends(DATA);
}

/* The client's flow, wherever it is, and whether it says so. */
static bool has_flag(__u16 flag)
{
	struct packet p = packet_of(CLIENT, 40000, FRONTEND, 80, DATA);
	const struct flow *flow = flow_lookup(&p, STAGE_ANY, way.v6);

	return flow && flow->flags & flag;
}

/* What the backend has said is known wherever the flow is by now: when its client has closed, too, it has ended. Datagrams end nothing. */
static bool ends_when_both_have_closed(void)
{
	if (way.proto != IPPROTO_TCP)
		return true;
	client_sends(FIN);
	return seen[ONE] && seen[OTHER] && has_flag(FLOW_ENDED) && !written.backend[FIRST].balance;
}

/* Both close at the same time: it has ended, and is over with the acknowledgements. */
static bool have_closed(void)
{
	bool ended;

	if (way.proto != IPPROTO_TCP)
		return true;
	ended = seen[ONE] && seen[OTHER] && has_flag(FLOW_ENDED) && !written.backend[FIRST].balance;
	return ended && client_sends(DATA) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL) &&
	       backend_sends(DATA) == REASON_BACK && has_flag(FLOW_ENDED) && !written.backend[FIRST].balance;
}

/* The same of what the client has said. */
static bool ends_when_its_backend_closes_too(void)
{
	if (way.proto != IPPROTO_TCP)
		return true;
	backend_sends(FIN);
	return seen[ONE] && seen[OTHER] && has_flag(FLOW_ENDED) && !written.backend[FIRST].balance;
}

/* If it is taken back while it is moving, its client's packet may find none and begin another one, which its backend knows nothing of. */
static bool has_ended_at_once(void)
{
	const bool other = written.backend[FIRST].flows == 2;

	return way.proto != IPPROTO_TCP ||
	       (seen[OTHER] && has_flag(FLOW_ENDED) == !other && written.backend[FIRST].balance == other);
}

/* It is over if the client went on before, and else goes on. */
static bool has_ended_or_goes_on(void)
{
	if (way.proto != IPPROTO_TCP || has_flag(FLOW_ENDED) || written.backend[FIRST].flows == 2)
		return has_ended_at_once();
	return backend_sends(DATA) == REASON_BACK && written.backend[FIRST].balance == 1 && is_moved();
}

/* A connection that somebody has reset in the client's name, which goes on all the same. */
static void begin_reset(void)
{
	begin_answered();
	client_sends(DATA);
	client_sends(RESET);
}

/* It is one that goes on, and counts as one, whichever of its packets was first. */
static bool goes_on(void)
{
	return way.proto != IPPROTO_TCP || (seen[ONE] && seen[OTHER] && !has_flag(FLOW_ENDED | FLOW_CLOSING) &&
					    written.backend[FIRST].balance == 1);
}

/* Datagrams end nothing. */
static bool is_moved_back(void)
{
	const bool tcp = way.proto == IPPROTO_TCP;

	return seen[ONE] && seen[OTHER] && written.backend[FIRST].flows == 1 && !written.pace.lost &&
	       flows_going() == !tcp && replies_going() == !tcp && in_set(flow_set()) == tcp &&
	       in_set(reply_set()) == tcp && !settled();
}

static void one_begins(void)
{
	seen[ONE] = client_sends(SYN) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

static void other_begins(void)
{
	seen[OTHER] = client_sends(SYN) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

/* One entry of each; of two that took a source port each, one is nobody's. */
static bool is_once(void)
{
	return seen[ONE] && seen[OTHER] && in_set(flow_set()) == 1 && (way.remote || in_set(reply_set()) == 1);
}

/* The next connection from the same port has the same source port, on either CPU. Datagrams do not begin anew. */
static bool is_once_again(void)
{
	return way.proto != IPPROTO_TCP || is_once();
}

/* Whom a SYN that comes again can be given to, after a second. */
static void begin_unanswered(void)
{
	client_sends(SYN);
	select_slot(SECOND);
	nanoseconds += 1000 * 1000 * 1000;
}

static void one_asks_again(void)
{
	seen[ONE] = client_sends(SYN) == (way.remote ? REASON_TO_REMOTE : REASON_TO_LOCAL);
}

static void other_answers(void)
{
	seen[OTHER] = backend_sends(SYN_ACK) == REASON_BACK;
}

/* The flow is the first backend's if the client has heard of that one, and else the second one's. */
static bool is_whose_answer_was_heard(void)
{
	struct packet p = packet_of(CLIENT, 40000, FRONTEND, 80, SYN);
	const struct flow *flow = flow_lookup(&p, STAGE_OPENING, way.v6);
	const enum slot heard = seen[OTHER] ? FIRST : SECOND;

	if (way.proto != IPPROTO_TCP)
		return true;
	return seen[ONE] && in_set(flow_set()) == 1 && flow->backend == heard &&
	       written.backend[FIRST].answered == seen[OTHER] && written.backend[FIRST].unanswered == !seen[OTHER];
}

static const struct scenario {
	const char *name;
	work_t begin, one, other;
	bool (*holds)(void);
	bool in_turns; /* the first one comes between the steps of the other, too */
} scenarios[] = {
	{ "moves", begin_answered, one_client_sends, other_client_sends, is_moved, true },
	{ "moves", begin_answered, one_client_sends, other_backend_sends, is_moved, true },
	{ "closes", begin_answered, one_client_sends, other_backend_closes, ends_when_both_have_closed, true },
	{ "closes", begin_answered, one_client_sends, other_client_closes, ends_when_its_backend_closes_too, true },
	{ "closes", begin_answered, one_client_sends, other_backend_resets, has_ended_at_once, true },
	{ "closes", begin_answered, one_client_sends, other_backend_resets_nothing, has_ended_or_goes_on, true },
	{ "both close", begin_answered, one_client_closes, other_backend_closes, have_closed, true },
	{ "both close", begin_going, one_client_closes, other_backend_closes, have_closed, true },
	{ "revives", begin_reset, one_client_sends, other_client_sends, goes_on, true },
	{ "revives", begin_reset, one_client_sends, other_backend_sends, goes_on, true },
	{ "revives", begin_reset, one_client_sends, other_backend_resets, has_ended_at_once, true },
	{ "ports", begin_whose_turn_comes, one_client_sends, other_begins_elsewhere, have_ports, true },
	{ "keeps", begin_whose_port_is_kept, one_begins_again, other_begins_elsewhere, have_ports, true },
	{ "filter", begin_answered, agent_looks, one_client_sends, is_known, true },
	/* One of the backend's may find no entry meanwhile, and comes again: see retire(). */
	{ "ends", begin_closed, one_client_sends, other_client_sends, is_moved_back, true },
	{ "begins", begin_nothing, one_begins, other_begins, is_once, true },
	{ "begins", begin_closed, one_begins, other_begins, is_once_again, true },
	{ "leaves", begin_unanswered, one_asks_again, other_answers, is_whose_answer_was_heard, true },
	{ "adds", begin_nothing, one_adds, other_adds, is_nobodys_or_ones, true },
	{ "needs", begin_full, one_needs_a_place, other_needs_a_place, have_places, true },
	{ "ended", begin_full_of_one_that_ended, one_needs_a_place, other_needs_a_place, have_places_of_others, true },
	{ "settled", begin_full_of_two_that_settled, one_needs_a_place, other_needs_a_place, settled_have_theirs,
	  true },
	/* Who has found an entry that is then taken for another flow reads that one's, as in an LRU table of the kernel's. */
	{ "looks", begin_full, one_needs_a_place, other_looks, is_whole, false },
};

/* The second one comes at each step of the first one. Returns how many there are, or -1 if something does not hold. */
static AT_ONCE int play(const struct scenario *scenario, work_t first, work_t second)
{
	for (int step = 0;; step++) {
		reset();
		scenario->begin();
		ticks += way.later;
		seen[ONE] = seen[OTHER] = 0;
		other = second;
		steps_until_other = step;
		first();
		if (other) {
			other = NULL;
			return step;
		}
		if (!scenario->holds()) {
			printf("%s: IPv%d, protocol %u, %s, %s, %s: the %s comes before step %d of the other: %d and "
			       "%d "
			       "are seen; answered %llu, unanswered %llu; "
			       "flows %d and %d, replies %d and %d, begun %llu, lost %llu\n",
			       scenario->name, way.v6 ? 6 : 4, way.proto, way.remote ? "remote" : "local",
			       way.later ? "later" : "at once", way.settle ? "settles" : "moves",
			       first == scenario->one ? "second" : "first", step, seen[ONE], seen[OTHER],
			       written.backend[FIRST].answered, written.backend[FIRST].unanswered, in_set(flow_set()),
			       flows_going(), in_set(reply_set()), replies_going(), written.backend[FIRST].flows,
			       written.pace.lost);
			return -1;
		}
	}
}

/* Returns how many steps there are in all, or -1. */
static int play_in_turns(const struct scenario *scenario)
{
	int one = play(scenario, scenario->one, scenario->other);
	int other_one = scenario->in_turns ? play(scenario, scenario->other, scenario->one) : 0;

	return one <= 0 || other_one < 0 ? -1 : one + other_one;
}

static int print_hash(int count, char **arguments)
{
	word key[sizeof(struct flow_key6) / sizeof(word)] = {};
	const __u32 words = count - 2;

	if (count < 2 || words > sizeof(key) / sizeof(word))
		return 1;
	for (__u32 i = 0; i < words; i++)
		key[i] = strtoull(arguments[2 + i], NULL, 10);
	printf("%llu\n", opening_hash(key, words, strtoull(arguments[0], NULL, 10), strtoull(arguments[1], NULL, 10)));
	return 0;
}

int main(int count, char **arguments)
{
	int steps = 0;

	if (count > 1 && !strcmp(arguments[1], "hash"))
		return print_hash(count - 2, arguments + 2);
	for (unsigned int i = 0; count > 1 && i < sizeof(scenarios) / sizeof(*scenarios); i++) {
		if (strcmp(scenarios[i].name, arguments[1]))
			continue;
		for (int n = 0; n < 32 && steps >= 0; n++) {
			int played;

			way.v6 = n & 1;
			way.remote = n >> 1 & 1;
			way.later = n >> 2 & 1;
			way.proto = n >> 3 & 1 ? IPPROTO_UDP : IPPROTO_TCP;
			way.settle = n >> 4 & 1;
			played = play_in_turns(&scenarios[i]);
			steps = played < 0 ? -1 : steps + played;
		}
	}
	printf("%d steps\n", steps);
	return steps <= 0;
}
