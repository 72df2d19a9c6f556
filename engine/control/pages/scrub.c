/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrubber: compares the pages of the local pools with the CRC32C in their heads.
 *
 *   each tick: a piece of one page -> next page -> ... -> end of the last pool -> first pool
 *
 * A page is compared in pieces of at most SCRUB_PIECE_BYTES, so that a tick delays the loop by some
 * ten microseconds. The pace follows from engine.scrub_seconds, the time in which full pools are
 * read once, and is limited to one piece each SCRUB_TICK_NS_MIN. A page that a reader has reported
 * is compared next, in pieces of the same size, one each SCRUB_TICK_NS_MIN at most, whatever
 * engine.scrub_seconds says.
 *
 * A page with another CRC than its head says is read a second time from its start. If that differs
 * too, the page is taken out of the pool, of the directory and of the disk, whose copy may have
 * been made of the same bytes. The control plane's thread only.
 */
#include "engine/control/pages/pages_inner.h"

#include <errno.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/abi/crc32c.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"

/* A page that is being compared, in pieces. */
struct scrub_page {
	struct pool_proven page; /* length 0: none */
	uint32_t done, crc;      /* bytes of it that were read, and their CRC */
	bool again;              /* it is read for the second time */
};

struct scrub {
	struct control *control;
	struct net_timer *tick; /* NULL: engine.scrub_seconds is 0 */
	struct scrub_pace pace;
	unsigned rail;   /* pool that is being read */
	uint32_t cursor; /* pool_scrub_next()'s */
	struct scrub_page at;

	/* reports of readers: a ring, from `first` on */
	struct net_timer *soon;
	bool soon_armed; /* while `reports` or a page of a report is left */
	struct page_report report[SCRUB_REPORTS_MAX];
	unsigned first, reports;
	struct scrub_page reported;
	uint64_t logged_ns; /* time of the last log line about a report */
	uint64_t unlogged;  /* reports without a line since */
};

struct scrub_pace scrub_pace(uint64_t pools, uint64_t seconds)
{
	uint64_t rate = pools / seconds; /* bytes a second */
	uint64_t ns = rate ? SCRUB_PIECE_BYTES * 1000000000ull / rate : SCRUB_TICK_NS_MAX, bytes;

	if (ns < SCRUB_TICK_NS_MIN)
		ns = SCRUB_TICK_NS_MIN;
	if (ns > SCRUB_TICK_NS_MAX)
		ns = SCRUB_TICK_NS_MAX;
	/* not rounded down to 0: the smallest pool would never be read */
	bytes = rate < SCRUB_PIECE_BYTES ? rate * ns / 1000000000 + 1 : SCRUB_PIECE_BYTES;
	return (struct scrub_pace){
		.bytes = bytes < SCRUB_PIECE_BYTES ? (uint32_t)bytes : SCRUB_PIECE_BYTES,
		.tick_ns = ns};
}

void scrub_condemn(
	struct control *control, const struct pool_proven *page, uint32_t crc, const char *who)
{

	control->counter[COUNTER_pages_corrupt]++;
	log_error(
		"%s: rail %u: the page of %u bytes at offset %llu of the pool has CRC32C %08x, its head says %08x; the page is taken out. If this repeats, test the memory of this host",
		who, place_rail(page->place), page->length,
		(unsigned long long)place_offset(page->place), crc, page->crc);
	if (pool_page(control->rail[place_rail(page->place)].pool, page->place, page->generation))
		evict_take_away(control->evict, &page->key, page->place, page->generation);
	(void)tier_forget(control, &page->key);
}

static void scrub_page_begin(struct scrub_page *at)
{
	at->done = at->crc = 0;
	at->again = false;
}

/* The last byte of the page was read. */
static void scrub_page_end(struct control *control, struct scrub_page *at)
{
	const struct pool_proven page = at->page;

	if (at->crc != page.crc && !at->again) {
		at->again = true;
		at->done = at->crc = 0;
		return;
	}
	at->page.length = 0;
	control->counter[COUNTER_pages_scrubbed]++;
	if (at->crc != page.crc)
		scrub_condemn(control, &page, at->crc, "scrubber");
}

/* Reads up to `bytes` bytes of the page. Returns how many; 0: the page is gone. */
static uint32_t scrub_page_read(struct control *control, struct scrub_page *at, uint32_t bytes)
{
	const struct pool_proven *page = &at->page;
	uint32_t n = page->length - at->done < bytes ? page->length - at->done : bytes;
	const unsigned char *from = pool_page(
		control->rail[place_rail(page->place)].pool, page->place, page->generation);

	if (!from) {
		at->page.length = 0;
		return 0;
	}
	at->crc = crc32c(at->crc, from + at->done, n);
	at->done += n;
	if (at->done == page->length)
		scrub_page_end(control, at);
	return n;
}

/* Looks for the next page. Returns the number of slots looked at. */
static unsigned scrub_page_find(struct scrub *s, unsigned slots)
{
	unsigned looked =
		pool_scrub_next(s->control->rail[s->rail].pool, &s->cursor, slots, &s->at.page);

	scrub_page_begin(&s->at);
	if (s->cursor == 0)
		s->rail = (s->rail + 1) % s->control->rails;
	return looked;
}

void scrub_step(struct control *control, uint32_t bytes)
{
	struct scrub *s = control->scrub;
	unsigned slots = SCRUB_SLOTS;

	while (bytes && slots) {
		if (s->at.page.length)
			bytes -= scrub_page_read(control, &s->at, bytes);
		else
			slots -= scrub_page_find(s, slots);
	}
}

/* ---- reports of readers ---------------------------------------------------------------------- */

static void scrub_soon_arm(struct scrub *s)
{
	if (!s->soon_armed)
		s->soon_armed = net_timer_set(s->soon, SCRUB_TICK_NS_MIN / 1000) == 0;
}

/* Takes the next report of a page that is here. False: none is left. */
static bool report_next(struct scrub *s)
{
	while (s->reports) {
		const struct page_report *r = &s->report[s->first];
		struct pool_proven page;
		bool here = pool_proven(s->control->rail[place_rail(r->place)].pool, r->place,
				    r->generation, &page) &&
			    page_key_equal(&page.key, &r->key);

		s->first = (s->first + 1) % SCRUB_REPORTS_MAX;
		s->reports--;
		if (!here)
			continue;
		s->reported.page = page;
		scrub_page_begin(&s->reported);
		return true;
	}
	return false;
}

static void scrub_on_soon(void *context)
{
	struct scrub *s = context;

	s->soon_armed = false;
	if (s->control->stopping)
		return;
	if (s->reported.page.length || report_next(s))
		(void)scrub_page_read(s->control, &s->reported, SCRUB_PIECE_BYTES);
	if (s->reported.page.length || s->reports)
		scrub_soon_arm(s);
}

/* The key is compared too: a report with a wrong one must not stand for the right one. */
static bool report_waits(const struct scrub *s, const struct page_report *report)
{
	for (unsigned i = 0; i < s->reports; i++) {
		const struct page_report *r = &s->report[(s->first + i) % SCRUB_REPORTS_MAX];

		if (r->place == report->place && r->generation == report->generation &&
			page_key_equal(&r->key, &report->key))
			return true;
	}
	return false;
}

void scrub_reported(struct control *control, const struct page_report *report)
{
	struct scrub *s = control->scrub;

	if (!s || place_rail(report->place) >= control->rails)
		return;
	control->counter[COUNTER_pages_reported]++;
	if (s->reports == SCRUB_REPORTS_MAX || report_waits(s, report))
		return;
	s->report[(s->first + s->reports++) % SCRUB_REPORTS_MAX] = *report;
	scrub_soon_arm(s);
}

void scrub_read(struct control *control, uint32_t ref, const struct page_report *report)
{
	const struct member_record *member = member_by_ref(control, ref);
	struct scrub *s = control->scrub;
	uint64_t now_ns = net_now();
	struct member_texts texts = {.name = "a former member"};

	if (!s)
		return;
	control->counter[COUNTER_reads_corrupt]++;
	if (now_ns - s->logged_ns < SCRUB_LOG_NS) {
		s->unlogged++;
	} else {
		if (member)
			member_texts(member, &texts);
		log_error(
			"a client read a page of %s from rail %u, offset %llu of the pool, that has not the CRC32C in its page head; it was a miss, and the holder compares the page (%llu more since the last line)",
			ref == control->ref ? "this engine" : texts.name, place_rail(report->place),
			(unsigned long long)place_offset(report->place),
			(unsigned long long)s->unlogged);
		s->logged_ns = now_ns;
		s->unlogged = 0;
	}
	if (ref == control->ref)
		scrub_reported(control, report);
	else
		control->pages_events->report(control, ref, report);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void scrub_on_tick(void *context)
{
	struct scrub *s = context;

	if (!s->control->stopping)
		scrub_step(s->control, s->pace.bytes);
}

/* Starts the walk over all pages. */
static int scrub_tick_open(struct scrub *s, uint64_t seconds)
{
	struct control *control = s->control;
	uint64_t pools = 0;

	for (unsigned i = 0; i < control->rails; i++)
		pools += pool_memory(control->rail[i].pool)->bytes;
	s->pace = scrub_pace(pools, seconds);
	s->tick = net_timer_new(control->base, true, scrub_on_tick, s);
	return !s->tick || net_timer_set(s->tick, s->pace.tick_ns / 1000) < 0 ? -ENOMEM : 0;
}

int scrub_open(struct control *control)
{
	uint64_t seconds = control->settings->engine_scrub_seconds;
	struct scrub *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	control->scrub = s;
	s->control = control;
	s->soon = net_timer_new(control->base, false, scrub_on_soon, s);
	if (!s->soon || (seconds && control->rails && scrub_tick_open(s, seconds) < 0)) {
		scrub_close(control);
		return -ENOMEM;
	}
	return 0;
}

void scrub_close(struct control *control)
{
	struct scrub *s = control->scrub;

	if (!s)
		return;
	net_timer_free(s->tick);
	net_timer_free(s->soon);
	free(s);
	control->scrub = NULL;
}
