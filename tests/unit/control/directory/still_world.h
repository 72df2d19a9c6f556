/* SPDX-License-Identifier: Apache-2.0 */
/* When the directory of a node has nothing more to do. */
#ifndef TESTS_STILL_WORLD_H
#define TESTS_STILL_WORLD_H

#include "engine/control/directory/directory_state.h"

static inline bool behind_any(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->walk.slots || !STAILQ_EMPTY(&owner->batches))
			return true;
	return false;
}

/* The map changed a while ago; all owners have all entries, and no other ones. */
static inline bool still(const struct directory *dir)
{
	return net_now() >= dir->move.walk_ns && !moves_any(dir) && !compares_any(dir) &&
	       dir->background == 0 && !behind_any(dir);
}

#endif
