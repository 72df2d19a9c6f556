/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the disk on a helper thread, takes what it has finished, runs the timers of the tier and
 * closes it. The control plane's thread, except open_thread().
 */
#include "engine/control/pages/tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory.h"
#include "engine/control/loop.h"
#include "engine/control/pages/warm.h"
#include "numa/clock.h"
#include "numa/limit.h"

void *tier_memory(const struct control *control, uint32_t place)
{
	unsigned char *pool = pool_memory(control->rail[place_rail(place)].pool)->base;

	return pool + place_offset(place);
}

bool tier_has(struct tier *t, const struct page_key *key, uint32_t length)
{
	struct disk_page page;

	return disk_find(t->disk, key, &page) && page.length == length;
}

/* ---- removal --------------------------------------------------------------------------------- */

/*
 * A tombstone goes to every path, also for a key that the index does not name: an older copy may
 * lie on a disk whose index entry was lost to a read error.
 */
static enum forget_state remove_submit(
	struct tier *t, const struct page_key *key, const struct forget_wait *wait)
{
	struct tier_removed *removed = calloc(1, sizeof(*removed));

	if (!removed) {
		log_error(
			"disk: no memory to remove a page; a page with this key may come back after a restart");
		return FORGET_VOLATILE;
	}
	removed->request.op = DISK_REMOVE;
	removed->request.key = *key;
	if (wait)
		removed->wait = *wait;
	if (t->state == TIER_OPENING) {
		TAILQ_INSERT_TAIL(&t->early, removed, next);
		return FORGET_LATER;
	}
	TAILQ_INSERT_TAIL(&t->removes, removed, next);
	disk_submit(t->disk, &removed->request);
	return FORGET_LATER;
}

static void remove_tell(struct tier *t, struct tier_removed *removed, bool durable)
{
	const struct forget_wait wait = removed->wait;

	removed->wait.done = NULL;
	if (wait.done)
		wait.done(t->control, wait.context, wait.cookie, durable);
}

/* These removals do not become durable, or it is not known whether they will. */
static void removes_tell(struct tier *t, struct tier_removes *list)
{
	struct tier_removed *removed;

	TAILQ_FOREACH (removed, list, next)
		remove_tell(t, removed, false);
}

static void remove_ended(struct tier *t, struct tier_removed *removed)
{
	TAILQ_REMOVE(&t->removes, removed, next);
	remove_tell(t, removed, removed->request.status == DISK_OK);
	free(removed);
}

/* Removes what was removed while the disk was being opened. */
static void early_submit(struct tier *t)
{
	struct tier_removed *removed;

	TAILQ_FOREACH (removed, &t->early, next)
		disk_submit(t->disk, &removed->request);
	TAILQ_CONCAT(&t->removes, &t->early, next);
}

static void removes_free(struct tier_removes *list)
{
	struct tier_removed *removed;

	while ((removed = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, removed, next);
		free(removed);
	}
}

enum forget_state tier_forget(struct control *control, const struct page_key *key,
	const struct forget_wait *wait, bool *ret_had)
{
	struct tier *t = control->tier;
	struct tier_spill *spill;
	struct disk_page page;

	*ret_had = false;
	if (!t)
		return FORGET_DURABLE;
	if (t->state == TIER_FAILED)
		return FORGET_VOLATILE;
	if (t->state == TIER_SERVING) {
		tier_promote_cancel(t, key);
		spill = tier_spilling(t, key);
		*ret_had = disk_find(t->disk, key, &page) || spill;
		if (spill)
			spill->removed = true;
	}
	return remove_submit(t, key, wait);
}

void tier_replaced(struct control *control, const struct page_key *key, uint32_t length)
{
	struct tier *t = control->tier;
	const struct tier_spill *spill;
	struct disk_page page;
	bool had;

	if (!t || t->state != TIER_SERVING)
		return;
	spill = tier_spilling(t, key);
	if ((disk_find(t->disk, key, &page) && page.length != length) ||
		(spill && spill->request.length != length))
		(void)tier_forget(control, key, NULL, &had);
}

/* ---- what the disk has finished -------------------------------------------------------------- */

static void finished(struct tier *t, struct disk_request *request)
{
	switch (request->op) {
	case DISK_WRITE: tier_spilled(t, (struct tier_spill *)(void *)request); return;
	case DISK_READ: tier_promoted(t, (struct tier_promote *)(void *)request); return;
	case DISK_REMOVE: remove_ended(t, (struct tier_removed *)(void *)request); return;
	}
}
static_assert(offsetof(struct tier_spill, request) == 0, "finished() relies on it");
static_assert(offsetof(struct tier_promote, request) == 0, "finished() relies on it");
static_assert(offsetof(struct tier_removed, request) == 0, "finished() relies on it");

unsigned tier_reap(struct tier *t)
{
	struct disk_request *request;
	unsigned n = 0;

	for (; (request = disk_reap(t->disk)); n++)
		finished(t, request);
	t->lost_due = true;
	if (t->state == TIER_SERVING && !t->report.pages)
		disk_report(t->disk, &t->report); /* tier_pages() tells whether there are any */
	tier_replies_send(t);
	return n;
}

static void on_ready(evutil_socket_t fd, short what, void *context)
{
	(void)fd;
	(void)what;
	(void)tier_reap(context);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static bool in_service(const struct tier *t)
{
	for (unsigned i = 0; t->state == TIER_SERVING && i < t->report.paths; i++)
		if (t->report.path[i].state == DISK_PATH_IN_SERVICE)
			return true;
	return false;
}

bool tier_keeps_up(const struct control *control)
{
	const struct tier *t = control->tier;

	return t && in_service(t) &&
	       (!t->dropped_ns || clock_now_ns() >= t->dropped_ns + TIER_BEHIND_NS);
}

static void look(struct tier *t)
{
	if (t->state == TIER_SERVING)
		disk_report(t->disk, &t->report);
	t->disk_bytes = 0;
	for (unsigned i = 0; i < t->report.paths; i++)
		if (t->report.path[i].state == DISK_PATH_IN_SERVICE)
			t->disk_bytes +=
				(uint64_t)t->report.path[i].segments * t->options.segment_bytes;
	shm_store(&t->control->status->disk, in_service(t));
}

static void on_slow(evutil_socket_t fd, short what, void *context)
{
	struct tier *t = context;

	(void)fd;
	(void)what;
	look(t);
	t->spill_due = true;
	tier_spills_old(t, clock_now_ns());
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
	struct tier *t = context;
	uint64_t now_ns = clock_now_ns();

	(void)fd;
	(void)what;
	t->ticking = false;
	tier_pins_end(t, now_ns);
	tier_promote_expire(t, now_ns);
	tier_replies_send(t);
	if (t->pins || !TAILQ_EMPTY(&t->writing) || !TAILQ_EMPTY(&t->reading))
		tier_tick(t);
}

void tier_tick(struct tier *t)
{
	bool soon = !TAILQ_EMPTY(&t->wanted);
	const struct timeval after = {.tv_usec = soon ? TIER_SOON_US : TIER_TICK_US};

	if (t->ticking && (t->soon || !soon))
		return;
	t->ticking = event_add(t->tick, &after) == 0;
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
		work += tier_promote(t, clock_now_ns());
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
		.serves = in_service(t),
		.spills = t->spill_count,
		.pins = t->pins,
		.spill_bytes = t->spill_bytes,
		.pinned_bytes = t->pinned_bytes,
		.writing_ns = t->writing_ns};
	TAILQ_FOREACH (promote, &t->reading, next)
		ret->promotes++;
	TAILQ_FOREACH (promote, &t->wanted, next)
		ret->waiting++;
	TAILQ_FOREACH (promote, &t->capped, next)
		ret->waiting++;
}

/* ---- open ------------------------------------------------------------------------------------ */

static void *open_thread(void *context)
{
	struct tier *t = context;

	pthread_setname_np(pthread_self(), "pc-disk-open");
	t->opened_rc = disk_open(&t->options, &t->disk);
	(void)eventfd_write(t->opened_fd, 1);
	return NULL;
}

/* Is the lock of every path taken? Then no I/O of an earlier engine goes on. */
static bool all_locked(const struct tier *t)
{
	for (unsigned i = 0; i < t->report.paths; i++)
		if (t->report.path[i].state != DISK_PATH_IN_SERVICE)
			return false;
	return t->report.paths == t->options.paths;
}

/* The disk cannot be used: removals are not durable, and each path says why. */
static void failed_tell(struct tier *t)
{
	removes_tell(t, &t->early);
	for (unsigned i = 0; i < t->options.paths; i++)
		if (!t->report.path[i].reason[0])
			snprintf(t->report.path[i].reason, sizeof(t->report.path[i].reason), "%s",
				limit_error(t->opened_rc));
}

static void on_opened(evutil_socket_t fd, short what, void *context)
{
	struct tier *t = context;
	eventfd_t value;

	(void)what;
	(void)eventfd_read(fd, &value);
	(void)pthread_join(t->opener, NULL);
	t->joinable = false;
	t->state = TIER_FAILED;
	if (t->opened_rc == 0) {
		t->ready = event_new(
			t->control->base, disk_fd(t->disk), EV_READ | EV_PERSIST, on_ready, t);
		if (t->ready && event_add(t->ready, NULL) == 0)
			t->state = TIER_SERVING;
	}
	if (t->state == TIER_SERVING)
		early_submit(t);
	else
		failed_tell(t);
	look(t);
	if (t->state == TIER_SERVING && all_locked(t))
		warm_disk_locked(t->control);
	if (t->state == TIER_SERVING)
		log_info("disk: %u page(s) found on %u path(s)", t->report.pages, t->report.paths);
	else
		log_error(
			"disk: no path can be used (%s); the engine runs without a disk: set disk.paths, then restart it",
			t->report.path[0].reason);
	t->spill_due = true;
	directory_disk_opened(t->control);
}

static void lists_init(struct tier *t)
{
	TAILQ_INIT(&t->early);
	TAILQ_INIT(&t->removes);
	TAILQ_INIT(&t->spills);
	TAILQ_INIT(&t->writing);
	TAILQ_INIT(&t->capped);
	TAILQ_INIT(&t->wanted);
	TAILQ_INIT(&t->reading);
	for (unsigned i = 0; i < TIER_PIN_STEPS; i++)
		TAILQ_INIT(&t->wheel[i]);
}

static void tier_free(struct tier *t)
{
	struct event *const events[] = {t->opened, t->ready, t->slow, t->tick};

	for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		if (events[i])
			event_free(events[i]);
	if (t->opened_fd >= 0)
		close(t->opened_fd);
	tier_replies_close(t);
	free(t);
}

static int begin(struct tier *t)
{
	const struct timeval every = {.tv_usec = TIER_SLOW_US};
	struct event_base *base = t->control->base;

	t->opened_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->opened_fd < 0)
		return -errno;
	t->opened = event_new(base, t->opened_fd, EV_READ, on_opened, t);
	t->slow = event_new(base, -1, EV_PERSIST, on_slow, t);
	t->tick = event_new(base, -1, 0, on_tick, t);
	if (!t->opened || !t->slow || !t->tick || event_add(t->opened, NULL) < 0 ||
		event_add(t->slow, &every) < 0)
		return -ENOMEM;
	t->joinable = pthread_create(&t->opener, NULL, open_thread, t) == 0;
	return t->joinable ? 0 : -EAGAIN;
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
	t->opened_fd = -1;
	t->options = (struct disk_options){.segment_bytes = (uint32_t)s->disk_segment_bytes,
		.owner = control->name,
		.write_bytes_per_day = s->disk_write_bytes_per_day,
		.timeout_ms = (uint32_t)s->disk_timeout_ms,
		.failed = &t->report};
	lists_init(t);
	for (unsigned i = 0; i < control->rails; i++)
		t->pools_bytes += pool_memory(control->rail[i].pool)->bytes;
	t->spill_bytes_max = spill_bytes_max(t->pools_bytes);
	t->pinned_bytes_max = t->pools_bytes / TIER_PIN_SHARE;
	rc = tier_paths_split(s, t->paths, &t->options);
	if (rc == 0)
		rc = begin(t);
	if (rc < 0) {
		tier_free(t);
		return rc;
	}
	control->tier = t;
	return 0;
}

/* ---- close ----------------------------------------------------------------------------------- */

/* Frees what was in flight: the disk is closed, so no request returns any more. */
static void requests_free(struct tier *t)
{
	struct tier_spill *spill;

	while ((spill = TAILQ_FIRST(&t->spills))) {
		TAILQ_REMOVE(&t->spills, spill, next);
		free(spill);
	}
	tier_pins_close(t);
	tier_promote_close(t);
	removes_free(&t->early);
	removes_free(&t->removes);
}

void tier_close(struct control *control)
{
	struct tier *t = control->tier;

	if (!t)
		return;
	control->tier = NULL;
	if (t->joinable) {
		(void)pthread_join(t->opener, NULL);
		t->state = t->opened_rc == 0 ? TIER_SERVING : TIER_FAILED;
	}
	removes_tell(t, &t->early);
	if (t->state == TIER_SERVING || t->disk) {
		if (t->ready && t->state == TIER_SERVING) {
			(void)tier_reap(t);
			look(t);
			if (in_service(t))
				tier_flush(t);
		}
		removes_tell(t, &t->removes);
		if (disk_close(t->disk) < 0) {
			log_error(
				"disk: an I/O has not ended; the memory of the pools is left to the kernel");
			control->pools_stay = true;
			return; /* the requests, too, belong to the device */
		}
	}
	t->state = TIER_FAILED;
	requests_free(t);
	tier_free(t);
}
