/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Migration after a change of the map: which owners lack which slots then (directory_slots.c), when
 * their walks begin (directory_walk.c), and when former owners are sent removes of the entries. All
 * of it in small steps. Control plane's thread only.
 *
 * The walks begin once no change has come for MOVE_QUIET_NS, because members often join or leave
 * together; changes without end delay them by MOVE_QUIET_MAX_NS at most. A change while walks are
 * in progress does not stop them: it adds slots that have new owners, and takes away those that
 * have moved on. A member that died, even for a moment, or whose Hello shows that it has dropped
 * our entries, lacks all its slots; it is asked first which entries it still has
 * (directory_digest.c). Entries are not removed from a former owner before all owners of the slot
 * have them.
 */
#include "engine/control/directory_state.h"
#include "engine/control/member.h"
#include "engine/control/removals.h"

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

/* Called at each change of the map, or of what owners have. `busy`: walks are in progress. */
static void walk_start(struct directory *dir, bool busy)
{
	uint64_t now_ns = net_now(), last_ns;

	move_soon(dir);
	digests_stale(dir);
	dir->interrupted += dir->phase == MOVE_COUNT || dir->phase == MOVE_AWAIT;
	if (dir->phase != MOVE_ASK) {
		dir->changed_ns = now_ns;
		dir->held = !busy;
	}
	last_ns = dir->changed_ns + MOVE_QUIET_MAX_NS;
	dir->walk_ns = now_ns + MOVE_QUIET_NS < last_ns ? now_ns + MOVE_QUIET_NS : last_ns;
	dir->phase = MOVE_ASK;
}

/* The owners of `was`, less those that have dropped our entries, have become the present ones. */
static void follow(struct directory *dir, const struct past *was)
{
	const struct past now = {.view = member_map(dir->control)};
	bool busy = dir->lacking != 0;

	compare_end(dir);
	lacks_follow(dir, was, now.view);
	past_set(&dir->settled, &now);
	walk_start(dir, busy);
}

void move_again(struct directory *dir)
{
	const struct past none = {.view = NULL};

	follow(dir, &none);
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

	if (owner->ref == ref) {
		owner->ref = 0;
		owner_clear(dir, owner);
	}
	past_forget(&dir->settled, ref);
	departed_add(dir, ref);
}

void directory_forgotten(struct control *control, uint32_t ref)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (!dir)
		return;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref == ref)
			digest_forgotten(owner);
	past_forget(&dir->settled, ref);
	follow(dir, &dir->settled);
}

/* ---- orphans --------------------------------------------------------------------------------- */

/*
 * Finds a new owner for a publish whose owner has died. Only publishes that a client waits for are
 * sent here at once; walks publish every other key.
 */
static void orphan_place(struct directory *dir, struct dir_target *target)
{
	const struct map_view *view = member_map(dir->control);
	struct dir_update *update = target->update;
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = map_owners(view, &update->key, owner);

	if (update->kind != DIR_PUBLISH || !update->waiter.done)
		owners = 0;
	target->ref = 0; /* the dead owner may be back with its old ref */
	for (unsigned i = 0; i < owners; i++) {
		uint32_t ref = view->owner[owner[i]].ref;
		const struct member_record *to = member_by_ref(dir->control, ref);

		if (!to || update_has(update, ref) || !owner_takes(dir, ref, update->at.place))
			continue;
		target->ref = ref;
		target->peer = to->peer;
		if (ref == dir->control->ref)
			target_resolve(dir, target, update_do_here(dir, update));
		else
			target_queue(dir, target);
		update_check(dir, update);
		return;
	}
	target_resolve(dir, target, OUTCOME_LOST);
}

/* An owner of each other member, in the order of their peer numbers. */
static void owners_make(struct directory *dir)
{
	const struct member_table *table = &dir->control->members->table;

	for (unsigned peer = 0; peer < table->peers_used; peer++) {
		const struct member *entry = member_table_peer(table, peer);

		if (entry && !entry->record.self)
			(void)owner_make(dir, (uint16_t)peer);
	}
}

void directory_map_changed(struct control *control)
{
	struct directory *dir = control->directory;
	struct dir_targets orphans = TAILQ_HEAD_INITIALIZER(orphans);
	struct owner *owner;
	struct dir_target *target;

	if (owners_few(dir))
		owners_make(dir);
	STAILQ_FOREACH (owner, &dir->owners, next)
		owner_adopt(dir, owner);
	if (!past_is(&dir->settled, member_map(control)))
		follow(dir, &dir->settled);
	TAILQ_CONCAT(&orphans, &dir->orphans, next);
	while ((target = TAILQ_FIRST(&orphans))) {
		TAILQ_REMOVE(&orphans, target, next);
		orphan_place(dir, target);
	}
}

/* ---- reading slots -------------------------------------------------------------------------- */

#define SKIPS 16u /* slots that are skipped at the cost of one page */

void reading_start(struct directory *dir)
{
	dir->slot = 0;
	dir->at = 0;
}

bool reading_slice(struct directory *dir, const struct slots_reading *reading)
{
	struct index_entry entries[MOVE_PART];
	unsigned skipped = 0, looked = 0;

	while (looked + skipped / SKIPS < MOVE_KEYS && dir->slot < MAP_SLOTS) {
		unsigned count;

		if (!dir->at && !reading->wants(dir, dir->slot)) {
			dir->slot++;
			skipped += slot_any(dir, dir->slot % MAP_SLOTS);
			continue;
		}
		count = slot_pages(dir, dir->slot, &dir->at, MOVE_PART, entries);
		for (unsigned i = 0; i < count; i++)
			reading->page(dir, &entries[i]);
		looked += 1 + count;
		if (dir->at)
			continue;
		if (reading->done)
			reading->done(dir, dir->slot);
		dir->slot++;
	}
	return dir->slot < MAP_SLOTS;
}

/* ---- removal from former owners -------------------------------------------------------------- */

static bool tidy_wants(struct directory *dir, uint32_t slot)
{
	if (!formers_any(dir, slot))
		return false;
	if (slot_lags(dir, slot)) {
		dir->untidy = true;
		return false;
	}
	return true;
}

static void tidy_page(struct directory *dir, const struct index_entry *entry)
{
	uint32_t slot = map_slot_of(&entry->key), former[FORMERS_MAX];
	unsigned formers = formers_of(dir, slot, former);
	struct dir_update *update = update_new(dir, DIR_REMOVE, &entry->key,
		&(struct location){.place = entry->place, .generation = entry->generation},
		FORMERS_MAX);

	if (!update)
		return;
	update->at.ref = dir->control->ref;
	for (unsigned i = 0; i < formers; i++)
		update_add(dir, update, former[i]);
	update_start(dir, update);
}

static void tidy_later(struct directory *dir)
{
	dir->tidy_ns =
		net_now() + (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull;
}

/* The last phase, in which former owners that may have entries remove them, comes later. */
static void tidy_await(struct directory *dir)
{
	dir->phase = dir->formers ? MOVE_WAIT : MOVE_NONE;
	if (dir->formers)
		tidy_later(dir);
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
	reading_start(dir);
}

static void tidy_slice(struct directory *dir)
{
	static const struct slots_reading tidy = {tidy_wants, tidy_page, formers_drop};

	if (reading_slice(dir, &tidy))
		return;
	tidy_await(dir);
}

/* ---- phases ---------------------------------------------------------------------------------- */

static void ask_end(struct directory *dir)
{
	struct owner *owner;
	bool asked = dir->interrupted < MOVE_INTERRUPTED_MAX && digests_ask(dir);

	STAILQ_FOREACH (owner, &dir->owners, next)
		owner->fresh = false;
	dir->held = false;
	dir->phase = asked ? MOVE_COUNT : MOVE_WALK;
	reading_start(dir);
}

static void walk_end(struct directory *dir)
{
	digests_end(dir);
	dir->interrupted = 0;
	dir->comparing = dir->untidy = false;
	tidy_await(dir);
}

static void move_step(struct directory *dir, uint64_t now_ns)
{
	if (dir->phase == MOVE_ASK && now_ns >= dir->walk_ns)
		ask_end(dir);
	if (dir->phase == MOVE_COUNT && !reading_slice(dir, &digest_reading)) {
		digests_counted(dir);
		dir->phase = MOVE_AWAIT;
	}
	if (dir->phase == MOVE_AWAIT &&
		!digests_wait(dir, dir->comparing ? DIGEST_WAIT_NS : DIGEST_PATIENCE_NS)) {
		dir->phase = MOVE_WALK;
		if (dir->comparing)
			compare_answers(dir);
		else
			digests_leave(dir);
	}
	if (dir->marking)
		dir->marking = reading_slice(dir, &compare_reading);
	walks_slice(dir);
	if (dir->phase == MOVE_WALK && !dir->marking && walks_done(dir))
		walk_end(dir);
	if (dir->phase == MOVE_WAIT && now_ns >= dir->tidy_ns)
		tidy_start(dir);
	if (dir->phase == MOVE_TIDY)
		tidy_slice(dir);
}

void move_slice(void *context)
{
	struct directory *dir = context;
	uint64_t now_ns = net_now();

	dir->move_soon = false;
	/* pages that were removed while this engine was away are not published */
	if (removals_held(dir->control)) {
		move_soon(dir);
		return;
	}
	move_step(dir, now_ns);
	if (dir->sweep_left)
		sweep_slice(dir);
	if (dir->own.left)
		show_own(dir);
	digests_slice(dir);
	if (dir->phase == MOVE_COUNT || dir->phase == MOVE_AWAIT || dir->phase == MOVE_TIDY ||
		dir->marking || dir->sweep_left || dir->own.left || walks_ready(dir) ||
		!TAILQ_EMPTY(&dir->asked) || digests_wait(dir, DIGEST_WAIT_NS))
		move_soon(dir);
	else if (dir->phase == MOVE_ASK || dir->phase == MOVE_WAIT)
		slice_at(dir, dir->phase == MOVE_ASK ? dir->walk_ns : dir->tidy_ns, now_ns);
}
