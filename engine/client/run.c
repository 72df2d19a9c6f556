/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads pages of other hosts in runs: one op, one request and one answer for up to RUN_PAGES_MAX
 * pages. A step plans the pages that wait in PAGE_RUN once: pages with the same holder, pool,
 * length, destination region and segments become runs of ceil(pages / usable rails) pages. A run
 * whose rail has no room waits as it is, in the order of planning. Its rail is chosen when it is
 * posted, and then a run may be split: what fits one rail is posted, the rest is a run of its own.
 *
 * The pages of a run are linked by page_work.next; the k-th of them is bit k of the answer's masks.
 * Pages that were not hits go on one by one, each when its run has been answered, so there are
 * never two READs of one page. Channel thread.
 */
#include "engine/client/client.h"

static_assert(SLICE_BYTES <= RUN_BYTES, "a run holds at least one page");
static_assert(RUN_OPEN_MAX == 32, "a bit each");

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

/* The run cannot be READ as it is: each page goes on by itself. `lost`: its holder is gone. */
static void run_dissolve(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, bool lost, uint64_t now_ns)
{
	for (uint32_t left = b->work[i].run_pages, next; left; left--, i = next) {
		next = b->work[i].next;
		if (lost) { /* the holder left the map after the look-up */
			b->work[i].flags |= PAGE_SAW_FAILURE;
			page_wrong(ch, b, i, now_ns);
		} else { /* the destination is no longer registered */
			b->work[i].flags &= (uint8_t)~PAGE_REGISTERED;
			page_queue(b, i, PAGE_STAGE);
		}
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

/* Writes the entries of a run's pages. Returns the first page behind them. */
static uint32_t run_entries(struct pc_batch *b, uint32_t i, uint32_t pages, uint32_t request,
	const struct memory_view *memory, uint16_t peer)
{
	const struct request *r = &b->channel->request[request];
	struct channel_rail *rail = &b->channel->rail[r->rail];

	for (uint32_t k = 0; k < pages; k++) {
		struct page_work *p = &b->work[i];

		*run_entry_new(&rail->ops, rail->unpublished, k) =
			(struct run_entry){.unit = place_unit(p->at.place),
				.generation = p->at.generation,
				.to = (uintptr_t)b->pages[i].segments->base - memory->base,
				.key = p->key};
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
	uint32_t rail, const struct memory_view *memory, uint64_t now_ns)
{
	const struct page_work *p = &b->work[i];
	const struct map_member *m = map_by_ref(ch, p->at.ref);
	uint32_t index = request_take(ch, REQUEST_RUN, b, i), rest;
	struct request *r = &ch->request[index];
	struct run run = {.cookie = run_cookie(ch, index),
		.peer_ref = p->at.ref,
		.kind = OP_RUN,
		.pages = (uint8_t)pages,
		.peer = (uint8_t)m->peer,
		.region = (uint8_t)(REGION_POOL_0 + place_rail(p->at.place)),
		.segments = (uint16_t)b->pages[i].segment_count,
		.to_region = memory->region,
		.page_bytes = p->bytes,
		.stride_or_to = page_stride(&b->pages[i]),
		.deadline_ns = now_ns + batch_share_ns(b, now_ns, p->others ? 2 : 1)};

	r->rail = (uint8_t)rail;
	r->pages = (uint8_t)pages;
	r->bytes = pages * p->bytes;
	stripe_give(ch, rail, r->bytes, now_ns);
	run_encode(&run, ring_slot_new(&ch->rail[rail].ops, ch->rail[rail].unpublished));
	rest = run_entries(b, i, pages, index, memory, m->peer);
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
	const struct memory_view *memory =
		memory_find(ch, b->pages[i].segments->base, page_span(&b->pages[i]));
	uint32_t rail, pages;

	if (unlikely(!m || !memory)) {
		run_dissolve(ch, b, i, !m, now_ns);
		return true;
	}
	rail = run_rail(ch, p, m->peer, now_ns, &pages);
	if (rail == CLIENT_NONE || ch->request_free == CLIENT_NONE) {
		ch->no_room = true;
		return false;
	}
	run_post(ch, b, i, pages, rail, memory, now_ns);
	return true;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* The run is complete: posts it at once, unless it has to wait for room. */
static void run_close(
	struct pc_channel *ch, struct pc_batch *b, const struct run_open *o, uint64_t now_ns)
{
	b->work[o->head].run_pages = (uint8_t)o->pages;
	if (ch->no_room || b->runs.head != CLIENT_NONE || !run_submit(ch, b, o->head, now_ns))
		run_queue(b, o->head);
}

/* Pages of a run, at most: the rails share the waiting pages of the batch. */
static uint32_t run_pages_max(struct pc_channel *ch, const struct pc_batch *b, uint64_t now_ns)
{
	const struct map_member *m = map_by_ref(ch, b->work[b->queue[PAGE_RUN].head].at.ref);
	uint32_t rails = stripe_rails(ch, m ? m->peer : 0, now_ns), pages = 0, most;

	for (uint32_t i = b->queue[PAGE_RUN].head; i != CLIENT_NONE; i = b->work[i].next)
		pages++;
	most = (pages + rails - 1) / rails;
	return most < RUN_PAGES_MAX ? most : RUN_PAGES_MAX;
}

/* Adds a page to the open run that it belongs to, or opens one. */
static void run_add(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t most, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	const struct pc_page *page = &b->pages[i];
	const struct memory_view *memory = memory_find(ch, page->segments->base, page_span(page));
	uint32_t slot = (place_rail(p->at.place) + (p->at.ref * 0x9e3779b1u >> 27)) % RUN_OPEN_MAX;
	struct run_open *o = &ch->run_open[slot];
	uint64_t what[3] = {(uint64_t)p->at.ref << 32 | p->bytes,
		(uint64_t)p->rails_tried << 32 | (uint32_t)page->segment_count << 16 |
			(uint64_t)place_rail(p->at.place) << 48 | (uint64_t)!p->others << 56 |
			(memory ? memory->region : 0),
		page_stride(page)};

	if (ch->run_opened >> slot & 1) {
		if (what[0] == o->what[0] && what[1] == o->what[1] && what[2] == o->what[2]) {
			b->work[o->tail].next = i;
			o->tail = i;
			if (++o->pages < o->most)
				return;
			ch->run_opened &= ~(1u << slot);
			run_close(ch, b, o, now_ns);
			return;
		}
		run_close(ch, b, o, now_ns);
	}
	*o = (struct run_open){.what = {what[0], what[1], what[2]},
		.head = i,
		.tail = i,
		.pages = 1,
		.most = most * p->bytes <= RUN_BYTES ? most : RUN_BYTES / p->bytes};
	ch->run_opened |= 1u << slot;
	if (o->most > 1)
		return;
	ch->run_opened &= ~(1u << slot);
	run_close(ch, b, o, now_ns);
}

/* Posts runs in the order of planning, until no rail has room. */
static void run_post_all(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns)
{
	uint32_t i;

	while (!ch->broken && !ch->no_room && (i = run_unqueue(b)) != CLIENT_NONE)
		if (!run_submit(ch, b, i, now_ns))
			run_requeue(b, i);
}

void run_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns)
{
	uint32_t i, most;

	run_post_all(ch, b, now_ns);
	if (!page_waits(b, PAGE_RUN))
		return;
	most = run_pages_max(ch, b, now_ns);
	ch->run_opened = 0;
	while ((i = page_unqueue(b, PAGE_RUN)) != CLIENT_NONE)
		run_add(ch, b, i, most, now_ns);
	for (; ch->run_opened; ch->run_opened &= ch->run_opened - 1)
		run_close(ch, b, &ch->run_open[__builtin_ctz(ch->run_opened)], now_ns);
	run_post_all(ch, b, now_ns);
}

/* ---- answers --------------------------------------------------------------------------------- */

/*
 * One invalid place refuses a whole run (OP_INVALID), so the pages of a refused run are read one by
 * one: the op with the invalid place is then refused alone.
 */
void run_answer(struct pc_channel *ch, const struct request *r, const struct run_done *done,
	uint32_t status, uint64_t now_ns)
{
	struct pc_batch *b = r->batch;
	uint32_t i = r->page, hit = done->hit & ~done->stale, next;

	for (uint32_t k = 0; k < r->pages; k++, i = next) {
		struct page_work *p = &b->work[i];

		next = p->next;
		p->pieces_out = 0;
		if (likely(hit >> k & 1)) {
			fetch_hit(ch, b, i, now_ns);
			continue;
		}
		if (status == OP_NIC_ERROR || status == OP_PEER_DOWN)
			p->rails_tried |= (uint16_t)(1u << r->rail);
		if (done->stale >> k & 1) {
			p->piece_status = OP_STALE;
		} else if (status == OP_INVALID && r->pages > 1) {
			page_queue(b, i, PAGE_FETCH);
			continue;
		} else {
			p->piece_status = (uint8_t)status;
		}
		fetch_not_hit(ch, b, i, now_ns);
	}
}
