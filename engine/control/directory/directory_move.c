/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows a change of the map, in small steps: owners that have got slots are sent their
 * entries (directory_walk.c), those that have come are compared with, and so are, later, those that
 * have lost slots (directory_compare.c). Control plane's thread only.
 *
 * This begins once no change has come for MOVE_QUIET_NS, because members often join or leave
 * together; changes without end delay it by MOVE_QUIET_MAX_NS at most. A change while walks are in
 * progress does not stop them: it adds slots that have new owners, and takes away those that have
 * moved on.
 */
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/directory/removals.h"

static void slice_after(struct directory *dir, uint64_t ms)
{
	(void)net_timer_set(dir->move, ms * 1000);
}

void move_soon(struct directory *dir)
{
	if (!dir->move_soon)
		slice_after(dir, MOVE_PACE_MS);
	dir->move_soon = true;
}

/* Called at each change of the map, or of what owners have. `busy`: walks are in progress. */
static void move_begin(struct directory *dir, bool busy)
{
	uint64_t now_ns = net_now(), last_ns;

	move_soon(dir);
	if (now_ns >= dir->walk_ns) {
		dir->changed_ns = now_ns;
		dir->held = !busy;
	}
	last_ns = dir->changed_ns + MOVE_QUIET_MAX_NS;
	dir->walk_ns = now_ns + MOVE_QUIET_NS < last_ns ? now_ns + MOVE_QUIET_NS : last_ns;
	dir->tidy_ns = now_ns + dead_after_ns(dir);
}

void move_again(struct directory *dir)
{
	const struct map_view *view = member_map(dir->control);

	for (uint32_t i = 0; i < view->owners; i++)
		directory_forgotten(dir->control, view->owner[i].ref);
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
	if (owner_index(dir->settled, ref) < dir->settled->owners) {
		uint32_t at = owner_index(dir->settled, ref);

		dir->left[at / 64] |= 1ull << at % 64;
		dir->left_any = true;
	}
	departed_add(dir, ref);
}

void directory_forgotten(struct control *control, uint32_t ref)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (!dir || owner_index(dir->settled, ref) == dir->settled->owners)
		return;
	move_begin(dir, dir->lacking != 0);
	if (ref == control->ref)
		lacks_all(dir, &dir->self, ref);
	owner = owner_of(dir, ref);
	if (!owner)
		return;
	digest_drop(owner);
	owner->fresh = true;
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
	const struct member_table *table = members_table(dir->control);

	for (unsigned peer = 0; peer < table->peers_used; peer++) {
		const struct member *entry = member_table_peer(table, peer);

		if (entry && !entry->record.self)
			(void)owner_make(dir, (uint16_t)peer);
	}
}

static void map_follow(struct directory *dir, struct map_view *now)
{
	bool busy = dir->lacking != 0;

	lacks_follow(dir, now);
	map_view_drop(dir->was);
	dir->was = dir->settled;
	dir->settled = map_view_share(now);
	memset(dir->left, 0, sizeof(dir->left));
	dir->left_any = false;
	move_begin(dir, busy);
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
	if (dir->settled != member_map(control) || dir->left_any)
		map_follow(dir, member_map(control));
	TAILQ_CONCAT(&orphans, &dir->orphans, next);
	while ((target = TAILQ_FIRST(&orphans))) {
		TAILQ_REMOVE(&orphans, target, next);
		orphan_place(dir, target);
	}
}

/* ---- steps ----------------------------------------------------------------------------------- */

bool moving(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref && (owner->fresh || (owner->walk.slots && !owner->behind)))
			return true;
	return dir->self.slots != 0;
}

static void move_step(struct directory *dir, uint64_t now_ns)
{
	if (now_ns >= dir->walk_ns) {
		dir->held = false;
		if (!dir->counting)
			compare_start(dir, now_ns);
	}
	if (dir->counting && !digests_count(dir))
		compare_counted(dir);
	compare_late(dir, now_ns);
	if (!dir->held)
		walks_slice(dir);
	if (moving(dir))
		dir->tidy_ns = now_ns + dead_after_ns(dir);
	if (dir->sweep_left)
		sweep_slice(dir);
	if (dir->own.left)
		show_own(dir);
	digests_slice(dir);
}

/* True if the next step can do something at once. */
static bool move_ready(const struct directory *dir)
{
	const struct owner *owner;

	if (dir->counting || dir->sweep_left || dir->own.left || walks_ready(dir) ||
		!TAILQ_EMPTY(&dir->asked))
		return true;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->digest && owner->fresh) /* its answer may be late */
			return true;
	return false;
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
	if (move_ready(dir))
		move_soon(dir);
	else if (now_ns < dir->walk_ns)
		slice_after(dir, (dir->walk_ns - now_ns) / 1000000 + 1);
	else if (now_ns < tidy_from_ns(dir) && compares_any(dir))
		slice_after(dir, (tidy_from_ns(dir) - now_ns) / 1000000 + 1);
}
