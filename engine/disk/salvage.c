/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the index from the headers that were read, and moves what open segments hold to new ones.
 * Open segments are not reused in place: their file is removed and created anew. Runs on the thread
 * that opens the tier.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi/crc32c.h"
#include "engine/disk/recover.h"
#include "numa/limit.h"

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

static bool believed(const struct recovery *recovery, unsigned number)
{
	return recovery->scan[number].path && path_in_service(&recovery->store->path[number]);
}

static int collect_removals(struct recovery *recovery)
{
	uint64_t count = 0;

	for (unsigned p = 0; p < recovery->store->paths; p++)
		if (believed(recovery, p))
			for_each_block(&recovery->scan[p], segment,
				block) for (uint32_t i = 0; i < block->entries; i++) count +=
				!block->entry[i].length;
	recovery->removals_room = 16;
	while (recovery->removals_room < 2 * count)
		recovery->removals_room *= 2;
	recovery->removal = calloc(recovery->removals_room, sizeof(*recovery->removal));
	if (!recovery->removal)
		return -ENOMEM;
	for (unsigned p = 0; p < recovery->store->paths; p++) {
		if (!believed(recovery, p))
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

static uint64_t ordinal_of(const struct recovery *recovery, uint32_t segment)
{
	unsigned p = 0;

	while (p + 1 < recovery->store->paths && segment >= recovery->store->path[p + 1].first)
		p++;
	return recovery->store->path[p].segment[segment - recovery->store->path[p].first].ordinal;
}

/* Adds a page unless a tombstone or another copy is newer. */
static int add_page(
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
			(sequence == entry->sequence && ordinal_of(recovery, other.segment) <=
								ordinal_of(recovery, segment)))
			return 0;
		disk_index_remove(index, &other);
	}
	id = disk_index_add(index, segment, unit, &entry->key, entry->length, entry->crc);
	if (id == INDEX_NONE)
		return -ENOMEM;
	recovery->sequence[segment][id & 0xffff] = entry->sequence;
	return 0;
}

static int add_segment(struct recovery *recovery, struct store_path *path, uint32_t number)
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
				rc = add_page(
					recovery, path->first + number, unit, &block->entry[i]);
			unit += disk_units(block->entry[i].length);
		}
	}
	if (path->segment[number].state == SEGMENT_SEALED)
		disk_index_trim(&recovery->store->index, path->first + number);
	return rc;
}

int recovery_index(struct recovery *recovery)
{
	struct store *store = recovery->store;
	int rc = collect_removals(recovery);

	recovery->sequence = calloc(store->index.segments, sizeof(uint64_t *));
	if (!recovery->sequence)
		return -ENOMEM;
	/* Sealed segments first: of two copies with one number the one that stays is kept. */
	for (unsigned pass = 0; pass < 2; pass++)
		for (unsigned p = 0; p < store->paths; p++) {
			struct store_path *path = &store->path[p];
			uint32_t before = store->index.pages;

			if (!believed(recovery, p))
				continue;
			for (uint32_t i = 0; i < path->segments && !rc; i++)
				if (path->segment[i].state ==
					(pass ? SEGMENT_SALVAGE : SEGMENT_SEALED))
					rc = add_segment(recovery, path, i);
			path->report.pages_recovered += store->index.pages - before;
		}
	return rc;
}

/* ---- open segments ---------------------------------------------------------------------- */

static bool writes_landed(const struct store_path *path)
{
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		if (path->block[i].busy)
			return false;
	return STAILQ_EMPTY(&path->writes);
}

static bool tombstones_synced(const struct store_path *path)
{
	return STAILQ_EMPTY(&path->tombstones) && !path->batch_busy;
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
	if (!ahead->units || scan_call(path, DEVICE_READ, number, unit, ahead->units, count) < 0)
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
	struct store *store = path->store;
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
	if (!from || crc32c(0, request->data, request->length) != page->crc ||
		!busy_add(store, &request->key)) {
		free(request->data);
		free(request);
		return false;
	}
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
		if (!recovery_run(path, writes_landed))
			break;
	}
	free(ahead.units);
	(void)recovery_run(path, writes_landed);
}

static void salvage_tombstones(struct recovery *recovery, struct store_path *path, uint32_t number)
{
	const struct scan_segment *segment = &recovery->scan[path->number].segment[number];

	for (uint32_t b = 0; b < segment->blocks; b++) {
		const struct disk_block *block = &segment->block[b];

		for (uint32_t i = 0; i < block->entries; i++) {
			const struct disk_entry *entry = &block->entry[i];

			/* Each is there twice, and one that a newer one replaces is not needed. */
			if (entry->length ||
				removal_at(recovery, &entry->key)->sequence != entry->sequence ||
				(b && !memcmp(block[-1].entry, block->entry, sizeof(block->entry))))
				continue;
			if (!remove_add(path, &entry->key, entry->sequence, NULL)) {
				path_fail(path, "no memory to salvage removals");
				return;
			}
		}
	}
	(void)recovery_run(path, tombstones_synced);
}

static bool full_ones_sealed(const struct store_path *path)
{
	for (uint32_t i = 0; i < path->segments; i++)
		if (path->segment[i].state == SEGMENT_SEALING)
			return false;
	return true;
}

static void recreate(struct store_path *path, uint32_t number)
{
	int64_t rc = 0;

	/* What was copied is durable before its source goes. */
	if (!recovery_run(path, full_ones_sealed))
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
static uint32_t choose(const struct store_path *path)
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
static bool redundant(const struct recovery *recovery, struct store_path *path, uint32_t number)
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
static void make_room(struct recovery *recovery, struct store_path *path)
{
	uint32_t newest = choose(path);

	for (uint32_t i = 0; i < path->segments; i++)
		if (path->segment[i].state != SEGMENT_SALVAGE)
			return;
	if (newest != SEGMENT_NONE && redundant(recovery, path, newest))
		recreate(path, newest);
}

void recovery_salvage(struct recovery *recovery, unsigned number)
{
	struct store_path *path = &recovery->store->path[number];
	uint32_t open;

	make_room(recovery, path);
	while (path_in_service(path) && (open = choose(path)) != SEGMENT_NONE) {
		if (recovery->scan[number].segment[open].blocks) {
			salvage_pages(recovery, path, open);
			if (path_in_service(path))
				salvage_tombstones(recovery, path, open);
		}
		if (path_in_service(path))
			recreate(path, open);
	}
}

void recovery_free(struct recovery *recovery)
{
	for (uint32_t i = 0; recovery->sequence && i < recovery->store->index.segments; i++)
		free(recovery->sequence[i]);
	free(recovery->sequence);
	free(recovery->removal);
}
