/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a page when it is known how a step of it ended: it is done, or it is queued for
 * its next step. The files of the steps (look.c, get.c, set.c, ctl.c) call
 * these functions with the outcome and never one another; batch.c starts the steps of what is
 * queued. A page of this host is copied here, because that needs no waiting. Channel thread. The
 * phases:
 *
 *   get      LOOK ~> found: here --> copied, DONE
 *                           elsewhere --> RUN (or FETCH or STAGE) ~> DONE,
 *                                               or stale, or its CRC is due --> HEAD ~> DONE
 *   exists   LOOK ~> DONE
 *   set      LOOK ~> found: here --> DONE
 *                           elsewhere --> HEAD ~> DONE
 *                    absent, stale or unreachable: STORE --> PUBLISH ~> DONE
 *   remove   REMOVE ~> DONE
 *
 * A page that a get or exists does not find goes through DISK, once, if this host has a disk:
 *   DISK ~> here --> copied, DONE; or not on disk: DONE
 * A page that a get finds on a disk goes through DISK, too:
 *   DISK ~> found in the memory of that host; or not: the next location
 *
 * An arrow --> is taken when there is room, an arrow ~> when an answer comes. Between them the page
 * waits in the queue of its phase, or is IN_FLIGHT. After a wrong location the page tries its next
 * one; after the last one it goes back to LOOK, once.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/statistics.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/directory.h"
#include "engine/client/error.h"
#include "engine/client/local.h"
#include "engine/client/notice.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/rail.h"
#include "engine/client/session.h"
#include "engine/client/verify.h"

/*
 * Counts a page with a result other than PC_HIT; hits are counted in get_here(), page_hit(), get.c
 * and rail.c.
 */
void page_count(struct pc_batch *b, enum pc_result result)
{
	struct pc_counts *counts = &b->channel->counts;

	if (b->kind >= BATCH_PEEK)
		return;
	b->missed[result < PC_INVALID ? (unsigned)result : STATISTICS_OTHER]++;
	if (result == PC_MISS && b->kind != BATCH_REMOVE)
		counts->misses++;
	else if (result == PC_STALE)
		counts->stale++;
	else if (result == PC_UNREACHABLE)
		counts->unreachable++;
	else if (result == PC_TIMEOUT)
		counts->timeouts++;
}

/*
 * Prefetches what a set will look at soon: the word with the key's owners, and the bucket that the
 * key has if this host is one of them.
 */
static inline void prefetch_here(const struct client_session *session, const struct page_key *key)
{
	__builtin_prefetch(&session->status->map.slot[map_slot_of(key)]);
	__builtin_prefetch(&session->shard[dir_bucket_first(key, session->bucket_bits)]);
}

void page_look_again(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	if (b->kind == BATCH_SET)
		prefetch_here(b->channel->session, &p->key);
	p->cached = cache_index(&p->key);
	p->asked = 0;
	p->others = 0;
	p->rails_tried = 0;
	p->flags &= (uint8_t) ~(PAGE_SECOND | PAGE_SAW_ANSWER | PAGE_SAME_PEER);
	b->channel->counts.lookups++;
	page_queue(b, i, PAGE_LOOK);
}

void page_hit(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	const struct page_work *p = &b->work[i];

	ch->counts.hits_remote++;
	ch->counts.bytes_read += p->bytes;
	ch->peer_rest_until_ns[p->peer] = 0;
	notice_touch(ch, p, channel_now_ms(ch));
	page_done(b, i, PC_HIT);
}

/* True if the page was queued to have this host's disk searched, which is done once. */
static bool search_disk(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (p->disk != DISK_UNASKED || !shm_load(&ch->session->status->disk))
		return false;
	p->disk = DISK_ASKED;
	p->at = (struct location){0};
	page_queue(b, i, PAGE_DISK);
	return true;
}

void page_absent(struct pc_batch *b, uint32_t i)
{
	const struct page_work *p = &b->work[i];

	if (b->kind == BATCH_SET && !p->other_length)
		page_queue(b, i, PAGE_STORE);
	else if (b->kind != BATCH_SET && search_disk(b, i))
		return;
	else if (p->other_length)
		page_done(b, i, PC_INVALID);
	else if (p->flags & PAGE_SAW_STALE && b->kind == BATCH_GET)
		page_done(b, i, PC_STALE);
	else
		page_done(b, i, p->flags & PAGE_SAW_FAILURE ? PC_UNREACHABLE : PC_MISS);
}

void page_wrong(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	p->wrong = p->at;
	if (unlikely(p->verify))
		p->verify = VERIFY_DUE;
	p->rails_tried = 0;
	p->flags &= (uint8_t)~PAGE_SAW_REFUSAL;
	cache_drop(ch, &p->key);
	if (p->others) {
		p->at = p->other[--p->others];
		page_found(b, i);
	} else if (!(p->flags & PAGE_RETRIED) &&
		   !(b->kind == BATCH_SET && p->flags & PAGE_SAW_FAILURE)) {
		p->flags |= PAGE_RETRIED;
		page_look_again(b, i);
	} else {
		page_absent(b, i);
	}
}

void page_stale(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	p->flags |= PAGE_SAW_STALE;
	notice_stale(b->channel, p);
	page_wrong(b, i);
}

void page_length_differs(struct pc_batch *b, uint32_t i, uint32_t stored)
{
	error_length(b->work[i].bytes, stored);
	b->work[i].other_length = 1;
	page_wrong(b, i);
}

void page_unreached(struct pc_batch *b, uint32_t i)
{
	b->work[i].flags |= PAGE_SAW_FAILURE;
	page_wrong(b, i);
}

void page_corrupt(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;

	ch->verify_counts.corrupt++;
	notice_corrupt(ch, &b->work[i]);
	page_wrong(b, i);
}

/* Copies the page of this host. */
static void get_here(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	enum pc_result result;
	bool corrupt;

	if (clock_monotonic_ns() >= b->deadline_ns) {
		/* the deadline is checked for each page, because many local copies in one batch
		 * take long */
		page_done(b, i, PC_TIMEOUT);
		return;
	}
	(void)verify_due(ch, p);
	result = local_get(ch, p, &b->pages[i], &corrupt);
	if (unlikely(corrupt)) {
		page_corrupt(b, i);
		return;
	}
	if (result == PC_STALE) {
		page_stale(b, i);
		return;
	}
	if (result == PC_INVALID) {
		page_length_differs(b, i, local_length(ch->session, &p->key, &p->at));
		return;
	}
	ch->counts.hits_local++;
	ch->counts.bytes_read += p->bytes;
	notice_touch(ch, p, channel_now_ms(ch));
	page_done(b, i, PC_HIT);
}

void page_differs(struct pc_batch *b, uint32_t i, uint32_t stored)
{
	error_length(b->work[i].bytes, stored);
	page_done(b, i, PC_INVALID);
}

void page_refused(struct pc_batch *b, uint32_t i)
{
	error_set(0,
		"the engine refused page %u of %u bytes: is its memory mapped, and has no page of another length its key?",
		i, b->work[i].bytes);
	page_done(b, i, PC_INVALID);
}

void page_stored(struct pc_batch *b, uint32_t i, uint32_t length)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (unlikely(length != p->bytes)) {
		page_length_differs(b, i, length);
		return;
	}
	ch->counts.sets_already++;
	notice_wanted(ch, p);
	page_done(b, i, PC_HIT);
}

/* This host has the page at p->at, or the batch is an exists. */
static void page_here(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t length = 0;

	if (b->kind == BATCH_GET) {
		get_here(b, i);
		return;
	}
	if (p->at.ref == ch->session->ref) {
		length = local_length(ch->session, &p->key, &p->at);
		if (!length) {
			page_stale(b, i);
			return;
		}
	}
	if (b->kind == BATCH_SET) {
		page_stored(b, i, length);
		return;
	}
	notice_wanted(ch, p);
	page_done(b, i, PC_HIT);
}

/*
 * A set has found the page at another host, whose head of it decides. A holder that does not answer
 * at present is not asked: the page is stored here as well.
 */
static void set_there(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	const struct map_member *m = map_by_ref(ch, b->work[i].at.ref);

	if (likely(m && directory_answers(ch, m)))
		page_queue(b, i, PAGE_HEAD);
	else
		page_unreached(b, i);
}

/* The page is on a disk, at p->at. */
static void found_on_disk(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (b->kind == BATCH_EXISTS && p->at.ref != ch->session->ref) {
		notice_want(ch, p);
		page_done(b, i, PC_HIT);
	} else if (ch->now_ns >= b->deadline_ns) {
		page_done(b, i, PC_TIMEOUT);
	} else {
		page_queue(b, i, PAGE_DISK);
	}
}

void page_found(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	const struct page_work *p = &b->work[i];

	if (unlikely(place_on_disk(p->at.place)))
		found_on_disk(b, i);
	else if (b->kind == BATCH_EXISTS || p->at.ref == ch->session->ref)
		page_here(b, i);
	else if (b->kind == BATCH_GET)
		page_queue(b, i, page_read_phase(p));
	else
		set_there(b, i);
}
