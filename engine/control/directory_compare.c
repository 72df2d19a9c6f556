/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Anti-entropy: compares this engine's entries with what their owners have, about once a minute,
 * and publishes again what an owner lacks. Control plane's thread only.
 *
 * It uses the digests of directory_digest.c and begins only while no entries move; any change of
 * the map ends it. An owner whose digests differ lacks the slots of the pages for which they do,
 * and its walk publishes them. Per comparison at most COMPARE_OWNERS_MAX owners are asked, in turn,
 * so that one owner reads its shard for few holders at a time. An owner that is behind, suspect or
 * full is left out: the first two have their own walks, and a full one would refuse the same
 * entries every minute.
 *
 * An entry that the owner should not have any more also makes its slot differ. Its holder cannot
 * name it; readers that find it stale report it (directory_stale()).
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

static bool comparable(const struct owner *owner, uint64_t now_ns)
{
	return !owner->behind && !suspect_steers(owner->why) &&
	       (!owner->full_ns || now_ns - owner->full_ns > COMPARE_FULL_NS);
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

/* Asks the next owners. False: none was. */
static bool ask_next(struct directory *dir, uint64_t now_ns)
{
	const struct map_view *view = member_map(dir->control);
	unsigned asked = 0;

	for (uint32_t i = 0; i < view->owners && asked < COMPARE_OWNERS_MAX; i++) {
		const struct placed *next = &view->owner[dir->compare_turn++ % view->owners];
		struct owner *owner = owner_of(dir, next->ref);

		if (owner && !owner->digest && comparable(owner, now_ns) &&
			digest_ask(dir, owner)) {
			owner->digest->repair = true;
			asked++;
		}
	}
	return asked > 0;
}

void compare_tick(struct directory *dir, uint64_t now_ns)
{
	if (now_ns < dir->compare_ns || dir->phase != MOVE_NONE)
		return;
	if (pages_count(dir) && !dir->compare_dialled && !links_ready(dir)) {
		dir->compare_dialled = true;
		dir->compare_ns = now_ns + COMPARE_DIAL_NS;
		return;
	}
	dir->compare_dialled = false;
	compare_later(dir, now_ns);
	if (pages_count(dir) == 0 || !ask_next(dir, now_ns))
		return;
	dir->comparing = true;
	dir->phase = MOVE_COUNT;
	reading_start(dir);
	move_soon(dir);
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

		if (owner && to_repair(dir, owner) && owner_takes(dir, owner->ref, entry->place) &&
			!digest_equal(owner, &entry->key))
			lack_add(dir, owner, map_slot_of(&entry->key));
	}
}

const struct slots_reading compare_reading = {compare_wants, compare_page, NULL};
