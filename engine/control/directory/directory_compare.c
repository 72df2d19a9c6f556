/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the entries that owners have the same as the pages of this engine: it compares digests
 * (directory_digest.c) with an owner that may differ. Where they differ, the owner lacks the slots
 * and its walk publishes their pages (directory_walk.c), and it shows its entries, of which those
 * without a page are removed (directory_show.c). Control plane's thread only.
 *
 * An owner is
 *
 *      fresh    it may have any of our entries or none: it has come to the map, or has dropped
 *               them, or this engine was restarted. It is compared with before it is sent all
 *               its entries, at once; if it cannot be, it is sent all.
 *      unsure   it may have entries that it should not have: it has lost slots, removes for it
 *               were dropped, it was full, or it is its turn, about once a minute. It is
 *               compared with once clients have read the present map, so that a former owner
 *               keeps its entries for the readers that still ask it. Of many owners, those that
 *               have lost slots wait for their turn: each reads its shard for each holder.
 *
 * An owner that is behind or suspect is left out while it is: it has its own walk. To a full one
 * nothing is published: it would refuse the same entries every minute. This engine's own shard is
 * unsure in the same way; it is looked at without digests.
 */
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"

void directory_compare(struct control *control)
{
	if (control->directory)
		control->directory->compare_ns = 0;
}

void compare_later(struct directory *dir, uint64_t now_ns)
{
	dir->compare_ns = now_ns + COMPARE_MIN_NS + net_random() % COMPARE_SPREAD_NS;
}

void compare_mark(struct directory *dir, uint32_t ref)
{
	struct owner *owner = owner_of(dir, ref);

	dir->tidying = true;
	dir->own.unsure |= ref == dir->control->ref;
	if (owner && dir->settled->owners <= COMPARE_LOST_MAX)
		owner->unsure = true;
}

static bool comparable(const struct owner *owner)
{
	return !owner->digest && !owner->show &&
	       (owner->fresh || (!owner->behind && !suspect_steers(owner->why)));
}

static bool due(const struct directory *dir, const struct owner *owner, uint64_t now_ns)
{
	return owner->ref && comparable(owner) &&
	       (owner->fresh || (owner->unsure && now_ns >= tidy_from_ns(dir)));
}

void compare_without(struct directory *dir, struct owner *owner)
{
	if (owner->fresh)
		lacks_all(dir, &owner->walk, owner->ref);
	owner->fresh = false;
	digest_drop(owner);
}

/* Returns whether it was asked. */
static bool ask(struct directory *dir, struct owner *owner)
{
	/* removes that it has not executed may be of entries that it has again */
	owner->unsure = owner->fresh && owner_removing(owner);
	if (digest_ask(dir, owner))
		return true;
	owner->unsure |= !member_link_now(dir->control, owner->ref);
	compare_without(dir, owner);
	return false;
}

void compare_start(struct directory *dir, uint64_t now_ns)
{
	unsigned asked = 0;
	struct owner *owner;

	for (int fresh = 1; fresh >= 0; fresh--) {
		unsigned digests = 0; /* an unsure owner that is slow delays no fresh one */

		STAILQ_FOREACH (owner, &dir->owners, next)
			digests += owner->digest && owner->fresh == fresh;
		STAILQ_FOREACH (owner, &dir->owners, next)
			if (digests < COMPARE_OWNERS_MAX && owner->fresh == fresh &&
				due(dir, owner, now_ns) && ask(dir, owner)) {
				digests++;
				asked++;
			}
	}
	if (dir->own.unsure && now_ns >= tidy_from_ns(dir)) {
		dir->own.unsure = false;
		dir->own.left = 1ull << dir->control->shard->bits;
	}
	dir->counting = asked != 0;
	dir->slot = 0;
	dir->at = 0;
}

void compare_answered(struct directory *dir, struct owner *owner)
{
	const struct digest *digest = owner->digest;
	bool refuses = owner->full_ns && net_now() - owner->full_ns <= COMPARE_FULL_NS;

	if (!digest->answered || !digest->counted)
		return;
	owner->kept = owner->fresh ? digest->pages : 0;
	owner->repair = !owner->fresh;
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++) {
		if (!digest->differ[slot])
			continue;
		dir->control->counter[COUNTER_slots_differ] += owner->repair;
		if ((owner->fresh || !refuses) && slot_any(dir, slot))
			lack_add(dir, &owner->walk, owner->ref, slot);
	}
	show_begin(dir, owner);
	owner->fresh = false;
	digest_drop(owner);
	if (!owner->walk.slots)
		walk_end(dir, owner);
	move_soon(dir);
}

void compare_counted(struct directory *dir)
{
	struct owner *owner;

	dir->counting = false;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->digest && !owner->digest->counted) {
			owner->digest->counted = true;
			compare_answered(dir, owner);
		}
}

void compare_late(struct directory *dir, uint64_t now_ns)
{
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->digest && !owner->digest->answered &&
			now_ns >= owner->digest->asked_ns +
					  (owner->fresh ? DIGEST_WAIT_NS : DIGEST_UNSURE_NS))
			compare_without(dir, owner);
}

/* Requests links with the next owners. False: some are dialled now. */
static bool links_ready(const struct directory *dir)
{
	const struct map_view *view = member_map(dir->control);
	bool ready = true;

	for (uint32_t i = 0; i < view->owners && i < COMPARE_TURN_OWNERS; i++) {
		uint32_t ref = view->owner[(dir->compare_turn + i) % view->owners].ref;

		if (!member_link(dir->control, ref) && member_link_soon(dir->control, ref))
			ready = false;
	}
	return ready;
}

/* The next owners of the map are unsure. */
static void mark_next(struct directory *dir)
{
	const struct map_view *view = member_map(dir->control);

	for (uint32_t i = 0; i < view->owners && i < COMPARE_TURN_OWNERS; i++) {
		struct owner *owner =
			owner_of(dir, view->owner[dir->compare_turn++ % view->owners].ref);

		if (owner)
			owner->unsure = true;
	}
	dir->own.unsure = true;
}

static void turn_tick(struct directory *dir, uint64_t now_ns)
{
	if (now_ns < dir->compare_ns || moving(dir))
		return;
	if (!dir->compare_dialled && !links_ready(dir)) {
		dir->compare_dialled = true;
		dir->compare_ns = now_ns + COMPARE_DIAL_NS;
		return;
	}
	dir->compare_dialled = false;
	compare_later(dir, now_ns);
	mark_next(dir);
}

void compare_tick(struct directory *dir, uint64_t now_ns)
{
	bool any = false;
	struct owner *owner;

	dir->tidying = tidies(dir);
	if (!dir->tidying) {
		map_view_drop(dir->was);
		dir->was = NULL;
	}
	if (!publishes(dir))
		return;
	turn_tick(dir, now_ns);
	STAILQ_FOREACH (owner, &dir->owners, next)
		any |= owner->digest || due(dir, owner, now_ns);
	if (any || dir->own.unsure)
		move_soon(dir);
}

bool moves_any(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref && owner->fresh)
			return true;
	return dir->lacking != 0;
}

bool compares_any(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref && (owner->unsure || owner->digest || owner->show))
			return true;
	return dir->own.unsure || dir->own.left;
}

bool tidies(const struct directory *dir)
{
	return dir->tidying && compares_any(dir);
}
