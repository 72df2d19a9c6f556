/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the caller's arguments for the pages of a batch, makes the pages and pins the registered
 * ranges that they name, so that none is released meanwhile: for that, the thread holds pc->lock
 * for a short time. Two passes over the pages, because a key of the usual kind is hashed together
 * with its neighbours (key.c). Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/run.h"
#include "engine/client/attach/attach.h"
#include "engine/client/attach/memory.h"
#include "engine/client/call/call.h"
#include "engine/client/error.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"

#include <string.h>

static_assert(PC_SEGMENTS_MAX == SEGMENTS_MAX && PC_BATCH_MAX == BATCH_MAX, "as in limits.h");

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
	if (unlikely(m->device)) {
		b->device = (const void *)m->base;
		b->gpus |= m->device;
	}
}

/*
 * Each segment by itself: they lie in several ranges, or some in none. Clears p->bytes if one lies
 * only partly in GPU memory.
 */
static bool page_find_segments(struct pc_batch *b, struct page_work *p, const struct pc_page *page,
	const struct memory_view **last)
{
	bool all = true;

	for (unsigned s = 0; s < page->segment_count; s++) {
		const struct pc_segment *segment = &page->segments[s];
		const struct memory_view *m = *last;

		if (likely(m && memory_holds(m, (uintptr_t)segment->base, segment->bytes)))
			continue;
		m = memory_find(b->channel, segment->base, segment->bytes);
		if (m)
			*last = m;
		else
			m = memory_search(
				b->channel, (uintptr_t)segment->base, segment->bytes, true);
		if (m && !memory_holds(m, (uintptr_t)segment->base, segment->bytes))
			p->bytes = 0;
		all &= m && m == *last;
		if (m)
			range_pin(b, m);
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
	const void *device = b->device;
	uint32_t gpus = b->gpus;

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
	if (page_find_segments(b, p, page, &last))
		p->flags |= PAGE_REGISTERED;
	if (unlikely(!p->bytes)) { /* refused: what its other segments are does not matter */
		b->device = device;
		b->gpus = gpus;
	}
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
	return p->bytes;
}

/* Ends a page whose arguments are wrong, and tells which in pc_error(). */
__attribute__((noinline, cold)) static void page_refuse(struct pc_batch *b, uint32_t i)
{
	const struct pc_page *page = &b->pages[i];
	bool regular;

	if (!key_valid(page))
		error_set(0, "the key of page %u has %zu bytes; give 1 to %u", i,
			page->key ? page->key_bytes : 0, KEY_BYTES_MAX);
	else if (!page->segments || page->segment_count < 1 || page->segment_count > SEGMENTS_MAX)
		error_set(0, "page %u has %u segments; give 1 to %u: join neighbouring ones", i,
			page->segments ? page->segment_count : 0, SEGMENTS_MAX);
	else if (page_bytes(page, &regular))
		error_set(0,
			"page %u has a segment of which a part is registered GPU memory, and the rest is not: register all of it",
			i);
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
			if (!b->work[i].bytes)
				page_refuse(b, i);
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
 * cold: once for each batch, with a lock. Pins the registered ranges that were found: they stay
 * registered until the unpin.
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

void pages_init(struct pc_batch *b, bool pin)
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
	if (pin)
		pages_pin(b);
	else
		b->pins = 0;
}

/* cold: once for each batch, with a lock */
void pages_unpin(struct pc_batch *b)
{
	struct pc *pc = b->channel->pc;

	if (!b->pins)
		return;
	pthread_mutex_lock(&pc->lock);
	pins_count(b, UINT32_MAX); /* adds -1 modulo 2^32 */
	pthread_mutex_unlock(&pc->lock);
	b->pins = 0;
}
