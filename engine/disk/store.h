/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segment log without threads: state of the paths, their segments and what is in flight. One
 * thread calls everything here: the disk thread, or a test, which steps it over a simulated device.
 *
 *   store_submit() --> queues of a path --> store_step() --> device --> done() of the I/O
 *                                                                    --> store->finished
 *
 * Life of a segment:
 *
 *   FREE or SEALED -(opening block written, footer zeroed, synced)-> READY --> ACTIVE: takes blocks
 *   -(full: blocks written, synced)-> footer written -(synced)-> SEALED: its pages are persisted
 *
 * The opening block invalidates what the segment held: no block is written before it is durable.
 */
#ifndef DISK_STORE_H
#define DISK_STORE_H

#include "engine/disk/device.h"
#include "engine/disk/disk.h"
#include "engine/disk/index.h"
#include "engine/disk/layout.h"

#define SEGMENT_NONE UINT32_MAX
#define BUSY_CHAINS 4096u                     /* of the hash table of busy keys; a power of two */
#define TOMBSTONES_MAX (DISK_BLOCK_PAGES / 2) /* in one block */

STAILQ_HEAD(disk_requests, disk_request);

enum segment_state {
	SEGMENT_FREE,
	SEGMENT_OPENING, /* opening block in flight */
	SEGMENT_READY,
	SEGMENT_ACTIVE,
	SEGMENT_SEALING, /* full; its blocks, syncs and footer are in flight */
	SEGMENT_SEALED,
};

struct segment {
	enum segment_state state;
	uint64_t epoch, ordinal;
	uint32_t fill; /* first unit that is not used */
	/* headers of a segment that is not sealed, for its footer; each is allocated */
	struct disk_block **block;
	uint32_t blocks, room;
	unsigned writing; /* blocks in flight */
	unsigned step;    /* of opening and of sealing: next I/O to submit */
};

/* A block in flight. Owner: the path; io and iov: the device while in flight. */
struct block_write {
	struct device_io io;
	struct store_path *path;
	uint32_t segment;
	struct disk_block *block;
	struct disk_request *request[DISK_BLOCK_PAGES]; /* NULL: a tombstone */
	struct iovec iov[1 + 2 * DISK_BLOCK_PAGES];
	uint8_t *tail; /* the last units of pages, with the rest zeroed; DISK_BLOCK_PAGES units */
	uint32_t payload, unit;
	bool busy;
};

/* A page that is being read. */
struct page_read {
	struct device_io io;
	struct iovec iov;
	struct store_path *path;
	struct disk_request *request;
	struct disk_index_found found;
	bool busy;
};

struct store_path {
	struct store *store;
	unsigned number;
	struct device *device; /* NULL: could not be opened */
	struct disk_path_report report;
	struct disk_path_file file;
	uint32_t segments, first; /* number of the path's first segment in the index */
	struct segment *segment;
	uint32_t active, next; /* ACTIVE; OPENING or READY; or SEGMENT_NONE */
	uint64_t ordinal;      /* of the segment that was opened last */

	struct disk_requests writes, reads;

	struct block_write block[DISK_BLOCKS_FLIGHT];
	struct page_read read[DISK_READS_FLIGHT];
	struct device_ios flying; /* oldest first */

	/* I/O of opening and of sealing; at most one of each kind at a time. */
	struct device_io open_io, seal_io;
	struct iovec open_iov, seal_iov;
	uint32_t sealing; /* the segment that seal_io seals, or SEGMENT_NONE */
	uint8_t *open_units, *footer_units;
	uint64_t footer_room;
};

struct store {
	struct disk_index index;
	uint32_t units; /* of a segment */
	unsigned paths;
	struct store_path path[DISK_PATHS_MAX];
	struct disk_requests finished; /* for disk_reap(), and before these: */
	struct disk_requests held; /* by devices of paths that have failed; linked by next_held */
	/* requests whose keys are being written */
	LIST_HEAD(, disk_request) busy[BUSY_CHAINS];
	/* for the next block, on whatever path; the time of a step that found the first one */
	struct disk_entry tombstone[TOMBSTONES_MAX];
	unsigned tombstones;
	uint64_t tombstones_ns;
	bool ending; /* they wait for no pages */
	uint64_t budget_bytes, budget_used, budget_since_ns;
	uint64_t timeout_ns;
	uint64_t dropped_queue, dropped_budget;
	bool parallel;                     /* recovery scans each path on a thread of its own */
	uint64_t (*random)(void *context); /* ids and epochs */
	void *random_context;
};

/* ---- store.c -------------------------------------------------------------------------------- */
int store_open(struct store *store, const struct disk_options *options);
/* Frees the store; no I/O is in flight. Does not close the devices. */
void store_close(struct store *store);
void store_submit(struct store *store, struct disk_request *request);
/* Handles completions and submits what can be submitted. Returns how many I/Os completed. */
unsigned store_step(struct store *store, uint64_t now_ns);
/* True if an I/O is in flight on any path. */
static inline bool store_flying(const struct store *store)
{
	for (unsigned i = 0; i < store->paths; i++)
		if (!TAILQ_EMPTY(&store->path[i].flying))
			return true;
	return false;
}
void store_finish(struct store *store, struct disk_request *request, enum disk_status status);
/* The request's key is not being written any more; may be called twice. */
void busy_drop(struct disk_request *request);

/* ---- segment.c: paths and their segments ---------------------------------------------------- */
int path_open(struct store_path *path, uint32_t segments);
void path_close(struct store_path *path);
void path_submit(struct store_path *path, struct device_io *io);
/* The device has returned an operation of path_submit(). */
static inline void path_landed(struct store_path *path, struct device_io *io)
{
	TAILQ_REMOVE(&path->flying, io, flying);
	path->report.flying--;
}
/* Why a write or sync failed, in words; valid until the thread calls this or limit_error(). */
const char *path_io_error(const struct device_io *io);
__attribute__((format(printf, 2, 3))) void path_fail(
	struct store_path *path, const char *format, ...);
bool path_in_service(const struct store_path *path);
void segment_step(struct store_path *path);
/* Makes the path's active segment have room for a block; false: not now. */
bool segment_room(struct store_path *path, uint32_t payload);
/* A new header in the active segment, at its fill mark; NULL without memory. */
struct disk_block *segment_block(struct store_path *path);

/* ---- recover.c ------------------------------------------------------------------------------ */
/*
 * Recovers all paths whose device is set and puts them in service. `segments`: of each path.
 * Blocks. Returns 0, or -ENODEV if no path is usable.
 */
int store_recover(struct store *store, const uint32_t segments[DISK_PATHS_MAX]);

#endif
