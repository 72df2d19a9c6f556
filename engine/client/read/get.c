/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs pages of other hosts. Channel thread.
 *
 * Nearly all pages are read in runs: one op, one request and one answer for up to RUN_PAGES_MAX
 * pages. A step plans up to RUN_PLAN_MAX pages together: pages with the same holder, pool, length,
 * destination region and segments are a group, and a group becomes runs of about
 * ceil(pages of all groups / usable rails) pages each. A run whose rail has no room waits as it is,
 * in the order of planning. Its rail is chosen when it is posted, and then a run may be split: what
 * fits one rail is posted, the rest is a run of its own.
 *
 * Most answers of hits alone end in rail.c (hits_plain()). The pages of a run are linked
 * by page_work.next; the k-th of them is bit k of the answer's masks. Pages that were not hits go
 * on one by one, each when its run has been answered, so there are never two READs of one page.
 *
 * A page that fits no run is fetched: it is one op, either straight into registered memory or
 * through staging. A large page that would leave rails idle is read over several rails in slices.
 * The rail checks the page head of each op, and answers when its NIC no longer writes the
 * destination. A page is a hit when all its ops are hits; it fails only after all its ops were
 * answered.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/copy.h"
#include "engine/client/lookup/directory.h"
#include "engine/client/attach/memory.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/rail.h"
#include "engine/client/rings/request.h"
#include "engine/client/attach/session.h"
#include "engine/client/rings/staging.h"
#include "engine/client/steps.h"
#include "engine/client/rings/submit.h"

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
	h->cookie = run_cookie(r->generation, index);
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

/* ---- fetching a page by itself --------------------------------------------------------------- */

/*
 * Translates the page's segments to (region, offset). False: a segment is not, or no longer,
 * registered.
 */
static bool fetch_resolve(struct pc_channel *ch, const struct pc_page *page, struct op_segment *ret)
{
	for (unsigned s = 0; s < page->segment_count; s++) {
		const struct pc_segment *segment = &page->segments[s];
		const struct memory_view *m = memory_find(ch, segment->base, segment->bytes);

		if (!m)
			return false;
		ret[s] = (struct op_segment){.region = m->region,
			.length = (uint32_t)segment->bytes,
			.offset = (uintptr_t)segment->base - m->base};
	}
	return true;
}

/*
 * Writes to `ret` the part of the op's segments that holds bytes [at, at + bytes) of the
 * destination.
 */
static uint16_t fetch_cut(
	const struct op_segment *all, uint32_t at, uint32_t bytes, struct op_segment *ret)
{
	uint16_t count = 0;

	for (; bytes; all++) {
		uint32_t n;

		if (at >= all->length) {
			at -= all->length;
			continue;
		}
		n = all->length - at < bytes ? all->length - at : bytes;
		ret[count++] = (struct op_segment){
			.region = all->region, .length = n, .offset = all->offset + at};
		bytes -= n;
		at = 0;
	}
	return count;
}

/*
 * True if a rail would be idle when this page goes over one rail. Without slices, many pages of
 * this batch or of the next ones keep the rails busy.
 */
static bool fetch_rails_idle(const struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t pages = 1;

	if ((b->next && b->next->left) || b->runs.head != CLIENT_NONE)
		return false;
	for (uint32_t i = b->queue[PAGE_FETCH].head; i != CLIENT_NONE && pages < ch->rails;
		i = b->work[i].next)
		pages++;
	return pages < ch->rails;
}

/* Bytes of the page that its next op reads: one slice, or all of the rest that staging takes. */
static uint32_t fetch_piece_bytes(const struct pc_batch *b, const struct page_work *p)
{
	uint32_t left = p->bytes - p->slices * SLICE_BYTES;

	if (left > SLICE_BYTES && fetch_rails_idle(b))
		return SLICE_BYTES;
	return p->flags & PAGE_REGISTERED || left < STAGING_PIECE_BYTES ? left
									: STAGING_PIECE_BYTES;
}

/* The bytes of a page that one op reads. */
struct fetch_piece {
	const struct op_segment *segments;
	uint32_t bytes;
	uint32_t hold; /* number of the staging block; CLIENT_NONE: none */
	uint16_t count;
};

/* Writes the first line of the OP_PAGE that reads the piece: its header and the entry behind it. */
static void fetch_line(const struct pc_batch *b, const struct page_work *p,
	const struct fetch_piece *piece, uint32_t cookie, struct run_header *ret)
{
	struct run_entry *entry = (struct run_entry *)(void *)ret + 1;
	struct run run = {.cookie = cookie,
		.peer_ref = p->at.ref,
		.kind = OP_PAGE,
		.segments = piece->count,
		.peer = p->peer,
		.to_region = piece->segments[0].region,
		.region = (uint8_t)(REGION_POOL_0 + place_rail(p->at.place)),
		.slice = (uint8_t)p->slices,
		.page_bytes = p->bytes,
		.stride_or_to = piece->bytes,
		/* If the page has another location to try, the attempt with this one gets half
		 * of the time. */
		.deadline_ns = page_attempt_ns(b, p->others ? 2 : 1)};

	run_encode(&run, ret);
	*entry = (struct run_entry){.unit = place_unit(p->at.place),
		.generation = p->at.generation,
		.to = piece->segments[0].offset,
		.key = p->key};
}

static void fetch_submit(struct pc_batch *b, uint32_t i, const struct map_member *m, uint32_t rail,
	const struct fetch_piece *piece)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t index = request_take(ch, REQUEST_FETCH, b, i);
	struct client_request *r = &ch->request[index];
	struct run_header *header = (void *)ch->rail[rail].ops.first;

	r->rail = (uint8_t)rail;
	r->hold = piece->hold;
	r->slice = p->slices;
	r->bytes = piece->bytes;
	p->peer = m->peer;
	p->pieces_out++;
	stripe_give(ch, rail, piece->bytes);
	fetch_line(b, p, piece, run_cookie(r->generation, index), header);
	submit_page(ch, rail, header, piece->segments);
	if (p->slices * SLICE_BYTES + piece->bytes < p->bytes) {
		p->slices = (uint8_t)(p->slices + piece->bytes / SLICE_BYTES);
		page_requeue(b, i);
		ch->moves++;
	} else {
		page_in_flight(b, i);
	}
}

/*
 * Posts no further op for the page. If ops of it are in flight, the page waits for their answers.
 */
bool fetch_stop(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	if (!p->pieces_out)
		return false;
	if (p->piece_status == OP_HIT)
		p->piece_status = OP_TIMEOUT;
	p->phase = PAGE_IN_FLIGHT;
	return true;
}

static void fetch_end(struct pc_batch *b, uint32_t i);

/*
 * True if the page cannot be READ as it is: a slice failed, its holder died, or its destination is
 * no longer registered. Then it was moved to its next phase.
 */
static bool fetch_other(struct pc_batch *b, uint32_t i, struct op_segment *ret_segments)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	/* one slice of the page failed while the others waited for room */
	if (p->piece_status != OP_HIT) {
		if (!fetch_stop(b, i))
			fetch_end(b, i);
		return true;
	}
	if (!map_by_ref(ch, p->at.ref)) { /* the holder left the map after the look-up */
		p->flags |= PAGE_SAW_FAILURE;
		if (!fetch_stop(b, i)) {
			p->slices = 0;
			page_unreached(b, i);
		}
		return true;
	}
	if (!(p->flags & PAGE_REGISTERED) || fetch_resolve(ch, &b->pages[i], ret_segments))
		return false;
	if (fetch_stop(b, i))
		return true;
	p->slices = 0;
	p->flags &= (uint8_t)~PAGE_REGISTERED;
	page_queue(b, i, PAGE_FETCH);
	return true;
}

/* The page is again first in its queue. An answer makes room on a rail and in staging. */
static void fetch_no_room(struct pc_batch *b, uint32_t i)
{
	b->channel->no_room = true;
	page_requeue(b, i);
}

/* Posts the next op of the page, or moves the page on if it cannot be READ as it is. */
static void fetch_page(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	struct op_segment segment[SEGMENTS_MAX], cut_off[SEGMENTS_MAX];
	struct fetch_piece piece = {.segments = segment,
		.hold = CLIENT_NONE,
		.count = (uint16_t)b->pages[i].segment_count};
	const struct map_member *m;
	uint32_t rail;
	bool staged;

	if (fetch_other(b, i, segment))
		return;
	staged = !(p->flags & PAGE_REGISTERED);
	piece.bytes = fetch_piece_bytes(b, p);
	if (staged) {
		piece.count = 1;
	} else if (piece.bytes < p->bytes) {
		piece.count = fetch_cut(segment, p->slices * SLICE_BYTES, piece.bytes, cut_off);
		piece.segments = cut_off;
	}
	m = map_by_ref(ch, p->at.ref);
	rail = stripe_page(ch,
		&(struct stripe){.peer = m->peer,
			.tried = p->rails_tried,
			.slots = op_page_lines(piece.count),
			.bytes = piece.bytes,
			.least = piece.bytes},
		p->at.place);
	if (rail == CLIENT_NONE || ch->request_free == CLIENT_NONE) {
		fetch_no_room(b, i);
		return;
	}
	if (staged) {
		piece.hold = staging_take(&ch->staging, piece.bytes);
		if (piece.hold == CLIENT_NONE) {
			fetch_no_room(b, i);
			return;
		}
		segment[0] = (struct op_segment){.region = ch->staging.region,
			.length = piece.bytes,
			.offset = staging_offset(&ch->staging, piece.hold)};
	}
	fetch_submit(b, i, m, rail, &piece);
}

static void fetch_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while (!ch->broken && !ch->no_room && (i = page_unqueue(b, PAGE_FETCH)) != CLIENT_NONE)
		fetch_page(b, i);
}

void get_step(struct pc_batch *b)
{
	if (page_waits(b, PAGE_RUN) || b->runs.head != CLIENT_NONE)
		run_step(b);
	if (page_waits(b, PAGE_FETCH))
		fetch_step(b);
}

/* ---- what a READ has ended with -------------------------------------------------------------- */

/* The bytes of a page of another member that is VERIFY_DUE are here: READs its head. */
static void get_verify(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	p->verify = VERIFY_HEAD;
	p->rails_tried = 0;
	page_queue(b, i, PAGE_HEAD);
}

/* All READs of the page were answered, one of them with p->piece_status, which is no hit. */
static void get_not_hit(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t status = p->piece_status;

	p->piece_status = OP_HIT;
	switch (status) {
	case OP_CANCELLED: page_done(b, i, PC_GONE); return;
	/* this client's request was wrong, or the directory entry names an impossible place */
	case OP_INVALID:
		p->flags |= PAGE_SAW_REFUSAL;
		/* fall through */
	case OP_STALE:
	case OP_MISS:
		p->rails_tried = 0;
		page_queue(b, i, PAGE_HEAD);
		return;
	case OP_NIC_ERROR:
	case OP_PEER_DOWN:
		if (stripe_again(ch, p->peer, p->rails_tried)) {
			ch->counts.reissued++;
			page_queue(b, i, page_read_phase(p));
			return;
		}
		break;
	default: break;
	}
	ch->peer_rest_until_ns[p->peer] = ch->now_ns + PEER_REST_NS;
	page_unreached(b, i);
}

/* ---- answers of runs ------------------------------------------------------------------------- */

/* A page of a run that was no hit. `status`: what the answer says about it, OP_STALE included. */
static void run_not_hit(const struct client_request *r, uint32_t i, uint32_t status)
{
	struct page_work *p = &r->batch->work[i];

	if (status == OP_NIC_ERROR || status == OP_PEER_DOWN)
		p->rails_tried |= (uint16_t)(1u << r->rail);
	/* One invalid place refuses a whole run, so the pages of a refused run are read one by one:
	 * the op with the invalid place is then refused alone. */
	if (status == OP_INVALID && r->pages > 1) {
		page_queue(r->batch, i, PAGE_FETCH);
		return;
	}
	p->piece_status = (uint8_t)status;
	get_not_hit(r->batch, i);
}

/* True if the page of a run, a hit, is to be compared with its CRC. */
static inline bool run_verify_due(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;

	/* not verify_due(): a page that is VERIFY_DUE already is in no run */
	if (likely(!ch->verify_left || --ch->verify_left))
		return false;
	verify_choose(ch, &b->work[i]);
	get_verify(b, i);
	return true;
}

void run_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status)
{
	struct pc_batch *b = r->batch;
	uint32_t i = r->page, hit = done->hit & ~done->stale, stale = done->stale, hits = 0, next;
	uint32_t now_ms = channel_now_ms(ch);
	uint16_t peer = b->work[i].peer;

	for (uint32_t left = r->pages; left; left--, i = next, hit >>= 1, stale >>= 1) {
		struct page_work *p = &b->work[i];

		next = p->next;
		p->peer = peer;
		if (unlikely(!(hit & 1))) {
			run_not_hit(r, i, stale & 1 ? OP_STALE : status);
			continue;
		}
		if (unlikely(run_verify_due(b, i)))
			continue;
		notice_touch(ch, p, now_ms);
		p->phase = PAGE_DONE;
		b->results[i] = PC_HIT;
		hits++;
	}
	if (!hits)
		return;
	b->left -= hits;
	ch->moves += hits;
	ch->counts.hits_remote += hits;
	ch->counts.bytes_read += r->bytes / r->pages * hits;
	ch->peer_rest_until_ns[peer] = 0;
}

/* ---- answers of fetched pages ---------------------------------------------------------------- */

static void fetch_hit(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;

	if (unlikely(verify_due(ch, &b->work[i])))
		get_verify(b, i);
	else
		page_hit(b, i);
}

/* Copies what was READ into a staging block to its destination. */
static void fetch_copy(const struct client_request *r)
{
	copy_scatter(r->batch->pages[r->page].segments, (uint32_t)r->slice * SLICE_BYTES,
		staging_at(&r->batch->channel->staging, r->hold), r->bytes);
	/* the caller may report the page to another core, which then reads the destination */
	shm_fence_stream();
}

/* Every op of the page was answered: the page is a hit or goes on to its next attempt. */
static void fetch_end(struct pc_batch *b, uint32_t i)
{
	b->work[i].slices = 0;
	if (likely(b->work[i].piece_status == OP_HIT))
		fetch_hit(b, i);
	else
		get_not_hit(b, i);
}

void fetch_answer(const struct client_request *r, uint32_t status)
{
	struct page_work *p = &r->batch->work[r->page];

	if (status == OP_HIT && r->hold != CLIENT_NONE)
		fetch_copy(r);
	p->pieces_out--;
	if (status == OP_NIC_ERROR || status == OP_PEER_DOWN)
		p->rails_tried |= (uint16_t)(1u << r->rail);
	if (p->piece_status == OP_HIT)
		p->piece_status = (uint8_t)status;
	/* A page that is still in its queue has slices to post and ends after those. */
	if (!p->pieces_out && p->phase == PAGE_IN_FLIGHT)
		fetch_end(r->batch, r->page);
}
