/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel's copy of the members of the cluster map, and what the directory says of a key: its
 * owners and its locations. Channel thread.
 */
#ifndef CLIENT_DIRECTORY_H
#define CLIENT_DIRECTORY_H

#include "config/likely.h"
#include "engine/abi/map.h"
#include "engine/client/rings/channel.h"

struct bucket;
struct page_work;
struct pc_batch;

/* ---- the map --------------------------------------------------------------------------------- */

/* Copies the members if the map has changed. */
void map_refresh(struct pc_channel *ch);
/* The copy came from an engine that has ended: its peer numbers mean nothing to the next one. */
static inline void map_forget(struct pc_channel *ch)
{
	ch->map_epoch = 0;
	ch->map = NULL;
	ch->map_last = NULL;
}
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

/* ---- the directory --------------------------------------------------------------------------- */

/* Chooses the key's next owner to ask and marks it as asked. NULL: every owner was asked. */
const struct map_member *directory_owner_choose(struct pc_channel *ch, struct page_work *p);
/* True if the member is another host, and one that answers: see abi/map.h. */
bool directory_answers(const struct pc_channel *ch, const struct map_member *m);
/* Copies the bucket's locations of the key into the page. False: the bucket has none. */
bool directory_match(const struct pc_batch *b, struct page_work *p, const struct bucket *bucket);
/* The same for the part of the directory that this host stores. */
bool directory_here(const struct pc_batch *b, struct page_work *p);

#endif
