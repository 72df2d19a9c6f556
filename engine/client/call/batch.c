/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch from the call to the results: checks the arguments, makes the pages, starts their steps
 * and ends them, hands the batch back to its caller, and counts it in the statistics area. page.c
 * decides what a page does after each step. Channel thread.
 *
 * Two passes over the pages, because a key of the usual kind is hashed together with its neighbours
 * (key.c). The batch pins the registered ranges that it names, so that none is released meanwhile:
 * for that, the thread holds pc->lock for a short time.
 *
 * batch_deadline_keep(): after the deadline nothing new is posted (batch_expire()). Answers are
 * awaited for ANSWER_GRACE_NS more. After that only READs into the caller's own memory are awaited,
 * because the NIC may still write there: batch_abandon(). So a call returns at its deadline, or at
 * most ANSWER_GRACE_NS later, unless a READ into the caller's memory is in flight.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/latency.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/abi/statistics.h"
#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/lookup/directory.h"
#include "engine/client/error.h"
#include "engine/client/page/key.h"
#include "engine/client/attach/memory.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/request.h"
#include "engine/client/attach/session.h"
#include "engine/client/write/set.h"
#include "engine/client/steps.h"

#include <stdlib.h>
#include <string.h>

/* pages that the memory of a batch has room for, at least */
#define BATCH_CAPACITY_MIN 128u

static_assert(PC_SEGMENTS_MAX == SEGMENTS_MAX && PC_BATCH_MAX == BATCH_MAX, "as in limits.h");

static_assert((unsigned)PC_MISS == STATISTICS_MISS && (unsigned)PC_STALE == STATISTICS_STALE &&
		      (unsigned)PC_UNREACHABLE == STATISTICS_UNREACHABLE &&
		      (unsigned)PC_TIMEOUT == STATISTICS_TIMEOUT &&
		      (unsigned)PC_FULL == STATISTICS_NO_SPACE &&
		      (unsigned)PC_INVALID == STATISTICS_OTHER,
	"page_count() uses one as the other");
static_assert((unsigned)BATCH_GET == STATISTICS_GET && (unsigned)BATCH_SET == STATISTICS_SET &&
		      (unsigned)BATCH_EXISTS == STATISTICS_EXISTS &&
		      (unsigned)BATCH_REMOVE == STATISTICS_REMOVE,
	"the kinds of batches are the kinds of calls");

/* ---- statistics ------------------------------------------------------------------------------ */

/*
 * The channel's statistics area: what the engine cannot see, latency and results of whole batches.
 * Written once for each batch, when it ends; abi/statistics.h has the protocol.
 */

/* Adds to the area what the channel counted since the last batch that ended. */
static void statistics_add_counts(struct pc_channel *ch, struct statistics_words *to)
{
	const struct pc_counts *now = &ch->counts, *told = &ch->counts_told;

	shm_count(&to->get_local, now->hits_local - told->hits_local);
	shm_count(&to->get_remote, now->hits_remote - told->hits_remote);
	shm_count(&to->get_bytes, now->bytes_read - told->bytes_read);
	shm_count(&to->get_staged, now->bytes_staged - told->bytes_staged);
	shm_count(&to->set_bytes, now->bytes_written - told->bytes_written);
	shm_count(&to->set_present, now->sets_already - told->sets_already);
	shm_count(&to->reissued, now->reissued - told->reissued);
	shm_count(&to->lookups, now->lookups - told->lookups);
	shm_count(&to->lookups_cached, now->lookups_cached - told->lookups_cached);
	ch->counts_told = *now;
}

/* The hits of a batch in front of its first page that was none. */
static uint64_t statistics_usable(const struct pc_batch *b, uint64_t hits)
{
	uint64_t run = 0;

	if (hits == b->count)
		return hits;
	while (run < b->count && b->results[run] == PC_HIT)
		run++;
	return run;
}

/* Counts a batch that has ended, in the segment of the channel. */
static void statistics_batch(const struct pc_batch *b)
{
	struct channel_statistics *s = b->channel->statistics;
	uint64_t ns, hits = b->count;
	struct statistics_calls *calls;

	if (!s || b->kind >= BATCH_PEEK)
		return; /* the engine is gone, and its totals with it; or it is no call */
	ns = clock_monotonic_ns() - b->submitted_ns;
	if (ns > STATISTICS_LATENCY_MAX_NS)
		ns = STATISTICS_LATENCY_MAX_NS; /* the engine refuses a longer one */
	calls = &s->words.calls[b->kind];
	statistics_write_begin(s);
	for (unsigned result = STATISTICS_MISS; result < STATISTICS_RESULTS; result++) {
		if (!b->missed[result])
			continue;
		hits -= b->missed[result];
		shm_count(&calls->result[result], b->missed[result]);
	}
	shm_count(&calls->batches, 1);
	shm_count(&calls->pages, b->count);
	shm_count(&calls->result[STATISTICS_HIT], hits);
	shm_count(&calls->latency_ns_sum, ns);
	shm_count(&calls->latency[latency_bucket(ns)], 1);
	if (b->kind == BATCH_GET)
		shm_count(&s->words.get_usable, statistics_usable(b, hits));
	else if (b->kind == BATCH_EXISTS)
		shm_count(&s->words.exists_usable, statistics_usable(b, hits));
	statistics_add_counts(b->channel, &s->words);
	statistics_write_end(s);
}

/* Notes the keys of a batch for the process that records them. */
static void asked_note(const struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct channel_asked *asked = ch->asked;
	uint64_t at = shm_load64(&asked->written), used = at - shm_load_acquire64(&asked->taken);

	if (used > ASKED_WORDS || b->count >= ASKED_WORDS - used) {
		ch->asked_lost++;
		return;
	}
	shm_store64(&asked->word[at++ % ASKED_WORDS],
		(uint64_t)ch->asked_lost << ASKED_LOST_SHIFT | b->count);
	for (uint32_t i = 0; i < b->count; i++)
		shm_store64(&asked->word[at++ % ASKED_WORDS],
			b->work[i].phase == PAGE_DONE ? 0 : b->work[i].key.word[0]);
	shm_store_release64(&asked->written, at);
	ch->asked_lost = 0;
}

/* ---- segments of a page ---------------------------------------------------------------------- */

/* True if the page's segments are of one length and at one distance, as those of a run must be. */
static bool segments_alike(const struct pc_page *page)
{
	const struct pc_segment *s = page->segments, *end = s + page->segment_count;
	uint64_t stride = page_stride(page), bytes = s->bytes;
	uintptr_t base = (uintptr_t)s->base;

	if (page->segment_count > SEGMENTS_MAX || !base || !bytes ||
		bytes * page->segment_count > RUN_PAGE_BYTES_MAX || bytes > RUN_PAGE_BYTES_MAX ||
		stride < bytes || stride >= RUN_TO_MAX / SEGMENTS_MAX)
		return false;
	while (++s < end) {
		base += stride;
		if ((uintptr_t)s->base != base || s->bytes != bytes)
			return false;
	}
	return base > (uintptr_t)page->segments->base; /* else it wrapped */
}

/*
 * Returns the length of a page of several segments, bytes; 0: the caller's arguments for it are
 * invalid. *ret_regular: true if the page may be in a run, as far as its segments say.
 */
static uint32_t segments_bytes(const struct pc_page *page, bool *ret_regular)
{
	uint64_t bytes = 0;

	if (page->segment_count < 1 || page->segment_count > SEGMENTS_MAX)
		return 0;
	*ret_regular = segments_alike(page);
	if (likely(*ret_regular))
		return (uint32_t)(page->segments->bytes * page->segment_count);
	for (unsigned s = 0; s < page->segment_count; s++) {
		size_t more = page->segments[s].bytes;

		if (!page->segments[s].base || !more || more > PAGE_BYTES_MAX - bytes)
			return 0;
		bytes += more;
	}
	return (uint32_t)bytes;
}

/* The same for any page. */
static inline uint32_t page_bytes(const struct pc_page *page, bool *ret_regular)
{
	size_t bytes;

	if (unlikely(!page->segments))
		return 0;
	if (page->segment_count != 1)
		return segments_bytes(page, ret_regular);
	bytes = page->segments->bytes;
	if (unlikely(!page->segments->base || bytes > PAGE_BYTES_MAX))
		return 0;
	*ret_regular = bytes <= RUN_PAGE_BYTES_MAX;
	return (uint32_t)bytes;
}

/* ---- registered memory of a page ------------------------------------------------------------- */

static void range_pin(struct pc_batch *b, const struct memory_view *m)
{
	uint32_t word = m->slot / 64;

	if (!(b->pins >> word & 1)) {
		b->pins |= 1u << word;
		b->pinned[word] = 0;
	}
	b->pinned[word] |= 1ull << m->slot % 64;
}

/* Each segment by itself: they lie in several ranges, or some in none. */
static bool page_find_segments(
	struct pc_batch *b, const struct pc_page *page, const struct memory_view **last)
{
	bool all = true;

	for (unsigned s = 0; s < page->segment_count; s++) {
		const struct pc_segment *segment = &page->segments[s];
		const struct memory_view *m = *last;

		if (likely(m && memory_holds(m, (uintptr_t)segment->base, segment->bytes)))
			continue;
		m = memory_find(b->channel, segment->base, segment->bytes);
		if (!m) {
			all = false;
			continue;
		}
		range_pin(b, m);
		*last = m;
	}
	return all;
}

/* All segments of a regular page lie in `m`. */
static inline void page_registered(
	struct page_work *p, const struct pc_page *page, const struct memory_view *m)
{
	p->flags |= PAGE_REGISTERED;
	p->to = (uint64_t)m->region << OP_TO_BITS | ((uintptr_t)page->segments->base - m->base);
}

static const struct memory_view *page_find_new(struct pc_batch *b, struct page_work *p,
	const struct pc_page *page, const struct memory_view *last)
{
	if (p->regular) { /* all segments at once; else each may be in a range of its own */
		const struct memory_view *m =
			memory_find(b->channel, page->segments->base, page_span(page));

		if (m) {
			range_pin(b, m);
			page_registered(p, page, m);
			return m;
		}
		p->regular = false;
	}
	if (page_find_segments(b, page, &last))
		p->flags |= PAGE_REGISTERED;
	return last;
}

/*
 * Finds the registered ranges that the page's segments lie in, to be pinned. Sets PAGE_REGISTERED
 * if all lie in some, and page_work.to; clears `regular` if they do not lie in one. `last`: the
 * result of the call before this one, or NULL. Returns a range that is to be pinned, or NULL.
 */
static inline const struct memory_view *page_find(struct pc_batch *b, struct page_work *p,
	const struct pc_page *page, const struct memory_view *last)
{
	if (unlikely(!last || !p->regular ||
		     !memory_holds(last, (uintptr_t)page->segments->base, page_span(page))))
		return page_find_new(b, p, page, last);
	page_registered(p, page, last);
	return last;
}

/* ---- the pages ------------------------------------------------------------------------------- */

/*
 * The page before, if it is a usual one: one segment in a registered range. The next page is then
 * likely to be of the same length, in the same range and to have a key of the same length.
 */
struct before {
	uintptr_t base; /* of the registered range */
	/* offset in the range, below which a page of this length may start; 0: the page before was
	 * not a usual one */
	uint64_t room;
	uint64_t region;       /* region of the range, in the upper bits as in page_work.to */
	size_t key_bytes;      /* length of its key */
	struct page_work like; /* what pages_init() has made of the page before */
};

/* Makes the page `p`, which lies in the range `m` if it lies in any, the one before. */
static void before_set(struct before *b, const struct page_work *p, const struct pc_page *page,
	const struct memory_view *m)
{
	b->room = 0;
	if (!m || !p->regular || page->segment_count != 1 || p->bytes > m->bytes)
		return;
	b->base = m->base;
	b->room = m->bytes - p->bytes + 1;
	b->region = (uint64_t)m->region << OP_TO_BITS;
	b->key_bytes = page->key_bytes;
	b->like = *p;
}

static inline bool key_valid(const struct pc_page *page)
{
	return page->key && page->key_bytes - 1 < KEY_BYTES_MAX;
}

/* True if the page is like the one before; *ret_at: its offset in the registered range. */
static inline bool page_usual(const struct before *b, const struct pc_page *page, uint64_t *ret_at)
{
	const struct pc_segment *s = page->segments;

	if (unlikely(page->key_bytes != b->key_bytes || !page->key || page->segment_count != 1 ||
		     !s || s->bytes != b->like.bytes))
		return false;
	*ret_at = (uintptr_t)s->base - b->base; /* huge if `base` is below the range */
	return *ret_at < b->room;
}

/* Copies what a page has in its two lines besides its key, location and destination. */
static inline void page_start(struct page_work *p, const struct page_work *like)
{
	memcpy(&p->cached, &like->cached,
		offsetof(struct page_work, other) - offsetof(struct page_work, cached));
	memset(&p->wrong, 0, offsetof(struct page_work, crc) - offsetof(struct page_work, wrong));
}

/* A page of any shape. False: the caller's arguments for it are invalid. */
__attribute__((noinline)) static bool page_any(struct pc_batch *b, struct page_work *p,
	const struct pc_page *page, const struct memory_view **last, struct before *before)
{
	p->bytes = page_bytes(page, &p->regular);
	if (!p->bytes || !key_valid(page)) {
		p->regular = false;
		return false;
	}
	*last = page_find(b, p, page, *last);
	before_set(before, p, page, *last);
	return true;
}

/* Ends a page whose arguments are wrong, and tells which in pc_error(). */
__attribute__((noinline, cold)) static void page_refuse(struct pc_batch *b, uint32_t i)
{
	const struct pc_page *page = &b->pages[i];

	if (!key_valid(page))
		error_set(0, "the key of page %u has %zu bytes; give 1 to %u", i,
			page->key ? page->key_bytes : 0, KEY_BYTES_MAX);
	else if (!page->segments || page->segment_count < 1 || page->segment_count > SEGMENTS_MAX)
		error_set(0, "page %u has %u segments; give 1 to %u: join neighbouring ones", i,
			page->segments ? page->segment_count : 0, SEGMENTS_MAX);
	else
		error_set(0,
			"page %u has a segment without address or length, or more than %u bytes in all",
			i, PAGE_BYTES_MAX);
	page_done(b, i, PC_INVALID);
}

/* get, set: checks the caller's arguments for the pages. */
static void payload_init(struct pc_batch *b)
{
	static const struct page_work none;
	const struct pc_page *page = b->pages, *end = page + b->count;
	const struct memory_view *last = NULL;
	struct before before = {.room = 0};
	enum pc_result *result = b->results;
	struct page_work *p = b->work;
	uint32_t others = 0;
	uint64_t at;

	for (; page < end; page++, p++, result++) {
		*result = PC_PENDING;
		if (likely(page_usual(&before, page, &at))) {
			page_start(p, &before.like);
			p->bytes = before.like.bytes;
			p->to = before.region + at;
			continue;
		}
		others++;
		page_start(p, &none);
		if (!page_any(b, p, page, &last, &before))
			page_refuse(b, (uint32_t)(p - b->work));
	}
	/* the first page is never usual; if it is the only other one, all pages are like it */
	b->alike = others == 1 && before.room;
}

/* exists, remove: the same for pages that are only keys. */
static void keys_init(struct pc_batch *b)
{
	static const struct page_work none;
	const struct pc_page *page = b->pages, *end = page + b->count;
	enum pc_result *result = b->results;
	struct page_work *p = b->work;

	for (; page < end; page++, p++, result++) {
		page_start(p, &none);
		p->bytes = 0;
		*result = PC_PENDING;
		if (unlikely(!key_valid(page)))
			page_refuse(b, (uint32_t)(p - b->work));
	}
}

void pages_init(struct pc_batch *b)
{
	if (unlikely(!b->count)) { /* the caller's arrays may be NULL */
		b->alike = false;
		return;
	}
	if (b->kind == BATCH_GET || b->kind == BATCH_SET)
		payload_init(b);
	else
		keys_init(b);
	keys_hash(b);
}

/* ---- pins ------------------------------------------------------------------------------------ */

/* Finds the ranges of all pages anew: those that lay in one may now lie in several. */
static void pages_find_all(struct pc_batch *b)
{
	const struct memory_view *last = NULL;

	b->pins = 0;
	b->alike = false;
	for (uint32_t i = 0; i < b->count; i++)
		if (b->work[i].phase != PAGE_DONE) {
			b->work[i].flags &= (uint8_t)~PAGE_REGISTERED;
			last = page_find(b, &b->work[i], &b->pages[i], last);
		}
}

/* Adds `change` to the pin count of every range that the batch pins. The caller holds `lock`. */
static void pins_count(const struct pc_batch *b, uint32_t change)
{
	for (uint32_t words = b->pins; words; words &= words - 1) {
		uint32_t word = (uint32_t)__builtin_ctz(words);

		for (uint64_t left = b->pinned[word]; left; left &= left - 1)
			b->channel->pc->memory[word * 64 + (unsigned)__builtin_ctzll(left)]->pins +=
				change;
	}
}

/*
 * cold: once for each batch, with a lock. Pins the registered ranges that pages_init() has found:
 * they stay registered until the unpin.
 */
static void pages_pin(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct pc *pc = ch->pc;

	while (b->pins) {
		bool current;

		pthread_mutex_lock(&pc->lock);
		current = ch->memory_changes == pc->memory_changes;
		if (current)
			pins_count(b, 1);
		pthread_mutex_unlock(&pc->lock);
		if (likely(current))
			return;
		memory_refresh(ch);
		pages_find_all(b);
	}
}

/* cold: once for each batch, with a lock */
static void pages_unpin(struct pc_batch *b)
{
	struct pc *pc = b->channel->pc;

	if (!b->pins)
		return;
	pthread_mutex_lock(&pc->lock);
	pins_count(b, UINT32_MAX); /* adds -1 modulo 2^32 */
	pthread_mutex_unlock(&pc->lock);
	b->pins = 0;
}

/* ---- the memory of a batch ------------------------------------------------------------------- */

/* cold: once for each batch. Takes its memory from the list of spare ones, or allocates it. */
static struct pc_batch *batch_take(struct pc_channel *ch, uint32_t count)
{
	uint32_t capacity = count < BATCH_CAPACITY_MIN ? BATCH_CAPACITY_MIN : count;
	struct pc_batch *b = ch->spare;

	if (b) {
		ch->spare = b->next;
		ch->spares--;
		if (b->capacity >= count)
			return b;
		free(b); /* a larger one takes its place in the list */
	}
	b = malloc(sizeof(*b) + capacity * sizeof(b->work[0]));
	if (!b)
		return NULL;
	b->capacity = capacity;
	return b;
}

struct pc_batch *batch_make(struct pc_channel *ch, uint32_t count)
{
	struct pc_batch *b = batch_take(ch, count);

	if (!b)
		return NULL;
	b->channel = ch;
	b->next = NULL;
	b->count = b->left = count;
	memset(b->missed, 0, sizeof(b->missed));
	b->expired = b->abandoned = false;
	b->pins = 0;
	for (unsigned q = 0; q < PAGE_QUEUES; q++)
		b->queue[q].head = CLIENT_NONE;
	b->runs.head = CLIENT_NONE;
	if (ch->last)
		ch->last->next = b;
	else
		ch->first = b;
	ch->last = b;
	return b;
}

/* cold: once for each batch */
void batch_free(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct pc_batch *before = NULL;

	statistics_batch(b);
	pages_unpin(b);
	ch->writers -= batch_writes(b);
	if (ch->first != b)
		for (before = ch->first; before->next != b; before = before->next)
			continue;
	if (before)
		before->next = b->next;
	else
		ch->first = b->next;
	if (ch->last == b)
		ch->last = before;
	if (ch->spares == SPARE_BATCHES_MAX || (ch->spares && b->capacity > SPARE_PAGES_MAX)) {
		free(b);
		return;
	}
	b->next = ch->spare;
	ch->spare = b;
	ch->spares++;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Ends a page that no set can store here. */
static void page_too_large(struct pc_batch *b, uint32_t i)
{
	error_set(0,
		"page %u has %u bytes; the pools of this host take pages of at most %llu bytes: raise engine.pool_bytes, of which that is about 1/32",
		i, b->work[i].bytes, (unsigned long long)b->channel->session->page_bytes_max);
	page_done(b, i, PC_INVALID);
}

/* Starts the look-ups, stores or removals of the pages. The batch is pinned. */
static void batch_begin(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	ch->now_ns = clock_monotonic_ns();
	if (unlikely(shm_load(&ch->session->status->asked) == b->kind + 1u) && b->count)
		asked_note(b);
	credit_return(ch, ch->now_ns > STOCK_IDLE_NS ? ch->now_ns - STOCK_IDLE_NS : 0, 0);
	if (b->kind == BATCH_GET || b->kind == BATCH_EXISTS) {
		(b->kind == BATCH_GET ? get_begin : look_all)(b);
		return;
	}
	if (b->kind == BATCH_SET) {
		b->first_rail = ch->turn;
		ch->turn += b->count;
	}
	for (uint32_t i = 0; i < b->count; i++) {
		struct page_work *p = &b->work[i];

		if (p->phase == PAGE_DONE)
			continue;
		if (b->kind == BATCH_REMOVE)
			page_queue(b, i, PAGE_REMOVE);
		else if (b->kind == BATCH_SET && p->bytes > ch->session->page_bytes_max)
			page_too_large(b, i);
		else
			lookup_begin(b, i);
	}
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Ends all queued pages of a batch at its deadline. Credits that they hold go back into stock. */
static void batch_expire(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	b->expired = true;
	for (unsigned q = 0; q < PAGE_QUEUES; q++) {
		while ((i = page_unqueue(b, q)) != CLIENT_NONE) {
			const struct page_work *p = &b->work[i];

			if (q == PAGE_PUBLISH)
				credit_put(ch, p->bytes,
					&(struct stock_credit){p->at.place, p->at.generation});
			if (!fetch_stop(b, i))
				page_done(b, i, PC_TIMEOUT);
		}
	}
	while ((i = run_unqueue(b)) != CLIENT_NONE)
		for (uint32_t left = b->work[i].run_pages; left; left--, i = b->work[i].next)
			page_done(b, i, PC_TIMEOUT);
}

/*
 * Ends all pages at the end of the grace, except those that a NIC may still write into the caller's
 * memory.
 */
static void batch_abandon(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	b->abandoned = true;
	for (uint32_t i = 0; i < ch->requests; i++)
		if (ch->request[i].batch == b && !request_writes_caller(&ch->request[i]))
			ch->request[i].batch = NULL;
	for (uint32_t i = 0; i < b->count; i++) {
		const struct page_work *p = &b->work[i];

		if (p->phase == PAGE_LOOKING ||
			(p->phase == PAGE_IN_FLIGHT &&
				!(p->pieces_out && p->flags & PAGE_REGISTERED)))
			page_done(b, i, PC_TIMEOUT);
	}
}

static inline void batch_deadline_keep(struct pc_batch *b)
{
	uint64_t now_ns = b->channel->now_ns;

	if (!b->expired && now_ns >= b->deadline_ns)
		batch_expire(b);
	if (b->expired && !b->abandoned && now_ns >= b->deadline_ns + ANSWER_GRACE_NS)
		batch_abandon(b);
}

void batch_step(struct pc_batch *b)
{
	batch_deadline_keep(b);
	if (!b->expired) {
		if (page_waits(b, PAGE_LOOK))
			lookup_step(b);
		get_step(b);
		if (page_waits(b, PAGE_HEAD))
			head_step(b);
		if (b->kind == BATCH_SET)
			set_step(b);
		else
			ctl_step(b);
	}
}

/*
 * Ends every page that is not done with `result`. No READ into the caller's memory is in flight any
 * more.
 */
void batch_gone(struct pc_batch *b, enum pc_result result)
{
	for (unsigned q = 0; q < PAGE_QUEUES; q++)
		while (page_unqueue(b, q) != CLIENT_NONE)
			continue;
	while (run_unqueue(b) != CLIENT_NONE)
		continue;
	for (uint32_t i = 0; i < b->count; i++)
		if (b->work[i].phase != PAGE_DONE)
			page_done(b, i, result);
	b->expired = b->abandoned = true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/*
 * cold: once for each batch. As many parameters as the public calls, whose arguments they are, and
 * the kind.
 */
static int batch_submit(struct pc_channel *ch, enum batch_kind kind, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	uint64_t submitted_ns = clock_monotonic_ns();
	uint64_t deadline_ns =
		submitted_ns + (timeout_ms ? timeout_ms : PC_TIMEOUT_MS_DEFAULT) * 1000000ull;
	struct pc_batch *b;
	bool ready;

	if (!ch || !ret_batch || count > BATCH_MAX || (count && (!pages || !results)))
		return error_set(-EINVAL,
			"a batch needs a channel, at most %u pages and a place for their results",
			BATCH_MAX);
	/* Called before the batch is made, because a channel that loses its engine ends all its
	 * batches. */
	ready = channel_ready(ch, deadline_ns);
	b = batch_make(ch, count);
	if (!b)
		return error_set(-ENOMEM, "out of memory for a batch of %u pages", count);
	b->kind = kind;
	b->pages = pages;
	b->results = results;
	b->submitted_ns = submitted_ns;
	b->deadline_ns = deadline_ns;
	if (b->deadline_ns < ch->due_ns)
		ch->due_ns = b->deadline_ns;
	ch->writers += batch_writes(b);
	if (ready) {
		map_refresh(ch);
		memory_refresh(ch);
	}
	pages_init(b);
	if (ready) {
		pages_pin(b);
		batch_begin(b);
		channel_step(ch);
	} else {
		b->pins = 0; /* nothing was pinned */
		batch_gone(b, PC_GONE);
	}
	*ret_batch = b;
	return 0;
}

bool pc_poll(struct pc_batch *b)
{
	if (!b)
		return true;
	if (b->left)
		channel_step(b->channel);
	if (b->left)
		return false;
	batch_free(b);
	return true;
}

void pc_wait(struct pc_batch *b)
{
	if (!b)
		return;
	wait_for(b->channel, b, UINT64_MAX); /* steps, spins, then sleeps until it is woken */
	batch_free(b);
}

static int batch_call(struct pc_channel *ch, enum batch_kind kind, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results)
{
	struct pc_batch *b = NULL;
	int rc = batch_submit(ch, kind, pages, count, timeout_ms, results, &b);

	if (!rc)
		pc_wait(b);
	return rc;
}

int pc_submit_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(channel, BATCH_GET, pages, count, timeout_ms, results, ret_batch);
}

int pc_submit_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(channel, BATCH_SET, pages, count, timeout_ms, results, ret_batch);
}

int pc_submit_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(channel, BATCH_EXISTS, pages, count, timeout_ms, results, ret_batch);
}

int pc_submit_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(channel, BATCH_REMOVE, pages, count, timeout_ms, results, ret_batch);
}

int pc_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_GET, pages, count, timeout_ms, ret_results);
}

int pc_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_SET, pages, count, timeout_ms, ret_results);
}

int pc_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_EXISTS, pages, count, timeout_ms, ret_results);
}

int pc_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_REMOVE, pages, count, timeout_ms, ret_results);
}
