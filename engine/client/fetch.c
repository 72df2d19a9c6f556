/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads pages of other hosts that fit no run (run.c). A page is one op, either straight into
 * registered memory or through staging. A large page that would leave rails idle is read over
 * several rails in slices. The rail checks the page head of each op, and answers when its NIC no
 * longer writes the destination. A page is a hit when all its ops are hits; it fails only after all
 * its ops were answered. Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/copy.h"
#include "engine/client/directory.h"
#include "engine/client/fetch.h"
#include "engine/client/memory.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/staging.h"
#include "engine/client/stripe.h"
#include "engine/client/submit.h"
#include "engine/client/verify.h"

/*
 * A page larger than the staging region goes through memory of its own, one page at a time. It is
 * registered once and kept.
 */
static uint32_t take_large(struct pc_channel *ch, uint64_t deadline_ns)
{
	struct staging *s = &ch->staging;

	if (s->large_busy)
		return CLIENT_NONE;
	if (!s->large && memory_alloc(ch->pc, PAGE_BYTES_MAX, true, deadline_ns, &s->large))
		return CLIENT_NONE;
	memory_refresh(ch);
	s->large_busy = true;
	return STAGING_LARGE;
}

static uint32_t take_staging(
	struct pc_channel *ch, uint32_t bytes, uint64_t deadline_ns, struct op_segment *ret_segment)
{
	uint32_t block;

	if (bytes <= STAGING_PAGE_MAX) {
		block = staging_take(&ch->staging, bytes);
		if (block != CLIENT_NONE)
			*ret_segment = (struct op_segment){.region = ch->staging.region,
				.length = bytes,
				.offset = staging_offset(&ch->staging, block)};
	} else {
		const struct memory_view *m;

		block = take_large(ch, deadline_ns);
		if (block == CLIENT_NONE)
			return CLIENT_NONE;
		m = memory_find(ch, ch->staging.large, bytes);
		if (!m) {
			ch->staging.large_busy = false;
			return CLIENT_NONE;
		}
		*ret_segment = (struct op_segment){.region = m->region, .length = bytes};
	}
	return block;
}

/*
 * Translates the page's segments to (region, offset). False: a segment is not, or no longer,
 * registered.
 */
static bool resolve(struct pc_channel *ch, const struct pc_page *page, struct op_segment *ret)
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

/* ---- pieces ---------------------------------------------------------------------------------- */

/*
 * Writes to `ret` the part of the op's segments that holds bytes [at, at + bytes) of the
 * destination.
 */
static uint16_t cut(
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
static bool rails_idle(const struct pc_batch *b)
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

/* Bytes of the page that its next op reads: one slice, or all of the rest. */
static uint32_t piece_bytes(const struct pc_batch *b, const struct page_work *p)
{
	uint32_t left = p->bytes - p->slices * SLICE_BYTES;

	if (p->phase != PAGE_FETCH || left <= SLICE_BYTES || !rails_idle(b))
		return left;
	return SLICE_BYTES;
}

/* The bytes of a page that one op reads. */
struct fetch_piece {
	const struct op_segment *segments;
	uint32_t bytes;
	uint32_t hold; /* number of the staging block; CLIENT_NONE: none */
	uint16_t count;
};

static void submit_page(struct pc_batch *b, uint32_t i, const struct map_member *m, uint32_t rail,
	const struct fetch_piece *piece)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t index = request_take(ch, REQUEST_FETCH, b, i);
	struct client_request *r = &ch->request[index];
	struct op op;

	r->rail = (uint8_t)rail;
	r->hold = piece->hold;
	r->bytes = piece->bytes;
	p->peer = m->peer;
	p->pieces_out++;
	stripe_give(ch, rail, piece->bytes);
	op = (struct op){.cookie = request_cookie(ch, index),
		.kind = OP_PAGE,
		.slice = (uint8_t)p->slices,
		.segments = piece->count,
		.peer = m->peer,
		.region = (uint8_t)(REGION_POOL_0 + place_rail(p->at.place)),
		.offset = place_offset(p->at.place),
		.peer_ref = p->at.ref,
		.length = piece->bytes,
		.page_bytes = p->bytes,
		.key = p->key,
		.generation = p->at.generation,
		/* If the page has another location to try, the attempt with this one gets half
		 * of the time. */
		.deadline_ns = page_attempt_ns(b, p->others ? 2 : 1)};
	submit_op(ch, rail, &op, piece->segments);
	if (p->slices * SLICE_BYTES + piece->bytes < p->bytes) {
		p->slices++;
		p->request = index;
		page_requeue(b, i);
		ch->moves++;
	} else {
		page_in_flight(b, i, index);
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

static void fetch_end(struct pc_batch *b, uint32_t i, uint32_t hold);

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
			fetch_end(b, i, CLIENT_NONE);
		return true;
	}
	if (!map_by_ref(ch, p->at.ref)) { /* the holder left the map after the look-up */
		p->flags |= PAGE_SAW_FAILURE;
		if (!fetch_stop(b, i)) {
			p->slices = 0;
			page_wrong(b, i);
		}
		return true;
	}
	if (p->phase == PAGE_STAGE || resolve(ch, &b->pages[i], ret_segments))
		return false;
	if (fetch_stop(b, i))
		return true;
	p->slices = 0;
	p->flags &= (uint8_t)~PAGE_REGISTERED;
	page_queue(b, i, PAGE_STAGE);
	return true;
}

static bool no_room(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;

	ch->no_room = true;
	page_requeue(b, i);
	return false;
}

/* Posts the next op of any kind of page. False: no room; the page is again first in its queue. */
static bool fetch(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	struct op_segment segment[SEGMENTS_MAX], cut_off[SEGMENTS_MAX];
	struct fetch_piece piece = {.segments = segment,
		.hold = CLIENT_NONE,
		.count = (uint16_t)b->pages[i].segment_count};
	const struct map_member *m;
	uint32_t rail;

	if (fetch_other(b, i, segment))
		return true;
	if (p->phase == PAGE_STAGE)
		piece.count = 1;
	piece.bytes = piece_bytes(b, p);
	if (piece.bytes < p->bytes) {
		piece.count = cut(segment, p->slices * SLICE_BYTES, piece.bytes, cut_off);
		piece.segments = cut_off;
	}
	m = map_by_ref(ch, p->at.ref);
	rail = stripe_page(ch,
		&(struct stripe){.peer = m->peer,
			.tried = p->rails_tried,
			.slots = op_slots(piece.count),
			.bytes = piece.bytes,
			.least = piece.bytes},
		p->at.place);
	if (rail == CLIENT_NONE || ch->request_free == CLIENT_NONE)
		return no_room(b, i);
	if (p->phase == PAGE_STAGE) {
		piece.hold = take_staging(ch, p->bytes, b->deadline_ns, segment);
		if (piece.hold == CLIENT_NONE) {
			page_requeue(b, i);
			return false;
		}
	}
	submit_page(b, i, m, rail, &piece);
	return true;
}

void fetch_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	static const enum page_phase queue[] = {PAGE_FETCH, PAGE_STAGE};
	uint32_t i;

	for (unsigned q = 0; q < 2; q++)
		while (!ch->broken && !ch->no_room &&
			(i = page_unqueue(b, queue[q])) != CLIENT_NONE)
			if (!fetch(b, i))
				break;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void fetch_hit(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;

	if (unlikely(verify_due(ch, &b->work[i])))
		page_verify(b, i);
	else
		page_hit(b, i);
}

static void hit(struct pc_batch *b, uint32_t i, uint32_t hold)
{
	struct pc_channel *ch = b->channel;
	const struct pc_page *page = &b->pages[i];

	if (hold != CLIENT_NONE) {
		const unsigned char *from =
			hold == STAGING_LARGE ? ch->staging.large : staging_at(&ch->staging, hold);

		copy_scatter(page->segments, page->segment_count, from);
		/* the caller may report the page to another core, which then reads the
		 * destination */
		shm_fence_stream();
		ch->counts.bytes_staged += b->work[i].bytes;
	}
	fetch_hit(b, i);
}

/* Every op of the page was answered: the page is a hit or goes on to its next attempt. */
static void fetch_end(struct pc_batch *b, uint32_t i, uint32_t hold)
{
	b->work[i].slices = 0;
	if (likely(b->work[i].piece_status == OP_HIT))
		hit(b, i, hold);
	else
		page_not_hit(b, i);
}

void fetch_answer(const struct client_request *r, uint32_t status)
{
	struct page_work *p = &r->batch->work[r->page];

	p->pieces_out--;
	if (status == OP_NIC_ERROR || status == OP_PEER_DOWN)
		p->rails_tried |= (uint16_t)(1u << r->rail);
	if (p->piece_status == OP_HIT)
		p->piece_status = (uint8_t)status;
	/* A page that is still in its queue has slices to post and ends after those. */
	if (!p->pieces_out && p->phase == PAGE_IN_FLIGHT)
		fetch_end(r->batch, r->page, r->hold);
}
