/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of clients that READs land in: checked, mapped, registered on every NIC, known to every
 * rail; and the same backwards. Nothing is unmapped before every rail has returned it and every NIC
 * has forgotten it. The loop's thread, except region_work().
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
#include "engine/control/attach.h"
#include "engine/control/connect.h"
#include "engine/control/loop.h"

/* ---- numbers --------------------------------------------------------------------------------- */

static struct region *region_new(struct session *s, char *text, size_t text_bytes)
{
	struct attach *a = s->control->attach;
	struct region *r = NULL;
	uint32_t id = REGION_CLIENT_0;

	while (id < REGIONS_MAX && a->region[id])
		id++;
	if (id < REGIONS_MAX)
		r = calloc(1, sizeof(*r));
	if (!r) {
		snprintf(text, text_bytes, "%u of %u regions are registered on this engine",
			a->regions, REGIONS_MAX - REGION_CLIENT_0);
		return NULL;
	}
	r->id = id;
	r->session = s;
	r->memfd = -1;
	a->region[id] = r;
	a->regions++;
	s->regions++;
	return r;
}

/* Nobody uses it any more. */
static void region_free(struct control *control, struct region *r)
{
	if (r->map)
		munmap(r->map, r->map_bytes);
	if (r->memfd >= 0)
		close(r->memfd);
	if (r->staging_of)
		r->staging_of->staging = NULL;
	control->attach->region[r->id] = NULL;
	control->attach->regions--;
	r->session->regions--;
	free(r);
}

/* ---- registration ---------------------------------------------------------------------------- */

static void nics_forget(struct control *control, struct region *r)
{
	while (r->registered) {
		unsigned i = r->registered - 1;
		int rc = dv_mr_deregister(control->rail[i].device, &r->mr[i]);

		if (rc < 0) {
			r->result = rc;
			snprintf(r->text, sizeof(r->text), "%s", dv_error());
			return;
		}
		r->registered--;
	}
}

void region_work(struct control *control, struct region *r)
{
	int fd = r->staging_of ? r->staging_of->memfd : r->memfd;

	r->result = 0;
	if (r->state == REGION_RELEASING) {
		nics_forget(control, r);
		if (r->map && r->registered == 0) { /* takes seconds a TB: not the loop's */
			munmap(r->map, r->map_bytes);
			r->map = NULL;
		}
		return;
	}
	for (unsigned i = 0; i < control->rails; i++) {
		int rc = dv_mr_register(control->rail[i].device, r->base, r->length,
			DV_LOCAL_WRITE | DV_RELAXED_ORDERING, fd, r->offset, &r->mr[i]);

		if (rc < 0) {
			char why[sizeof(r->text)];

			snprintf(why, sizeof(why), "%s", dv_error());
			nics_forget(control, r);
			if (r->result == 0)
				snprintf(r->text, sizeof(r->text), "%s", why);
			r->result = rc;
			return;
		}
		r->registered = i + 1;
	}
}

static void rails_tell(struct control *control, struct region *r, enum rail_command_kind kind)
{
	for (unsigned i = 0; i < control->rails; i++) {
		struct rail_command command = {.kind = kind,
			.region = {.base = (uintptr_t)r->base,
				.length = r->length,
				.lkey = r->mr[i].lkey,
				.session = r->session->id,
				.id = r->id}};

		(void)loop_tell(control, i, &command);
	}
}

/* Small memory at once, large memory on the helper thread; region_worked() follows. */
static void region_work_start(struct control *control, struct region *r)
{
	if (r->length > ATTACH_INLINE_BYTES && helper_submit(control, r) == 0)
		return;
	region_work(control, r);
	region_worked(control, r);
}

static void region_release(struct control *control, struct region *r)
{
	r->state = REGION_RELEASING;
	region_work_start(control, r);
}

static void region_registered(struct control *control, struct region *r)
{
	struct session *s = r->session;
	char text[sizeof(r->text)];
	int rc = r->result;

	if (rc < 0 && r->registered == 0) {
		snprintf(text, sizeof(text), "%s", r->text);
		s->waits_region = NULL;
		region_free(control, r);
		session_reply(s, rc, 0, 0, NULL, 0, text);
		return;
	}
	if (rc < 0 || s->ending) {
		s->waits_region = NULL;
		region_release(control, r);
		if (!s->ending)
			session_reply(s, rc, 0, 0, NULL, 0, "the NIC refused the memory");
		return;
	}
	r->state = REGION_LIVE;
	r->left = control->rails;
	s->waits_region = NULL;
	rails_tell(control, r, RAIL_REGION_ADD);
	session_reply_told(s, r->id, 0);
}

static void region_released(struct control *control, struct region *r)
{
	struct session *s = r->session;
	struct channel *c = r->staging_of;
	bool waited = s->waits_region == r;

	if (r->result < 0) {
		/* It may still be written to: the memory and the number stay taken. */
		log_error("clients: region %u cannot be deregistered: %s; its memory stays mapped",
			r->id, r->text);
		r->held = true;
		connect_device_lost(control, r->registered - 1, r->text);
		return;
	}
	region_free(control, r);
	if (c)
		channel_finish(c);
	if (waited) {
		s->waits_region = NULL;
		session_reply(s, 0, s->request.a, 0, NULL, 0, NULL);
	}
}

void attach_regions_retry(struct control *control)
{
	for (unsigned id = REGION_CLIENT_0; id < REGIONS_MAX; id++) {
		struct region *r = control->attach->region[id];

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

/* ---- a client's memory ----------------------------------------------------------------------- */

/* Why this file cannot be a region, or 0; *ret_page is what its mappings are multiples of. */
static int file_check(int fd, bool unsealed, uint64_t offset, uint64_t length, uint64_t *ret_page,
	char *text, size_t bytes)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0) {
		snprintf(text, bytes, "memory is passed as a memfd made with MFD_ALLOW_SEALING");
		return -EINVAL;
	}
	/* F_SEAL_SEAL alone: made without MFD_ALLOW_SEALING, as other programs make theirs. */
	if (!(seals & F_SEAL_SHRINK) && !(unsealed && seals == F_SEAL_SEAL)) {
		snprintf(text, bytes, "the memfd can shrink under the NIC: make it with "
			"MFD_ALLOW_SEALING and add F_SEAL_SHRINK");
		return -EINVAL;
	}
	*ret_page = fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize : 4096;
	if (offset % *ret_page) {
		snprintf(text, bytes, "offset %" PRIu64 " is no multiple of %" PRIu64, offset,
			 *ret_page);
		return -EINVAL;
	}
	if (length == 0 || length > ATTACH_REGION_BYTES_MAX) {
		snprintf(text, bytes, "%" PRIu64 " bytes: a region has 1 to %llu", length,
			ATTACH_REGION_BYTES_MAX);
		return -EINVAL;
	}
	if (offset > (uint64_t)st.st_size || length > (uint64_t)st.st_size - offset) {
		snprintf(text, bytes, "offset %" PRIu64 " and %" PRIu64 " bytes of %" PRIu64,
			offset, length, (uint64_t)st.st_size);
		return -EINVAL;
	}
	return 0;
}

static int region_map(struct region *r, uint64_t page, char *text, size_t text_bytes)
{
	void *map;

	r->map_bytes = (r->length + page - 1) / page * page;
	map = mmap(NULL, r->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->memfd,
		(off_t)r->offset);
	if (map == MAP_FAILED) {
		int rc = -errno;

		snprintf(text, text_bytes, "mapping %zu bytes of the memfd: %s", r->map_bytes,
			strerror(errno));
		return rc;
	}
	(void)madvise(map, r->map_bytes, MADV_DONTDUMP); /* the client's, and perhaps a TB */
	r->map = r->base = map;
	return 0;
}

void region_add_request(struct session *s, int memfd)
{
	uint64_t offset = s->request.a, length = s->request.b, page = 4096;
	char text[160];
	struct region *r;
	bool unsealed = s->control->settings->engine_unsealed_memory;
	int rc = file_check(memfd, unsealed, offset, length, &page, text, sizeof(text));

	if (rc < 0) {
		close(memfd);
		goto refuse;
	}
	r = region_new(s, text, sizeof(text));
	if (!r) {
		close(memfd);
		rc = -EMFILE;
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
	session_reply(s, rc, 0, 0, NULL, 0, text);
}

void region_remove_request(struct session *s)
{
	struct attach *a = s->control->attach;
	struct region *r = s->request.a < REGIONS_MAX ? a->region[s->request.a] : NULL;

	if (!r || r->session != s || r->staging_of || r->state != REGION_LIVE) {
		session_reply(s, -EINVAL, 0, 0, NULL, 0, "this session has no such region");
		return;
	}
	s->waits_region = r;
	region_drop(r);
}

int region_add_staging(struct channel *c, size_t offset, char *text, size_t text_bytes)
{
	struct control *control = c->session->control;
	struct region *r = region_new(c->session, text, text_bytes);

	if (!r)
		return -EMFILE;
	c->staging = r;
	r->staging_of = c;
	r->base = c->map + offset;
	r->length = STAGING_BYTES;
	r->offset = offset;
	region_work(control, r);
	if (r->result < 0) {
		snprintf(text, text_bytes, "%s", r->text);
		return r->result; /* channel_free() takes it along */
	}
	r->state = REGION_LIVE;
	r->left = control->rails;
	rails_tell(control, r, RAIL_REGION_ADD);
	return 0;
}

void region_drop(struct region *r)
{
	if (r->state != REGION_LIVE)
		return; /* being registered: region_registered() sees that the session ends */
	r->state = REGION_DROPPING;
	rails_tell(r->session->control, r, RAIL_REGION_DROP);
}

void attach_region_returned(struct control *control, uint32_t region)
{
	struct region *r = region < REGIONS_MAX ? control->attach->region[region] : NULL;

	if (!r || r->state != REGION_DROPPING || r->left == 0)
		return;
	if (--r->left == 0)
		region_release(control, r);
}

bool region_close(struct control *control, struct region *r)
{
	bool held;

	nics_forget(control, r);
	held = r->registered != 0;
	if (held) {
		log_error("clients: region %u cannot be deregistered: %s", r->id, r->text);
		r->map = NULL; /* region_free() leaves the mapping alone */
	}
	region_free(control, r);
	return !held;
}
