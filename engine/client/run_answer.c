/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answers of runs (run.c) that are more than hits: reap.c ends the pages of all others. The
 * pages of a run are linked by page_work.next; the k-th of them is bit k of the answer's masks.
 * Pages that were not hits go on one by one, each when its run has been answered, so there are
 * never two READs of one page. Channel thread.
 */
#include "engine/abi/op.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/fetch.h"
#include "engine/client/likely.h"
#include "engine/client/notice.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/run.h"
#include "engine/client/verify.h"

/* A page of a run that was no hit. `status`: what the answer says about it, OP_STALE included. */
static void run_not_hit(struct pc_channel *ch, const struct client_request *r, uint32_t i,
	uint32_t status, uint64_t now_ns)
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

void run_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status, uint64_t now_ns)
{
	struct pc_batch *b = r->batch;
	uint32_t i = r->page, hit = done->hit & ~done->stale, stale = done->stale, hits = 0, next;
	uint32_t now_ms = (uint32_t)(now_ns / 1000000);
	uint16_t peer = b->work[i].peer;

	for (uint32_t left = r->pages; left; left--, i = next, hit >>= 1, stale >>= 1) {
		struct page_work *p = &b->work[i];

		next = p->next;
		p->peer = peer;
		if (unlikely(!(hit & 1))) {
			run_not_hit(ch, r, i, stale & 1 ? OP_STALE : status, now_ns);
			continue;
		}
		if (unlikely(run_verify_due(ch, i, b)))
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
