/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs a page that fits no run by itself: one op, either straight into registered memory or
 * through staging. A page that would leave rails idle is read over several rails in slices, and one
 * that is longer than STAGING_PIECE_BYTES goes through staging in pieces. The rail checks the page
 * head of each op, and answers when its NIC no longer writes the destination. A page is a hit when
 * all its ops are hits; it fails only after all its ops were answered. Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/attach/memory.h"
#include "engine/client/constants.h"
#include "engine/client/copy.h"
#include "engine/client/device.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/batch.h"
#include "engine/client/peercache.h"
#include "engine/client/read/read.h"
#include "engine/client/rings/rings.h"
#include "engine/client/rings/staging.h"

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
	fetch_line(b, p, piece, request_cookie(ch, index), header);
	submit_page(ch, rail, header, piece->segments);
	if (p->slices * SLICE_BYTES + piece->bytes < p->bytes) {
		p->slices = (uint8_t)(p->slices + piece->bytes / SLICE_BYTES);
		page_requeue(b, i);
		ch->moves++;
	} else {
		page_in_flight(b, i);
	}
}

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

/* Takes a staging block for the piece. False: staging has no room. */
static bool fetch_stage(
	struct pc_channel *ch, struct fetch_piece *piece, struct op_segment *ret_segment)
{
	piece->hold = staging_take(&ch->staging, piece->bytes);
	if (piece->hold == CLIENT_NONE)
		return false;
	*ret_segment = (struct op_segment){.region = ch->staging.region,
		.length = piece->bytes,
		.offset = staging_offset(&ch->staging, piece->hold)};
	return true;
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
	} else if (piece.bytes < p->bytes || b->lengths) { /* a room may be longer than its page */
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
	if (rail == CLIENT_NONE || ch->request_free == CLIENT_NONE ||
		(staged && !fetch_stage(ch, &piece, segment)))
		fetch_no_room(b, i);
	else
		fetch_submit(b, i, m, rail, &piece);
}

void fetch_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while (!ch->broken && !ch->no_room && (i = page_unqueue(b, PAGE_FETCH)) != CLIENT_NONE)
		fetch_page(b, i);
}

/* ---- answers --------------------------------------------------------------------------------- */

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

/* Starts to copy what was READ into a staging block to GPU memory. False: the driver refused. */
static bool fetch_copy_begin(struct client_request *r)
{
	struct pc_channel *ch = r->batch->channel;

	r->kind = REQUEST_COPY;
	return device_scatter(ch->device, r->batch->pages[r->page].segments,
		(size_t)r->slice * SLICE_BYTES, staging_at(&ch->staging, r->hold), r->bytes,
		(uint32_t)(r - ch->request));
}

bool fetch_answer(struct client_request *r, uint32_t status)
{
	struct page_work *p = &r->batch->work[r->page];
	bool staged = r->kind == REQUEST_FETCH && r->hold != CLIENT_NONE;

	if (unlikely(r->batch->lengths && status == OP_STALE && !r->batch->device))
		p->landed = r->bytes == p->bytes;
	if (staged && unlikely(r->batch->device) && status == OP_HIT) {
		if (fetch_copy_begin(r))
			return false;
		status = OP_INVALID;
	} else if (staged && (status == OP_HIT || unlikely(p->landed))) {
		fetch_copy(r);
	}
	p->pieces_out--;
	if (status == OP_NIC_ERROR || status == OP_PEER_DOWN)
		p->rails_tried |= (uint16_t)(1u << r->rail);
	if (p->piece_status == OP_HIT)
		p->piece_status = (uint8_t)status;
	/* A page that is still in its queue has slices to post and ends after those. */
	if (!p->pieces_out && p->phase == PAGE_IN_FLIGHT)
		fetch_end(r->batch, r->page);
	return true;
}

/* ---- copies to GPU memory -------------------------------------------------------------------- */

void fetch_copies_end(struct pc_channel *ch, enum fetch_wait wait)
{
	uint32_t index;
	bool failed;

	while ((index = device_ended(ch->device, wait != FETCH_WAIT_NOT, &failed)) != CLIENT_NONE) {
		struct client_request *r = &ch->request[index];

		(void)fetch_answer(r, failed ? OP_INVALID : OP_HIT);
		staging_free(&ch->staging, r->hold);
		request_free(ch, index);
		ch->moves++;
		ch->no_room = false;
		if (wait == FETCH_WAIT_ONE)
			wait = FETCH_WAIT_NOT;
	}
}
