/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates: one key to be published, removed or forgotten at several members. An update lasts until
 * each of them has answered or is dead. Deadlines are kept in a heap; a finished update calls its
 * `done`. Control plane's thread only.
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"

#define ANSWER_ROUNDS 8

/* ---- deadlines: a binary heap ---------------------------------------------------------------- */

static void heap_set(struct directory *dir, uint32_t at, struct dir_update *update)
{
	dir->heap[at] = update;
	update->heap = at + 1;
}

static void heap_up(struct directory *dir, uint32_t at)
{
	struct dir_update *update = dir->heap[at];

	while (at > 0 && dir->heap[(at - 1) / 2]->waiter.deadline_ns > update->waiter.deadline_ns) {
		heap_set(dir, at, dir->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_set(dir, at, update);
}

static void heap_down(struct directory *dir, uint32_t at)
{
	struct dir_update *update = dir->heap[at];

	for (uint32_t child = 2 * at + 1; child < dir->heap_count; child = 2 * at + 1) {
		if (child + 1 < dir->heap_count && dir->heap[child + 1]->waiter.deadline_ns <
							   dir->heap[child]->waiter.deadline_ns)
			child++;
		if (dir->heap[child]->waiter.deadline_ns >= update->waiter.deadline_ns)
			break;
		heap_set(dir, at, dir->heap[child]);
		at = child;
	}
	heap_set(dir, at, update);
}

static bool heap_add(struct directory *dir, struct dir_update *update)
{
	if (dir->heap_count == dir->heap_room) {
		uint32_t room = dir->heap_room ? 2 * dir->heap_room : 1024;
		struct dir_update **more = realloc(dir->heap, room * sizeof(*more));

		if (!more)
			return false;
		dir->heap = more;
		dir->heap_room = room;
	}
	heap_set(dir, dir->heap_count++, update);
	heap_up(dir, dir->heap_count - 1);
	return true;
}

static void heap_remove(struct directory *dir, struct dir_update *update)
{
	uint32_t at = update->heap - 1;
	struct dir_update *last;

	if (update->heap == 0)
		return;
	update->heap = 0;
	last = dir->heap[--dir->heap_count];
	if (last == update)
		return;
	heap_set(dir, at, last);
	heap_up(dir, at);
	heap_down(dir, last->heap - 1);
}

/*
 * Arms the timer for the earliest deadline of all updates. An armed timer that fires earlier is
 * left as it is: updates_due() arms it again.
 */
static void due_arm(struct directory *dir)
{
	uint64_t now_ns = net_now(), at_ns, wait_ns;

	if (dir->heap_count == 0)
		return;
	at_ns = dir->heap[0]->waiter.deadline_ns;
	if (dir->due_ns && dir->due_ns <= at_ns)
		return;
	wait_ns = at_ns > now_ns ? at_ns - now_ns : 0;
	(void)net_timer_set(dir->due, wait_ns / 1000);
	dir->due_ns = at_ns ? at_ns : 1;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void update_answer(struct directory *dir, struct dir_update *update, enum op_status status)
{
	heap_remove(dir, update);
	update->answered = true;
	update->status = (uint8_t)status;
	STAILQ_INSERT_TAIL(&dir->finished, update, finished);
	/* Makes the event loop call directory_flush() before this turn ends */
	net_defer(dir->wake);
}

void updates_due(void *context)
{
	struct directory *dir = context;
	uint64_t now_ns = net_now();

	dir->due_ns = 0;
	while (dir->heap_count && dir->heap[0]->waiter.deadline_ns <= now_ns)
		update_answer(dir, dir->heap[0], OP_TIMEOUT);
	due_arm(dir);
}

static enum op_status update_status(const struct dir_update *update)
{
	if (update->unsafe)
		return OP_PEER_DOWN;
	if (update->acked || update->kind == DIR_REMOVE)
		return OP_HIT;
	if (update->kind == DIR_FORGET)
		return OP_MISS;
	return update->refused ? OP_NO_SPACE : OP_PEER_DOWN;
}

static void update_end(struct directory *dir, struct dir_update *update)
{
	dir->partial -= update->partial;
	dir->background -= update->background;
	free(update);
}

/*
 * The update's `done` was called while targets are unresolved: from here on these targets count
 * against their owners' limits.
 */
static void update_unawaited(struct directory *dir, struct dir_update *update)
{
	update->background = true;
	dir->background++;
	/* the added 1 prevents that the update is freed while the loop below ends parts of it */
	update->pending++;
	for (unsigned i = 0; i < update->targets; i++)
		if (!update->target[i].resolved)
			target_background(dir, &update->target[i]);
	update->pending--;
}

void updates_answer(struct directory *dir)
{
	for (unsigned round = 0; round < ANSWER_ROUNDS && !STAILQ_EMPTY(&dir->finished); round++) {
		STAILQ_HEAD(, dir_update) now = STAILQ_HEAD_INITIALIZER(now);

		STAILQ_CONCAT(&now, &dir->finished);
		while (!STAILQ_EMPTY(&now)) {
			struct dir_update *update = STAILQ_FIRST(&now);
			directory_done done = update->waiter.done;

			STAILQ_REMOVE_HEAD(&now, finished);
			update->waiter.done = NULL;
			done(update->waiter.context, update->waiter.cookie, update->status);
			if (update->pending)
				update_unawaited(dir, update);
			if (update->pending == 0)
				update_end(dir, update);
		}
	}
	if (!STAILQ_EMPTY(&dir->finished))
		net_defer(dir->wake);
}

/*
 * ---- updates ----------------------------------------------------------------------------------
 */

struct dir_update *update_new(struct directory *dir, enum dir_kind kind, const struct page_key *key,
	const struct location *at, unsigned room)
{
	struct dir_update *update = calloc(1, sizeof(*update) + room * sizeof(update->target[0]));

	if (!update) {
		log_error("no memory for a directory entry's message");
		return NULL;
	}
	update->kind = (uint8_t)kind;
	dir->published |= kind == DIR_PUBLISH;
	update->key = *key;
	update->at = *at;
	update->room = (uint16_t)room;
	update->pending = 1;
	update->background = true;
	dir->background++;
	return update;
}

void update_await(struct directory *dir, struct dir_update *update, const struct waiter *waiter)
{
	if (!waiter)
		return;
	dir->background -= update->background;
	update->background = false;
	update->waiter = *waiter;
	if (heap_add(dir, update))
		due_arm(dir);
	else
		log_error("no memory for a deadline: a publish waits for its owners without one");
}

bool update_has(const struct dir_update *update, uint32_t ref)
{
	for (unsigned i = 0; i < update->targets; i++)
		if (update->target[i].ref == ref)
			return true;
	return false;
}

enum outcome update_do_here(struct directory *dir, const struct dir_update *update)
{
	struct control *control = dir->control;

	switch ((enum dir_kind)update->kind) {
	case DIR_PUBLISH:
		if (shard_insert(control->shard, &update->key, control->ref, update->at.place,
			    update->at.generation) == 0) {
			control->counter[COUNTER_entries_inserted]++;
			return OUTCOME_DONE;
		}
		control->counter[COUNTER_entries_dropped]++;
		if (!place_on_disk(update->at.place))
			departed_sweep(dir);
		return OUTCOME_FAILED;
	case DIR_REMOVE:
		if (shard_remove(control->shard, &update->key, update->at.ref, update->at.place,
			    update->at.generation))
			control->counter[COUNTER_entries_removed]++;
		return OUTCOME_DONE;
	case DIR_FORGET: /* forget_here() */
	case DIR_KINDS:
	default: return OUTCOME_LOST;
	}
}

static void target_count(struct dir_target *target, enum outcome outcome)
{
	target->resolved = true;
	if (outcome == OUTCOME_DONE)
		target->update->acked++;
	else if (outcome == OUTCOME_FAILED)
		target->update->refused++;
	else if (outcome == OUTCOME_VOLATILE || target->update->kind != DIR_PUBLISH)
		target->update->unsafe++;
}

void update_add(struct directory *dir, struct dir_update *update, uint32_t ref)
{
	const struct member_record *record = member_by_ref(dir->control, ref);
	struct dir_target *target;

	if (!record || update->targets == update->room || update_has(update, ref))
		return;
	target = &update->target[update->targets++];
	target->update = update;
	target->peer = record->peer;
	target->ref = ref;
	if (ref == dir->control->ref && update->kind != DIR_FORGET) {
		target_count(target, update_do_here(dir, update));
		return;
	}
	update->pending++;
	if (ref == dir->control->ref) {
		forget_here(dir, target);
		return;
	}
	target_queue(dir, target);
	if (update->background)
		target_background(dir, target);
}

void update_check(struct directory *dir, struct dir_update *update)
{
	unsigned waiting = 0, suspects = 0;

	if (update->kind != DIR_PUBLISH || !update->started || !update->waiter.done ||
		update->answered)
		return;
	for (unsigned i = 0; i < update->targets; i++) {
		const struct dir_target *target = &update->target[i];
		const struct owner *owner = owner_at(dir, target->peer);

		if (target->resolved)
			continue;
		waiting++;
		suspects += owner->ref == target->ref && suspect_steers(owner->why) &&
			    !owner_relays(owner);
	}
	switch (publish_judge(update->acked, waiting, suspects)) {
	case PUBLISH_PARTIAL:
		update->partial = true;
		dir->partial++;
		dir->control->counter[COUNTER_sets_partial]++;
		update_answer(dir, update, OP_HIT);
		break;
	case PUBLISH_UNREACHABLE: update_answer(dir, update, OP_PEER_DOWN); break;
	case PUBLISH_WAIT:
	case PUBLISH_WHOLE:
	default: break;
	}
}

/* Answers an update whose owners have all answered. */
static void update_settle(struct directory *dir, struct dir_update *update)
{
	if (update->kind == DIR_PUBLISH && update->acked && update->refused)
		dir->control->counter[COUNTER_sets_partial]++;
	update_answer(dir, update, update_status(update));
}

void update_start(struct directory *dir, struct dir_update *update)
{
	update->started = true;
	if (--update->pending) {
		update_check(dir, update);
		return;
	}
	if (update->waiter.done)
		update_settle(dir, update);
	else
		update_end(dir, update);
}

void target_resolve(struct directory *dir, struct dir_target *target, enum outcome outcome)
{
	struct dir_update *update = target->update;

	target_background_end(dir, target);
	target_count(target, outcome);
	if (outcome == OUTCOME_LOST && update->kind == DIR_FORGET)
		removal_again(dir, update);
	update->pending--;
	if (update->pending) {
		update_check(dir, update);
		return;
	}
	if (update->waiter.done && !update->answered)
		update_settle(dir, update);
	else if (!update->waiter.done)
		update_end(dir, update);
}

static void targets_drop(struct dir_targets *targets)
{
	struct dir_target *target;

	while ((target = TAILQ_FIRST(targets))) {
		struct dir_update *update = target->update;

		TAILQ_REMOVE(targets, target, next);
		update->pending--;
		if (update->pending == 0 && !(update->waiter.done && update->answered))
			free(update);
	}
}

void updates_close(struct directory *dir)
{
	struct owner *owner;

	while (dir->heap_count)
		update_answer(dir, dir->heap[0], OP_CANCELLED);
	updates_answer(dir);
	targets_drop(&dir->orphans);
	STAILQ_FOREACH (owner, &dir->owners, next)
		for (unsigned kind = 0; kind < DIR_KINDS; kind++)
			targets_drop(&owner->queue[kind]);
	while (!STAILQ_EMPTY(&dir->finished)) {
		struct dir_update *update = STAILQ_FIRST(&dir->finished);

		STAILQ_REMOVE_HEAD(&dir->finished, finished);
		free(update);
	}
	free(dir->heap);
}
