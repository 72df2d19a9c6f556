/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client memory: regions, which READs write to. Owns every struct region and the helper threads
 * that register memory. A region is checked, mapped, registered on every NIC and made known to
 * every rail; it is released in the reverse order. It is never unmapped before every rail has
 * returned it and every NIC has deregistered it. A NIC that does not deregister it has died: the
 * region is held until the NIC's device is closed.
 *
 * The helper threads register and deregister memory while the loop goes on, because that can take
 * minutes, and a call to the driver of a dying NIC may never return. Small memory and staging
 * memory have threads of their own, so that channels can be opened meanwhile. A region belongs to
 * the threads from helper_submit() until helper_collect(). The threads take memory registrations
 * (MRs: one for each extent on each NIC) one by one, so that all threads work on one large region
 * and several regions take turns. Threads are started when they are first needed. Everything else
 * runs on the control plane's thread.
 *
 * Extents exist because NICs write into a large MR on small pages at half their rate: its address
 * translations do not fit into their caches. Memory on huge pages has 1/512 as many translations.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/clients/clients_inner.h"
#include "numa/clock.h"
#include "numa/limit.h"

/* ---- MRs of a region: on a helper thread, or on the control plane's when there is none ------- */

static int region_mr_register(
	struct control *control, struct region *r, unsigned mr, char *text, size_t text_bytes)
{
	int fd = r->staging_of ? r->staging_of->memfd : r->memfd;
	uint64_t at = (uint64_t)(mr % r->extents) << r->extent_shift;
	uint64_t bytes = r->length - at;
	int rc;

	if (r->extent_shift && bytes > 1ull << r->extent_shift)
		bytes = 1ull << r->extent_shift;
	rc = dv_mr_register(control->rail[mr / r->extents].device,
		&(struct dv_memory){.base = (char *)r->base + at,
			.length = bytes,
			.access = DV_LOCAL_WRITE | DV_RELAXED_ORDERING,
			.memfd = fd,
			.memfd_offset = r->offset + at},
		&r->mr[mr]);
	if (rc < 0)
		snprintf(text, text_bytes, "%s", dv_error());
	else
		r->lkey[mr] = r->mr[mr].lkey;
	return rc;
}

static int region_mr_deregister(
	struct control *control, struct region *r, unsigned mr, char *text, size_t text_bytes)
{
	int rc;

	if (!r->mr[mr].length)
		return 0;
	rc = dv_mr_deregister(control->rail[mr / r->extents].device, &r->mr[mr]);
	if (rc < 0)
		snprintf(text, text_bytes, "%s", dv_error());
	else
		r->mr[mr].length = 0;
	return rc;
}

/*
 * Registers one MR or, when the region is RELEASING, deregisters it. Returns 0, or -errno with the
 * reason in `text`. One thread works on an MR at a time.
 */
static int region_mr_work(
	struct control *control, struct region *r, unsigned mr, char *text, size_t text_bytes)
{
	return r->state == REGION_RELEASING ? region_mr_deregister(control, r, mr, text, text_bytes)
					    : region_mr_register(control, r, mr, text, text_bytes);
}

/*
 * Calls region_mr_work() for all MRs of the region on the caller's thread. Stores the first error
 * in r->result and r->text.
 */
static void region_work_here(struct control *control, struct region *r)
{
	for (unsigned i = 0; i < r->mrs; i++) {
		char why[sizeof(r->text)];
		int rc = region_mr_work(control, r, i, why, sizeof(why));

		if (rc == 0)
			continue;
		r->result = rc;
		snprintf(r->text, sizeof(r->text), "%s", why);
		if (r->state != REGION_RELEASING)
			break;
	}
}

/* Whether a NIC still has a registration of the region. */
static bool region_is_held(const struct region *r)
{
	for (unsigned i = 0; i < r->mrs; i++)
		if (r->mr[i].length)
			return true;
	return false;
}

/* ---- the queue of regions, under the lock ---------------------------------------------------- */

static bool region_is_registering(const struct region *r)
{
	return r->state == REGION_REGISTERING;
}

static void helper_queue_append(struct client_helper *h, struct region *r)
{
	r->next = NULL;
	if (h->first)
		h->last->next = r;
	else
		h->first = r;
	h->last = r;
}

static void helper_queue_remove(struct client_helper *h, struct region *r)
{
	struct region *previous = NULL;

	for (struct region *at = h->first; at && at != r; at = at->next)
		previous = at;
	if (previous)
		previous->next = r->next;
	else
		h->first = r->next;
	if (h->last == r)
		h->last = previous;
}

static void helper_queue_finish(struct client_helper *h, struct region *r)
{
	r->next = h->done;
	h->done = r;
	shm_store(&h->done_flag, 1);
}

/*
 * Marks the MRs that no thread has taken as done. True: no thread is working on the others either,
 * so the region is finished.
 */
static bool helper_queue_skip(struct client_helper *h, struct region *r)
{
	if (r->mrs_next < r->mrs) {
		helper_queue_remove(h, r);
		r->mrs_done += r->mrs - r->mrs_next;
		r->mrs_next = r->mrs;
	}
	return r->mrs_done == r->mrs;
}

/* ---- the helper threads' side ---------------------------------------------------------------- */

/*
 * Waits for the next MR to register or deregister. Returns NULL if the thread must end and no
 * region is queued.
 */
static struct region *helper_next(struct client_helper *h, unsigned *ret_mr)
{
	struct region *r;

	pthread_mutex_lock(&h->lock);
	while (!h->first && !h->stop)
		pthread_cond_wait(&h->more, &h->lock);
	r = h->first;
	if (r) {
		*ret_mr = r->mrs_next++;
		helper_queue_remove(h, r);
		if (r->mrs_next < r->mrs)
			/* append the region at the end of the queue, so that regions take turns */
			helper_queue_append(h, r);
	}
	pthread_mutex_unlock(&h->lock);
	return r;
}

/* Whether a log line about a long registration is due; writes the line to `text` if so. */
static bool region_progress_due(struct region *r, char *text, size_t bytes)
{
	uint64_t now_ns = clock_now_ns();

	if (!region_is_registering(r) || r->mrs_done == r->mrs ||
		now_ns - r->told_ns < CLIENT_TELL_NS)
		return false;
	r->told_ns = now_ns;
	snprintf(text, bytes,
		"registering %.1f GiB of process %d: %u of %u registrations done after %u s",
		(double)r->length / (1u << 30), (int)r->session->pid, r->mrs_done, r->mrs,
		(unsigned)((now_ns - r->began_ns) / 1000000000));
	return true;
}

/*
 * Unmaps a region that is deregistered on all NICs. Done on the helper thread, because it takes the
 * kernel seconds for some hundred GB that a NIC has touched. No other thread uses the region here.
 */
static void region_unmap(struct region *r)
{
	if (region_is_registering(r) || r->result < 0 || !r->map)
		return;
	munmap(r->map, r->map_bytes);
	r->map = NULL;
	/*
	 * If the client has exited, this is the last reference to the memfd, so the kernel frees
	 * its memory here.
	 */
	close(r->memfd);
	r->memfd = -1;
}

static void *helper_main(void *context)
{
	struct client_helper *h = context;
	struct control *control = h->control;
	struct region *r;
	unsigned mr;

	/* if the kernel refuses this, the helper thread runs on the control plane's cores */
	sched_setaffinity(0, sizeof(h->cores), &h->cores);
	while ((r = helper_next(h, &mr)) != NULL) {
		char why[sizeof(r->text)], progress[160];
		int rc = region_mr_work(control, r, mr, why, sizeof(why));
		bool tell, done;

		pthread_mutex_lock(&h->lock);
		r->mrs_done++;
		if (rc < 0 && r->result == 0) {
			r->result = rc;
			snprintf(r->text, sizeof(r->text), "%s", why);
		}
		done = rc < 0 && region_is_registering(r) ? helper_queue_skip(h, r)
							  : r->mrs_done == r->mrs;
		tell = region_progress_due(r, progress, sizeof(progress));
		pthread_mutex_unlock(&h->lock);
		if (tell)
			log_info("clients: %s", progress);
		if (!done)
			continue;
		region_unmap(r);
		pthread_mutex_lock(&h->lock);
		helper_queue_finish(h, r);
		pthread_mutex_unlock(&h->lock);
		(void)eventfd_write(control->kick, 1);
	}
	return NULL;
}

/* ---- the helper threads, as the loop calls them ---------------------------------------------- */

/* Starts one helper thread with all signals blocked, because the main thread handles signals. */
static int helper_start(struct client_helper *h)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&h->thread[h->threads], NULL, helper_main, h);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	h->threads += rc == 0;
	return -rc;
}

static struct client_helper *helper_of(struct clients *clients, const struct region *r)
{
	return r->staging_of || r->length <= CLIENT_SMALL_BYTES ? &clients->small : &clients->large;
}

/*
 * Gives the region to the helper threads. Returns 0, or -errno if there is no thread or the engine
 * stops.
 */
static int helper_submit(struct control *control, struct region *r)
{
	struct client_helper *h = helper_of(control->clients, r);
	int rc = 0;

	if (h->stop)
		return -ESHUTDOWN;
	while (h->threads < h->threads_max && h->threads < r->mrs && rc == 0)
		rc = helper_start(h);
	if (h->threads == 0) {
		log_warn(
			"clients: cannot start a helper thread: %s; the control plane registers memory on its own thread, which delays other clients",
			limit_error(rc));
		return rc;
	}
	pthread_mutex_lock(&h->lock);
	r->mrs_next = r->mrs_done = 0;
	r->began_ns = r->told_ns = clock_now_ns();
	helper_queue_append(h, r);
	pthread_cond_broadcast(&h->more);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

/* Cancels the registration of a region: the helper threads skip its MRs that none has taken yet. */
static void helper_cancel(struct control *control, struct region *r)
{
	struct client_helper *h = helper_of(control->clients, r);

	pthread_mutex_lock(&h->lock);
	if (r->mrs_next < r->mrs && r->result == 0) {
		r->result = -ECANCELED;
		snprintf(r->text, sizeof(r->text), "the session ended");
		if (helper_queue_skip(h, r)) {
			helper_queue_finish(h, r);
			(void)eventfd_write(control->kick, 1);
		}
	}
	pthread_mutex_unlock(&h->lock);
}

/* Returns one region whose MRs the helper threads have finished, or NULL. */
static struct region *helper_collect(struct client_helper *h)
{
	struct region *r;

	pthread_mutex_lock(&h->lock);
	r = h->done;
	if (r)
		h->done = r->next;
	else
		shm_store(&h->done_flag, 0);
	pthread_mutex_unlock(&h->lock);
	return r;
}

/*
 * Called before the control plane's thread is pinned. The helpers may use the cores that the
 * process has now except poll cores, or all of them if nothing is left.
 */
static void helper_open(struct control *control, struct client_helper *h, unsigned threads)
{
	cpu_set_t all;

	h->control = control;
	h->threads_max = threads;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->more, NULL);
	CPU_ZERO(&all);
	(void)sched_getaffinity(0, sizeof(all), &all);
	h->cores = all;
	for (unsigned i = 0; i < control->rails; i++)
		if (control->plan.rail[i].core >= 0)
			CPU_CLR((size_t)control->plan.rail[i].core, &h->cores);
	if (CPU_COUNT(&h->cores) == 0)
		h->cores = all;
}

/*
 * Waits until the helper threads have finished all regions they were given. From then on
 * helper_submit() fails.
 */
static void helper_stop(struct client_helper *h)
{
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	pthread_cond_broadcast(&h->more);
	pthread_mutex_unlock(&h->lock);
	while (h->threads)
		pthread_join(h->thread[--h->threads], NULL);
}

static void helper_close(struct client_helper *h)
{
	pthread_cond_destroy(&h->more);
	pthread_mutex_destroy(&h->lock);
}

/* ---- region numbers -------------------------------------------------------------------------- */

/*
 * Makes a region with a free number. `staging_of`: NULL for a client's own memory. There is always
 * a free number, because the quotas leave one. Returns NULL when the engine has no memory.
 */
static struct region *region_new(
	struct session *s, struct channel *staging_of, unsigned extents, unsigned extent_shift)
{
	struct clients *clients = s->control->clients;
	struct region *r = calloc(1, sizeof(*r));
	uint32_t id = REGION_CLIENT_0;

	while (id < REGIONS_MAX && clients->region[id])
		id++;
	if (!r || id == REGIONS_MAX)
		goto fail;
	r->mrs = extents * s->control->rails;
	r->mr = calloc(r->mrs, sizeof(*r->mr));
	r->lkey = calloc(r->mrs, sizeof(*r->lkey));
	if (!r->mr || !r->lkey)
		goto fail;
	r->id = id;
	r->session = s;
	r->memfd = -1;
	r->extents = extents;
	r->extent_shift = extent_shift;
	r->staging_of = staging_of;
	clients->region[id] = r;
	clients->regions++;
	s->regions++;
	if (staging_of)
		return r;
	clients->ranges++;
	s->ranges++;
	clients->extents += extents;
	s->extents += extents;
	return r;
fail:
	if (r) {
		free(r->mr);
		free(r->lkey);
	}
	free(r);
	return NULL;
}

/* Unmaps and frees a region that no rail uses and no NIC has registered any more. */
static void region_free(struct control *control, struct region *r)
{
	struct clients *clients = control->clients;
	struct session *s = r->session;

	if (r->map)
		munmap(r->map, r->map_bytes);
	closer_take(clients->closer, r->memfd);
	clients->region[r->id] = NULL;
	clients->regions--;
	s->regions--;
	if (r->staging_of) {
		r->staging_of->staging = NULL;
	} else {
		clients->ranges--;
		s->ranges--;
		clients->extents -= r->extents;
		s->extents -= r->extents;
	}
	free(r->mr);
	free(r->lkey);
	free(r);
}

/* ---- registration and release ---------------------------------------------------------------- */

/* Called when all MRs of the region are registered or deregistered. */
static void region_work_done(struct control *control, struct region *r);

static void region_rails_tell(
	struct control *control, struct region *r, enum rail_command_kind kind)
{
	for (unsigned i = 0; i < control->rails; i++) {
		struct rail_command command = {.kind = kind,
			.region = {.base = (uintptr_t)r->base,
				.length = r->length,
				.lkey = r->lkey[i * r->extents],
				.extent_lkey = &r->lkey[i * r->extents],
				.extent_shift = (uint8_t)r->extent_shift,
				.session = r->session->id,
				.id = r->id}};

		(void)outbox_send(control, i, &command);
	}
}

/*
 * Starts to register or deregister the region on the helper threads, or does it here if there are
 * none. region_work_done() follows.
 */
static void region_work_start(struct control *control, struct region *r)
{
	r->result = 0;
	if (helper_submit(control, r) == 0)
		return;
	region_work_here(control, r);
	region_work_done(control, r);
}

static void region_release(struct control *control, struct region *r)
{
	r->state = REGION_RELEASING;
	r->cut_devices = control->clients->cut_devices;
	region_work_start(control, r);
}

static void region_registered(struct control *control, struct region *r)
{
	struct session *s = r->session;
	char text[sizeof(r->text)];
	int rc = r->result;

	if (rc < 0 || s->ending) {
		snprintf(text, sizeof(text), "%s", r->text);
		s->waits_region = NULL;
		if (r->staging_of)
			/* the channel is freed together with its staging memory */
			r->staging_of->stopping = true;
		region_release(control, r); /* region_release() may free the region */
		if (!s->ending)
			session_fail(s, rc, text);
		return;
	}
	if (r->began_ns && clock_now_ns() - r->began_ns >= CLIENT_TELL_NS)
		log_info("clients: %.1f GiB of process %d registered on %u NICs after %u s",
			(double)r->length / (1u << 30), (int)s->pid, control->rails,
			(unsigned)((clock_now_ns() - r->began_ns) / 1000000000));
	r->state = REGION_LIVE;
	r->left = control->rails;
	s->waits_region = NULL;
	region_rails_tell(control, r, RAIL_REGION_ADD);
	if (r->staging_of)
		channel_opened(r->staging_of);
	else
		session_reply_told(s, r->id, 0);
}

/*
 * Declares the NICs lost that did not deregister the region: a NIC that does not do this has died.
 */
static void region_holders_lost(struct control *control, const struct region *r)
{
	bool holds[RAILS_MAX] = {false};

	for (unsigned i = 0; i < r->mrs; i++)
		if (r->mr[i].length)
			holds[i / r->extents] = true;
	for (unsigned i = 0; i < control->rails; i++)
		if (holds[i])
			control->client_events->nic_lost(control, i, r->text);
}

static void region_released(struct control *control, struct region *r)
{
	struct session *s = r->session;
	struct channel *c = r->staging_of;
	bool waited = s->waits_region == r;

	if (r->result < 0 && r->cut_devices != control->clients->cut_devices) {
		/*
		 * A NIC's device was closed since the release began. The failed deregistration may
		 * have been on it: deregister again.
		 */
		region_release(control, r);
		return;
	}
	if (r->result < 0) {
		/*
		 * The NIC may still write to the memory, so its mapping and the region number stay
		 * in use.
		 */
		log_error("clients: cannot deregister region %u: %s; its memory stays mapped",
			r->id, r->text);
		r->held = true;
		region_holders_lost(control, r);
		return;
	}
	region_free(control, r);
	if (c)
		channel_finish(c);
	if (waited) {
		s->waits_region = NULL;
		session_reply(s, s->request.a, 0, NULL, 0);
	}
}

void client_memory_release_held(struct control *control)
{
	control->clients->cut_devices++;
	for (unsigned id = REGION_CLIENT_0; id < REGIONS_MAX; id++) {
		struct region *r = control->clients->region[id];

		if (!r || !r->held)
			continue;
		r->held = false;
		region_release(control, r);
	}
}

static void region_work_done(struct control *control, struct region *r)
{
	if (r->state == REGION_RELEASING)
		region_released(control, r);
	else
		region_registered(control, r);
}

/* ---- checks of client memory ----------------------------------------------------------------- */

/*
 * For memory with page size `page`: returns the shift by which an extent has 1 << shift bytes; 0:
 * the memory is one extent.
 */
static unsigned region_extent_shift(const struct control *control, uint64_t length, uint64_t page)
{
	unsigned shift = 63u - (unsigned)__builtin_clzll(control->settings->rail_mr_bytes);

	return page > PAGE_UNIT || length <= 1ull << shift ? 0 : shift;
}

static unsigned region_extents(uint64_t length, unsigned shift)
{
	return shift ? (unsigned)((length - 1) >> shift) + 1 : 1;
}

/*
 * Whether the session may register one more range of `extents` extents. Returns 0, or -EMFILE with
 * the reason in `text`.
 */
static int region_quota_check(const struct session *s, unsigned extents, char *text, size_t bytes)
{
	const struct clients *clients = s->control->clients;

	if (!session_may_take(s, SHARE_RANGES, 1)) {
		snprintf(text, bytes,
			"this session has registered %u memory ranges and may have no more: %u of %u are left to %u sessions and those to come. Register fewer, larger ranges, or release some",
			s->ranges, clients_left(clients, SHARE_RANGES), CLIENT_RANGES_MAX,
			clients->sessions);
		return -EMFILE;
	}
	if (!session_may_take(s, SHARE_EXTENTS, extents)) {
		snprintf(text, bytes,
			"this range needs %u registrations; the session has %u, and %u of %u are left to %u sessions and those to come. Put it on huge pages, raise rail.mr_bytes or release ranges",
			extents, s->extents, clients_left(clients, SHARE_EXTENTS), EXTENTS_MAX,
			clients->sessions);
		return -EMFILE;
	}
	return 0;
}

/*
 * Checks the memfd and the range of a client's request. Returns 0, or -EINVAL with the reason in
 * `text`. *ret_page: page size of the file, of which offsets are multiples.
 */
static int region_file_check(
	const struct session *s, int fd, uint64_t *ret_page, char *text, size_t bytes)
{
	bool unsealed = s->control->settings->engine_unsealed_memory;
	uint64_t offset = s->request.a, length = s->request.b;
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0) {
		snprintf(text, bytes,
			"the file descriptor is no memfd; pass memory as a memfd made with MFD_ALLOW_SEALING");
		return -EINVAL;
	}
	/*
	 * A memfd with only F_SEAL_SEAL was made without MFD_ALLOW_SEALING, as other programs make
	 * memfds.
	 */
	if (!(seals & F_SEAL_SHRINK) && !(unsealed && seals == F_SEAL_SEAL)) {
		snprintf(text, bytes,
			"the memfd can shrink under the NIC: make it with MFD_ALLOW_SEALING and add F_SEAL_SHRINK");
		return -EINVAL;
	}
	*ret_page = fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize : 4096;
	if (offset % *ret_page) {
		snprintf(text, bytes,
			"offset %" PRIu64 " is no multiple of the page size of the memfd, %" PRIu64,
			offset, *ret_page);
		return -EINVAL;
	}
	if (length == 0 || length > CLIENT_REGION_BYTES_MAX) {
		snprintf(text, bytes,
			"cannot register %" PRIu64 " bytes: a region has 1 to %llu bytes", length,
			CLIENT_REGION_BYTES_MAX);
		return -EINVAL;
	}
	if (offset > (uint64_t)st.st_size || length > (uint64_t)st.st_size - offset) {
		snprintf(text, bytes,
			"offset %" PRIu64 " plus %" PRIu64
			" bytes exceeds the size of the memfd, %" PRIu64,
			offset, length, (uint64_t)st.st_size);
		return -EINVAL;
	}
	return 0;
}

static int region_map(struct region *r, uint64_t page, char *text, size_t text_bytes)
{
	void *map;

	r->map_bytes = (r->length + page - 1) / page * page;
	map = mmap(
		NULL, r->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->memfd, (off_t)r->offset);
	if (map == MAP_FAILED) {
		int rc = -errno;

		snprintf(text, text_bytes, "cannot map %zu bytes of the memfd: %s", r->map_bytes,
			strerror(errno));
		return rc;
	}
	/* keeps the client's memory, which may be 1 TB, out of the engine's core dumps */
	(void)madvise(map, r->map_bytes, MADV_DONTDUMP);
	r->map = r->base = map;
	return 0;
}

/* ---- requests of clients and channels -------------------------------------------------------- */

void region_add_request(struct session *s, int memfd)
{
	uint64_t offset = s->request.a, length = s->request.b, page = 4096;
	char text[sizeof(((struct attach_reply *)0)->text)];
	struct region *r;
	unsigned shift = 0, extents = 1;
	int rc = region_file_check(s, memfd, &page, text, sizeof(text));

	if (rc == 0) {
		shift = region_extent_shift(s->control, length, page);
		extents = region_extents(length, shift);
		rc = region_quota_check(s, extents, text, sizeof(text));
	}
	if (rc < 0) {
		closer_take(s->control->clients->closer, memfd);
		goto refuse;
	}
	r = region_new(s, NULL, extents, shift);
	if (!r) {
		closer_take(s->control->clients->closer, memfd);
		snprintf(text, sizeof(text), "the engine has no memory for one more range");
		rc = -ENOMEM;
		goto refuse;
	}
	r->memfd = memfd;
	r->offset = offset;
	r->length = length;
	rc = region_map(r, page, text, sizeof(text));
	if (rc < 0) {
		region_free(s->control, r);
		goto refuse;
	}
	r->state = REGION_REGISTERING;
	s->waits_region = r;
	region_work_start(s->control, r);
	return;
refuse:
	session_fail(s, rc, text);
}

void region_remove_request(struct session *s)
{
	struct clients *clients = s->control->clients;
	struct region *r = s->request.a < REGIONS_MAX ? clients->region[s->request.a] : NULL;

	if (!r || r->session != s || r->staging_of || r->state != REGION_LIVE) {
		session_fail(s, -EINVAL, "this session has no region of that number");
		return;
	}
	s->waits_region = r;
	region_drop(r);
}

int region_add_staging(struct channel *c, size_t offset, char *text, size_t text_bytes)
{
	struct control *control = c->session->control;
	struct region *r = region_new(c->session, c, 1, 0);

	if (!r) {
		snprintf(text, text_bytes, "the engine has no memory for one more channel");
		return -ENOMEM;
	}
	c->staging = r;
	r->base = c->map + offset;
	r->length = STAGING_BYTES;
	r->offset = offset;
	r->state = REGION_REGISTERING;
	c->session->waits_region = r;
	region_work_start(control, r);
	return 0;
}

void region_drop(struct region *r)
{
	/*
	 * the rest of the registration is skipped; region_registered() sees that the session ends
	 */
	if (r->state == REGION_REGISTERING)
		helper_cancel(r->session->control, r);
	if (r->state != REGION_LIVE)
		return;
	r->state = REGION_DROPPING;
	region_rails_tell(r->session->control, r, RAIL_REGION_DROP);
}

void client_region_returned(struct control *control, uint32_t region)
{
	struct region *r = region < REGIONS_MAX ? control->clients->region[region] : NULL;

	if (!r || r->state != REGION_DROPPING || r->left == 0)
		return;
	if (--r->left == 0)
		region_release(control, r);
}

/* ---- turns, open and close ------------------------------------------------------------------- */

static unsigned helper_turn(struct control *control, struct client_helper *h)
{
	struct region *r;
	unsigned work = 0;

	if (!shm_load(&h->done_flag))
		return 0;
	while ((r = helper_collect(h)) != NULL) {
		region_work_done(control, r);
		work++;
	}
	return work;
}

unsigned client_memory_turn(struct control *control)
{
	struct clients *clients = control->clients;

	return helper_turn(control, &clients->large) + helper_turn(control, &clients->small);
}

void client_memory_open(struct control *control)
{
	helper_open(control, &control->clients->large, CLIENT_HELPERS);
	helper_open(control, &control->clients->small, CLIENT_SMALL_HELPERS);
}

void client_memory_stop(struct clients *clients)
{
	helper_stop(&clients->large);
	helper_stop(&clients->small);
}

bool region_close(struct control *control, struct region *r)
{
	bool held;

	r->state = REGION_RELEASING;
	region_work_here(control, r);
	held = region_is_held(r);
	if (held) {
		log_error(
			"clients: cannot deregister region %u: %s; its memory stays mapped until the engine ends",
			r->id, r->text);
		r->map = NULL; /* with this, region_free() does not unmap the memory */
	}
	region_free(control, r);
	return !held;
}

void client_memory_close(struct control *control)
{
	struct clients *clients = control->clients;

	helper_close(&clients->large);
	helper_close(&clients->small);
	for (unsigned i = 0; i < REGIONS_MAX; i++)
		if (clients->region[i])
			(void)region_close(control, clients->region[i]);
}
