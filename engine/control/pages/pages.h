/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of this host: the memory that holds them, the keys that name them, this host's shard of
 * the directory, eviction, the disk tier, the scrubber and warm restart. README.md beside this file
 * is the way in. Nothing here takes a lock: only the control plane's thread calls these functions,
 * and readers on other hosts and in clients read pools and shard without them.
 *
 * Functions return 0 or -errno, unless they say otherwise. A place and a generation that come from
 * a client or from another host may be any numbers: the pool checks them.
 *
 * Header for the other rooms and for the root: calls of this room to those above, pages that others
 * name, the scrubber, and a header for each other part. What only files of this room call is in
 * pages_inner.h, pool_inner.h and tier_inner.h.
 */
#ifndef CONTROL_PAGES_H
#define CONTROL_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/page.h"
#include "engine/control/pages/evict.h"
#include "engine/control/pages/ghost.h"
#include "engine/control/pages/index.h"
#include "engine/control/pages/pool.h"
#include "engine/control/pages/shard.h"
#include "engine/control/pages/sizes.h"
#include "engine/control/pages/tier.h"
#include "engine/control/pages/warm.h"

struct control;
struct ctl;
struct ctl_channel;
struct ctl_done;
struct ctl_op;
struct page_report;
struct waiter;

/*
 * The directory and the clients lie above this room: control->pages_events, of upward.c. The
 * functions are those of directory.h and clients.h with these names.
 */
struct pages_events {
	/* an op of a client of this host is answered: now, or later under a number */
	void (*answer)(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
		const struct ctl_done *done);
	uint32_t (*later)(struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op,
		uint32_t pages); /* PAGES_NO_ANSWER: no memory */
	void (*later_answer)(struct ctl *ctl, uint32_t later, const struct ctl_done *done);

	/* a page has come, has left, or is on disk now: its owners are told */
	void (*publish)(struct control *control, const struct page_key *key,
		const struct location *at, const struct waiter *waiter);
	void (*remove)(
		struct control *control, const struct page_key *key, const struct location *at);
	void (*evicted)(struct control *control, const struct page_key *key,
		const struct location *at, enum evicted from);
	bool (*on_disk)(struct control *control, const struct disk_page *page);
	/* pages may be here that no owner knows: on disk, or in memory that was adopted */
	void (*disk_opened)(struct control *control);
	void (*forgotten)(struct control *control, uint32_t ref);
	/* the key is removed from this host */
	void (*forget)(struct control *control, const struct page_key *key);
	/* many removes are queued: the tier names no more of them */
	bool (*busy)(const struct control *control);
	/* a client of this host has read a damaged page of engine `ref` */
	void (*report)(struct control *control, uint32_t ref, const struct page_report *report);
};
#define PAGES_NO_ANSWER UINT32_MAX
/* longest wait of a request for a page on disk, in ns; a later deadline is shortened to this */
#define PAGES_WAIT_NS_MAX 600000000000ull

/* ---- pages that clients and other hosts name ------------------------------------------------- */

/* Another engine has read this engine's page. */
void page_touched(struct control *control, uint32_t place);
/*
 * An owner of the page's key says that its page was evicted lately, from that queue, or is a copy.
 * The page was stored meanwhile. EVICTED_NOT: the page was on disk. Ignored if it is not there.
 */
void page_again(struct control *control, const struct location *at, enum evicted from);
/*
 * The key of the page of that generation at `place` in this engine's memory. False: there is none.
 * `place` may be any number.
 */
bool page_key_at(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key);
/*
 * The same, and what the page is: *ret. Its CRC is there if *ret_proven. False: there is none that
 * other hosts may copy.
 */
bool page_at(const struct control *control, uint32_t place, uint32_t generation,
	struct pool_proven *ret, bool *ret_proven);
/*
 * A client of this or of another node wants the key deleted. Retires the page, of which the caller
 * removes the directory entries; it is not found here from here on. Returns whether this node had
 * it. A page on disk may be back after a crash.
 */
bool page_forget(struct control *control, const struct page_key *key);
/* The same on disk only: a page in memory stays. */
bool tier_forget(struct control *control, const struct page_key *key);
/* True while the disk should not be given more pages to forget: their tombstones find no room. */
bool tier_forgets_many(const struct control *control);

/* ---- scrub: CRCs of the pages in memory ------------------------------------------------------ */

/*
 * Compares the pages of the local pools with the CRC32C in their heads, slowly and for ever, so
 * that damage by memory or by software is found before a reader gets it. Readers compare pages too
 * and report those that differ, through the engine of their host to the holder. The holder believes
 * no report: its scrubber compares the page next.
 */

/* A page that had another CRC32C than its head says when it was read. */
struct page_report {
	struct page_key key;
	uint32_t place, generation;
};

int scrub_open(struct control *control);
void scrub_close(struct control *control);

/* A client of this host reports a page of the engine `ref`: this engine or another one. */
void scrub_read(struct control *control, uint32_t ref, const struct page_report *report);
/*
 * A reader on any host reports a page of this engine: the scrubber compares it soon. A report about
 * a page that is not there any more, or that waits already, is ignored.
 */
void scrub_reported(struct control *control, const struct page_report *report);

#endif
