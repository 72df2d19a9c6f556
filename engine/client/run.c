/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads pages of other hosts in runs: one op, one request and one answer for up to RUN_PAGES_MAX
 * pages. A step plans up to RUN_PLAN_MAX pages together: pages with the same holder, pool, length,
 * destination region and segments are a group, and a group becomes runs of about
 * ceil(pages of all groups / usable rails) pages each. A run whose rail has no room waits as it is,
 * in the order of planning. Its rail is chosen when it is posted, and then a run may be split: what
 * fits one rail is posted, the rest is a run of its own.
 *
 * An answer of hits alone never comes here: reap.c ends those pages. The pages of a run are linked
 * by page_work.next; the k-th of them is bit k of the answer's masks. Pages that were not hits go
 * on one by one, each when its run has been answered, so there are never two READs of one page.
 * Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/directory.h"
#include "engine/client/notice.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/run.h"
#include "engine/client/stripe.h"
#include "engine/client/submit.h"
#include "engine/client/verify.h"

static_assert(SLICE_BYTES <= RUN_BYTES, "a run holds at least one page");
static_assert(RUN_GROUPS_MAX == 32, "a bit each");

/* ---- queue ----------------------------------------------------------------------------------- */

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

uint32_t run_unqueue(struct pc_batch *b)
{
	uint32_t head = b->runs.head;

	if (head != CLIENT_NONE) {
		b->runs.head = b->work[head].run_next;
		b->channel->waits[1]--;
	}
	return head;
}

/* ---- posting --------------------------------------------------------------------------------- */

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
								    sizeof(struct op_slot), index));
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
	if (unlikely(ch->rail[rail].unpublished))
		submit_publish(ch, rail); /* the lines of a run are the first unpublished ones */
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

/* ---- planning -------------------------------------------------------------------------------- */

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

void run_add_end(struct pc_batch *b)
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

void run_group_new(struct pc_batch *b, uint32_t i, uint32_t slot)
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

void run_step(struct pc_batch *b)
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

/* ---- answers -------------------------------------------------------------------------------- */

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
	page_not_hit(r->batch, i);
}

/* True if the page of a run, a hit, is to be compared with its CRC. */
static inline bool run_verify_due(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;

	/* not verify_due(): a page that is VERIFY_DUE already is in no run */
	if (likely(!ch->verify_left || --ch->verify_left))
		return false;
	verify_choose(ch, &b->work[i]);
	page_verify(b, i);
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
