/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the answers of the rails and of the control plane out of the rings. The cookie of each
 * answer is checked and gives its request; the answer goes to the page's next step. An answer
 * without a request in flight is ignored.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/clear.h"
#include "engine/client/constants.h"
#include "engine/client/credit.h"
#include "engine/client/directory.h"
#include "engine/client/disk.h"
#include "engine/client/fetch.h"
#include "engine/client/look.h"
#include "engine/client/notice.h"
#include "engine/client/peek.h"
#include "engine/client/peercache.h"
#include "engine/client/reap.h"
#include "engine/client/request.h"
#include "engine/client/run.h"
#include "engine/client/set.h"
#include "engine/client/staging.h"
#include "engine/client/stripe.h"

#include <string.h>

static struct client_request *request_of(
	struct pc_channel *ch, uint64_t cookie, uint32_t *ret_index)
{
	uint32_t index = (uint32_t)cookie;
	struct client_request *r;

	if (index >= ch->requests)
		return NULL;
	r = &ch->request[index];
	if (r->kind == REQUEST_FREE || r->generation != (uint32_t)(cookie >> 32))
		return NULL;
	*ret_index = index;
	return r;
}

/* The request of a run's answer; NULL: none in flight has this cookie, or it is not a run. */
static struct client_request *run_of(
	struct pc_channel *ch, const struct run_done *done, uint32_t *ret_index)
{
	uint32_t index = done->cookie & 0xffff;
	struct client_request *r;

	if (index >= ch->requests)
		return NULL;
	r = &ch->request[index];
	if (r->kind != (done->kind == OP_RUN ? REQUEST_RUN : REQUEST_LOOK) ||
		run_cookie(r->generation, index) != done->cookie)
		return NULL;
	*ret_index = index;
	return r;
}

static void let_go(struct pc_channel *ch, const struct client_request *r)
{
	if (r->kind == REQUEST_PEEK)
		scratch_free(&ch->staging, r->hold, r->pages);
	else if (r->hold == STAGING_LARGE)
		ch->staging.large_busy = false;
	else if (r->hold != CLIENT_NONE)
		staging_free(&ch->staging, r->hold);
}

/* What the answer of any op says about its rail. */
static inline void rail_answered(
	struct pc_channel *ch, const struct client_request *r, uint32_t status)
{
	ch->moves++;
	ch->rail[r->rail].in_flight--;
	ch->no_room = false;
	if (r->bytes)
		stripe_take(ch, r->rail, r->bytes);
	if (unlikely(status == OP_NIC_ERROR || status == OP_PEER_DOWN))
		stripe_rest(ch, r->rail);
	if (unlikely(status == OP_PEER_DOWN))
		map_refresh(ch);
}

/*
 * The masks decide about the pages that have a bit in them. What an engine may not say counts as a
 * failure of the READ: OP_HIT or OP_STALE for the other pages.
 */
static void run_done(struct pc_channel *ch, uint32_t rail, const struct run_done *done)
{
	uint32_t status = done->status < OP_STATUS_COUNT && done->status != OP_STALE ? done->status
										     : OP_NIC_ERROR;
	uint32_t index;
	struct client_request *r = run_of(ch, done, &index);

	if (!r || r->rail != rail)
		return;
	rail_answered(ch, r, status);
	if (status == OP_HIT)
		status = OP_NIC_ERROR;
	if (r->batch && r->kind == REQUEST_RUN)
		run_answer(ch, r, done, status);
	else if (r->batch)
		look_answer(ch, r, done, status);
	if (unlikely(r->kind == REQUEST_LOOK))
		scratch_free(&ch->staging, r->hold, r->pages);
	request_free(ch, index);
}

/* ---- runs of hits ---------------------------------------------------------------------------- */

/*
 * True if the pages of a run, all of them hits, end without another look: none of them is to be
 * compared with its CRC, and their entries in the location cache are as they were found.
 */
static inline bool hits_plain(struct pc_channel *ch, const struct client_request *r)
{
	if (unlikely(r->batch->cache_changes != ch->cache_changes))
		return false;
	if (!ch->verify_left)
		return true;
	if (unlikely(ch->verify_left <= r->pages))
		return false;
	ch->verify_left -= r->pages;
	return true;
}

/* Ends the pages of a run that were all hits. */
static inline void hits_end(struct pc_channel *ch, const struct client_request *r, uint32_t now_ms)
{
	struct pc_batch *b = r->batch;
	enum pc_result *results = b->results;
	uint32_t pages = r->pages, i = r->page;
	struct page_work *p = &b->work[i];

	ch->peer_rest_until_ns[p->peer] = 0;
	b->left -= pages;
	ch->moves += pages;
	ch->counts.hits_remote += pages;
	ch->counts.bytes_read += r->bytes;
	for (;;) {
		struct cache_entry *e = cache_again_same(ch, p->cached, now_ms);

		if (unlikely(cache_touch_due(e, now_ms)))
			notice_touch_due(ch, p, e, now_ms);
		p->phase = PAGE_DONE;
		results[i] = PC_HIT;
		if (!--pages)
			return;
		i = p->next;
		p = &b->work[i];
	}
}

/*
 * Takes the answer of a run of pages that were all hits. False: it is another answer, and nothing
 * has changed.
 */
static inline bool hits_done(
	struct pc_channel *ch, uint32_t rail, const struct run_done *done, uint32_t now_ms)
{
	uint32_t index = done->cookie & 0xffff;
	struct client_request *r = &ch->request[index];

	if (unlikely(done->kind != OP_RUN || done->status != OP_HIT || done->stale ||
		     index >= ch->requests || r->kind != REQUEST_RUN ||
		     run_cookie(r->generation, index) != done->cookie || r->rail != rail ||
		     !r->batch || done->hit != UINT32_MAX >> (RUN_PAGES_MAX - r->pages) ||
		     !hits_plain(ch, r)))
		return false;
	ch->rail[rail].in_flight--;
	ch->no_room = false;
	stripe_take(ch, rail, r->bytes);
	hits_end(ch, r, now_ms);
	request_free(ch, index);
	return true;
}

/* ---- other answers --------------------------------------------------------------------------- */

static void rail_done(struct pc_channel *ch, uint32_t rail, const struct op_done *done)
{
	uint32_t status = done->status < OP_STATUS_COUNT ? done->status : OP_NIC_ERROR;
	uint32_t index;
	struct client_request *r = request_of(ch, done->cookie, &index);

	if (!r || r->rail != rail || r->kind < REQUEST_PEEK || r->kind > REQUEST_FETCH)
		return;
	rail_answered(ch, r, status);
	if (r->batch && r->kind == REQUEST_PEEK)
		peek_answer(ch, r, status);
	else if (r->batch)
		fetch_answer(r, status);
	let_go(ch, r);
	request_free(ch, index);
}

/* An answer to a CTL_CREDIT. True: all slots of the request were told of. */
static bool slots_told(struct pc_channel *ch, struct client_request *r, const struct ctl_done *done)
{
	if (!done->count || done->count > r->left) {
		channel_break(ch);
		return false;
	}
	ch->ctl_awaited -= done->count;
	r->left -= done->count;
	credit_answer(ch, r, done);
	return !r->left;
}

/* An answer to a CTL_PUBLISH. True: all pages of the request have ended. */
static bool pages_told(struct pc_channel *ch, struct client_request *r, const struct ctl_done *done,
	uint32_t status)
{
	if (!done->pages || done->pages & ~r->waiting) {
		channel_break(ch);
		return false;
	}
	ch->ctl_awaited -= (uint32_t)__builtin_popcount(done->pages);
	r->waiting &= ~done->pages;
	if (r->batch)
		set_answer(ch, r, done->pages, status);
	return !r->waiting;
}

static void ctl_done(struct pc_channel *ch, const struct ctl_done *done)
{
	static const uint8_t kind_of[] = {[REQUEST_CREDIT] = CTL_CREDIT,
		[REQUEST_PUBLISH] = CTL_PUBLISH,
		[REQUEST_REMOVE] = CTL_REMOVE,
		[REQUEST_DISK] = CTL_PROMOTE,
		[REQUEST_CLEAR] = CTL_CLEAR};
	uint32_t status = done->status < OP_STATUS_COUNT ? done->status : OP_INVALID;
	uint32_t index;
	struct client_request *r = request_of(ch, done->cookie, &index);

	if (!r || r->kind < REQUEST_CREDIT || done->kind != kind_of[r->kind])
		return;
	ch->moves++;
	if (r->kind == REQUEST_CREDIT) {
		if (!slots_told(ch, r, done))
			return;
	} else if (r->kind == REQUEST_PUBLISH) {
		if (!pages_told(ch, r, done, status))
			return;
	} else {
		ch->ctl_awaited--;
		if (r->batch && r->batch->kind == BATCH_PEEK)
			peek_told(r->batch, r->page, done, status);
		else if (r->batch && r->kind == REQUEST_DISK)
			disk_answer(r->batch, r->page, done, status);
		else if (r->batch && r->kind == REQUEST_CLEAR)
			clear_answer(r->batch, done, status);
		else if (r->batch)
			remove_answer(r->batch, r->page, status);
	}
	request_free(ch, index);
}

/* Takes the answers of a rail that owes some. Returns whether there were any. */
static inline uint32_t reap_rail(struct pc_channel *ch, uint32_t rail, uint32_t now_ms)
{
	struct ring_consumer *ring = &ch->rail[rail].done;
	int32_t n = ring_ready_of(ring, DONE_RING_SLOTS, sizeof(struct op_done));

	for (int32_t i = 0; i < n; i++) {
		union {
			struct op_done op;
			struct run_done run;
		} done;

		memcpy(&done,
			ring->slots +
				ring_at(DONE_RING_SLOTS, sizeof(done), ring->head + (uint32_t)i),
			sizeof(done));
		if (likely(hits_done(ch, rail, &done.run, now_ms)))
			continue;
		if (done.run.kind)
			run_done(ch, rail, &done.run);
		else
			rail_done(ch, rail, &done.op);
	}
	if (n > 0)
		ring_release(ring, (uint32_t)n);
	return n > 0;
}

static uint32_t reap_ctl(struct pc_channel *ch)
{
	int32_t n = ring_ready(&ch->ctl_done);

	for (int32_t i = 0; i < n; i++) {
		struct ctl_done done;

		memcpy(&done, ring_slot_old(&ch->ctl_done, (uint32_t)i), sizeof(done));
		ctl_done(ch, &done);
	}
	if (n > 0)
		ring_release(&ch->ctl_done, (uint32_t)n);
	return n > 0;
}

uint32_t reap(struct pc_channel *ch)
{
	uint32_t work = 0, now_ms = channel_now_ms(ch);

	for (uint32_t rail = 0; rail < ch->rails; rail++)
		if (ch->rail[rail].in_flight) /* else no answer can come */
			work += reap_rail(ch, rail, now_ms);
	return work + reap_ctl(ch);
}
