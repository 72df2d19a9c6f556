/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: pages on local SSDs, in segment logs in one or more directories (paths). This is
 * all that the control plane sees of it.
 *
 * Threads. disk_open() and disk_close() block: call them on a helper thread. All other calls return
 * at once; one thread makes them (the control plane), except disk_find(), which any thread may
 * make. A thread of the disk tier does the I/O.
 *
 * Ownership. A request, and the memory that it points to, belong to the disk tier from
 * disk_submit() until disk_reap() returns the request, which happens once and only after the device
 * is done with the memory. There is no cancel: a caller that has waited long enough reports a miss
 * to its client and leaves request and memory where they are until disk_reap() returns them. If a
 * path hangs for ever, so do its requests that the device holds; all others of that path fail after
 * `timeout_ms`. When a path leaves service, disk_reap() returns each request that its device holds
 * once more than others, first, with `held`: its result is that of a failed path (write:
 * DISK_OFFLINE, read: DISK_MISS), but request and memory still belong to the disk tier.
 *
 * Content. A key has the same bytes until it was forgotten. A page that is on disk is not written
 * again (DISK_EXISTS). Persisted are the pages of sealed segments; others can be lost by a crash,
 * and a page that was forgotten can be back after one.
 *
 *   struct disk_request *request = calloc(1, sizeof(*request));
 *   request->op = DISK_READ;
 *   request->key = key;
 *   request->data = slot;                      whole units of 4 KiB
 *   request->length = length;                  as disk_find() told
 *   disk_submit(disk, request);
 *   ...                                        disk_fd() becomes readable
 *   while ((request = disk_reap(disk)))
 *           if (request->status == DISK_OK)
 *                   publish(request);
 */
#ifndef DISK_DISK_H
#define DISK_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/abi/page.h"
#include "engine/abi/ring.h"

enum disk_op { DISK_READ, DISK_WRITE };

enum disk_status {
	DISK_OK,
	DISK_MISS,      /* not on disk, or its bytes are wrong (counted), or its path failed */
	DISK_EXISTS,    /* write: the page is on disk, is being written or was forgotten */
	DISK_DROPPED,   /* write: the path is slower than its queue */
	DISK_SPENT,     /* write: write_bytes_per_day are used up */
	DISK_TOO_LARGE, /* write: the page does not fit a segment */
	DISK_OFFLINE,   /* no path is in service */
	DISK_INVALID,   /* a bug of the caller: length or alignment */
	DISK_CORRUPT, /* write: the bytes do not have the CRC of the request; nothing was written */
};

/*
 * A page on disk. (place, generation) is its name in directory entries, where `place` has the rail
 * number PLACE_DISK: low bits of the segment's random epoch, then segment and unit. It is the same
 * after a restart, and different when the key is written anew. generation is never 0.
 */
struct disk_page {
	struct page_key key;
	uint32_t place, generation;
	uint32_t length; /* bytes */
};

struct disk_request {
	/* set by the caller */
	enum disk_op op;
	struct page_key key;
	/* 4 KiB aligned. READ: room for whole units. WRITE: only `length` bytes are read. */
	void *data;
	uint32_t length; /* READ: the length that disk_find() told; WRITE: 1 to PAGE_BYTES_MAX */
	void *context;   /* the caller's */
	/* WRITE: true: the page is written only if its CRC32C is `crc` */
	bool has_crc;
	/*
	 * WRITE: the page is not to be found any more. The caller may set it, with
	 * disk_write_forget() and before disk_forget(), while the disk tier has the request.
	 */
	uint8_t forgotten;
	/* WRITE with has_crc: set by the caller. Set when disk_reap() returns it: with DISK_OK the
	 * CRC32C of the page, READ and WRITE; with DISK_CORRUPT that of the bytes in memory */
	uint32_t crc;

	/* set when disk_reap() returns it */
	enum disk_status status; /* not while it is held */
	bool held; /* the device of a path that has failed has it; disk_reap() returns it again */

	/* owner: the disk tier, from disk_submit() to disk_reap() */
	STAILQ_ENTRY(disk_request) next, next_held;
	LIST_ENTRY(disk_request) same; /* while `busy` */
	uint64_t sequence;
	bool busy;    /* its key is not written by another request */
	bool checked; /* WRITE: `crc` was computed from the bytes in memory */
};

struct disk_report;

struct disk_options {
	unsigned paths;
	struct {
		const char
			*directory; /* exists; the engine owns what begins with peercache- in it */
		uint64_t bytes;     /* rounded down to whole segments */
	} path[DISK_PATHS_MAX];
	uint32_t segment_bytes; /* DISK_SEGMENT_BYTES; tests use less */
	const char *owner;      /* name of this engine, for an engine that is refused the path */
	uint64_t write_bytes_per_day; /* all paths together; 0: no limit */
	uint32_t timeout_ms;          /* an I/O that takes longer puts its path out of service */
	bool threads;                 /* no io_uring: pread and pwrite on threads */
	struct disk_report *failed;   /* NULL, or where disk_open() reports why it failed */
};

enum disk_path_state { DISK_PATH_OPENING, DISK_PATH_IN_SERVICE, DISK_PATH_OUT };

struct disk_path_report {
	enum disk_path_state state;
	char reason[160];          /* why it is out of service */
	uint32_t segments, sealed; /* segments of the path; of these, persisted */
	uint64_t queued_bytes;     /* pages that wait to be written */
	uint64_t flying;           /* I/Os in flight */
	uint64_t pages_written, bytes_written, page_bytes; /* bytes of whole units of pages */
	uint64_t pages_read, bytes_read;
	uint64_t pages_recovered; /* at open */
	uint64_t recycled;        /* segments */
	uint64_t read_errors, crc_errors, io_errors;
};

struct disk_report {
	unsigned paths;
	struct disk_path_report path[DISK_PATHS_MAX];
	uint32_t pages;       /* in the index */
	uint64_t index_bytes; /* memory of the index */
	uint64_t dropped_queue, dropped_budget;
	uint64_t dropped_tombstones; /* more pages were forgotten at once than have room */
	uint64_t lost_unknown; /* pages that disk_lost() does not report, for want of memory */
};

struct disk;

/*
 * Opens the paths and recovers what is on them. A path that cannot be used is logged and out of
 * service; the call fails only if none is usable. Returns 0 or -errno.
 */
int disk_open(const struct disk_options *options, struct disk **ret_disk);
/* True, and the page, if the key is on disk. */
bool disk_find(struct disk *disk, const struct page_key *key, struct disk_page *ret_page);
/*
 * From now on the key is not found, until it is written again. Returns whether it was on disk. A
 * write of it that is in flight must be forgotten first. A tombstone is written with the next
 * pages, at the latest after a second, and not synced: a start of the engine that finds it does not
 * find the page.
 */
bool disk_forget(struct disk *disk, const struct page_key *key);
/* True while half of the room for tombstones that wait is used. */
bool disk_forgets_many(struct disk *disk);
static inline void disk_write_forget(struct disk_request *write)
{
	shm_store8(&write->forgotten, 1);
}
/* The key of the page with this name (struct disk_page). False: there is none. */
bool disk_named(struct disk *disk, uint32_t place, uint32_t generation, struct page_key *ret_key);
/*
 * Copies pages on disk of one slot of the directory, starting at *cursor (0 at first, 0 again at
 * the end). Returns how many it copied, at most `max`, which is not 0. A page that stays during the
 * whole walk is copied at least once, whatever comes or goes meanwhile.
 */
unsigned disk_slot(struct disk *disk, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages);
/*
 * Takes up to `max` of the pages that have left the disk since disk_open(): forgotten, recycled,
 * damaged, or on a path that failed. Returns how many; 0: none is left.
 */
unsigned disk_lost(struct disk *disk, unsigned max, struct disk_page *ret_pages);
void disk_submit(struct disk *disk, struct disk_request *request);
/* Returns the next request that is finished or held, or NULL. */
struct disk_request *disk_reap(struct disk *disk);
/* Readable when disk_reap() or disk_lost() has something to return; disk_reap() clears it. */
int disk_fd(const struct disk *disk);
void disk_report(struct disk *disk, struct disk_report *ret_report);
/*
 * Ends I/O and frees the tier; requests that were not reaped are lost. Returns -EBUSY, and frees
 * nothing, if an I/O does not end within `timeout_ms`: its memory must then stay mapped until the
 * process has exited.
 */
int disk_close(struct disk *disk);

#endif
