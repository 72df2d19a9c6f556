/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the entries that owners have the same as the pages of this engine; COMPARING.md says how.
 * It knows which slots each owner lacks, walks over these slots to publish their pages, and
 * compares digests (directory_digest.c) with an owner that may differ. All of it runs in small
 * steps of one timer, move_slice(). Control plane's thread only.
 */
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

#define MOVE_QUIET_NS 50000000ull /* see COMPARING.md, "When" */
#define MOVE_QUIET_MAX_NS 1000000000ull
#define MOVE_PACE_MS 2                /* pause between two steps */
#define COMPARE_DIAL_NS 1000000000ull /* for links with owners that are no neighbours */
#define COMPARE_LOST_MAX 32u          /* owners of a map that need no turn: see compare_mark() */
#define COMPARE_TURN_OWNERS 8u        /* whose turn it is at a time */

/* A cursor of slot_pages() with this bit is one of tier_slot(), or 0: at its start. */
#define CURSOR_DISK (1ull << 63)

/* Cost of a search for the next slot, in entries: one for this many slots that it skips. */
#define SKIP_SLOTS 256u
#define NO_OWNER UINT16_MAX

static_assert(REPLICAS_MAX <= 8, "a bit of struct lacks for each owner");

/* ---- pages of this host, in memory and on disk ----------------------------------------------- */

unsigned slot_pages(struct directory *dir, uint32_t slot, uint64_t *cursor, unsigned max,
	struct index_entry *ret_entries)
{
	struct control *control = dir->control;
	uint64_t at = *cursor & ~CURSOR_DISK;
	struct disk_page pages[MOVE_PART];
	unsigned count, n = 0;

	if (!(*cursor & CURSOR_DISK)) {
		n = index_slot(control->index, slot, cursor, max, ret_entries);
		control->counter[COUNTER_pages_moving] += n;
		if (*cursor || !tier_pages(control))
			return n;
		at = 0;
	}
	if (n == max) {
		*cursor = CURSOR_DISK;
		return n;
	}
	count = tier_slot(control, slot, &at, max - n < MOVE_PART ? max - n : MOVE_PART, pages);
	*cursor = at ? at | CURSOR_DISK : 0;
	control->counter[COUNTER_pages_moving] += count;
	for (unsigned i = 0; i < count; i++)
		if (!index_find(control->index, &pages[i].key))
			ret_entries[n++] = (struct index_entry){.key = pages[i].key,
				.place = pages[i].place,
				.generation = pages[i].generation,
				.length = pages[i].length};
	return n;
}

bool slot_any(const struct directory *dir, uint32_t slot)
{
	return index_slot_any(dir->control->index, slot) || tier_pages(dir->control);
}

/* True if owners may have entries of this engine. */
static bool publishes_any(const struct directory *dir)
{
	return dir->published || index_count(dir->control->index) || tier_pages(dir->control);
}

/* ---- steps of the timer ---------------------------------------------------------------------- */

static void move_after(struct directory *dir, uint64_t ms)
{
	(void)net_timer_set(dir->move.timer, ms * 1000);
}

void move_soon(struct directory *dir)
{
	if (!dir->move.soon)
		move_after(dir, MOVE_PACE_MS);
	dir->move.soon = true;
}

/* ---- slots that owners lack ------------------------------------------------------------------ */

bool lacks_slot(const struct directory *dir, uint32_t slot, uint32_t ref)
{
	return dir->lack.bits[slot] >> slot_rank(dir->map.settled, slot, ref) & 1;
}

/* Changes the bit of the slot's owner `ref`. False: it is no owner, or the bit was so. */
static bool lack_change(struct directory *dir, uint32_t slot, uint32_t ref, bool lack)
{
	unsigned rank = slot_rank(dir->map.settled, slot, ref);

	if (rank == map_owning(dir->map.settled) || lacks_slot(dir, slot, ref) == lack)
		return false;
	dir->lack.bits[slot] = (uint8_t)(dir->lack.bits[slot] ^ 1u << rank);
	return true;
}

void lack_add(struct directory *dir, struct owner *owner, uint32_t slot)
{
	struct walk *walk = &owner->walk;

	if (lack_change(dir, slot, owner->ref, true)) {
		walk->slots++;
		dir->lack.count++;
		if (dir->lack.most < dir->lack.count)
			dir->lack.most = dir->lack.count;
	} else if (walk->slot == slot && walk->at) {
		walk->again = true;
	}
}

void lacks_all(struct directory *dir, struct owner *owner)
{
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		if (slot_any(dir, slot))
			lack_add(dir, owner, slot);
}

/* The owner does not lack the slot any more at which its walk is. */
static void lack_end(struct directory *dir, struct owner *owner)
{
	if (!lack_change(dir, owner->walk.slot, owner->ref, false))
		return;
	owner->walk.slots--;
	if (--dir->lack.count == 0)
		dir->lack.most = 0;
}

/* The next slot, from `slot` on, that it lacks; MAP_SLOTS: none. */
static uint32_t lacks_next(const struct directory *dir, uint32_t slot, uint32_t ref)
{
	uint64_t eight;

	for (; slot < MAP_SLOTS; slot++) {
		if (slot % 8 == 0) {
			memcpy(&eight, &dir->lack.bits[slot], sizeof(eight));
			if (!eight) {
				slot += 7;
				continue;
			}
		}
		if (dir->lack.bits[slot] && lacks_slot(dir, slot, ref))
			break;
	}
	return slot < MAP_SLOTS ? slot : MAP_SLOTS;
}

/* ---- walks ----------------------------------------------------------------------------------- */

static bool owner_ready(const struct owner *owner)
{
	return owner->ref && owner->walk.slots && !owner_behind(owner);
}

static void walk_publish(
	struct directory *dir, struct owner *owner, const struct index_entry *entry)
{
	const struct dir_request request = {DIR_PUBLISH, .key = entry->key,
		.at = {.place = entry->place, .generation = entry->generation}};

	/* there directory_serve_publish() inserts it, as for a set */
	update_send(dir, &request, &owner->ref, 1);
}

/* Moves the walk to the next slot that the owner lacks. Returns what the search cost. */
static unsigned walk_seek(const struct directory *dir, struct owner *owner)
{
	struct walk *walk = &owner->walk;
	uint32_t from = walk->slot, slot = lacks_next(dir, from, owner->ref);

	if (slot == MAP_SLOTS)
		slot = lacks_next(dir, 0, owner->ref);
	if (slot == MAP_SLOTS)
		walk->slots = 0;
	if (slot != from)
		walk->at = 0;
	walk->slot = slot % MAP_SLOTS;
	return ((slot - from) % MAP_SLOTS) / SKIP_SLOTS;
}

/* Returns what is left of the budget, in entries. */
static unsigned walk_step(struct directory *dir, struct owner *owner, unsigned budget)
{
	struct walk *walk = &owner->walk;
	struct index_entry entries[MOVE_PART];
	unsigned count, cost;

	while (budget && walk->slots && !owner_behind(owner)) {
		cost = 1 + walk_seek(dir, owner);
		if (!walk->slots)
			break;
		count = slot_pages(dir, walk->slot, &walk->at, MOVE_PART, entries);
		for (unsigned i = 0; i < count; i++)
			walk_publish(dir, owner, &entries[i]);
		if (!walk->at && !walk->again)
			lack_end(dir, owner);
		walk->again = walk->again && walk->at;
		cost += count;
		budget -= cost < budget ? cost : budget;
	}
	return budget;
}

/* The next step of the walks of all owners that are ready. */
static void walks_slice(struct directory *dir)
{
	struct owner *owner, *first = STAILQ_FIRST(&dir->owners);
	unsigned budget = MOVE_KEYS;

	walk_step(dir, dir->self, MOVE_KEYS);
	for (bool more = first; budget && more; more = STAILQ_FIRST(&dir->owners) != first) {
		/* those that come after the end of the budget have their turn first next time */
		owner = STAILQ_FIRST(&dir->owners);
		STAILQ_REMOVE_HEAD(&dir->owners, next);
		STAILQ_INSERT_TAIL(&dir->owners, owner, next);
		if (owner_ready(owner))
			budget = walk_step(dir, owner, budget);
	}
}

/* ---- comparisons ----------------------------------------------------------------------------- */

void compare_later(struct directory *dir, uint64_t now_ns)
{
	dir->turn.at_ns = now_ns + COMPARE_MIN_NS + net_random() % COMPARE_SPREAD_NS;
}

/* The member may have entries of slots that it has lost; nothing if it has left the map. */
static void compare_mark(struct directory *dir, uint32_t ref)
{
	struct owner *owner = owner_of(dir, ref);

	if (owner && (owner == dir->self || dir->map.settled->owners <= COMPARE_LOST_MAX))
		owner->unsure = true;
}

static bool compare_due(const struct directory *dir, const struct owner *owner, uint64_t now_ns)
{
	return owner->ref && owner->unsure && !owner->digest && !owner->show &&
	       !owner->walk.slots && now_ns >= dir->move.compare_ns && !suspect_steers(owner->why);
}

/* Asks the owners that are due. Called while no pages are counted. */
static void compare_start(struct directory *dir, uint64_t now_ns)
{
	unsigned asked = 0, digests = 0;
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		digests += owner->digest != NULL;
	STAILQ_FOREACH (owner, &dir->owners, next) {
		if (digests + asked >= COMPARE_OWNERS_MAX || !compare_due(dir, owner, now_ns))
			continue;
		owner->unsure = !member_link_now(dir->control, owner->ref);
		asked += digest_ask(dir, owner);
	}
	if (dir->self->unsure && now_ns >= dir->move.compare_ns) {
		dir->self->unsure = false;
		dir->own.left = 1ull << dir->control->shard->bits;
	}
	dir->reading = (struct reading){.on = asked != 0};
}

/*
 * The owner lacks slots that differ: some, from a random one on, because one without room refuses
 * the same entries each time.
 */
static void lacks_differing(struct directory *dir, struct owner *owner)
{
	uint32_t from = net_random() % MAP_SLOTS;

	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		uint32_t slot = (from + i) % MAP_SLOTS;

		if (!owner->digest->differ[slot])
			continue;
		dir->control->counter[COUNTER_slots_differ]++;
		if (owner->walk.slots < COMPARE_SLOTS && slot_any(dir, slot))
			lack_add(dir, owner, slot);
	}
}

void compare_answered(struct directory *dir, struct owner *owner)
{
	const struct digest *digest = owner->digest;

	if (!digest->answered || !digest->counted)
		return;
	lacks_differing(dir, owner);
	show_begin(dir, owner);
	digest_drop(owner);
	move_soon(dir);
}

/* Our pages were counted for all owners that were asked. */
static void compare_counted(struct directory *dir)
{
	struct owner *owner;

	dir->reading.on = false;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->digest && !owner->digest->counted) {
			owner->digest->counted = true;
			compare_answered(dir, owner);
		}
}

/* Owners that have not answered in time are compared with at their next turn. */
static void compare_late(struct directory *dir, uint64_t now_ns)
{
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->digest && !owner->digest->answered &&
			now_ns >= owner->digest->asked_ns + DIGEST_WAIT_NS)
			digest_drop(owner);
}

bool compares_any(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->ref && (owner->unsure || owner->digest || owner->show))
			return true;
	return dir->self->unsure || dir->own.left;
}

/* True while owners get entries, other than those whose walk waits. */
static bool walks_any(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner_ready(owner))
			return true;
	return dir->self->walk.slots != 0;
}

/* The i-th owner whose turn is next. */
static uint32_t turn_ref(const struct directory *dir, unsigned i)
{
	const struct map_view *view = member_map(dir->control);

	return view->owner[(dir->turn.next + i) % view->owners].ref;
}

/* Links with owners that are no neighbours are dialled first; then the owners are unsure. */
static void turn_tick(struct directory *dir, uint64_t now_ns)
{
	uint32_t owners = member_map(dir->control)->owners;
	unsigned dialled = 0;

	if (now_ns < dir->turn.at_ns || dir->move.walking)
		return;
	if (owners > COMPARE_TURN_OWNERS)
		owners = COMPARE_TURN_OWNERS;
	for (unsigned i = 0; i < owners && !dir->turn.dialled; i++)
		dialled += !member_link(dir->control, turn_ref(dir, i)) &&
			   member_link_soon(dir->control, turn_ref(dir, i));
	dir->turn.dialled = dialled != 0;
	if (dialled) {
		dir->turn.at_ns = now_ns + COMPARE_DIAL_NS;
		return;
	}
	compare_later(dir, now_ns);
	for (unsigned i = 0; i < owners; i++) {
		struct owner *owner = owner_of(dir, turn_ref(dir, i));

		if (owner)
			owner->unsure = true;
	}
	dir->turn.next += owners;
	dir->self->unsure = true;
}

void compare_tick(struct directory *dir, uint64_t now_ns)
{
	bool any = false;
	struct owner *owner;

	if (!publishes_any(dir))
		return;
	turn_tick(dir, now_ns);
	STAILQ_FOREACH (owner, &dir->owners, next)
		any |= owner->digest || compare_due(dir, owner, now_ns);
	if (any || dir->self->unsure)
		move_soon(dir);
}

/* ---- changes of the map ---------------------------------------------------------------------- */

/* From the owners of one map to those of the next one. */
struct owners_change {
	const struct map_view *was, *now;
	/* by index of an owner in `was`: its index in `now`, or NO_OWNER; it has lost a slot */
	uint16_t to[OWNERS_MAX];
	bool lost[OWNERS_MAX];
	uint32_t lacking[OWNERS_MAX]; /* number of slots that each owner of `now` lacks */
};

/* Both views are in the order of hashes. */
static void change_open(struct directory *dir, struct owners_change *c)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < c->was->owners; i++)
		c->to[i] = NO_OWNER;
	for (uint32_t i = 0; i < c->now->owners; i++) {
		const struct placed *p = &c->now->owner[i];
		struct owner *owner = publishes_any(dir) ? owner_of(dir, p->ref) : NULL;

		while (k < c->was->owners && c->was->owner[k].hash < p->hash)
			k++;
		if (k < c->was->owners && c->was->owner[k].ref == p->ref &&
			!(dir->map.left[k / 64] >> k % 64 & 1)) {
			c->to[k] = (uint16_t)i;
		} else if (owner && owner != dir->self) {
			owner->unsure = true; /* it may have entries of before */
		}
	}
}

static void slot_follow(struct directory *dir, struct owners_change *c, uint32_t slot)
{
	const uint8_t *now = map_view_slot(c->now, slot), *was = map_view_slot(c->was, slot);
	unsigned owners = map_owning(c->now), befores = map_owning(c->was);
	unsigned lacked = dir->lack.bits[slot], lacks = 0;
	bool stays[REPLICAS_MAX] = {false}; /* of the owners before */

	for (unsigned i = 0; i < owners; i++) {
		unsigned at = 0;
		bool lack;

		while (at < befores && c->to[was[at]] != now[i])
			at++;
		lack = at == befores || lacked >> at & 1;
		if (at < befores)
			stays[at] = true;
		lacks |= (unsigned)lack << i;
		c->lacking[now[i]] += lack;
	}
	dir->lack.bits[slot] = (uint8_t)lacks;
	for (unsigned i = 0; i < befores; i++)
		c->lost[was[i]] |= !stays[i];
}

/* The walks go on where they are, from the start of a slot. */
static uint32_t walk_set(struct walk *walk, uint32_t slots)
{
	*walk = (struct walk){.slots = slots, .slot = walk->slot};
	return slots;
}

/* True if removes for the owner are queued or sent, and not acknowledged. */
static bool owner_removing(const struct owner *owner)
{
	const struct batch *batch;

	STAILQ_FOREACH (batch, &owner->batches, next)
		if (batch->kind == DIR_REMOVE)
			return true;
	return owner->queued[DIR_REMOVE] > 0;
}

static void walks_set(struct directory *dir, const struct owners_change *c)
{
	struct owner *owner;

	dir->lack.count = walk_set(&dir->self->walk, 0);
	STAILQ_FOREACH (owner, &dir->owners, next)
		walk_set(&owner->walk, 0);
	for (uint32_t i = 0; i < c->now->owners; i++) {
		/* an owner is made for those that lack something */
		owner = c->lacking[i] ? owner_of(dir, c->now->owner[i].ref) : NULL;
		if (!owner)
			continue;
		/* Removes of entries that it has again may be queued: see directory_state.h. */
		owner->unsure |= owner_removing(owner);
		dir->lack.count += walk_set(&owner->walk, c->lacking[i]);
	}
	dir->lack.most = dir->lack.count;
}

/*
 * The owners have become those of `now`. Owners that have got a slot lack it; those that have come
 * or have lost a slot are unsure: see COMPARING.md.
 */
static void lacks_follow(struct directory *dir, const struct map_view *now)
{
	struct owners_change c = {.was = dir->map.settled, .now = now};
	bool disk = tier_pages(dir->control) != 0;

	change_open(dir, &c);
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		if (disk || index_slot_any(dir->control->index, slot))
			slot_follow(dir, &c, slot);
		else
			dir->lack.bits[slot] = 0;
	walks_set(dir, &c);
	for (uint32_t i = 0; i < c.was->owners; i++)
		if (c.lost[i])
			compare_mark(dir, c.was->owner[i].ref);
}

/* Called at each change of the map, or of what owners have. `busy`: walks are in progress. */
static void move_begin(struct directory *dir, bool busy)
{
	uint64_t now_ns = net_now();

	move_soon(dir);
	dir->move.walking = true;
	if (now_ns >= dir->move.walk_ns) {
		dir->move.changed_ns = now_ns;
		dir->move.held = !busy;
	}
	dir->move.walk_ns = now_ns + MOVE_QUIET_NS;
	if (dir->move.walk_ns > dir->move.changed_ns + MOVE_QUIET_MAX_NS)
		dir->move.walk_ns = dir->move.changed_ns + MOVE_QUIET_MAX_NS;
	dir->move.compare_ns = now_ns + control_dead_ns(dir->control);
}

/* The owners have become those of the map `now`. */
static void map_follow(struct directory *dir, struct map_view *now)
{
	bool busy = dir->lack.count != 0;

	lacks_follow(dir, now);
	map_view_drop(dir->map.settled);
	dir->map.settled = map_view_share(now);
	memset(dir->map.left, 0, sizeof(dir->map.left));
	dir->map.left_any = false;
	move_begin(dir, busy);
}

void directory_map_changed(struct control *control)
{
	struct directory *dir = control->directory;

	if (dir->map.settled != member_map(control) || dir->map.left_any)
		map_follow(dir, member_map(control));
	orphans_place(dir);
}

void directory_forgotten(struct control *control, uint32_t ref)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (!dir || owner_index(dir->map.settled, ref) == dir->map.settled->owners)
		return;
	move_begin(dir, dir->lack.count != 0);
	owner = owner_of(dir, ref);
	if (!owner)
		return;
	digest_drop(owner);
	lacks_all(dir, owner);
	owner->unsure = true;
}

void directory_disk_opened(struct control *control)
{
	struct directory *dir = control->directory;

	if (!tier_pages(control))
		return;
	move_begin(dir, dir->lack.count != 0);
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++) {
		uint32_t ref[REPLICAS_MAX];
		unsigned owners = slot_owners(dir->map.settled, slot, ref);

		for (unsigned i = 0; i < owners; i++) {
			struct owner *owner = owner_of(dir, ref[i]);

			if (!owner)
				continue;
			lack_add(dir, owner, slot);
			owner->unsure = true;
		}
	}
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void move_step(struct directory *dir, uint64_t now_ns)
{
	if (now_ns >= dir->move.walk_ns) {
		dir->move.held = false;
		if (!dir->reading.on)
			compare_start(dir, now_ns);
	}
	if (dir->reading.on && !digests_count(dir))
		compare_counted(dir);
	compare_late(dir, now_ns);
	if (!dir->move.held)
		walks_slice(dir);
	dir->move.walking &= walks_any(dir);
	if (dir->move.walking)
		dir->move.compare_ns = now_ns + control_dead_ns(dir->control);
	if (dir->sweep.left)
		sweep_slice(dir);
	if (dir->own.left)
		show_own(dir);
	digests_slice(dir);
}

/* True if the next step can do something at once. */
static bool move_ready(const struct directory *dir)
{
	return dir->reading.on || dir->sweep.left || dir->own.left ||
	       (!dir->move.held && walks_any(dir)) || !TAILQ_EMPTY(&dir->asked);
}

void move_slice(void *context)
{
	struct directory *dir = context;
	uint64_t now_ns = net_now();

	dir->move.soon = false;
	if (dir->control->door_shut) {
		digests_slice(dir); /* those who ask wait for it, and it publishes nothing */
		move_soon(dir);
		return;
	}
	move_step(dir, now_ns);
	if (move_ready(dir))
		move_soon(dir);
	/* a later time would replace that of the step which is due, and hold up all that follow */
	if (dir->move.soon)
		return;
	if (now_ns < dir->move.walk_ns)
		move_after(dir, (dir->move.walk_ns - now_ns) / 1000000 + 1);
	else if (now_ns < dir->move.compare_ns && compares_any(dir))
		move_after(dir, (dir->move.compare_ns - now_ns) / 1000000 + 1);
}

/* ---- what status shows ----------------------------------------------------------------------- */

void directory_counts(const struct control *control, struct directory_counts *ret)
{
	const struct directory *dir = control->directory;
	const struct owner *owner;

	*ret = (struct directory_counts){
		.moving = moves_any(dir), .partial = dir->partial, .sweep_left = dir->sweep.left};
	ret->walk_position = dir->lack.most - dir->lack.count;
	ret->walk_end = dir->lack.most;
	STAILQ_FOREACH (owner, &dir->owners, next) {
		ret->behind += owner_behind(owner);
		ret->suspect += owner->ref && suspect_steers(owner->why);
	}
}
