/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Anti-entropy: compares this engine's entries with what their owners have, about once a minute,
 * and publishes again what an owner lacks. Control plane's thread only.
 *
 * It uses the digests of directory_digest.c and the steps of the walk of directory_move.c, and runs
 * only while no walk does: any change of the map ends it. Per comparison at most COMPARE_OWNERS_MAX
 * owners are asked, in turn, so that one owner reads its shard for few holders at a time. An owner
 * that is behind, suspect or full is left out: the first two have their own walks, and a full one
 * would refuse the same entries every minute.
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
	dir->cursor = 0;
	move_soon(dir);
}

void compare_end(struct directory *dir)
{
	if (!dir->comparing)
		return;
	dir->comparing = false;
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
	dir->phase = MOVE_WALK;
	if (!any)
		compare_end(dir);
}

void compare_page(struct directory *dir, const struct index_entry *entry, uint64_t cursor)
{
	const struct map_view *view = member_map(dir->control);
	struct claim *claim = NULL;
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(view, &entry->key, at);

	for (unsigned i = 0; i < owners; i++) {
		uint32_t ref = view->owner[at[i]].ref;
		struct owner *owner = owner_of(dir, ref);

		if (!owner || !owner->digest || !owner_takes(dir, ref, entry->place) ||
			digest_equal(owner, &entry->key))
			continue;
		if (owner->behind || owner->background >= OWNER_WALK_MAX) {
			owner_behind(owner, cursor);
			continue;
		}
		if (!claim)
			claim = claim_new(dir, VERB_PUBLISH, &entry->key, entry->place,
				entry->generation, REPLICAS_MAX);
		if (!claim)
			return;
		claim_add(dir, claim, ref);
		dir->control->counter[COUNTER_entries_repaired]++;
	}
	if (claim)
		claim_start(dir, claim);
}
