/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: one key to be published, removed or forgotten at several members. A claim lasts until
 * each of them has answered or is dead. Deadlines are kept in a heap; a finished claim calls its
 * `done`. Control plane's thread only.
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/directory_state.h"
#include "engine/control/member.h"

#define ANSWER_ROUNDS 8

/* ---- deadlines: a binary heap ---------------------------------------------------------------- */

static void heap_set(struct directory *dir, uint32_t at, struct claim *claim)
{
	dir->heap[at] = claim;
	claim->heap = at + 1;
}

static void heap_up(struct directory *dir, uint32_t at)
{
	struct claim *claim = dir->heap[at];

	while (at > 0 && dir->heap[(at - 1) / 2]->deadline_ns > claim->deadline_ns) {
		heap_set(dir, at, dir->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_set(dir, at, claim);
}

static void heap_down(struct directory *dir, uint32_t at)
{
	struct claim *claim = dir->heap[at];

	for (uint32_t child = 2 * at + 1; child < dir->heap_count; child = 2 * at + 1) {
		if (child + 1 < dir->heap_count &&
			dir->heap[child + 1]->deadline_ns < dir->heap[child]->deadline_ns)
			child++;
		if (dir->heap[child]->deadline_ns >= claim->deadline_ns)
			break;
		heap_set(dir, at, dir->heap[child]);
		at = child;
	}
	heap_set(dir, at, claim);
}

static bool heap_add(struct directory *dir, struct claim *claim)
{
	if (dir->heap_count == dir->heap_room) {
		uint32_t room = dir->heap_room ? 2 * dir->heap_room : 1024;
		struct claim **more = realloc(dir->heap, room * sizeof(*more));

		if (!more)
			return false;
		dir->heap = more;
		dir->heap_room = room;
	}
	heap_set(dir, dir->heap_count++, claim);
	heap_up(dir, dir->heap_count - 1);
	return true;
}

static void heap_remove(struct directory *dir, struct claim *claim)
{
	uint32_t at = claim->heap - 1;
	struct claim *last;

	if (claim->heap == 0)
		return;
	claim->heap = 0;
	last = dir->heap[--dir->heap_count];
	if (last == claim)
		return;
	heap_set(dir, at, last);
	heap_up(dir, at);
	heap_down(dir, last->heap - 1);
}

/*
 * Arms the timer for the earliest deadline of all claims. An armed timer that fires earlier is left
 * as it is: claims_due() arms it again.
 */
static void due_arm(struct directory *dir)
{
	uint64_t now_ns = net_now(), at_ns, wait_ns;

	if (dir->heap_count == 0)
		return;
	at_ns = dir->heap[0]->deadline_ns;
	if (dir->due_ns && dir->due_ns <= at_ns)
		return;
	wait_ns = at_ns > now_ns ? at_ns - now_ns : 0;
	(void)net_timer_set(dir->due, wait_ns / 1000);
	dir->due_ns = at_ns ? at_ns : 1;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void claim_answer(struct directory *dir, struct claim *claim, enum op_status status)
{
	heap_remove(dir, claim);
	claim->answered = true;
	claim->status = (uint8_t)status;
	STAILQ_INSERT_TAIL(&dir->finished, claim, finished);
	/* Makes the event loop call directory_flush() before this turn ends */
	net_defer(dir->wake);
}

void claims_due(void *context)
{
	struct directory *dir = context;
	uint64_t now_ns = net_now();

	dir->due_ns = 0;
	while (dir->heap_count && dir->heap[0]->deadline_ns <= now_ns)
		claim_answer(dir, dir->heap[0], OP_TIMEOUT);
	due_arm(dir);
}

static enum op_status claim_status(const struct claim *claim)
{
	if (claim->unsafe)
		return OP_PEER_DOWN;
	if (claim->acked)
		return OP_HIT;
	if (claim->verb == VERB_FORGET)
		return OP_MISS;
	return claim->refused ? OP_NO_SPACE : OP_PEER_DOWN;
}

static void claim_end(struct directory *dir, struct claim *claim)
{
	dir->partial -= claim->partial;
	dir->background -= claim->background;
	free(claim);
}

/*
 * The claim's `done` was called while items are unresolved: from here on these items count against
 * their owners' limits.
 */
static void claim_unawaited(struct directory *dir, struct claim *claim)
{
	claim->background = true;
	dir->background++;
	/* the added 1 prevents that the claim is freed while the loop below ends parts of it */
	claim->pending++;
	for (unsigned i = 0; i < claim->items; i++)
		if (!claim->item[i].resolved)
			item_background(dir, &claim->item[i]);
	claim->pending--;
}

void claims_answer(struct directory *dir)
{
	for (unsigned round = 0; round < ANSWER_ROUNDS && !STAILQ_EMPTY(&dir->finished); round++) {
		STAILQ_HEAD(, claim) now = STAILQ_HEAD_INITIALIZER(now);

		STAILQ_CONCAT(&now, &dir->finished);
		while (!STAILQ_EMPTY(&now)) {
			struct claim *claim = STAILQ_FIRST(&now);
			directory_done done = claim->done;

			STAILQ_REMOVE_HEAD(&now, finished);
			claim->done = NULL;
			done(claim->context, claim->cookie, claim->status);
			if (claim->pending)
				claim_unawaited(dir, claim);
			if (claim->pending == 0)
				claim_end(dir, claim);
		}
	}
	if (!STAILQ_EMPTY(&dir->finished))
		net_defer(dir->wake);
}

/* ---- claims ---------------------------------------------------------------------------------- */

struct claim *claim_new(struct directory *dir, enum verb verb, const struct page_key *key,
	uint32_t place, uint32_t generation, unsigned room)
{
	struct claim *claim = calloc(1, sizeof(*claim) + room * sizeof(claim->item[0]));

	if (!claim) {
		log_error("no memory for a directory entry's message");
		return NULL;
	}
	claim->verb = (uint8_t)verb;
	claim->key = *key;
	claim->place = place;
	claim->generation = generation;
	claim->room = (uint16_t)room;
	claim->pending = 1;
	claim->background = true;
	dir->background++;
	return claim;
}

void claim_await(struct directory *dir, struct claim *claim, uint64_t deadline_ns,
	directory_done done, void *context, uint64_t cookie)
{
	if (!done)
		return;
	dir->background -= claim->background;
	claim->background = false;
	claim->deadline_ns = deadline_ns;
	claim->done = done;
	claim->context = context;
	claim->cookie = cookie;
	if (heap_add(dir, claim))
		due_arm(dir);
	else
		log_error("no memory for a deadline: a publish waits for its owners without one");
}

bool claim_has(const struct claim *claim, uint32_t ref)
{
	for (unsigned i = 0; i < claim->items; i++)
		if (claim->item[i].ref == ref)
			return true;
	return false;
}

enum outcome claim_do_here(struct directory *dir, const struct claim *claim)
{
	struct control *control = dir->control;

	switch ((enum verb)claim->verb) {
	case VERB_PUBLISH:
		if (shard_insert(&control->shard, &claim->key, control->ref, claim->place,
			    claim->generation) == 0) {
			control->counter[COUNTER_entries_inserted]++;
			return OUTCOME_DONE;
		}
		control->counter[COUNTER_entries_dropped]++;
		if (!place_on_disk(claim->place))
			departed_sweep(dir);
		return OUTCOME_FAILED;
	case VERB_REMOVE:
		if (shard_remove(&control->shard, &claim->key, claim->ref, claim->place,
			    claim->generation))
			control->counter[COUNTER_entries_removed]++;
		return OUTCOME_DONE;
	case VERB_FORGET: /* forget_here() */
	case VERBS:
	default: return OUTCOME_LOST;
	}
}

static void item_count(struct item *item, enum outcome outcome)
{
	item->resolved = true;
	if (outcome == OUTCOME_DONE)
		item->claim->acked++;
	else if (outcome == OUTCOME_FAILED)
		item->claim->refused++;
	else if (outcome == OUTCOME_VOLATILE)
		item->claim->unsafe++;
}

void claim_add(struct directory *dir, struct claim *claim, uint32_t ref)
{
	const struct member_record *record = member_by_ref(dir->control, ref);
	struct item *item;

	if (!record || claim->items == claim->room || claim_has(claim, ref))
		return;
	item = &claim->item[claim->items++];
	item->claim = claim;
	item->peer = record->peer;
	item->ref = ref;
	if (ref == dir->control->ref && claim->verb != VERB_FORGET) {
		item_count(item, claim_do_here(dir, claim));
		return;
	}
	claim->pending++;
	if (ref == dir->control->ref) {
		forget_here(dir, item);
		return;
	}
	item_queue(dir, item);
	if (claim->background)
		item_background(dir, item);
}

void claim_check(struct directory *dir, struct claim *claim)
{
	unsigned waiting = 0, suspects = 0;

	if (claim->verb != VERB_PUBLISH || !claim->started || !claim->done || claim->answered)
		return;
	for (unsigned i = 0; i < claim->items; i++) {
		const struct item *item = &claim->item[i];
		const struct owner *owner = owner_at(dir, item->peer);

		if (item->resolved)
			continue;
		waiting++;
		suspects += owner->ref == item->ref && suspect_steers(owner->why) &&
			    !owner_relays(owner);
	}
	switch (publish_judge(claim->acked, waiting, suspects)) {
	case PUBLISH_PARTIAL:
		claim->partial = true;
		dir->partial++;
		dir->control->counter[COUNTER_sets_partial]++;
		claim_answer(dir, claim, OP_HIT);
		break;
	case PUBLISH_UNREACHABLE: claim_answer(dir, claim, OP_PEER_DOWN); break;
	case PUBLISH_WAIT:
	case PUBLISH_WHOLE:
	default: break;
	}
}

/* Answers a claim whose owners have all answered. */
static void claim_settle(struct directory *dir, struct claim *claim)
{
	if (claim->verb == VERB_PUBLISH && claim->acked && claim->refused)
		dir->control->counter[COUNTER_sets_partial]++;
	claim_answer(dir, claim, claim_status(claim));
}

void claim_start(struct directory *dir, struct claim *claim)
{
	claim->started = true;
	if (--claim->pending) {
		claim_check(dir, claim);
		return;
	}
	if (claim->done)
		claim_settle(dir, claim);
	else
		claim_end(dir, claim);
}

void item_resolve(struct directory *dir, struct item *item, enum outcome outcome)
{
	struct claim *claim = item->claim;

	item_background_end(dir, item);
	item_count(item, outcome);
	claim->pending--;
	if (claim->pending) {
		claim_check(dir, claim);
		return;
	}
	if (claim->done && !claim->answered)
		claim_settle(dir, claim);
	else if (!claim->done)
		claim_end(dir, claim);
}

static void items_drop(struct items *items)
{
	struct item *item;

	while ((item = TAILQ_FIRST(items))) {
		struct claim *claim = item->claim;

		TAILQ_REMOVE(items, item, next);
		claim->pending--;
		if (claim->pending == 0 && !(claim->done && claim->answered))
			free(claim);
	}
}

void claims_close(struct directory *dir)
{
	struct owner *owner;

	while (dir->heap_count)
		claim_answer(dir, dir->heap[0], OP_CANCELLED);
	claims_answer(dir);
	items_drop(&dir->orphans);
	STAILQ_FOREACH (owner, &dir->owners, next)
		for (unsigned verb = 0; verb < VERBS; verb++)
			items_drop(&owner->queue[verb]);
	while (!STAILQ_EMPTY(&dir->finished)) {
		struct claim *claim = STAILQ_FIRST(&dir->finished);

		STAILQ_REMOVE_HEAD(&dir->finished, finished);
		free(claim);
	}
	free(dir->heap);
}
