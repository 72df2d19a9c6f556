/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates: one key to be published, removed or forgotten at several members. An update has one
 * target for each of them, and lasts until each has acknowledged it or is dead. Those that have a
 * waiter are looked at for their deadlines now and then; a finished update calls its `done`. The
 * functions of directory.h that change entries are here: each turns its request into an update for
 * the owners of the key. Control plane's thread only.
 *
 * A target that no client waits for counts against its owner's limit. Above the limit a publish is
 * skipped: the owner lacks the slot, and its walk makes up for it (directory_compare.c). A remove
 * above its limit is dropped: the owner is compared with.
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

#define ANSWER_ROUNDS 8

/* Limit of updates that no client waits for, above which removes of lost pages wait */
#define BUSY_CLAIMS 2048u
#define PLACES_MAX 2u  /* of a page at one engine: in memory, and on disk */
#define ENTRIES_MAX 8u /* entries of one key that a removal drops */

/* ---- results --------------------------------------------------------------------------------- */

static void update_answer(struct directory *dir, struct dir_update *update, enum op_status status)
{
	if (dir->waits.next == update)
		dir->waits.next = TAILQ_NEXT(update, waits);
	TAILQ_REMOVE(&dir->waits.list, update, waits);
	update->answered = true;
	update->status = (uint8_t)status;
	STAILQ_INSERT_TAIL(&dir->finished, update, finished);
	/* Makes the event loop call directory_flush() before this turn ends */
	net_defer(dir->wake);
}

/* Without memory for the timer, the next update that waits arms it. */
static void waits_arm(struct directory *dir)
{
	uint64_t ms = dir->waits.next ? 1 : DUE_LOOK_MS;

	if (!dir->waits.armed && !TAILQ_EMPTY(&dir->waits.list))
		dir->waits.armed = net_timer_set(dir->waits.timer, ms * 1000) == 0;
}

void updates_due(void *context)
{
	struct directory *dir = context;
	struct waits *waits = &dir->waits;
	struct dir_update *update;
	uint64_t now_ns = net_now();

	if (!waits->next)
		waits->next = TAILQ_FIRST(&waits->list);
	for (unsigned n = 0; n < DUE_LOOKS && waits->next; n++) {
		update = waits->next;
		waits->next = TAILQ_NEXT(update, waits);
		if (update->waiter.deadline_ns <= now_ns)
			update_answer(dir, update, OP_TIMEOUT);
	}
	waits->armed = false;
	waits_arm(dir);
}

static void update_end(struct directory *dir, struct dir_update *update)
{
	dir->partial -= update->partial;
	dir->background -= update->background;
	free(update);
}

static void target_count(struct dir_target *target, enum outcome outcome)
{
	target->resolved = true;
	if (outcome == OUTCOME_DONE)
		target->update->acked++;
	else if (outcome == OUTCOME_FAILED)
		target->update->refused++;
	else if (target->update->kind != DIR_PUBLISH)
		target->update->lost++;
}

/* A set is acknowledged: at least one owner has its entry. `partial`: not all of them have. */
static void set_acknowledged(struct directory *dir, struct dir_update *update, bool partial)
{
	dir->control->counter[COUNTER_sets_partial] += partial;
	update_answer(dir, update, OP_HIT);
}

/* Answers a publish that waits for suspect owners only. Does not free the update. */
static void update_check(struct directory *dir, struct dir_update *update)
{
	unsigned waiting = 0, suspects = 0;
	enum publish_verdict verdict;

	if (update->kind != DIR_PUBLISH || !update->started || !update->waiter.done ||
		update->answered)
		return;
	for (unsigned i = 0; i < update->targets; i++) {
		const struct dir_target *target = &update->target[i];
		const struct owner *owner = owner_at(dir, target->peer);

		if (target->resolved)
			continue;
		waiting++;
		suspects += owner->ref == target->ref && suspect_steers(owner->why);
	}
	verdict = publish_judge(update->acked, waiting, suspects);
	if (verdict == PUBLISH_UNREACHABLE)
		update_answer(dir, update, OP_PEER_DOWN);
	if (verdict != PUBLISH_PARTIAL)
		return;
	update->partial = true;
	dir->partial++;
	set_acknowledged(dir, update, true);
}

/* Answers an update whose owners have all answered. */
static void update_settle(struct directory *dir, struct dir_update *update)
{
	if (update->lost)
		update_answer(dir, update, OP_PEER_DOWN);
	else if (update->acked && update->kind == DIR_PUBLISH)
		set_acknowledged(dir, update, update->refused != 0);
	else if (update->acked || update->kind == DIR_REMOVE)
		update_answer(dir, update, OP_HIT);
	else if (update->kind == DIR_FORGET)
		update_answer(dir, update, OP_MISS);
	else
		update_answer(dir, update, update->refused ? OP_NO_SPACE : OP_PEER_DOWN);
}

/* A part of the update has ended. May free the update. */
static void update_release(struct directory *dir, struct dir_update *update)
{
	if (--update->pending)
		update_check(dir, update);
	else if (!update->waiter.done)
		update_end(dir, update);
	else if (!update->answered)
		update_settle(dir, update);
}

void waiters_check(struct directory *dir, struct owner *owner)
{
	struct batch *batch;
	struct dir_target *target;

	STAILQ_FOREACH (batch, &owner->batches, next)
		for (unsigned i = 0; i < batch->count; i++)
			update_check(dir, batch->target[i]->update);
	TAILQ_FOREACH (target, &owner->queue[DIR_PUBLISH], next)
		update_check(dir, target->update);
}

/* ---- targets that no client waits for -------------------------------------------------------- */

bool owner_full(const struct directory *dir, const struct owner *owner, enum dir_kind kind)
{
	if (kind == DIR_PUBLISH)
		return owner->background >= OWNER_PUBLISHES_MAX;
	return owner->background >= OWNER_REMOVES_MAX || dir->background > BACKGROUND_MAX;
}

static void target_leave_out(
	struct directory *dir, struct owner *owner, const struct dir_update *update)
{
	struct control *control = dir->control;
	const struct member_record *record = member_by_peer(control, owner->peer);
	struct member_texts texts;

	if (update->kind == DIR_PUBLISH) {
		control->counter[COUNTER_publishes_deferred]++;
		lack_add(dir, owner, map_slot_of(&update->key));
	} else {
		control->counter[COUNTER_removes_dropped]++;
		owner->unsure = true;
	}
	if (owner->warned || !record)
		return;
	owner->warned = true;
	member_texts(record, &texts);
	log_warn(
		"member %s (%s:%u) is behind with %u directory messages: publishes to it are deferred, removes are dropped. If this lasts, restart its engine",
		texts.name, texts.address, record->port, owner->background);
}

/*
 * No client waits for the target any more: counts it against its owner's limit, or drops it if that
 * limit is reached.
 */
static void target_background(struct directory *dir, struct dir_target *target)
{
	struct owner *owner = owner_at(dir, target->peer);
	enum dir_kind kind = (enum dir_kind)target->update->kind;

	if (owner->ref != target->ref) /* it has died: this part of the update is in dir->orphans */
		return;
	if (!target->sent && (kind == DIR_FORGET || owner_full(dir, owner, kind))) {
		TAILQ_REMOVE(&owner->queue[kind], target, next);
		owner->queued[kind]--;
		if (kind != DIR_FORGET) /* later it could meet a page that was set since */
			target_leave_out(dir, owner, target->update);
		target_resolve(dir, target, OUTCOME_LOST);
		return;
	}
	target->background = true;
	owner->background++;
}

void target_background_end(struct directory *dir, struct dir_target *target)
{
	struct owner *owner = owner_at(dir, target->peer);

	if (!target->background)
		return;
	target->background = false;
	if (--owner->background == 0 && !owner->walk.slots)
		owner->warned = false;
}

void target_resolve(struct directory *dir, struct dir_target *target, enum outcome outcome)
{
	struct dir_update *update = target->update;

	target_background_end(dir, target);
	target_count(target, outcome);
	update_release(dir, update);
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

/* ---- updates --------------------------------------------------------------------------------- */

/*
 * An update with room for `room` targets. NULL: no memory, and the waiter was answered. The caller
 * must pass it to update_start(), which may free it.
 */
static struct dir_update *update_new(
	struct directory *dir, const struct dir_request *request, unsigned room)
{
	struct dir_update *update = calloc(1, sizeof(*update) + room * sizeof(update->target[0]));
	const struct waiter *waiter = request->waiter;

	if (!update) {
		log_error("no memory for a directory entry's message");
		if (waiter)
			waiter->done(waiter->context, waiter->cookie, OP_NO_SPACE);
		return NULL;
	}
	dir->published |= request->kind == DIR_PUBLISH;
	update->kind = (uint8_t)request->kind;
	update->evicted = (uint8_t)request->evicted;
	update->key = request->key;
	update->at = request->at;
	update->room = (uint16_t)room;
	update->pending = 1;
	update->background = !waiter;
	dir->background += update->background;
	if (!waiter)
		return update;
	update->waiter = *waiter;
	TAILQ_INSERT_TAIL(&dir->waits.list, update, waits);
	waits_arm(dir);
	return update;
}

static bool update_has(const struct dir_update *update, uint32_t ref)
{
	for (unsigned i = 0; i < update->targets; i++)
		if (update->target[i].ref == ref)
			return true;
	return false;
}

/*
 * The owner knows more of a page that was published. Whether it is a copy is for the first owner to
 * say, and only of a page that a client has stored: two owners may see two hosts in either order.
 */
static void target_again(struct directory *dir, const struct dir_target *target, enum evicted why)
{
	const struct dir_update *update = target->update;

	if (why != EVICTED_COPY || (target == update->target && !update->background))
		page_again(dir->control, &update->at, why);
}

/* Takes the page of the key out of this engine, and its entries out of this engine's shard. */
static bool key_forget(struct directory *dir, const struct page_key *key);

/* What the update does at this engine: in its own shard, or to its own page. */
static enum outcome update_do_here(struct directory *dir, const struct dir_update *update)
{
	struct location at = update->at;
	enum evicted evicted;
	bool done;

	if (update->kind == DIR_FORGET)
		return key_forget(dir, &update->key) ? OUTCOME_DONE : OUTCOME_FAILED;
	if (update->kind == DIR_REMOVE) {
		entry_delete(dir, &update->key, &at, (enum evicted)update->evicted);
		return OUTCOME_DONE;
	}
	at.ref = dir->control->ref;
	done = entry_insert(dir, &update->key, &at, !update->background, &evicted);
	if (evicted != EVICTED_NOT)
		target_again(dir, &update->target[update->targets - 1], evicted);
	dir->own.refused |= !done;
	return done ? OUTCOME_DONE : OUTCOME_FAILED;
}

/*
 * Adds one member to the update. If it is this engine, the kind is executed at once; otherwise a
 * target is queued. Does nothing if it was added before, or is no live member.
 */
static void update_add(struct directory *dir, struct dir_update *update, uint32_t ref)
{
	const struct member_record *record = member_by_ref(dir->control, ref);
	struct dir_target *target;

	if (!record || update->targets == update->room || update_has(update, ref))
		return;
	target = &update->target[update->targets++];
	target->update = update;
	target->peer = record->peer;
	target->ref = ref;
	if (record->self) {
		target_count(target, update_do_here(dir, update));
		return;
	}
	update->pending++;
	target_queue(dir, target);
	if (update->background)
		target_background(dir, target);
}

/* All members were added. May free the update. */
static void update_start(struct directory *dir, struct dir_update *update)
{
	update->started = true;
	update_release(dir, update);
}

bool update_send(struct directory *dir, const struct dir_request *request, const uint32_t *ref,
	unsigned refs)
{
	struct dir_update *update = update_new(dir, request, refs);

	for (unsigned i = 0; update && i < refs; i++)
		update_add(dir, update, ref[i]);
	if (update)
		update_start(dir, update);
	return update != NULL;
}

/* ---- acknowledgements ------------------------------------------------------------------------ */

/* True if indices ascend, so that none occurs twice, and are below `count`. */
static bool failed_fit(size_t count, size_t failed_count, const uint32_t *failed)
{
	for (size_t i = 0; i < failed_count; i++)
		if (failed[i] >= count || (i > 0 && failed[i] <= failed[i - 1]))
			return false;
	return true;
}

/* The batch with that serial that was sent over this link; NULL: there is none. */
static struct batch *batch_find(
	const struct batches *batches, uint64_t serial, const struct rpc_link *link)
{
	struct batch *batch;

	STAILQ_FOREACH (batch, batches, next)
		if (batch->serial == serial && batch->via == link)
			break;
	return batch;
}

/* `failed`: ascending indices of those that the owner had no room for, or whose page it had not. */
static void batch_resolve(
	struct directory *dir, struct batch *batch, const uint32_t *failed, size_t failed_count)
{
	size_t at = 0;

	for (unsigned i = 0; i < batch->count; i++) {
		bool listed = at < failed_count && failed[at] == i;

		at += listed;
		target_resolve(dir, batch->target[i], listed ? OUTCOME_FAILED : OUTCOME_DONE);
	}
	free(batch);
}

/*
 * Pages of the batch that were evicted lately, or that are copies (Ack.again). The last one first,
 * so that the first one of a prompt is evicted last.
 */
static void batch_again(
	struct directory *dir, const struct batch *batch, const uint32_t *again, size_t count)
{
	for (size_t i = count; i > 0 && batch->kind == DIR_PUBLISH; i--)
		target_again(dir, batch->target[again[i - 1] / AGAIN_KINDS],
			(enum evicted)(again[i - 1] % AGAIN_KINDS));
}

bool directory_serve_ack(struct control *control, struct rpc_link *link, const Pc__Ack *ack)
{
	struct directory *dir = control->directory;
	struct owner *owner = owner_at(dir, link->member->record.peer);
	struct batch *batch = batch_find(&owner->batches, ack->serial, link);

	if (!batch || owner->ref != member_link_ref(link) ||
		!failed_fit(batch->count, ack->n_failed, ack->failed) ||
		!failed_fit(AGAIN_KINDS * (size_t)batch->count, ack->n_again, ack->again))
		return false;
	STAILQ_REMOVE(&owner->batches, batch, batch, next);
	owner->in_flight--;
	batch_again(dir, batch, ack->again, ack->n_again);
	batch_resolve(dir, batch, ack->failed, ack->n_failed);
	owner_served(dir, owner);
	owner_dirty(dir, owner);
	show_next(dir, owner);
	if (owner->walk.slots)
		move_soon(dir);
	return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

void directory_publish(struct control *control, const struct page_key *key,
	const struct location *at, const struct waiter *waiter)
{
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = slot_owners(member_map(control), map_slot_of(key), owner);

	update_send(control->directory,
		&(struct dir_request){DIR_PUBLISH, .key = *key, .at = *at, .waiter = waiter}, owner,
		owners);
}

/* Sends a remove of the entry `at` to the owners of the key. */
static void entry_remove(struct directory *dir, const struct page_key *key,
	const struct location *at, enum evicted evicted)
{
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = slot_owners(member_map(dir->control), map_slot_of(key), owner);

	update_send(dir,
		&(struct dir_request){DIR_REMOVE, .key = *key, .at = *at, .evicted = evicted},
		owner, owners);
}

void directory_evicted(struct control *control, const struct page_key *key,
	const struct location *at, enum evicted from)
{
	const struct location own = {control->ref, at->place, at->generation};

	entry_remove(control->directory, key, &own, from);
}

void directory_remove(
	struct control *control, const struct page_key *key, const struct location *at)
{
	directory_evicted(control, key, at, EVICTED_NOT);
}

/* Where this engine has the page: in memory, on disk. Returns the number of places. */
static unsigned places_of(
	struct control *control, const struct page_key *key, struct location ret_at[PLACES_MAX])
{
	const struct index_entry *entry = index_find(control->index, key);
	struct disk_page page;
	unsigned count = 0;

	if (entry)
		ret_at[count++] = (struct location){control->ref, entry->place, entry->generation};
	if (tier_find(control, key, &page))
		ret_at[count++] = (struct location){control->ref, page.place, page.generation};
	return count;
}

bool location_names(struct control *control, const struct location *at, struct page_key *ret_key)
{
	const struct index_entry *ours;

	if (at->ref != control->ref)
		return false;
	if (place_on_disk(at->place))
		return tier_named(control, at->place, at->generation, ret_key);
	if (!page_key_at(control, at->place, at->generation, ret_key))
		return false;
	ours = index_find(control->index, ret_key);
	return ours && ours->place == at->place;
}

bool location_right(struct control *control, const struct page_key *key, const struct location *at)
{
	uint32_t bits = control->shard->bits;
	struct page_key ours;

	return location_names(control, at, &ours) && dir_tag(&ours) == dir_tag(key) &&
	       dir_bucket_first(&ours, bits) == dir_bucket_first(key, bits);
}

void directory_stale(struct control *control, const struct page_key *key, const struct location *at)
{
	if (at->ref == 0 || page_key_none(key) || location_right(control, key, at))
		return;
	control->counter[COUNTER_entries_stale]++;
	entry_remove(control->directory, key, at, EVICTED_NOT);
}

bool directory_on_disk(struct control *control, const struct disk_page *page)
{
	struct directory *dir = control->directory;
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = slot_owners(member_map(control), map_slot_of(&page->key), owner);
	unsigned takes = 0;
	const struct dir_request request = {DIR_PUBLISH, .key = page->key,
		.at = {.place = page->place, .generation = page->generation}};

	for (unsigned i = 0; i < owners; i++)
		if (owner_of(dir, owner[i]))
			owner[takes++] = owner[i];
	return update_send(dir, &request, owner, takes) && takes == owners;
}

bool directory_busy(const struct control *control)
{
	const struct directory *dir = control->directory;
	uint32_t limit = BUSY_CLAIMS;
	const struct owner *owner;

	if (dir->background <= limit)
		return false;
	/* What waits for a suspect owner has a limit of its own and must not hold the others up. */
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref && suspect_steers(owner->why))
			limit += owner->background;
	return dir->background > limit;
}

void directory_forget(
	struct control *control, const struct page_key *key, const struct waiter *waiter)
{
	struct directory *dir = control->directory;
	const struct member_table *table = members_table(control);
	const struct dir_request request = {DIR_FORGET, .key = *key, .waiter = waiter};
	struct dir_update *update = update_new(dir, &request, member_count(control));

	if (!update)
		return;
	for (unsigned peer = 0; peer < table->peers_used; peer++) {
		const struct member *member = member_table_peer(table, peer);

		if (member)
			update_add(dir, update, member->record.ref);
	}
	update_start(dir, update);
}

/* ---- removals -------------------------------------------------------------------------------- */

/*
 * Drops the entries of all holders, because all members are sent the removal. A publish that is in
 * flight to an owner is followed by the remove of the holder that has sent it.
 */
static bool key_forget(struct directory *dir, const struct page_key *key)
{
	struct control *control = dir->control;
	struct dir_entry found[ENTRIES_MAX];
	struct location at[PLACES_MAX];
	unsigned places = places_of(control, key, at);
	unsigned count = shard_find(control->shard, key, found, ENTRIES_MAX);
	bool had = page_forget(control, key);

	for (unsigned i = 0; i < count; i++)
		(void)shard_remove(
			control->shard, key, found[i].ref, found[i].place, found[i].generation);
	for (unsigned i = 0; i < places; i++)
		entry_remove(dir, key, &at[i], EVICTED_NOT);
	return had;
}

bool directory_serve_forget(
	struct control *control, struct rpc_link *link, const Pc__Forget *message)
{
	struct directory *dir = control->directory;
	Pc__Ack ack = PC__ACK__INIT;

	if (!entries_fit(message->n_entries, message->entries))
		return false;
	for (size_t i = 0; i < message->n_entries; i++) {
		const struct page_key key = entry_key(message->entries[i]);

		if (!key_forget(dir, &key))
			dir->failed[ack.n_failed++] = (uint32_t)i;
	}
	ack.serial = message->serial;
	ack.failed = dir->failed;
	ack_reply(link, &ack);
	return true;
}

/* ---- owners that are gone -------------------------------------------------------------------- */

/*
 * Finds a new owner for a publish whose owner has died. Only publishes that a client waits for are
 * sent here at once; walks publish every other key.
 */
static void orphan_place(struct directory *dir, struct dir_target *target)
{
	struct dir_update *update = target->update;
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = slot_owners(member_map(dir->control), map_slot_of(&update->key), owner);

	if (update->kind != DIR_PUBLISH) {
		target_resolve(dir, target, OUTCOME_LOST);
		return;
	}
	if (!update->waiter.done)
		owners = 0;
	target->ref = 0; /* the dead owner may be back with its old ref */
	for (unsigned i = 0; i < owners; i++) {
		const struct member_record *to = member_by_ref(dir->control, owner[i]);

		if (!to || update_has(update, owner[i]))
			continue;
		target->ref = owner[i];
		target->peer = to->peer;
		if (to->self)
			target_resolve(dir, target, update_do_here(dir, update));
		else
			target_queue(dir, target);
		update_check(dir, update);
		return;
	}
	target_resolve(dir, target, OUTCOME_LOST);
}

void orphans_place(struct directory *dir)
{
	struct dir_targets orphans = TAILQ_HEAD_INITIALIZER(orphans);
	struct dir_target *target;

	TAILQ_CONCAT(&orphans, &dir->orphans, next);
	while ((target = TAILQ_FIRST(&orphans))) {
		TAILQ_REMOVE(&orphans, target, next);
		orphan_place(dir, target);
	}
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

	while (!TAILQ_EMPTY(&dir->waits.list))
		update_answer(dir, TAILQ_FIRST(&dir->waits.list), OP_CANCELLED);
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
}
