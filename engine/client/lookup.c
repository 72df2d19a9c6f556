/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the location of a key: in the channel's cache, else in a bucket of an owner of the key. The
 * bucket is loaded from this host's shard or READ through a rail (look_run.c). A whole batch is
 * looked up at a time.
 *
 *   owner 1: first bucket -- full, no match --> second bucket
 *     failed, or not there  --> owner 2, ..., then the former owners of the key's slot
 *   all asked               --> absent: every owner said so; unreachable: one could not be asked
 *
 * The answer "not there" of one owner proves nothing: a holder that cannot reach that owner has
 * told the other owners, and a small shard loses entries. Owners are asked one after another,
 * because most keys that are looked up exist; asking all owners at once would read two buckets for
 * each key (perf/README.md).
 *
 * Entries of engines that are not alive are ignored. An entry may be wrong: the page head decides.
 * Channel thread.
 */
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/owner.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/likely.h"
#include "engine/client/lookup.h"
#include "engine/client/map.h"
#include "engine/client/run.h"
#include "engine/client/session.h"
#include "engine/client/stripe.h"

#include <string.h>

static_assert(REPLICAS_MAX + MAP_FORMERS_MAX <= 8, "page_work.asked has a bit for each");

/* loads of a slot's word that a change of the map may spoil, before the key is unreachable */
#define OWNERS_ATTEMPTS 3

struct choice {
	const struct map_member *member; /* the next owner to ask; NULL: every owner was asked */
	struct owner_choice owner;       /* its rank, and its bit in page_work.asked */
};

/*
 * Prefetches what a set will look at soon: the word with the key's owners, and the bucket that the
 * key has if this host is one of them.
 */
static inline void prefetch_here(const struct client_session *session, const struct page_key *key)
{
	__builtin_prefetch(&session->status->map.slot[map_slot_of(key)]);
	__builtin_prefetch(&session->shard[dir_bucket_first(key, session->bucket_bits)]);
}

void lookup_again(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	if (b->kind == BATCH_SET)
		prefetch_here(b->channel->session, &p->key);
	p->cached = cache_index(&p->key);
	p->asked = 0;
	p->others = 0;
	p->rails_tried = 0;
	p->flags &= (uint8_t) ~(PAGE_SECOND | PAGE_SAW_ANSWER | PAGE_SAME_PEER);
	b->channel->counts.lookups++;
	page_queue(b, i, PAGE_LOOK);
}

/*
 * True if the cache has a location that is good enough. A get may use an old one, because the page
 * head reveals a stale location. Other calls report without reading the page, so they need an entry
 * younger than FRESH_NS.
 */
static bool cached(const struct pc_batch *b, struct page_work *p)
{
	struct pc_channel *ch = b->channel;
	const struct cache_set *set = cache_set(ch, &p->key);
	uint32_t way = cache_way(set, &p->key);

	if (way == CACHE_WAYS || !map_by_ref(ch, set->entry[way].at.ref))
		return false;
	if (b->kind != BATCH_GET && channel_now_ms(ch) - set->seen_ms[way] >= FRESH_NS / 1000000)
		return false;
	p->at = set->entry[way].at;
	p->cached = cache_number(&p->key, way);
	return true;
}

void lookup_begin(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (!ch->map || !ch->map->members) {
		p->flags |= PAGE_SAW_FAILURE; /* no owner of the key is known, so none was asked */
		page_absent(b, i);
	} else if (cached(b, p)) {
		ch->counts.lookups_cached++;
		p->others = 0;
		page_found(b, i);
	} else {
		lookup_again(b, i);
	}
}

/*
 * Plans the pages [i, end) whose locations the cache has; the others go on one by one. Returns
 * their number.
 */
static uint32_t plan(struct pc_batch *b, uint32_t i, uint32_t end)
{
	struct pc_channel *ch = b->channel;
	uint32_t here = ch->session->ref, others = 0, slot = 0, way;
	/* alike: the holder to which `slot` belongs, another host on the map; 0: none yet */
	uint32_t holder = 0;
	struct cache_set *cache = ch->cache;
	bool alike = b->alike;

	for (; i < end; i++) {
		struct page_work *p = &b->work[i];
		uint32_t set = p->cached; /* until here the set's number, see keys.c */
		const struct cache_entry *e =
			likely(p->regular) ? cache_entry_in(&cache[set], &p->key, &way) : NULL;
		struct location at;

		if (unlikely(!e || (e->at.ref != holder &&
					   (e->at.ref == here || !map_by_ref(ch, e->at.ref))))) {
			others++;
			if (p->phase != PAGE_DONE)
				lookup_begin(b, i);
			continue;
		}
		at = e->at;
		if (unlikely(at.ref != holder)) {
			slot = run_slot(at.ref, p->bytes);
			holder = alike ? at.ref : 0;
		}
		p->at = at;
		p->cached = set * CACHE_WAYS + way;
		run_add(b, i, slot, 0, alike);
	}
	return others;
}

void lookup_get(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t others = 0;

	b->cache_changes = ch->cache_changes;
	for (uint32_t i = 0; i < b->count; i += RUN_PLAN_MAX) {
		uint32_t end = i + RUN_PLAN_MAX < b->count ? i + RUN_PLAN_MAX : b->count;

		others += plan(b, i, end);
		run_add_end(b);
	}
	ch->counts.lookups_cached += b->count - others;
}

static enum owner_rank rank_of(const struct pc_channel *ch, const struct map_member *m)
{
	if (m->ref == ch->session->ref)
		return RANK_HERE;
	return owner_rank_remote(ch->peer_rest_until_ns[m->peer] > ch->now_ns,
		map_suspect(&ch->session->status->map, m->peer));
}

bool lookup_answers(const struct pc_channel *ch, const struct map_member *m)
{
	return rank_of(ch, m) == RANK_ANSWERS;
}

/*
 * Loads the owners of the key. A change of the map starts the look-up again, also one after which
 * the slot has the same word, because an owner number may have another member then. False: the map
 * changed at each attempt.
 */
static bool owners_load(
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
static void consider(const struct pc_channel *ch, struct page_work *p,
	const struct map_member *named, unsigned bit, struct choice *best)
{
	const struct map_member *m = map_known(ch, named);

	if (unlikely(!m))
		p->flags |= PAGE_SAW_FAILURE;
	else if (owner_consider(&best->owner, p->asked, bit, rank_of(ch, m)))
		best->member = m;
}

const struct map_member *lookup_owner(struct pc_channel *ch, struct page_work *p)
{
	struct choice best = {.owner.rank = RANKS};
	struct map_owners owners;
	enum owner_verdict verdict;
	unsigned k;

	if (unlikely(!owners_load(ch, p, &owners))) {
		p->flags |= PAGE_SAW_FAILURE;
		return NULL;
	}
	for (k = 0; k < owners.owners; k++)
		consider(ch, p, &owners.member[k], k, &best);
	if (owner_former_due(&best.owner))
		for (; k < owners.all; k++)
			consider(ch, p, &owners.member[k], REPLICAS_MAX + k - owners.owners, &best);
	verdict = owner_verdict(&best.owner, p->flags & PAGE_SAW_ANSWER,
		!owners.proves || p->flags & PAGE_SAW_FAILURE);
	if (verdict == OWNER_UNREACHABLE)
		p->flags |= PAGE_SAW_FAILURE;
	if (verdict != OWNER_ASK)
		return NULL;
	p->asked |= (uint8_t)(1u << best.owner.bit);
	return best.member;
}

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
static inline uint32_t matches(const struct bucket *bucket, uint32_t tag, uint32_t start)
{
	uint32_t found = bucket_match(bucket, tag);

	return (found >> start | found << (BUCKET_ENTRIES - start)) & ((1u << BUCKET_ENTRIES) - 1);
}

/*
 * True if the entry names a page on a disk that is of no use for the batch: a set stores the page
 * in memory, and an engine of an earlier version asks no other engine for it.
 */
static bool disk_useless(const struct pc_batch *b, const struct dir_entry *e)
{
	return place_on_disk(e->place) &&
	       (b->kind == BATCH_SET || !shm_load(&b->channel->session->status->promotes));
}

/*
 * Copies the bucket's locations of the key into the page: pages in memory first, and of these this
 * host's first; those of peers that failed recently last. False: the bucket has none.
 */
static bool match(const struct pc_batch *b, struct page_work *p, const struct bucket *bucket)
{
	struct pc_channel *ch = b->channel;
	uint32_t start = (uint32_t)(p->key.word[0] >> 60) % BUCKET_ENTRIES;
	struct location found[BUCKET_ENTRIES];
	unsigned ranks[BUCKET_ENTRIES]; /* of found[], ascending */
	unsigned n = 0;

	for (uint32_t left = matches(bucket, dir_tag(&p->key), start); left; left &= left - 1) {
		uint32_t k = start + (uint32_t)__builtin_ctz(left);
		const struct dir_entry *e = &bucket->entry[k % BUCKET_ENTRIES];
		const struct map_member *m = map_by_ref(ch, e->ref);
		unsigned rank, at;

		if (!m || (e->ref == p->wrong.ref && e->place == p->wrong.place &&
				  e->generation == p->wrong.generation))
			continue;
		if (unlikely(disk_useless(b, e)))
			continue;
		rank = location_rank(rank_of(ch, m), place_on_disk(e->place));
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

static void found(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	const struct cache_set *set = cache_set(ch, &p->key);
	const struct cache_entry *e;

	p->rails_tried = 0;
	if (unlikely(place_on_disk(p->at.place))) {
		/* no location to remember: it is not READ from there */
		page_found(b, i);
		return;
	}
	e = cache_put(ch, &p->key, &p->at, channel_now_ms(ch));
	p->cached = cache_number(&p->key, (uint32_t)(e - set->entry));
	page_found(b, i);
}

/* Looks the key up in the part of the directory that this host stores. True: found. */
static bool look_here(const struct pc_batch *b, struct page_work *p)
{
	struct pc_channel *ch = b->channel;
	const struct client_session *session = ch->session;
	uint32_t first = dir_bucket_first(&p->key, session->bucket_bits);
	struct bucket bucket = bucket_load(&session->shard[first]);

	if (match(b, p, &bucket))
		return true;
	if (bucket_has_empty(&bucket))
		return false;
	bucket = bucket_load(
		&session->shard[dir_bucket_other(first, dir_tag(&p->key), session->bucket_bits)]);
	return match(b, p, &bucket);
}

/*
 * Looks one page up as far as possible without waiting. False: a run found no room, and its pages
 * are queued again.
 */
static bool look(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	for (;;) {
		const struct map_member *m = NULL;

		if (p->flags & PAGE_SAME_PEER)
			m = map_by_peer(ch, p->peer);
		if (!m) {
			p->flags &= (uint8_t) ~(PAGE_SECOND | PAGE_SAME_PEER);
			p->rails_tried = 0;
			m = lookup_owner(ch, p);
		}
		if (!m) {
			page_absent(b, i);
			return true;
		}
		if (m->ref != ch->session->ref)
			return look_add(b, i, m);
		if (look_here(b, p)) {
			found(b, i);
			return true;
		}
		p->flags |= PAGE_SAW_ANSWER;
	}
}

void lookup_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	bool room = true;
	uint32_t i;

	while (room && !ch->broken && (i = page_unqueue(b, PAGE_LOOK)) != CLIENT_NONE)
		room = look(b, i);
	look_close_all(b, room);
}

void lookup_answer(struct pc_batch *b, uint32_t i, const struct bucket *bucket, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (status == OP_HIT) {
		ch->peer_rest_until_ns[p->peer] = 0;
		if (match(b, p, bucket)) {
			found(b, i);
			return;
		}
		p->rails_tried = 0;
		if (!(p->flags & PAGE_SECOND) && !bucket_has_empty(bucket)) {
			p->flags |= PAGE_SECOND | PAGE_SAME_PEER;
		} else {
			p->flags &= (uint8_t)~PAGE_SECOND;
			p->flags |= PAGE_SAW_ANSWER;
		}
	} else if ((status == OP_NIC_ERROR || status == OP_PEER_DOWN) &&
		   stripe_again(ch, p->peer, p->rails_tried)) {
		p->flags |= PAGE_SAME_PEER;
	} else {
		ch->peer_rest_until_ns[p->peer] = ch->now_ns + PEER_REST_NS;
		p->flags |= PAGE_SAW_FAILURE;
		p->flags &= (uint8_t)~PAGE_SECOND;
	}
	page_queue(b, i, PAGE_LOOK);
}
