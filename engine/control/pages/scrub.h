/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrubber: compares the pages of the local pools with the CRC32C in their heads, slowly and
 * for ever, so that damage by memory or by software is found before a reader gets it.
 *
 *   each tick: a piece of one page -> next page -> ... -> end of the last pool -> first pool
 *
 * A page is compared in pieces of at most SCRUB_PIECE_BYTES, so that a tick delays the loop by some
 * ten microseconds. The pace follows from engine.scrub_seconds, the time in which full pools are
 * read once, and is limited to one piece each SCRUB_TICK_NS_MIN. The control plane's thread only.
 *
 * Readers compare pages too and report those that differ, through the engine of their host to the
 * holder. The holder believes no report: its scrubber compares the page next, in pieces of the same
 * size, one each SCRUB_TICK_NS_MIN at most, whatever engine.scrub_seconds says.
 */
#ifndef CONTROL_SCRUB_H
#define CONTROL_SCRUB_H

#include "engine/control/base/control.h"
#include "engine/control/directory/directory.h"
#include "engine/control/pages/pool.h"

#define SCRUB_REPORTS_MAX 64u     /* reports of readers that wait; further ones are dropped */
#define SCRUB_LOG_NS 100000000ull /* minimum time between two log lines about reports */
#define SCRUB_PIECE_BYTES (256u << 10)
#define SCRUB_TICK_NS_MIN 1000000ull
#define SCRUB_TICK_NS_MAX 1000000000ull
#define SCRUB_SLOTS 1024u /* slots that one tick looks at, at most */

/* How the scrubber divides its work: `bytes` each `tick_ns`. */
struct scrub_pace {
	uint32_t bytes;
	uint64_t tick_ns;
};

/* `pools`: bytes of all pools; `seconds`: not 0. */
struct scrub_pace scrub_pace(uint64_t pools, uint64_t seconds);

int scrub_open(struct control *control);
void scrub_close(struct control *control);
/* What a tick does: compares up to `bytes` bytes. */
void scrub_step(struct control *control, uint32_t bytes);

/* A client of this host reports a page of the engine `ref`: this engine or another one. */
void scrub_read(struct control *control, uint32_t ref, const struct page_report *report);
/*
 * A reader on any host reports a page of this engine: the scrubber compares it soon. A report about
 * a page that is not there any more, or that waits already, is ignored.
 */
void scrub_reported(struct control *control, const struct page_report *report);

/*
 * The page has the CRC32C `crc`, which is not that of its head: counts and logs it, and takes it
 * out of the pool, of the directory and of the disk, as far as it is still there. `who` found it.
 */
void scrub_condemn(
	struct control *control, const struct pool_proven *page, uint32_t crc, const char *who);

#endif
