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
 * directory.c has the order of the owners and of the locations. Channel thread.
 */
#include "config/likely.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/directory.h"
#include "engine/client/look_run.h"
#include "engine/client/lookup.h"
#include "engine/client/map.h"
#include "engine/client/notice.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/session.h"
#include "engine/client/stripe.h"

#include <string.h>

#define EXPECT_AHEAD 6 /* buckets between the one that is prefetched and the one in use */

#define NO_HOLDER (1ull << 32) /* no ref */

/*
 * True if the cache has a location that is good enough. A get may use an old one, because the page
 * head reveals a stale location. A set checks the head, too, but says that every host finds the
 * page, and an exists reads nothing: both need an entry younger than FRESH_NS.
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
		page_look_again(b, i);
	}
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
			m = directory_owner(ch, p);
		}
		if (!m) {
			page_absent(b, i);
			return true;
		}
		if (m->ref != ch->session->ref)
			return look_add(b, i, m);
		if (directory_here(b, p)) {
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

static void lookup_answer(
	struct pc_batch *b, uint32_t i, const struct bucket *bucket, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (status == OP_HIT) {
		ch->peer_rest_until_ns[p->peer] = 0;
		if (directory_match(b, p, bucket)) {
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

/* ---- all pages of an exists ---------------------------------------------------------------- */

/* True if this host is an owner of the slot, but not the first. */
static inline bool owns_here(const struct pc_channel *ch, uint64_t word, unsigned owners)
{
	struct map_slot names = map_slot_unpack(word);
	const uint64_t *owner = ch->session->status->map.owner;
	uint32_t here = ch->session->ref;
	bool found = false;

	for (unsigned k = 1; k < owners; k++)
		found |= map_member_unpack(shm_load_acquire64(&owner[names.owner[k]])).ref == here;
	return found;
}

/* What the look-ups of a batch have in common. */
struct look_pass {
	struct pc_channel *ch;
	struct pc_batch *batch;
	const struct map_shared *shared; /* the map of the session */
	uint32_t epoch;                  /* of the map, loaded before anything else of it */
};

/* ADDED_NOT: another owner, one without a run, or the map has changed; nothing was done. */
enum look_added { ADDED_NOT, ADDED, ADDED_LAST /* the run has to be closed */ };

/*
 * Adds a page that has asked no owner to the run of its key's first owner, if directory_owner()
 * would choose that owner: it answers, because its run has a word, and this host is no owner of the
 * key.
 */
static inline enum look_added look_usual(
	const struct look_pass *pass, struct page_work *p, uint32_t i)
{
	const struct map_shared *shared = pass->shared;
	const uint64_t *slot = &shared->slot[map_slot_of(&p->key)];
	uint64_t word = shm_load_acquire64(slot), best;
	const struct map_slot names = map_slot_unpack(word);
	unsigned owners = map_slot_owners(&names), peer;
	struct look_open *o;

	/* the loads are those of map_owners_load(), in its order */
	best = shm_load_acquire64(&shared->owner[names.owner[0]]);
	peer = map_member_unpack(best).peer;
	o = look_at(pass->ch, peer);
	if (unlikely(!best || o->word != best))
		return ADDED_NOT;
	if (owners != 1 && unlikely(!owners || owns_here(pass->ch, word, owners)))
		return ADDED_NOT;
	if (unlikely(shm_load_acquire64(slot) != word || shm_load(&shared->epoch) != pass->epoch))
		return ADDED_NOT;
	memcpy(p->slot_word, &word, sizeof(word));
	p->epoch = (uint8_t)pass->epoch;
	p->asked = 1;
	p->peer = (uint16_t)peer;
	return look_append(pass->batch, o, p, i, dir_bucket_masked(&p->key, o->mask)) ? ADDED_LAST
										      : ADDED;
}

/* The same for any page. False: a run found no room. */
__attribute__((noinline)) static bool look_first(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	const struct map_member *m = directory_owner(ch, p);
	struct look_open *o;
	bool room;

	if (unlikely(!m || m->ref == ch->session->ref)) {
		page_look_again(b, i); /* it begins anew */
		return true;
	}
	ch->counts.lookups++;
	room = look_add(b, i, m);
	o = &ch->look_open[m->peer % LOOK_OPEN_MAX];
	if (directory_answers(ch, m))
		o->word = map_member_pack(m);
	return room;
}

/* Begins the look-up of a page by itself. It may be done already. */
static void look_alone(struct pc_batch *b, uint32_t i)
{
	if (b->work[i].phase != PAGE_DONE)
		lookup_begin(b, i);
}

void look_all(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	const struct map_shared *shared = &ch->session->status->map;
	const struct look_pass pass = {ch, b, shared, shm_load_acquire(&shared->epoch)};
	uint32_t count = b->count, others = 0, i = 0;
	const struct cache_set *cache = ch->cache;
	bool room = ch->map && ch->map->members;
	struct page_work *p = page_at(b, 0);
	enum look_added added;

	for (; i < count && likely(room); i++, p++) {
		if (unlikely(p->phase == PAGE_DONE || cache_has_tag(&cache[p->cached], &p->key))) {
			others++;
			look_alone(b, i);
			continue;
		}
		added = look_usual(&pass, p, i);
		if (likely(added == ADDED))
			continue;
		if (added == ADDED_LAST) {
			room = look_close(b, look_at(ch, p->peer));
		} else {
			others++;
			room = look_first(b, i);
		}
	}
	ch->counts.lookups += i - others;
	for (; i < count; i++)
		look_alone(b, i);
	look_close_all(b, room);
}

/* ---- answers ------------------------------------------------------------------------------- */

/*
 * The only entry of the bucket that has the key's tag; NULL: there is none, or several, or the page
 * has a wrong location, which may be this one.
 */
static inline const struct dir_entry *one_entry(
	const struct page_work *p, const struct bucket *bucket)
{
	uint32_t found = bucket_match(bucket, dir_tag(&p->key));

	if (unlikely(!found || found & (found - 1) || p->flags & PAGE_RETRIED))
		return NULL;
	return &bucket->entry[__builtin_ctz(found)];
}

/*
 * Copies the location in an entry of a bucket in shared memory, which is loaded once. True: it is
 * in the memory of another host of the map. *holder: the host of the location before, or NO_HOLDER.
 */
static inline bool location_far(
	struct pc_channel *ch, const struct dir_entry *from, uint64_t *holder, struct location *ret)
{
	uint32_t ref, place;
	uint64_t where;

	memcpy(&where, &from->ref, sizeof(where));
	ref = (uint32_t)where;
	place = (uint32_t)(where >> 32);
	*ret = (struct location){ref, place, from->generation};
	if (unlikely(place_on_disk(place)))
		return false;
	if (likely(ref == *holder))
		return true;
	if (ref == ch->session->ref || !map_by_ref(ch, ref))
		return false;
	*holder = ref;
	return true;
}
static_assert(offsetof(struct dir_entry, ref) + 4 == offsetof(struct dir_entry, place) &&
		      __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	"the ref is the low half of a word");

/* The answer for a page of any batch. A get or set goes on with the page. */
__attribute__((noinline)) static void look_other(
	struct pc_batch *b, uint32_t i, const struct bucket *from, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	struct bucket bucket = *from;
	const struct dir_entry *entry = one_entry(p, &bucket);
	const struct cache_entry *e;
	uint64_t holder = NO_HOLDER;
	struct location at;

	if (unlikely(status != OP_HIT || !entry || !location_far(ch, entry, &holder, &at))) {
		lookup_answer(b, i, &bucket, status);
		return;
	}
	p->at = at;
	p->others = 0;
	p->rails_tried = 0;
	e = cache_put(ch, &p->key, &p->at, channel_now_ms(ch));
	p->cached = cache_number(&p->key, (uint32_t)(e - cache_set(ch, &p->key)->entry));
	page_found(b, i);
}

/* The answers of one run. */
struct look_answers {
	struct pc_channel *ch;
	uint64_t holder;     /* see location_far() */
	uint32_t now_ms;     /* CLOCK_MONOTONIC */
	uint32_t touched_ms; /* the same as the time of a touch */
	uint32_t touches;    /* ch->touches.count */
};

static inline struct look_answers answers_begin(struct pc_channel *ch)
{
	uint32_t now_ms = channel_now_ms(ch);

	return (struct look_answers){.ch = ch,
		.holder = NO_HOLDER,
		.now_ms = now_ms,
		.touched_ms = notice_stamp(now_ms),
		.touches = ch->touches.count};
}

/* Collects the report that a page is wanted, see notice_wanted_room(). */
static inline void look_touch(struct look_answers *a, const struct location *at)
{
	struct ctl_touches *t = &a->ch->touches;

	t->page[a->touches].ref = at->ref;
	t->page[a->touches].place = at->place;
	if (++a->touches < CTL_TOUCHES_MAX)
		return;
	t->count = CTL_TOUCHES_MAX;
	notice_touches_submit(a->ch);
	a->touches = 0;
}

/*
 * Enters the location that the bucket has of a page of an exists, and reports the page as wanted.
 * False: look_other() has to look, and nothing was done.
 */
static inline bool look_enter(
	struct look_answers *a, const struct page_work *p, const struct bucket *bucket)
{
	const struct dir_entry *entry = one_entry(p, bucket);
	struct cache_set *set = &a->ch->cache[p->cached];
	struct cache_entry *e;
	struct location at;
	uint32_t ways;

	if (unlikely(!entry || !location_far(a->ch, entry, &a->holder, &at)))
		return false;
	ways = cache_ways_new(set, cache_tag(&p->key));
	if (unlikely(ways & CACHE_WAYS_TAG))
		return false;
	e = cache_enter(set, likely(ways) ? cache_unused(ways) : cache_oldest(set, a->now_ms),
		&p->key, &at, a->now_ms);
	e->touched_ms = a->touched_ms;
	look_touch(a, &at);
	return true;
}

void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status)
{
	const struct bucket *first =
		(const struct bucket *)(const void *)ch->staging.base + r->hold;
	const struct bucket *from = first, *end = from + r->pages;
	struct pc_batch *b = r->batch;
	struct look_answers a = answers_begin(ch);
	uint32_t others = 0, enter = 0, i = r->page, next, hits = done->hit;
	enum pc_result *results = b->results;

	if (b->kind == BATCH_EXISTS && notice_wanted_room(ch))
		enter = hits;
	if (hits)
		ch->peer_rest_until_ns[b->work[i].peer] = 0;
	for (; from != end; i = next, from++, enter >>= 1) {
		struct page_work *p = page_at(b, i);

		next = p->next;
		__builtin_prefetch(from + EXPECT_AHEAD); /* it may be behind the last one */
		if (likely(enter & 1) && likely(look_enter(&a, p, from))) {
			p->phase = PAGE_DONE;
			results[i] = PC_HIT;
		} else {
			bool hit = hits >> (from - first) & 1;

			others++;
			ch->touches.count = (uint16_t)a.touches;
			if (!hit)
				p->rails_tried |= (uint16_t)(1u << r->rail);
			look_other(b, i, from, hit ? OP_HIT : status);
			a.touches = ch->touches.count;
			a.holder = NO_HOLDER; /* the map may be another one */
		}
	}
	ch->touches.count = (uint16_t)a.touches;
	b->left -= r->pages - others;
	ch->moves += r->pages - others;
	ch->cache_changes += r->pages - others;
}
