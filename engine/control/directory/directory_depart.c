/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that left the map, and the sweep that removes their entries from this engine's shard, in
 * small slices. Control plane's thread only.
 */
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"

static void sweep_start(struct directory *dir)
{
	dir->sweep_left = 1ull << dir->control->shard->bits;
	move_soon(dir);
}

static void departed_remove(struct directory *dir, unsigned at)
{
	memmove(&dir->departed[at], &dir->departed[at + 1],
		(--dir->departeds - at) * sizeof(dir->departed[0]));
}

void departed_add(struct directory *dir, uint32_t ref)
{
	for (unsigned i = 0; i < dir->departeds; i++)
		if (dir->departed[i].ref == ref)
			departed_remove(dir, i);
	if (dir->departeds == DEPARTED_MAX) {
		departed_remove(dir, 0);
		sweep_start(dir);
	}
	dir->departed[dir->departeds++] = (struct departed){ref, net_now()};
}

void departed_tick(struct directory *dir, uint64_t now_ns)
{
	uint64_t stay_ns = (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull *
			   DEPARTED_DEADS;

	while (dir->departeds && now_ns - dir->departed[0].since_ns >= stay_ns) {
		if (!member_by_ref(dir->control, dir->departed[0].ref))
			sweep_start(dir);
		departed_remove(dir, 0);
	}
}

void departed_sweep(struct directory *dir)
{
	if (dir->departeds)
		sweep_start(dir);
	dir->departeds = 0;
}

static bool ref_alive(void *context, uint32_t ref)
{
	const struct control *control = context;
	const struct directory *dir = control->directory;

	for (unsigned i = 0; i < dir->departeds; i++)
		if (dir->departed[i].ref == ref)
			return true;
	return member_by_ref(control, ref) != NULL;
}

void sweep_slice(struct directory *dir)
{
	struct control *control = dir->control;
	uint32_t buckets =
		dir->sweep_left < MOVE_BUCKETS ? (uint32_t)dir->sweep_left : MOVE_BUCKETS;

	control->counter[COUNTER_entries_removed] +=
		shard_sweep(control->shard, &dir->sweep_cursor, buckets, ref_alive, control);
	dir->sweep_left -= buckets;
}
