/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client memory: regions, which READs write to. Owns every struct region and the helper threads
 * that register memory. A region is checked, mapped, registered on every NIC and made known to
 * every rail; it is released in the reverse order. It is never unmapped before every rail has
 * returned it and every NIC has deregistered it. A NIC that does not deregister it has died: the
 * region is held until the NIC's device is closed. When the device is opened anew, the memory is
 * registered there again before the rail is used.
 *
 * Helper threads (base/work.h) register and deregister memory while the loop goes on, because that
 * can take minutes, and a call to the driver of a dying NIC may never return. Small memory and
 * staging memory have threads of their own, so that channels can be opened meanwhile. A region
 * belongs to the threads from region_work_start() until region_work_done(). Its memory
 * registrations (MRs: one for each extent on each NIC) are the parts of one call, so that all
 * threads work on one large region and several regions take turns. Everything else runs on the
 * control plane's thread.
 *
 * Extents exist because NICs write into a large MR on small pages at half their rate: its address
 * translations do not fit into their caches. Memory on huge pages has 1/512 as many translations.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/control/clients/clients_inner.h"
#include "engine/control/net/net.h"

#define PROCESS_EXITING 4u /* PF_EXITING in /proc/PID/stat */

/* ---- MRs of a region: on a helper thread, or on the control plane's when there is none ------- */

/* Whether the NIC of this MR does not know the registration: its device was opened anew since. */
static bool region_mr_is_stale(const struct control *control, const struct region *r, unsigned mr)
{
	return dv_mr_stale(control->rail[mr / r->extents].device, &r->mr[mr]);
}

static int region_mr_register(
	struct control *control, struct region *r, unsigned mr, char *text, size_t text_bytes)
{
	int fd = r->staging_of ? r->staging_of->memfd : r->memfd;
	uint64_t at = (uint64_t)(mr % r->extents) << r->extent_shift;
	uint64_t bytes = r->length - at;
	int rc;

	if (r->mr[mr].length && !region_mr_is_stale(control, r, mr))
		return 0;
	if (r->extent_shift && bytes > 1ull << r->extent_shift)
		bytes = 1ull << r->extent_shift;
	if (r->key)
		rc = dv_mr_import(control->rail[mr / r->extents].device,
			&(struct dv_memory){.base = (char *)r->base + at, .length = bytes},
			r->key[mr].handle, r->key[mr].lkey, &r->mr[mr]);
	else
		rc = dv_mr_register(control->rail[mr / r->extents].device,
			&(struct dv_memory){.base = (char *)r->base + at,
				.length = bytes,
				.access = DV_LOCAL_WRITE | DV_RELAXED_ORDERING,
				.memfd = fd,
				.memfd_offset = r->offset + at},
			&r->mr[mr]);
	if (rc < 0)
		text_fit(text, text_bytes, "%s", dv_error());
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
		text_fit(text, text_bytes, "%s", dv_error());
	else
		r->mr[mr].length = 0;
	return rc;
}

/* While it is renewing, the control plane may change the state. */
static bool region_is_registering(const struct region *r)
{
	return r->renewing || r->state == REGION_REGISTERING;
}

/*
 * Registers one MR or, when the region is RELEASING, deregisters it. Returns 0, or -errno with the
 * reason in `text`. One thread works on an MR at a time.
 */
static int region_mr_work(
	struct control *control, struct region *r, unsigned mr, char *text, size_t text_bytes)
{
	return region_is_registering(r) ? region_mr_register(control, r, mr, text, text_bytes)
					: region_mr_deregister(control, r, mr, text, text_bytes);
}

/* Whether the region has to be registered anew on the NIC of the rail; RAILS_MAX: on any NIC. */
static bool region_is_stale(const struct control *control, const struct region *r, unsigned rail)
{
	for (unsigned i = 0; i < r->mrs; i++)
		if ((rail == RAILS_MAX || i / r->extents == rail) &&
			region_mr_is_stale(control, r, i))
			return true;
	return false;
}

/* Whether a NIC still has a registration of the region. */
static bool region_is_held(const struct region *r)
{
	for (unsigned i = 0; i < r->mrs; i++)
		if (r->mr[i].length)
			return true;
	return false;
}

static struct works *region_works(const struct region *r)
{
	const struct clients *clients = r->session->control->clients;

	return r->staging_of || r->length <= CLIENT_SMALL_BYTES ? clients->small : clients->large;
}

/* Whether a log line about a long registration is due; writes the line to `text` if so. */
static bool region_progress_due(struct region *r, char *text, size_t bytes)
{
	uint64_t now_ns = net_now();

	if (!region_is_registering(r) || r->mrs_done == r->mrs ||
		now_ns - r->told_ns < CLIENT_TELL_NS)
		return false;
	r->told_ns = now_ns;
	text_fit(text, bytes,
		"registering %.1f GiB of process %d: %u of %u registrations done after %u s",
		(double)r->length / (1u << 30), (int)r->session->pid, r->mrs_done, r->mrs,
		(unsigned)((now_ns - r->began_ns) / 1000000000));
	return true;
}

/* Books the result of one MR. The first failed registration ends the others. */
static void region_mr_run(struct work *work, unsigned mr)
{
	struct region *r = (struct region *)work;
	struct control *control = r->session->control;
	pthread_mutex_t *lock = &control->clients->results;
	char why[sizeof(r->text)], progress[160];
	int rc = region_mr_work(control, r, mr, why, sizeof(why));
	bool tell;

	pthread_mutex_lock(lock);
	r->mrs_done++;
	if (rc < 0 && r->result == 0) {
		r->result = rc;
		text_fit(r->text, sizeof(r->text), "%s", why);
	}
	tell = region_progress_due(r, progress, sizeof(progress));
	pthread_mutex_unlock(lock);
	if (tell)
		log_info("clients: %s", progress);
	if (rc < 0 && region_is_registering(r))
		(void)work_cancel(region_works(r), 0, work);
}

/*
 * Unmaps a region that is deregistered on all NICs. Done on the helper thread, because it takes the
 * kernel seconds for some hundred GB that a NIC has touched.
 */
static void region_unmap(struct work *work)
{
	struct region *r = (struct region *)work;

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

/* Skips the MRs that no thread has taken. */
static void region_cancel(struct region *r)
{
	pthread_mutex_t *lock = &r->session->control->clients->results;

	if (!work_cancel(region_works(r), 0, &r->work))
		return;
	pthread_mutex_lock(lock);
	if (r->result == 0) {
		r->result = -ECANCELED;
		text_fit(r->text, sizeof(r->text), "the session ended");
	}
	pthread_mutex_unlock(lock);
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
	free(r->key);
	free(r);
}

/* ---- registration and release ---------------------------------------------------------------- */

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

/* All MRs of the region are registered or deregistered. */
static void region_work_done(struct work *work);

/* Starts to register or deregister the region. region_work_done() follows. */
static void region_work_start(struct region *r)
{
	r->result = 0;
	r->mrs_done = 0;
	r->began_ns = r->told_ns = net_now();
	r->work.parts = r->mrs;
	r->work.run = region_mr_run;
	r->work.end = region_unmap;
	r->work.done = region_work_done;
	work_submit(region_works(r), 0, &r->work);
}

static void region_release(struct control *control, struct region *r)
{
	r->state = REGION_RELEASING;
	r->cut_devices = control->clients->cut_devices;
	region_work_start(r);
}

static void region_registered(struct control *control, struct region *r)
{
	struct session *s = r->session;
	char text[sizeof(r->text)];
	int rc = r->result;

	if (r->key && (rc < 0 || s->ending))
		/* of a session that ends, the process has named them: it has no descriptor */
		region_lend_end(s, true);
	if (rc < 0 || s->ending) {
		text_fit(text, sizeof(text), "%s", r->text);
		s->waits_region = NULL;
		if (r->staging_of)
			/* the channel is freed together with its staging memory */
			r->staging_of->stopping = true;
		region_release(control, r);
		if (!s->ending)
			session_fail(s, rc, text);
		return;
	}
	if (r->key)
		region_lend_end(s, false);
	if (region_is_stale(control, r, RAILS_MAX)) {
		/* a NIC's device was opened anew meanwhile */
		region_work_start(r);
		return;
	}
	if (net_now() - r->began_ns >= CLIENT_TELL_NS)
		log_info("clients: %.1f GiB of process %d registered on %u NICs after %u s",
			(double)r->length / (1u << 30), (int)s->pid, control->rails,
			(unsigned)((net_now() - r->began_ns) / 1000000000));
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

static void region_renew(struct region *r)
{
	r->renewing = true;
	region_work_start(r);
}

static void region_renewal_done(struct control *control, struct region *r)
{
	r->renewing = false;
	r->renewed = r->state == REGION_LIVE ? r->result : 0;
	if (r->state == REGION_LIVE && r->result == 0)
		region_rails_tell(control, r, RAIL_REGION_KEY);
	else if (r->state == REGION_DROPPING && r->left == 0)
		region_release(control, r);
}

/* Takes the failures of a round: the text of the first one, and its errno; 0: there was none. */
static int renewal_failed(struct clients *clients, char *why, size_t bytes)
{
	int rc = 0;

	for (unsigned id = REGION_CLIENT_0; id < REGIONS_MAX; id++) {
		struct region *r = clients->region[id];

		if (!r || r->renewed == 0)
			continue;
		if (rc == 0)
			text_fit(why, bytes, "%s", r->text);
		rc = rc ? rc : r->renewed;
		r->renewed = 0;
	}
	return rc;
}

int client_memory_renew(struct control *control, unsigned rail, char *why, size_t bytes)
{
	int left = 0;

	for (unsigned id = REGION_CLIENT_0; id < REGIONS_MAX; id++) {
		struct region *r = control->clients->region[id];

		/* others are not known to the rails yet: region_registered() looks itself */
		if (!r || r->state != REGION_LIVE)
			continue;
		if (r->key && region_is_stale(control, r, rail))
			/* only the process can register it anew: it attaches again */
			session_end(r->session, "a NIC is back, on which its memory is unknown");
		else if (!r->renewing && r->renewed == 0 && region_is_stale(control, r, rail))
			region_renew(r);
		left += r->renewing;
	}
	return left ? left : renewal_failed(control->clients, why, bytes);
}

static void region_work_done(struct work *work)
{
	struct region *r = (struct region *)work;

	if (r->renewing)
		region_renewal_done(r->session->control, r);
	else if (r->state == REGION_RELEASING)
		region_released(r->session->control, r);
	else
		region_registered(r->session->control, r);
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

static void region_refuse(struct session *s, int rc, const char *text)
{
	if (rc == -EMFILE)
		session_deny(s, rc, text);
	else
		session_fail(s, rc, text);
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
		text_fit(text, bytes,
			"the file descriptor is no memfd; pass memory as a memfd made with MFD_ALLOW_SEALING");
		return -EINVAL;
	}
	/*
	 * A memfd with only F_SEAL_SEAL was made without MFD_ALLOW_SEALING, as other programs make
	 * memfds.
	 */
	if (!(seals & F_SEAL_SHRINK) && !(unsealed && seals == F_SEAL_SEAL)) {
		text_fit(text, bytes,
			"the memfd can shrink under the NIC: make it with MFD_ALLOW_SEALING and add F_SEAL_SHRINK");
		return -EINVAL;
	}
	*ret_page = fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize : 4096;
	if (offset % *ret_page) {
		text_fit(text, bytes,
			"offset %" PRIu64 " is no multiple of the page size of the memfd, %" PRIu64,
			offset, *ret_page);
		return -EINVAL;
	}
	if (length == 0 || length > CLIENT_REGION_BYTES_MAX) {
		text_fit(text, bytes,
			"cannot register %" PRIu64 " bytes: a region has 1 to %llu bytes", length,
			CLIENT_REGION_BYTES_MAX);
		return -EINVAL;
	}
	if (offset > (uint64_t)st.st_size || length > (uint64_t)st.st_size - offset) {
		text_fit(text, bytes,
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

		text_fit(text, text_bytes, "cannot map %zu bytes of the memfd: %s", r->map_bytes,
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
		rc = region_quota_check(s, extents, length, text, sizeof(text));
	}
	if (rc < 0) {
		closer_take(s->control->clients->closer, memfd);
		goto refuse;
	}
	r = region_new(s, NULL, extents, shift);
	if (!r) {
		closer_take(s->control->clients->closer, memfd);
		text_fit(text, sizeof(text), "the engine has no memory for one more range");
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
	region_work_start(r);
	return;
refuse:
	region_refuse(s, rc, text);
}

/* ---- memory that a client registers itself --------------------------------------------------- */

unsigned clients_lent(const struct control *control)
{
	return control->clients->lent;
}

static void sweep_run(struct work *work, unsigned rail)
{
	struct clients *clients = (void *)((char *)work - offsetof(struct clients, sweep));
	int found = dv_mr_sweep(clients->control->rail[rail].device);

	if (found)
		log_info(
			"clients: rail %u: deregistered %d extents that processes which ended had registered",
			rail, found);
}

static void sweep_done(struct work *work);

/* Not while anything is lent: it would deregister what others are about to name. */
static void sweep_start(struct clients *clients)
{
	if (!clients->sweep_wanted || clients->lent || clients->sweeping ||
		clients->control->stopping)
		return;
	clients->sweep_wanted = false;
	clients->sweeping = true;
	clients->sweep = (struct work){
		.parts = clients->control->rails, .run = sweep_run, .done = sweep_done};
	work_submit(clients->large, 0, &clients->sweep);
}

static void sweep_done(struct work *work)
{
	struct clients *clients = (void *)((char *)work - offsetof(struct clients, sweep));

	clients->sweeping = false;
	sweep_start(clients);
}

/* Whether the kernel may be closing what the process has, in any order. */
static bool process_exits(const struct session *s)
{
	char path[32], text[512] = "", *at;
	unsigned flags = PROCESS_EXITING; /* if unknown */
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)s->pid);
	fd = s->pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return true;
	if (read(fd, text, sizeof(text) - 1) > 0 && (at = strrchr(text, ')')))
		(void)sscanf(at, ") %*c %*d %*d %*d %*d %*d %u", &flags);
	close(fd);
	return flags & PROCESS_EXITING;
}

bool region_lend_returned(const struct session *s)
{
	struct pollfd exited = {.fd = s->pidfd, .events = POLLIN};
	ssize_t n = recv(s->loan, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT);

	for (unsigned i = REGION_CLIENT_0; i < REGIONS_MAX; i++) {
		const struct region *r = s->control->clients->region[i];

		if (r && r->session == s && r->key && r->state == REGION_REGISTERING)
			return false; /* region_registered() ends the loan */
	}
	/* its end without a byte: a request asks, or the process has never taken the reply */
	return n > 0 || (n == 0 && (!s->ending || !process_exits(s) || poll(&exited, 1, 0) > 0));
}

void region_lend_end(struct session *s, bool sweep)
{
	struct clients *clients = s->control->clients;

	clients->sweep_wanted |= sweep;
	if (s->lent) {
		closer_take(clients->closer, s->loan); /* it may hold descriptors */
		shm_store(&s->control->status->lent, --clients->lent);
	}
	s->lent = false;
	sweep_start(clients);
}

/* Whether the process may have a descriptor of a device. Returns 0 or -errno, why in `text`. */
static int lend_check(const struct session *s, char *text, size_t bytes)
{
	const struct control *control = s->control;
	struct ucred peer = {.uid = (uid_t)-1};
	socklen_t peer_bytes = sizeof(peer);

	if (control->settings->engine_client_verbs == CLIENT_VERBS_NO) {
		text_fit(text, bytes, "engine.client_verbs is no");
		return -EPERM;
	}
	if (getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) < 0 ||
		(control->settings->engine_client_verbs == CLIENT_VERBS_SAME_USER &&
			peer.uid != geteuid())) {
		text_fit(text, bytes,
			"the process runs as user %u, the engine as user %u: engine.client_verbs=yes allows it",
			(unsigned)peer.uid, (unsigned)geteuid());
		return -EPERM;
	}
	if (s->pidfd < 0) {
		text_fit(text, bytes, "the engine cannot watch this process");
		return -EPERM;
	}
	if (shm_load(&control->status->lent_back)) {
		text_fit(text, bytes, "a NIC of the engine is lost or comes back");
		return -EAGAIN;
	}
	/* one that is lent a NIC already asks for the next one: the sweep waits for it */
	if (!s->lent && (control->clients->sweep_wanted || control->clients->sweeping)) {
		text_fit(text, bytes, "the engine deregisters memory of processes that ended");
		return -EAGAIN;
	}
	if (s->request.a >= control->rails || !s->request.b || s->lent != (s->request.a > 0)) {
		text_fit(text, bytes, "this engine has %u rails, and rail 0 is lent first",
			control->rails);
		return -EINVAL;
	}
	return 0;
}

/* *ret_end: the process's end of s->loan. */
static int loan_begin(struct session *s, int *ret_end)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	s->loan = ends[0];
	s->lent = true;
	shm_store(&s->control->status->lent, ++s->control->clients->lent);
	*ret_end = ends[1];
	return 0;
}

void region_lend_request(struct session *s)
{
	struct control *control = s->control;
	char text[sizeof(((struct attach_reply *)0)->text)];
	uint32_t domain = 0;
	int fd[2] = {-1, -1}, rc;
	unsigned fds = 0;

	if (s->lent && s->request.a == 0 && region_lend_returned(s))
		region_lend_end(s, true); /* it has not named what it registered before */
	rc = lend_check(s, text, sizeof(text));
	if (rc == 0) {
		rc = dv_lend(control->rail[s->request.a].device, &fd[1], &domain);
		text_fit(text, sizeof(text), "%s", rc ? dv_error() : "");
	}
	rc = rc == -ENODEV ? 0 : rc;
	if (rc == 0 && !s->lent) {
		rc = loan_begin(s, &fd[0]);
		text_fit(text, sizeof(text), "the engine has no descriptor for it");
	}
	if (rc < 0) {
		session_fail(s, rc, text);
	} else {
		fds = (fd[0] >= 0) + (fd[1] >= 0);
		session_reply(s, domain, region_extent_shift(control, s->request.b, PAGE_UNIT),
			&fd[fd[0] < 0], fds);
	}
	for (unsigned i = 0; i < 2; i++)
		if (fd[i] >= 0)
			close(fd[i]);
}

/* Reads what the client has registered: r->mrs keys, from the start of its memfd. */
static int region_keys_read(struct region *r, int memfd)
{
	size_t bytes = r->mrs * sizeof(*r->key);

	r->key = calloc(r->mrs, sizeof(*r->key));
	if (!r->key)
		return -ENOMEM;
	/* only a memfd has seals, and reading one does not block */
	if (memfd < 0 || fcntl(memfd, F_GET_SEALS) < 0 ||
		pread(memfd, r->key, bytes, 0) != (ssize_t)bytes)
		return -EINVAL;
	return 0;
}

void region_import_request(struct session *s, int memfd)
{
	uint64_t base = s->request.a, length = s->request.b;
	char text[sizeof(((struct attach_reply *)0)->text)] =
		"nothing was lent to this process, or it has not given it back, or the range is none";
	bool returned = s->lent && region_lend_returned(s);
	struct region *r = NULL;
	unsigned shift = 0, extents = 1;
	int rc = -EINVAL;

	if (returned && base && length && length <= CLIENT_REGION_BYTES_MAX &&
		base + length > base) {
		shift = region_extent_shift(s->control, length, PAGE_UNIT);
		extents = region_extents(length, shift);
		rc = region_quota_check(s, extents, length, text, sizeof(text));
	}
	if (rc == 0) {
		text_fit(text, sizeof(text), "the engine cannot read the keys of the range");
		r = region_new(s, NULL, extents, shift);
		rc = r ? region_keys_read(r, memfd) : -ENOMEM;
	}
	closer_take(s->control->clients->closer, memfd);
	if (rc < 0) {
		if (r)
			region_free(s->control, r);
		if (returned)
			region_lend_end(s, true);
		region_refuse(s, rc, text);
		return;
	}
	r->base = (void *)(uintptr_t)base;
	r->length = length;
	r->state = REGION_REGISTERING;
	s->waits_region = r;
	region_work_start(r);
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
	struct region *r = region_new(c->session, c, 1, 0);

	if (!r) {
		text_fit(text, text_bytes, "the engine has no memory for one more channel");
		return -ENOMEM;
	}
	c->staging = r;
	r->base = c->map + offset;
	r->length = c->bytes - offset;
	r->offset = offset;
	r->state = REGION_REGISTERING;
	c->session->waits_region = r;
	region_work_start(r);
	return 0;
}

void region_drop(struct region *r)
{
	/*
	 * the rest of the registration is skipped; region_registered() sees that the session ends
	 */
	if (r->state == REGION_REGISTERING || r->renewing)
		region_cancel(r);
	if (r->state != REGION_LIVE)
		return;
	r->state = REGION_DROPPING;
	region_rails_tell(r->session->control, r, RAIL_REGION_DROP);
}

void client_region_returned(struct control *control, uint32_t region)
{
	struct region *r = region < REGIONS_MAX ? control->clients->region[region] : NULL;

	if (!r || r->state != REGION_DROPPING)
		return;
	if (--r->left == 0 && !r->renewing)
		region_release(control, r);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Called before the control plane's thread is pinned: its helpers may use the other cores. */
int client_memory_open(struct control *control)
{
	struct clients *clients = control->clients;
	struct works_options options = {.queues = 1};
	cpu_set_t cores;
	int rc;

	plan_cores_beside(&control->plan, &cores);
	options.cores = &cores;
	pthread_mutex_init(&clients->results, NULL);
	options.name = "pc-memory";
	options.threads = CLIENT_HELPERS;
	rc = works_open(control->base, &options, &clients->large);
	if (rc < 0)
		return rc;
	options.name = "pc-small-memory";
	options.threads = CLIENT_SMALL_HELPERS;
	return works_open(control->base, &options, &clients->small);
}

/* A region that is registered, and not needed any more, is released at once: hence the loop. */
static void works_finish(struct works *works)
{
	while (works && works_busy(works)) {
		(void)works_wait(works, UINT32_MAX);
		works_turn(works);
	}
}

void client_memory_stop(struct clients *clients)
{
	works_finish(clients->large);
	works_finish(clients->small);
}

bool region_close(struct control *control, struct region *r)
{
	bool held;

	r->state = REGION_RELEASING;
	for (unsigned i = 0; i < r->mrs; i++)
		region_mr_run(&r->work, i);
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

	for (unsigned i = 0; i < REGIONS_MAX; i++)
		if (clients->region[i])
			(void)region_close(control, clients->region[i]);
	works_close(clients->large);
	works_close(clients->small);
	pthread_mutex_destroy(&clients->results);
}
