/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of the cluster map in shared memory (abi/map.h): owner numbers, and the former owners
 * of each slot. Written by the control plane's thread only.
 */
#ifndef CONTROL_SLOTS_H
#define CONTROL_SLOTS_H

#include "engine/control/placement.h"

struct control;

/* time after which a slot's former owners are no longer asked */
#define MAP_FORMER_NS (60ull * 1000000000)

struct slots {
	/* per owner number: ref of its member, or 0; and when it was freed, as a serial */
	uint32_t bound[OWNERS_MAX];
	uint64_t freed[OWNERS_MAX];
	uint64_t frees;
	uint64_t due;             /* no time of a former owner ends before this second */
	uint32_t migrating;       /* slots with former or fresh owners, or with MAP_SLOT_LOST */
	uint8_t since[MAP_SLOTS]; /* second of the last change of a slot's owners, modulo 256 */
	/*
	 * Bit i: the i-th owner of the slot's word is fresh. It became an owner less than
	 * MAP_FORMER_NS before `since`, or then, so it may lack entries.
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

#endif
