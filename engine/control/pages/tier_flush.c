/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An orderly stop: pages that are only in memory are written, so that the next engine finds them on
 * disk. Bounded in time; what is left is lost as in a crash. The control plane's thread, which has
 * left its event loop: no client is attached any more.
 */
#include <poll.h>

#include "config/limits.h"
#include "config/log.h"
#include "engine/control/pages/tier.h"
#include "numa/clock.h"

#define FLUSH_WALK 64u /* entries of the index that are looked at together */

/* Handles what the disk has finished; without any, waits for some. False: the time is over. */
static bool reap(struct tier *t, uint64_t until_ns)
{
	struct pollfd readable = {.fd = disk_fd(t->disk), .events = POLLIN};
	uint64_t now_ns = clock_now_ns();

	if (now_ns >= until_ns)
		return false;
	if (!tier_reap(t))
		(void)poll(&readable, 1, (int)((until_ns - now_ns) / 1000000) + 1);
	return true;
}

/* False: the time is over before the page could be submitted. */
static bool flush_page(struct tier *t, const struct index_entry *entry, uint64_t until_ns)
{
	const struct pool_victim page = {.key = entry->key,
		.place = entry->place,
		.generation = entry->generation,
		.length = entry->length};

	if (pool_clean(t->control->rail[place_rail(entry->place)].pool, entry->place,
		    entry->generation) ||
		tier_has(t, &entry->key, entry->length))
		return true;
	while (t->spill_bytes && t->spill_bytes + tier_bytes(entry->length) > t->spill_bytes_max)
		if (!reap(t, until_ns))
			return false;
	(void)tier_spill_start(t, &page);
	return true;
}

void tier_flush(struct tier *t)
{
	uint64_t began_ns = clock_now_ns(), until_ns = began_ns + TIER_FLUSH_NS, cursor = 0;
	uint64_t before = t->control->counter[COUNTER_disk_spills];
	struct index_entry entry[FLUSH_WALK];
	bool whole = true;

	/* No page waits for a slot now: the limit is what the queue of a path takes. */
	t->spill_bytes_max = DISK_QUEUE_BYTES / 2;
	do {
		unsigned n = index_walk(t->control->index, &cursor, FLUSH_WALK, entry);

		for (unsigned i = 0; i < n && whole; i++)
			whole = flush_page(t, &entry[i], until_ns);
	} while (cursor && whole);
	while (!TAILQ_EMPTY(&t->spills) && whole)
		whole = reap(t, until_ns);
	log_info("disk: %llu page(s) that were only in memory written in %llu ms%s",
		(unsigned long long)(t->control->counter[COUNTER_disk_spills] - before),
		(unsigned long long)((clock_now_ns() - began_ns) / 1000000),
		whole ? "" : "; the time is over, the others are lost");
}
