/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads pages of other hosts in runs: one op, one request and one answer for up to RUN_PAGES_MAX
 * pages. A step plans up to RUN_PLAN_MAX pages together: pages with the same holder, pool, length,
 * destination region and segments are a group, and a group becomes runs of about
 * ceil(pages of all groups / usable rails) pages each. A run whose rail has no room waits as it is,
 * in the order of planning. Its rail is chosen when it is posted, and then a run may be split: what
 * fits one rail is posted, the rest is a run of its own.
 *
 * The pages of a run are linked by page_work.next; the k-th of them is bit k of the answer's masks.
 * Pages that were not hits go on one by one, each when its run has been answered, so there are
 * never two READs of one page. Channel thread.
 */
#include "engine/client/client.h"

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

/* The holder of the run's pages left the map after the look-up: each page goes on by itself. */
static void run_lost(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns)
{
	for (uint32_t left = b->work[i].run_pages, next; left; left--, i = next) {
		next = b->work[i].next;
		b->work[i].flags |= PAGE_SAW_FAILURE;
		page_wrong(ch, b, i, now_ns);
	}
}

/*
 * Chooses a rail for the run, or for its first half, quarter and so on. Returns the rail;
 * CLIENT_NONE: no rail has room for a single page. *ret_pages: number of pages that fit.
 */
static uint32_t run_rail(struct pc_channel *ch, const struct page_work *p, uint16_t peer,
	uint64_t now_ns, uint32_t *ret_pages)
{
	for (uint32_t n = p->run_pages; n; n /= 2) {
		uint32_t rail = stripe_page(ch,
			&(struct stripe){.peer = peer,
				.tried = p->rails_tried,
				.slots = run_lines(OP_RUN, n),
				.bytes = n * p->bytes,
				.least = p->bytes},
			p->at.place, now_ns);

		*ret_pages = n;
		if (rail != CLIENT_NONE)
			return rail;
	}
	return CLIENT_NONE;
}

/*
 * Writes the entries of a run's pages, the first one into the second half of line `at` of the op
 * ring. Returns the first page behind them.
 */
static inline uint32_t run_entries(struct pc_batch *b, uint32_t i, uint32_t pages, uint32_t request,
	struct ring_producer *ops, uint32_t at, uint16_t peer)
{
	struct run_entry *line = ring_slot_new(ops, at);

	for (uint32_t k = 0; k < pages; k++) {
		struct page_work *p = &b->work[i];
		struct run_entry *e;

		if (!run_entry_half(k))
			line = ring_slot_new(ops, at + run_entry_line(k));
		e = &line[run_entry_half(k)];
		e->unit = place_unit(p->at.place);
		e->generation = p->at.generation;
		e->to = p->to; /* the region above the offset is the ring's part, or ignored */
		e->key = p->key;
		p->peer = peer;
		p->pieces_out = 1;
		p->phase = PAGE_IN_FLIGHT;
		p->request = request;
		i = p->next;
	}
	return i;
}

/* Posts the first `pages` pages of a run to a rail with room. What remains is queued as a run. */
static void run_post(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t pages,
	uint32_t rail, const struct map_member *m, uint64_t now_ns)
{
	const struct page_work *p = &b->work[i];
	uint32_t index = request_take(ch, REQUEST_RUN, b, i), rest;
	struct request *r = &ch->request[index];
	struct ring_producer *ops = &ch->rail[rail].ops;
	uint32_t at = ch->rail[rail].unpublished;
	struct run run = {.cookie = run_cookie(ch, index),
		.peer_ref = p->at.ref,
		.kind = OP_RUN,
		.pages = (uint8_t)pages,
		.peer = m->peer,
		.region = (uint8_t)(REGION_POOL_0 + place_rail(p->at.place)),
		.segments = (uint16_t)b->pages[i].segment_count,
		.to_region = (uint16_t)(p->to >> OP_TO_BITS),
		.page_bytes = p->bytes,
		.stride_or_to = page_stride(&b->pages[i]),
		/* If the pages have other locations to try, the attempt with these gets half of
		 * the time. */
		.deadline_ns = now_ns + batch_share_ns(b, now_ns, p->others ? 2 : 1)};

	r->rail = (uint8_t)rail;
	r->pages = (uint8_t)pages;
	r->bytes = pages * p->bytes;
	stripe_give(ch, rail, r->bytes, now_ns);
	run_encode(&run, ring_slot_new(ops, at));
	rest = run_entries(b, i, pages, index, ops, at, m->peer);
	if (unlikely(pages < p->run_pages)) {
		b->work[rest].run_pages = (uint8_t)(p->run_pages - pages);
		run_requeue(b, rest);
	}
	submit_run(ch, rail, &run, r->bytes);
	ch->moves++;
}

/* Posts a run, or a part of it. False: no rail has room, and nothing has changed. */
static bool run_submit(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns)
{
	const struct page_work *p = &b->work[i];
	const struct map_member *m = map_by_ref(ch, p->at.ref);
	uint32_t rail, pages;

	if (unlikely(!m)) {
		run_lost(ch, b, i, now_ns);
		return true;
	}
	rail = run_rail(ch, p, m->peer, now_ns, &pages);
	if (unlikely(rail == CLIENT_NONE || ch->request_free == CLIENT_NONE)) {
		ch->no_room = true;
		return false;
	}
	run_post(ch, b, i, pages, rail, m, now_ns);
	return true;
}

/* Posts runs in the order of planning, until no rail has room. */
static void run_post_all(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns)
{
	uint32_t i;

	while (!ch->broken && !ch->no_room && (i = run_unqueue(b)) != CLIENT_NONE)
		if (!run_submit(ch, b, i, now_ns))
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
	uint32_t head = g->head, n = g->pages;

	if (unlikely(g->parts > 1))
		n = (n + g->parts - 1) / g->parts;
	b->work[head].run_pages = (uint8_t)n;
	g->pages -= n;
	g->parts--;
	if (unlikely(g->parts))
		while (n--)
			g->head = b->work[g->head].next;
	return head;
}

/* Makes the group's first run and posts it at once, unless it has to wait for room. */
static void run_first(struct pc_channel *ch, struct pc_batch *b, struct run_group *g,
	uint32_t share, bool wait, uint64_t now_ns)
{
	uint32_t i;

	g->parts = run_parts(g->pages, share, b->work[g->head].bytes);
	i = run_cut(b, g);
	if (unlikely(wait || ch->no_room || ch->broken) || !run_submit(ch, b, i, now_ns))
		run_queue(b, i);
}

/* Queues the group's other runs, which are posted after the first ones of all groups. */
static void run_others(struct pc_batch *b, struct run_group *g)
{
	while (g->pages)
		run_queue(b, run_cut(b, g));
}

/* Pages of a run if all rails are to carry the same number of the pages in the groups. */
static uint32_t run_share(struct pc_channel *ch, uint64_t now_ns)
{
	const struct map_member *m =
		map_by_ref(ch, ch->run_group[__builtin_ctz(ch->run_grouped)].ref);
	uint32_t rails = stripe_rails(ch, m ? m->peer : 0, now_ns), pages = 0;

	for (uint32_t left = ch->run_grouped; left; left &= left - 1)
		pages += ch->run_group[__builtin_ctz(left)].pages;
	return (pages + rails - 1) / rails;
}

void run_add_end(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns)
{
	uint32_t groups = ch->run_grouped, share;
	bool wait = b->runs.head != CLIENT_NONE;

	if (!groups)
		return;
	share = run_share(ch, now_ns);
	for (uint32_t left = groups; left; left &= left - 1)
		run_first(ch, b, &ch->run_group[__builtin_ctz(left)], share, wait, now_ns);
	for (uint32_t left = groups; left; left &= left - 1)
		run_others(b, &ch->run_group[__builtin_ctz(left)]);
	ch->run_grouped = 0;
	run_post_all(ch, b, now_ns);
}

void run_group_new(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t slot, uint64_t now_ns)
{
	const struct page_work *p = &b->work[i];
	struct run_group *g = &ch->run_group[slot];

	if (g->pages)
		run_add_end(ch, b, now_ns);
	ch->run_grouped |= 1u << slot;
	*g = (struct run_group){.to = p->to,
		.stride = page_stride(&b->pages[i]),
		.ref = p->at.ref,
		.bytes = p->bytes,
		.segments = b->pages[i].segment_count,
		.tries = run_tries(p),
		.head = i,
		.tail = i,
		.pages = 1};
}

void run_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns)
{
	uint32_t i, pages = 0;

	run_post_all(ch, b, now_ns);
	while ((i = page_unqueue(b, PAGE_RUN)) != CLIENT_NONE) {
		run_add(ch, b, i, run_tries(&b->work[i]), now_ns);
		if (++pages % RUN_PLAN_MAX == 0)
			run_add_end(ch, b, now_ns);
	}
	run_add_end(ch, b, now_ns);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* A page of a run that was no hit. `status`: what the answer says about it, OP_STALE included. */
static void run_not_hit(struct pc_channel *ch, const struct request *r, uint32_t i, uint32_t status,
	uint64_t now_ns)
{
	struct page_work *p = &r->batch->work[i];

	p->pieces_out = 0;
	if (status == OP_NIC_ERROR || status == OP_PEER_DOWN)
		p->rails_tried |= (uint16_t)(1u << r->rail);
	/* One invalid place refuses a whole run, so the pages of a refused run are read one by one:
	 * the op with the invalid place is then refused alone. */
	if (status == OP_INVALID && r->pages > 1) {
		page_queue(r->batch, i, PAGE_FETCH);
		return;
	}
	p->piece_status = (uint8_t)status;
	fetch_not_hit(ch, r->batch, i, now_ns);
}

/* True if the page of a run, a hit, is to be compared with its CRC. */
static inline bool run_verify_due(struct pc_channel *ch, uint32_t i, struct pc_batch *b)
{
	/* not verify_due(): a page that is VERIFY_DUE already is in no run */
	if (likely(!ch->verify_left || --ch->verify_left))
		return false;
	verify_choose(ch, &b->work[i]);
	verify_begin(b, i);
	return true;
}

void run_answer(struct pc_channel *ch, const struct request *r, const struct run_done *done,
	uint32_t status, uint64_t now_ns)
{
	struct pc_batch *b = r->batch;
	uint32_t i = r->page, hit = done->hit & ~done->stale, stale = done->stale, hits = 0, next;
	uint32_t now_ms = (uint32_t)(now_ns / 1000000), pages = r->pages;
	uint16_t peer = b->work[i].peer;
	enum pc_result *results = b->results;

	for (uint32_t left = pages; left; left--, i = next, hit >>= 1, stale >>= 1) {
		struct page_work *p = &b->work[i];

		next = p->next;
		if (unlikely(!(hit & 1))) {
			run_not_hit(ch, r, i, stale & 1 ? OP_STALE : status, now_ns);
			continue;
		}
		p->pieces_out = 0;
		if (unlikely(run_verify_due(ch, i, b)))
			continue;
		p->phase = PAGE_DONE;
		results[i] = PC_HIT;
		notice_touch(ch, p, now_ms);
		hits++;
	}
	if (likely(hits)) {
		b->left -= hits;
		ch->moves += hits;
		ch->counts.hits_remote += hits;
		ch->counts.bytes_read +=
			likely(hits == pages) ? r->bytes : r->bytes / r->pages * hits;
		ch->peer_rest_until_ns[peer] = 0;
	}
}
