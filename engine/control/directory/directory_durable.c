/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removals that wait until they are a promise: those of this engine's clients, here and at other
 * engines, and those of other engines here. Control plane's thread only.
 *
 * A removal is a promise when its tombstone is durable and all owners of the page have dropped its
 * entry; until then a set could find the entry, and store nothing. An engine that has to wait for
 * either acknowledges a Forget at once with `later`, so that neither its disk nor an owner delays
 * another message, and once more when all parts of the message have ended:
 *
 *      sender                          holder                         owners
 *      Forget, wait             ->     pages leave memory and the
 *                                      disk's index
 *                               <-     Ack, later; failed: had no page
 *                                      Remove                   ->
 *                                                               <-    Ack
 *                                      tombstones of many messages share one sync
 *                               <-     Ack, synced; failed: no promise
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/directory/removals.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

/* ---- other engines, for clients of this one -------------------------------------------------- */

bool failed_fit(size_t count, size_t failed_count, const uint32_t *failed)
{
	for (size_t i = 0; i < failed_count; i++)
		if (failed[i] >= count || (i > 0 && failed[i] <= failed[i - 1]))
			return false;
	return true;
}

void batch_unsynced(struct directory *dir, struct owner *owner, struct batch *batch)
{
	if (owner->unsynced_count < UNSYNCED_MAX) {
		owner->unsynced_count++;
		STAILQ_INSERT_TAIL(&owner->unsynced, batch, next);
		return;
	}
	for (unsigned i = 0; i < batch->count; i++)
		target_resolve(dir, batch->target[i], OUTCOME_VOLATILE);
	free(batch);
}

bool batch_synced(
	struct directory *dir, struct owner *owner, const struct rpc_link *link, const Pc__Ack *ack)
{
	struct batch *batch;
	size_t failed = 0;

	STAILQ_FOREACH (batch, &owner->unsynced, next)
		if (batch->serial == ack->serial && batch->via == link)
			break;
	if (!batch) /* above UNSYNCED_MAX nothing waits for it */
		return true;
	if (!failed_fit(batch->count, ack->n_failed, ack->failed))
		return false;
	STAILQ_REMOVE(&owner->unsynced, batch, batch, next);
	owner->unsynced_count--;
	for (unsigned i = 0; i < batch->count; i++) {
		struct dir_target *target = batch->target[i];
		bool no = failed < ack->n_failed && ack->failed[failed] == i;

		failed += no;
		target_resolve(dir, target,
			no            ? OUTCOME_VOLATILE
			: target->had ? OUTCOME_DONE
				      : OUTCOME_FAILED);
	}
	free(batch);
	return true;
}

/* ---- this engine ----------------------------------------------------------------------------- */

#define PLACES_MAX 2u /* of a page at one engine: in memory, and on disk */
#define ABSENT_MAX 8u /* entries of one key that are examined */

static void acknowledge(struct rpc_link *link, const Pc__Ack *ack)
{
	Pc__Ack copy = *ack;
	Pc__Message message = PC__MESSAGE__INIT;

	message.body_case = PC__MESSAGE__BODY_ACK;
	message.ack = &copy;
	rpc_reply(link, &message);
}

static void forgets_tell(struct directory *dir, const struct forgets *forgets)
{
	Pc__Ack ack = PC__ACK__INIT;

	ack.serial = forgets->serial;
	ack.synced = true;
	ack.failed = dir->failed;
	for (uint32_t i = 0; i < forgets->count; i++)
		if (forgets->failed[i])
			dir->failed[ack.n_failed++] = i;
	acknowledge(forgets->link, &ack);
}

/* A part has ended. */
static void forgets_end(struct forgets *forgets)
{
	struct dir_target *target = forgets->target;

	if (--forgets->waits)
		return;
	if (target)
		target_resolve(forgets->directory, target,
			forgets->failed[0] ? OUTCOME_VOLATILE
			: target->had      ? OUTCOME_DONE
					   : OUTCOME_FAILED);
	else if (forgets->link)
		forgets_tell(forgets->directory, forgets);
	LIST_REMOVE(forgets, next);
	free(forgets);
}

static void on_synced(struct control *control, void *context, uint32_t cookie, bool durable)
{
	struct forgets *forgets = context;

	(void)control;
	forgets->failed[cookie] |= !durable;
	forgets_end(forgets);
}

static void on_dropped(void *context, uint64_t cookie, enum op_status status)
{
	struct forgets *forgets = context;

	forgets->failed[cookie] |= status != OP_HIT;
	forgets_end(forgets);
}

/* NULL: no memory. The caller ends it once, after all its removals have begun. */
static struct forgets *forgets_new(struct directory *dir, size_t count)
{
	struct forgets *forgets = calloc(1, sizeof(*forgets) + count);

	if (!forgets)
		return NULL;
	forgets->directory = dir;
	forgets->count = (uint32_t)count;
	forgets->waits = 1;
	LIST_INSERT_HEAD(&dir->forgets, forgets, next);
	return forgets;
}

void forgets_drop(struct directory *dir, const struct rpc_link *link)
{
	struct forgets *forgets;

	LIST_FOREACH (forgets, &dir->forgets, next)
		if (!link || forgets->link == link)
			forgets->link = NULL;
}

/* Where this engine has the page: in memory, on disk. */
static unsigned places_of(
	const struct directory *dir, const struct page_key *key, struct location ret_at[PLACES_MAX])
{
	struct control *control = dir->control;
	const struct index_entry *entry = index_find(control->index, key);
	struct disk_page page;
	unsigned count = 0;

	if (entry)
		ret_at[count++] = (struct location){.ref = control->ref,
			.place = entry->place,
			.generation = entry->generation};
	if (tier_find(control, key, &page))
		ret_at[count++] = (struct location){
			.ref = control->ref, .place = page.place, .generation = page.generation};
	return count;
}

/*
 * Removes the entries of a page that this engine had at these places. If an earlier remove of the
 * key, of an eviction or of another client, is in flight, one that names no entry follows it.
 */
static void entries_drop(struct forgets *forgets, uint32_t i, const struct page_key *key,
	const struct location *at, unsigned places)
{
	struct directory *dir = forgets->directory;
	const struct location none = {.ref = dir->control->ref};
	const struct waiter waiter = {
		.deadline_ns = net_now() +
			       (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull,
		.done = on_dropped,
		.context = forgets,
		.cookie = i};

	if (places == 0 && !entry_removing(dir, key))
		return;
	for (unsigned k = 0; k < places || k == 0; k++) {
		forgets->waits++;
		entry_remove(dir, key, places ? &at[k] : &none, &waiter);
	}
}

/* Entries here of members that left the map, which may come back with the page. */
static void absent_drop(struct directory *dir, const struct page_key *key)
{
	struct shard *shard = dir->control->shard;
	struct dir_entry found[ABSENT_MAX];
	unsigned count = dir->departeds ? shard_find(shard, key, found, ABSENT_MAX) : 0;

	for (unsigned i = 0; i < count; i++)
		if (!member_by_ref(dir->control, found[i].ref))
			(void)shard_remove(
				shard, key, found[i].ref, found[i].place, found[i].generation);
}

/*
 * Removes the page of the i-th key. Returns whether this engine had it. A removal that this engine
 * is told anew, or that comes again because its link has closed, takes no page that was set since;
 * with a disk the latter is executed, since its tombstone may not be durable.
 */
static bool key_forget(
	struct forgets *forgets, uint32_t i, const struct removal *removal, bool missed)
{
	struct directory *dir = forgets->directory;
	const struct page_key *key = &removal->key;
	const struct forget_wait wait = {.done = on_synced, .context = forgets, .cookie = i};
	struct location at[PLACES_MAX];
	bool again = removals_done(dir->control, removal) && (missed || !dir->control->tier);
	unsigned places = again ? 0 : places_of(dir, key, at);
	bool had;

	entries_drop(forgets, i, key, at, places);
	if (again)
		return false;
	removals_add(dir->control, removal);
	absent_drop(dir, key);
	forgets->waits++;
	switch (page_forget(dir->control, key, &wait, &had)) {
	case FORGET_DURABLE: forgets->waits--; break;
	case FORGET_VOLATILE:
		forgets->waits--;
		forgets->failed[i] = true;
		break;
	case FORGET_LATER: break;
	}
	return had;
}

static struct removal removal_of(const struct page_key *key, uint32_t place, uint32_t generation)
{
	return (struct removal){.key = *key, .number = (uint64_t)generation << 32 | place};
}

void removal_again(struct directory *dir, const struct dir_update *update)
{
	const struct removal removal =
		removal_of(&update->key, update->at.place, update->at.generation);

	removals_add(dir->control, &removal);
}

void forget_here(struct directory *dir, struct dir_target *target)
{
	const struct dir_update *update = target->update;
	const struct removal removal =
		removal_of(&update->key, update->at.place, update->at.generation);
	struct forgets *forgets = forgets_new(dir, 1);

	if (!forgets) {
		log_error("no memory for a removal: the page stays");
		target_resolve(dir, target, OUTCOME_VOLATILE);
		return;
	}
	forgets->target = target;
	target->had = key_forget(forgets, 0, &removal, false);
	forgets_end(forgets);
}

bool directory_serve_forget(
	struct control *control, struct rpc_link *link, const Pc__Forget *message)
{
	struct directory *dir = control->directory;
	struct forgets *forgets;
	Pc__Ack ack = PC__ACK__INIT;

	if (!entries_fit(message->n_entries, message->entries))
		return false;
	forgets = forgets_new(dir, message->n_entries);
	if (!forgets) {
		log_error("no memory to answer removals: they are sent again");
		rpc_link_close(link);
		return true;
	}
	for (size_t i = 0; i < message->n_entries; i++) {
		const Pc__Entry *entry = message->entries[i];
		const struct page_key key = entry_key(entry);
		const struct removal removal = removal_of(&key, entry->place, entry->generation);

		if (!key_forget(forgets, (uint32_t)i, &removal, entry->ref != 0))
			dir->failed[ack.n_failed++] = (uint32_t)i;
		ack.later |= forgets->waits > 1 || forgets->failed[i];
	}
	ack.serial = forgets->serial = message->serial;
	ack.failed = dir->failed;
	ack.later &= message->wait;
	forgets->link = ack.later ? link : NULL;
	acknowledge(link, &ack);
	forgets_end(forgets);
	return true;
}
