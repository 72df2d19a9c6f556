/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start: scans all paths, decides which of them can prove that they missed no removal, builds
 * the index from the headers that were read, and moves what open segments hold to new ones. Open
 * segments are not reused in place: their file is removed and created anew. Blocks; runs on the
 * thread that opens the tier, with one more thread a path while it scans. A path that cannot be
 * read or has no room is out of service.
 *
 * The proof. Each path file names the members: the paths in service since a generation. Those of
 * the highest generation have all tombstones, if none of them is absent: an absent one may have
 * served removals alone. A path that left is complete up to the number that the members recorded;
 * what it missed is replayed from them before it is used. A copy of a path has the id of the
 * original, but not the removals of one since then. A path without proof is cleared: it gets a new
 * id, which makes all that lies on it invalid.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/thread.h"
#include "engine/abi/crc32c.h"
#include "engine/disk/scan.h"
#include "numa/clock.h"
#include "numa/limit.h"

#define REMOVALS_MAX (1u << 30) /* twice as many have a number of 32 bits */

/* The highest tombstone of a key. sequence 0: an unused place of the hash table. */
struct removal {
	struct page_key key;
	uint64_t sequence;
};

struct recovery {
	struct store *store;
	struct scan scan[DISK_PATHS_MAX];
	/* tombstones above this number are written to the path; UINT64_MAX: none */
	uint64_t replay_after[DISK_PATHS_MAX];
	struct removal *removal; /* hash table of all tombstones of believed paths */
	uint32_t removals_room;
	uint64_t **sequence; /* of each page of each segment in the index */
};

/* ---- what the paths hold -------------------------------------------------------------------- */

static void *scan_thread(void *argument)
{
	scan_path(argument);
	return NULL;
}

static void paths_scan(struct recovery *recovery)
{
	struct store *store = recovery->store;
	pthread_t thread[DISK_PATHS_MAX];
	bool started[DISK_PATHS_MAX] = {false};

	for (unsigned i = 0; i < store->paths; i++) {
		if (!store->path[i].device)
			continue;
		recovery->scan[i].path = &store->path[i];
		if (store->parallel)
			started[i] = !thread_start(&thread[i], scan_thread, &recovery->scan[i]);
		if (!started[i])
			scan_path(&recovery->scan[i]);
	}
	for (unsigned i = 0; i < store->paths; i++)
		if (started[i])
			pthread_join(thread[i], NULL);
}

/* Takes paths that cannot be used out of service, with the reason. */
static unsigned paths_check(struct recovery *recovery)
{
	struct store *store = recovery->store;
	unsigned usable = 0;

	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];
		const struct scan *scan = &recovery->scan[i];

		if (!path->device)
			continue;
		if (scan->rc)
			path_fail(path, "%s: %s",
				scan->removing ? "cannot remove a segment that it does not use"
					       : "cannot be read",
				limit_error(scan->rc));
		else if (scan->fault == PATH_FILE_VERSION)
			path_fail(path,
				"has layout version %u, this engine %u; start the engine that wrote it, or empty the directory to use it",
				path->file.version, DISK_LAYOUT_VERSION);
		else if (scan->fault == PATH_FILE_SIZES)
			path_fail(path,
				"has blocks of %u and segments of %u bytes, not %u and %u; empty the directory to use it",
				path->file.unit_bytes, path->file.segment_bytes, PAGE_UNIT,
				store->units * PAGE_UNIT);
		else
			usable++;
	}
	return usable;
}

static bool path_usable(const struct recovery *recovery, unsigned i)
{
	return recovery->store->path[i].device &&
	       recovery->store->path[i].report.state == DISK_PATH_OPENING;
}

/* ---- the proof ------------------------------------------------------------------------------ */

static bool path_is_member(const struct disk_path_file *file, uint64_t id)
{
	for (uint32_t i = 0; i < file->members; i++)
		if (file->member[i] == id)
			return true;
	return false;
}

static struct store_path *path_by_id(const struct recovery *recovery, uint64_t id)
{
	for (unsigned i = 0; i < recovery->store->paths; i++)
		if (path_usable(recovery, i) && recovery->store->path[i].file.path_id == id)
			return &recovery->store->path[i];
	return NULL;
}

/* The path whose path file is believed: the highest generation. NULL: all paths are new. */
static const struct store_path *paths_authority(const struct recovery *recovery)
{
	const struct store_path *best = NULL;

	for (unsigned i = 0; i < recovery->store->paths; i++) {
		const struct store_path *path = &recovery->store->path[i];

		if (path_usable(recovery, i) && path->file.path_id &&
			(!best || path->file.generation > best->file.generation ||
				(path->file.generation == best->file.generation &&
					path->file.path_id > best->file.path_id)))
			best = path;
	}
	return best;
}

static void path_clear(struct recovery *recovery, unsigned i, const char *why)
{
	struct store_path *path = &recovery->store->path[i];
	struct scan *scan = &recovery->scan[i];

	log_warn("disk %s: %s; its pages are dropped", path->device->name, why);
	path->report.cleared = true;
	path->file.path_id = 0;
	for (uint32_t s = 0; s < path->segments; s++) {
		free(scan->segment[s].block);
		scan->segment[s].block = NULL;
		scan->segment[s].blocks = 0;
		if (scan->segment[s].kind != SCAN_MISSING)
			scan->segment[s].kind = SCAN_EMPTY;
	}
	scan->ordinal = scan->horizon = 0;
}

static bool path_is_copy(const struct store_path *path)
{
	return path->file.inode != path->device->inode ||
	       (path->file.born_ns && path->device->born_ns &&
		       path->file.born_ns != path->device->born_ns);
}

/* Another path with the same id that is not known to be a copy, or NULL. */
static const struct store_path *path_original(const struct recovery *recovery, unsigned number)
{
	const struct store_path *paths = recovery->store->path;

	for (unsigned i = 0; i < recovery->store->paths; i++)
		if (i != number && path_usable(recovery, i) && !path_is_copy(&paths[i]) &&
			paths[i].file.path_id == paths[number].file.path_id)
			return &paths[i];
	return NULL;
}

/* Clears copies of paths; of two snapshots that cannot be told apart, both. */
static void paths_clear_copies(struct recovery *recovery)
{
	char why[DISK_PATHS_MAX][512] = {{0}};

	for (unsigned i = 0; i < recovery->store->paths; i++) {
		const struct store_path *path = &recovery->store->path[i], *other;

		if (!path_usable(recovery, i) || !path->file.path_id)
			continue;
		other = path_original(recovery, i);
		if (path_is_copy(path))
			snprintf(why[i], sizeof(why[i]),
				"it is a copy of %s (its path file has another inode or time of creation than it records), and may lack removals since then",
				other ? other->device->name : "another directory");
		else if (other)
			snprintf(why[i], sizeof(why[i]),
				"it has the same id as %s: one is a snapshot of the other, and either may lack removals",
				other->device->name);
	}
	for (unsigned i = 0; i < recovery->store->paths; i++)
		if (why[i][0])
			path_clear(recovery, i, why[i]);
}

/* A path that left: true if the members still have all tombstones that it missed. */
static bool path_replayable(const struct recovery *recovery, const struct store_path *believed,
	uint64_t id, uint64_t *ret_sequence)
{
	uint64_t horizon = recovery->scan[believed->number].horizon;

	for (unsigned i = 0; i < DISK_LEFT_MAX; i++)
		if (believed->file.left[i].id == id && id) {
			*ret_sequence = believed->file.left[i].sequence;
			return horizon <= *ret_sequence;
		}
	return false;
}

/* Clears the paths without proof; notes from which number the others need a replay. */
static void paths_prove(struct recovery *recovery)
{
	const struct store_path *believed = paths_authority(recovery);
	bool complete = believed != NULL;

	for (uint32_t i = 0; believed && i < believed->file.members; i++)
		complete = complete && path_by_id(recovery, believed->file.member[i]);
	if (believed)
		recovery->store->generation = believed->file.generation;
	for (unsigned i = 0; i < recovery->store->paths; i++) {
		struct store_path *path = &recovery->store->path[i];

		recovery->replay_after[i] = UINT64_MAX;
		if (!path_usable(recovery, i) || !path->file.path_id)
			continue;
		if (!complete)
			path_clear(recovery, i,
				"a path that was used together with it is absent, and may hold newer removals");
		else if (!path_is_member(&believed->file, path->file.path_id) &&
			 !path_replayable(recovery, believed, path->file.path_id,
				 &recovery->replay_after[i]))
			path_clear(recovery, i,
				"it was out of service, and not all removals since then are known");
	}
	if (complete)
		memcpy(recovery->store->left, believed->file.left, sizeof(recovery->store->left));
}

/* Sets ids and numbers that the paths start with. */
static void paths_enter_service(struct recovery *recovery)
{
	struct store *store = recovery->store;

	for (unsigned i = 0; i < store->paths; i++)
		if (path_usable(recovery, i) && recovery->scan[i].sequence > store->sequence)
			store->sequence = recovery->scan[i].sequence;
	/* Numbers that a crash or a damage has lost are not used a second time. */
	store->sequence += DISK_SEQUENCES_START;
	for (unsigned i = 0; i < store->paths; i++)
		if (path_usable(recovery, i) && recovery->scan[i].horizon >= store->sequence)
			store->sequence = recovery->scan[i].horizon + 1;
	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		if (!path_usable(recovery, i))
			continue;
		while (!path->file.path_id)
			path->file.path_id = store->random(store->random_context);
		for (unsigned l = 0; l < DISK_LEFT_MAX; l++)
			if (store->left[l].id == path->file.path_id)
				store->left[l].id = 0;
		path->ordinal = recovery->scan[i].ordinal;
		path->horizon = recovery->scan[i].horizon;
		path->recorded = store->generation;
		path->salvaging = true;
		path->report.state = DISK_PATH_IN_SERVICE;
	}
}

/* Sealed segments as they are; missing ones are created. */
static void path_adopt_segments(struct recovery *recovery, unsigned number)
{
	struct store_path *path = &recovery->store->path[number];
	const struct scan *scan = &recovery->scan[number];

	path->kept = 0;
	for (uint32_t i = 0; i < path->segments && path_in_service(path); i++) {
		const struct scan_segment *from = &scan->segment[i];
		struct segment *segment = &path->segment[i];

		segment->state = from->kind == SCAN_OPEN     ? SEGMENT_SALVAGE
				 : from->kind == SCAN_SEALED ? SEGMENT_SEALED
							     : SEGMENT_FREE;
		segment->ordinal = from->ordinal;
		segment->epoch = from->epoch;
		disk_index_epoch(&recovery->store->index, path->first + i, from->epoch);
		for (uint32_t b = 0; b < from->blocks; b++)
			for (uint32_t e = 0; e < from->block[b].entries; e++)
				if (!from->block[b].entry[e].length &&
					from->block[b].entry[e].sequence > segment->tombstone)
					segment->tombstone = from->block[b].entry[e].sequence;
		if (segment->state == SEGMENT_SEALED) {
			path->report.sealed++;
			path->kept = from->ordinal > path->kept ? from->ordinal : path->kept;
		}
		if (from->kind == SCAN_MISSING) {
			int64_t rc = scan_call(path, DEVICE_CREATE, i, 0, NULL, 0);

			if (rc)
				path_fail(path, "cannot create segment %u: %s", i,
					limit_error((int)rc));
		}
	}
	/* Without a sealed segment nothing older may be believed: it was dropped behind a gap. */
	if (!path->kept)
		path->kept = path->ordinal;
}

/* ---- the index ------------------------------------------------------------------------------ */

static struct removal *removal_at(const struct recovery *recovery, const struct page_key *key)
{
	uint32_t mask = recovery->removals_room - 1;
	uint32_t at = (uint32_t)(key->word[0] ^ key->word[1] >> 32) & mask;

	while (recovery->removal[at].sequence && !page_key_equal(&recovery->removal[at].key, key))
		at = (at + 1) & mask;
	return &recovery->removal[at];
}

#define for_each_block(scan_, segment_, block_)                                                    \
	for (uint32_t s_ = 0; s_ < (scan_)->path->segments; s_++)                                  \
		for (struct scan_segment *segment_ =                                               \
				(scan_)->segment[s_].blocks ? &(scan_)->segment[s_] : NULL;        \
			segment_; segment_ = NULL)                                                 \
			for (const struct disk_block *block_ = segment_->block;                    \
				block_ < segment_->block + segment_->blocks; block_++)

static bool path_believed(const struct recovery *recovery, unsigned number)
{
	return recovery->scan[number].path && path_in_service(&recovery->store->path[number]);
}

/* Places of the hash table for `count` tombstones: a power of two; 0: too many. */
static uint32_t removals_room(uint64_t count)
{
	uint32_t room = 16;

	if (count > REMOVALS_MAX)
		return 0;
	while (room < 2 * count)
		room *= 2;
	return room;
}

static int removals_collect(struct recovery *recovery)
{
	uint64_t count = 0;

	for (unsigned p = 0; p < recovery->store->paths; p++)
		if (path_believed(recovery, p))
			for_each_block(&recovery->scan[p], segment,
				block) for (uint32_t i = 0; i < block->entries; i++) count +=
				!block->entry[i].length;
	recovery->removals_room = removals_room(count);
	recovery->removal = recovery->removals_room
				    ? calloc(recovery->removals_room, sizeof(*recovery->removal))
				    : NULL;
	if (!recovery->removal) {
		log_error(
			"disk: no memory for %llu removals that are on the paths; empty the directories of disk.paths, or give the host more memory",
			(unsigned long long)count);
		return -ENOMEM;
	}
	for (unsigned p = 0; p < recovery->store->paths; p++) {
		if (!path_believed(recovery, p))
			continue;
		for_each_block(&recovery->scan[p], segment, block) for (uint32_t i = 0;
									i < block->entries; i++)
		{
			const struct disk_entry *entry = &block->entry[i];
			struct removal *removal;

			if (entry->length)
				continue;
			removal = removal_at(recovery, &entry->key);
			removal->key = entry->key;
			if (entry->sequence > removal->sequence)
				removal->sequence = entry->sequence;
		}
	}
	return 0;
}

static uint64_t segment_ordinal(const struct recovery *recovery, uint32_t segment)
{
	unsigned p = 0;

	while (p + 1 < recovery->store->paths && segment >= recovery->store->path[p + 1].first)
		p++;
	return recovery->store->path[p].segment[segment - recovery->store->path[p].first].ordinal;
}

/* Adds a page unless a tombstone or another copy is newer. */
static int index_add_page(
	struct recovery *recovery, uint32_t segment, uint32_t unit, const struct disk_entry *entry)
{
	struct disk_index *index = &recovery->store->index;
	struct disk_index_found other;
	uint32_t id;

	if (removal_at(recovery, &entry->key)->sequence >= entry->sequence)
		return 0;
	if (disk_index_find(index, &entry->key, &other)) {
		uint64_t sequence = recovery->sequence[other.segment][other.id & 0xffff];

		/* Equal numbers: a page that salvage had copied when the engine ended. */
		if (sequence > entry->sequence ||
			(sequence == entry->sequence && segment_ordinal(recovery, other.segment) <=
								segment_ordinal(recovery, segment)))
			return 0;
		disk_index_remove(index, &other);
	}
	id = disk_index_add(index, segment, unit, &entry->key, entry->length, entry->crc);
	if (id == INDEX_NONE)
		return -ENOMEM;
	recovery->sequence[segment][id & 0xffff] = entry->sequence;
	return 0;
}

static int index_add_segment(struct recovery *recovery, struct store_path *path, uint32_t number)
{
	const struct scan_segment *segment = &recovery->scan[path->number].segment[number];
	uint32_t pages = 0;
	int rc = 0;

	for (uint32_t b = 0; b < segment->blocks; b++)
		pages += segment->block[b].entries;
	recovery->sequence[path->first + number] = calloc(pages + 1, sizeof(uint64_t));
	if (!recovery->sequence[path->first + number])
		return -ENOMEM;
	for (uint32_t b = 0; b < segment->blocks && !rc; b++) {
		const struct disk_block *block = &segment->block[b];
		uint32_t unit = block->unit + 1;

		for (uint32_t i = 0; i < block->entries && !rc; i++) {
			if (block->entry[i].length)
				rc = index_add_page(
					recovery, path->first + number, unit, &block->entry[i]);
			unit += disk_units(block->entry[i].length);
		}
	}
	if (path->segment[number].state == SEGMENT_SEALED)
		disk_index_trim(&recovery->store->index, path->first + number);
	return rc;
}

/* Fills the index: of each key the page with the highest number that was not removed. */
static int recovery_index(struct recovery *recovery)
{
	struct store *store = recovery->store;
	int rc = removals_collect(recovery);

	recovery->sequence = calloc(store->index.segments, sizeof(uint64_t *));
	if (!recovery->sequence)
		return -ENOMEM;
	/* Sealed segments first: of two copies with one number the one that stays is kept. */
	for (unsigned pass = 0; pass < 2; pass++)
		for (unsigned p = 0; p < store->paths; p++) {
			struct store_path *path = &store->path[p];
			uint32_t before = store->index.pages;

			if (!path_believed(recovery, p))
				continue;
			for (uint32_t i = 0; i < path->segments && !rc; i++)
				if (path->segment[i].state ==
					(pass ? SEGMENT_SALVAGE : SEGMENT_SEALED))
					rc = index_add_segment(recovery, path, i);
			path->report.pages_recovered += store->index.pages - before;
		}
	return rc;
}

/* ---- steps of the store until something has come true --------------------------------------- */

/* Steps until `finished`; false if the path has left service. */
static bool recovery_run(struct store_path *path, bool (*finished)(const struct store_path *path))
{
	struct store *store = path->store;

	while (path_in_service(path)) {
		unsigned work = store_step(store, clock_now_ns());

		if (finished(path))
			return path_in_service(path);
		if (work)
			continue;
		if (TAILQ_EMPTY(&path->flying))
			path_fail(path, "has no room to recover; empty the directory to use it");
		else
			path->device->wait(path->device, 10000000);
	}
	return false;
}

static bool path_tombstones_synced(const struct store_path *path)
{
	return STAILQ_EMPTY(&path->tombstones) && !path->batch_busy;
}

/* A path that missed removals gets them before its path file names it a member. */
static void path_replay(struct recovery *recovery, unsigned number)
{
	struct store_path *path = &recovery->store->path[number];
	bool memory = true;

	for (uint32_t i = 0; i < recovery->removals_room && memory; i++) {
		const struct removal *removal = &recovery->removal[i];

		if (removal->sequence > recovery->replay_after[number])
			memory = remove_add(path, &removal->key, removal->sequence, NULL);
	}
	if (!memory)
		path_fail(path, "no memory to replay removals");
	recovery_run(path, path_tombstones_synced);
}

/* ---- open segments ---------------------------------------------------------------------- */

static bool path_writes_landed(const struct store_path *path)
{
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		if (path->block[i].busy)
			return false;
	return STAILQ_EMPTY(&path->writes);
}

#define AHEAD_UNITS 1024u /* units of an open segment that are read at a time */

/* Units of an open segment that were read together. */
struct ahead {
	uint8_t *units;
	uint32_t from, count, room;
};

/* The units of a page; NULL: they cannot be read. */
static const uint8_t *ahead_read(struct ahead *ahead, struct store_path *path, uint32_t number,
	uint32_t unit, uint32_t units)
{
	uint32_t count = path->store->units - unit;
	int64_t rc;

	if (unit >= ahead->from && unit + units <= ahead->from + ahead->count)
		return ahead->units + (size_t)(unit - ahead->from) * PAGE_UNIT;
	if (count > AHEAD_UNITS)
		count = units > AHEAD_UNITS ? units : AHEAD_UNITS;
	ahead->count = 0;
	if (count > ahead->room) {
		free(ahead->units);
		ahead->units = malloc((size_t)count * PAGE_UNIT);
		ahead->room = ahead->units ? count : 0;
	}
	rc = ahead->units ? scan_call(path, DEVICE_READ, number, unit, ahead->units, count)
			  : -ENOMEM;
	if (rc == -ETIMEDOUT)
		path_fail(path, "cannot be read: %s", limit_error((int)rc));
	else if (rc < 0 && ahead->units && count > units) { /* the error may be of another page */
		count = units;
		rc = scan_call(path, DEVICE_READ, number, unit, ahead->units, count);
	}
	if (rc < 0)
		return NULL;
	ahead->from = unit;
	ahead->count = count;
	return ahead->units;
}

/*
 * Queues a page of an open segment for its path; false: it is lost. Six parameters: where the page
 * was and what it is.
 */
static bool salvage_page(struct ahead *ahead, struct store_path *path, uint32_t number,
	const struct disk_index_page *page, uint32_t unit, uint64_t sequence)
{
	struct disk_request *request = calloc(1, sizeof(*request));
	const uint8_t *from;
	uint32_t units;

	if (!request)
		return false;
	memcpy(&request->key, page->key, sizeof(page->key));
	request->op = DISK_WRITE;
	request->length = (page->length & ~(1u << 31)) + 1;
	request->sequence = sequence;
	request->internal = true;
	units = disk_units(request->length);
	request->data = aligned_alloc(PAGE_UNIT, (size_t)units * PAGE_UNIT);
	from = request->data ? ahead_read(ahead, path, number, unit, units) : NULL;
	if (from)
		memcpy(request->data, from, request->length);
	if (!from || crc32c(0, request->data, request->length) != page->crc) {
		free(request->data);
		free(request);
		return false;
	}
	busy_add(path->store, request);
	path->report.queued_bytes += (uint64_t)units * PAGE_UNIT;
	STAILQ_INSERT_TAIL(&path->writes, request, next);
	return true;
}

static void salvage_pages(struct recovery *recovery, struct store_path *path, uint32_t number)
{
	struct store *store = recovery->store;
	uint32_t segment = path->first + number;
	const struct disk_index_segment *from = &store->index.segment[segment];
	struct ahead ahead = {NULL, 0, 0, 0};

	for (uint32_t i = 0; i < from->pages && path_in_service(path); i++) {
		struct disk_index_found found = {
			.id = segment << 16 | i, .life = from->life, .segment = segment};

		if (!disk_index_still(&store->index, &found))
			continue;
		(void)salvage_page(&ahead, path, number, &from->page[i], from->unit[i],
			recovery->sequence[segment][i]);
		disk_index_remove(&store->index, &found);
		if (path->report.queued_bytes < DISK_BLOCK_BYTES && i + 1 < from->pages)
			continue;
		if (!recovery_run(path, path_writes_landed))
			break;
	}
	free(ahead.units);
	(void)recovery_run(path, path_writes_landed);
}

static void salvage_tombstones(struct recovery *recovery, struct store_path *path, uint32_t number)
{
	const struct scan_segment *segment = &recovery->scan[path->number].segment[number];

	for (uint32_t b = 0; b < segment->blocks; b++) {
		const struct disk_block *block = &segment->block[b];

		for (uint32_t i = 0; i < block->entries; i++) {
			const struct disk_entry *entry = &block->entry[i];

			/* Each is there twice. One that another path replaces is needed as well:
			 * that path may leave service. */
			if (entry->length ||
				(b && !memcmp(block[-1].entry, block->entry, sizeof(block->entry))))
				continue;
			if (!remove_add(path, &entry->key, entry->sequence, NULL)) {
				path_fail(path, "no memory to salvage removals");
				return;
			}
		}
	}
	(void)recovery_run(path, path_tombstones_synced);
}

static bool path_full_ones_sealed(const struct store_path *path)
{
	for (uint32_t i = 0; i < path->segments; i++)
		if (path->segment[i].state == SEGMENT_SEALING)
			return false;
	return true;
}

static void salvage_recreate_file(struct store_path *path, uint32_t number)
{
	int64_t rc = 0;

	/* What was copied is durable before its source goes. */
	if (!recovery_run(path, path_full_ones_sealed))
		return;
	if (path->active != SEGMENT_NONE)
		rc = scan_call(path, DEVICE_SYNC, path->active, 0, NULL, 0);
	if (!rc)
		rc = scan_call(path, DEVICE_UNLINK, number, 0, NULL, 0);
	if (!rc)
		rc = scan_call(path, DEVICE_CREATE, number, 0, NULL, 0);
	if (rc) {
		path_fail(path, "cannot replace segment %u: %s", number, limit_error((int)rc));
		return;
	}
	disk_index_empty(&path->store->index, path->first + number);
	path->segment[number] = (struct segment){.state = SEGMENT_FREE};
}

/*
 * The open segment to handle next: the newest one. An older one must not go before it, because a
 * segment whose predecessor is missing reads as damage after a crash.
 */
static uint32_t salvage_choose(const struct store_path *path)
{
	uint32_t newest = SEGMENT_NONE;

	for (uint32_t i = 0; i < path->segments; i++)
		if (path->segment[i].state == SEGMENT_SALVAGE &&
			(newest == SEGMENT_NONE ||
				path->segment[i].ordinal > path->segment[newest].ordinal))
			newest = i;
	return newest;
}

/* True if another segment of the path has the tombstone, or a newer one of its key. */
static bool tombstone_elsewhere(
	const struct scan *scan, uint32_t number, const struct disk_entry *tombstone)
{
	for (uint32_t s = 0; s < scan->path->segments; s++)
		for (uint32_t b = 0; s != number && b < scan->segment[s].blocks; b++)
			for (uint32_t i = 0; i < scan->segment[s].block[b].entries; i++) {
				const struct disk_entry *entry =
					&scan->segment[s].block[b].entry[i];

				if (!entry->length && entry->sequence >= tombstone->sequence &&
					page_key_equal(&entry->key, &tombstone->key))
					return true;
			}
	return false;
}

/* True if the index needs no page of the segment and its tombstones are elsewhere, too. */
static bool salvage_is_redundant(
	const struct recovery *recovery, struct store_path *path, uint32_t number)
{
	const struct scan *scan = &recovery->scan[path->number];
	const struct scan_segment *segment = &scan->segment[number];
	struct disk_index_segment *pages = &path->store->index.segment[path->first + number];

	for (uint32_t i = 0; i < pages->pages; i++)
		if (pages->page[i].length >> 31)
			return false;
	for (uint32_t b = 0; b < segment->blocks; b++)
		for (uint32_t i = 0; i < segment->block[b].entries; i++)
			if (!segment->block[b].entry[i].length &&
				!tombstone_elsewhere(scan, number, &segment->block[b].entry[i]))
				return false;
	return true;
}

/*
 * Makes room if all segments are open. The engine leaves some sealed or free, so a recovery that
 * was interrupted has opened them, and they hold copies of what is still in its place: the newest
 * goes.
 */
static void salvage_make_room(struct recovery *recovery, struct store_path *path)
{
	uint32_t newest = salvage_choose(path);

	for (uint32_t i = 0; i < path->segments; i++)
		if (path->segment[i].state != SEGMENT_SALVAGE)
			return;
	if (newest != SEGMENT_NONE && salvage_is_redundant(recovery, path, newest))
		salvage_recreate_file(path, newest);
}

/* Moves pages and tombstones of open segments to new ones, then removes the open ones. */
static void recovery_salvage(struct recovery *recovery, unsigned number)
{
	struct store_path *path = &recovery->store->path[number];
	uint32_t open;

	salvage_make_room(recovery, path);
	while (path_in_service(path) && (open = salvage_choose(path)) != SEGMENT_NONE) {
		if (recovery->scan[number].segment[open].blocks) {
			salvage_pages(recovery, path, open);
			if (path_in_service(path))
				salvage_tombstones(recovery, path, open);
		}
		if (path_in_service(path))
			salvage_recreate_file(path, open);
	}
}

static void recovery_free(struct recovery *recovery)
{
	for (uint32_t i = 0; recovery->sequence && i < recovery->store->index.segments; i++)
		free(recovery->sequence[i]);
	free(recovery->sequence);
	free(recovery->removal);
}

/* ---- the whole start ------------------------------------------------------------------------ */

static bool path_recorded(const struct store_path *path)
{
	return path->recorded == path->store->generation;
}

int store_recover(struct store *store, const uint32_t segments[DISK_PATHS_MAX])
{
	struct recovery recovery = {.store = store};
	uint32_t first = 0;
	unsigned in_service = 0;
	int rc = -ENODEV;

	store->starting = true;
	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		TAILQ_INIT(&path->flying);
		path->store = store;
		path->number = i;
		path->first = first;
		if (path_open(path, segments[i]))
			return -ENOMEM;
		first += segments[i];
	}
	paths_scan(&recovery);
	if (paths_check(&recovery)) {
		paths_clear_copies(&recovery);
		paths_prove(&recovery);
		paths_enter_service(&recovery);
		for (unsigned i = 0; i < store->paths; i++)
			if (path_in_service(&store->path[i]))
				path_adopt_segments(&recovery, i);
		rc = recovery_index(&recovery);
		for (unsigned i = 0; i < store->paths && !rc; i++)
			if (path_in_service(&store->path[i])) {
				path_replay(&recovery, i);
				recovery_salvage(&recovery, i);
				store->path[i].salvaging = false;
			}
		store->starting = false;
		store->generation++;
		for (unsigned i = 0; i < store->paths && !rc; i++)
			in_service += recovery_run(&store->path[i], path_recorded);
		rc = rc ? rc : in_service ? 0 : -ENODEV;
	}
	for (unsigned i = 0; i < store->paths; i++)
		if (recovery.scan[i].path)
			scan_free(&recovery.scan[i]);
	recovery_free(&recovery);
	return rc;
}
