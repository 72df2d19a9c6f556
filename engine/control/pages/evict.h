/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction: how many slots each page size needs. The control plane's thread only.
 */
#ifndef CONTROL_EVICT_H
#define CONTROL_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/control/pages/ghost.h"
#include "engine/control/pages/index.h"

struct control;

/*
 * The reserve of free slots of a size class without demand: 2 % of the class, at least
 * EVICT_AHEAD_MIN, and at most 1/EVICT_AHEAD_SHARE of the class.
 */
#define EVICT_AHEAD_MIN 16u
#define EVICT_AHEAD_SHARE 8u
static inline uint64_t evict_reserve(uint64_t slots)
{
	uint64_t ahead = slots / 50 > EVICT_AHEAD_MIN ? slots / 50 : EVICT_AHEAD_MIN;

	return ahead < slots / EVICT_AHEAD_SHARE ? ahead : slots / EVICT_AHEAD_SHARE;
}

/* One page size of one pool: how many slots its credit requests wait for, and its demand. */
struct evict_class {
	uint32_t units;   /* page size in units; 0: this record is unused */
	uint32_t held;    /* number of credits and pages of this size */
	uint32_t waiting; /* number of slots that the waiting credit requests still need */
	uint32_t own;     /* part of these: of groups that give pages of their own for them */
	/* of clients/ctl*.c: the last ctl_pass() in which pool_take() found no slot of this size */
	uint32_t pass;
	uint32_t taken; /* number of credits granted since window_ns */
	/*
	 * slots expected to be needed in one limbo period: 1.5 times the rate that `taken` showed
	 * last, 3 times if requests waited, or more if it was higher before
	 */
	uint32_t demand;
	uint64_t window_ns;
	/*
	 * true: a credit request had to wait since the demand last was below the smallest reserve.
	 * Until then the demand evicts nothing: a pool that has room is filled first.
	 */
	bool waited;
	bool slowed; /* a credit request waited since window_ns */
};

struct evict_rail {
	struct evict_class class[CLASSES_MAX];
	uint32_t requests; /* of clients/ctl*.c: credit requests of this pool that wait */
	/* true: a slot may have become free, so ctl_turn() must look at the waiting requests */
	bool retry;
};

struct evict {
	struct control *control;
	struct evict_rail rail[RAILS_MAX];
	uint64_t limbo_ns;
	/* slots that are granted to channels, or were by an earlier engine and are not returned */
	uint64_t credits;
	struct used_weight weight;
	bool keeps_told;   /* what the log says */
	unsigned group_at; /* of clients/groups.c: where the next look at limits begins */
	uint32_t beat; /* of clients/groups.c: status_segment.beat at the last look at all limits */
};

int evict_open(struct control *control);
void evict_close(struct control *control);

/* Returns the record of this rail's requests and slots for this page size, never NULL. */
struct evict_class *evict_class_of(struct evict *evict, unsigned rail, uint32_t length);
/* Adds to the slots that requests wait for. `own`: their group gives pages of its own. */
void evict_wait(struct evict_class *class, int slots, bool own);
/*
 * Adds `change` to the number of credits and pages of this page size. A credit that becomes a page
 * is not taken a second time.
 */
void evict_hold(struct evict *evict, unsigned rail, uint32_t length, int change);
/*
 * Evicts pages until, after limbo, there are slots for the waiting credit requests and for the
 * reserve.
 */
void evict_refill(struct evict *evict, unsigned rail, uint32_t length, uint64_t now_ns);
/*
 * The same. The pages of the group go first, while it has no room for `more` bytes, and no others
 * for the reserve. NULL: none.
 */
void evict_refill_by(struct evict *evict, unsigned rail, uint32_t length, struct index_group *group,
	uint64_t more, uint64_t now_ns);
/*
 * Whether the pages of a client's batch of this number are to be evicted before older ones, see
 * used_weight_keeps(). Not with a disk: pages that are on it, the older ones, leave memory first.
 */
bool evict_keeps(const struct evict *evict, uint32_t batch);
/* Takes one page out of the index and the directory, and sends its slot to limbo. */
void evict_take_away(
	struct evict *evict, const struct page_key *key, uint32_t place, uint32_t generation);
/* How much room an eviction makes, in pages of `units`. */
struct room {
	unsigned rail;
	uint32_t units;
	uint32_t want; /* with the reserve */
	uint32_t must; /* of these: for requests that wait */
};
/*
 * Evicts pages of the group, up to `max`, until it has room for `more` bytes within its quota, or
 * no page. Returns how many. `room`: only of this pool and size; NULL: any.
 */
unsigned evict_group(struct evict *evict, struct index_group *group, uint64_t more, unsigned max,
	const struct room *room);
/*
 * Returns an unused credit to its pool, once nothing can write to its slot. `length`: of the page
 * for which it was granted.
 */
void evict_give_back(struct evict *evict, uint32_t place, uint32_t generation, uint32_t length);

#endif
