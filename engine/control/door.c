/* SPDX-License-Identifier: Apache-2.0 */
/* See door.h. */
#include "engine/control/door.h"

#include <inttypes.h>

#include "config/log.h"
#include "engine/control/base/control.h"
#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory.h"
#include "engine/control/pages/pages.h"

/* Takes all pages out of the pools. */
static void door_pages_drop(struct control *control)
{
	struct index_entry entry[64];
	uint64_t cursor, dropped = 0;
	unsigned count;

	/* the index changes meanwhile: a walk may pass over some pages */
	for (cursor = 0; cursor || index_count(control->index); dropped += count) {
		count = index_walk(control->index, &cursor, 64, entry);
		for (unsigned i = 0; i < count; i++)
			evict_take_away(
				control->evict, &entry[i].key, entry[i].place, entry[i].generation);
	}
	if (dropped == 0)
		return;
	control->counter[COUNTER_pages_unproven] += dropped;
	log_warn(
		"%" PRIu64
		" pages are dropped: no member remembers all removals of the time in which this engine was away or cut off. To keep the pages, let that be no longer than 10 minutes",
		dropped);
}

static void door_opened(struct control *control, bool drop)
{
	if (drop)
		door_pages_drop(control);
	clients_accept(control);
}

int door_open(struct control *control)
{
	struct removals_options options = {.opened = door_opened};
	struct warm_counts warm;
	int rc = warm_removals_open(control, removals_bytes(), &options.memory, &options.adopted);

	if (rc < 0)
		return rc;
	warm_counts(control, &warm);
	options.warm = warm.adopted;
	options.pages = warm.adopted || control->settings->disk_paths[0];
	rc = removals_open(control, &options);
	if (rc < 0)
		huge_close(&options.memory);
	return rc;
}
