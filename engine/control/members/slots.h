/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of the cluster map in shared memory (abi/map.h): owner numbers, and the former owners
 * of each slot. Written by the control plane's thread only.
 */
#ifndef CONTROL_SLOTS_H
#define CONTROL_SLOTS_H

#include "engine/control/members/placement.h"

struct control;

struct slots {
	/* per owner number: ref of its member, or 0; and when it was freed, as a serial */
	uint32_t bound[OWNERS_MAX];
	uint64_t freed[OWNERS_MAX];
	uint64_t frees;
	uint64_t due;        /* no time of a former owner ends before this second */
	uint32_t migrating;  /* slots with former or fresh owners, or with MAP_SLOT_LOST */
	uint32_t lost;       /* slots with MAP_SLOT_LOST */
	uint64_t lost_until; /* no slot keeps it behind this second */
	/*
	 * Bit i: the i-th owner of the slot's word is fresh. It became an owner less than
	 * MAP_FORMER_NS before map_shared.since, or then, so it may lack entries.
	 */
	uint8_t fresh[MAP_SLOTS];
};

/*
 * Stores the words of a changed map. `opening`: this engine has just joined, so the former owners
 * are those that the other members have without it; else they are the owners up to now.
 */
void slots_publish(struct control *control, struct slots *slots, const struct map_view *view,
	bool opening, uint64_t now_ns);
/* Refs of the former owners that the slot's word names. Returns their number. */
unsigned slots_formers(
	const struct control *control, uint32_t slot, uint32_t ret_ref[MAP_FORMERS_MAX]);
/* Ends the time of former owners. */
void slots_tick(struct control *control, struct slots *slots, uint64_t now_ns);
/*
 * Slots with MAP_SLOT_LOST: readers call an absent key of theirs unreachable. *ret_left_ms: until
 * the last of them ends, if the map does not change again.
 */
static inline uint32_t slots_unproven(
	const struct slots *slots, uint64_t now_ns, uint64_t *ret_left_ms)
{
	uint64_t until_ns = slots->lost_until * 1000000000;

	*ret_left_ms = slots->lost && until_ns > now_ns ? (until_ns - now_ns) / 1000000 : 0;
	return slots->lost;
}

#endif
