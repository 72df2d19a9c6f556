/* SPDX-License-Identifier: Apache-2.0 */
/* The channel's copy of the members of the cluster map. Channel thread. */
#ifndef CLIENT_MAP_H
#define CLIENT_MAP_H

#include "config/likely.h"
#include "engine/abi/map.h"
#include "engine/client/channel.h"

/* Copies the members if the map has changed. */
void map_refresh(struct pc_channel *ch);
/* The copy came from an engine that has ended: its peer numbers mean nothing to the next one. */
void map_forget(struct pc_channel *ch);
void map_free(struct pc_channel *ch);
/* Finds a member by its ref; NULL: no member of the map has it. */
const struct map_member *map_search(struct pc_channel *ch, uint32_t ref);
/* The same by its peer number; the channel has a map. */
static inline const struct map_member *map_by_peer(const struct pc_channel *ch, uint16_t peer)
{
	const struct map_member *m = &ch->map->member[peer];

	return peer < ch->map->peers && m->ref ? m : NULL;
}
/* The member that a word of the shared map names, as the copy has it; NULL: it does not. */
static inline const struct map_member *map_known(
	const struct pc_channel *ch, const struct map_member *named)
{
	const struct map_member *m = map_by_peer(ch, named->peer);

	return likely(m && m->ref == named->ref) ? m : NULL;
}
static inline const struct map_member *map_by_ref(struct pc_channel *ch, uint32_t ref)
{
	const struct map_member *m = ch->map_last;

	return likely(m && m->ref == ref) ? m : map_search(ch, ref);
}

#endif
