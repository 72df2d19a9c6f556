/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Anti-entropy: compares this engine's entries with what their owners have, about once a minute,
 * publishes again what an owner lacks and removes what it should not have. Control plane's thread
 * only.
 *
 * It uses the digests of directory_digest.c and begins only while no entries move; any change of
 * the map ends it. An owner whose digests differ lacks the slots of the pages for which they do,
 * and its walk publishes them. Per comparison at most COMPARE_OWNERS_MAX owners are asked, in turn,
 * so that one owner reads its shard for few holders at a time; an owner for which removes were
 * dropped comes first, and at once. An owner that is behind or suspect is left out: it has its own
 * walk. To a full one nothing is published: it would refuse the same entries every minute.
 */
#include "engine/control/directory_state.h"
#include "engine/control/member.h"

void directory_compare(struct control *control)
{
	if (control->directory)
		control->directory->compare_ns = 0;
}

void compare_later(struct directory *dir, uint64_t now_ns)
{
	dir->compare_ns = now_ns + COMPARE_MIN_NS + net_random() % COMPARE_SPREAD_NS;
}

static bool comparable(const struct owner *owner)
{
	return !owner->behind && !owner->digest && !owner->show && !suspect_steers(owner->why);
}

static bool full(const struct owner *owner)
{
	return owner->full_ns && net_now() - owner->full_ns <= COMPARE_FULL_NS;
}

/* Asks the owner. False: it cannot be asked now. */
static bool ask(struct directory *dir, struct owner *owner)
{
	if (!comparable(owner) || !digest_ask(dir, owner))
		return false;
	owner->digest->repair = true;
	owner->unsure = false;
	return true;
}

/* Requests links with the next owners. False: some are dialled now. */
static bool links_ready(const struct directory *dir)
{
	const struct map_view *view = member_map(dir->control);
	bool ready = true;

	for (uint32_t i = 0; i < view->owners && i < COMPARE_OWNERS_MAX; i++) {
		uint32_t ref = view->owner[(dir->compare_turn + i) % view->owners].ref;

		if (!member_link(dir->control, ref) && member_link_soon(dir->control, ref))
			ready = false;
	}
	return ready;
}

static bool unsure_any(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref && owner->unsure && comparable(owner))
			return true;
	return false;
}

/* Asks those that are unsure, and the next owners. False: none was asked. */
static bool ask_next(struct directory *dir)
{
	const struct map_view *view = member_map(dir->control);
	struct owner *owner;
	unsigned asked = 0;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref && owner->unsure)
			asked += ask(dir, owner);
	for (uint32_t i = 0; i < view->owners && asked < COMPARE_OWNERS_MAX; i++) {
		const struct placed *next = &view->owner[dir->compare_turn++ % view->owners];

		owner = owner_of(dir, next->ref);
		asked += owner && ask(dir, owner);
	}
	return asked > 0;
}

void compare_tick(struct directory *dir, uint64_t now_ns)
{
	if (dir->phase != MOVE_NONE || !publishes(dir) ||
		(now_ns < dir->compare_ns && !unsure_any(dir)))
		return;
	if (!dir->compare_dialled && !links_ready(dir)) {
		dir->compare_dialled = true;
		dir->compare_ns = now_ns + COMPARE_DIAL_NS;
		return;
	}
	dir->compare_dialled = false;
	compare_later(dir, now_ns);
	dir->own.left = 1ull << dir->control->shard.bits;
	move_soon(dir);
	if (!ask_next(dir))
		return;
	dir->comparing = true;
	dir->phase = MOVE_COUNT;
	reading_start(dir);
}

void compare_end(struct directory *dir)
{
	if (!dir->comparing)
		return;
	dir->comparing = dir->marking = false;
	dir->phase = MOVE_NONE;
	digests_end(dir);
}

void compare_answers(struct directory *dir)
{
	struct owner *owner;
	bool any = false;

	STAILQ_FOREACH (owner, &dir->owners, next) {
		uint64_t slots = owner->digest ? digest_differs(owner->digest) : 0;

		if (!owner->digest || !owner->digest->repair)
			continue;
		dir->control->counter[COUNTER_slots_differ] += slots;
		if (slots)
			any = true;
		else
			digest_drop(owner);
	}
	dir->marking = any;
	reading_start(dir);
}

static bool to_repair(const struct directory *dir, const struct owner *owner)
{
	(void)dir;
	return owner->digest && owner->digest->repair;
}

static bool compare_wants(struct directory *dir, uint32_t slot)
{
	return slot_any(dir, slot) && slot_owner_any(dir, slot, to_repair);
}

static void compare_page(struct directory *dir, const struct index_entry *entry)
{
	const struct map_view *view = dir->settled.view;
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(view, &entry->key, at);

	for (unsigned i = 0; i < owners; i++) {
		struct owner *owner = owner_of(dir, view->owner[at[i]].ref);

		if (owner && to_repair(dir, owner) && !full(owner) &&
			owner_takes(dir, owner->ref, entry->place) &&
			!digest_equal(owner, &entry->key))
			lack_add(dir, &owner->walk, owner->ref, map_slot_of(&entry->key));
	}
}

const struct slots_reading compare_reading = {compare_wants, compare_page, NULL};
