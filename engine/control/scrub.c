/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrubber, see scrub.h. A page with another CRC than its head says is read a second time from
 * its start. If that differs too, the page is taken out of the pool, of the directory and of the
 * disk, whose copy may have been made of the same bytes.
 */
#include "engine/control/scrub.h"

#include <errno.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/abi/crc32c.h"
#include "engine/control/publish.h"
#include "engine/control/tier.h"

struct scrub {
	struct control *control;
	struct event *tick;
	struct scrub_pace pace;
	unsigned rail;           /* pool that is being read */
	uint32_t cursor;         /* pool_scrub_next()'s */
	struct pool_proven page; /* page that is being read; length 0: none */
	uint32_t done, crc;      /* bytes of it that were read, and their CRC */
	bool again;              /* it is read for the second time */
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
	bool had;

	control->counter[COUNTER_pages_corrupt]++;
	log_error(
		"%s: rail %u: the page of %u bytes at offset %llu of the pool has CRC32C %08x, its head says %08x; the page is taken out. If this repeats, test the memory of this host",
		who, place_rail(page->place), page->length,
		(unsigned long long)place_offset(page->place), crc, page->crc);
	if (pool_page(control->rail[place_rail(page->place)].pool, page->place, page->generation))
		publish_take_away(control->publish, &page->key, page->place, page->generation);
	(void)tier_forget(control, &page->key, NULL, &had);
}

static void page_begin(struct scrub *s)
{
	s->done = s->crc = 0;
	s->again = false;
}

/* The last byte of the page was read. */
static void page_end(struct scrub *s)
{
	struct control *control = s->control;
	const struct pool_proven page = s->page;

	if (s->crc != page.crc && !s->again) {
		s->again = true;
		s->done = s->crc = 0;
		return;
	}
	s->page.length = 0;
	control->counter[COUNTER_pages_scrubbed]++;
	if (s->crc != page.crc)
		scrub_condemn(control, &page, s->crc, "scrubber");
}

/* Reads up to `bytes` bytes of the page. Returns how many; 0: the page is gone. */
static uint32_t page_read(struct scrub *s, uint32_t bytes)
{
	const struct pool_proven *page = &s->page;
	uint32_t n = page->length - s->done < bytes ? page->length - s->done : bytes;
	const unsigned char *from = pool_page(
		s->control->rail[place_rail(page->place)].pool, page->place, page->generation);

	if (!from) {
		s->page.length = 0;
		return 0;
	}
	s->crc = crc32c(s->crc, from + s->done, n);
	s->done += n;
	if (s->done == page->length)
		page_end(s);
	return n;
}

/* Looks for the next page. Returns the number of slots looked at. */
static unsigned page_find(struct scrub *s, unsigned slots)
{
	unsigned looked =
		pool_scrub_next(s->control->rail[s->rail].pool, &s->cursor, slots, &s->page);

	page_begin(s);
	if (s->cursor == 0)
		s->rail = (s->rail + 1) % s->control->rails;
	return looked;
}

void scrub_step(struct control *control, uint32_t bytes)
{
	struct scrub *s = control->scrub;
	unsigned slots = SCRUB_SLOTS;

	while (bytes && slots) {
		if (s->page.length)
			bytes -= page_read(s, bytes);
		else
			slots -= page_find(s, slots);
	}
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
	struct scrub *s = context;

	(void)fd;
	(void)what;
	if (!s->control->stopping)
		scrub_step(s->control, s->pace.bytes);
}

int scrub_open(struct control *control)
{
	uint64_t seconds = control->settings->engine_scrub_seconds, pools = 0;
	struct timeval every;
	struct scrub *s;

	if (!seconds)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->control = control;
	for (unsigned i = 0; i < control->rails; i++)
		pools += pool_memory(control->rail[i].pool)->bytes;
	s->pace = scrub_pace(pools, seconds);
	every = (struct timeval){.tv_sec = (time_t)(s->pace.tick_ns / 1000000000),
		.tv_usec = (suseconds_t)(s->pace.tick_ns % 1000000000 / 1000)};
	s->tick = event_new(control->base, -1, EV_PERSIST, on_tick, s);
	if (!s->tick || event_add(s->tick, &every) < 0) {
		if (s->tick)
			event_free(s->tick);
		free(s);
		return -ENOMEM;
	}
	control->scrub = s;
	return 0;
}

void scrub_close(struct control *control)
{
	if (!control->scrub)
		return;
	event_free(control->scrub->tick);
	free(control->scrub);
	control->scrub = NULL;
}
