/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes ops from ctl rings and answers them. Nothing in an op is trusted: each op is copied once.
 * Runs on the control plane's thread only.
 */
#include "engine/control/clients/clear.h"
#include "engine/control/clients/ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/clients/client.h"
#include "engine/control/directory/directory.h"
#include "engine/control/pages/promote.h"
#include "engine/control/pages/scrub.h"
#include "engine/control/pages/tier.h"
#include "engine/rail/inbox.h"
#include "numa/clock.h"

/* ---- answers --------------------------------------------------------------------------------- */

static void answer(
	struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op, enum op_status status)
{
	ctl_answer(ctl, c, op, &(struct ctl_done){.status = status});
}

/* The directory_done callback of a remove. */
static void on_removed(void *context, uint64_t cookie, enum op_status status)
{
	ctl_later_answer(context, (uint32_t)cookie, &(struct ctl_done){.status = status});
}

/* ---- ops of clients -------------------------------------------------------------------------- */

void ctl_give_back(struct ctl *ctl, const struct credit *credit)
{
	unsigned rail = place_rail(credit->place);

	ctl->credits--;
	ctl_hold(ctl, rail, credit->length, -1);
	if (pool_return(ctl->control->rail[rail].pool, credit->place, credit->generation) < 0)
		log_error(
			"publish: cannot return place %08x to the pool of rail %u: it is no credit there",
			credit->place, rail);
	ctl->rail[rail].retry = true;
}

void ctl_credit_return(struct control *control, const struct credit *credit)
{
	ctl_give_back(control->ctl, credit);
}

static void serve_return(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op)
{
	struct credit credit;

	if (credits_take(&c->credits, op->place, op->generation, &credit))
		ctl_give_back(ctl, &credit);
	else
		ctl->control->counter[COUNTER_ops_invalid]++;
}

/*
 * Serves a client's report of a stale entry. A report about a page of this host that is as the
 * index says is a mistake or a lie, and is ignored.
 */
static void serve_stale(struct ctl *ctl, const struct ctl_op *op)
{
	const struct index_entry *e;

	if (op->ref == ctl->control->ref) {
		e = index_find(ctl->control->index, &op->key);
		if (e && e->place == op->place && e->generation == op->generation)
			return;
	}
	directory_stale(ctl->control, &op->key,
		&(struct location){
			.ref = op->ref, .place = op->place, .generation = op->generation});
}

static void serve_remove(
	struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op, uint64_t now_ns)
{
	uint32_t later = page_key_none(&op->key) ? CTL_NO_ANSWER : ctl_later(ctl, c, op, 1);

	if (later == CTL_NO_ANSWER) {
		answer(ctl, c, op, page_key_none(&op->key) ? OP_INVALID : OP_NO_SPACE);
		return;
	}
	directory_forget(ctl->control, &op->key,
		&(struct waiter){.deadline_ns = ctl_deadline_ns(op, now_ns),
			.done = on_removed,
			.context = ctl,
			.cookie = later});
}

/* Returns the number of answers that the op may produce. */
static uint32_t answers_of(const struct ctl_op *op)
{
	switch (op->kind) {
	case CTL_CREDIT: return op->count >= 1 && op->count <= CREDITS_MAX ? op->count : 1;
	case CTL_PUBLISH: return op->count >= 1 && op->count <= CTL_PAGES_MAX ? op->count : 1;
	case CTL_RETURN:
	case CTL_TOUCH:
	case CTL_TOUCHES:
	case CTL_STALE:
	case CTL_CORRUPT:
	case CTL_WANT: return 0;
	default: return 1;
	}
}

static void serve_touches(struct ctl *ctl, const struct ctl_op *op)
{
	struct ctl_touches touches;

	memcpy(&touches, op, sizeof(touches));
	if (touches.count > CTL_TOUCHES_MAX)
		ctl->control->counter[COUNTER_ops_invalid]++;
	for (unsigned i = 0; touches.count <= CTL_TOUCHES_MAX && i < touches.count; i++)
		directory_touch(ctl->control, touches.page[i].ref, touches.page[i].place);
}

static void serve(struct ctl *ctl, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns)
{
	switch (op->kind) {
	case CTL_CREDIT:
		ctl->stored_ns = now_ns;
		op->deadline_ns = ctl_deadline_ns(op, now_ns);
		ctl_credit(ctl, c, op, now_ns);
		break;
	case CTL_RETURN: serve_return(ctl, c, op); break;
	case CTL_TOUCH:
		if (op->ref == ctl->control->ref) {
			ctl_touched(ctl->control, op->place);
			tier_touched(ctl->control, op->place, op->generation);
		} else {
			directory_touch(ctl->control, op->ref, op->place);
		}
		break;
	case CTL_TOUCHES: serve_touches(ctl, op); break;
	case CTL_STALE: serve_stale(ctl, op); break;
	case CTL_CORRUPT:
		scrub_read(ctl->control, op->ref,
			&(struct page_report){op->key, op->place, op->generation});
		break;
	case CTL_REMOVE: serve_remove(ctl, c, op, now_ns); break;
	case CTL_CLEAR: clear_serve(ctl->control, c, op); break;
	case CTL_PROMOTE:
	case CTL_WANT: promote_serve(ctl->control, c, op, now_ns); break;
	default: ctl->control->counter[COUNTER_ops_invalid]++; answer(ctl, c, op, OP_INVALID);
	}
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Number of ring entries of an op that was copied and not validated. */
static uint32_t lines_of(const struct ctl_op *op)
{
	return op->kind == CTL_PUBLISH && op->count <= CTL_PAGES_MAX ? ctl_lines(op->count) : 1;
}

/*
 * Takes ops from the ctl ring of one channel. Returns how many entries it took, or RING_BROKEN.
 */
static int channel_turn(struct ctl *ctl, struct ctl_channel *c, uint64_t now_ns)
{
	int32_t ready = ring_ready(&c->ops);
	unsigned n = 0;

	while (ready > 0 && n < (unsigned)ready && n < CTL_BURST) {
		struct ctl_op op;
		uint32_t answers, lines;
		int32_t room;

		memcpy(&op, ring_slot_old(&c->ops, n), sizeof(op));
		lines = lines_of(&op);
		/* all entries of an op are published together, but may be seen in part */
		if (n + lines > (unsigned)ready) {
			ready = ring_look(&c->ops, CTL_RING_SLOTS);
			if (n + lines > (unsigned)ready)
				return RING_BROKEN;
		}
		answers = answers_of(&op);
		room = ring_room(&c->done, c->owed + answers);
		if (room < 0)
			return RING_BROKEN;
		if ((uint32_t)room < c->owed + answers) {
			ctl->stalled = true;
			break;
		}
		c->owed += answers;
		if (op.kind == CTL_PUBLISH)
			ctl_publish(ctl, c, n, &op, now_ns);
		else
			serve(ctl, c, &op, now_ns);
		n += lines;
	}
	if (n)
		ring_release(&c->ops, n);
	return (int)n;
}

unsigned ctl_turn(struct control *control)
{
	struct ctl *ctl = control->ctl;
	uint64_t now_ns = clock_now_ns();
	unsigned work = 0;

	ctl->stalled = false;
	for (unsigned i = 0; i < ctl->channels_end; i++) {
		int n = ctl->channel[i] ? channel_turn(ctl, ctl->channel[i], now_ns) : 0;

		if (n < 0) {
			control->counter[COUNTER_rings_broken]++;
			client_channel_broken(control, i);
			n = 1;
		}
		work += (unsigned)n;
	}
	for (unsigned i = 0; i < control->rails; i++) {
		if (ctl->rail[i].retry) {
			ctl_pass(ctl, i, now_ns);
			work++;
		}
		/* one fence for all slots that came back in this turn, and between turns */
		pool_rest(control->rail[i].pool);
	}
	ctl_timer(ctl, now_ns);
	return work;
}

uint64_t ctl_stored_ns(const struct control *control)
{
	return control->ctl->stored_ns;
}

void ctl_flush(struct control *control)
{
	struct ctl *ctl = control->ctl;

	/*
	 * The answers are in the rings before the flags are read. The fence pairs with that of the
	 * client, which raises client_waits and then looks at its ring once more.
	 */
	if (ctl->dirties)
		shm_fence_sleep();
	for (unsigned i = 0; i < ctl->dirties; i++) {
		struct ctl_channel *c = ctl->channel[ctl->dirty[i]];

		if (!c || !c->dirty)
			continue;
		c->dirty = false;
		if (shm_load(&c->header->client_waits) && shm_exchange(&c->header->client_waits, 0))
			client_wake(c->wake);
	}
	ctl->dirties = 0;
}

/* ---- calls from other hosts; open and close -------------------------------------------------- */

void ctl_touched(struct control *control, uint32_t place)
{
	if (place_rail(place) < control->rails)
		pool_touch(control->rail[place_rail(place)].pool, place);
}

bool ctl_page_at(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	return place_rail(place) < control->rails &&
	       pool_key(control->rail[place_rail(place)].pool, place, generation, ret_key);
}

enum forget_state ctl_forget(struct control *control, const struct page_key *key,
	const struct forget_wait *wait, bool *ret_had)
{
	const struct index_entry *e = index_find(control->index, key);
	bool here = e;
	enum forget_state state;

	if (e)
		ctl_retire(control->ctl, key, e->place, e->generation);
	state = tier_forget(control, key, wait, ret_had);
	*ret_had |= here;
	return state;
}

void ctl_channel_open(struct control *control, struct ctl_channel *channel)
{
	struct ctl *ctl = control->ctl;

	channel->generation = ++ctl->generation;
	ctl->channel[channel->id] = channel;
	if (channel->id >= ctl->channels_end)
		ctl->channels_end = channel->id + 1;
}

void ctl_channel_close(struct control *control, struct ctl_channel *channel)
{
	struct ctl *ctl = control->ctl;
	uint64_t copying;

	if (ctl->channel[channel->id] != channel)
		return;
	ctl_requests_drop(ctl, channel);
	shm_store(&channel->header->stopped, 1);
	shm_fence_store_load(); /* pairs with the fence of slot_enter() in client/set.c */
	copying = shm_load_acquire64(&channel->header->copying);
	for (uint32_t i = 0; i < channel->credits.room; i++) {
		const struct credit *credit = &channel->credits.slot[i];

		if (!credit->length)
			continue;
		if (slot_name(credit->place, credit->generation) == copying)
			channel->kept = *credit;
		else
			ctl_give_back(ctl, credit);
	}
	credits_free(&channel->credits);
	ctl->channel[channel->id] = NULL;
	while (ctl->channels_end && !ctl->channel[ctl->channels_end - 1])
		ctl->channels_end--;
	for (unsigned i = 0; i < ctl->dirties; i++)
		if (ctl->dirty[i] == channel->id)
			ctl->dirty[i--] = ctl->dirty[--ctl->dirties];
}

bool ctl_channel_release(struct control *control, struct ctl_channel *channel, bool gone)
{
	struct credit *kept = &channel->kept;

	if (!kept->length)
		return true;
	/*
	 * This acquire load pairs with slot_leave() in client/set.c: the client has finished its
	 * stores into the slot.
	 */
	if (!gone && shm_load_acquire64(&channel->header->copying) ==
			     slot_name(kept->place, kept->generation))
		return false;
	ctl_give_back(control->ctl, kept);
	kept->length = 0;
	return true;
}

void ctl_counts(const struct control *control, struct ctl_counts *ret)
{
	const struct ctl *ctl = control->ctl;

	*ret = (struct ctl_counts){.credits = ctl->credits, .answers = ctl->answers_used};
	for (unsigned i = 0; i < control->rails; i++)
		for (const struct ctl_request *r = ctl->rail[i].first; r; r = r->next)
			ret->waiting++;
}
