/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of other hosts: one op a page, straight into registered memory or through staging. The rail
 * splits long pages, checks the page head after the payload and answers when its NIC is done with
 * the destination. Channel thread.
 */
#include "engine/client/client.h"

/* One page that is larger than staging gets memory of its own, registered once and kept. */
static uint32_t take_large(struct pc_channel *ch)
{
	struct staging *s = &ch->staging;

	if (s->large_busy)
		return CLIENT_NONE;
	if (!s->large && pc_memory_alloc(ch->pc, PAGE_BYTES_MAX, &s->large))
		return CLIENT_NONE;
	memory_refresh(ch);
	s->large_busy = true;
	return STAGING_LARGE;
}

static uint32_t take_staging(struct pc_channel *ch, uint32_t bytes, struct op_segment *ret_segment)
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

		block = take_large(ch);
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

/* The page's segments as regions; false: one of them is not registered (any more). */
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

static void submit_page(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t rail,
	const struct op_segment *segments, uint16_t count, uint32_t hold, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	const struct map_member *m = map_by_ref(ch, p->at.ref);
	uint32_t index = request_take(ch, REQUEST_FETCH, b, i);
	struct request *r = &ch->request[index];
	struct op op = {.cookie = request_cookie(ch, index),
		.kind = OP_PAGE,
		.segments = count,
		.peer = m->peer,
		.region = (uint16_t)(REGION_POOL_0 + place_rail(p->at.place)),
		.offset = place_offset(p->at.place),
		.peer_ref = p->at.ref,
		.length = p->bytes,
		.key = p->key,
		.generation = p->at.generation,
		/* Time for another copy is left when there is one. */
		.deadline_ns = now_ns + batch_share_ns(b, now_ns, p->others ? 2 : 1)};

	r->rail = (uint8_t)rail;
	r->hold = hold;
	r->bytes = p->bytes;
	p->rails_tried |= (uint16_t)(1u << rail);
	p->peer = m->peer;
	ch->rail[rail].bytes += p->bytes;
	page_in_flight(b, i, index);
	submit_op(ch, rail, &op, segments);
}

/* False: no room now; the page is back in front of its queue. */
static bool fetch(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	const struct pc_page *page = &b->pages[i];
	struct op_segment segment[SEGMENTS_MAX];
	uint16_t count = (uint16_t)page->segment_count;
	uint32_t hold = CLIENT_NONE, rail;

	if (!map_by_ref(ch, p->at.ref)) {
		p->flags |= PAGE_SAW_FAILURE; /* died since it was looked up */
		page_wrong(ch, b, i, now_ns);
		return true;
	}
	if (p->phase == PAGE_FETCH && !resolve(ch, page, segment)) {
		p->flags &= (uint8_t)~PAGE_REGISTERED;
		page_queue(b, i, PAGE_STAGE);
		return true;
	}
	if (p->phase == PAGE_STAGE)
		count = 1;
	rail = stripe_page(ch, p->at.place, p->rails_tried, op_slots(count), now_ns);
	if (rail == CLIENT_NONE || ch->request_free == CLIENT_NONE) {
		page_requeue(b, i);
		return false;
	}
	if (p->phase == PAGE_STAGE) {
		hold = take_staging(ch, p->bytes, segment);
		if (hold == CLIENT_NONE) {
			page_requeue(b, i);
			return false;
		}
	}
	submit_page(ch, b, i, rail, segment, count, hold, now_ns);
	return true;
}

void fetch_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns)
{
	static const enum page_phase queue[] = {PAGE_FETCH, PAGE_STAGE};
	uint32_t i;

	for (unsigned q = 0; q < 2; q++)
		while (!ch->broken && (i = page_unqueue(b, queue[q])) != CLIENT_NONE)
			if (!fetch(ch, b, i, now_ns))
				break;
}

static void hit(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	const struct pc_page *page = &b->pages[i];
	uint32_t hold = ch->request[p->request].hold;

	if (hold != CLIENT_NONE) {
		const unsigned char *from =
			hold == STAGING_LARGE ? ch->staging.large : staging_at(&ch->staging, hold);

		copy_scatter(page->segments, page->segment_count, from);
		shm_fence_stream(); /* whoever is told next may read it on another core */
		ch->counts.bytes_staged += p->bytes;
	}
	ch->counts.hits_remote++;
	ch->counts.bytes_read += p->bytes;
	ch->peer_rest_until_ns[p->peer] = 0;
	notice_touch(ch, &p->key, &p->at, now_ns);
	page_done(b, i, PC_HIT);
}

void fetch_answer(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t status, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];

	switch (status) {
	case OP_HIT:
		hit(ch, b, i, now_ns);
		return;
	case OP_CANCELLED:
		page_done(b, i, PC_GONE);
		return;
	case OP_INVALID: /* our request, or an entry that names an impossible place */
		p->flags |= PAGE_SAW_REFUSAL;
		page_queue(b, i, PAGE_HEAD);
		return;
	case OP_STALE:
	case OP_MISS:
		page_queue(b, i, PAGE_HEAD);
		return;
	case OP_NIC_ERROR:
	case OP_PEER_DOWN:
		if (stripe_again(ch, p->rails_tried) && map_by_ref(ch, p->at.ref)) {
			page_queue(b, i, p->flags & PAGE_REGISTERED ? PAGE_FETCH : PAGE_STAGE);
			return;
		}
		break;
	default:
		break;
	}
	ch->peer_rest_until_ns[p->peer] = now_ns + PEER_REST_NS;
	p->flags |= PAGE_SAW_FAILURE;
	page_wrong(ch, b, i, now_ns);
}
