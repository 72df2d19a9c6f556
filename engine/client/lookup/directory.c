/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine's shared memory says of members and keys.
 *
 * The map: the channel's private copy of the members of the cluster map, 8 bytes each, and the
 * search for the member with a ref. The copy is refreshed when the shared epoch changes.
 *
 * The directory: the owners of a key, in the order in which they are asked
 * (directory_owner_choose() chooses the next one), and the locations in a bucket, in the order in
 * which they are tried. Owners are not copied: the word of the key's slot is read for each look-up.
 * Entries of engines that are not alive are ignored. An entry may be wrong: the page head decides.
 * Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/lookup/directory.h"
#include "engine/client/attach/session.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_MIN 64u
/* slots of the hash table per member, at least */
#define SPARSE 2u

static_assert(REPLICAS_MAX + MAP_FORMERS_MAX <= 8, "page_work.asked has a bit for each");

/* loads of a slot's word that a change of the map may spoil, before the key is unreachable */
#define OWNERS_ATTEMPTS 3

/* ---- the copy of the map --------------------------------------------------------------------- */

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

/* ---- the owners of a key --------------------------------------------------------------------- */

struct choice {
	const struct map_member *member; /* the next owner to ask; NULL: every owner was asked */
	struct owner_choice owner;       /* its rank, and its bit in page_work.asked */
};

static enum owner_rank directory_rank(const struct pc_channel *ch, const struct map_member *m)
{
	if (m->ref == ch->session->ref)
		return RANK_HERE;
	return owner_rank_remote(ch->peer_rest_until_ns[m->peer] > ch->now_ns,
		map_suspect(&ch->session->status->map, m->peer));
}

bool directory_answers(const struct pc_channel *ch, const struct map_member *m)
{
	return directory_rank(ch, m) == RANK_ANSWERS;
}

/*
 * Loads the owners of the key. A change of the map starts the look-up again, also one after which
 * the slot has the same word, because an owner number may have another member then. False: the map
 * changed at each attempt.
 */
static bool directory_owners_load(
	const struct pc_channel *ch, struct page_work *p, struct map_owners *ret_owners)
{
	const struct map_shared *shared = &ch->session->status->map;
	bool loaded = false;

	for (unsigned n = 0; !loaded && n < OWNERS_ATTEMPTS; n++)
		loaded = map_owners_load(shared, map_slot_of(&p->key), ret_owners);
	if (p->epoch != (uint8_t)ret_owners->epoch ||
		memcmp(p->slot_word, &ret_owners->word, sizeof(p->slot_word))) {
		p->epoch = (uint8_t)ret_owners->epoch;
		memcpy(p->slot_word, &ret_owners->word, sizeof(p->slot_word));
		p->asked = 0;
	}
	return loaded;
}

/* An owner that the channel's copy of the members does not have cannot be asked. */
static void directory_consider(const struct pc_channel *ch, struct page_work *p,
	const struct map_member *named, unsigned bit, struct choice *best)
{
	const struct map_member *m = map_known(ch, named);

	if (unlikely(!m))
		p->flags |= PAGE_SAW_FAILURE;
	else if (owner_consider(&best->owner, p->asked, bit, directory_rank(ch, m)))
		best->member = m;
}

const struct map_member *directory_owner_choose(struct pc_channel *ch, struct page_work *p)
{
	struct choice best = {.owner.rank = RANKS};
	struct map_owners owners;
	enum owner_verdict verdict;
	unsigned k;

	if (unlikely(!directory_owners_load(ch, p, &owners))) {
		p->flags |= PAGE_SAW_FAILURE;
		return NULL;
	}
	for (k = 0; k < owners.owners; k++)
		directory_consider(ch, p, &owners.member[k], k, &best);
	if (owner_former_due(&best.owner))
		for (; k < owners.all; k++)
			directory_consider(
				ch, p, &owners.member[k], REPLICAS_MAX + k - owners.owners, &best);
	verdict = owner_verdict(&best.owner, p->flags & PAGE_SAW_ANSWER,
		!owners.proves || p->flags & PAGE_SAW_FAILURE);
	if (verdict == OWNER_UNREACHABLE)
		p->flags |= PAGE_SAW_FAILURE;
	if (verdict != OWNER_ASK)
		return NULL;
	p->asked |= (uint8_t)(1u << best.owner.bit);
	return best.member;
}

/* ---- the locations of a page ----------------------------------------------------------------- */

/* Order in which locations of a page are tried. */
static unsigned location_rank(enum owner_rank rank, bool on_disk)
{
	static const uint8_t order[RANKS][2] = {
		[RANK_HERE] = {0, 2}, [RANK_ANSWERS] = {1, 3}, [RANK_RESTS] = {4, 5}};

	return order[rank][on_disk];
}

/*
 * The entries of the bucket that have the tag: bit k is entry (start + k) % BUCKET_ENTRIES.
 */
static inline uint32_t directory_matches(const struct bucket *bucket, uint32_t tag, uint32_t start)
{
	uint32_t found = bucket_match(bucket, tag);

	return (found >> start | found << (BUCKET_ENTRIES - start)) & ((1u << BUCKET_ENTRIES) - 1);
}

/* A set stores the page in memory: an entry that names a page on a disk is of no use for it. */
static bool directory_disk_useless(const struct pc_batch *b, const struct dir_entry *e)
{
	return place_on_disk(e->place) && b->kind == BATCH_SET;
}

/*
 * Copies the bucket's locations of the key into the page: pages in memory first, and of these this
 * host's first; those of peers that failed recently last. False: the bucket has none.
 */
bool directory_match(const struct pc_batch *b, struct page_work *p, const struct bucket *bucket)
{
	struct pc_channel *ch = b->channel;
	uint32_t start = (uint32_t)(p->key.word[0] >> 60) % BUCKET_ENTRIES;
	struct location found[BUCKET_ENTRIES];
	unsigned ranks[BUCKET_ENTRIES]; /* of found[], ascending */
	unsigned n = 0;

	for (uint32_t left = directory_matches(bucket, dir_tag(&p->key), start); left;
		left &= left - 1) {
		uint32_t k = start + (uint32_t)__builtin_ctz(left);
		const struct dir_entry *e = &bucket->entry[k % BUCKET_ENTRIES];
		const struct map_member *m = map_by_ref(ch, e->ref);
		unsigned rank, at;

		if (!m || (e->ref == p->wrong.ref && e->place == p->wrong.place &&
				  e->generation == p->wrong.generation))
			continue;
		if (unlikely(directory_disk_useless(b, e)))
			continue;
		rank = location_rank(directory_rank(ch, m), place_on_disk(e->place));
		for (at = n++; at && ranks[at - 1] > rank; at--) {
			found[at] = found[at - 1];
			ranks[at] = ranks[at - 1];
		}
		found[at] = (struct location){e->ref, e->place, e->generation};
		ranks[at] = rank;
	}
	if (!n)
		return false;
	p->at = found[0];
	p->others = (uint8_t)(n - 1);
	for (unsigned k = 1; k < n; k++)
		/* page_wrong() takes the last location of other[] first */
		p->other[n - 1 - k] = found[k];
	return true;
}

/* Looks the key up in the part of the directory that this host stores. True: found. */
bool directory_here(const struct pc_batch *b, struct page_work *p)
{
	struct pc_channel *ch = b->channel;
	const struct client_session *session = ch->session;
	uint32_t first = dir_bucket_first(&p->key, session->bucket_bits);
	struct bucket bucket = bucket_load(&session->shard[first]);

	if (directory_match(b, p, &bucket))
		return true;
	if (bucket_has_empty(&bucket))
		return false;
	bucket = bucket_load(
		&session->shard[dir_bucket_other(first, dir_tag(&p->key), session->bucket_bits)]);
	return directory_match(b, p, &bucket);
}
