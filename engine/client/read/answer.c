/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answers of the rails. The cookie of each is checked and gives its request; the answer goes to
 * the page's next step. The pages of a run of hits end here at once, if no page of it has more to
 * do (hits_plain()); of another run each by itself, only when the run has been answered, so there
 * are never two READs of one page. An answer without a request in flight is ignored. Channel
 * thread.
 */
#include "config/likely.h"
#include "engine/abi/op.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/constants.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/peercache.h"
#include "engine/client/read/read.h"
#include "engine/client/rings/rings.h"
#include "engine/client/rings/staging.h"

#include <string.h>

/* ---- what a READ has ended with -------------------------------------------------------------- */

void get_verify(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	p->verify = VERIFY_HEAD;
	p->rails_tried = 0;
	page_queue(b, i, PAGE_HEAD);
}

void get_not_hit(struct pc_batch *b, uint32_t i)
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

/* ---- pages of runs --------------------------------------------------------------------------- */

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
	p->landed = status == OP_STALE && r->batch->lengths;
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

static void run_answer(struct pc_channel *ch, const struct client_request *r,
	const struct run_done *done, uint32_t status)
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
	peer_load_add(b, peer, r->bytes);
}

/* ---- answers of any op ----------------------------------------------------------------------- */

/* The kind of request that a run of this kind answers; REQUEST_FREE: none. */
static inline enum request_kind request_kind_of(uint8_t kind)
{
	switch (kind) {
	case OP_RUN: return REQUEST_RUN;
	case OP_LOOKUP: return REQUEST_LOOK;
	case OP_PAGE: return REQUEST_FETCH;
	default: return REQUEST_FREE;
	}
}

/* What an answer says about the only page of an OP_PAGE; `status` as in fetch_answer(). */
static inline uint32_t page_status(const struct run_done *done, uint32_t status)
{
	if (done->stale & 1)
		return OP_STALE;
	return done->hit & 1 ? OP_HIT : status;
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
static void rail_run_done(struct pc_channel *ch, uint32_t rail, const struct run_done *done)
{
	uint32_t status = done->status < OP_STATUS_COUNT && done->status != OP_STALE ? done->status
										     : OP_NIC_ERROR;
	uint32_t index;
	struct client_request *r = request_of(ch, done->cookie, &index);

	if (!r || r->kind != request_kind_of(done->kind) || r->rail != rail)
		return;
	rail_answered(ch, r, status);
	if (status == OP_HIT)
		status = OP_NIC_ERROR;
	if (r->batch && r->kind == REQUEST_RUN)
		run_answer(ch, r, done, status);
	else if (r->batch && r->kind == REQUEST_LOOK)
		look_answer(ch, r, done, status);
	else if (r->batch && !fetch_answer(r, page_status(done, status)))
		return;
	if (unlikely(r->kind == REQUEST_LOOK))
		scratch_free(&ch->staging, r->hold, r->pages);
	else if (r->hold != CLIENT_NONE)
		staging_free(&ch->staging, r->hold);
	request_free(ch, index);
}

/* ---- answers of runs of hits ----------------------------------------------------------------- */

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
	peer_load_add(b, p->peer, r->bytes);
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
	uint32_t index;
	struct client_request *r = request_of(ch, done->cookie, &index);

	if (unlikely(!r || done->kind != OP_RUN || done->status != OP_HIT || done->stale ||
		     r->kind != REQUEST_RUN || r->rail != rail || !r->batch ||
		     done->hit != UINT32_MAX >> (RUN_PAGES_MAX - r->pages) || !hits_plain(ch, r)))
		return false;
	ch->rail[rail].in_flight--;
	ch->no_room = false;
	stripe_take(ch, rail, r->bytes);
	hits_end(ch, r, now_ms);
	request_free(ch, index);
	return true;
}

/* Takes the answers of a rail that owes some. */
static inline void reap_rail(struct pc_channel *ch, uint32_t rail, uint32_t now_ms)
{
	struct ring_consumer *ring = &ch->rail[rail].done;
	int32_t n = ring_ready_of(ring, DONE_RING_SLOTS, sizeof(struct run_done));

	for (int32_t i = 0; i < n; i++) {
		struct run_done done;

		memcpy(&done,
			ring->slots +
				ring_at(DONE_RING_SLOTS, sizeof(done), ring->head + (uint32_t)i),
			sizeof(done));
		if (likely(hits_done(ch, rail, &done, now_ms)))
			continue;
		rail_run_done(ch, rail, &done);
	}
	if (n > 0)
		ring_release(ring, (uint32_t)n);
}

void reap_rails(struct pc_channel *ch)
{
	uint32_t now_ms = channel_now_ms(ch);

	for (uint32_t rail = 0; rail < ch->rails; rail++)
		if (ch->rail[rail].in_flight) /* else no answer can come */
			reap_rail(ch, rail, now_ms);
}
