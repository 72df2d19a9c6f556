/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: memory of clients that READs write to. A region is checked, mapped, registered on every
 * NIC and made known to every rail; it is released in the reverse order. It is never unmapped
 * before every rail has returned it and every NIC has deregistered it. Runs on the control plane's
 * thread, except region_mr_work().
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/clients/client.h"
#include "engine/control/conns/conn.h"
#include "engine/control/loop.h"
#include "numa/clock.h"

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

/* ---- registration ---------------------------------------------------------------------------- */

static void rails_tell(struct control *control, struct region *r, enum rail_command_kind kind)
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
 * none. region_worked() follows.
 */
static void region_work_start(struct control *control, struct region *r)
{
	r->result = 0;
	if (helper_submit(control, r) == 0)
		return;
	region_work(control, r);
	region_worked(control, r);
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
	rails_tell(control, r, RAIL_REGION_ADD);
	if (r->staging_of)
		channel_opened(r->staging_of);
	else
		session_reply_told(s, r->id, 0);
}

/*
 * Declares the NICs lost that did not deregister the region: a NIC that does not do this has died.
 */
static void holders_lost(struct control *control, const struct region *r)
{
	bool holds[RAILS_MAX] = {false};

	for (unsigned i = 0; i < r->mrs; i++)
		if (r->mr[i].length)
			holds[i / r->extents] = true;
	for (unsigned i = 0; i < control->rails; i++)
		if (holds[i])
			conns_device_lost(control, i, r->text);
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
		holders_lost(control, r);
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

void client_regions_retry(struct control *control)
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

void region_worked(struct control *control, struct region *r)
{
	if (r->state == REGION_RELEASING)
		region_released(control, r);
	else
		region_registered(control, r);
}

/* ---- checks of client memory and requests ---------------------------------------------------- */

/*
 * Whether the session may register one more range of `extents` extents. Returns 0, or -EMFILE with
 * the reason in `text`.
 */
static int quota_check(const struct session *s, unsigned extents, char *text, size_t bytes)
{
	const struct clients *clients = s->control->clients;

	if (!session_may_take(s, SHARE_RANGES, 1)) {
		snprintf(text, bytes,
			"this session has registered %u memory ranges and may have no more: %u of %u are left to %u sessions. Register fewer, larger ranges, or release some",
			s->ranges, clients_left(clients, SHARE_RANGES), CLIENT_RANGES_MAX,
			clients->sessions);
		return -EMFILE;
	}
	if (!session_may_take(s, SHARE_EXTENTS, extents)) {
		snprintf(text, bytes,
			"this range needs %u registrations; the session has %u, and %u of %u are left to %u sessions. Put it on huge pages, raise rail.mr_bytes or release ranges",
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
static int file_check(const struct session *s, int fd, uint64_t *ret_page, char *text, size_t bytes)
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

void region_add_request(struct session *s, int memfd)
{
	uint64_t offset = s->request.a, length = s->request.b, page = 4096;
	char text[sizeof(((struct attach_reply *)0)->text)];
	struct region *r;
	unsigned shift = 0, extents = 1;
	int rc = file_check(s, memfd, &page, text, sizeof(text));

	if (rc == 0) {
		shift = region_extent_shift(s->control, length, page);
		extents = region_extents(length, shift);
		rc = quota_check(s, extents, text, sizeof(text));
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
	rails_tell(r->session->control, r, RAIL_REGION_DROP);
}

void client_region_returned(struct control *control, uint32_t region)
{
	struct region *r = region < REGIONS_MAX ? control->clients->region[region] : NULL;

	if (!r || r->state != REGION_DROPPING || r->left == 0)
		return;
	if (--r->left == 0)
		region_release(control, r);
}

bool region_close(struct control *control, struct region *r)
{
	bool held;

	r->state = REGION_RELEASING;
	region_work(control, r);
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
