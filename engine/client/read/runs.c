/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs pages of other hosts in runs. Channel thread.
 *
 * Nearly all pages are read in runs: one op, one request and one answer for up to RUN_PAGES_MAX
 * pages. A step plans up to RUN_PLAN_MAX pages together: pages with the same holder, pool, length,
 * destination region and segments are a group, and a group becomes runs of about
 * ceil(pages of all groups / usable rails) pages each. A run whose rail has no room waits as it is,
 * in the order of planning. Its rail is chosen when it is posted, and then a run may be split: what
 * fits one rail is posted, the rest is a run of its own.
 *
 * The pages of a run are linked by page_work.next; the k-th of them is bit k of the answer's masks
 * (answer.c). A page that fits no run is READ alone (fetch.c).
 */
#include "config/likely.h"
#include "config/limits.h"
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
#include "engine/client/read/read.h"
#include "engine/client/rings/rings.h"

static_assert(SLICE_BYTES <= RUN_BYTES, "a run holds at least one page");
static_assert(RUN_GROUPS_MAX == 32, "a bit each");

/* ---- the queue of runs ----------------------------------------------------------------------- */

/* Puts a run, by its first page, behind the last one of the batch. */
static void run_queue(struct pc_batch *b, uint32_t head)
{
	b->work[head].run_next = CLIENT_NONE;
	if (b->runs.head == CLIENT_NONE)
		b->runs.head = head;
	else
		b->work[b->runs.tail].run_next = head;
	b->runs.tail = head;
	b->channel->waits[1]++;
}

static void run_requeue(struct pc_batch *b, uint32_t head)
{
	b->work[head].run_next = b->runs.head;
	if (b->runs.head == CLIENT_NONE)
		b->runs.tail = head;
	b->runs.head = head;
	b->channel->waits[1]++;
}

/* ---- posting runs ---------------------------------------------------------------------------- */

/* What the runs of one holder have in common in one step. */
struct run_way {
	const struct map_member *member; /* the holder; NULL: it has left the map */
	uint32_t ref;
	uint32_t out; /* stripe_out() */
	/* header of a run, without cookie, number of pages and pool; if the pages of the batch are
	 * not alike, it is made for each run anew */
	struct run_header header;
};

/* Makes *way that of the run whose first page is `i`, and of others like it. */
__attribute__((noinline)) static void run_way(
	const struct pc_batch *b, uint32_t i, struct run_way *way)
{
	struct pc_channel *ch = b->channel;
	const struct page_work *p = &b->work[i];
	const struct pc_page *page = &b->pages[i];
	struct run run = {.peer_ref = p->at.ref,
		.kind = OP_RUN,
		.segments = (uint16_t)page->segment_count,
		.to_region = (uint16_t)(p->to >> OP_TO_BITS),
		.page_bytes = p->bytes,
		.stride_or_to = page_stride(page),
		.deadline_ns = page_attempt_ns(b, 1)};

	way->ref = p->at.ref;
	way->member = map_by_ref(ch, p->at.ref);
	if (!way->member)
		return;
	way->out = stripe_out(ch, way->member->peer);
	run.peer = way->member->peer;
	run_encode(&run, &way->header);
}

/* The holder of the run's pages left the map after the look-up: each page goes on by itself. */
static void run_lost(struct pc_batch *b, uint32_t i)
{
	for (uint32_t left = b->work[i].run_pages, next; left; left--, i = next) {
		next = b->work[i].next;
		page_unreached(b, i);
	}
}

/*
 * Chooses a rail for the run, or for its first half, quarter and so on. Returns the rail;
 * CLIENT_NONE: no rail has room for a single page. *ret_pages: number of pages that fit.
 */
__attribute__((noinline)) static uint32_t run_rail_any(struct pc_channel *ch,
	const struct page_work *p, const struct run_way *way, uint32_t *ret_pages)
{
	for (uint32_t n = p->run_pages; n; n /= 2) {
		uint32_t rail = stripe_choose(ch,
			&(struct stripe){.peer = way->member->peer,
				.tried = p->rails_tried,
				.slots = run_lines(OP_RUN, n),
				.bytes = n * p->bytes,
				.least = p->bytes},
			way->out, p->at.place);

		*ret_pages = n;
		if (rail != CLIENT_NONE)
			return rail;
	}
	return CLIENT_NONE;
}

/* The same. The usual case first: the whole run goes to the home rail of its pages. */
static inline uint32_t run_rail(struct pc_channel *ch, const struct page_work *p,
	const struct run_way *way, uint32_t *ret_pages)
{
	uint32_t home = place_rail(p->at.place), pages = p->run_pages;

	*ret_pages = pages;
	if (likely(home < ch->rails &&
		    stripe_home(ch, home, way->out | p->rails_tried, pages * p->bytes, pages > 1) &&
		    submit_room_now(ch, home, run_lines(OP_RUN, pages))))
		return home;
	return run_rail_any(ch, p, way, ret_pages);
}

/* Writes the entry of a page that is posted. `turn`: ring_turn_new(), in a line's first half. */
static inline void run_entry_write(struct run_entry *e, struct page_work *p, uint64_t turn)
{
	e->unit = place_unit(p->at.place);
	e->generation = p->at.generation;
	e->to = (p->to & (RUN_TO_MAX - 1)) | turn;
	e->key = p->key;
	p->phase = PAGE_IN_RUN;
}

/*
 * Writes the entries of a run's pages, the first one into the second half of the first unpublished
 * line of the op ring, and the turns of the lines after that. Returns the first page behind them.
 */
static inline uint32_t run_entries(
	struct pc_batch *b, struct page_work *p, uint32_t pages, struct ring_producer *ops)
{
	struct run_entry *line = (struct run_entry *)(void *)ops->first;
	unsigned char *slots = ops->slots;
	uint32_t index = ops->tail;

	run_entry_write(&line[1], p, 0);
	while (--pages) {
		index++;
		line = (struct run_entry *)(void *)(slots + ring_at(OP_RING_SLOTS,
								    sizeof(struct run_line),
								    index));
		p = &b->work[p->next];
		run_entry_write(&line[0], p, ring_turn(OP_RING_SLOTS, index) << RING_TURN_SHIFT);
		if (!--pages)
			break;
		p = &b->work[p->next];
		run_entry_write(&line[1], p, 0);
	}
	return p->next;
}

/* Posts the first `pages` pages of a run to a rail with room. What remains is queued as a run. */
static void run_post(
	struct pc_batch *b, uint32_t i, uint32_t pages, uint32_t rail, const struct run_way *way)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t index = request_take(ch, REQUEST_RUN, b, i), bytes = pages * p->bytes, rest;
	uint32_t left = p->run_pages - pages;
	struct client_request *r = &ch->request[index];
	struct ring_producer *ops = &ch->rail[rail].ops;
	struct run_header *h = (struct run_header *)(void *)ops->first;

	r->rail = (uint8_t)rail;
	r->pages = (uint8_t)pages;
	r->bytes = bytes;
	stripe_give(ch, rail, bytes);
	*h = way->header;
	h->cookie = request_cookie(ch, index);
	h->pages = (uint8_t)pages;
	h->segments_region |= op_pack(0, REGION_POOL_0 + place_rail(p->at.place));
	/* If the pages have other locations to try, the attempt with these gets half of the
	 * time. */
	if (unlikely(p->others))
		h->deadline = (uint32_t)((page_attempt_ns(b, 2)) / OP_TIME_NS);
	p->peer = way->header.peer;
	rest = run_entries(b, p, pages, ops);
	if (unlikely(left)) {
		b->work[rest].run_pages = (uint8_t)left;
		run_requeue(b, rest);
	}
	submit_run(ch, rail, h, 1 + pages / 2, bytes);
}

/*
 * Posts a run, or a part of it. False: no rail has room, and nothing has changed. *way: that of the
 * run posted before, or of none (ref 0).
 */
static inline bool run_submit(struct pc_batch *b, uint32_t i, struct run_way *way)
{
	struct pc_channel *ch = b->channel;
	const struct page_work *p = &b->work[i];
	uint32_t rail, pages;

	if (unlikely(p->at.ref != way->ref || !b->alike))
		run_way(b, i, way);
	if (unlikely(!way->member)) {
		run_lost(b, i);
		return true;
	}
	rail = run_rail(ch, p, way, &pages);
	if (unlikely(rail == CLIENT_NONE || ch->request_free == CLIENT_NONE)) {
		ch->no_room = true;
		return false;
	}
	run_post(b, i, pages, rail, way);
	return true;
}

/* Posts runs in the order of planning, until no rail has room. */
static void run_post_all(struct pc_batch *b, struct run_way *way)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while (!ch->broken && !ch->no_room && (i = run_unqueue(b)) != CLIENT_NONE)
		if (!run_submit(b, i, way))
			run_requeue(b, i);
}

/* ---- planning runs --------------------------------------------------------------------------- */

/*
 * Into how many runs a group of `pages` pages is cut. `share`: pages of a run if all rails are to
 * carry the same number. A run may have a quarter more, so that few pages do not need one of their
 * own.
 */
static uint32_t run_parts(uint32_t pages, uint32_t share, uint32_t bytes)
{
	uint32_t most = RUN_PAGES_MAX, least;

	/* the usual case of what follows, without a division */
	if (likely(pages <= most && pages <= share + share / 4 && pages * bytes <= RUN_BYTES))
		return 1;
	if (most * bytes > RUN_BYTES)
		most = RUN_BYTES / bytes;
	share = share < most ? share : most;
	most = share + share / 4 < most ? share + share / 4 : most;
	if (pages <= most)
		return 1;
	least = pages / share;
	return pages <= least * most ? least : (pages + share - 1) / share;
}

/* Cuts the first run off a group of several; the group keeps the other pages. Returns the run. */
static uint32_t run_cut(struct pc_batch *b, struct run_group *g)
{
	uint32_t head = g->head, n = (g->pages + g->parts - 1) / g->parts;

	b->work[head].run_pages = (uint8_t)n;
	g->pages -= n;
	g->parts--;
	while (n--)
		g->head = b->work[g->head].next;
	return head;
}

/*
 * Makes the group's first run and posts it at once, unless it has to wait for room. Returns whether
 * the group has pages for more runs.
 */
static inline bool run_first(
	struct pc_batch *b, struct run_group *g, uint32_t share, bool wait, struct run_way *way)
{
	struct pc_channel *ch = b->channel;
	uint32_t i = g->head;
	bool more;

	g->ref = 0;
	g->parts = run_parts(g->pages, share, g->bytes);
	more = g->parts > 1;
	if (likely(!more))
		b->work[i].run_pages = (uint8_t)g->pages;
	else
		run_cut(b, g);
	if (unlikely(wait || ch->no_room || ch->broken) || !run_submit(b, i, way))
		run_queue(b, i);
	return more;
}

/* Queues the group's other runs, which are posted after the first ones of all groups. */
static void run_others(struct pc_batch *b, struct run_group *g)
{
	while (g->parts)
		run_queue(b, run_cut(b, g));
}

/* Pages of a run if all rails are to carry the same number of the pages in the groups. */
static uint32_t run_share(struct pc_channel *ch, const struct run_way *way)
{
	uint32_t rails = stripe_rails(ch, way->member ? way->out : 0), pages = 0;

	for (uint32_t left = ch->run_grouped; left; left &= left - 1)
		pages += ch->run_group[__builtin_ctz(left)].pages;
	return (pages + rails - 1) / rails;
}

/*
 * Makes runs of the pages that run_add() has collected for this batch, and posts those. Always in
 * the same step as run_add().
 */
static void run_add_end(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t groups = ch->run_grouped, share, more = 0;
	bool wait = b->runs.head != CLIENT_NONE;
	struct run_way way;

	if (!groups)
		return;
	run_way(b, ch->run_group[__builtin_ctz(groups)].head, &way);
	share = run_share(ch, &way);
	for (uint32_t left = groups; left; left &= left - 1) {
		uint32_t slot = (uint32_t)__builtin_ctz(left);

		if (run_first(b, &ch->run_group[slot], share, wait, &way))
			more |= 1u << slot;
	}
	ch->run_grouped = 0;
	for (; more; more &= more - 1)
		run_others(b, &ch->run_group[__builtin_ctz(more)]);
	run_post_all(b, &way);
}

/* Which attempt this is: pages of one run have made the same ones, and have as many to go. */
static inline uint32_t run_tries(const struct page_work *p)
{
	return (uint32_t)p->others << 16 | p->rails_tried;
}

/* The group of a page of the pool of rail 0 of this holder; those of the other rails follow. */
static inline uint32_t run_slot(uint32_t ref, uint32_t bytes)
{
	return (ref ^ bytes) * 0x9e3779b1u >> 27;
}

/* True if the group of the page's holder is for pages like this one. */
static inline bool run_fits(const struct run_group *g, const struct page_work *p,
	const struct pc_page *page, uint32_t tries)
{
	return p->bytes == g->bytes && page->segment_count == g->segments &&
	       !((p->to ^ g->to) >> OP_TO_BITS) && tries == g->tries &&
	       (!g->stride || page_stride(page) == g->stride);
}

/*
 * Opens group `slot` with a page. If another group has that slot, it is posted with all others
 * before.
 */
__attribute__((noinline)) static void run_group_new(struct pc_batch *b, uint32_t i, uint32_t slot)
{
	struct pc_channel *ch = b->channel;
	const struct page_work *p = &b->work[i];
	struct run_group *g = &ch->run_group[slot];

	if (unlikely(g->ref))
		run_add_end(b);
	ch->run_grouped |= 1u << slot;
	*g = (struct run_group){.ref = p->at.ref,
		.to = p->to,
		.stride = page_stride(&b->pages[i]),
		.bytes = p->bytes,
		.segments = b->pages[i].segment_count,
		.tries = run_tries(p),
		.head = i,
		.tail = i,
		.pages = 1};
}

/*
 * Adds a page, whose location is page_work.at, to the pages that this step plans together. `slot`:
 * run_slot(). `tries`: run_tries(), which is 0 at the first attempt. `alike`: no group of the
 * holder can be for other pages than this one, see pc_batch.alike.
 */
static inline void run_add(
	struct pc_batch *b, uint32_t i, uint32_t slot, uint32_t tries, bool alike)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	struct run_group *g;

	slot = (slot + place_rail(p->at.place)) % RUN_GROUPS_MAX;
	g = &ch->run_group[slot];
	p->phase = PAGE_RUN;
	/* the pool need not be compared: with one holder and length, each pool has its own slot */
	if (likely(p->at.ref == g->ref && (alike || likely(run_fits(g, p, &b->pages[i], tries))))) {
		b->work[g->tail].next = i;
		g->tail = i;
		g->pages++;
	} else if (likely(alike && !g->ref)) {
		/* the first page of a group that is for no others; so is what is not set here */
		ch->run_grouped |= 1u << slot;
		g->ref = p->at.ref;
		g->bytes = p->bytes;
		g->head = g->tail = i;
		g->pages = 1;
	} else {
		run_group_new(b, i, slot);
	}
}

/*
 * Plans the pages [i, end) whose locations the cache has; the others go on one by one. Returns
 * their number.
 */
static uint32_t run_plan(struct pc_batch *b, uint32_t i, uint32_t end)
{
	struct pc_channel *ch = b->channel;
	uint32_t here = ch->session->ref, others = 0, slot = 0, way;
	/* alike: the holder to which `slot` belongs, another host on the map; 0: none yet */
	uint32_t holder = 0;
	struct cache_set *cache = ch->cache;
	bool alike = b->alike;

	for (; i < end; i++) {
		struct page_work *p = &b->work[i];
		uint32_t set = p->cached; /* until here the set's number, see key.c */
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

/* Most pages have a location in the cache and are READ at once. */
void get_begin(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t others = 0;

	b->cache_changes = ch->cache_changes;
	for (uint32_t i = 0; i < b->count; i += RUN_PLAN_MAX) {
		uint32_t end = i + RUN_PLAN_MAX < b->count ? i + RUN_PLAN_MAX : b->count;

		others += run_plan(b, i, end);
		run_add_end(b);
	}
	ch->counts.lookups_cached += b->count - others;
}

/* Posts waiting runs, plans the pages of PAGE_RUN into runs and posts those. */
static void run_step(struct pc_batch *b)
{
	struct run_way way = {.ref = 0};
	uint32_t i, pages = 0;

	run_post_all(b, &way);
	while ((i = page_unqueue(b, PAGE_RUN)) != CLIENT_NONE) {
		const struct page_work *p = &b->work[i];

		run_add(b, i, run_slot(p->at.ref, p->bytes), run_tries(p), false);
		if (++pages % RUN_PLAN_MAX == 0)
			run_add_end(b);
	}
	run_add_end(b);
}

void get_step(struct pc_batch *b)
{
	if (page_waits(b, PAGE_RUN) || b->runs.head != CLIENT_NONE)
		run_step(b);
	if (page_waits(b, PAGE_FETCH))
		fetch_step(b);
}
