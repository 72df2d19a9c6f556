/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spill: when room gets scarce, all pages of the pools are written, the oldest first, so that a
 * burst of sets finds pages that may be evicted. As long as the disk keeps up, eviction prefers
 * pages that are on disk or being written, and takes no other page for its reserve. A page that is
 * evicted before its turn came is written from limbo. What the budget of writes in flight does not
 * allow is dropped: a set never waits for a disk. The control plane's thread only.
 */
#include <stdlib.h>

#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory.h"
#include "engine/control/pages/scrub.h"
#include "engine/control/pages/tier.h"
#include "numa/clock.h"

struct tier_spill *tier_spilling(struct tier *t, const struct page_key *key)
{
	struct tier_spill *spill;

	LIST_FOREACH (spill, &t->spill_of[tier_chain(key->word[1])], same)
		if (!spill->removed && page_key_equal(&spill->request.key, key))
			return spill;
	return NULL;
}

/* Room for one page more. A page that is larger than the whole budget is written alone. */
static bool budget_has(const struct tier *t, uint32_t bytes)
{
	return t->spill_bytes == 0 || t->spill_bytes + bytes <= t->spill_bytes_max;
}

/* Counts the time in which pages are being written; to be called before their number changes. */
static void writing_count(struct tier *t, uint64_t now_ns)
{
	if (t->spill_count)
		t->writing_ns += now_ns - t->counted_ns;
	t->counted_ns = now_ns;
}

bool tier_spill_start(struct tier *t, const struct pool_victim *page)
{
	struct pool *pool = t->control->rail[place_rail(page->place)].pool;
	uint32_t bytes = tier_bytes(page->length);
	struct pool_proven proven = {.length = 0};
	struct tier_spill *spill;

	if (!budget_has(t, bytes))
		return false;
	(void)pool_proven(pool, page->place, page->generation, &proven);
	spill = calloc(1, sizeof(*spill));
	if (!spill || pool_write_begin(pool, page->place, page->generation) < 0) {
		free(spill);
		return false;
	}
	spill->request = (struct disk_request){.op = DISK_WRITE,
		.key = page->key,
		.data = tier_memory(t->control, page->place),
		.length = page->length,
		.has_crc = proven.length != 0,
		.crc = proven.crc};
	spill->crc = proven.crc;
	spill->place = page->place;
	spill->generation = page->generation;
	spill->bytes = bytes;
	spill->since_ns = clock_now_ns();
	LIST_INSERT_HEAD(&t->spill_of[tier_chain(page->key.word[1])], spill, same);
	TAILQ_INSERT_TAIL(&t->spills, spill, next);
	writing_count(t, spill->since_ns);
	t->spill_bytes += bytes;
	t->spill_count++;
	disk_submit(t->disk, &spill->request);
	return true;
}

/*
 * Half of the chunks of the pool are in use: bursts of sets may need the others, and then each size
 * may lose pages, its own or a chunk, to any size.
 */
static bool eviction_is_near(const struct pool *pool)
{
	uint32_t chunk_bytes = (uint32_t)pool_page_bytes_max(pool);

	return pool_free(pool, chunk_bytes) <= pool_memory(pool)->bytes / chunk_bytes / 2;
}

/*
 * Pages of the class that are to be on disk: all. A disk smaller than twice the pools gets a part
 * of them, because it would recycle the oldest before they are evicted.
 */
static uint32_t ahead_of(const struct tier *t, const struct ctl_class *class)
{
	uint64_t held = class->held;

	if (t->disk_bytes / 2 >= t->pools_bytes)
		return UINT32_MAX;
	return (uint32_t)(held * (t->disk_bytes >> 21) / (t->pools_bytes >> 20));
}

static unsigned spill_class(struct tier *t, unsigned rail, const struct ctl_class *class)
{
	struct pool *pool = t->control->rail[rail].pool;
	uint32_t bytes = class->units * PAGE_UNIT;
	uint32_t ahead = ahead_of(t, class);
	struct pool_victim page[TIER_SPILL_BURST];
	uint64_t room = t->spill_bytes_max > t->spill_bytes
				? (t->spill_bytes_max - t->spill_bytes) / bytes
				: 0;
	unsigned n;

	if (room == 0 && t->spill_bytes == 0)
		room = 1;
	if (ahead == 0 || room == 0)
		return 0;
	n = pool_ahead(pool, bytes, ahead,
		room < TIER_SPILL_BURST ? (unsigned)room : TIER_SPILL_BURST, page);
	for (unsigned i = 0; i < n; i++) {
		if (tier_has(t, &page[i].key, page[i].length))
			pool_clean_set(pool, page[i].place, page[i].generation, true);
		else
			(void)tier_spill_start(t, &page[i]);
	}
	return n;
}

unsigned tier_spill(struct tier *t)
{
	struct ctl *p = t->control->ctl;
	unsigned work = 0;

	t->spill_due = false;
	if (t->refused_ns && clock_now_ns() < t->refused_ns + TIER_REFUSED_NS)
		return 0; /* the slow timer makes it due again */
	for (unsigned rail = 0; rail < t->control->rails; rail++)
		for (unsigned i = 0;
			eviction_is_near(t->control->rail[rail].pool) && i < CLASSES_MAX; i++)
			if (p->rail[rail].class[i].units && p->rail[rail].class[i].held)
				work += spill_class(t, rail, &p->rail[rail].class[i]);
	/* Pages that were found on disk took no budget: look on. */
	t->spill_due = work != 0;
	return work;
}

void tier_published(struct control *control)
{
	if (control->tier)
		control->tier->spill_due = true;
}

/* A page that was in memory only was evicted and is not on disk. */
static void dropped(struct tier *t, enum disk_status why)
{
	t->dropped_ns = clock_now_ns();
	t->control->counter[COUNTER_disk_drops]++;
	if (why == DISK_SPENT)
		t->control->counter[COUNTER_disk_drops_budget]++;
	else if (why == DISK_TOO_LARGE)
		t->control->counter[COUNTER_disk_drops_size]++;
}

bool tier_evicting(
	struct control *control, const struct pool_victim *page, struct disk_page *ret_page)
{
	struct tier *t = control->tier;
	bool spilling = false;

	if (!t)
		return false;
	t->spill_due = true;
	if (t->state == TIER_SERVING) {
		if (disk_find(t->disk, &page->key, ret_page) && ret_page->length == page->length)
			return true;
		/* A clean page may have been recycled on disk since. One that is being written is
		 * not written again. */
		spilling = tier_spilling(t, &page->key) || tier_spill_start(t, page);
	}
	if (!spilling)
		dropped(t, DISK_DROPPED);
	return false;
}

/* The page in memory was damaged before it was written, which the disk has refused. */
static void spill_corrupt(struct tier *t, const struct tier_spill *spill)
{
	const struct pool_proven page = {.key = spill->request.key,
		.place = spill->place,
		.generation = spill->generation,
		.length = spill->request.length,
		.crc = spill->crc};

	scrub_condemn(t->control, &page, spill->request.crc, "spill to disk");
}

void tier_spilled(struct tier *t, struct tier_spill *spill)
{
	struct control *control = t->control;
	const struct disk_request *request = &spill->request;
	const struct index_entry *e = index_find(control->index, &request->key);
	bool here = e && e->place == spill->place && e->generation == spill->generation;
	/* DISK_EXISTS also says that the key is being removed */
	bool on_disk =
		request->status == DISK_OK ||
		(request->status == DISK_EXISTS && tier_has(t, &request->key, request->length));
	struct disk_page page;

	pool_write_end(control->rail[place_rail(spill->place)].pool, spill->place,
		spill->generation, on_disk);
	control->ctl->rail[place_rail(spill->place)].retry = true;
	if (request->status == DISK_OK)
		control->counter[COUNTER_disk_spills]++;
	else if (!on_disk && !here)
		dropped(t, request->status);
	if (!on_disk)
		t->refused_ns = clock_now_ns();
	writing_count(t, clock_now_ns());
	LIST_REMOVE(spill, same);
	TAILQ_REMOVE(&t->spills, spill, next);
	if (!spill->stranded)
		t->spill_bytes -= spill->bytes;
	t->spill_count--;
	t->spill_due = true;
	tier_written(t, &request->key, on_disk);
	if (!e && !spill->removed && disk_find(t->disk, &request->key, &page))
		(void)directory_on_disk(control, &page); /* it was evicted while it was written */
	if (request->status == DISK_CORRUPT)
		spill_corrupt(t, spill);
	free(spill);
}

void tier_spills_old(struct tier *t, uint64_t now_ns)
{
	uint64_t limit_ns = 2 * (uint64_t)t->options.timeout_ms * 1000000;
	struct tier_spill *spill;

	TAILQ_FOREACH (spill, &t->spills, next) {
		if (now_ns - spill->since_ns < limit_ns)
			return;
		if (spill->stranded)
			continue;
		spill->stranded = true;
		t->spill_bytes -= spill->bytes;
		t->spill_due = true;
	}
}
