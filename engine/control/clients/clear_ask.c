/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clears of the cluster: raises the epoch of the group, and asks each member of the map to do so. A
 * client gets its answer when all of them have it; members that come meanwhile are asked, too, and
 * one that knows a higher epoch has it from another clear, of which it may have stored pages
 * already: then the epoch is raised above that one, and all are asked anew. Clear is sent again
 * every CLEAR_REPEAT_NS. The control plane's thread only.
 */
#include "engine/control/clients/ctl_inner.h"

#include <stdlib.h>
#include <sys/queue.h>

#include "config/log.h"
#include "engine/abi/message.pb-c.h"
#include "engine/abi/op.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"

#define CLEAR_TICK_NS 100000000ull
#define CLEAR_REPEAT_NS 1000000000ull
#define CLEAR_NAMED 4u /* members that a line of the log names */

/* One request of a client. */
struct clear_ask {
	TAILQ_ENTRY(clear_ask) next;
	uint32_t group;
	uint32_t later; /* number of ctl_later() */
	uint64_t serial, epoch;
	uint64_t deadline_ns;
	uint64_t sent_ns;            /* last time; 0: not with this epoch */
	uint32_t has_ref[NODES_MAX]; /* by peer number: the member that has the epoch */
};

struct clear_asks {
	struct control *control;
	TAILQ_HEAD(, clear_ask) waiting;
	unsigned count;
	uint64_t serial;
	struct net_timer *tick;
};

static void clear_ask_end(
	struct clear_asks *asks, struct clear_ask *ask, uint32_t has, uint32_t lacks)
{
	const struct ctl_done done = {
		.status = lacks ? OP_PEER_DOWN : OP_HIT, .place = has, .generation = lacks};

	if (!lacks)
		log_info("clear: all %u member(s) of the cluster have taken it", has);
	ctl_later_answer(asks->control->ctl, ask->later, &done);
	TAILQ_REMOVE(&asks->waiting, ask, next);
	asks->count--;
	free(ask);
}

static void clear_send(struct control *control, const struct clear_ask *ask, uint32_t ref)
{
	struct rpc_link *link = member_link(control, ref);
	Pc__Clear body = PC__CLEAR__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_CLEAR, &body);

	body.serial = ask->serial;
	body.group = ask->group;
	body.epoch = ask->epoch;
	if (link)
		(void)rpc_send(link, &message);
}

static void clear_lacks_log(const struct member *member, unsigned number)
{
	char label[MEMBER_LABEL_BYTES];

	if (number >= CLEAR_NAMED)
		return;
	member_label(&member->record, label);
	log_warn(
		"clear: %s has not taken it in time; it does when it can be reached, before it serves clients after a restart",
		label);
}

/* Asks the members that lack the epoch, if they are to be asked; ends the request if it is over. */
static void clear_ask_look(struct clear_asks *asks, struct clear_ask *ask)
{
	const struct member_table *table = members_table(asks->control);
	uint64_t now_ns = net_now();
	bool over = now_ns >= ask->deadline_ns;
	bool due = !ask->sent_ns || now_ns - ask->sent_ns >= CLEAR_REPEAT_NS;
	uint32_t has = 0, lacks = 0;

	for (unsigned peer = 0; peer < table->peers_used; peer++) {
		const struct member *member = member_table_peer(table, peer);

		if (!member)
			continue;
		if (member->record.self || ask->has_ref[peer] == member->record.ref) {
			has++;
			continue;
		}
		if (over)
			clear_lacks_log(member, lacks);
		else if (due)
			clear_send(asks->control, ask, member->record.ref);
		lacks++;
	}
	if (due)
		ask->sent_ns = now_ns;
	if (over || (!lacks && !epochs_storing(asks->control)))
		clear_ask_end(asks, ask, has, lacks);
}

static void clear_asks_tick(void *context)
{
	struct clear_asks *asks = context;
	struct clear_ask *ask, *next;

	for (ask = TAILQ_FIRST(&asks->waiting); ask; ask = next) {
		next = TAILQ_NEXT(ask, next);
		clear_ask_look(asks, ask);
	}
	if (asks->count)
		(void)net_timer_set(asks->tick, CLEAR_TICK_NS / 1000);
}

/* NULL: no memory. */
static struct clear_asks *clear_asks_open(struct control *control)
{
	struct clear_asks *asks = control->clear_asks;

	if (asks)
		return asks;
	asks = calloc(1, sizeof(*asks));
	if (!asks)
		return NULL;
	asks->control = control;
	TAILQ_INIT(&asks->waiting);
	asks->tick = net_timer_new(control->base, false, clear_asks_tick, asks);
	if (!asks->tick) {
		free(asks);
		return NULL;
	}
	return control->clear_asks = asks;
}

static bool clear_raise(struct control *control, struct clear_ask *ask)
{
	memset(ask->has_ref, 0, sizeof(ask->has_ref));
	ask->sent_ns = 0;
	ask->epoch = epoch_raise(control, &ask->group);
	return ask->epoch != 0;
}

bool clear_ask(struct control *control, struct ctl_channel *c, const struct ctl_op *op,
	uint64_t deadline_ns)
{
	struct clear_asks *asks = clear_asks_open(control);
	struct clear_ask *ask = NULL;

	if (asks && asks->count < CLEAR_ASKS_MAX)
		ask = calloc(1, sizeof(*ask));
	if (!ask)
		return false;
	ask->group = op->count & CLEAR_ALL ? EPOCH_ALL : epoch_group(&op->key);
	ask->later = clear_raise(control, ask) ? ctl_later(control->ctl, c, op, 1) : CTL_NO_ANSWER;
	if (ask->later == CTL_NO_ANSWER) {
		free(ask);
		return false;
	}
	ask->serial = ++asks->serial;
	ask->deadline_ns = deadline_ns;
	TAILQ_INSERT_TAIL(&asks->waiting, ask, next);
	asks->count++;
	clear_asks_tick(asks);
	return true;
}

bool clear_serve_member(struct control *control, struct rpc_link *link, const Pc__Clear *m)
{
	Pc__Cleared body = PC__CLEARED__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_CLEARED, &body);

	body.serial = m->serial;
	body.epoch = epoch_raise_to(control, m->group, m->epoch);
	(void)rpc_send(link, &message); /* a Clear that is not answered is sent again */
	return true;
}

bool clear_serve_cleared(struct control *control, struct rpc_link *link, const Pc__Cleared *m)
{
	struct clear_asks *asks = control->clear_asks;
	struct clear_ask *ask = NULL;

	if (asks)
		TAILQ_FOREACH (ask, &asks->waiting, next)
			if (ask->serial == m->serial)
				break;
	if (!ask || m->epoch < ask->epoch)
		return true; /* it is over, or was raised meanwhile */
	if (m->epoch > ask->epoch) {
		(void)epoch_raise_to(control, ask->group, m->epoch);
		(void)clear_raise(control, ask);
	} else {
		ask->has_ref[link->member->record.peer] = member_link_ref(link);
	}
	clear_asks_tick(asks);
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
