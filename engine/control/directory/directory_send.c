/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of targets per owner, which directory_flush() sends at the end of a turn; batches in
 * flight, and hints for holders. A batch that was not acknowledged when its link closed goes back
 * to the front of its queue. Control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

/* touches are collected for this time before they are sent to the owners */
#define TOUCH_PACE_MS 20

/* ---- queues ---------------------------------------------------------------------------------- */

void owner_dirty(struct directory *dir, struct owner *owner)
{
	if (!owner->dirty) {
		owner->dirty = true;
		STAILQ_INSERT_TAIL(&dir->dirty, owner, next_dirty);
	}
	net_defer(dir->wake);
}

void target_queue(struct directory *dir, struct dir_target *target)
{
	struct owner *owner = owner_wanted(dir, target->peer);

	if (owner->ref != target->ref) {
		TAILQ_INSERT_TAIL(&dir->orphans, target, next);
		return;
	}
	if (owner_idle(owner))
		owner_waits(dir, owner);
	TAILQ_INSERT_TAIL(&owner->queue[target->update->kind], target, next);
	owner->queued[target->update->kind]++;
	owner_dirty(dir, owner);
}

/* ---- batches --------------------------------------------------------------------------------- */

/*
 * Takes a batch from the front of a queue, to be sent over this link. NULL: no memory. The queue is
 * not empty.
 */
static struct batch *batch_dequeue(
	struct directory *dir, struct owner *owner, unsigned kind, const struct rpc_link *link)
{
	const struct dir_target *target;
	struct batch *batch;
	unsigned count = 0;

	TAILQ_FOREACH (target, &owner->queue[kind], next)
		if (++count == MESSAGE_PAGES_MAX)
			break;
	batch = malloc(sizeof(*batch) + count * sizeof(batch->target[0]));
	if (!batch)
		return NULL;
	*batch = (struct batch){.serial = ++dir->serial,
		.sent_ns = net_now(),
		.via = link,
		.kind = kind,
		.count = count};
	owner->queued[kind] -= count;
	for (unsigned i = 0; i < count; i++) {
		batch->target[i] = TAILQ_FIRST(&owner->queue[kind]);
		batch->target[i]->sent = true;
		TAILQ_REMOVE(&owner->queue[kind], batch->target[i], next);
	}
	return batch;
}

/* Puts the parts of a batch back to the front of the owner's queue, in their former order. */
static void batch_rewind(struct owner *owner, struct batch *batch)
{
	for (unsigned i = batch->count; i > 0; i--) {
		batch->target[i - 1]->sent = false;
		owner->queued[batch->kind]++;
		TAILQ_INSERT_HEAD(&owner->queue[batch->kind], batch->target[i - 1], next);
	}
	free(batch);
}

/* Fills directory.entry_at with the entries of the batch. */
static void batch_entries(struct directory *dir, const struct batch *batch)
{
	for (unsigned i = 0; i < batch->count; i++) {
		const struct dir_update *update = batch->target[i]->update;

		entry_write(dir->entry_at[i], &update->key, &update->at);
		dir->entry_at[i]->set = update->kind == DIR_PUBLISH && !update->background;
		dir->entry_at[i]->evicted = update->evicted;
		if (batch->kind == DIR_PUBLISH)
			dir->entry_at[i]->ref = 0;
	}
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool batch_send(struct directory *dir, struct rpc_link *link, const struct batch *batch)
{
	Pc__Publish publish = PC__PUBLISH__INIT;
	Pc__Remove remove = PC__REMOVE__INIT;
	Pc__Forget forget = PC__FORGET__INIT;
	Pc__Message message;

	batch_entries(dir, batch);
	if (batch->kind == DIR_PUBLISH) {
		publish.serial = batch->serial;
		publish.ref = dir->control->ref;
		publish.n_entries = batch->count;
		publish.entries = dir->entry_at;
		message = message_of(PC__MESSAGE__BODY_PUBLISH, &publish);
	} else if (batch->kind == DIR_REMOVE) {
		remove.serial = batch->serial;
		remove.n_entries = batch->count;
		remove.entries = dir->entry_at;
		message = message_of(PC__MESSAGE__BODY_REMOVE, &remove);
	} else {
		forget.serial = batch->serial;
		forget.n_entries = batch->count;
		forget.entries = dir->entry_at;
		message = message_of(PC__MESSAGE__BODY_FORGET, &forget);
	}
	/* there rpc_frame_serve() hands it to message_arrived() */
	return rpc_send(link, &message);
}

/*
 * False: nothing was sent. The owner must be retried on the next turn unless a batch is in flight,
 * whose acknowledgement will resume sending.
 */
static bool owner_send_one(
	struct directory *dir, struct owner *owner, struct rpc_link *link, unsigned kind)
{
	struct batch *batch = batch_dequeue(dir, owner, kind, link);

	if (!batch)
		return false;
	if (!batch_send(dir, link, batch)) {
		batch_rewind(owner, batch);
		return false;
	}
	STAILQ_INSERT_TAIL(&owner->batches, batch, next);
	owner->in_flight++;
	return true;
}

/*
 * True: the queues are empty, or an acknowledgement or a new link will mark the owner dirty again.
 * False: retry on the next turn.
 */
static bool owner_send(struct directory *dir, struct owner *owner)
{
	struct rpc_link *link = NULL;

	/* with nothing to send, the link is not used, and none is dialled */
	if (owner->ref)
		link = owner_queued(owner) ? member_link(dir->control, owner->ref)
					   : member_link_now(dir->control, owner->ref);
	if (!link)
		return true;
	for (unsigned kind = 0; kind < DIR_KINDS; kind++)
		while (!TAILQ_EMPTY(&owner->queue[kind])) {
			if (owner->in_flight == BATCHES_MAX)
				return true;
			if (!owner_send_one(dir, owner, link, kind))
				return owner->in_flight > 0;
		}
	return true;
}

static void owners_send(struct directory *dir)
{
	STAILQ_HEAD(, owner) now = STAILQ_HEAD_INITIALIZER(now);

	STAILQ_CONCAT(&now, &dir->dirty);
	while (!STAILQ_EMPTY(&now)) {
		struct owner *owner = STAILQ_FIRST(&now);

		STAILQ_REMOVE_HEAD(&now, next_dirty);
		owner->dirty = false;
		/* no memory, or the link has no room: it is tried again in the next turn */
		if (!owner_send(dir, owner)) {
			owner->dirty = true;
			STAILQ_INSERT_TAIL(&dir->dirty, owner, next_dirty);
		}
	}
}

void directory_flush(struct control *control)
{
	struct directory *dir = control->directory;

	net_timer_stop(dir->wake);
	updates_answer(dir);
	owners_send(dir);
}

/* ---- lost links ------------------------------------------------------------------------------ */

void owner_rewind(struct owner *owner, const struct rpc_link *link)
{
	struct batches all = STAILQ_HEAD_INITIALIZER(all), back = STAILQ_HEAD_INITIALIZER(back);
	struct batch *batch;

	STAILQ_CONCAT(&all, &owner->batches);
	while ((batch = STAILQ_FIRST(&all))) {
		STAILQ_REMOVE_HEAD(&all, next);
		if (!link || batch->via == link)
			STAILQ_INSERT_HEAD(&back, batch, next); /* the latest comes first */
		else
			STAILQ_INSERT_TAIL(&owner->batches, batch, next);
	}
	while ((batch = STAILQ_FIRST(&back))) {
		STAILQ_REMOVE_HEAD(&back, next);
		owner->in_flight--;
		batch_rewind(owner, batch);
	}
}

void directory_link_down(struct control *control, uint16_t peer, const struct rpc_link *link)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (!dir)
		return;
	owner = owner_at(dir, peer);
	promote_link_down(control, link);
	tier_link_down(control, link);
	digests_link_down(dir, owner, link);
	owner_rewind(owner, link);
	if (!owner_idle(owner))
		owner_waits(dir, owner);
	owner_dirty(dir, owner);
}

void owner_clear(struct directory *dir, struct owner *owner)
{
	struct dir_targets lost = TAILQ_HEAD_INITIALIZER(lost);
	struct dir_target *target;

	owner_rewind(owner, NULL);
	digest_drop(owner);
	show_drop(owner);
	owner_suspect(dir, owner, SUSPECT_NOT);
	if (owner->hints)
		owner->hints->touches = owner->hints->reports = 0;
	owner->wait_ns = owner->served_ns = owner->suspect_ns = 0;
	owner->unsure = owner->warned = false;
	owner->walk = (struct walk){.slots = 0};
	memset(owner->queued, 0, sizeof(owner->queued));
	TAILQ_FOREACH (target, &owner->queue[DIR_PUBLISH], next)
		target_background_end(dir, target);
	TAILQ_CONCAT(&dir->orphans, &owner->queue[DIR_PUBLISH], next);
	TAILQ_CONCAT(&lost, &owner->queue[DIR_FORGET], next);
	TAILQ_CONCAT(&lost, &owner->queue[DIR_REMOVE], next);
	while ((target = TAILQ_FIRST(&lost))) {
		TAILQ_REMOVE(&lost, target, next);
		target_resolve(dir, target, OUTCOME_LOST);
	}
}

/* ---- hints for holders: touches and reports -------------------------------------------------- */

static void hints_send(struct directory *dir, struct owner *owner)
{
	struct rpc_link *link = owner->ref ? member_link(dir->control, owner->ref) : NULL;
	struct hints *hints = owner->hints;
	Pc__Touch touch = PC__TOUCH__INIT;
	Pc__Message message = message_of(PC__MESSAGE__BODY_TOUCH, &touch);

	for (unsigned i = 0; i < hints->reports; i++) {
		const struct page_report *report = &hints->report[i];

		entry_write(dir->entry_at[i], &report->key,
			&(struct location){0, report->place, report->generation});
	}
	touch.n_reported = hints->reports;
	touch.reported = dir->entry_at;
	touch.n_places = hints->touches;
	touch.places = hints->touch;
	/* they are dropped when the link has no room */
	(void)rpc_send(link, &message);
	hints->touches = hints->reports = 0;
}

void hints_due(void *context)
{
	struct directory *dir = context;
	struct owner *owner;

	dir->hints.armed = false;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->hints && (owner->hints->touches || owner->hints->reports))
			hints_send(dir, owner);
}

/*
 * The member `ref`, which will soon be sent what is added to its hints; NULL: it has no page at
 * `place`, or there is no memory.
 */
static struct owner *hints_owner(struct directory *dir, uint32_t ref, uint32_t place)
{
	const struct member_record *record = member_by_ref(dir->control, ref);
	struct owner *owner;

	if (!record || place_rail(place) >= record->rails)
		return NULL;
	owner = owner_wanted(dir, record->peer);
	if (owner->ref != ref)
		return NULL;
	if (!owner->hints)
		owner->hints = calloc(1, sizeof(*owner->hints));
	if (!owner->hints)
		return NULL;
	if (!dir->hints.armed)
		net_timer_set(dir->hints.timer, TOUCH_PACE_MS * 1000);
	dir->hints.armed = true;
	return owner;
}

void directory_report(struct control *control, uint32_t ref, const struct page_report *report)
{
	struct owner *owner = hints_owner(control->directory, ref, report->place);

	if (owner && owner->hints->reports < REPORTS_MAX)
		owner->hints->report[owner->hints->reports++] = *report;
}

void directory_touch(struct control *control, uint32_t ref, uint32_t place)
{
	struct owner *owner;

	if (ref == control->ref) {
		page_touched(control, place);
		return;
	}
	owner = hints_owner(control->directory, ref, place);
	if (!owner)
		return;
	owner->hints->touch[owner->hints->touches++] = place;
	if (owner->hints->touches == MESSAGE_PAGES_MAX)
		hints_send(control->directory, owner);
}
