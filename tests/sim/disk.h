/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disks of a simulated host: engine/disk over the devices of tests/disk/sim.h. What its thread
 * does is an event of the node. One thread.
 */
#ifndef TESTS_SIM_DISK_H
#define TESTS_SIM_DISK_H

#include <stdbool.h>

#include "engine/abi/page.h"
#include "tests/sim/pages.h"

#define SIM_PATHS 2u              /* disks of a host */
#define SIM_SEGMENT_UNITS 128u    /* of a segment: 21 pages of 24 KiB */
#define SIM_SEGMENTS 16u          /* of a path */
#define SIM_DISK_TIMEOUT_MS 2000u /* disk.timeout_ms */

/* Makes the disks of a host, which are empty. */
void disks_open(unsigned node);
void disks_free(unsigned node);
/*
 * The process is killed: the disks keep what was written; `power`: what was synced, and some of the
 * rest, torn. The tier takes and writes nothing more when it is closed. disks_crashed() follows.
 */
void disks_crash(unsigned node, bool power);
void disks_crashed(unsigned node);

enum disk_fault {
	DISK_FAULT_NONE,
	DISK_FAULT_READ,
	DISK_FAULT_WRITE,
	DISK_FAULT_HANG,
	DISK_FAULTS
};
/* From now on the operations of one disk fail with EIO, or do not end. */
void disk_fault(unsigned node, unsigned path, enum disk_fault fault);
/* The bytes of a page that is on a disk of this node. False: it is on none. */
bool disk_content(unsigned node, const struct page_key *key, struct content *ret);
/* The page is on a disk of this node, also while no process serves it. */
bool disk_has(unsigned node, const struct page_key *key);

#endif
