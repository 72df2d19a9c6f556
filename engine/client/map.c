/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel's private copy of the cluster map, and the search for the member with a ref. The copy
 * is refreshed when the shared epoch changes. A copy that was torn by a concurrent change is
 * discarded, and the old one stays. Channel thread.
 */
#include "engine/client/client.h"

#include <stdlib.h>

#define MAP_SLOTS (NODES_MAX * 4)
#define MAP_ATTEMPTS 3

static uint32_t slot_of(uint32_t ref)
{
	return (uint32_t)map_mix(ref) & (MAP_SLOTS - 1);
}

static void index_refs(struct pc_channel *ch)
{
	const struct map_view *view = &ch->map->current;

	memset(ch->map_slot, 0, sizeof(ch->map_slot));
	ch->map_last = NULL;
	for (uint32_t i = 0; i < view->members; i++) {
		uint32_t slot = slot_of(view->member[i].ref);

		while (ch->map_slot[slot])
			slot = (slot + 1) & (MAP_SLOTS - 1);
		ch->map_slot[slot] = (uint16_t)(i + 1);
	}
}

void map_refresh(struct pc_channel *ch)
{
	const struct map_shared *shared = &ch->session->status->map;
	struct map_pair *read = ch->map_spare;
	uint32_t epoch;

	if (ch->map && shm_load(&shared->epoch) == ch->map_epoch)
		return;
	for (unsigned attempt = 0; attempt < MAP_ATTEMPTS; attempt++) {
		if (map_read(shared, &read->current, &read->previous, &epoch))
			continue;
		ch->map_spare = ch->map ? ch->map : read + 1;
		ch->map = read;
		ch->map_epoch = epoch;
		index_refs(ch);
		map_guide_make(&read->current, &ch->map_guide);
		return;
	}
}

const struct map_member *map_search(struct pc_channel *ch, uint32_t ref)
{
	if (!ch->map || !ref)
		return NULL;
	for (uint32_t slot = slot_of(ref); ch->map_slot[slot];
		slot = (slot + 1) & (MAP_SLOTS - 1)) {
		const struct map_member *m = &ch->map->current.member[ch->map_slot[slot] - 1];

		if (m->ref == ref) {
			ch->map_last = m;
			return m;
		}
	}
	return NULL;
}
