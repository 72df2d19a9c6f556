/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing and removing pages. A page that no member has gets a credit; this thread copies it into
 * the pool with non-temporal stores and publishes it. The control plane answers when every member
 * can find the page. The pages of a batch are spread round-robin over the rails' pools, so that
 * reading the batch back uses every rail. Channel thread.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/copy.h"
#include "engine/client/credit.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/session.h"
#include "engine/client/set.h"
#include "engine/client/submit.h"

#include <sys/mman.h>

/* pages between the one that ends and that whose entry in the location cache is prefetched */
#define PREFETCH_VICTIM 4u

/*
 * Names the slot in the channel segment before the copy. False: the engine has ended the channel,
 * so the slot may belong to another page already. struct channel_header describes the protocol.
 * One page after the other is copied without slot_leave() between them: the stores of the earlier
 * one drain while this thread prepares the next.
 */
static bool slot_enter(struct pc_channel *ch, const struct stock_credit *credit)
{
	shm_fence_stream(); /* no store into the slot that is named so far comes later */
	shm_store64(&ch->header->copying, slot_name(credit->place, credit->generation));
	shm_fence_store_load(); /* pairs with the fence of ctl_channel_close() in the engine */
	if (likely(!shm_load(&ch->header->stopped)))
		return true;
	shm_store64(&ch->header->copying, 0);
	return false;
}

/*
 * Ends the copies, before their pages are published. The release pairs with the engine's acquire:
 * an engine that reads 0 sees the copies whole, and no store of them comes later.
 */
static void slot_leave(struct pc_channel *ch)
{
	shm_fence_stream();
	shm_store_release64(&ch->header->copying, 0);
}

/*
 * The number of pages at the head of the queue that the next CTL_PUBLISH may name: they have one
 * length, and the rings have room. 0: none.
 */
static uint32_t publish_pages(const struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i = b->queue[PAGE_PUBLISH].head, pages = 0;

	if (i == CLIENT_NONE || ch->request_free == CLIENT_NONE)
		return 0;
	for (uint32_t bytes = b->work[i].bytes;
		pages < CTL_PAGES_MAX && i != CLIENT_NONE && b->work[i].bytes == bytes;
		i = b->work[i].next)
		pages++;
	while (pages && !submit_ctl_room(ch, pages, ctl_lines(pages) - 1))
		pages /= 2;
	return pages;
}

/* The entry of page i >= 1 behind the op that is submitted next. */
static struct ctl_page *publish_entry(struct pc_channel *ch, uint32_t i)
{
	struct ctl_page *line = ring_slot_new(&ch->ctl, ch->ctl_unpublished + ctl_page_line(i));

	return line + ctl_page_half(i);
}

/* Sends a CTL_PUBLISH of the first `pages` pages of the queue. */
static void publish(struct pc_batch *b, uint32_t pages)
{
	struct pc_channel *ch = b->channel;
	uint32_t i = page_unqueue(b, PAGE_PUBLISH);
	uint32_t index = request_take(ch, REQUEST_PUBLISH, b, i);
	const struct page_work *p = &b->work[i];
	struct ctl_op op = {.kind = CTL_PUBLISH,
		.cookie = request_cookie(ch, index),
		.count = (uint16_t)pages,
		.length = p->bytes,
		.key = p->key,
		.place = p->at.place,
		.generation = p->at.generation,
		.deadline_ns = b->deadline_ns,
		.crc = p->crc,
		.has_crc = 1};

	ch->request[index].pages = (uint8_t)pages;
	ch->request[index].waiting = UINT32_MAX >> (CTL_PAGES_MAX - pages);
	page_in_flight(b, i, index);
	for (uint32_t k = 1; k < pages; k++) {
		i = page_unqueue(b, PAGE_PUBLISH);
		p = &b->work[i];
		*publish_entry(ch, k) = (struct ctl_page){.place = p->at.place,
			.generation = p->at.generation,
			.crc = p->crc,
			.key = p->key};
		page_in_flight(b, i, index);
	}
	submit_ctl_lines(ch, &op, ctl_lines(pages), pages);
}

static void publish_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t pages;

	if (!page_waits(b, PAGE_PUBLISH))
		return; /* nothing was copied since the last call */
	slot_leave(ch);
	while ((pages = publish_pages(b)))
		publish(b, pages);
}

/*
 * Maps the memory of a slot before the first copy into it: one madvise() per TOUCH_BYTES is faster
 * than a page fault per 4 KiB. Where the kernel does not support it, the copy faults.
 */
/* cold: madvise() runs once per TOUCH_BYTES of a pool; later stores find the flag set */
static void touch(const struct session_rail *rail, uint64_t offset, uint32_t bytes)
{
	for (uint64_t k = offset / TOUCH_BYTES; k <= (offset + bytes - 1) / TOUCH_BYTES; k++) {
		uint64_t from = k * TOUCH_BYTES, left = rail->map_bytes - from;

		if (likely(shm_load(&rail->touched[k])))
			continue;
		madvise(rail->pool + from, left < TOUCH_BYTES ? left : TOUCH_BYTES,
			MADV_POPULATE_WRITE);
		shm_store(&rail->touched[k], 1);
	}
}

/* The first bytes of the page that will be copied next; NULL: none waits. */
static const unsigned char *next_source(const struct pc_batch *b)
{
	uint32_t i = b->queue[PAGE_STORE].head;

	return i == CLIENT_NONE ? NULL : b->pages[i].segments[0].base;
}

/*
 * Copies a page into the slot of a credit. False: the page waits for a credit, or the channel
 * broke.
 */
static bool store(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	const struct pc_page *page = &b->pages[i];
	const struct session_rail *rail;
	struct stock_credit credit;

	switch (credit_take(ch, p->bytes, (b->first_rail + i) % ch->rails, &credit)) {
	case CREDIT_AWAITED: return false;
	case CREDIT_REFUSED: page_done(b, i, PC_FULL); return true;
	case CREDIT_TAKEN: break;
	}
	rail = &ch->session->rail[place_rail(credit.place)];
	touch(rail, place_offset(credit.place), p->bytes);
	if (!slot_enter(ch, &credit)) {
		channel_break(ch);
		return false;
	}
	p->crc = copy_gather(rail->pool + place_offset(credit.place), page->segments,
		page->segment_count, next_source(b));
	p->at = (struct location){ch->session->ref, credit.place, credit.generation};
	page_queue(b, i, PAGE_PUBLISH);
	return true;
}

void set_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t waiting[SKIP_MAX];
	uint32_t skipped = 0, copied = 0, i;
	bool late = false;

	publish_step(b);
	while (skipped < SKIP_MAX && !ch->broken) {
		i = page_unqueue(b, PAGE_STORE);
		if (i == CLIENT_NONE)
			break;
		/* the step itself has looked at the clock: again after each SET_PUBLISH_BYTES */
		if (late) {
			page_done(b, i, PC_TIMEOUT);
		} else if (!store(b, i)) {
			waiting[skipped++] = i;
		} else {
			copied += b->work[i].bytes;
			if (copied >= SET_PUBLISH_BYTES) {
				/* the control plane works during the next copies */
				publish_step(b);
				credit_ask(ch, b->deadline_ns);
				submit_ctl_flush(ch);
				copied = 0;
				late = clock_monotonic_ns() >= b->deadline_ns;
			}
		}
	}
	publish_step(b);
	while (skipped)
		page_requeue(b, waiting[--skipped]);
	credit_ask(ch, b->deadline_ns);
}

static void set_end(struct pc_batch *b, uint32_t i, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	static const uint8_t result[OP_STATUS_COUNT] = {[OP_HIT] = PC_HIT,
		[OP_MISS] = PC_UNREACHABLE,
		[OP_STALE] = PC_STALE,
		[OP_PEER_DOWN] = PC_UNREACHABLE,
		[OP_TIMEOUT] = PC_TIMEOUT,
		[OP_NIC_ERROR] = PC_UNREACHABLE,
		[OP_INVALID] = PC_INVALID,
		[OP_NO_SPACE] = PC_FULL,
		[OP_CANCELLED] = PC_GONE};
	const struct page_work *p = &b->work[i];

	if (status == OP_HIT) {
		ch->counts.sets++;
		ch->counts.bytes_written += p->bytes;
		cache_put(ch, &p->key, &p->at, channel_now_ms(ch));
	}
	if (unlikely(status == OP_INVALID))
		page_refused(b, i);
	else
		page_done(b, i, (enum pc_result)result[status]);
}

void set_answer(
	struct pc_channel *ch, const struct client_request *r, uint32_t pages, uint32_t status)
{
	struct pc_batch *b = r->batch;
	uint32_t ended[CTL_PAGES_MAX], count = 0, now_ms = channel_now_ms(ch);
	uint32_t i = r->page;

	for (uint32_t k = 0; k < r->pages; k++, i = b->work[i].next) {
		if (!(pages >> k & 1))
			continue;
		ended[count++] = i;
		cache_prefetch(ch, &b->work[i].key);
	}
	for (uint32_t k = 0; k < count; k++) {
		if (k + PREFETCH_VICTIM < count)
			cache_prefetch_victim(ch, &b->work[ended[k + PREFETCH_VICTIM]].key, now_ms);
		set_end(b, ended[k], status);
	}
}

void remove_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while ((i = page_unqueue(b, PAGE_REMOVE)) != CLIENT_NONE) {
		struct ctl_op op = {
			.kind = CTL_REMOVE, .key = b->work[i].key, .deadline_ns = b->deadline_ns};
		uint32_t index;

		if (ch->request_free == CLIENT_NONE || !submit_ctl_room(ch, 1, 0)) {
			page_requeue(b, i);
			return;
		}
		cache_drop(ch, &op.key);
		index = request_take(ch, REQUEST_REMOVE, b, i);
		op.cookie = request_cookie(ch, index);
		page_in_flight(b, i, index);
		submit_ctl(ch, &op, 1);
	}
}

void remove_answer(struct pc_batch *b, uint32_t i, uint32_t status)
{
	struct pc_channel *ch = b->channel;

	cache_drop(ch, &b->work[i].key);
	switch (status) {
	case OP_HIT: page_done(b, i, PC_HIT); break;
	case OP_MISS: page_done(b, i, PC_MISS); break;
	case OP_TIMEOUT: page_done(b, i, PC_TIMEOUT); break;
	case OP_INVALID: page_refused(b, i); break;
	case OP_CANCELLED: page_done(b, i, PC_GONE); break;
	default: page_done(b, i, PC_UNREACHABLE);
	}
}
