/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps of earlier times, which tell a walk which owners have our entries. A map is shared, not
 * copied: what differs is who has dropped our entries since. Control plane's thread only.
 */
#ifndef CONTROL_DIRECTORY_PAST_H
#define CONTROL_DIRECTORY_PAST_H

#include "engine/control/placement.h"

/*
 * The map of an earlier time, or the present one, and which of its owners have none of our entries:
 * bit i % 64 of word i / 64 is owner i of the view.
 */
struct past {
	struct map_view *view; /* NULL: a map without owners */
	uint64_t without[OWNERS_MAX / 64];
};

/* Makes `past` refer to the map of `from`. */
void past_set(struct past *past, const struct past *from);
void past_drop(struct past *past);
/* True if all owners of `view` have our entries, and it is the map of `past`. */
bool past_is(const struct past *past, const struct map_view *view);
/* The owner with that ref dropped our entries: it counts as an owner of nothing in this map. */
void past_forget(struct past *past, uint32_t ref);

#endif
