/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of look-ups: one op READs the buckets of up to RUN_PAGES_MAX keys from one owner, into
 * consecutive scratch slots. lookup.c chooses the owner of each key; a step collects the keys of
 * each owner here and posts them. The pages of a run are linked by page_work.next; the k-th of them
 * is bit k of the answer's hit mask. Channel thread.
 */
#include "engine/client/client.h"

#define EXPECT_AHEAD 6 /* buckets between the one that is prefetched and the one in use */

static_assert(LOOK_OPEN_MAX <= 32, "a bit each");

/* Puts the pages of a run back in front of their queue. */
static void requeue(struct pc_batch *b, const struct look_open *o)
{
	struct page_queue *q = &b->queue[PAGE_LOOK];

	for (uint32_t i = o->head, left = o->pages; left; left--, i = b->work[i].next)
		b->work[i].flags |= PAGE_SAME_PEER;
	b->work[o->tail].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = o->tail;
	q->head = o->head;
	b->channel->waits[waits_for_room(PAGE_LOOK)] += o->pages;
}

/* Index of the bucket of the page's key that is to be READ, in a shard of 2^bits buckets. */
static inline uint32_t bucket_of(struct page_work *p, uint32_t bits)
{
	uint32_t bucket = dir_bucket_first(&p->key, bits);

	if (unlikely(p->flags & (PAGE_SECOND | PAGE_SAME_PEER))) {
		p->flags &= (uint8_t)~PAGE_SAME_PEER;
		if (p->flags & PAGE_SECOND)
			bucket = dir_bucket_other(bucket, dir_tag(&p->key), bits);
	}
	return bucket;
}

/* Line `n` of the run that is the ring's first unpublished one, with its turn. */
static inline uint32_t *line_of(const struct ring_producer *ops, uint32_t n)
{
	uint32_t *line =
		(uint32_t *)(void *)(ops->slots +
				     ring_at(OP_RING_SLOTS, sizeof(struct op_slot), ops->tail + n));

	line[3] = (uint32_t)(ring_turn_new(OP_RING_SLOTS, ops, n) >> 32);
	return line;
}

/*
 * Writes the buckets of a run's pages behind its header, and the turns of the lines after the
 * first; see abi/run.h.
 */
static void write_buckets(struct pc_batch *b, const struct look_open *o, struct ring_producer *ops,
	uint32_t rail, uint32_t request)
{
	uint32_t *word = (uint32_t *)(void *)ops->first + RUN_HEADER_BUCKETS, lines = 0;
	uint32_t bits = o->member->bucket_bits, i = o->head, room = RUN_HEADER_BUCKETS;
	uint16_t tried = (uint16_t)(o->tried | 1u << rail);

	for (uint32_t left = o->pages; left; left--, room--) {
		struct page_work *p = &b->work[i];

		if (!room) {
			word = line_of(ops, ++lines);
			room = RUN_LINE_BUCKETS;
		}
		*word++ = bucket_of(p, bits);
		if (room == RUN_LINE_BUCKETS - 2)
			word++; /* the word with the turn */
		p->rails_tried = tried;
		p->phase = PAGE_IN_FLIGHT;
		p->request = request;
		i = p->next;
	}
}
static_assert(RING_TURN_AT / 4 == 3 && RUN_LINE_BUCKETS - 2 > RUN_HEADER_BUCKETS,
	"word 3 of a line, behind three buckets, has the turn in its upper half");

/* Posts the run to `rail`, to READ into the scratch slots from `hold` on. */
static void post(struct pc_channel *ch, struct pc_batch *b, const struct look_open *o,
	uint32_t rail, uint32_t hold, uint64_t now_ns)
{
	const struct map_member *m = o->member;
	uint32_t index = request_take(ch, REQUEST_LOOK, b, o->head);
	struct request *r = &ch->request[index];
	struct ring_producer *ops = &ch->rail[rail].ops;
	struct run_header *h = (struct run_header *)(void *)ops->first;
	struct run run = {.cookie = run_cookie(r->generation, index),
		.peer_ref = m->ref,
		.kind = OP_LOOKUP,
		.pages = (uint8_t)o->pages,
		.peer = m->peer,
		.region = REGION_SHARD,
		.to_region = ch->staging.region,
		.stride_or_to = hold * sizeof(struct bucket),
		/* A third of the time to the deadline: the rest is for the other owners and for
		 * the page itself. */
		.deadline_ns = now_ns + batch_share_ns(b, now_ns, 3)};

	r->rail = (uint8_t)rail;
	r->pages = (uint8_t)o->pages;
	r->hold = hold;
	if (unlikely(ch->rail[rail].unpublished))
		submit_publish(ch, rail); /* the lines of a run are the first unpublished ones */
	run_encode(&run, h);
	write_buckets(b, o, ops, rail, index);
	submit_run(ch, rail, h, run_lines(OP_LOOKUP, o->pages),
		o->pages * (uint32_t)sizeof(struct bucket));
}

/* Posts an open run. False: no room; its pages are queued again. */
static bool close_run(
	struct pc_channel *ch, struct pc_batch *b, const struct look_open *o, uint64_t now_ns)
{
	uint32_t rail, hold = CLIENT_NONE;

	rail = stripe_small(ch,
		&(struct stripe){.peer = o->member->peer,
			.tried = o->tried,
			.slots = run_lines(OP_LOOKUP, o->pages)},
		now_ns);
	if (rail != CLIENT_NONE && ch->request_free != CLIENT_NONE)
		hold = scratch_take(&ch->staging, o->pages);
	if (hold == CLIENT_NONE) {
		requeue(b, o);
		return false;
	}
	post(ch, b, o, rail, hold, now_ns);
	return true;
}

/* Adds the page to a run that is not open yet, or closes the one that it adds it to. */
__attribute__((noinline)) static bool look_add_other(struct pc_channel *ch, struct pc_batch *b,
	uint32_t i, const struct map_member *m, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	uint32_t slot = m->peer % LOOK_OPEN_MAX, bit = 1u << slot;
	struct look_open *o = &ch->look_open[slot];
	bool room = true;

	if (ch->look_opened & bit && (o->member != m || o->tried != p->rails_tried)) {
		room = close_run(ch, b, o, now_ns);
		ch->look_opened &= ~bit;
	}
	if (!(ch->look_opened & bit)) {
		*o = (struct look_open){.member = m, .head = i, .tried = p->rails_tried};
		ch->look_opened |= bit;
	} else {
		b->work[o->tail].next = i;
	}
	o->tail = i;
	if (++o->pages < RUN_PAGES_MAX || !room)
		return room;
	ch->look_opened &= ~bit;
	return close_run(ch, b, o, now_ns);
}

/* Adds the page to an open run that stays open: at most RUN_PAGES_MAX - 1 pages. */
static inline void open_append(struct pc_batch *b, struct look_open *o, uint32_t i)
{
	b->work[o->tail].next = i;
	o->tail = i;
	if (++o->pages == RUN_PAGES_MAX - 1)
		o->word = 0;
}

bool look_add(struct pc_channel *ch, struct pc_batch *b, uint32_t i, const struct map_member *m,
	uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	uint32_t slot = m->peer % LOOK_OPEN_MAX;
	struct look_open *o = &ch->look_open[slot];

	p->peer = m->peer;
	if (unlikely(!(ch->look_opened >> slot & 1) || o->member != m ||
		     o->tried != p->rails_tried || o->pages + 1 >= RUN_PAGES_MAX))
		return look_add_other(ch, b, i, m, now_ns);
	open_append(b, o, i);
	return true;
}

void look_close_all(struct pc_channel *ch, struct pc_batch *b, bool room, uint64_t now_ns)
{
	for (; ch->look_opened; ch->look_opened &= ch->look_opened - 1) {
		struct look_open *o = &ch->look_open[__builtin_ctz(ch->look_opened)];

		o->word = 0;
		if (room)
			room = close_run(ch, b, o, now_ns);
		else
			requeue(b, o);
	}
}

/* True if this host is an owner of the slot, but not the first. */
static inline bool owns_here(const struct pc_channel *ch, const struct map_slot *names)
{
	const uint64_t *owner = ch->session->status->map.owner;
	uint32_t here = ch->session->ref;
	bool found = false;

	for (unsigned k = 1; k < map_slot_owners(names); k++)
		found |= map_member_unpack(shm_load_acquire64(&owner[names->owner[k]])).ref == here;
	return found;
}

/*
 * Adds a page that has asked no owner to the open run of its key's first owner, if lookup_owner()
 * would choose that owner: it answers, because its run has a word, and this host is no owner of the
 * key. `epoch`: of the map, loaded before. False: another owner, no open run, or the map has
 * changed; nothing was done.
 */
static inline bool look_usual(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t epoch)
{
	const struct map_shared *shared = &ch->session->status->map;
	struct page_work *p = &b->work[i];
	const uint64_t *slot = &shared->slot[map_slot_of(&p->key)];
	uint64_t word = shm_load_acquire64(slot), best;
	struct map_slot names = map_slot_unpack(word);
	struct look_open *o;

	/* the loads are those of map_owners_load(), in its order */
	best = shm_load_acquire64(&shared->owner[names.owner[0]]);
	o = &ch->look_open[map_member_unpack(best).peer % LOOK_OPEN_MAX];
	if (unlikely(!best || o->word != best || !map_slot_owners(&names)))
		return false;
	if (map_slot_owners(&names) > 1 && unlikely(owns_here(ch, &names)))
		return false;
	if (unlikely(shm_load_acquire64(slot) != word || shm_load(&shared->epoch) != epoch))
		return false;
	memcpy(p->slot_word, &word, sizeof(word));
	p->epoch = (uint8_t)epoch;
	p->asked = 1;
	p->peer = map_member_unpack(best).peer;
	open_append(b, o, i);
	return true;
}

/* The same for any page. False: a run found no room. */
__attribute__((noinline)) static bool look_first(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	const struct map_member *m = lookup_owner(ch, p, now_ns);
	struct look_open *o;
	bool room;

	if (unlikely(!m || m->ref == ch->session->ref)) {
		lookup_again(b, i); /* it begins anew */
		return true;
	}
	ch->counts.lookups++;
	room = look_add(ch, b, i, m, now_ns);
	o = &ch->look_open[m->peer % LOOK_OPEN_MAX];
	if (ch->look_opened >> m->peer % LOOK_OPEN_MAX & 1 && o->pages + 1 < RUN_PAGES_MAX &&
		lookup_answers(ch, m, now_ns))
		o->word = map_member_pack(m);
	return room;
}

void look_all(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns)
{
	uint32_t epoch = shm_load_acquire(&ch->session->status->map.epoch), usual = 0;
	bool room = ch->map && ch->map->members;

	for (uint32_t i = 0; i < b->count; i++) {
		struct page_work *p = &b->work[i];

		if (unlikely(p->phase == PAGE_DONE))
			continue;
		if (unlikely(!room || cache_has_tag(&ch->cache[p->cached], &p->key)))
			lookup_begin(ch, b, i, now_ns);
		else if (likely(look_usual(ch, b, i, epoch)))
			usual++;
		else
			room = look_first(ch, b, i, now_ns);
	}
	ch->counts.lookups += usual;
	look_close_all(ch, b, room, now_ns);
}

/* ---- answers --------------------------------------------------------------------------------- */

/*
 * True if exactly one entry of the bucket has the key's tag, and it is a location in the memory of
 * another host: *ret. Anything else takes the long way, and so does a page with a wrong location.
 */
static inline bool one_entry(struct pc_channel *ch, const struct page_work *p,
	const struct bucket *bucket, struct location *ret)
{
	uint32_t found = bucket_match(bucket, dir_tag(&p->key));
	struct dir_entry e;

	if (unlikely(!found || found & (found - 1) || p->flags & PAGE_RETRIED))
		return false;
	e = bucket->entry[__builtin_ctz(found)]; /* of a bucket in shared memory: loaded once */
	*ret = (struct location){e.ref, e.place, e.generation};
	return likely(!place_on_disk(e.place) && e.ref != ch->session->ref) &&
	       map_by_ref(ch, e.ref);
}

/* The answer for a page of any batch. A get or set goes on with the page. */
__attribute__((noinline)) static void look_other(struct pc_channel *ch, struct pc_batch *b,
	uint32_t i, const struct bucket *from, uint32_t status, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	struct bucket bucket = *from;
	const struct cache_entry *e;
	struct location at;

	if (unlikely(status != OP_HIT || !one_entry(ch, p, &bucket, &at))) {
		lookup_answer(ch, b, i, &bucket, status, now_ns);
		return;
	}
	p->at = at;
	p->others = 0;
	p->rails_tried = 0;
	e = cache_put(ch, &p->key, &p->at, (uint32_t)(now_ns / 1000000));
	p->cached = cache_number(&p->key, (uint32_t)(e - cache_set(ch, &p->key)->entry));
	page_found(ch, b, i, now_ns);
}

/*
 * Enters the location that the bucket has of a page of an exists. NULL: look_other() has to look,
 * and nothing was done.
 */
static inline struct cache_entry *look_enter(struct pc_channel *ch, const struct page_work *p,
	const struct bucket *bucket, uint32_t now_ms)
{
	struct cache_set *set = cache_set(ch, &p->key);
	struct location at;

	if (unlikely(!one_entry(ch, p, bucket, &at) || cache_has_tag(set, &p->key)))
		return NULL;
	return cache_enter(set, cache_victim(set, now_ms), &p->key, &at, now_ms);
}

void look_answer(struct pc_channel *ch, const struct request *r, const struct run_done *done,
	uint32_t status, uint64_t now_ns)
{
	const struct bucket *from = (const struct bucket *)(const void *)ch->staging.base + r->hold;
	uint32_t i = r->page, next, hit = done->hit, ends = 0;
	uint32_t now_ms = (uint32_t)(now_ns / 1000000);
	const struct bucket *end = from + r->pages;
	struct cache_entry *ended[RUN_PAGES_MAX];
	struct pc_batch *b = r->batch;
	bool exists = b->kind == BATCH_EXISTS;

	if (hit)
		ch->peer_rest_until_ns[b->work[i].peer] = 0;
	for (; from != end; i = next, hit >>= 1, from++) {
		struct page_work *p = &b->work[i];
		struct cache_entry *e;

		__builtin_prefetch(from + EXPECT_AHEAD); /* it may be behind the last one */
		next = p->next;
		if (unlikely(!(hit & 1) || !exists || !(e = look_enter(ch, p, from, now_ms)))) {
			look_other(ch, b, i, from, hit & 1 ? OP_HIT : status, now_ns);
			continue;
		}
		p->phase = PAGE_DONE;
		b->results[i] = PC_HIT;
		ended[ends++] = e;
	}
	/* An entry may have another key by now. That key was found by this run, too. */
	notice_wanted_new(ch, ended, ends, now_ms);
	b->left -= ends;
	ch->moves += ends;
	ch->cache_changes += ends;
}
