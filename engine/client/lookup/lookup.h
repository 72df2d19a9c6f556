/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups: the channel's copy of the members of the cluster map, what the directory says of a key,
 * and READs of page heads. Channel thread.
 */
#ifndef CLIENT_LOOKUP_H
#define CLIENT_LOOKUP_H

#include <stdalign.h>

#include "config/likely.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/page.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/channel.h"

struct client_request;
struct pc_batch;
struct run_done;

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

/* True if the member is another host, and one that answers: see abi/map.h. */
bool directory_answers(const struct pc_channel *ch, const struct map_member *m);

/* ---- look-ups of keys: look.c ---------------------------------------------------------------- */

/* Looks a page up, first in the cache. */
void lookup_begin(struct pc_batch *b, uint32_t i);
/* Begins the look-ups of all pages of an exists, as lookup_begin() does one by one. */
void look_all(struct pc_batch *b);
/* Asks the next owner of each page that waits to be looked up, as far as there is room. */
void lookup_step(struct pc_batch *b);
/*
 * A run of look-ups or of heads was answered. `status`: of the pages in neither mask of `done`, for
 * heads never OP_HIT.
 */
void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);
/*
 * Adds the page to a run at `m`, to READ this bucket of the region for it. False: a run found no
 * room and is queued again.
 */
bool look_add_to(struct pc_batch *b, uint32_t i, const struct map_member *m, uint8_t region,
	uint32_t bucket);
/* Posts the open runs; with `room` false, queues their pages again. False: a run found no room. */
bool look_close_all(struct pc_batch *b, bool room);

/* ---- all holders of keys: pc_match() --------------------------------------------------------- */

/* entries that a key can have: those of its two buckets */
#define MATCH_HOLDERS (2 * BUCKET_ENTRIES)

/* Who has the page of a key, by peer number. */
struct match_key {
	uint16_t peer[MATCH_HOLDERS];
	uint16_t holders; /* how many of them */
	uint16_t disk;    /* bit i: holder i has it on disk */
};
static_assert(MATCH_HOLDERS <= 16, "match_key.disk has a bit for each");

/*
 * What one pc_match() finds: pc_channel.match, while its batch runs. explain/match.c makes it, the
 * look-ups of the batch fill it.
 */
struct match {
	enum pc_result *result; /* of each key */
	uint32_t count;
	struct match_key key[];
};

/* ---- page heads: head.c ---------------------------------------------------------------------- */

/*
 * READs the heads of the pages that wait for it, and what the peeks of a BATCH_PEEK name, as far as
 * there is room.
 */
void head_step(struct pc_batch *b);
/* As look_answer(), for heads and peeks. */
void head_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

/* A READ of a bucket or page head of another engine, or a question. */
struct peek {
	/* owner: the channel's thread; the engine to READ from: map_member.ref */
	alignas(64) uint32_t ref;
	/* REGION_SHARD: index of the bucket; REGION_HEADS_0: place of the page whose head it is */
	uint32_t bucket;
	uint8_t region; /* REGION_SHARD or REGION_HEADS_0 */
	uint8_t status; /* result, enum op_status; OP_HIT: `data` has the bytes */
	/* no READ: asks the engine of this host where it has the page of `key` (PROMOTE_LOOK) */
	bool engine;
	struct page_key key;
	/* owner: the channel's thread; written when the answer comes */
	alignas(64) union {
		struct bucket bucket;
		struct page_head head;
		struct {
			uint32_t place, generation; /* generation 0: the page is on disk */
			uint8_t why;                /* enum page_why */
		} here;
	} data;
};
static_assert(offsetof(struct peek, data) == 64, "a line for the request, one for the bytes");

#endif
