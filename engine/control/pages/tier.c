/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: opens the disk on a helper thread, writes the pages that eviction will take soon,
 * tells the directory which pages are on disk, takes what the disk has finished, and writes what is
 * only in memory when the engine stops. tier_promote.c has the way back into memory. The control
 * plane's thread, except tier_open_run().
 *
 * Spill: when room gets scarce, the oldest pages of the pools are written, or all if the disk is
 * large, so that a burst of sets finds pages that may be evicted. As long as the disk keeps up,
 * eviction prefers pages that are on disk or being written, and takes no other page for its
 * reserve. A page that is evicted before its turn came is written from limbo. What the budget of
 * writes in flight does not allow is dropped: a set never waits for a disk.
 *
 * A path that hangs keeps what it was given: its writes leave the budget when it leaves service
 * (spill_strand()), and at the close the pools stay mapped until the process exits.
 */
#include "engine/control/pages/tier_inner.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/limits.h"
#include "config/log.h"
#include "engine/control/net/net.h"
#include "numa/limit.h"

#define FLUSH_WALK 64u /* entries of the index that are looked at together */

/* ---- pages that are written ------------------------------------------------------------------ */

struct tier_spill *tier_spilling(struct tier *t, const struct page_key *key)
{
	struct tier_spill *spill;

	LIST_FOREACH (spill, &t->spill_of[tier_chain(key->word[1])], same)
		if (!spill->request.forgotten && !spill->stranded &&
			page_key_equal(&spill->request.key, key))
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
	if (t->spill_bytes)
		t->writing_ns += now_ns - t->counted_ns;
	t->counted_ns = now_ns;
}

bool tier_spill_start(struct tier *t, const struct pool_victim *page)
{
	struct pool *pool = t->control->rail[place_rail(page->place)].pool;
	uint32_t bytes = tier_bytes(page->length);
	struct pool_proven proven = {.length = 0};
	struct tier_spill *spill;

	if (!budget_has(t, bytes) || index_ends(t->control->index, &page->key))
		return false;
	(void)pool_proven(pool, page->place, page->generation, &proven);
	spill = calloc(1, sizeof(*spill));
	if (!spill || pool_write_begin(pool, page->place, page->generation) < 0) {
		free(spill);
		return false;
	}
	spill->request = (struct disk_request){.op = DISK_WRITE,
		.key = page->key,
		.data = tier_memory(t, page->place),
		.length = page->length,
		.has_crc = proven.length != 0,
		.crc = proven.crc};
	spill->crc = proven.crc;
	spill->place = page->place;
	spill->generation = page->generation;
	spill->bytes = bytes;
	LIST_INSERT_HEAD(&t->spill_of[tier_chain(page->key.word[1])], spill, same);
	TAILQ_INSERT_TAIL(&t->spills, spill, next);
	writing_count(t, net_now());
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
 * How far ahead of eviction pages are written, for pool_ahead(). A disk of many pools takes all of
 * them, so that a kill loses few. A smaller one gets the oldest only: the log recycles in the order
 * of writing, so what is written early is gone when eviction would need it, and is written again.
 */
static uint32_t ahead_share(const struct tier *t)
{
	uint64_t share = (t->disk_bytes >> 20) * POOL_AHEAD_ALL /
			 (TIER_AHEAD_POOLS * (t->pools_bytes >> 20));

	return share < POOL_AHEAD_ALL ? (uint32_t)share : POOL_AHEAD_ALL;
}

static unsigned spill_class(struct tier *t, unsigned rail, const struct evict_class *class)
{
	struct pool *pool = t->control->rail[rail].pool;
	uint32_t bytes = class->units * PAGE_UNIT;
	uint32_t share = ahead_share(t);
	struct pool_victim page[TIER_SPILL_BURST];
	uint64_t room = t->spill_bytes_max > t->spill_bytes
				? (t->spill_bytes_max - t->spill_bytes) / bytes
				: 0;
	unsigned n;

	if (room == 0 && t->spill_bytes == 0)
		room = 1;
	if (share == 0 || room == 0)
		return 0;
	n = pool_ahead(pool, bytes, share,
		room < TIER_SPILL_BURST ? (unsigned)room : TIER_SPILL_BURST, page);
	for (unsigned i = 0; i < n; i++) {
		if (tier_has(t, &page[i].key, page[i].length) ||
			index_ends(t->control->index, &page[i].key))
			pool_clean_set(pool, page[i].place, page[i].generation, true);
		else
			(void)tier_spill_start(t, &page[i]);
	}
	return n;
}

unsigned tier_spill(struct tier *t)
{
	struct evict *evict = t->control->evict;
	unsigned work = 0;

	t->spill_due = false;
	if (t->refused_ns && net_now() < t->refused_ns + TIER_REFUSED_NS)
		return 0; /* the slow timer makes it due again */
	for (unsigned rail = 0; rail < t->control->rails; rail++)
		for (unsigned i = 0;
			eviction_is_near(t->control->rail[rail].pool) && i < CLASSES_MAX; i++)
			if (evict->rail[rail].class[i].units && evict->rail[rail].class[i].held)
				work += spill_class(t, rail, &evict->rail[rail].class[i]);
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
static void tier_dropped(struct tier *t, enum disk_status why)
{
	t->dropped_ns = net_now();
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

	if (!t || index_ends(control->index, &page->key))
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
		tier_dropped(t, DISK_DROPPED);
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

/* The page is still in memory, where it was when the write began. */
static bool spill_is_here(const struct tier *t, const struct tier_spill *spill)
{
	const struct index_entry *e = index_find(t->control->index, &spill->request.key);

	return e && e->place == spill->place && e->generation == spill->generation;
}

static void tier_spilled(struct tier *t, struct tier_spill *spill)
{
	struct control *control = t->control;
	const struct disk_request *request = &spill->request;
	bool set = index_find(control->index, &request->key);
	/* DISK_EXISTS also says that the key is being written, or was forgotten */
	bool on_disk =
		request->status == DISK_OK ||
		(request->status == DISK_EXISTS && tier_has(t, &request->key, request->length));
	struct disk_page page;

	pool_write_end(control->rail[place_rail(spill->place)].pool, spill->place,
		spill->generation, on_disk);
	control->evict->rail[place_rail(spill->place)].retry = true;
	if (request->status == DISK_OK)
		control->counter[COUNTER_disk_spills]++;
	else if (!on_disk && !request->forgotten && !spill->stranded && !spill_is_here(t, spill))
		tier_dropped(t, request->status);
	if (!on_disk && !request->forgotten)
		t->refused_ns = net_now();
	writing_count(t, net_now());
	LIST_REMOVE(spill, same);
	TAILQ_REMOVE(&t->spills, spill, next);
	if (!spill->stranded)
		t->spill_bytes -= spill->bytes;
	t->spill_count--;
	t->spill_due = true;
	if (on_disk || !tier_spilling(t, &request->key))
		tier_written(t, &request->key, on_disk);
	if (!set && !request->forgotten && disk_find(t->disk, &request->key, &page))
		(void)control->pages_events->on_disk(
			control, &page); /* it was evicted while it was written */
	if (request->status == DISK_CORRUPT)
		spill_corrupt(t, spill);
	free(spill);
}

/* The path has failed while it wrote the page: the write leaves the budget; its page is a miss. */
static void spill_strand(struct tier *t, struct tier_spill *spill)
{
	writing_count(t, net_now());
	spill->stranded = true;
	t->spill_bytes -= spill->bytes;
	t->spill_due = true;
	if (!spill->request.forgotten && !spill_is_here(t, spill))
		tier_dropped(t, DISK_OFFLINE);
	if (!tier_spilling(t, &spill->request.key))
		tier_written(t, &spill->request.key, false);
}

/* ---- removal --------------------------------------------------------------------------------- */

/* Remembers a removal until the disk is open. */
static void early_add(struct tier *t, const struct page_key *key)
{
	/* as many as a power of two have room for */
	if (!(t->early_count & (t->early_count - 1))) {
		size_t room = t->early_count ? 2 * (size_t)t->early_count : 1;
		struct page_key *grown =
			room <= TIER_EARLY_MAX ? realloc(t->early, room * sizeof(*grown)) : NULL;

		if (!grown) {
			t->control->counter[COUNTER_disk_removals_dropped]++;
			return;
		}
		t->early = grown;
	}
	t->early[t->early_count++] = *key;
}

static void early_forget(struct tier *t)
{
	for (uint32_t i = 0; i < t->early_count; i++)
		(void)disk_forget(t->disk, &t->early[i]);
	free(t->early);
	t->early = NULL;
	t->early_count = 0;
}

bool tier_forget(struct control *control, const struct page_key *key)
{
	struct tier *t = control->tier;
	struct tier_spill *spill;
	bool had;

	if (t && t->state == TIER_OPENING)
		early_add(t, key);
	if (!t || t->state != TIER_SERVING)
		return false;
	tier_promote_cancel(t, key);
	had = tier_spilling(t, key);
	LIST_FOREACH (spill, &t->spill_of[tier_chain(key->word[1])], same)
		if (page_key_equal(&spill->request.key, key))
			disk_write_forget(&spill->request);
	return disk_forget(t->disk, key) || had;
}

void tier_replaced(struct control *control, const struct page_key *key, uint32_t length)
{
	struct tier *t = control->tier;
	const struct tier_spill *spill;
	struct disk_page page;
	bool other;

	if (!t || t->state != TIER_SERVING)
		return;
	other = disk_find(t->disk, key, &page) && page.length != length;
	/* a stranded write may end after all */
	LIST_FOREACH (spill, &t->spill_of[tier_chain(key->word[1])], same)
		other = other ||
			(!spill->request.forgotten && page_key_equal(&spill->request.key, key) &&
				spill->request.length != length);
	if (other)
		(void)tier_forget(control, key);
}

/* ---- which pages are on disk ----------------------------------------------------------------- */

static bool tier_serves(const struct tier *t)
{
	return t && t->state == TIER_SERVING;
}

static bool tier_in_service(const struct tier *t)
{
	for (unsigned i = 0; t->state == TIER_SERVING && i < t->report.paths; i++)
		if (t->report.path[i].state == DISK_PATH_IN_SERVICE)
			return true;
	return false;
}

bool tier_forgets_many(const struct control *control)
{
	const struct tier *t = control->tier;

	/* without a path nothing takes the tombstones that wait, and there is nothing to forget */
	return t && tier_in_service(t) && disk_forgets_many(t->disk);
}

bool tier_find(struct control *control, const struct page_key *key, struct disk_page *ret_page)
{
	return tier_serves(control->tier) && disk_find(control->tier->disk, key, ret_page);
}

bool tier_opens(const struct control *control)
{
	return control->tier && control->tier->state == TIER_OPENING;
}

bool tier_named(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	return tier_serves(control->tier) &&
	       disk_named(control->tier->disk, place, generation, ret_key);
}

unsigned tier_slot(struct control *control, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages)
{
	if (tier_serves(control->tier))
		return disk_slot(control->tier->disk, slot, cursor, max, ret_pages);
	*cursor = 0;
	return 0;
}

struct page_key *tier_flying(struct control *control, uint32_t *ret_count)
{
	struct tier *t = control->tier;
	const struct tier_promote *promote;
	const struct tier_spill *spill;
	struct page_key *keys;
	uint32_t n = 0;

	*ret_count = 0;
	if (!tier_serves(t))
		return NULL;
	*ret_count = t->spill_count;
	for (unsigned i = 0; i < PROMOTE_STATES; i++)
		TAILQ_FOREACH (promote, &t->promotes[i], next)
			++*ret_count;
	keys = *ret_count ? malloc(*ret_count * sizeof(*keys)) : NULL;
	if (!keys)
		return NULL;
	TAILQ_FOREACH (spill, &t->spills, next)
		if (!spill->request.forgotten)
			keys[n++] = spill->request.key;
	for (unsigned i = 0; i < PROMOTE_STATES; i++)
		TAILQ_FOREACH (promote, &t->promotes[i], next)
			if (!promote->removed)
				keys[n++] = promote->request.key;
	*ret_count = n;
	return keys;
}

uint64_t tier_pages(const struct control *control)
{
	return tier_serves(control->tier) ? control->tier->report.pages : 0;
}

/* Removes the entries of pages that have left the disk and are not in memory. Returns how many. */
static unsigned tier_lost(struct tier *t)
{
	struct disk_page page[TIER_LOST_BURST];
	const struct index_entry *e;
	unsigned n;

	if (t->control->pages_events->busy(t->control))
		return 0; /* its acknowledgements make further turns */
	n = disk_lost(t->disk, TIER_LOST_BURST, page);
	for (unsigned i = 0; i < n; i++) {
		e = index_find(t->control->index, &page[i].key);
		if (e && !tier_has(t, &page[i].key, e->length)) {
			pool_clean_set(t->control->rail[place_rail(e->place)].pool, e->place,
				e->generation, false);
			t->spill_due = true; /* it is to be written again */
		} else if (!e)
			t->control->pages_events->remove(t->control, &page[i].key,
				&(struct location){
					.place = page[i].place, .generation = page[i].generation});
	}
	t->lost_due = n != 0;
	return n;
}

/* ---- what the disk has finished -------------------------------------------------------------- */

static void request_held(struct tier *t, struct disk_request *request)
{
	if (request->op == DISK_WRITE)
		spill_strand(t, (struct tier_spill *)(void *)request);
	else
		tier_promote_strand(t, (struct tier_promote *)(void *)request);
}

static void request_finished(struct tier *t, struct disk_request *request)
{
	switch (request->op) {
	case DISK_WRITE: tier_spilled(t, (struct tier_spill *)(void *)request); return;
	case DISK_READ: tier_promoted(t, (struct tier_promote *)(void *)request); return;
	}
}
static_assert(offsetof(struct tier_spill, request) == 0, "request_finished() relies on it");
static_assert(offsetof(struct tier_promote, request) == 0, "request_finished() relies on it");

/* Handles the requests that the disk has finished or holds. Returns how many. */
static unsigned tier_reap(struct tier *t)
{
	struct disk_request *request;
	unsigned n = 0;

	for (; (request = disk_reap(t->disk)); n++)
		if (request->held)
			request_held(t, request);
		else
			request_finished(t, request);
	t->lost_due = true;
	if (t->state == TIER_SERVING && !t->report.pages)
		disk_report(t->disk, &t->report); /* tier_pages() tells whether there are any */
	tier_replies_send(t);
	return n;
}

static void tier_on_ready(evutil_socket_t fd, short what, void *context)
{
	(void)fd;
	(void)what;
	(void)tier_reap(context);
}

/* ---- timers and turns ------------------------------------------------------------------------ */

bool tier_keeps_up(const struct control *control)
{
	const struct tier *t = control->tier;

	return t && tier_in_service(t) &&
	       (!t->dropped_ns || net_now() >= t->dropped_ns + TIER_BEHIND_NS);
}

static void tier_report_look(struct tier *t)
{
	uint64_t dropped = t->report.dropped_tombstones;

	if (t->state == TIER_SERVING)
		disk_report(t->disk, &t->report);
	t->control->counter[COUNTER_disk_removals_dropped] +=
		t->report.dropped_tombstones - dropped;
	t->disk_bytes = 0;
	for (unsigned i = 0; i < t->report.paths; i++)
		if (t->report.path[i].state == DISK_PATH_IN_SERVICE)
			t->disk_bytes +=
				(uint64_t)t->report.path[i].segments * t->options.segment_bytes;
	shm_store(&t->control->status->disk, tier_in_service(t));
}

static void tier_on_slow(void *context)
{
	struct tier *t = context;

	tier_report_look(t);
	t->spill_due = true;
}

static void tier_on_tick(void *context)
{
	struct tier *t = context;
	uint64_t now_ns = net_now();

	t->ticking = false;
	tier_promote_expire(t, now_ns);
	tier_replies_send(t);
	if (t->pins || !TAILQ_EMPTY(&t->promotes[PROMOTE_WRITING]) ||
		!TAILQ_EMPTY(&t->promotes[PROMOTE_READING]))
		tier_tick(t);
}

void tier_tick(struct tier *t)
{
	bool soon = !TAILQ_EMPTY(&t->promotes[PROMOTE_WANTED]);

	if (t->ticking && (t->soon || !soon))
		return;
	t->ticking = net_timer_set(t->tick, soon ? TIER_SOON_US : TIER_TICK_US) == 0;
	t->soon = soon;
}

unsigned tier_turn(struct control *control)
{
	struct tier *t = control->tier;
	unsigned work = 0;

	if (!t || t->state != TIER_SERVING)
		return 0;
	/* Clients wait for promotes, so these come first. */
	if (t->promote_due)
		work += tier_promote(t, net_now());
	if (t->spill_due)
		work += tier_spill(t);
	if (t->lost_due)
		work += tier_lost(t);
	tier_replies_send(t);
	return work;
}

void tier_counts(const struct control *control, struct tier_counts *ret)
{
	const struct tier *t = control->tier;
	const struct tier_promote *promote;

	*ret = (struct tier_counts){.state = t->state,
		.serves = tier_in_service(t),
		.spills = t->spill_count,
		.pins = t->pins,
		.spill_bytes = t->spill_bytes,
		.pinned_bytes = t->pinned_bytes,
		.writing_ns = t->writing_ns,
		.options = &t->options,
		.report = &t->report};
	TAILQ_FOREACH (promote, &t->promotes[PROMOTE_READING], next)
		ret->promotes++;
	TAILQ_FOREACH (promote, &t->promotes[PROMOTE_WANTED], next)
		ret->waiting++;
	TAILQ_FOREACH (promote, &t->promotes[PROMOTE_CAPPED], next)
		ret->waiting++;
}

/* ---- open ------------------------------------------------------------------------------------ */

static void tier_open_run(struct work *work, unsigned part)
{
	struct tier *t = (struct tier *)work;

	(void)part;
	t->opened_rc = disk_open(&t->options, &t->disk);
}

/* Is the lock of every path taken? Then no I/O of an earlier engine goes on. */
static bool paths_all_locked(const struct tier *t)
{
	for (unsigned i = 0; i < t->report.paths; i++)
		if (t->report.path[i].state != DISK_PATH_IN_SERVICE)
			return false;
	return true;
}

/* The disk cannot be used: each path says why. */
static void paths_failed_tell(struct tier *t)
{
	for (unsigned i = 0; i < t->options.paths; i++)
		if (!t->report.path[i].reason[0])
			snprintf(t->report.path[i].reason, sizeof(t->report.path[i].reason), "%s",
				limit_error(t->opened_rc));
}

static void tier_open_done(struct work *work)
{
	struct tier *t = (struct tier *)work;

	t->state = TIER_FAILED;
	if (t->opened_rc == 0) {
		t->ready = event_new(
			t->control->base, disk_fd(t->disk), EV_READ | EV_PERSIST, tier_on_ready, t);
		if (t->ready && event_add(t->ready, NULL) == 0)
			t->state = TIER_SERVING;
	}
	if (t->state == TIER_SERVING) {
		early_forget(t);
	} else {
		t->report = t->failed;
		paths_failed_tell(t);
	}
	tier_report_look(t);
	if (t->state == TIER_SERVING && paths_all_locked(t))
		warm_disk_locked(t->control);
	if (t->state == TIER_SERVING)
		log_info("disk: %u page(s) found on %u path(s)", t->report.pages, t->report.paths);
	else
		log_error(
			"disk: no path can be used (%s); the engine runs without a disk: set disk.paths, then restart it",
			t->report.path[0].reason);
	t->spill_due = true;
	t->control->pages_events->disk_opened(t->control);
}

static void tier_lists_init(struct tier *t)
{
	TAILQ_INIT(&t->spills);
	for (unsigned i = 0; i < PROMOTE_STATES; i++)
		TAILQ_INIT(&t->promotes[i]);
	for (unsigned i = 0; i < TIER_PIN_STEPS; i++)
		TAILQ_INIT(&t->wheel[i]);
	for (unsigned i = 0; i < MESSAGE_PAGES_MAX; i++)
		t->reply.page_at[i] = &t->reply.page[i];
}

static void tier_free(struct tier *t)
{
	if (t->ready)
		event_free(t->ready);
	net_timer_free(t->slow);
	net_timer_free(t->tick);
	free(t->early);
	free(t);
}

static int tier_begin(struct tier *t)
{
	struct event_base *base = t->control->base;
	int rc;

	t->slow = net_timer_new(base, true, tier_on_slow, t);
	t->tick = net_timer_new(base, false, tier_on_tick, t);
	if (!t->slow || !t->tick || net_timer_set(t->slow, TIER_SLOW_US) < 0)
		return -ENOMEM;
	rc = works_open(base,
		&(struct works_options){.name = "pc-disk-open", .queues = 1, .threads = 1},
		&t->works);
	if (rc < 0)
		return rc;
	t->opening = (struct work){.run = tier_open_run, .done = tier_open_done};
	work_submit(t->works, 0, &t->opening);
	return 0;
}

/* The budget of writes in flight: see TIER_SPILL_SHARE. */
static uint64_t spill_bytes_max(uint64_t pools)
{
	uint64_t least = pools / TIER_SPILL_SHARE_MAX, most = pools / TIER_SPILL_SHARE;

	if (least > TIER_SPILL_BYTES_MIN)
		least = TIER_SPILL_BYTES_MIN;
	if (most < least)
		most = least;
	return most < DISK_QUEUE_BYTES ? most : DISK_QUEUE_BYTES;
}

int tier_open(struct control *control)
{
	const struct settings *s = control->settings;
	struct tier *t;
	int rc;

	if (!s->disk_paths[0])
		return 0;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->control = control;
	t->options = (struct disk_options){.segment_bytes = (uint32_t)s->disk_segment_bytes,
		.owner = control->name,
		.write_bytes_per_day = s->disk_write_bytes_per_day,
		.timeout_ms = (uint32_t)s->disk_timeout_ms,
		.failed = &t->failed};
	tier_lists_init(t);
	for (unsigned i = 0; i < control->rails; i++)
		t->pools_bytes += pool_memory(control->rail[i].pool)->bytes;
	t->spill_bytes_max = spill_bytes_max(t->pools_bytes);
	t->pinned_bytes_max = t->pools_bytes / TIER_PIN_SHARE;
	rc = tier_paths_split(s, t->paths, &t->options);
	if (rc == 0)
		rc = tier_begin(t);
	if (rc < 0) {
		tier_free(t);
		return rc;
	}
	control->tier = t;
	return 0;
}

/* ---- close: pages that are only in memory are written ---------------------------------------- */

/*
 * The control plane has left its event loop: no client is attached any more. Bounded in time; what
 * is left is lost as in a crash.
 */

/* Handles what the disk has finished; without any, waits for some. False: the time is over. */
static bool flush_reap(struct tier *t, uint64_t until_ns)
{
	struct pollfd readable = {.fd = disk_fd(t->disk), .events = POLLIN};
	uint64_t now_ns = net_now();

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
		if (!flush_reap(t, until_ns))
			return false;
	(void)tier_spill_start(t, &page);
	return true;
}

/* Writes the pages that are only in memory, for at most TIER_FLUSH_NS. */
static void tier_flush(struct tier *t)
{
	uint64_t began_ns = net_now(), until_ns = began_ns + TIER_FLUSH_NS, cursor = 0;
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
		whole = flush_reap(t, until_ns);
	log_info("disk: %llu page(s) that were only in memory written in %llu ms%s",
		(unsigned long long)(t->control->counter[COUNTER_disk_spills] - before),
		(unsigned long long)((net_now() - began_ns) / 1000000),
		whole ? "" : "; the time is over, the others are lost");
}

/* Frees what was in flight: the disk is closed, so no request returns any more. */
static void requests_free(struct tier *t)
{
	struct tier_spill *spill;

	while ((spill = TAILQ_FIRST(&t->spills))) {
		TAILQ_REMOVE(&t->spills, spill, next);
		free(spill);
	}
	tier_promote_close(t);
}

void tier_close(struct control *control)
{
	struct tier *t = control->tier;

	if (!t)
		return;
	control->tier = NULL;
	works_close(t->works);
	if (t->state == TIER_OPENING)
		t->state = t->opened_rc == 0 ? TIER_SERVING : TIER_FAILED;
	if (t->ready && t->state == TIER_SERVING) {
		(void)tier_reap(t);
		tier_report_look(t);
		if (tier_in_service(t))
			tier_flush(t);
	}
	if (t->disk && disk_close(t->disk) < 0) {
		log_error(
			"disk: an I/O has not ended; the memory of the pools is left to the kernel");
		control->pools_stay = true;
		return; /* the requests, too, belong to the device */
	}
	t->state = TIER_FAILED;
	requests_free(t);
	tier_free(t);
}
