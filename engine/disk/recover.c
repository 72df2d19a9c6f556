/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start: scans all paths, decides which of them can prove that they missed no removal, builds
 * the index, and moves what open segments hold. Blocks; runs on the thread that opens the tier,
 * with one more thread a path while it scans.
 *
 * The proof. Each path file names the members: the paths in service since a generation. Those of
 * the highest generation have all tombstones, if none of them is absent: an absent one may have
 * served removals alone. A path that left is complete up to the number that the members recorded;
 * what it missed is replayed from them before it is used. A copy of a path has the id of the
 * original, but not the removals of one since then. A path without proof is cleared: it gets a new
 * id, which makes all that lies on it invalid.
 */
#include "engine/disk/recover.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "numa/clock.h"
#include "numa/limit.h"

static void *scan_thread(void *argument)
{
	scan_path(argument);
	return NULL;
}

static void scan_all(struct recovery *recovery)
{
	struct store *store = recovery->store;
	pthread_t thread[DISK_PATHS_MAX];
	bool started[DISK_PATHS_MAX] = {false};

	for (unsigned i = 0; i < store->paths; i++) {
		if (!store->path[i].device)
			continue;
		recovery->scan[i].path = &store->path[i];
		if (store->parallel)
			started[i] =
				!pthread_create(&thread[i], NULL, scan_thread, &recovery->scan[i]);
		if (!started[i])
			scan_path(&recovery->scan[i]);
	}
	for (unsigned i = 0; i < store->paths; i++)
		if (started[i])
			pthread_join(thread[i], NULL);
}

/* Takes paths that cannot be used out of service, with the reason. */
static unsigned judge(struct recovery *recovery)
{
	struct store *store = recovery->store;
	unsigned usable = 0;

	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];
		const struct scan *scan = &recovery->scan[i];

		if (!path->device)
			continue;
		if (scan->rc)
			path_fail(path, "cannot be read: %s", limit_error(scan->rc));
		else if (scan->fault == PATH_FILE_VERSION)
			path_fail(path,
				"has another layout version than %u; empty the directory to use it",
				DISK_LAYOUT_VERSION);
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

static bool usable(const struct recovery *recovery, unsigned i)
{
	return recovery->store->path[i].device &&
	       recovery->store->path[i].report.state == DISK_PATH_OPENING;
}

static bool is_member(const struct disk_path_file *file, uint64_t id)
{
	for (uint32_t i = 0; i < file->members; i++)
		if (file->member[i] == id)
			return true;
	return false;
}

static struct store_path *path_by_id(const struct recovery *recovery, uint64_t id)
{
	for (unsigned i = 0; i < recovery->store->paths; i++)
		if (usable(recovery, i) && recovery->store->path[i].file.path_id == id)
			return &recovery->store->path[i];
	return NULL;
}

/* The path whose path file is believed: the highest generation. NULL: all paths are new. */
static const struct store_path *authority(const struct recovery *recovery)
{
	const struct store_path *best = NULL;

	for (unsigned i = 0; i < recovery->store->paths; i++) {
		const struct store_path *path = &recovery->store->path[i];

		if (usable(recovery, i) && path->file.path_id &&
			(!best || path->file.generation > best->file.generation ||
				(path->file.generation == best->file.generation &&
					path->file.path_id > best->file.path_id)))
			best = path;
	}
	return best;
}

static void clear_path(struct recovery *recovery, unsigned i, const char *why)
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

static bool is_copy(const struct store_path *path)
{
	return path->file.inode != path->device->inode ||
	       (path->file.born_ns && path->device->born_ns &&
		       path->file.born_ns != path->device->born_ns);
}

/* Another path with the same id that is not known to be a copy, or NULL. */
static const struct store_path *original(const struct recovery *recovery, unsigned number)
{
	const struct store_path *paths = recovery->store->path;

	for (unsigned i = 0; i < recovery->store->paths; i++)
		if (i != number && usable(recovery, i) && !is_copy(&paths[i]) &&
			paths[i].file.path_id == paths[number].file.path_id)
			return &paths[i];
	return NULL;
}

/* Clears copies of paths; of two snapshots that cannot be told apart, both. */
static void copies_clear(struct recovery *recovery)
{
	char why[DISK_PATHS_MAX][512] = {{0}};

	for (unsigned i = 0; i < recovery->store->paths; i++) {
		const struct store_path *path = &recovery->store->path[i], *other;

		if (!usable(recovery, i) || !path->file.path_id)
			continue;
		other = original(recovery, i);
		if (is_copy(path))
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
			clear_path(recovery, i, why[i]);
}

/* A path that left: true if the members still have all tombstones that it missed. */
static bool replayable(const struct recovery *recovery, const struct store_path *believed,
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
static void prove(struct recovery *recovery)
{
	const struct store_path *believed = authority(recovery);
	bool complete = believed != NULL;

	for (uint32_t i = 0; believed && i < believed->file.members; i++)
		complete = complete && path_by_id(recovery, believed->file.member[i]);
	if (believed)
		recovery->store->generation = believed->file.generation;
	for (unsigned i = 0; i < recovery->store->paths; i++) {
		struct store_path *path = &recovery->store->path[i];

		recovery->replay_after[i] = UINT64_MAX;
		if (!usable(recovery, i) || !path->file.path_id)
			continue;
		if (!complete)
			clear_path(recovery, i,
				"a path that was used together with it is absent, and may hold newer removals");
		else if (!is_member(&believed->file, path->file.path_id) &&
			 !replayable(recovery, believed, path->file.path_id,
				 &recovery->replay_after[i]))
			clear_path(recovery, i,
				"it was out of service, and not all removals since then are known");
	}
	if (complete)
		memcpy(recovery->store->left, believed->file.left, sizeof(recovery->store->left));
}

/* Sets ids and numbers that the paths start with. */
static void enter_service(struct recovery *recovery)
{
	struct store *store = recovery->store;

	for (unsigned i = 0; i < store->paths; i++)
		if (usable(recovery, i) && recovery->scan[i].sequence > store->sequence)
			store->sequence = recovery->scan[i].sequence;
	/* Numbers that a crash has lost are not used a second time. */
	store->sequence += UINT64_C(1) << 32;
	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		if (!usable(recovery, i))
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
static void adopt_segments(struct recovery *recovery, unsigned number)
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

bool recovery_run(struct store_path *path, bool (*finished)(const struct store_path *path))
{
	struct store *store = path->store;

	while (path_in_service(path)) {
		unsigned work = store_step(store, clock_now_ns());

		if (finished(path))
			return path_in_service(path);
		if (work)
			continue;
		if (!store_flying(store))
			path_fail(path, "has no room to recover; empty the directory to use it");
		else
			path->device->wait(path->device, 10000000);
	}
	return false;
}

static bool tombstones_synced(const struct store_path *path)
{
	return STAILQ_EMPTY(&path->tombstones) && !path->batch_busy;
}

/* A path that missed removals gets them before its path file names it a member. */
static void replay(struct recovery *recovery, unsigned number)
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
	recovery_run(path, tombstones_synced);
}

static bool recorded(const struct store_path *path)
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
	scan_all(&recovery);
	if (judge(&recovery)) {
		copies_clear(&recovery);
		prove(&recovery);
		enter_service(&recovery);
		for (unsigned i = 0; i < store->paths; i++)
			if (path_in_service(&store->path[i]))
				adopt_segments(&recovery, i);
		rc = recovery_index(&recovery);
		for (unsigned i = 0; i < store->paths && !rc; i++)
			if (path_in_service(&store->path[i])) {
				replay(&recovery, i);
				recovery_salvage(&recovery, i);
				store->path[i].salvaging = false;
			}
		store->starting = false;
		store->generation++;
		for (unsigned i = 0; i < store->paths && !rc; i++)
			in_service += recovery_run(&store->path[i], recorded);
		rc = rc ? rc : in_service ? 0 : -ENODEV;
	}
	for (unsigned i = 0; i < store->paths; i++)
		if (recovery.scan[i].path)
			scan_free(&recovery.scan[i]);
	recovery_free(&recovery);
	return rc;
}
