/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses pages: those to evict (the oldest of two queues within a class, a whole chunk between
 * classes), and those to write to disk ahead of that. The control plane's thread only.
 *
 * A class has two queues: a page enters QUEUE_NEW when it is published. A use, which clients and
 * other hosts report once a second at most, makes it the newest of QUEUE_USED. The next victim is
 * the oldest of either queue, where the age of a page of QUEUE_USED is divided by a weight
 * (ghost.c). Ages are counted in publishes, so an idle pool does not age. A prompt comes
 * back soon or never: order by last use keeps what comes back soon, the weight what came back
 * before. A page that is stored again soon after it was evicted enters QUEUE_USED.
 *
 * Pages of one batch lie in the queue in reverse, and so do pages that are reported as used one
 * after another: the last page of a prompt goes first, because a page is of use only while all
 * pages before it are there.
 *
 * At most one chunk drains at a time: none of its free slots is handed out, and its pages are the
 * victims. When it has no page and no credit any more it rests until limbo ends, beside others that
 * drained before it, and the next one may drain: pages of an old size leave as fast as those of the
 * new size come. When all its slots are free the chunk is reserved for the requesting page size. A
 * chunk is drained
 * - when a class has no page of its own to evict: it takes a chunk of another class, preferably of
 *   the class with the most chunks;
 * - when a chunk of another class was last used before the next victim of this one; this is looked
 *   for before half a chunk's worth of own pages is evicted. So pages of a size that is no
 *   longer used (another model, another page size) leave first.
 *
 * Chunks with credits are the last choice, because a client may keep a credit as long as it likes.
 *
 * The spill pointer of a queue goes over its pages from the oldest to the newest. A page
 * that it has passed was named to the disk tier once. Pages that are not on disk nevertheless,
 * because their write failed or the disk has lost them, are named again by another lap, as soon as
 * they are more than 1/AHEAD_MISSED of the class. So the work is O(1) for each page that is named.
 */
#include "engine/control/pages/pool_inner.h"

/* share of the pages of a class that are too new to be evicted while there are others */
#define NEW_SHARE 8u
/* share of the pages of a class that are stored behind a page in the moment of its use, at most */
#define AFTER_SHARE 32u
/* Publishes after which the next page of a batch does not follow the one before it. */
#define BATCH_PAGES_MAX 1024u
/* time, in ns, between two touches of pages of which the second follows the first in a prompt */
#define TOUCH_RUN_NS 200000u
/* dirty pages that the search for a clean one passes, on average, at most */
#define CLEAN_STEPS 16u
/* pages that clients have pinned which the search for victims passes, at most */
#define KEPT_STEPS 32768u
/* Pages that one call of pool_ahead() looks at, at most. */
#define AHEAD_STEPS 2048u
/* share of the pages of a class that may be missing on disk before another lap begins */
#define AHEAD_MISSED 64u

/* ---- the queues of a class ------------------------------------------------------------------- */

static struct queue *page_queue(struct pool *pool, uint32_t slot)
{
	return &pool->class[slot_chunk(pool, slot)->class].queue[pool->slots[slot].queue];
}

/* Whether page `a` got its place in its queue before page `b`, or a page that `b` lies behind. */
static bool queue_older(const struct pool *pool, uint32_t a, uint32_t b)
{
	return (int32_t)(pool->slots[a].queued_at - pool->slots[b].queued_at) < 0;
}

/* Puts a page into the queue that it names, next to `newer` on its older side; NONE: newest. */
static void queue_link(struct pool *pool, uint32_t slot, uint32_t newer)
{
	struct queue *queue = page_queue(pool, slot);
	struct slot *page = &pool->slots[slot];

	page->newer = newer;
	page->next = newer == NONE ? queue->newest : pool->slots[newer].next;
	if (page->next == NONE)
		queue->oldest = slot;
	else
		pool->slots[page->next].newer = slot;
	if (newer == NONE)
		queue->newest = slot;
	else
		pool->slots[newer].next = slot;
	if (queue->spill == NONE || (newer != NONE && !queue_older(pool, queue->spill, slot)))
		queue->spill = slot;
}

static void queue_unlink(struct pool *pool, uint32_t slot)
{
	struct queue *queue = page_queue(pool, slot);
	const struct slot *page = &pool->slots[slot];

	if (queue->spill == slot)
		queue->spill = page->newer;
	if (queue->last == slot)
		queue->last = page->next;
	if (page->newer == NONE)
		queue->newest = page->next;
	else
		pool->slots[page->newer].next = page->next;
	if (page->next == NONE)
		queue->oldest = page->newer;
	else
		pool->slots[page->next].newer = page->newer;
}

/* The slot of the page at `before`, which a page of `slot` follows in QUEUE_NEW; NONE: none. */
static uint32_t queue_before(const struct pool *pool, uint32_t slot, uint32_t before)
{
	uint32_t newer = pool_locate(pool, before);
	const struct slot *page = newer == NONE ? NULL : &pool->slots[newer];

	if (!page || page->state != SLOT_PAGE || page->queue != QUEUE_NEW || page->low ||
		slot_chunk(pool, newer)->class != slot_chunk(pool, slot)->class ||
		(uint32_t)pool->published - page->queued_at > BATCH_PAGES_MAX)
		return NONE;
	return newer;
}

void queue_insert(struct pool *pool, uint32_t slot, uint32_t before)
{
	struct size_class *class = &pool->class[slot_chunk(pool, slot)->class];
	uint32_t newer = before == UINT32_MAX ? NONE : queue_before(pool, slot, before);

	pool->slots[slot] = (struct slot){.state = SLOT_PAGE,
		.queued_at =
			newer == NONE ? (uint32_t)pool->published : pool->slots[newer].queued_at};
	queue_link(pool, slot, newer);
	class->pages++;
	class->dirty++;
}

void queue_remove(struct pool *pool, uint32_t slot)
{
	struct size_class *class = &pool->class[slot_chunk(pool, slot)->class];

	queue_unlink(pool, slot);
	class->dirty -= slot_dirty(&pool->slots[slot]);
	class->pages--;
	if (pool->slots[slot].why == PAGE_HOT)
		pool->hot_units -= class->units;
}

void pool_order(struct pool *pool, uint32_t before)
{
	pool->before = before;
}

void queue_use(struct pool *pool, uint32_t slot)
{
	struct slot *page = &pool->slots[slot];
	uint64_t now_ns = pool->clock_ns();
	uint32_t newer = now_ns - pool->touched_ns < TOUCH_RUN_NS ? pool->touched : NONE;

	pool->touched_ns = now_ns;
	if (slot == newer)
		return;
	pool->touched = slot;
	queue_unlink(pool, slot);
	page->queue = QUEUE_USED;
	if (newer != NONE && !(pool->slots[newer].state == SLOT_PAGE &&
				     page_queue(pool, newer) == page_queue(pool, slot)))
		newer = NONE;
	page->queued_at = newer == NONE ? (uint32_t)pool->published : pool->slots[newer].queued_at;
	queue_link(pool, slot, newer);
}

bool pool_again(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE || pool->slots[slot].queue == QUEUE_USED)
		return false;
	queue_use(pool, slot);
	return true;
}

/*
 * Moves a page next to `older` on its newer side; NONE: to the old end of its queue. It passes the
 * spill pointer: it is not worth a write.
 */
static void queue_lower(struct pool *pool, uint32_t slot, uint32_t older)
{
	struct queue *queue = page_queue(pool, slot);
	struct slot *slots = pool->slots;
	uint32_t newer;

	queue_unlink(pool, slot);
	newer = older == NONE ? queue->oldest : slots[older].newer;
	if (older != NONE || newer != NONE)
		slots[slot].queued_at = slots[older == NONE ? newer : older].queued_at;
	slots[slot].low = true;
	slots[slot].newer = newer;
	slots[slot].next = older;
	*(newer == NONE ? &queue->newest : &slots[newer].next) = slot;
	*(older == NONE ? &queue->oldest : &slots[older].newer) = slot;
}

bool pool_last(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE)
		return false;
	queue_lower(pool, slot, NONE);
	if (page_queue(pool, slot)->last == NONE)
		page_queue(pool, slot)->last = slot;
	return true;
}

bool pool_yield(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);
	struct queue *queue;

	if (slot == NONE || pool->slots[slot].queue != QUEUE_NEW)
		return false;
	queue = page_queue(pool, slot);
	if (slot != queue->last)
		queue_lower(pool, slot, queue->last);
	queue->last = slot;
	return true;
}

unsigned pool_recent(const struct pool *pool, unsigned max, struct pool_place *ret)
{
	unsigned n = 0;

	for (unsigned k = QUEUES; k--;)
		for (unsigned i = 0; i < CLASSES_MAX; i++) {
			uint32_t slot =
				pool->class[i].units ? pool->class[i].queue[k].newest : NONE;

			for (; slot != NONE && n < max; slot = pool->slots[slot].next) {
				uint32_t unit = slot_unit(pool, slot);

				ret[n++] = (struct pool_place){place_make(pool->rail, unit),
					shm_load(&pool->heads[unit].generation)};
			}
		}
	return n;
}

void pool_why_set(struct pool *pool, uint32_t place, uint32_t generation, unsigned why)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE)
		return;
	pool->slots[slot].why = why & 0x7f;
	if (why == PAGE_HOT)
		pool->hot_units += pool->class[slot_chunk(pool, slot)->class].units;
}

unsigned pool_why(const struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	return slot != NONE ? pool->slots[slot].why : 0;
}

void pool_weigh(struct pool *pool, uint32_t used_weight)
{
	pool->used_weight = used_weight;
}

/* Describes the page in the slot. */
static void victim_name(const struct pool *pool, uint32_t slot, struct pool_victim *ret)
{
	uint32_t unit = slot_unit(pool, slot);
	struct page_head head = page_head_load(&pool->heads[unit]);

	*ret = (struct pool_victim){.key = head.key,
		.place = place_make(pool->rail, unit),
		.generation = head.generation,
		.length = head.length,
		.queue = pool->slots[slot].queue == QUEUE_USED ? EVICTED_USED : EVICTED_NEW};
}

/* Whether the chunk that is being drained belongs to this size class. */
static bool class_drains(const struct pool *pool, const struct size_class *class)
{
	return pool->drain != NONE && &pool->class[pool->chunk[pool->drain].class] == class;
}

/* Returns the number of pages of the size class outside the chunk that is being drained. */
static uint32_t class_pages(const struct pool *pool, const struct size_class *class)
{
	return class->pages - (class_drains(pool, class) ? pool->chunk[pool->drain].pages : 0);
}

/* Returns how many of these pages may be evicted. */
static uint32_t class_victims(const struct pool *pool, const struct size_class *class)
{
	uint32_t pinned =
		class->pinned - (class_drains(pool, class) ? pool->chunk[pool->drain].pinned : 0);

	return class_pages(pool, class) - pinned;
}

/* Returns the number of the class's slots in limbo, outside the chunk that is being drained. */
static uint32_t class_limbo(const struct pool *pool, const struct size_class *class)
{
	return class->limbo - (class_drains(pool, class) ? pool->chunk[pool->drain].limbo : 0);
}

uint32_t pool_resting(const struct pool *pool, uint32_t page_bytes)
{
	uint32_t units = pool_units(pool, page_bytes);
	uint32_t class = units ? class_serving(pool, units) : NONE;
	uint64_t leaving = 0;

	for (uint32_t i = pool->leaving.first; i != NONE; i = pool->chunk[i].next) {
		const struct chunk *chunk = &pool->chunk[i];
		/* when the last one of a chunk that rests leaves limbo, all are free */
		uint64_t slots = chunk->limbo;

		if (chunk->limbo && chunk_rests(pool, i))
			slots += chunk->free;
		if (chunk->leaves_for == units)
			leaving += slots * pool->class[chunk->class].units;
	}
	return (uint32_t)(leaving / (units ? units : 1)) +
	       (class == NONE ? 0 : class_limbo(pool, &pool->class[class]));
}

/* Whether the page may be evicted; `clean`: only if it is on disk or being written. */
static bool page_pickable(const struct slot *page, bool clean)
{
	return !(page->disk & SLOT_PINS) && !(clean && slot_dirty(page));
}

/*
 * Returns how many pages of the class queues_pick() may pick. `clean`: 0 if they are so few among
 * dirty ones that it would look at more than CLEAN_STEPS pages for each.
 */
static uint32_t queues_pages(const struct pool *pool, const struct size_class *class, bool clean)
{
	uint32_t pages = class_victims(pool, class);

	if (!clean)
		return pages;
	pages -= class->dirty < pages ? class->dirty : pages;
	return class->dirty / CLEAN_STEPS > pages ? 0 : pages;
}

/* How long the page has been in its queue, in publishes; a page that was used again ages slower. */
static uint32_t page_age(const struct pool *pool, uint32_t slot)
{
	const struct slot *page = &pool->slots[slot];
	uint64_t age = (uint32_t)pool->published - page->queued_at;

	return (uint32_t)(page->queue == QUEUE_USED ? age * USED_WEIGHT_ONE / pool->used_weight
						    : age);
}

/*
 * The queue that has the next victim; at[]: the next page of each. QUEUES: both are at the end. The
 * newest 1/NEW_SHARE of the class stays: it may be a batch that is in use soon, beside pages that
 * were all used. A page that was stored just after a use may be the tail of what was used then.
 */
static unsigned queue_next(
	const struct pool *pool, const struct size_class *class, const uint32_t at[QUEUES])
{
	uint32_t age;

	if (at[QUEUE_USED] == NONE)
		return at[QUEUE_NEW] == NONE ? QUEUES : QUEUE_NEW;
	if (at[QUEUE_NEW] == NONE)
		return QUEUE_USED;
	age = page_age(pool, at[QUEUE_NEW]);
	if (age < class->pages / NEW_SHARE)
		return QUEUE_USED;
	return age + class->pages / AFTER_SHARE < page_age(pool, at[QUEUE_USED]) ? QUEUE_USED
										 : QUEUE_NEW;
}

/*
 * Picks up to `max` victims of the class. at[]: the oldest page of each queue that was not
 * looked at. One that may not be picked keeps its place. `skips` bounds the dirty pages that are
 * passed over; fewer victims than `max` are then picked.
 */
static unsigned queues_pick(struct pool *pool, struct size_class *class, bool clean, unsigned max,
	struct pool_victim *ret_victims)
{
	uint32_t at[QUEUES] = {class->queue[QUEUE_NEW].oldest, class->queue[QUEUE_USED].oldest};
	uint32_t pages = queues_pages(pool, class, clean);
	unsigned want = max < pages ? max : pages, n = 0, from;
	uint32_t kept = KEPT_STEPS;
	uint64_t skips = clean ? (uint64_t)want * CLEAN_STEPS : UINT64_MAX;

	while (n < want && skips && kept && (from = queue_next(pool, class, at)) != QUEUES) {
		uint32_t slot = at[from];
		struct slot *page = &pool->slots[slot];

		at[from] = page->newer;
		if (page->disk & SLOT_KEPT) {
			queue_unlink(
				pool, slot); /* clients want it: the next pick passes no pins */
			page->queued_at = (uint32_t)pool->published;
			queue_link(pool, slot, NONE);
			kept--;
		} else if (page_pickable(page, clean) && slot >> pool->shift != pool->drain)
			victim_name(pool, slot, &ret_victims[n++]);
		else
			skips--;
	}
	return n;
}

/* ---- a chunk that drains --------------------------------------------------------------------- */

/*
 * Starts to drain the chunk, so that it can hold pages of `units`: none of its slots is handed out
 * until all its slots are free or the drain is given up.
 */
static void drain_begin(struct pool *pool, uint32_t chunk, uint32_t units)
{
	struct size_class *class = &pool->class[pool->chunk[chunk].class];

	pool->drain = chunk;
	pool->chunk[chunk].leaves_for = units;
	pool->drain_cursor = 0;
	pool->drain_ignored = 0;
	class->free -= pool->chunk[chunk].free;
	if (pool->chunk[chunk].free)
		chunk_list_remove(pool, &class->ready, chunk);
	chunk_list_add(pool, &pool->leaving, chunk);
}

static void drain_give_up(struct pool *pool)
{
	uint32_t chunk = pool->drain;
	struct size_class *class = &pool->class[pool->chunk[chunk].class];

	pool->drain = NONE;
	pool->chunk[chunk].leaves_for = 0;
	chunk_list_remove(pool, &pool->leaving, chunk);
	class->free += pool->chunk[chunk].free;
	if (pool->chunk[chunk].free)
		chunk_list_add(pool, &class->ready, chunk);
}

/* A chunk without pages and credits waits for limbo alone: another one may drain. */
static void drain_rest(struct pool *pool)
{
	const struct chunk *chunk = &pool->chunk[pool->drain];

	if (chunk->pages + chunk->credits == 0) {
		pool->class[chunk->class].limbo -= chunk->limbo;
		pool->drain = NONE;
	}
}

/* Whether the draining chunk has pages that may be evicted, or slots in limbo. */
static bool drain_moves(const struct pool *pool)
{
	const struct chunk *chunk = &pool->chunk[pool->drain];

	return chunk->pages - chunk->pinned + chunk->limbo != 0;
}

/*
 * Picks the next pages of the draining chunk. The cursor makes at most one lap per call, so no page
 * is picked twice.
 */
static unsigned drain_pick(
	struct pool *pool, bool clean, unsigned max, struct pool_victim *ret_victims)
{
	struct chunk *chunk = &pool->chunk[pool->drain];
	uint32_t pages = chunk->pages - chunk->pinned;
	unsigned want = max < pages ? max : pages, n = 0;

	pool->drain_ignored = 0;
	for (uint32_t left = chunk->carved; n < want && left; left--) {
		uint32_t slot = (pool->drain << pool->shift) + pool->drain_cursor;

		if (pool->slots[slot].state == SLOT_PAGE &&
			page_pickable(&pool->slots[slot], clean))
			victim_name(pool, slot, &ret_victims[n++]);
		if (++pool->drain_cursor == chunk->carved)
			pool->drain_cursor = 0;
	}
	return n;
}

/*
 * Whether chunk `a` is a better choice to drain than `b`: fewer credits first; then the class with
 * the most chunks; then the chunk unused for longest.
 */
static bool drain_better(const struct pool *pool, const struct chunk *a, const struct chunk *b)
{
	uint32_t chunks_a = pool->class[a->class].chunks, chunks_b = pool->class[b->class].chunks;

	if (a->credits != b->credits)
		return a->credits < b->credits;
	if (chunks_a != chunks_b)
		return chunks_a > chunks_b;
	return a->used_at < b->used_at;
}

/* Returns a chunk of another size class than `class` that is the best one to drain, or NONE. */
static uint32_t drain_choose(const struct pool *pool, uint32_t class)
{
	uint32_t best = NONE;

	for (uint32_t i = 0; i < pool->chunks; i++) {
		const struct chunk *chunk = &pool->chunk[i];

		if (chunk->class == NONE || chunk->class == class || chunk->leaves_for ||
			chunk->kept || chunk->pages + chunk->limbo == 0)
			continue;
		if (best == NONE || drain_better(pool, chunk, &pool->chunk[best]))
			best = i;
	}
	return best;
}

/*
 * Victims for a page size that has no page of its own to evict: drains a chunk of another class, or
 * continues the drain in progress. Six parameters: those of pool_victims(), and the class.
 */
static unsigned drain_for_need(struct pool *pool, uint32_t class, uint32_t units, bool clean,
	unsigned max, struct pool_victim *ret_victims)
{
	uint32_t chosen;

	if (pool->drain != NONE && drain_moves(pool))
		return drain_pick(pool, clean, max, ret_victims);
	chosen = drain_choose(pool, class);
	if (chosen == NONE)
		return 0;
	if (pool->drain != NONE) {
		/*
		 * The chunk that is draining contains only credits and pages that are pinned: give
		 * up its drain only for a chunk without credits.
		 */
		if (pool->chunk[chosen].credits)
			return 0;
		drain_give_up(pool);
	}
	drain_begin(pool, chosen, units);
	return drain_pick(pool, clean, max, ret_victims);
}

/*
 * Returns the longest idle chunk of another class if it was idle for longer than the next victim of
 * `class` has been in its queue: all its pages were last used before that. Else NONE. Time is
 * counted in publishes.
 */
static uint32_t drain_idle(const struct pool *pool, uint32_t class)
{
	const struct size_class *own = &pool->class[class];
	uint32_t at[QUEUES] = {own->queue[QUEUE_NEW].oldest, own->queue[QUEUE_USED].oldest};
	unsigned from = queue_next(pool, own, at);
	uint64_t other = pool->published;
	uint32_t idlest = NONE;

	for (uint32_t i = 0; i < pool->chunks; i++) {
		const struct chunk *chunk = &pool->chunk[i];

		if (chunk->class == class || chunk->class == NONE || chunk->credits ||
			chunk->leaves_for || chunk->kept || chunk->pages + chunk->limbo == 0 ||
			chunk->used_at >= other)
			continue;
		other = chunk->used_at;
		idlest = i;
	}
	return from != QUEUES && pool->published - other > page_age(pool, at[from]) ? idlest : NONE;
}

/* ---- victims --------------------------------------------------------------------------------- */

unsigned pool_victims(struct pool *pool, uint32_t page_bytes, bool clean, unsigned max,
	struct pool_victim *ret_victims)
{
	uint32_t units = pool_units(pool, page_bytes), number;
	struct size_class *class;
	unsigned n;

	if (units == 0 || max == 0)
		return 0;
	if (pool->drain != NONE)
		drain_rest(pool);
	if (pool->drain != NONE && pool->chunk[pool->drain].kept)
		drain_give_up(pool);
	if (pool->drain != NONE &&
		pool->chunk[pool->drain].pages > pool->chunk[pool->drain].pinned) {
		if (pool->chunk[pool->drain].leaves_for == units)
			return drain_pick(pool, clean, max, ret_victims);
		if (++pool->drain_ignored > DRAIN_PATIENCE)
			drain_give_up(pool);
	}
	number = class_serving(pool, units);
	class = number == NONE ? NULL : &pool->class[number];
	/* pages that clients have pinned stay for long: the chunk that drains has none of them */
	if (!class || class_pages(pool, class) - class->kept + class_limbo(pool, class) == 0)
		return chunks_for(pool, units)
			       ? 0
			       : drain_for_need(pool, number, units, clean, max, ret_victims);

	if (class->evicted + max >= class->slots / 2 && pool->drain == NONE) {
		uint32_t idle = drain_idle(pool, number);

		if (idle != NONE) {
			drain_begin(pool, idle, units);
			return drain_pick(pool, clean, max, ret_victims);
		}
		class->evicted = 0;
	}
	n = queues_pick(pool, class, clean, max, ret_victims);
	class->evicted += n;
	return n;
}

/* ---- pages to write ahead of eviction -------------------------------------------------------- */

unsigned pool_ahead(struct pool *pool, uint32_t page_bytes, uint32_t share, unsigned max,
	struct pool_victim *ret_victims)
{
	uint32_t units = pool_units(pool, page_bytes);
	uint32_t number = units ? class_serving(pool, units) : NONE, at[QUEUES], age;
	struct size_class *class;
	unsigned n = 0, steps = 0, from;

	if (number == NONE)
		return 0;
	class = &pool->class[number];
	if (class->queue[QUEUE_NEW].spill == NONE && class->queue[QUEUE_USED].spill == NONE &&
		class->dirty > class->pages / AHEAD_MISSED)
		for (unsigned i = 0; i < QUEUES; i++)
			class->queue[i].spill = class->queue[i].oldest;
	for (unsigned i = 0; i < QUEUES; i++)
		at[i] = class->queue[i].oldest;
	from = queue_next(pool, class, at);
	if (from == QUEUES)
		return 0;
	age = page_age(pool, at[from]);
	age -= (uint32_t)((uint64_t)age * share / POOL_AHEAD_ALL);
	for (unsigned i = 0; i < QUEUES; i++)
		while (class->queue[i].spill != NONE && n < max && steps++ < AHEAD_STEPS &&
			page_age(pool, class->queue[i].spill) >= age) {
			uint32_t slot = class->queue[i].spill;

			if (slot_dirty(&pool->slots[slot]))
				victim_name(pool, slot, &ret_victims[n++]);
			class->queue[i].spill = pool->slots[slot].newer;
		}
	return n;
}
