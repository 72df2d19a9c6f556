/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel's private copy of the members of the cluster map, 8 bytes each, and the search for
 * the member with a ref. The copy is refreshed when the shared epoch changes. Channel thread.
 */
#include "config/limits.h"
#include "engine/abi/map.h"
#include "engine/abi/ring.h"
#include "engine/client/attach/session.h"
#include "engine/client/lookup/lookup.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_MIN 64u
/* slots of the hash table per member, at least */
#define SPARSE 2u

static uint32_t map_copy_slot(const struct map_copy *map, uint32_t ref)
{
	return (uint32_t)map_mix(ref) & map->mask;
}

static void map_copy_index(struct map_copy *map)
{
	memset(map->slot, 0, (map->mask + 1) * sizeof(map->slot[0]));
	for (uint32_t i = 0; i < map->peers; i++) {
		uint32_t slot = map_copy_slot(map, map->member[i].ref);

		if (!map->member[i].ref)
			continue;
		while (map->slot[slot])
			slot = (slot + 1) & map->mask;
		map->slot[slot] = (uint16_t)(i + 1);
	}
}
static_assert(NODES_MAX < UINT16_MAX, "a peer number has 16 bits");

/*
 * cold: when the number of members has doubled. Makes room for all members whose peer number is
 * below `peers`. False: no memory.
 */
static bool map_copy_room(struct map_copy *map, uint32_t peers)
{
	uint32_t room = map->room ? map->room : ROOM_MIN;
	struct map_member *member;
	uint16_t *slot;

	while (room < peers)
		room *= 2;
	if (room == map->room)
		return true;
	member = malloc(room * sizeof(*member));
	slot = malloc(room * SPARSE * sizeof(*slot));
	if (!member || !slot) {
		free(member);
		free(slot);
		return false;
	}
	free(map->member);
	free(map->slot);
	*map = (struct map_copy){
		.member = member, .slot = slot, .room = room, .mask = room * SPARSE - 1};
	return true;
}

/* Words that are no members are left out: none is there, or the engine's memory is damaged. */
static void map_copy_members(struct map_copy *map, const struct map_shared *shared, uint32_t peers)
{
	map->peers = peers;
	map->members = 0;
	for (uint32_t peer = 0; peer < peers; peer++) {
		struct map_member m = map_member_unpack(shm_load64(&shared->member[peer]));

		if (m.peer != peer || !map_member_sane(&m))
			m = (struct map_member){.ref = 0};
		map->members += m.ref != 0;
		map->member[peer] = m;
	}
}

/*
 * A member that joins while the copy is made may be missing: the epoch changes after it, so the
 * next call copies again. The acquire pairs with the release of control/members/member_map.c.
 */
void map_refresh(struct pc_channel *ch)
{
	const struct map_shared *shared = &ch->session->status->map;
	uint32_t epoch = shm_load_acquire(&shared->epoch), peers;

	if (ch->map && epoch == ch->map_epoch)
		return;
	peers = shm_load(&shared->peers);
	if (peers > NODES_MAX)
		peers = NODES_MAX;
	if (!map_copy_room(&ch->map_memory, peers))
		return;
	map_copy_members(&ch->map_memory, shared, peers);
	map_copy_index(&ch->map_memory);
	ch->map = &ch->map_memory;
	ch->map_epoch = epoch;
	ch->map_last = NULL;
}

const struct map_member *map_search(struct pc_channel *ch, uint32_t ref)
{
	const struct map_copy *map = ch->map;

	if (!map || !ref)
		return NULL;
	for (uint32_t slot = map_copy_slot(map, ref); map->slot[slot];
		slot = (slot + 1) & map->mask) {
		const struct map_member *m = &map->member[map->slot[slot] - 1];

		if (m->ref == ref) {
			ch->map_last = m;
			return m;
		}
	}
	return NULL;
}
