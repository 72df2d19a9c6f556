/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map: changed as members join and leave, kept here, and copied to the status segment
 * for clients. Control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/control/member.h"

/* ---- the hash ring --------------------------------------------------------------------------- */

/*
 * Orders points of the hash ring; equal points are ordered by index. Owners are sorted by name, so
 * the order by index is the order by name.
 */
static int by_place(const void *a, const void *b)
{
	const struct map_point *x = a, *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return (x->member > y->member) - (x->member < y->member);
}

/* Adds `by` to the index of every point of an owner from index `first` on. */
static void points_move(struct map_view *view, uint32_t first, int by)
{
	for (uint32_t i = 0; i < view->points; i++)
		if (view->point[i].member >= first)
			view->point[i].member += (uint32_t)by;
}

/* Merges the points of the owner with that index into the ring, from its end. */
static void points_add(struct map_view *view, uint32_t index)
{
	struct map_point fresh[VNODES];
	uint32_t old = view->points, at = view->points + VNODES, left = VNODES;

	for (uint32_t i = 0; i < VNODES; i++)
		fresh[i] = (struct map_point){
			.at = map_point_at(view->member[index].name, i), .member = index};
	qsort(fresh, VNODES, sizeof(fresh[0]), by_place);
	view->points = at;
	while (left) {
		if (old && by_place(&view->point[old - 1], &fresh[left - 1]) > 0)
			view->point[--at] = view->point[--old];
		else
			view->point[--at] = fresh[--left];
	}
}

static void points_remove(struct map_view *view, uint32_t index)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < view->points; i++)
		if (view->point[i].member != index)
			view->point[kept++] = view->point[i];
	view->points = kept;
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Rendezvous hashing with one key: the members with the highest ranks own the directory. */
static uint64_t owner_rank(const struct map_member *member)
{
	return map_point_at(member->name, VNODES);
}

static bool ranks_above(const struct map_member *a, const struct map_member *b)
{
	uint64_t x = owner_rank(a), y = owner_rank(b);

	return x != y ? x > y : strcmp(a->name, b->name) < 0;
}

/* Index of the member of first..end - 1, not empty, with the highest or lowest rank. */
static uint32_t extreme(const struct map_view *view, uint32_t first, uint32_t end, bool highest)
{
	uint32_t found = first;

	for (uint32_t i = first + 1; i < end; i++)
		if (ranks_above(&view->member[i], &view->member[found]) == highest)
			found = i;
	return found;
}

/* Index in first..end at which a member of that name belongs. */
static uint32_t place_of(
	const struct map_view *view, uint32_t first, uint32_t end, const char *name)
{
	while (first < end) {
		uint32_t middle = first + (end - first) / 2;

		if (strcmp(view->member[middle].name, name) < 0)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

static void member_insert(struct map_view *view, uint32_t at, const struct map_member *joins)
{
	memmove(&view->member[at + 1], &view->member[at],
		(view->members - at) * sizeof(view->member[0]));
	view->member[at] = *joins;
	view->members++;
}

static void member_delete(struct map_view *view, uint32_t at)
{
	view->members--;
	memmove(&view->member[at], &view->member[at + 1],
		(view->members - at) * sizeof(view->member[0]));
}

/* Adds a member as an owner: there are `owners` so far. */
static void owner_add(struct map_view *view, uint32_t owners, const struct map_member *joins)
{
	uint32_t at = place_of(view, 0, owners, joins->name);

	member_insert(view, at, joins);
	points_move(view, at, 1);
	points_add(view, at);
}

static void owner_delete(struct map_view *view, uint32_t at)
{
	member_delete(view, at);
	points_remove(view, at);
	points_move(view, at, -1);
}

/* Adds a member that owns nothing. */
static void other_add(struct map_view *view, const struct map_member *joins)
{
	uint32_t owners = view->points / VNODES;

	member_insert(view, place_of(view, owners, view->members, joins->name), joins);
}

void member_map_join(struct map_view *view, const struct map_member *joins)
{
	uint32_t owners = view->points / VNODES, lowest;
	struct map_member leaves;

	if (owners < OWNERS_MAX) {
		owner_add(view, owners, joins);
		return;
	}
	lowest = extreme(view, 0, owners, false);
	if (!ranks_above(joins, &view->member[lowest])) {
		other_add(view, joins);
		return;
	}
	leaves = view->member[lowest];
	owner_delete(view, lowest);
	owner_add(view, owners - 1, joins);
	other_add(view, &leaves);
}

void member_map_leave(struct map_view *view, uint32_t index)
{
	uint32_t owners = view->points / VNODES, highest;
	struct map_member joins;

	if (index >= owners) {
		member_delete(view, index);
		return;
	}
	owner_delete(view, index);
	owners--;
	if (view->members == owners)
		return;
	highest = extreme(view, owners, view->members, true);
	joins = view->member[highest];
	member_delete(view, highest);
	owner_add(view, owners, &joins);
}

/* ---- the map of the live members ------------------------------------------------------------- */

void member_map_update(
	struct map_view *view, const struct map_member *const *members, unsigned count)
{
	const struct map_member *by_peer[NODES_MAX] = {NULL};
	bool there[NODES_MAX] = {false};
	uint32_t i = 0;

	for (unsigned m = 0; m < count; m++)
		by_peer[members[m]->peer] = members[m];
	while (i < view->members) {
		struct map_member *old = &view->member[i];
		const struct map_member *now = by_peer[old->peer];

		if (now && strcmp(now->name, old->name) == 0) {
			*old = *now; /* the name decides its place, and what it owns */
			there[now->peer] = true;
			i++;
		} else {
			member_map_leave(view, i);
			i = 0; /* the order of the members may be another one */
		}
	}
	for (unsigned m = 0; m < count; m++)
		if (!there[members[m]->peer])
			member_map_join(view, members[m]);
}

/* Collects the live members, with or without this engine, and returns their number. */
static unsigned alive_members(
	const struct member *member, bool with_self, const struct map_member **ret)
{
	static struct map_member alive[NODES_MAX];
	unsigned count = 0;

	for (unsigned i = with_self ? 0 : 1; i < member->table.entries && count < NODES_MAX; i++) {
		const struct member_entry *entry = member_at(&member->table, i);
		const struct member_record *r = &entry->record;
		struct map_member *at = &alive[count];

		if (entry->state != MEMBER_ALIVE)
			continue;
		*at = (struct map_member){.incarnation = r->incarnation,
			.ref = r->ref,
			.peer = r->peer,
			.rails = r->rails,
			.bucket_bits = r->bucket_bits,
			.self = r->self};
		memcpy(at->name, r->name, strlen(r->name));
		ret[count++] = at;
	}
	return count;
}

static void map_write(struct control *control)
{
	struct member *member = control->member;
	struct map_shared *shared;

	if (!control->status)
		return;
	shared = &control->status->map;
	map_write_begin(shared);
	map_view_copy(&shared->current, member->current);
	map_view_copy(&shared->previous, member->previous);
	map_write_end(shared);
}

/*
 * Chooses the `previous` map, which readers fall back to while directory entries migrate. Changes
 * within MAP_HOLD_NS of each other keep the map from before the first of them; an engine that has
 * just joined uses the membership without itself.
 */
static void previous_choose(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;
	const struct map_member *others[NODES_MAX];
	unsigned count;

	if (member->current->members <= 1)
		member->opened_ns = now_ns;
	if (now_ns - member->opened_ns < MAP_HOLD_NS) {
		count = alive_members(member, false, others);
		member->previous->replicas = (uint32_t)control->settings->cluster_replicas;
		member_map_update(member->previous, others, count);
	} else if (now_ns - member->changed_ns >= MAP_HOLD_NS || !member->previous->members) {
		map_view_copy(member->previous, member->current);
	}
	member->changed_ns = now_ns;
}

void member_map_rebuild(struct control *control)
{
	struct member *member = control->member;
	const struct map_member *alive[NODES_MAX];
	unsigned count;

	previous_choose(control, net_now());
	count = alive_members(member, true, alive);
	member->current->replicas = (uint32_t)control->settings->cluster_replicas;
	member_map_update(member->current, alive, count);
	map_write(control);
	if (control->directory)
		directory_map_changed(control);
}

void member_map_tick(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;

	if (!member->previous->members || now_ns - member->changed_ns < MAP_PREVIOUS_NS)
		return;
	member->previous->members = 0;
	member->previous->points = 0;
	map_write(control);
}

const struct map_view *member_map(const struct control *control)
{
	return control->member->current;
}
