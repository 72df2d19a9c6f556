/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Migration after a map change: publishes our keys to owners that do not have them, later removes
 * them from former owners, and sweeps the entries of dead members from our shard; all of it in
 * small slices. Control plane's thread only.
 *
 * The walk compares the present map with `settled`, the map of the last finished walk, so the
 * number of maps in between does not matter. A map change while it publishes does not stop it, so
 * that changes without end cannot keep a key from its owners for ever; a second walk follows,
 * because the first one compared its first keys with a map that is out of date. A member that died,
 * even for a moment, or whose Hello shows that it has dropped our entries, counts as an owner of
 * nothing in the older maps. Entries are not removed from a former owner before the walk has
 * finished: until then a further change may make it an owner again, and the walk would not publish
 * to it. An owner whose queue is full is left to its own walk (directory_behind.c).
 */
#include <string.h>

#include "engine/control/directory_state.h"
#include "engine/control/member.h"

static void pasts_forget(struct directory *dir, uint32_t ref)
{
	past_forget(&dir->settled, ref);
	past_forget(&dir->target, ref);
	for (unsigned i = 0; i < dir->formers; i++)
		past_forget(&dir->former[i], ref);
}

static void formers_drop(struct directory *dir)
{
	while (dir->formers)
		past_drop(&dir->former[--dir->formers]);
}

/*
 * Remembers a former map, so that its owners can be told to remove migrated entries. Beyond
 * FORMER_MAX maps, the stale entries stay until a reader reports them.
 */
static void former_add(struct directory *dir, const struct past *past)
{
	if (dir->formers < FORMER_MAX)
		past_set(&dir->former[dir->formers++], past);
	else
		dir->between_lost = true;
}

static void slice_after(struct directory *dir, uint64_t ms)
{
	(void)net_timer_set(dir->move, ms * 1000);
}

static void slice_at(struct directory *dir, uint64_t at_ns, uint64_t now_ns)
{
	slice_after(dir, at_ns > now_ns ? (at_ns - now_ns) / 1000000 + 1 : MOVE_PACE_MS);
}

void move_soon(struct directory *dir)
{
	if (!dir->move_soon)
		slice_after(dir, MOVE_PACE_MS);
	dir->move_soon = true;
}

/*
 * Called at each change of the map, or of what owners have. The walk begins once no change has come
 * for MOVE_QUIET_NS, because members often join or leave together; but changes without end delay it
 * by MOVE_QUIET_MAX_NS at most, and end MOVE_INTERRUPTED_MAX comparisons at most. A walk that
 * publishes already goes on to its end, and a further one follows.
 */
static void walk_start(struct directory *dir)
{
	uint64_t now_ns = net_now(), last_ns;

	move_soon(dir);
	digests_stale(dir);
	if (dir->phase == MOVE_WALK && dir->cursor) {
		dir->again = true;
		return;
	}
	dir->interrupted += dir->phase == MOVE_COUNT || dir->phase == MOVE_AWAIT;
	if (dir->phase != MOVE_ASK)
		dir->changed_ns = now_ns;
	if (!move_publishing(dir)) {
		dir->between = dir->formers;
		dir->between_lost = false;
	}
	last_ns = dir->changed_ns + MOVE_QUIET_MAX_NS;
	dir->walk_ns = now_ns + MOVE_QUIET_NS < last_ns ? now_ns + MOVE_QUIET_NS : last_ns;
	dir->phase = MOVE_ASK;
	dir->cursor = 0;
}

void move_again(struct directory *dir)
{
	compare_end(dir);
	former_add(dir, &dir->settled);
	past_drop(&dir->settled);
	walk_start(dir);
}

bool move_publishing(const struct directory *dir)
{
	return dir->phase >= MOVE_ASK && dir->phase <= MOVE_WALK;
}

/* ---- changes of the members ------------------------------------------------------------------ */

void directory_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	struct directory *dir = control->directory;
	struct owner *owner = owner_at(dir, peer);

	compare_end(dir);
	if (owner->ref == ref) {
		owner->ref = 0;
		owner_clear(dir, owner);
	}
	pasts_forget(dir, ref);
	departed_add(dir, ref);
	walk_start(dir);
}

void directory_forgotten(struct control *control, uint32_t ref)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (!dir)
		return;
	compare_end(dir);
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref == ref)
			digest_forgotten(owner);
	pasts_forget(dir, ref);
	walk_start(dir);
}

/* ---- orphans --------------------------------------------------------------------------------- */

/*
 * Finds a new owner for a publish whose owner has died. Only publishes that a client waits for are
 * sent here at once; the walk publishes every other key.
 */
static void orphan_place(struct directory *dir, struct item *item)
{
	const struct map_view *view = member_map(dir->control);
	struct claim *claim = item->claim;
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = map_owners(view, &claim->key, owner);

	if (claim->verb != VERB_PUBLISH || !claim->done)
		owners = 0;
	item->ref = 0; /* the dead owner may be back with its old ref */
	for (unsigned i = 0; i < owners; i++) {
		uint32_t ref = view->owner[owner[i]].ref;
		const struct member_record *to = member_by_ref(dir->control, ref);

		if (!to || claim_has(claim, ref) || !owner_takes(dir, ref, claim->place))
			continue;
		item->ref = ref;
		item->peer = to->peer;
		if (ref == dir->control->ref)
			item_resolve(dir, item, claim_do_here(dir, claim));
		else
			item_queue(dir, item);
		claim_check(dir, claim);
		return;
	}
	item_resolve(dir, item, OUTCOME_LOST);
}

/* An owner of each other member, in the order of their peer numbers. */
static void owners_make(struct directory *dir)
{
	const struct member_table *table = &dir->control->member->table;

	for (unsigned peer = 0; peer < table->peers_used; peer++) {
		const struct member_entry *entry = member_table_peer(table, peer);

		if (entry && !entry->record.self)
			(void)owner_make(dir, (uint16_t)peer);
	}
}

void directory_map_changed(struct control *control)
{
	struct directory *dir = control->directory;
	const struct past now = {.view = member_map(control)};
	struct items orphans = TAILQ_HEAD_INITIALIZER(orphans);
	struct owner *owner;
	struct item *item;

	compare_end(dir);
	if (owners_few(dir))
		owners_make(dir);
	STAILQ_FOREACH (owner, &dir->owners, next)
		owner_adopt(dir, owner);
	if (move_publishing(dir))
		former_add(dir, &dir->target);
	past_set(&dir->target, &now);
	TAILQ_CONCAT(&orphans, &dir->orphans, next);
	while ((item = TAILQ_FIRST(&orphans))) {
		TAILQ_REMOVE(&orphans, item, next);
		orphan_place(dir, item);
	}
	walk_start(dir);
}

/* ---- the walk -------------------------------------------------------------------------------- */

struct owner_set {
	unsigned count;
	uint32_t ref[REPLICAS_MAX];
};

static void owners_of(const struct past *past, const struct page_key *key, struct owner_set *ret)
{
	ret->count = past_owners(past, key, ret->ref);
}

static void owners_now(
	const struct directory *dir, const struct page_key *key, struct owner_set *ret)
{
	const struct past now = {.view = member_map(dir->control)};

	owners_of(&now, key, ret);
}

static bool set_has(const struct owner_set *set, uint32_t ref)
{
	for (unsigned i = 0; i < set->count; i++)
		if (set->ref[i] == ref)
			return true;
	return false;
}

/*
 * The owners that have the entry for certain: those of the settled map, if they are owners by every
 * map since then, too. A page that was set meanwhile was published by one of those maps only.
 */
static void owners_before(
	const struct directory *dir, const struct page_key *key, struct owner_set *ret)
{
	struct owner_set between;
	unsigned count = 0;

	owners_of(&dir->settled, key, ret);
	if (dir->between_lost)
		ret->count = 0;
	for (unsigned m = dir->between; m < dir->formers; m++, ret->count = count) {
		owners_of(&dir->former[m], key, &between);
		count = 0;
		for (unsigned i = 0; i < ret->count; i++)
			if (set_has(&between, ret->ref[i]))
				ret->ref[count++] = ret->ref[i];
	}
}

/* `cursor`: the position in the index at which the copied part that contains `entry` begins. */
static void publish_to_new(struct directory *dir, const struct index_entry *entry, uint64_t cursor)
{
	struct owner_set before, after;
	struct claim *claim = NULL;

	owners_before(dir, &entry->key, &before);
	owners_now(dir, &entry->key, &after);
	for (unsigned i = 0; i < after.count; i++) {
		struct owner *owner;

		if (set_has(&before, after.ref[i]) || !owner_takes(dir, after.ref[i], entry->place))
			continue;
		owner = owner_of(dir, after.ref[i]);
		if (owner && (owner->behind || owner->background >= OWNER_WALK_MAX)) {
			owner_behind(owner, cursor);
			continue;
		}
		if (owner && digest_equal(owner, &entry->key)) {
			dir->control->counter[COUNTER_entries_kept]++;
			continue;
		}
		if (!claim)
			claim = claim_new(dir, VERB_PUBLISH, &entry->key, entry->place,
				entry->generation, REPLICAS_MAX);
		if (!claim)
			return;
		claim_add(dir, claim, after.ref[i]);
	}
	if (claim)
		claim_start(dir, claim);
}

static bool set_lags(struct directory *dir, const struct owner_set *set)
{
	for (unsigned i = 0; i < set->count; i++) {
		const struct owner *owner = owner_of(dir, set->ref[i]);

		if (owner && owner_lags(dir, owner))
			return true;
	}
	return false;
}

static void remove_from_former(struct directory *dir, const struct index_entry *entry)
{
	struct owner_set before = {.count = 0}, after;
	struct claim *claim = NULL;

	owners_now(dir, &entry->key, &after);
	if (set_lags(dir, &after)) {
		dir->untidy = true;
		return;
	}
	for (unsigned i = 0; i < dir->formers * REPLICAS_MAX; i++) {
		unsigned nth = i % REPLICAS_MAX;

		if (nth == 0)
			owners_of(&dir->former[i / REPLICAS_MAX], &entry->key, &before);
		if (nth >= before.count || set_has(&after, before.ref[nth]))
			continue;
		if (!claim)
			claim = claim_new(dir, VERB_REMOVE, &entry->key, entry->place,
				entry->generation, FORMER_MAX * REPLICAS_MAX);
		if (!claim)
			return;
		claim->ref = dir->control->ref;
		claim_add(dir, claim, before.ref[nth]);
	}
	if (claim)
		claim_start(dir, claim);
}

static void tidy_later(struct directory *dir)
{
	dir->tidy_ns =
		net_now() + (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull;
}

/*
 * Entries whose new owner is slow to acknowledge stay with their former owner. Removing them is
 * tried again after dead_after_ms, until no owner is behind.
 */
static void tidy_start(struct directory *dir)
{
	if (dir->untidy && behind_any(dir)) {
		tidy_later(dir);
		return;
	}
	dir->untidy = false;
	dir->phase = MOVE_TIDY;
}

static void walk_end(struct directory *dir)
{
	if (dir->phase == MOVE_TIDY && !dir->untidy) {
		formers_drop(dir);
		dir->phase = MOVE_NONE;
		return;
	}
	if (dir->phase == MOVE_COUNT) {
		dir->phase = MOVE_AWAIT;
		return;
	}
	if (dir->comparing) {
		compare_end(dir);
		return;
	}
	if (dir->phase == MOVE_WALK && dir->again) {
		dir->again = false;
		dir->cursor = 0;
		walk_start(dir);
		return;
	}
	if (dir->phase == MOVE_WALK) {
		former_add(dir, &dir->settled);
		past_set(&dir->settled, &dir->target);
		dir->untidy = false;
		digests_end(dir);
		dir->interrupted = 0;
	}
	dir->phase = MOVE_WAIT;
	tidy_later(dir);
}

static void walk_slice(struct directory *dir)
{
	struct index_entry entries[MOVE_PART];

	for (unsigned looked = 0; looked < MOVE_KEYS; looked += MOVE_PART) {
		uint64_t from = dir->cursor;
		unsigned count = pages_walk(dir, &dir->cursor, MOVE_PART, entries);

		for (unsigned i = 0; i < count; i++)
			if (dir->phase == MOVE_COUNT)
				digest_count(dir, &entries[i]);
			else if (dir->comparing)
				compare_page(dir, &entries[i], from);
			else if (dir->phase == MOVE_WALK)
				publish_to_new(dir, &entries[i], from);
			else
				remove_from_former(dir, &entries[i]);
		if (dir->cursor == 0) {
			walk_end(dir);
			return;
		}
	}
}

static bool walking(const struct directory *dir)
{
	return dir->phase == MOVE_COUNT || dir->phase == MOVE_WALK || dir->phase == MOVE_TIDY;
}

static void move_step(struct directory *dir, uint64_t now_ns)
{
	if (dir->phase == MOVE_ASK && now_ns >= dir->walk_ns)
		dir->phase = dir->interrupted < MOVE_INTERRUPTED_MAX && digests_ask(dir)
				     ? MOVE_COUNT
				     : MOVE_WALK;
	if (dir->phase == MOVE_AWAIT && dir->comparing) {
		if (!digests_wait(dir, DIGEST_WAIT_NS))
			compare_answers(dir);
	} else if (dir->phase == MOVE_AWAIT && !digests_wait(dir, DIGEST_PATIENCE_NS)) {
		digests_leave(dir);
		dir->phase = MOVE_WALK;
	}
	if (dir->phase == MOVE_WAIT && now_ns >= dir->tidy_ns)
		tidy_start(dir);
	if (walking(dir))
		walk_slice(dir);
}

void move_slice(void *context)
{
	struct directory *dir = context;
	uint64_t now_ns = net_now();

	dir->move_soon = false;
	move_step(dir, now_ns);
	behind_slice(dir);
	if (dir->sweep_left)
		sweep_slice(dir);
	digests_slice(dir);
	if (dir->phase == MOVE_AWAIT || walking(dir) || dir->sweep_left || behind_ready(dir) ||
		!TAILQ_EMPTY(&dir->asked) || digests_wait(dir, DIGEST_WAIT_NS))
		move_soon(dir);
	else if (dir->phase == MOVE_ASK || dir->phase == MOVE_WAIT)
		slice_at(dir, dir->phase == MOVE_ASK ? dir->walk_ns : dir->tidy_ns, now_ns);
}
