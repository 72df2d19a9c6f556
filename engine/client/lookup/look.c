/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the location of a key: in the channel's cache, else in a bucket of an owner of the key. The
 * bucket is loaded from this host's shard or READ through a rail. A whole batch is looked up at a
 * time.
 *
 *   owner 1: first bucket -- full, no match --> second bucket
 *     failed, or not there  --> owner 2, ...
 *   all asked               --> absent: every owner said so; unreachable: one could not be asked
 *
 * The answer "not there" of one owner proves nothing: a holder that cannot reach that owner has
 * told the other owners, and a small shard loses entries. Owners are asked one after another,
 * because most keys that are looked up exist; asking all owners at once would read two buckets for
 * each key (perf/README.md). directory_owner_choose() chooses the next one, directory_match() the
 * order of the locations in a bucket. Owners are not copied: the word of the key's slot is read for
 * each look-up. Entries of engines that are not alive are ignored. An entry may be wrong: the page
 * head decides.
 *
 * The READs go in runs: one op READs the buckets of up to RUN_PAGES_MAX keys from one owner, into
 * consecutive scratch slots; or, for head.c, the heads of up to RUN_PAGES_MAX of its pages, each
 * with its neighbour, and below they are buckets, too. A step collects the keys of each member and
 * posts them. The buckets of a run are collected as they go into its lines, so that a run is posted
 * without another look at its pages. The pages are linked by page_work.next; the k-th of them is
 * bit k of the answer's hit mask. Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/attach/session.h"
#include "engine/client/constants.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/rings.h"
#include "engine/client/rings/staging.h"

#include <stdalign.h>
#include <string.h>

#define EXPECT_AHEAD 6 /* buckets between the one that is prefetched and the one in use */

#define LOOK_AHEAD 12 /* keys between the one that is prefetched and the one looked up */

#define NO_HOLDER (1ull << 32) /* no ref */

#define RANK_SHIFT 60 /* of a location's rank beside the load of its holder */
#define LOAD_MAX ((1ull << RANK_SHIFT) - 1)

static_assert(LOOK_OPEN_MAX <= 32, "a bit each");

/* loads of a slot's word that a change of the map may spoil, before the key is unreachable */
#define OWNERS_ATTEMPTS 3

static_assert(REPLICAS_MAX <= 8, "page_work.asked has a bit for each");

/* ---- runs of buckets and of heads ------------------------------------------------------------ */

/*
 * Adds the page to an open run that has room for it, to READ this bucket for it. True: the run has
 * to be closed.
 */
static inline bool look_append(
	struct pc_batch *b, struct look_open *o, struct page_work *p, uint32_t i, uint32_t bucket)
{
	uint32_t at = o->pages++;

	o->bucket[at] = bucket;
	p->phase = PAGE_LOOKING;
	if (at)
		b->work[o->tail].next = i;
	else
		o->head = i;
	o->tail = i;
	return at == RUN_PAGES_MAX - 1;
}

/* The run for look-ups at this peer; compare page_at(). */
static inline struct look_open *look_at(struct pc_channel *ch, uint32_t peer)
{
	return __builtin_assume_aligned(
		&ch->look_open[peer % LOOK_OPEN_MAX], alignof(struct look_open));
}

/* Puts the pages of a run back in front of their queue. */
static void look_requeue(struct pc_batch *b, const struct look_open *o)
{
	bool buckets = o->region == REGION_SHARD && b->kind != BATCH_PEEK;
	enum page_phase phase = buckets ? PAGE_LOOK : PAGE_HEAD;
	struct page_queue *q = &b->queue[phase];

	for (uint32_t i = o->head, left = o->pages; left; left--, i = b->work[i].next) {
		b->work[i].flags |= buckets ? PAGE_SAME_PEER : 0;
		b->work[i].phase = (uint8_t)phase;
	}
	b->work[o->tail].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = o->tail;
	q->head = o->head;
	b->channel->waits[waits_for_room(phase)] += o->pages;
}

/* Index of the bucket of the page's key that is to be READ, in a shard of 2^bits buckets. */
static inline uint32_t look_bucket(struct page_work *p, uint32_t bits)
{
	uint32_t bucket = dir_bucket_first(&p->key, bits);

	if (unlikely(p->flags & (PAGE_SECOND | PAGE_SAME_PEER))) {
		p->flags &= (uint8_t)~PAGE_SAME_PEER;
		if (p->flags & PAGE_SECOND)
			bucket = dir_bucket_other(bucket, dir_tag(&p->key), bits);
	}
	return bucket;
}

/* Writes the buckets of a run behind its header, and the turns of the lines after the first. */
static inline void look_buckets_write(const struct look_open *o, struct ring_producer *ops)
{
	const uint32_t *bucket = o->bucket, *end = bucket + o->pages;

	/* whole lines: what is behind the last bucket means nothing */
	memcpy((uint32_t *)(void *)ops->first + RUN_HEADER_BUCKETS, bucket,
		RUN_HEADER_BUCKETS * sizeof(*bucket));
	bucket += RUN_HEADER_BUCKETS;
	for (uint32_t n = 1; bucket < end; n++, bucket += RUN_LINE_BUCKETS) {
		struct run_line *slot = (struct run_line *)(void *)ops->slots;
		uint32_t *line = (uint32_t *)(void *)&slot[(ops->tail + n) % OP_RING_SLOTS];

		memcpy(line, bucket, 3 * sizeof(*bucket));
		line[3] = (uint32_t)(ring_turn_new(OP_RING_SLOTS, ops, n) >> 32);
		memcpy(line + 4, bucket + 3, (RUN_LINE_BUCKETS - 3) * sizeof(*bucket));
	}
}
static_assert(RING_TURN_AT / 4 == 3, "word 3 of a line has the turn in its upper half");

/* Posts the run to `rail`, to READ into the scratch slots from `hold` on. */
static void look_post(struct pc_batch *b, const struct look_open *o, uint32_t rail, uint32_t hold)
{
	struct pc_channel *ch = b->channel;
	const struct map_member *m = o->member;
	uint32_t index = request_take(ch, REQUEST_LOOK, b, o->head);
	struct client_request *r = &ch->request[index];
	struct ring_producer *ops = &ch->rail[rail].ops;
	struct run_header *h = (struct run_header *)(void *)ops->first;
	struct run run = {.cookie = request_cookie(ch, index),
		.peer_ref = m->ref,
		.kind = OP_LOOKUP,
		.pages = (uint8_t)o->pages,
		.peer = m->peer,
		.region = o->region,
		.to_region = ch->staging.region,
		.stride_or_to = hold * sizeof(struct bucket),
		/* A third of the time to the deadline: the rest is for the other owners and for
		 * the page itself. A peek may take all of it. */
		.deadline_ns = page_attempt_ns(b, b->kind == BATCH_PEEK ? 1 : 3)};

	r->rail = (uint8_t)rail;
	r->pages = (uint8_t)o->pages;
	r->region = o->region;
	r->hold = hold;
	run_encode(&run, h);
	look_buckets_write(o, ops);
	submit_run(ch, rail, h, run_lines(OP_LOOKUP, o->pages),
		o->pages * (uint32_t)sizeof(struct bucket));
}

/*
 * Posts an open run, which then has no pages and may take others. False: no room; its pages are
 * queued again.
 */
__attribute__((noinline)) static bool look_close(struct pc_batch *b, struct look_open *o)
{
	struct pc_channel *ch = b->channel;
	uint32_t rail, hold = CLIENT_NONE;

	rail = stripe_small(ch, &(struct stripe){.peer = o->member->peer,
					.tried = o->tried,
					.slots = run_lines(OP_LOOKUP, o->pages)});
	if (rail != CLIENT_NONE && ch->request_free != CLIENT_NONE)
		hold = scratch_take(&ch->staging, o->pages);
	if (hold == CLIENT_NONE)
		look_requeue(b, o);
	else
		look_post(b, o, rail, hold);
	o->pages = 0;
	return hold != CLIENT_NONE;
}

/* All open runs are of one region: each step closes its own. */
bool look_add_to(
	struct pc_batch *b, uint32_t i, const struct map_member *m, uint8_t region, uint32_t bucket)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	struct look_open *o = look_at(ch, m->peer);
	bool room = true;

	p->peer = m->peer;
	if (o->pages && (o->member != m || o->tried != p->rails_tried))
		room = look_close(b, o);
	if (!o->pages) {
		o->word = 0;
		o->member = m;
		o->mask = (1u << m->bucket_bits) - 1;
		o->tried = p->rails_tried;
		o->region = region;
		ch->look_opened |= 1u << m->peer % LOOK_OPEN_MAX;
	}
	if (!look_append(b, o, p, i, bucket))
		return room;
	return look_close(b, o);
}

/* Adds the page to a run of look-ups at `m`. False: a run found no room and is queued again. */
static bool look_add(struct pc_batch *b, uint32_t i, const struct map_member *m)
{
	return look_add_to(b, i, m, REGION_SHARD, look_bucket(&b->work[i], m->bucket_bits));
}

bool look_close_all(struct pc_batch *b, bool room)
{
	struct pc_channel *ch = b->channel;

	for (; ch->look_opened; ch->look_opened &= ch->look_opened - 1) {
		struct look_open *o = &ch->look_open[__builtin_ctz(ch->look_opened)];

		o->word = 0;
		if (!o->pages)
			continue;
		if (room) {
			room = look_close(b, o);
		} else {
			look_requeue(b, o);
			o->pages = 0;
		}
	}
	return room;
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

static const struct map_member *directory_owner_choose(struct pc_channel *ch, struct page_work *p)
{
	struct choice best = {.owner.rank = RANKS};
	struct map_owners owners;
	enum owner_verdict verdict;

	if (unlikely(!directory_owners_load(ch, p, &owners))) {
		p->flags |= PAGE_SAW_FAILURE;
		return NULL;
	}
	for (unsigned k = 0; k < owners.owners; k++)
		directory_consider(ch, p, &owners.member[k], k, &best);
	verdict = owner_verdict(&best.owner, p->flags & PAGE_SAW_ANSWER,
		!owners.owners || p->flags & PAGE_SAW_FAILURE);
	if (verdict == OWNER_UNREACHABLE)
		p->flags |= PAGE_SAW_FAILURE;
	if (verdict != OWNER_ASK)
		return NULL;
	p->asked |= (uint8_t)(1u << best.owner.bit);
	return best.member;
}

/* ---- all holders of a key: pc_match() -------------------------------------------------------- */

static void match_add(struct match_key *key, uint16_t peer, bool on_disk)
{
	for (unsigned k = 0; k < key->holders; k++)
		if (key->peer[k] == peer)
			return;
	if (key->holders == MATCH_HOLDERS)
		return;
	key->disk |= (uint16_t)(on_disk << key->holders);
	key->peer[key->holders++] = peer;
}

/*
 * Notes the holders that the bucket names. True: the key has some, and its second bucket has no
 * others.
 */
static bool match_take(
	const struct pc_batch *b, const struct page_work *p, const struct bucket *bucket)
{
	struct pc_channel *ch = b->channel;
	struct match_key *key = &ch->match->key[p - b->work];

	for (uint32_t left = bucket_match(bucket, dir_tag(&p->key)); left; left &= left - 1) {
		const struct dir_entry *e = &bucket->entry[__builtin_ctz(left)];
		const struct location at = {e->ref, e->place, e->generation};
		const struct map_member *m = map_by_ref(ch, e->ref);

		if (!m)
			continue;
		/* as in an exists, the head of a page of this host decides */
		if (e->ref == ch->session->ref && !place_on_disk(e->place) &&
			!local_length(ch->session, &p->key, &at))
			continue;
		match_add(key, m->peer, place_on_disk(e->place));
	}
	return key->holders && (p->flags & PAGE_SECOND || bucket_has_empty(bucket));
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
 * How much is queued at the peer, for the choice among holders of a page. What a READ that was not
 * answered yet takes there is not known: see peer_chosen().
 */
static uint64_t peer_load(struct pc_channel *ch, uint16_t peer)
{
	uint64_t steps = (ch->now_ns - ch->peer_loads_ns) / PEER_LOAD_NS;

	if (steps) {
		for (uint32_t i = 0; i < ch->map->peers; i++)
			ch->peer_load[i] = steps < 64 ? ch->peer_load[i] >> steps : 0;
		ch->peer_loads_ns += steps * PEER_LOAD_NS;
	}
	return ch->peer_load[peer] < LOAD_MAX ? ch->peer_load[peer] : LOAD_MAX;
}

/* A page is READ from this holder of several: the next ones of the batch may take another one. */
static void peer_chosen(struct pc_channel *ch, uint32_t ref)
{
	const struct map_member *m = map_by_ref(ch, ref);

	if (m)
		ch->peer_load[m->peer] += 1 + ch->peer_load_run / RUN_PAGES_MAX;
}

/*
 * The entries of the bucket that have the tag: bit k is entry (start + k) % BUCKET_ENTRIES.
 */
static inline uint32_t directory_matches(const struct bucket *bucket, uint32_t tag, uint32_t start)
{
	uint32_t found = bucket_match(bucket, tag);

	return (found >> start | found << (BUCKET_ENTRIES - start)) & ((1u << BUCKET_ENTRIES) - 1);
}

/*
 * A location that was wrong is not tried again. A set stores the page in memory: an entry that
 * names a page on a disk is of no use for it.
 */
static bool location_useful(
	const struct pc_batch *b, const struct page_work *p, const struct dir_entry *e)
{
	return !(e->ref == p->wrong.ref && e->place == p->wrong.place &&
		       e->generation == p->wrong.generation) &&
	       !(place_on_disk(e->place) && b->kind == BATCH_SET);
}

/* The order in which the location is tried, the lowest first. */
static uint64_t location_order(
	struct pc_channel *ch, const struct map_member *m, const struct dir_entry *e)
{
	bool leaves = map_leaving(&ch->session->status->map, m->peer);
	enum owner_rank rank = leaves ? RANK_RESTS : directory_rank(ch, m);

	return (uint64_t)location_rank(rank, place_on_disk(e->place)) << RANK_SHIFT |
	       peer_load(ch, m->peer);
}

/*
 * Copies the bucket's locations of the key into the page: pages in memory first, and of these this
 * host's first, then the one whose holder has the least queued; those of peers that failed recently
 * or are drained last. False: the bucket has none; of a match: or entries may be in the second
 * bucket, too.
 */
static bool directory_match(
	const struct pc_batch *b, struct page_work *p, const struct bucket *bucket)
{
	struct pc_channel *ch = b->channel;
	uint32_t start = (uint32_t)(p->key.word[0] >> 60) % BUCKET_ENTRIES;
	struct location found[BUCKET_ENTRIES];
	uint64_t orders[BUCKET_ENTRIES]; /* of found[], ascending */
	unsigned n = 0;

	if (unlikely(b->kind == BATCH_MATCH))
		return match_take(b, p, bucket);
	for (uint32_t left = directory_matches(bucket, dir_tag(&p->key), start); left;
		left &= left - 1) {
		uint32_t k = start + (uint32_t)__builtin_ctz(left);
		const struct dir_entry *e = &bucket->entry[k % BUCKET_ENTRIES];
		const struct map_member *m = map_by_ref(ch, e->ref);
		uint64_t order;
		unsigned at;

		if (!m || unlikely(!location_useful(b, p, e)))
			continue;
		order = location_order(ch, m, e);
		for (at = n++; at && orders[at - 1] > order; at--) {
			found[at] = found[at - 1];
			orders[at] = orders[at - 1];
		}
		found[at] = (struct location){e->ref, e->place, e->generation};
		orders[at] = order;
	}
	if (!n)
		return false;
	p->at = found[0];
	p->others = (uint8_t)(n - 1);
	if (n > 1)
		peer_chosen(ch, found[0].ref);
	for (unsigned k = 1; k < n; k++)
		/* page_wrong() takes the last location of other[] first */
		p->other[n - 1 - k] = found[k];
	return true;
}

/* Looks the key up in the part of the directory that this host stores. True: found. */
static bool directory_here(const struct pc_batch *b, struct page_work *p)
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
	p->flags |= PAGE_SECOND;
	return directory_match(b, p, &bucket);
}

/* ---- look-ups -------------------------------------------------------------------------------- */

/*
 * True if the cache has a location that is good enough. A get may use an old one, because the page
 * head reveals a stale location. A set checks the head, too, but says that every host finds the
 * page, and an exists reads nothing: both need an entry younger than FRESH_NS.
 */
static bool lookup_cached(const struct pc_batch *b, struct page_work *p)
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
	} else if (b->kind != BATCH_MATCH && b->kind != BATCH_PREFETCH && lookup_cached(b, p)) {
		ch->counts.lookups_cached++;
		p->others = 0;
		page_found(b, i);
	} else {
		page_look_again(b, i);
	}
}

static void lookup_found(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	const struct cache_set *set = cache_set(ch, &p->key);
	const struct cache_entry *e;

	p->rails_tried = 0;
	if (unlikely(b->kind == BATCH_MATCH)) {
		page_done(b, i, PC_HIT);
		return;
	}
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
static bool lookup_page(struct pc_batch *b, uint32_t i)
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
			m = directory_owner_choose(ch, p);
		}
		if (!m) {
			page_absent(b, i);
			return true;
		}
		if (m->ref != ch->session->ref)
			return look_add(b, i, m);
		if (directory_here(b, p)) {
			lookup_found(b, i);
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
		room = lookup_page(b, i);
	look_close_all(b, room);
}

/* ---- all pages of an exists or match --------------------------------------------------------- */

/* True if this host is an owner of the slot, but not the first. */
static inline bool look_owns_here(const struct pc_channel *ch, uint64_t word, unsigned owners)
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
	const struct bucket *shard;      /* of this host */
	uint32_t mask;                   /* of its buckets */
};

/* ADDED_NOT: another owner, one without a run, or the map has changed; nothing was done. */
enum look_added { ADDED_NOT, ADDED, ADDED_LAST /* the run has to be closed */ };

/*
 * Adds a page that has asked no owner to the run of its key's first owner, if
 * directory_owner_choose() would choose that owner: it answers, because its run has a word, and
 * this host is no owner of the key.
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
	if (owners != 1 && unlikely(!owners || look_owns_here(pass->ch, word, owners)))
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
	const struct map_member *m = directory_owner_choose(ch, p);
	struct look_open *o;
	bool room;

	if (m && m->ref == ch->session->ref && directory_here(b, p)) {
		ch->counts.lookups++;
		lookup_found(b, i);
		return true;
	}
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

/* Prefetches what the look-up of a key that comes soon reads on this host. */
static inline void look_expect(const struct look_pass *pass, const struct page_key *key)
{
	__builtin_prefetch(&pass->shared->slot[map_slot_of(key)]);
	__builtin_prefetch(&pass->shard[dir_bucket_masked(key, pass->mask)]);
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
	const struct client_session *session = ch->session;
	const struct look_pass pass = {ch, b, shared, shm_load_acquire(&shared->epoch),
		session->shard, (1u << session->bucket_bits) - 1};
	uint32_t count = b->count, others = 0, i = 0;
	const struct cache_set *cache = ch->cache;
	bool room = ch->map && ch->map->members;
	struct page_work *p = page_at(b, 0);
	enum look_added added;

	for (; i < count && likely(room); i++, p++) {
		if (likely(i + LOOK_AHEAD < count))
			look_expect(&pass, &p[LOOK_AHEAD].key);
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

/* ---- answers --------------------------------------------------------------------------------- */

static void lookup_page_answer(
	struct pc_batch *b, uint32_t i, const struct bucket *bucket, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (status == OP_HIT) {
		ch->peer_rest_until_ns[p->peer] = 0;
		if (directory_match(b, p, bucket)) {
			lookup_found(b, i);
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

/*
 * The only entry of the bucket that has the key's tag; NULL: there is none, or several, or the page
 * has a wrong location, which may be this one.
 */
static inline const struct dir_entry *look_one_entry(
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
static inline bool look_location_far(
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
	const struct dir_entry *entry = look_one_entry(p, &bucket);
	const struct cache_entry *e;
	uint64_t holder = NO_HOLDER;
	struct location at;

	if (unlikely(b->kind == BATCH_MATCH || status != OP_HIT || !entry ||
		     !look_location_far(ch, entry, &holder, &at))) {
		lookup_page_answer(b, i, &bucket, status);
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
	uint64_t holder;     /* see look_location_far() */
	uint32_t now_ms;     /* CLOCK_MONOTONIC */
	uint32_t touched_ms; /* the same as the time of a touch */
	uint32_t touches;    /* ch->touches.count */
};

static inline struct look_answers look_answers_begin(struct pc_channel *ch)
{
	uint32_t now_ms = channel_now_ms(ch);

	return (struct look_answers){.ch = ch,
		.holder = NO_HOLDER,
		.now_ms = now_ms,
		.touched_ms = notice_stamp(now_ms),
		.touches = ch->touches.count};
}

/*
 * True if each page of a run can be reported as used: up to RUN_PAGES_MAX of other hosts are added
 * to pc_channel.touches, which notice_touches_submit() submits whenever it is full.
 */
static bool look_touch_room(struct pc_channel *ch)
{
	ch->touches.kind = CTL_TOUCHES;
	return submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2 + RUN_PAGES_MAX / CTL_TOUCHES_MAX + 1);
}

/* Collects the report that a page is wanted, see look_touch_room(). */
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
	const struct dir_entry *entry = look_one_entry(p, bucket);
	struct cache_set *set = &a->ch->cache[p->cached];
	struct cache_entry *e;
	struct location at;
	uint32_t ways;

	if (unlikely(!entry || !look_location_far(a->ch, entry, &a->holder, &at)))
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

static void look_buckets_answer(struct pc_channel *ch, const struct client_request *r,
	const struct run_done *done, uint32_t status)
{
	const struct bucket *first =
		(const struct bucket *)(const void *)ch->staging.base + r->hold;
	const struct bucket *from = first, *end = from + r->pages;
	struct pc_batch *b = r->batch;
	struct look_answers a = look_answers_begin(ch);
	uint32_t others = 0, enter = 0, i = r->page, next, hits = done->hit;
	enum pc_result *results = b->results;

	if (b->kind == BATCH_EXISTS && look_touch_room(ch))
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

void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status)
{
	bool buckets = r->region == REGION_SHARD && likely(r->batch->kind != BATCH_PEEK);

	(buckets ? look_buckets_answer : head_answer)(ch, r, done, status);
}
