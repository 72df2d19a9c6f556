/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of messages per owner, batches in flight, acknowledgements. A batch that was not
 * acknowledged when its link closed goes back to the front of its queue. Control plane's thread
 * only.
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"

bool owner_removing(const struct owner *owner)
{
	const struct batch *batch;

	STAILQ_FOREACH (batch, &owner->batches, next)
		if (batch->kind == DIR_REMOVE)
			return true;
	return owner->queued[DIR_REMOVE] > 0 || (owner->relay && owner->relay->kind == DIR_REMOVE);
}

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

/* ---- sending --------------------------------------------------------------------------------- */

struct batch *batch_take(struct owner *owner, unsigned kind)
{
	struct dir_targets *queue = &owner->queue[kind];
	struct dir_target *target;
	struct batch *batch;
	unsigned count = 0;

	TAILQ_FOREACH (target, queue, next)
		if (++count == MESSAGE_PAGES_MAX)
			break;
	batch = malloc(sizeof(*batch) + count * sizeof(batch->target[0]));
	if (!batch)
		return NULL;
	batch->kind = kind;
	batch->count = count;
	for (unsigned i = 0; i < count; i++) {
		target = TAILQ_FIRST(queue);
		TAILQ_REMOVE(queue, target, next);
		owner->queued[kind]--;
		target->sent = true;
		batch->target[i] = target;
	}
	return batch;
}

void batch_rewind(struct owner *owner, struct batch *batch)
{
	for (unsigned i = batch->count; i > 0; i--) {
		batch->target[i - 1]->sent = false;
		owner->queued[batch->kind]++;
		TAILQ_INSERT_HEAD(&owner->queue[batch->kind], batch->target[i - 1], next);
	}
	free(batch);
}

void batch_entries(struct directory *dir, const struct batch *batch)
{
	for (unsigned i = 0; i < batch->count; i++) {
		const struct dir_update *update = batch->target[i]->update;
		Pc__Entry *entry = dir->entry_at[i];

		entry->key0 = update->key.word[0];
		entry->key1 = update->key.word[1];
		entry->place = update->at.place;
		entry->generation = update->at.generation;
		entry->ref = batch->kind == DIR_PUBLISH ? 0 : update->at.ref;
	}
}

static bool batch_send(struct directory *dir, struct rpc_link *link, const struct batch *batch)
{
	Pc__Publish publish = PC__PUBLISH__INIT;
	Pc__Remove remove = PC__REMOVE__INIT;
	Pc__Forget forget = PC__FORGET__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	batch_entries(dir, batch);
	if (batch->kind == DIR_PUBLISH) {
		publish.serial = batch->serial;
		publish.ref = dir->control->ref;
		publish.n_entries = batch->count;
		publish.entries = dir->entry_at;
		message.body_case = PC__MESSAGE__BODY_PUBLISH;
		message.publish = &publish;
	} else if (batch->kind == DIR_REMOVE) {
		remove.serial = batch->serial;
		remove.n_entries = batch->count;
		remove.entries = dir->entry_at;
		message.body_case = PC__MESSAGE__BODY_REMOVE;
		message.remove = &remove;
	} else {
		forget.serial = batch->serial;
		forget.wait = true;
		forget.n_entries = batch->count;
		forget.entries = dir->entry_at;
		message.body_case = PC__MESSAGE__BODY_FORGET;
		message.forget = &forget;
	}
	return rpc_send(link, &message);
}

/*
 * False: nothing was sent. The owner must be retried on the next turn unless a batch is in flight,
 * whose acknowledgement will resume sending.
 */
static bool owner_send_one(
	struct directory *dir, struct owner *owner, struct rpc_link *link, unsigned kind)
{
	struct batch *batch = batch_take(owner, kind);

	if (!batch)
		return false;
	batch->serial = ++dir->serial;
	batch->sent_ns = net_now();
	batch->via = link;
	if (!batch_send(dir, link, batch)) {
		batch_rewind(owner, batch);
		return false;
	}
	STAILQ_INSERT_TAIL(&owner->batches, batch, next);
	owner->in_flight++;
	return true;
}

/* Its link; with nothing to send, the link is not used, and none is dialled. */
static struct rpc_link *owner_link(const struct directory *dir, const struct owner *owner)
{
	bool any = false;

	for (unsigned kind = 0; kind < DIR_KINDS; kind++)
		any |= !TAILQ_EMPTY(&owner->queue[kind]);
	if (!owner->ref)
		return NULL;
	return any ? member_link(dir->control, owner->ref)
		   : member_link_now(dir->control, owner->ref);
}

/*
 * True: the queues are empty, or an acknowledgement or a new link will mark the owner dirty again.
 * False: retry on the next turn.
 */
static bool owner_send(struct directory *dir, struct owner *owner)
{
	struct rpc_link *link = owner_link(dir, owner);

	if (!link)
		relay_send(dir, owner);
	/* What a relay holds comes first: a newer batch must not overtake it. */
	if (!link || owner->relay)
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

void owners_send(struct directory *dir)
{
	STAILQ_HEAD(, owner) now = STAILQ_HEAD_INITIALIZER(now);

	STAILQ_CONCAT(&now, &dir->dirty);
	while (!STAILQ_EMPTY(&now)) {
		struct owner *owner = STAILQ_FIRST(&now);

		STAILQ_REMOVE_HEAD(&now, next_dirty);
		owner->dirty = false;
		/*
		 * There is no memory, or the link's output buffer is full: the owner stays in the
		 * list and is tried again in the next turn
		 */
		if (!owner_send(dir, owner)) {
			owner->dirty = true;
			STAILQ_INSERT_TAIL(&dir->dirty, owner, next_dirty);
		}
	}
}

/* ---- acknowledgements and lost links --------------------------------------------------------- */

/* A removal that was sent twice finds the page once. */
static void batch_had(struct batch *batch, const uint32_t *failed, size_t failed_count)
{
	size_t at = 0;

	for (unsigned i = 0; i < batch->count; i++)
		if (at < failed_count && failed[at] == i)
			at++;
		else
			batch->target[i]->had = true;
}

void batch_resolve(struct directory *dir, struct owner *owner, struct batch *batch,
	const uint32_t *failed, size_t failed_count)
{
	if (batch->kind == DIR_PUBLISH && failed_count)
		owner->full_ns = net_now();
	batch_had(batch, failed, failed_count);
	for (unsigned i = 0; i < batch->count; i++)
		target_resolve(dir, batch->target[i],
			batch->target[i]->had ? OUTCOME_DONE : OUTCOME_FAILED);
	free(batch);
}

bool directory_serve_ack(struct control *control, struct rpc_link *link, const Pc__Ack *ack)
{
	struct directory *dir = control->directory;
	struct owner *owner = owner_at(dir, link->member->record.peer);
	struct batch *batch;

	if (ack->synced)
		return batch_synced(dir, owner, link, ack);
	STAILQ_FOREACH (batch, &owner->batches, next)
		if (batch->serial == ack->serial && batch->via == link)
			break;
	if (!batch || owner->ref != member_link_ref(link) ||
		!failed_fit(batch->count, ack->n_failed, ack->failed) ||
		(ack->later && batch->kind != DIR_FORGET))
		return false;
	STAILQ_REMOVE(&owner->batches, batch, batch, next);
	owner->in_flight--;
	if (ack->later) {
		batch_had(batch, ack->failed, ack->n_failed);
		batch_unsynced(dir, owner, batch);
	} else {
		batch_resolve(dir, owner, batch, ack->failed, ack->n_failed);
	}
	owner_served(dir, owner);
	owner_dirty(dir, owner);
	show_next(dir, owner);
	if (owner->walk.slots)
		move_soon(dir);
	return true;
}

/*
 * Puts the batches that went over this link back to the front of their queues. Returns how many
 * they were.
 */
static unsigned batches_rewind(
	struct owner *owner, struct batches *batches, const struct rpc_link *link)
{
	struct batches keep = STAILQ_HEAD_INITIALIZER(keep);
	struct batches back = STAILQ_HEAD_INITIALIZER(back);
	struct batch *batch;
	unsigned count = 0;

	while ((batch = STAILQ_FIRST(batches))) {
		STAILQ_REMOVE_HEAD(batches, next);
		if (batch->via != link) {
			STAILQ_INSERT_TAIL(&keep, batch, next);
			continue;
		}
		count++;
		/*
		 * Each batch is put in front of the earlier ones, so the latest comes first and
		 * rewinding restores the order
		 */
		STAILQ_INSERT_HEAD(&back, batch, next);
	}
	STAILQ_CONCAT(batches, &keep);
	while ((batch = STAILQ_FIRST(&back))) {
		STAILQ_REMOVE_HEAD(&back, next);
		batch_rewind(owner, batch);
	}
	return count;
}

void directory_link_down(struct control *control, uint16_t peer, const struct rpc_link *link)
{
	struct directory *dir = control->directory;
	struct owner *owner, *other;

	if (!dir)
		return;
	owner = owner_at(dir, peer);
	forgets_drop(dir, link);
	promote_link_down(control, link);
	tier_link_down(control, link);
	digests_unask(dir, link);
	passes_drop(dir, link);
	/* Links close in thousands while a large cluster starts. */
	if (dir->relaying)
		STAILQ_FOREACH (other, &dir->owners, next)
			relay_rewind(dir, other, link);
	if (!owner->unlinked_ns && owner->ref && !member_link_now(control, owner->ref))
		owner->unlinked_ns = net_now();
	if (owner->digest && owner->digest->via == link && !owner->digest->answered) {
		owner->unsure = true;
		digest_drop(owner);
	}
	if (owner->show && owner->show->via == link) {
		owner->unsure = true;
		show_drop(owner);
	}
	owner->in_flight -= batches_rewind(owner, &owner->batches, link);
	owner->unsynced_count -= batches_rewind(owner, &owner->unsynced, link);
	if (!owner_idle(owner))
		owner_waits(dir, owner);
	owner_dirty(dir, owner);
}

void directory_link_up(struct control *control, uint16_t peer, bool disk)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (!dir)
		return;
	owner = owner_make(dir, peer);
	if (owner == dir->none)
		return;
	owner->takes_disk = disk;
	owner->unlinked_ns = owner->relayed_ns = 0;
	owner_dirty(dir, owner);
}

void owner_rewind(struct directory *dir, struct owner *owner)
{
	struct batch *batch;

	STAILQ_CONCAT(&owner->batches, &owner->unsynced);
	while ((batch = STAILQ_FIRST(&owner->batches))) {
		STAILQ_REMOVE_HEAD(&owner->batches, next);
		batch_rewind(owner, batch);
	}
	owner->in_flight = owner->unsynced_count = 0;
	if (owner->relay)
		batch_rewind(owner, relay_end(dir, owner));
}

void owner_clear(struct directory *dir, struct owner *owner)
{
	struct dir_targets lost = TAILQ_HEAD_INITIALIZER(lost);
	struct dir_target *target;

	owner_rewind(dir, owner);
	digest_drop(owner);
	show_drop(owner);
	owner->touched = owner->reports = 0;
	owner_trusted(dir, owner);
	owner->wait_ns = owner->served_ns = owner->suspect_ns = owner->full_ns = 0;
	owner->unlinked_ns = owner->relayed_ns = owner->newest = 0;
	for (unsigned kind = 0; kind < DIR_KINDS; kind++)
		owner->queued[kind] = 0;
	owner->behind = owner->fresh = owner->warned = owner->unsure = false;
	owner->repair = false;
	owner->kept = 0;
	owner->walk = (struct walk){.slots = 0};
	owner->takes_disk = false;
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

void directory_tick(struct control *control, uint64_t now_ns)
{
	struct directory *dir = control->directory;
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * 1000000ull;
	struct owner *owner;

	departed_tick(dir, now_ns);
	compare_tick(dir, now_ns);
	passes_tick(dir, now_ns);
	owners_trim(dir);
	STAILQ_FOREACH (owner, &dir->owners, next) {
		const struct batch *oldest = STAILQ_FIRST(&owner->batches);
		const struct member_record *record = member_by_peer(control, owner->peer);
		struct member_texts texts;

		owner->relay_tries = 0;
		/* patrol() looks at the others: it knows whether this engine was paused */
		if (owner->ref && owner_idle(owner))
			owner_look(dir, owner, now_ns);
		if (!oldest || !record || now_ns - oldest->sent_ns <= 2 * dead_ns)
			continue;
		member_texts(record, &texts);
		log_warn(
			"member %s is alive but acknowledges no directory messages: closing the connection to dial it again",
			texts.name);
		rpc_link_close((struct rpc_link *)oldest->via);
	}
}
