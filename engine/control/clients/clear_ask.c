/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clears of other hosts: each CTL_CLEAR that names another engine is a message Clear to it. The
 * message is sent again every CLEAR_REPEAT_NS until Cleared ends the request, so neither a link
 * that closes nor a lost answer ends it early, and an engine that is silent is noticed. The other
 * engine remembers its last answers, so a Clear that is sent again removes nothing twice. A time in
 * which this engine did not run proves no silence. The control plane's thread only.
 */
#include "engine/control/clients/ctl_inner.h"

#include <stdlib.h>
#include <sys/queue.h>

#include "engine/abi/message.pb-c.h"
#include "engine/abi/op.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"

#define CLEAR_TICK_NS 100000000ull
#define CLEAR_REPEAT_NS 1000000000ull
/* an engine answers each Clear at once: one that does not for this long is stopped or cut off */
#define CLEAR_SILENT_NS 10000000000ull

/* One request of a client. */
struct clear_ask {
	TAILQ_ENTRY(clear_ask) next;
	struct page_key group;
	bool all;
	bool answered;  /* at least once */
	uint32_t ref;   /* the engine that is asked */
	uint32_t later; /* number of ctl_later() */
	uint64_t serial;
	uint64_t deadline_ns;
	uint64_t sent_ns;  /* last time; 0: never */
	uint64_t heard_ns; /* last answer; at first when the request began */
	uint64_t pages;    /* removed so far */
};

struct clear_asks {
	struct control *control;
	TAILQ_HEAD(, clear_ask) waiting;
	unsigned count;
	uint64_t serial;
	uint64_t tick_ns; /* last tick */
	struct net_timer *tick;
};

void clear_answer_of(enum ctl_cleared why, uint64_t pages, struct ctl_done *ret)
{
	*ret = (struct ctl_done){.status = why == CLEARED_ALL ? OP_HIT : OP_PEER_DOWN,
		.place = (uint32_t)pages,
		.generation = (uint32_t)(pages >> 32),
		.length = why};
}

static void clear_ask_end(struct clear_asks *asks, struct clear_ask *ask, enum ctl_cleared why)
{
	struct ctl_done done;

	clear_answer_of(why, ask->pages, &done);
	ctl_later_answer(asks->control->ctl, ask->later, &done);
	TAILQ_REMOVE(&asks->waiting, ask, next);
	asks->count--;
	free(ask);
}

/* Sends the message, or dials the engine for the next turn. */
static void clear_ask_send(struct clear_asks *asks, struct clear_ask *ask, uint64_t now_ns)
{
	struct rpc_link *link = member_link(asks->control, ask->ref);
	Pc__Clear body = PC__CLEAR__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (!link)
		return;
	body.serial = ask->serial;
	body.group0 = ask->group.word[0];
	body.group1 = ask->group.word[1];
	body.all = ask->all;
	message.body_case = PC__MESSAGE__BODY_CLEAR;
	message.clear = &body;
	if (rpc_send(link, &message))
		ask->sent_ns = now_ns;
}

static void clear_ask_turn(struct clear_asks *asks, struct clear_ask *ask, uint64_t now_ns)
{
	if (!member_by_ref(asks->control, ask->ref))
		clear_ask_end(asks, ask, CLEARED_GONE);
	else if (now_ns - ask->heard_ns >= CLEAR_SILENT_NS)
		clear_ask_end(asks, ask, CLEARED_SILENT);
	else if (now_ns >= ask->deadline_ns)
		clear_ask_end(asks, ask, ask->answered ? CLEARED_LATE : CLEARED_SILENT);
	else if (!ask->sent_ns || now_ns - ask->sent_ns >= CLEAR_REPEAT_NS)
		clear_ask_send(asks, ask, now_ns);
}

/* After a pause of this engine: what came meanwhile is read before the host is called silent. */
static void clear_ask_forgive(struct clear_ask *ask, uint64_t pause_ns, uint64_t now_ns)
{
	ask->heard_ns = suspect_after_pause(ask->heard_ns, pause_ns, now_ns);
	if (ask->deadline_ns < now_ns + CLEAR_REPEAT_NS)
		ask->deadline_ns = now_ns + CLEAR_REPEAT_NS;
}

static void clear_asks_tick(void *context)
{
	struct clear_asks *asks = context;
	uint64_t now_ns = net_now();
	uint64_t pause_ns = suspect_pause_ns(asks->tick_ns, now_ns, CLEAR_TICK_NS);
	struct clear_ask *ask, *next;

	asks->tick_ns = now_ns;
	for (ask = TAILQ_FIRST(&asks->waiting); ask; ask = next) {
		next = TAILQ_NEXT(ask, next);
		if (pause_ns)
			clear_ask_forgive(ask, pause_ns, now_ns);
		clear_ask_turn(asks, ask, now_ns);
	}
	if (asks->count)
		(void)net_timer_set(asks->tick, CLEAR_TICK_NS / 1000);
}

static struct clear_asks *clear_asks_open(struct control *control)
{
	struct clear_asks *asks = calloc(1, sizeof(*asks));

	if (!asks)
		return NULL;
	asks->control = control;
	/* above all serials of the lives before, which other engines remember by this ref */
	asks->serial = control->incarnation >> 32 << 32;
	TAILQ_INIT(&asks->waiting);
	asks->tick = net_timer_new(control->base, false, clear_asks_tick, asks);
	if (asks->tick)
		return asks;
	free(asks);
	return NULL;
}

bool clear_ask(struct control *control, struct ctl_channel *c, const struct ctl_op *op,
	uint64_t deadline_ns)
{
	struct clear_asks *asks = control->clear_asks;
	struct clear_ask *ask = NULL;

	if (!asks)
		asks = control->clear_asks = clear_asks_open(control);
	if (asks && asks->count < CLEARS_MAX)
		ask = calloc(1, sizeof(*ask));
	if (!ask)
		return false;
	ask->later = ctl_later(control->ctl, c, op, 1);
	if (ask->later == CTL_NO_ANSWER) {
		free(ask);
		return false;
	}
	ask->group = op->key;
	ask->all = op->count == 1;
	ask->ref = op->ref;
	ask->serial = ++asks->serial;
	ask->heard_ns = net_now();
	ask->deadline_ns = deadline_ns;
	TAILQ_INSERT_TAIL(&asks->waiting, ask, next);
	asks->count++;
	clear_asks_tick(asks);
	return true;
}

bool clear_serve_cleared(struct control *control, struct rpc_link *link, const Pc__Cleared *m)
{
	struct clear_asks *asks = control->clear_asks;
	uint32_t ref = member_link_ref(link);
	struct clear_ask *ask;

	if (!asks)
		return true; /* to a request of this engine's process before */
	TAILQ_FOREACH (ask, &asks->waiting, next)
		if (ask->serial == m->serial && ask->ref == ref)
			break;
	if (!ask)
		return true; /* it is over */
	ask->heard_ns = net_now();
	ask->answered = true;
	ask->pages = m->pages;
	switch (m->result) {
	case PC__CLEAR_RESULT__CLEAR_GOES_ON: break;
	case PC__CLEAR_RESULT__CLEAR_DONE: clear_ask_end(asks, ask, CLEARED_ALL); break;
	case PC__CLEAR_RESULT__CLEAR_VOLATILE: clear_ask_end(asks, ask, CLEARED_VOLATILE); break;
	default: clear_ask_end(asks, ask, CLEARED_BUSY);
	}
	return true;
}

void clear_asks_close(struct control *control)
{
	struct clear_asks *asks = control->clear_asks;
	struct clear_ask *ask;

	if (!asks)
		return;
	while ((ask = TAILQ_FIRST(&asks->waiting))) {
		TAILQ_REMOVE(&asks->waiting, ask, next);
		free(ask);
	}
	net_timer_free(asks->tick);
	free(asks);
	control->clear_asks = NULL;
}
