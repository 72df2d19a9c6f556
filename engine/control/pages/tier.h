/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk of this host, and pages on the disks of other hosts. Without disk.paths there is no
 * tier: control->tier is NULL, and the functions tier_*() do nothing. The control plane's thread.
 */
#ifndef CONTROL_TIER_H
#define CONTROL_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/page.h"
#include "engine/disk/disk.h"

struct control;
struct ctl_channel;
struct ctl_op;
struct rpc_link;
struct settings;
struct unit;
struct Pc__Promote;
struct Pc__Promoted;

enum tier_state { TIER_OPENING, TIER_SERVING, TIER_FAILED };

int tier_open(struct control *control);
/*
 * For --check: logs what can be known to be wrong with disk.paths without opening the disk. `unit`
 * is as for control_check(). Returns 0 or -errno.
 */
int tier_check(const struct settings *settings, const struct unit *unit);
void tier_close(struct control *control);
/* Once in each turn of the loop: writes and reads what has become due. Returns how much it did. */
unsigned tier_turn(struct control *control);

/* A page was published: its size class may now be so full that pages must be written. */
void tier_published(struct control *control);

/* True, and the page, if the key is on disk and the disk serves. */
bool tier_find(struct control *control, const struct page_key *key, struct disk_page *ret_page);
/* The key of the page on disk with this name (struct disk_page). False: there is none. */
bool tier_named(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key);
/* The disk is being opened: it is not known yet which pages are on it. */
bool tier_opens(const struct control *control);
#define DISK_TEXT_BYTES sizeof(((struct settings *)NULL)->disk_paths) /* of `text` */
/*
 * The directories of disk.paths, which lie in `text` then. Returns how many; 0: none, or the
 * setting is wrong.
 */
unsigned tier_directories(
	const struct settings *s, char *text, const char *ret_directory[DISK_PATHS_MAX]);
/* As disk_slot(); nothing without a disk that serves. */
unsigned tier_slot(struct control *control, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages);
/*
 * The keys of the pages that are being written or read, and were not removed meanwhile; *ret_count
 * of them, and the caller frees them. NULL: none, or no memory for *ret_count.
 */
struct page_key *tier_flying(struct control *control, uint32_t *ret_count);
/* Number of pages on disk, as of the last report. */
uint64_t tier_pages(const struct control *control);

/* `key` was published with this length: forgets a page of another length that is on disk. */
void tier_replaced(struct control *control, const struct page_key *key, uint32_t length);

/*
 * A client has read the page at `place`. generation 0: of another host, whose message has none; a
 * pinned page is not evicted, so the place is enough.
 */
void tier_touched(struct control *control, uint32_t place, uint32_t generation);

/* The link has closed: requests that came on it are not answered. */
void tier_link_down(struct control *control, const struct rpc_link *link);

/* Promote of another engine; false: the message breaks a rule, and the link is to be closed. */
bool tier_serve_promote(
	struct control *control, struct rpc_link *link, const struct Pc__Promote *promote);

struct tier_counts {
	enum tier_state state;
	bool serves; /* a path is in service */
	uint32_t spills, promotes, waiting, pins;
	uint64_t spill_bytes, pinned_bytes;
	uint64_t writing_ns; /* time in which pages were being written, since the start */
	const struct disk_options *options;
	const struct disk_report *report; /* refreshed twice a second */
};
void tier_counts(const struct control *control, struct tier_counts *ret);

/*
 * A client of this host has found a page there in the directory (CTL_PROMOTE and CTL_WANT with the
 * ref of its holder): this engine asks the holder to bring it into memory, and answers the client
 * with the place from which the client then READs it. A request ends with the holder's answer, with
 * the end of its link, or at its deadline, whichever comes first. The requests of one turn for one
 * holder are one message.
 */

int promote_open(struct control *control);
void promote_close(struct control *control);
/* Serves CTL_PROMOTE and CTL_WANT; those for this host's disk are the tier's. */
void promote_serve(
	struct control *control, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns);
/* The link has closed: no answer comes on it. */
void promote_link_down(struct control *control, const struct rpc_link *link);
/* Promoted of another engine; false: the message breaks a rule, and the link is to be closed. */
bool promote_serve_promoted(
	struct control *control, struct rpc_link *link, const struct Pc__Promoted *promoted);

#endif
