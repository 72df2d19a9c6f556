/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing pages. A page that no member has gets a credit; this thread copies it into the pool with
 * non-temporal stores and publishes it. The control plane answers when the owners of the key have
 * its entry, but for suspect ones. The pages of a batch are spread round-robin over the rails'
 * pools, so that reading the batch back uses every rail.
 *
 * Page credits are slots in this host's pools that the control plane has handed to this channel in
 * advance. The channel keeps a small stock per page size and rail. It returns credits that stay
 * unused, and credits of other sizes when a pool is full. Channel thread.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/crc32c.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/copy.h"
#include "engine/client/device.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"
#include "engine/client/write/write.h"
#include "engine/client/rings/rings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- credits --------------------------------------------------------------------------------- */

enum credit_state { CREDIT_TAKEN, CREDIT_AWAITED, CREDIT_REFUSED };

static uint32_t stock_limit(const struct pc_channel *ch, uint32_t bytes, uint32_t rail)
{
	uint64_t most = ch->session->rail[rail].pool_bytes / CREDIT_STOCK_SHARE;

	most = (most < CREDIT_STOCK_BYTES ? most : CREDIT_STOCK_BYTES) / bytes;
	return most < 1 ? 1 : most > CREDIT_STOCK_MAX ? CREDIT_STOCK_MAX : (uint32_t)most;
}

/*
 * The page size that credits are requested for: whole units, so that pages of similar size share a
 * stock.
 */
static uint32_t stock_size(const struct pc_channel *ch, uint32_t bytes)
{
	uint64_t size = ((uint64_t)bytes + PAGE_UNIT - 1) / PAGE_UNIT * PAGE_UNIT;

	return (uint32_t)(size > ch->session->page_bytes_max ? ch->session->page_bytes_max : size);
}

static bool credit_give_back(struct pc_channel *ch, const struct stock_credit *credit)
{
	struct ctl_op op = {.kind = CTL_RETURN,
		.rail = (uint8_t)place_rail(credit->place),
		.place = credit->place,
		.generation = credit->generation};

	if (!submit_ctl_room(ch, 0, 0))
		return false;
	submit_ctl(ch, &op, 0);
	ch->credits--;
	return true;
}

/* The i-th credit in stock, from the oldest on. */
static struct stock_credit *stock_at(struct stock_rail *s, uint32_t i)
{
	return &s->credit[(s->first + i) % CREDIT_STOCK_MAX];
}

static uint32_t stock_empty(struct pc_channel *ch, struct stock *stock)
{
	uint32_t given = 0;

	for (uint32_t r = 0; r < ch->rails; r++) {
		struct stock_rail *s = &stock->rail[r];

		while (s->have && credit_give_back(ch, stock_at(s, s->have - 1))) {
			s->have--;
			given++;
		}
		s->ahead = 0;
	}
	return given;
}

static bool stock_in_use(const struct stock *stock)
{
	for (uint32_t r = 0; r < RAILS_MAX; r++)
		if (stock->rail[r].have || stock->rail[r].asked)
			return true;
	return false;
}

/*
 * cold: malloc() runs once for each page size. Returns the stock of a size, optionally making it.
 * NULL: there is no stock of that size, every place in the table is in use, or no memory.
 */
static struct stock *stock_of(struct pc_channel *ch, uint32_t size, bool make)
{
	uint32_t free_slot = CLASSES_MAX;

	for (uint32_t k = 0; k < CLASSES_MAX; k++) {
		if (ch->stock[k] && ch->stock[k]->bytes == size)
			return ch->stock[k];
		if (free_slot == CLASSES_MAX && (!ch->stock[k] || !stock_in_use(ch->stock[k])))
			free_slot = k;
	}
	if (!make || free_slot == CLASSES_MAX)
		return NULL;
	if (!ch->stock[free_slot])
		ch->stock[free_slot] = malloc(sizeof(struct stock));
	if (ch->stocks <= free_slot)
		ch->stocks = free_slot + 1;
	if (ch->stock[free_slot]) {
		memset(ch->stock[free_slot], 0, sizeof(struct stock));
		ch->stock[free_slot]->bytes = size;
	}
	return ch->stock[free_slot];
}

uint32_t credit_return(struct pc_channel *ch, uint64_t before_ns, uint32_t keep)
{
	uint32_t given = 0;

	for (uint32_t k = 0; k < ch->stocks; k++)
		if (ch->stock[k] && ch->stock[k]->bytes != keep &&
			ch->stock[k]->used_ns < before_ns)
			given += stock_empty(ch, ch->stock[k]);
	return given;
}

/* cold: once for each session */
void credit_forget(struct pc_channel *ch)
{
	for (uint32_t k = 0; k < CLASSES_MAX; k++) {
		free(ch->stock[k]);
		ch->stock[k] = NULL;
	}
	ch->stocks = 0;
	ch->credits = 0;
}

/*
 * Takes a credit from stock. Skips a rail that refused credits less than REFUSED_NS ago: any other
 * will do.
 */
static enum credit_state credit_take(
	struct pc_channel *ch, uint32_t bytes, uint32_t rail, struct stock_credit *ret_credit)
{
	struct stock *stock = stock_of(ch, stock_size(ch, bytes), true);

	if (!stock)
		return credit_return(ch, ch->now_ns, 0) ? CREDIT_AWAITED : CREDIT_REFUSED;
	stock->used_ns = ch->now_ns;
	for (uint32_t k = 0; k < ch->rails; k++) {
		struct stock_rail *s = &stock->rail[(rail + k) % ch->rails];

		if (s->have) {
			*ret_credit = *stock_at(s, 0);
			s->first = (s->first + 1) % CREDIT_STOCK_MAX;
			s->have--;
			ch->credits--;
			return CREDIT_TAKEN;
		}
		if (s->refused_until_ns > ch->now_ns)
			continue;
		s->want++;
		return CREDIT_AWAITED;
	}
	return CREDIT_REFUSED;
}

/* Puts a credit that was taken from stock and not used back into stock, as the oldest one. */
void credit_put(struct pc_channel *ch, uint32_t bytes, const struct stock_credit *credit)
{
	struct stock *stock = stock_of(ch, stock_size(ch, bytes), true);
	struct stock_rail *s = stock ? &stock->rail[place_rail(credit->place)] : NULL;

	ch->credits++;
	if (!s || s->have + s->asked >= CREDIT_STOCK_MAX) {
		credit_give_back(ch, credit);
		return;
	}
	s->first = (s->first + CREDIT_STOCK_MAX - 1) % CREDIT_STOCK_MAX;
	s->have++;
	*stock_at(s, 0) = *credit;
}

/*
 * Doubles the credits requested in advance, because the stock ran out: credits for the next pages
 * are requested while the current pages are copied. Limited to a small part of the pool, because
 * other clients also store in it.
 */
static void stock_keep_more(
	const struct pc_channel *ch, uint32_t bytes, uint32_t rail, struct stock_rail *s)
{
	uint64_t most = ch->session->rail[rail].pool_bytes / CREDIT_AHEAD_SHARE / bytes;

	s->ahead = s->ahead ? 2 * s->ahead : CREDIT_AHEAD;
	if (s->ahead > most)
		s->ahead = most > CREDIT_AHEAD ? (uint32_t)most : CREDIT_AHEAD;
	if (s->ahead > stock_limit(ch, bytes, rail))
		s->ahead = stock_limit(ch, bytes, rail);
}

static void stock_ask(
	struct pc_channel *ch, struct stock *stock, uint32_t rail, uint64_t deadline_ns)
{
	struct stock_rail *s = &stock->rail[rail];
	uint32_t goal = s->want + s->ahead, count, index;
	struct ctl_op op = {.kind = CTL_CREDIT,
		.key = ch->name_space.group,
		.rail = (uint8_t)rail,
		.length = stock->bytes,
		.deadline_ns = deadline_ns};

	if (goal > stock_limit(ch, stock->bytes, rail))
		goal = stock_limit(ch, stock->bytes, rail);
	if (goal <= s->asked + s->have)
		return;
	count = goal - s->asked - s->have;
	if (count > CREDITS_MAX - ch->credits)
		count = CREDITS_MAX - ch->credits;
	while (count && !submit_ctl_room(ch, count, 0))
		count /= 2;
	if (!count)
		return;
	index = request_take(ch, REQUEST_CREDIT, NULL, 0);
	if (index == CLIENT_NONE)
		return;
	ch->request[index].rail = (uint8_t)rail;
	ch->request[index].bytes = stock->bytes;
	ch->request[index].left = (uint16_t)count;
	op.cookie = request_cookie(ch, index);
	op.count = (uint16_t)count;
	s->asked += count;
	ch->credits += count;
	submit_ctl(ch, &op, count);
}

/*
 * Requests credits when a quarter of the stock is used: the answer then comes before a batch of up
 * to three quarters has used the rest.
 */
static void credit_ask(struct pc_channel *ch, uint64_t deadline_ns)
{
	for (uint32_t k = 0; k < ch->stocks; k++) {
		struct stock *stock = ch->stock[k];

		for (uint32_t r = 0; stock && r < ch->rails; r++) {
			struct stock_rail *s = &stock->rail[r];

			if (s->want <= s->asked && s->have + s->asked + s->ahead / 4 >= s->ahead) {
				s->want = 0;
				continue;
			}
			if (s->want > s->asked)
				stock_keep_more(ch, stock->bytes, r, s);
			if (ch->credits >= CREDITS_MAX)
				credit_return(ch, UINT64_MAX, stock->bytes);
			stock_ask(ch, stock, r, deadline_ns);
			s->want = 0;
		}
	}
}

/* True if all slots that the answer names lie in the pool of the request's rail. */
static bool credit_possible(
	const struct pc_channel *ch, const struct client_request *r, const struct ctl_done *done)
{
	uint64_t bytes = ch->session->rail[r->rail].pool_bytes;
	uint64_t offset =
		place_offset(done->place) + (uint64_t)(done->count - 1u) * done->stride * PAGE_UNIT;

	return place_rail(done->place) == r->rail && offset < bytes && r->bytes <= bytes - offset;
}

void credit_answer(
	struct pc_channel *ch, const struct client_request *r, const struct ctl_done *done)
{
	struct stock *stock = stock_of(ch, r->bytes, false);
	struct stock_rail *s;

	if (!stock) {
		channel_break(ch);
		return;
	}
	s = &stock->rail[r->rail];
	s->asked -= done->count;
	if (done->status == OP_HIT) {
		if (!credit_possible(ch, r, done)) {
			channel_break(ch);
			return;
		}
		for (uint32_t k = 0; k < done->count; k++)
			*stock_at(s, s->have++) = (struct stock_credit){
				done->place + k * done->stride, done->generation};
		return;
	}
	ch->credits -= done->count;
	/* Credits for other page sizes may hold all the room that is missing: if some were
	 * returned, request again. */
	if (done->status == OP_TIMEOUT || credit_return(ch, ch->now_ns, r->bytes))
		return;
	s->refused_until_ns = ch->now_ns + REFUSED_NS;
	s->ahead = 0;
}

/* ---- the slot that is written ---------------------------------------------------------------- */

/*
 * Names the slot in the channel segment before the copy. False: the engine has ended the channel,
 * so the slot may belong to another page already. An engine that ends the channel stores `stopped`,
 * fences, and leaves the slot alone that `copying` names then (ctl_channel_close()). Both sides
 * store, fence and load, so at least one of them sees the other's store. struct channel_header of
 * abi/segment.h has the whole protocol.
 *
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

/* ---- publishing ------------------------------------------------------------------------------ */

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
static void publish_post(struct pc_batch *b, uint32_t pages)
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
		.publish = b->gap ? PUBLISH_CRC | PUBLISH_GAP : PUBLISH_CRC};

	ch->request[index].pages = (uint8_t)pages;
	ch->request[index].waiting = UINT32_MAX >> (CTL_PAGES_MAX - pages);
	page_in_flight(b, i);
	for (uint32_t k = 1; k < pages; k++) {
		i = page_unqueue(b, PAGE_PUBLISH);
		p = &b->work[i];
		*publish_entry(ch, k) = (struct ctl_page){.place = p->at.place,
			.generation = p->at.generation,
			.crc = p->crc,
			.key = p->key};
		page_in_flight(b, i);
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
		publish_post(b, pages);
}

/* ---- copying --------------------------------------------------------------------------------- */

/*
 * Maps the memory of a slot before the first copy into it: one madvise() per TOUCH_BYTES is faster
 * than a page fault per 4 KiB. Where the kernel does not support it, the copy faults.
 */
/* cold: madvise() runs once per TOUCH_BYTES of a pool; later stores find the flag set */
static void slot_touch(const struct session_rail *rail, uint64_t offset, uint32_t bytes)
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
static const unsigned char *set_next_source(const struct pc_batch *b)
{
	uint32_t i = b->queue[PAGE_STORE].head;

	return i == CLIENT_NONE ? NULL : b->pages[i].segments[0].base;
}

/*
 * Copies the page into its slot, which has been entered. False: the driver of a GPU failed.
 */
static bool set_copy(struct pc_batch *b, uint32_t i, unsigned char *to)
{
	const struct pc_page *page = &b->pages[i];
	struct page_work *p = &b->work[i];

	if (likely(!b->device)) {
		p->crc = copy_gather(to, page->segments, page->segment_count, set_next_source(b));
		return true;
	}
	if (!device_gather(b->channel->device, page->segments, 0, to, p->bytes))
		return false;
	p->crc = crc32c(0, to, p->bytes);
	return true;
}

/*
 * Copies a page into the slot of a credit. False: the page waits for a credit, or the channel
 * broke.
 */
static bool set_store(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	const struct session_rail *rail;
	struct stock_credit credit;

	switch (credit_take(ch, p->bytes, (b->first_rail + i) % ch->rails, &credit)) {
	case CREDIT_AWAITED: return false;
	case CREDIT_REFUSED: page_done(b, i, PC_FULL); return true;
	case CREDIT_TAKEN: break;
	}
	rail = &ch->session->rail[place_rail(credit.place)];
	slot_touch(rail, place_offset(credit.place), p->bytes);
	if (!slot_enter(ch, &credit)) {
		channel_break(ch);
		return false;
	}
	if (unlikely(!set_copy(b, i, rail->pool + place_offset(credit.place)))) {
		slot_leave(ch);
		credit_put(ch, p->bytes, &credit);
		page_done(b, i, PC_INVALID); /* the error text is the driver's */
		return true;
	}
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
		} else if (!set_store(b, i)) {
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
	if (skipped) /* the chunk that is missing may have idle credits of this channel */
		credit_return(
			ch, ch->now_ns - REFUSED_NS, stock_size(ch, b->work[waiting[0]].bytes));
	while (skipped)
		page_requeue(b, waiting[--skipped]);
	credit_ask(ch, b->deadline_ns);
}
