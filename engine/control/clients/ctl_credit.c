/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credits: page slots handed to clients in advance. Owns the table of each channel's credits and
 * the requests that wait for room. Runs on the control plane's thread only.
 *
 * A request that finds no free slot causes eviction and waits until limbo has passed, or until its
 * deadline. Requests of one page size are served in order; requests of another size do not wait
 * behind them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/clients/clients.h"
#include "engine/control/clients/ctl_inner.h"
#include "engine/control/pages/pages.h"

/* ---- table of credits ------------------------------------------------------------------------ */

/* At most what the slot of a page has: sizes between powers of two have classes of their own. */
static uint64_t slot_bytes(uint32_t length)
{
	return ((uint64_t)length + PAGE_UNIT - 1) / PAGE_UNIT * PAGE_UNIT;
}

#define CREDITS_ROOM_MIN 64u
static_assert(CREDITS_ROOM_MIN * 2 <= CREDITS_MAX * 2, "the table can grow");

static uint32_t credit_home(const struct credits *t, uint32_t place)
{
	return (uint32_t)map_mix(place) & (t->room - 1);
}

void credits_add(struct credits *t, const struct credit *credit)
{
	uint32_t i = credit_home(t, credit->place);

	while (t->slot[i].length)
		i = (i + 1) & (t->room - 1);
	t->slot[i] = *credit;
	t->count++;
	t->bytes[place_rail(credit->place)] += slot_bytes(credit->length);
}

/* Keeps the hash table at most half full. */
int credits_reserve(struct credits *t, uint32_t more)
{
	struct credits bigger = {.room = t->room ? t->room : CREDITS_ROOM_MIN};

	while ((t->count + more) * 2 > bigger.room)
		bigger.room *= 2;
	if (bigger.room == t->room)
		return 0;
	bigger.slot = calloc(bigger.room, sizeof(*bigger.slot));
	if (!bigger.slot)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->room; i++)
		if (t->slot[i].length)
			credits_add(&bigger, &t->slot[i]);
	free(t->slot);
	*t = bigger;
	return 0;
}

const struct credit *credits_find(const struct credits *t, uint32_t place, uint32_t generation)
{
	if (t->room == 0)
		return NULL;
	for (uint32_t i = credit_home(t, place); t->slot[i].length; i = (i + 1) & (t->room - 1))
		if (t->slot[i].place == place)
			return t->slot[i].generation == generation ? &t->slot[i] : NULL;
	return NULL;
}

/*
 * Closes the gap of the removed entry: entries that were stored past it because of a collision move
 * back (Knuth 6.4, algorithm R).
 */
bool credits_take(struct credits *t, uint32_t place, uint32_t generation, struct credit *ret)
{
	const struct credit *found = credits_find(t, place, generation);
	uint32_t gap, i;

	if (!found)
		return false;
	*ret = *found;
	gap = (uint32_t)(found - t->slot);
	for (i = (gap + 1) & (t->room - 1); t->slot[i].length; i = (i + 1) & (t->room - 1)) {
		uint32_t home = credit_home(t, t->slot[i].place);

		if (((i - home) & (t->room - 1)) >= ((i - gap) & (t->room - 1))) {
			t->slot[gap] = t->slot[i];
			gap = i;
		}
	}
	t->slot[gap] = (struct credit){0};
	t->count--;
	t->bytes[place_rail(place)] -= slot_bytes(ret->length);
	return true;
}

void credits_free(struct credits *t)
{
	free(t->slot);
	*t = (struct credits){0};
}

/* ---- granting slots -------------------------------------------------------------------------- */

/*
 * Adds the slot to the run of slots that `run` tells of. False: it does not follow the others at
 * their distance and with their generation, or the run is full.
 */
static bool credit_run_add(struct ctl_done *run, const struct credit *credit)
{
	uint32_t distance = credit->place - run->place;

	if (run->count == 1 && distance <= UINT16_MAX)
		run->stride = (uint16_t)distance;
	if (credit->generation != run->generation || distance != run->count * run->stride)
		return false;
	run->count++;
	return true;
}

/* Tells the client of the slots of a run; there may be none. */
static void credit_run_grant(
	struct ctl *ctl, const struct ctl_request *r, const struct ctl_done *run)
{
	unsigned rail = place_rail(run->place);

	if (!run->count)
		return;
	evict_hold(ctl->evict, rail, run->length, run->count);
	if (!r->own)
		evict_class_of(ctl->evict, rail, run->length)->taken += run->count;
	ctl->evict->credits += run->count;
	ctl->control->counter[COUNTER_credits_granted] += run->count;
	ctl_answer_write(ctl, r->channel, run, run->count);
}

/*
 * Refuses the slots of a request that were not granted: one answer stands for all `left` of them.
 * Six parameters: an op that is refused at once has no struct ctl_request.
 */
static void credit_refuse(struct ctl *ctl, struct ctl_channel *c, uint64_t cookie, uint32_t length,
	uint32_t left, enum op_status status)
{
	const struct ctl_done done = {.cookie = cookie,
		.kind = CTL_CREDIT,
		.status = status,
		.count = (uint16_t)left,
		.length = length};

	ctl->control->counter[COUNTER_credits_refused]++;
	ctl_answer_write(ctl, c, &done, left);
}

/*
 * Grants up to r->left slots. Returns 0: all are granted; -ENOSPC: r->left of them are still
 * missing; -EMSGSIZE: the pool holds no pages of that size; -ENOMEM.
 */
static int credit_grant(struct ctl *ctl, unsigned rail, struct ctl_request *r)
{
	struct pool *pool = ctl->control->rail[rail].pool;
	int rc = credits_reserve(&r->channel->credits, r->left);
	struct ctl_done run = {.count = 0};

	while (rc == 0 && r->left) {
		struct credit credit = {.length = r->length};

		rc = pool_take(pool, r->length, &credit.place, &credit.generation);
		if (rc < 0)
			break;
		pool_own(pool, credit.place, r->channel->owner);
		credits_add(&r->channel->credits, &credit);
		r->left--;
		if (run.count && credit_run_add(&run, &credit))
			continue;
		credit_run_grant(ctl, r, &run);
		run = (struct ctl_done){.cookie = r->cookie,
			.kind = CTL_CREDIT,
			.status = OP_HIT,
			.count = 1,
			.place = credit.place,
			.generation = credit.generation,
			.length = r->length};
	}
	credit_run_grant(ctl, r, &run);
	return rc;
}

static void credit_request_queue(struct ctl *ctl, unsigned rail, const struct ctl_request *r)
{
	struct ctl_rail *pr = &ctl->rail[rail];
	struct ctl_request *waits = malloc(sizeof(*waits));

	if (!waits) {
		credit_refuse(ctl, r->channel, r->cookie, r->length, r->left, OP_NO_SPACE);
		return;
	}
	*waits = *r;
	waits->next = NULL;
	waits->class = evict_class_of(ctl->evict, rail, r->length);
	*pr->last = waits;
	pr->last = &waits->next;
	ctl->evict->rail[rail].requests++;
	r->channel->asked += r->left;
	r->channel->asked_bytes[rail] += r->left * slot_bytes(r->length);
	evict_wait(waits->class, (int)r->left, r->own);
	waits->class->waited |= !r->own;
	waits->class->slowed |= !r->own;
}

/*
 * Whether the slots that the channels of a user hold and wait for would be more than half of the
 * pool, while another user has a channel, too, or may come.
 */
static bool credit_above_quota(
	const struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op)
{
	uint64_t bytes = op->count * slot_bytes(op->length);
	bool others = c->others;

	for (unsigned i = 0; i < ctl->channels_end; i++) {
		const struct ctl_channel *each = ctl->channel[i];

		if (each && each->user == c->user)
			bytes += each->credits.bytes[op->rail] + each->asked_bytes[op->rail];
		others |= each && each->user != c->user;
	}
	return others && bytes > pool_memory(ctl->control->rail[op->rail].pool)->bytes / 2;
}

/* Bytes of the slots that channels of the group hold and wait for. */
static uint64_t credit_group_bytes(const struct ctl *ctl, uint32_t group)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < ctl->channels_end; i++) {
		const struct ctl_channel *each = ctl->channel[i];

		for (unsigned rail = 0; each && each->group == group && rail < ctl->control->rails;
			rail++)
			bytes += each->credits.bytes[rail] + each->asked_bytes[rail];
	}
	return bytes;
}

void ctl_credit(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op, uint64_t now_ns)
{
	struct ctl_request r = {.channel = c,
		.cookie = op->cookie,
		.deadline_ns = op->deadline_ns,
		.length = op->length,
		.left = op->count};
	struct index_group *group;
	uint64_t more;
	int rc = -ENOSPC;

	if (op->rail >= ctl->control->rails || op->count == 0 || op->count > CREDITS_MAX) {
		ctl->control->counter[COUNTER_ops_invalid]++;
		/*
		 * The last argument must be the number that ctl_op_answers() returned for this op:
		 * ctl_channel_turn() has added it to `owed`.
		 */
		credit_refuse(ctl, c, op->cookie, op->length,
			op->count >= 1 && op->count <= CREDITS_MAX ? op->count : 1, OP_INVALID);
		return;
	}
	if (c->no_credits || c->credits.count + c->asked + op->count > CREDITS_MAX) {
		credit_refuse(ctl, c, op->cookie, op->length, r.left, OP_NO_SPACE);
		return;
	}
	if (credit_above_quota(ctl, c, op)) {
		client_deny(ctl->control, c->id,
			"its user would hold more than half of a pool in slots for pages that it has not stored yet, and other users store, too, or may; store in smaller batches");
		credit_refuse(ctl, c, op->cookie, op->length, r.left, OP_NO_SPACE);
		return;
	}
	c->group = epoch_group(&op->key);
	more = credit_group_bytes(ctl, c->group) + op->count * slot_bytes(op->length);
	group = index_above(ctl->control->index, &op->key, more);
	r.own = group;
	/* If requests wait for this page size already, this one waits behind them. */
	if (evict_class_of(ctl->evict, op->rail, op->length)->waiting == 0)
		rc = credit_grant(ctl, op->rail, &r);
	if (rc == -EMSGSIZE)
		credit_refuse(ctl, c, op->cookie, op->length, r.left, OP_INVALID);
	else if (rc == -ENOSPC)
		credit_request_queue(ctl, op->rail, &r);
	else if (rc < 0)
		credit_refuse(ctl, c, op->cookie, op->length, r.left, OP_NO_SPACE);
	if (rc == 0 || rc == -ENOSPC)
		evict_refill_by(ctl->evict, op->rail, op->length, group, more, now_ns);
}

/* ---- waiting requests ------------------------------------------------------------------------ */

/*
 * Unlinks and frees request *link, which was counted with `waited` slots in `asked` and `waiting`.
 */
static void credit_request_remove(
	struct ctl *ctl, unsigned rail, struct ctl_request **link, uint32_t waited)
{
	struct ctl_request *r = *link;

	r->channel->asked -= waited;
	r->channel->asked_bytes[rail] -= waited * slot_bytes(r->length);
	evict_wait(r->class, -(int)waited, r->own);
	*link = r->next;
	ctl->evict->rail[rail].requests--;
	if (ctl->rail[rail].last == &r->next)
		ctl->rail[rail].last = link;
	free(r);
}

void ctl_pass(struct ctl *ctl, unsigned rail, uint64_t now_ns)
{
	struct ctl_rail *pr = &ctl->rail[rail];
	struct evict_rail *room = &ctl->evict->rail[rail];
	struct ctl_request **link = &pr->first;
	uint32_t pass = ++pr->pass;

	room->retry = false;
	while (*link) {
		struct ctl_request *r = *link;
		struct evict_class *class = r->class;
		uint32_t before = r->left;
		int rc = -ENOSPC;

		if (class->pass != pass)
			rc = credit_grant(ctl, rail, r);
		if (rc == 0 || rc != -ENOSPC || r->deadline_ns <= now_ns) {
			if (rc < 0)
				credit_refuse(ctl, r->channel, r->cookie, r->length, r->left,
					OP_NO_SPACE);
			else if (r->deadline_ns < now_ns)
				ctl->control->counter[COUNTER_credits_late]++;
			credit_request_remove(ctl, rail, link, before);
			continue;
		}
		class->pass = pass;
		evict_wait(class, (int)(r->left - before), r->own);
		r->channel->asked -= before - r->left;
		r->channel->asked_bytes[rail] -= (before - r->left) * slot_bytes(r->length);
		link = &r->next;
	}
	for (unsigned i = 0; i < CLASSES_MAX; i++)
		if (room->class[i].waiting)
			evict_refill(ctl->evict, rail, room->class[i].units * PAGE_UNIT, now_ns);
}

void ctl_requests_drop(struct ctl *ctl, struct ctl_channel *c)
{
	for (unsigned rail = 0; rail < ctl->control->rails; rail++) {
		struct ctl_request **link = &ctl->rail[rail].first;

		while (*link) {
			if ((*link)->channel == c)
				credit_request_remove(ctl, rail, link, (*link)->left);
			else
				link = &(*link)->next;
		}
	}
}
