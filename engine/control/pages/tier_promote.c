/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promote: a page that is on disk is read into a slot of a pool, and then answered and published
 * like a page that a client has set. The control plane's thread only.
 *
 *   CTL_PROMOTE --> WANTED: waits for a slot --> READING --> published, pinned, answered
 *               |-> CAPPED: too many bytes are pinned ^
 *               '-> WRITING: its spill is in flight ---'
 *
 * engine/disk has compared the page's CRC, and its sequence number after the read, before it
 * returns DISK_OK; a key that was removed since then is found here (tier_promote_cancel()). Only
 * then is the page published. Requests for one key share one read.
 */
#include <stdlib.h>

#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory.h"
#include "engine/control/pages/tier.h"
#include "engine/control/pages/warm.h"
#include "numa/clock.h"

/* How long the owners of a promoted page's key are told of it. */
#define PROMOTE_PUBLISH_NS 5000000000ull

/* ---- requests -------------------------------------------------------------------------------- */

static void answer(struct tier *t, struct tier_waiter *waiter, const struct ctl_done *done)
{
	if (waiter->remote)
		tier_reply(t, waiter, done);
	else
		ctl_later_answer(t->control->ctl, waiter->answer, done);
	free(waiter);
}

static void answer_all(struct tier *t, struct tier_promote *promote, const struct ctl_done *done)
{
	struct tier_waiter *waiter;

	while ((waiter = STAILQ_FIRST(&promote->waiters))) {
		STAILQ_REMOVE_HEAD(&promote->waiters, next);
		if (done->status == OP_HIT)
			t->control->counter[COUNTER_disk_hits]++;
		else
			t->control->counter[COUNTER_disk_misses]++;
		answer(t, waiter, done);
	}
}

/* ---- states ---------------------------------------------------------------------------------- */

static struct tier_promotes *list_of(struct tier *t, enum promote_state state)
{
	switch (state) {
	case PROMOTE_WRITING: return &t->writing;
	case PROMOTE_CAPPED: return &t->capped;
	case PROMOTE_WANTED: return &t->wanted;
	case PROMOTE_READING:
	default: return &t->reading;
	}
}

static struct tier_promote *promote_find(struct tier *t, const struct page_key *key)
{
	struct tier_promote *promote;

	LIST_FOREACH (promote, &t->promote_of[tier_chain(key->word[1])], same)
		if (!promote->removed && page_key_equal(&promote->request.key, key))
			return promote;
	return NULL;
}

static void leave(struct tier *t, struct tier_promote *promote)
{
	TAILQ_REMOVE(list_of(t, promote->state), promote, next);
	if (promote->state == PROMOTE_WANTED)
		promote->class->waiting--;
}

static void enter(struct tier *t, struct tier_promote *promote, enum promote_state state)
{
	promote->state = state;
	TAILQ_INSERT_TAIL(list_of(t, state), promote, next);
	if (state != PROMOTE_WANTED)
		return;
	promote->class = ctl_class_of(t->control->ctl, promote->rail, promote->request.length);
	promote->class->waiting++;
}

/* Ends a promote that is in no list and has no slot. */
static void promote_free(struct tier *t, struct tier_promote *promote, enum op_status status)
{
	answer_all(t, promote, &(struct ctl_done){.status = status});
	LIST_REMOVE(promote, same);
	free(promote);
}

static bool cap_has(const struct tier *t, uint32_t bytes)
{
	return t->pinned_bytes == 0 || t->pinned_bytes + bytes <= t->pinned_bytes_max;
}

/* Ends a promote in state WANTED that gets no slot. */
static void give_up(struct tier *t, struct tier_promote *promote, enum op_status status)
{
	leave(t, promote);
	t->pinned_bytes -= promote->bytes;
	promote_free(t, promote, status);
}

/* Wants a slot for a promote that is in no list, if the cap allows. */
static void want(struct tier *t, struct tier_promote *promote)
{
	struct control *control = t->control;

	if (!cap_has(t, promote->bytes)) {
		enter(t, promote, PROMOTE_CAPPED);
		return;
	}
	t->pinned_bytes += promote->bytes;
	promote->rail = t->turn++ % control->rails;
	enter(t, promote, PROMOTE_WANTED);
	t->promote_due = true;
}

/* ---- slots and reads ------------------------------------------------------------------------- */

static void read_start(
	struct tier *t, struct tier_promote *promote, uint32_t place, uint32_t generation)
{
	struct ctl *p = t->control->ctl;

	leave(t, promote);
	promote->place = place;
	promote->generation = generation;
	ctl_hold(p, promote->rail, promote->request.length, 1);
	ctl_class_of(p, promote->rail, promote->request.length)->taken++;
	enter(t, promote, PROMOTE_READING);
	promote->request.data = tier_memory(t->control, place);
	disk_submit(t->disk, &promote->request);
}

/* Takes a slot for the promote. False: none is free now. */
static bool slot_take(struct tier *t, struct tier_promote *promote, uint64_t now_ns)
{
	uint32_t length = promote->request.length, place, generation;
	unsigned rail = promote->rail;
	int rc = pool_take(t->control->rail[rail].pool, length, &place, &generation);

	if (rc == 0) {
		pool_own(t->control->rail[rail].pool, place, warm_owner_disk(t->control));
		read_start(t, promote, place, generation);
	} else if (rc != -ENOSPC)
		give_up(t, promote, OP_NO_SPACE);
	ctl_refill(t->control->ctl, rail, length, now_ns);
	return rc != -ENOSPC;
}

unsigned tier_promote(struct tier *t, uint64_t now_ns)
{
	struct tier_promote *promote, *next;
	uint32_t full_units = 0;
	unsigned full_rail = 0, work = 0;

	t->promote_due = false;
	while ((promote = TAILQ_FIRST(&t->capped)) && cap_has(t, promote->bytes)) {
		leave(t, promote);
		want(t, promote);
	}
	for (promote = TAILQ_FIRST(&t->wanted); promote; promote = next) {
		uint32_t units = promote->bytes / PAGE_UNIT;
		unsigned rail = promote->rail;

		next = TAILQ_NEXT(promote, next);
		if (units == full_units && rail == full_rail)
			continue;
		if (slot_take(t, promote, now_ns)) {
			work++;
			continue;
		}
		full_units = units;
		full_rail = rail;
	}
	t->promote_due = false;
	if (!TAILQ_EMPTY(&t->wanted) || !TAILQ_EMPTY(&t->capped))
		tier_tick(t);
	return work;
}

/* Publishes what was read. Returns false if that is not possible: the slot is still a credit. */
static bool promote_publish(struct tier *t, const struct tier_promote *promote)
{
	struct control *control = t->control;
	const struct disk_request *request = &promote->request;
	struct index_entry entry = {.key = request->key,
		.place = promote->place,
		.generation = promote->generation,
		.length = request->length};
	struct pool *pool = control->rail[promote->rail].pool;

	if (request->status != DISK_OK || promote->removed ||
		index_put(control->index, &entry, NULL) < 0)
		return false;
	(void)pool_prove(pool, &(struct pool_proven){.key = request->key,
				       .place = promote->place,
				       .generation = promote->generation,
				       .length = request->length,
				       .crc = request->crc});
	if (pool_publish(pool, promote->place, promote->generation, &request->key,
		    request->length) < 0) {
		index_remove(control->index, &request->key);
		return false;
	}
	pool_clean_set(pool, promote->place, promote->generation, true);
	control->counter[COUNTER_disk_promotes]++;
	return true;
}

static void slot_return(struct tier *t, const struct tier_promote *promote)
{
	struct ctl *p = t->control->ctl;

	ctl_hold(p, promote->rail, promote->request.length, -1);
	(void)pool_return(
		t->control->rail[promote->rail].pool, promote->place, promote->generation);
	t->pinned_bytes -= promote->bytes;
	t->promote_due = true;
	p->rail[promote->rail].retry = true;
}

void tier_promoted(struct tier *t, struct tier_promote *promote)
{
	struct control *control = t->control;
	const struct page_key *key = &promote->request.key;
	struct ctl_done done = {.status = OP_MISS};
	const struct tier_waiter *waiter;
	uint64_t deadline_ns = 0;
	uint32_t readers = 0;

	leave(t, promote);
	STAILQ_FOREACH (waiter, &promote->waiters, next) {
		readers++;
		if (waiter->deadline_ns > deadline_ns)
			deadline_ns = waiter->deadline_ns;
	}
	if (promote_publish(t, promote)) {
		done = (struct ctl_done){.status = OP_HIT,
			.place = promote->place,
			.generation = promote->generation,
			.length = promote->request.length};
		tier_pin(t, promote->place, promote->generation, promote->bytes, readers,
			deadline_ns);
		directory_publish(control, key,
			&(struct location){
				.place = promote->place, .generation = promote->generation},
			NULL);
	} else {
		const struct index_entry *e =
			promote->removed ? NULL : index_find(control->index, key);

		slot_return(t, promote);
		if (promote->request.status == DISK_OK && !promote->removed)
			done.status =
				OP_NO_SPACE; /* it is on disk, but there is no memory for it */
		if (e)                       /* a client has set the page meanwhile */
			done = (struct ctl_done){.status = OP_HIT,
				.place = e->place,
				.generation = e->generation,
				.length = e->length};
	}
	answer_all(t, promote, &done);
	LIST_REMOVE(promote, same);
	free(promote);
}

void tier_written(struct tier *t, const struct page_key *key, bool on_disk)
{
	struct tier_promote *promote = promote_find(t, key);

	if (!promote || promote->state != PROMOTE_WRITING)
		return;
	leave(t, promote);
	if (on_disk && tier_has(t, key, promote->request.length))
		want(t, promote);
	else
		promote_free(t, promote, OP_MISS);
}

void tier_promote_cancel(struct tier *t, const struct page_key *key)
{
	struct tier_promote *promote = promote_find(t, key);

	if (!promote)
		return;
	if (promote->state == PROMOTE_READING) {
		promote->removed = true;
	} else if (promote->state == PROMOTE_WANTED) {
		give_up(t, promote, OP_MISS);
	} else {
		leave(t, promote);
		promote_free(t, promote, OP_MISS);
	}
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Answers the waiters that are due. Returns true if none is left. */
static bool expire(struct tier *t, struct tier_promote *promote, uint64_t now_ns)
{
	STAILQ_HEAD(, tier_waiter) keep = STAILQ_HEAD_INITIALIZER(keep);
	struct tier_waiter *waiter;

	while ((waiter = STAILQ_FIRST(&promote->waiters))) {
		STAILQ_REMOVE_HEAD(&promote->waiters, next);
		if (waiter->deadline_ns > now_ns) {
			STAILQ_INSERT_TAIL(&keep, waiter, next);
			continue;
		}
		t->control->counter[COUNTER_disk_misses]++;
		answer(t, waiter, &(struct ctl_done){.status = OP_TIMEOUT});
	}
	STAILQ_CONCAT(&promote->waiters, &keep);
	return STAILQ_EMPTY(&promote->waiters);
}

void tier_promote_expire(struct tier *t, uint64_t now_ns)
{
	struct tier_promote *promote, *next;

	TAILQ_FOREACH (promote, &t->reading, next)
		(void)expire(t, promote, now_ns);
	TAILQ_FOREACH (promote, &t->writing, next)
		(void)expire(t, promote, now_ns);
	for (promote = TAILQ_FIRST(&t->capped); promote; promote = next) {
		next = TAILQ_NEXT(promote, next);
		if (!expire(t, promote, now_ns))
			continue;
		leave(t, promote);
		t->control->counter[COUNTER_disk_refused]++;
		promote_free(t, promote, OP_MISS);
	}
	for (promote = TAILQ_FIRST(&t->wanted); promote; promote = next) {
		next = TAILQ_NEXT(promote, next);
		if (!expire(t, promote, now_ns) || now_ns < promote->until_ns)
			continue;
		t->control->counter[COUNTER_disk_refused]++;
		give_up(t, promote, OP_MISS);
	}
	t->promote_due = true;
}

void tier_promote_close(struct tier *t)
{
	for (enum promote_state state = PROMOTE_WRITING; state <= PROMOTE_READING; state++) {
		struct tier_promote *promote;

		while ((promote = TAILQ_FIRST(list_of(t, state)))) {
			leave(t, promote);
			promote_free(t, promote, OP_CANCELLED);
		}
	}
}

/* ---- CTL_PROMOTE ----------------------------------------------------------------------------- */

static struct tier_promote *promote_new(struct tier *t, const struct page_key *key, uint32_t length)
{
	struct tier_promote *promote = calloc(1, sizeof(*promote));

	if (!promote)
		return NULL;
	promote->request = (struct disk_request){.op = DISK_READ, .key = *key, .length = length};
	promote->bytes = tier_bytes(length);
	STAILQ_INIT(&promote->waiters);
	LIST_INSERT_HEAD(&t->promote_of[tier_chain(key->word[1])], promote, same);
	return promote;
}

void tier_bring(struct tier *t, const struct page_key *key, const struct tier_found *found,
	struct tier_waiter *waiter)
{
	struct tier_promote *promote = promote_find(t, key);

	if (!promote) {
		if (!waiter && (!found->written || !cap_has(t, tier_bytes(found->length))))
			return; /* a hint is not worth waiting */
		promote = promote_new(t, key, found->length);
		if (promote && !waiter)
			promote->until_ns = clock_now_ns() + TIER_HINT_NS;
		if (promote && found->written)
			want(t, promote);
		else if (promote)
			enter(t, promote, PROMOTE_WRITING);
	}
	if (!waiter)
		return;
	if (promote)
		STAILQ_INSERT_TAIL(&promote->waiters, waiter, next);
	else
		answer(t, waiter, &(struct ctl_done){.status = OP_NO_SPACE});
	tier_tick(t);
}

void tier_look(struct tier *t, const struct page_key *key, struct tier_found *ret)
{
	const struct tier_spill *spill;
	struct disk_page page;

	*ret = (struct tier_found){0};
	if (!t || t->state != TIER_SERVING || t->control->door_shut)
		return;
	ret->written = disk_find(t->disk, key, &page);
	spill = ret->written ? NULL : tier_spilling(t, key);
	ret->writing = spill != NULL;
	ret->length = ret->written ? page.length : spill ? spill->request.length : 0;
}

bool tier_known(struct control *control, const struct page_key *key, uint32_t length,
	const struct tier_found *found, struct ctl_done *ret)
{
	const struct index_entry *e = index_find(control->index, key);
	bool here = found->written || found->writing;

	*ret = (struct ctl_done){.status = OP_MISS};
	if (e) {
		/* published since the client has looked, or the directory lacks its entry */
		pool_touch(control->rail[place_rail(e->place)].pool, e->place);
		*ret = (struct ctl_done){.status = OP_HIT,
			.place = e->place,
			.generation = e->generation,
			.length = e->length};
		return true;
	}
	if (!here)
		control->counter[COUNTER_disk_misses]++;
	else if (!length)
		*ret = (struct ctl_done){.status = OP_HIT, .length = found->length};
	else if (length != found->length)
		ret->status = OP_INVALID; /* as for a page in memory of another length */
	return !here || !length || length != found->length;
}

void tier_hint(struct control *control, const struct page_key *key)
{
	struct tier_found found;

	tier_look(control->tier, key, &found);
	if (found.written && !index_find(control->index, key))
		tier_bring(control->tier, key, &found, NULL);
}

void tier_serve(struct control *control, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns)
{
	struct ctl *p = control->ctl;
	struct tier_waiter *waiter;
	struct tier_found found;
	struct ctl_done done;

	tier_look(control->tier, &op->key, &found);
	/* no page has this length: OP_INVALID if the key is there */
	if (!op->count && !op->length)
		op->length = UINT32_MAX;
	if (tier_known(control, &op->key, op->count ? 0 : op->length, &found, &done)) {
		ctl_answer_now(p, c, op, &done);
		if (op->count && !done.generation)
			tier_hint(control, &op->key);
		return;
	}
	waiter = calloc(1, sizeof(*waiter));
	if (waiter)
		waiter->answer = ctl_later(p, c, op, 1);
	if (!waiter || waiter->answer == CTL_NO_ANSWER) {
		free(waiter);
		ctl_answer_now(p, c, op, &done);
		return;
	}
	waiter->deadline_ns = op->deadline_ns < now_ns + CTL_DEADLINE_NS ? op->deadline_ns
									 : now_ns + CTL_DEADLINE_NS;
	tier_bring(control->tier, &op->key, &found, waiter);
}
