/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory registrations (MRs) of a region: one for each extent on each NIC. Runs on the helper
 * threads, or on the control plane's thread when no helper can be started; one thread works on an
 * MR at a time.
 *
 * Extents exist because NICs write into a large MR on small pages at half their rate: its address
 * translations do not fit into their caches. Memory on huge pages has 1/512 as many translations.
 */
#include <stdio.h>

#include "engine/control/clients/client.h"

unsigned region_extent_shift(const struct control *control, uint64_t length, uint64_t page)
{
	unsigned shift = 63u - (unsigned)__builtin_clzll(control->settings->rail_mr_bytes);

	return page > PAGE_UNIT || length <= 1ull << shift ? 0 : shift;
}

unsigned region_extents(uint64_t length, unsigned shift)
{
	return shift ? (unsigned)((length - 1) >> shift) + 1 : 1;
}

static int mr_register(
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

static int mr_deregister(
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

int region_mr_work(
	struct control *control, struct region *r, unsigned mr, char *text, size_t text_bytes)
{
	return r->state == REGION_RELEASING ? mr_deregister(control, r, mr, text, text_bytes)
					    : mr_register(control, r, mr, text, text_bytes);
}

void region_work(struct control *control, struct region *r)
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

bool region_is_held(const struct region *r)
{
	for (unsigned i = 0; i < r->mrs; i++)
		if (r->mr[i].length)
			return true;
	return false;
}
