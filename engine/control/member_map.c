/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map: built from the members that are alive, kept here, and copied to the status
 * segment for clients. Control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/control/member.h"

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct map_member *)a)->name, ((const struct map_member *)b)->name);
}

/*
 * Orders points of the hash ring; equal points are ordered by index. Members are sorted by name, so
 * the order by index is the order by name.
 */
static int by_place(const void *a, const void *b)
{
	const struct map_point *x = a, *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return (x->member > y->member) - (x->member < y->member);
}

void member_map_build(struct map_view *ret_view, const struct map_member *members, unsigned count,
	unsigned replicas)
{
	struct map_view *view = ret_view;

	memset(view, 0, offsetof(struct map_view, member));
	view->members = count;
	view->points = count * VNODES;
	view->replicas = replicas;
	memcpy(view->member, members, count * sizeof(*members));
	qsort(view->member, count, sizeof(*members), by_name);
	for (uint32_t m = 0; m < count; m++)
		for (uint32_t i = 0; i < VNODES; i++)
			view->point[m * VNODES + i] = (struct map_point){
				.at = map_point_at(view->member[m].name, i), .member = m};
	qsort(view->point, view->points, sizeof(view->point[0]), by_place);
}

/* Collects the live members, with or without this engine, and returns their number. */
static unsigned alive_members(const struct member *member, bool with_self, struct map_member *ret)
{
	unsigned count = 0;

	for (unsigned i = with_self ? 0 : 1; i < MEMBER_ENTRIES && count < NODES_MAX; i++)
		if (member->entry[i].state == MEMBER_ALIVE)
			ret[count++] = member->entry[i].record.map;
	return count;
}

static size_t view_bytes(const struct map_view *view)
{
	return offsetof(struct map_view, point) + view->points * sizeof(view->point[0]);
}

static void map_write(struct control *control)
{
	struct member *member = control->member;
	struct map_shared *shared;

	if (!control->status)
		return;
	shared = &control->status->map;
	map_write_begin(shared);
	memcpy(&shared->current, member->current, view_bytes(member->current));
	memcpy(&shared->previous, member->previous, view_bytes(member->previous));
	map_write_end(shared);
}

/*
 * Chooses the `previous` map, which readers fall back to while directory entries migrate. Changes
 * within MAP_HOLD_NS of each other keep the map from before the first of them; an engine that has
 * just joined uses the membership without itself.
 */
static void previous_choose(struct control *control, unsigned replicas, uint64_t now_ns)
{
	struct member *member = control->member;
	struct map_member others[NODES_MAX];
	unsigned count;

	if (member->current->members <= 1)
		member->opened_ns = now_ns;
	if (now_ns - member->opened_ns < MAP_HOLD_NS) {
		count = alive_members(member, false, others);
		member->previous->members = 0;
		member->previous->points = 0;
		if (count)
			member_map_build(member->previous, others, count, replicas);
	} else if (now_ns - member->changed_ns >= MAP_HOLD_NS || !member->previous->members) {
		memcpy(member->previous, member->current, view_bytes(member->current));
	}
	member->changed_ns = now_ns;
}

void member_map_rebuild(struct control *control)
{
	struct member *member = control->member;
	struct map_member alive[NODES_MAX];
	unsigned replicas = (unsigned)control->settings->cluster_replicas;
	unsigned count = alive_members(member, true, alive);

	previous_choose(control, replicas, net_now());
	member_map_build(member->current, alive, count, replicas);
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
