/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of pages on disk. The disk thread changes it, the control plane looks keys up; both
 * under index->lock.
 */
#include "engine/disk/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi/map.h"

#define CHUNK_HEADS 4096u /* heads of chains that are allocated at a time */
#define LOAD 3u           /* pages per chain */
#define LIVE (1u << 31)
#define EMPTY_STEP 64u /* pages that are removed while the lock is held */
static_assert(PAGE_BYTES_MAX <= LIVE, "length - 1 leaves the upper bit");

static struct disk_index_page *page_at(struct disk_index *index, uint32_t id)
{
	return &index->segment[id >> 16].page[id & 0xffff];
}

/*
 * Its low 16 bits are the slot of the directory, so that the pages of a slot are in the buckets
 * whose numbers end in these bits: see disk_index_slot().
 */
static uint32_t key_hash(const uint32_t key[4])
{
	/* A page key is a hash already; both halves count, should one of them be weak. */
	uint64_t mix = ((uint64_t)key[1] << 32 | key[0]) ^
		       ((uint64_t)key[3] << 32 | key[2]) * UINT64_C(0x9e3779b97f4a7c15);

	return (uint32_t)(mix >> 32 ^ mix) << 16 | key[3] >> 16;
}
static_assert(MAP_SLOTS == 1u << 16, "a slot has 16 bits");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "key[3] is the high half of word[1]");

/* The bucket of a hash: buckets below `split` have been split already. */
static uint32_t bucket_of(const struct disk_index *index, uint32_t h)
{
	uint32_t power = 1u << (31 - __builtin_clz(index->buckets));
	uint32_t bucket = h & (2 * power - 1);

	return bucket < index->buckets ? bucket : bucket - power;
}

static uint32_t *head_at(struct disk_index *index, uint32_t bucket)
{
	return &index->chunk[bucket / CHUNK_HEADS][bucket % CHUNK_HEADS];
}

static int chunk_add(struct disk_index *index)
{
	uint32_t **chunk = realloc(index->chunk, (index->chunks + 1) * sizeof(*chunk));

	if (!chunk)
		return -ENOMEM;
	index->chunk = chunk;
	chunk[index->chunks] = malloc(CHUNK_HEADS * sizeof(**chunk));
	if (!chunk[index->chunks])
		return -ENOMEM;
	memset(chunk[index->chunks], 0xff, CHUNK_HEADS * sizeof(**chunk));
	index->chunks++;
	return 0;
}

int disk_index_open(struct disk_index *index, uint32_t segments)
{
	memset(index, 0, sizeof(*index));
	index->segment = calloc(segments, sizeof(*index->segment));
	index->forgotten = malloc(INDEX_FORGOTTEN_MAX * sizeof(*index->forgotten));
	if (!index->segment || !index->forgotten || chunk_add(index)) {
		free(index->forgotten);
		free(index->segment);
		free(index->chunk);
		return -ENOMEM;
	}
	index->segments = segments;
	index->buckets = 1;
	pthread_mutex_init(&index->lock, NULL);
	return 0;
}

void disk_index_close(struct disk_index *index)
{
	for (uint32_t i = 0; i < index->segments; i++) {
		free(index->segment[i].page);
		free(index->segment[i].unit);
	}
	for (uint32_t i = 0; i < index->chunks; i++)
		free(index->chunk[i]);
	free(index->lost);
	free(index->forgotten);
	free(index->segment);
	free(index->chunk);
	pthread_mutex_destroy(&index->lock);
}

/* The name of the page in directory entries: struct disk_page. */
static uint32_t place_of(const struct disk_index *index, uint32_t id)
{
	return place_make(PLACE_DISK, index->segment[id >> 16].epoch);
}

static uint32_t generation_of(const struct disk_index *index, uint32_t id)
{
	return (id & 0xffff0000) | index->segment[id >> 16].unit[id & 0xffff];
}

static struct disk_page page_named(struct disk_index *index, uint32_t id)
{
	const struct disk_index_page *page = page_at(index, id);
	struct disk_page named = {.place = place_of(index, id),
		.generation = generation_of(index, id),
		.length = (page->length & ~LIVE) + 1};

	memcpy(&named.key, page->key, sizeof(named.key));
	return named;
}

/* Pages of a segment are in the order in which their writes ended, not in that of their units. */
static bool unit_find(
	const struct disk_index_segment *segment, uint16_t unit, struct page_key *ret_key)
{
	for (uint32_t i = 0; i < segment->pages; i++)
		if (segment->unit[i] == unit && segment->page[i].length & LIVE) {
			memcpy(ret_key, segment->page[i].key, sizeof(*ret_key));
			return true;
		}
	return false;
}

bool disk_index_named(
	struct disk_index *index, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	uint32_t number = generation >> 16;
	bool found;

	if (number >= index->segments)
		return false;
	pthread_mutex_lock(&index->lock);
	found = place_of(index, number << 16) == place &&
		unit_find(&index->segment[number], (uint16_t)generation, ret_key);
	pthread_mutex_unlock(&index->lock);
	return found;
}

static uint32_t id_of(struct disk_index *index, const struct page_key *key)
{
	uint32_t words[4], id;

	memcpy(words, key, sizeof(words));
	id = *head_at(index, bucket_of(index, key_hash(words)));
	while (id != INDEX_NONE && memcmp(page_at(index, id)->key, words, sizeof(words)))
		id = page_at(index, id)->next;
	return id;
}

bool disk_index_find(
	struct disk_index *index, const struct page_key *key, struct disk_index_found *ret_found)
{
	bool found = false;
	uint32_t id;

	pthread_mutex_lock(&index->lock);
	id = id_of(index, key);
	if (id != INDEX_NONE) {
		const struct disk_index_segment *segment = &index->segment[id >> 16];
		const struct disk_index_page *page = page_at(index, id);

		*ret_found = (struct disk_index_found){.id = id,
			.life = segment->life,
			.segment = id >> 16,
			.unit = segment->unit[id & 0xffff],
			.length = (page->length & ~LIVE) + 1,
			.crc = page->crc,
			.place = place_of(index, id),
			.generation = generation_of(index, id)};
		found = true;
	}
	pthread_mutex_unlock(&index->lock);
	return found;
}

static bool page_still(struct disk_index *index, const struct disk_index_found *found)
{
	const struct disk_index_segment *segment = &index->segment[found->segment];

	return segment->life == found->life && (found->id & 0xffff) < segment->pages &&
	       (page_at(index, found->id)->length & LIVE);
}

bool disk_index_still(struct disk_index *index, const struct disk_index_found *found)
{
	bool rc;

	pthread_mutex_lock(&index->lock);
	rc = page_still(index, found);
	pthread_mutex_unlock(&index->lock);
	return rc;
}

/*
 * The link where the page belongs: a chain is in the order of its ids, highest first, so that the
 * start, which adds them in ascending order, follows no chain.
 */
static uint32_t *link_of(struct disk_index *index, uint32_t id)
{
	uint32_t *at = head_at(index, bucket_of(index, key_hash(page_at(index, id)->key)));

	while (*at != INDEX_NONE && *at > id)
		at = &page_at(index, *at)->next;
	return at;
}

static void link_page(struct disk_index *index, uint32_t id)
{
	uint32_t *at = link_of(index, id);

	page_at(index, id)->next = *at;
	*at = id;
}

/* One more bucket: the pages of the bucket that it is split from are distributed over both. */
static void index_grow(struct disk_index *index)
{
	uint32_t from = index->buckets - (1u << (31 - __builtin_clz(index->buckets)));
	uint32_t *stays, *moves, id;

	if (index->buckets == index->chunks * CHUNK_HEADS && chunk_add(index))
		return; /* longer chains */
	stays = head_at(index, from);
	moves = head_at(index, index->buckets++);
	/* in the order of the chain */
	for (id = *stays; id != INDEX_NONE; id = page_at(index, id)->next) {
		struct disk_index_page *page = page_at(index, id);
		uint32_t **tail = bucket_of(index, key_hash(page->key)) == from ? &stays : &moves;

		**tail = id;
		*tail = &page->next;
	}
	*stays = *moves = INDEX_NONE;
}

static int segment_resize(struct disk_index_segment *segment, uint32_t room)
{
	struct disk_index_page *page = realloc(segment->page, room * sizeof(*page));
	uint16_t *unit;

	if (!page)
		return -ENOMEM;
	segment->page = page;
	unit = realloc(segment->unit, room * sizeof(*unit));
	if (!unit)
		return -ENOMEM;
	segment->unit = unit;
	segment->room = room;
	return 0;
}

/* ---- tombstones that wait to be written ----------------------------------------------------- */

static void forgotten_add(struct disk_index *index, const struct page_key *key)
{
	uint32_t at = index->forgotten_first + index->forgotten_count;

	if (index->forgotten_count == INDEX_FORGOTTEN_MAX) {
		index->forgotten_dropped++;
		return;
	}
	index->forgotten_count++;
	index->forgotten[at % INDEX_FORGOTTEN_MAX] =
		(struct disk_entry){.key = *key, .sequence = index->sequence++};
}

bool disk_index_forgets_many(struct disk_index *index)
{
	bool many;

	pthread_mutex_lock(&index->lock);
	many = index->forgotten_count > INDEX_FORGOTTEN_MAX / 2;
	pthread_mutex_unlock(&index->lock);
	return many;
}

unsigned disk_index_forgotten(
	struct disk_index *index, unsigned max, struct disk_entry *ret_tombstones)
{
	unsigned n = 0;

	pthread_mutex_lock(&index->lock);
	for (; n < max && index->forgotten_count; n++, index->forgotten_count--)
		ret_tombstones[n] =
			index->forgotten[index->forgotten_first++ % INDEX_FORGOTTEN_MAX];
	pthread_mutex_unlock(&index->lock);
	return n;
}

uint64_t disk_index_sequence(struct disk_index *index)
{
	uint64_t sequence;

	pthread_mutex_lock(&index->lock);
	sequence = index->sequence++;
	pthread_mutex_unlock(&index->lock);
	return sequence;
}

uint32_t disk_index_add(struct disk_index *index, uint32_t number, uint32_t unit,
	const struct disk_entry *entry, const uint8_t *forgotten)
{
	struct disk_index_segment *segment = &index->segment[number];
	uint32_t id = INDEX_NONE;
	struct disk_index_page *page;

	pthread_mutex_lock(&index->lock);
	if (forgotten && shm_load8(forgotten)) {
		forgotten_add(index, &entry->key);
		goto out;
	}
	if (segment->pages > 0xfffe)
		goto out;
	if (segment->pages == segment->room && segment_resize(segment, segment->room * 5 / 4 + 64))
		goto out;
	if (index->pages >= index->buckets * LOAD)
		index_grow(index);
	id = number << 16 | segment->pages;
	segment->unit[segment->pages] = (uint16_t)unit;
	page = &segment->page[segment->pages++];
	memcpy(page->key, &entry->key, sizeof(page->key));
	page->crc = entry->crc;
	page->length = (entry->length - 1) | LIVE;
	link_page(index, id);
	index->pages++;
out:
	pthread_mutex_unlock(&index->lock);
	return id;
}

/*
 * Records a page that leaves the table. The records need no limit while they are read: a page takes
 * about as much memory in the table as in this vector. Those that were read make room.
 */
static void lost_add(struct disk_index *index, uint32_t id)
{
	if (!index->lost_kept)
		return;
	if (index->lost_count == index->lost_room && index->lost_at > index->lost_room / 2) {
		index->lost_count -= index->lost_at;
		memmove(index->lost, index->lost + index->lost_at,
			index->lost_count * sizeof(*index->lost));
		index->lost_at = 0;
	}
	if (index->lost_count == index->lost_room) {
		uint32_t room = index->lost_room ? 2 * index->lost_room : 1024;
		struct disk_page *more = realloc(index->lost, room * sizeof(*more));

		if (!more) {
			index->lost_unknown++;
			return;
		}
		index->lost = more;
		index->lost_room = room;
	}
	index->lost[index->lost_count++] = page_named(index, id);
}

static void unlink_page(struct disk_index *index, uint32_t id)
{
	struct disk_index_page *page = page_at(index, id);

	lost_add(index, id);
	*link_of(index, id) = page->next;
	page->length &= ~LIVE;
	index->pages--;
}

void disk_index_remove(struct disk_index *index, const struct disk_index_found *found)
{
	pthread_mutex_lock(&index->lock);
	if (page_still(index, found))
		unlink_page(index, found->id);
	pthread_mutex_unlock(&index->lock);
}

bool disk_index_forget(struct disk_index *index, const struct page_key *key)
{
	uint32_t id;

	pthread_mutex_lock(&index->lock);
	id = id_of(index, key);
	if (id != INDEX_NONE) {
		unlink_page(index, id);
		forgotten_add(index, key);
	}
	pthread_mutex_unlock(&index->lock);
	return id != INDEX_NONE;
}

void disk_index_empty(struct disk_index *index, uint32_t number)
{
	struct disk_index_segment *segment = &index->segment[number];
	uint32_t at = 0;

	do {
		pthread_mutex_lock(&index->lock);
		for (unsigned n = 0; at < segment->pages && n < EMPTY_STEP; n++, at++)
			if (segment->page[at].length & LIVE)
				unlink_page(index, number << 16 | at);
		if (at == segment->pages) {
			free(segment->page);
			free(segment->unit);
			*segment = (struct disk_index_segment){.life = segment->life + 1};
			at = 0;
		}
		pthread_mutex_unlock(&index->lock);
	} while (at);
}

void disk_index_trim(struct disk_index *index, uint32_t number)
{
	struct disk_index_segment *segment = &index->segment[number];

	pthread_mutex_lock(&index->lock);
	if (segment->pages)
		(void)segment_resize(segment, segment->pages);
	pthread_mutex_unlock(&index->lock);
}

void disk_index_epoch(struct disk_index *index, uint32_t number, uint64_t epoch)
{
	pthread_mutex_lock(&index->lock);
	index->segment[number].epoch = (uint32_t)epoch & (PAGE_UNITS_MAX - 1);
	pthread_mutex_unlock(&index->lock);
}

/*
 * The cursor: how many buckets of the slot are done, and INDEX_NONE less the highest id that is not
 * done in the next one. A page keeps its id. It keeps its bucket or moves to the newest one, which
 * the walk reaches last. So no page that stays is missed, and each call comes nearer to the end.
 */
unsigned disk_index_slot(struct disk_index *index, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages)
{
	uint64_t done = *cursor >> 32, bucket;
	uint32_t from = INDEX_NONE - (uint32_t)*cursor, id = INDEX_NONE;
	unsigned n = 0;

	pthread_mutex_lock(&index->lock);
	for (;; done++, from = INDEX_NONE) {
		bucket = bucket_of(index, slot) + done * MAP_SLOTS;
		if (bucket >= index->buckets)
			break;
		id = *head_at(index, (uint32_t)bucket);
		for (; id != INDEX_NONE && n < max; id = page_at(index, id)->next)
			if (id <= from && page_at(index, id)->key[3] >> 16 == slot)
				ret_pages[n++] = page_named(index, id);
		if (id != INDEX_NONE)
			break;
	}
	*cursor = bucket < index->buckets ? done << 32 | (INDEX_NONE - id) : 0;
	pthread_mutex_unlock(&index->lock);
	return n;
}

void disk_index_keep_lost(struct disk_index *index)
{
	pthread_mutex_lock(&index->lock);
	index->lost_kept = true;
	pthread_mutex_unlock(&index->lock);
}

unsigned disk_index_lost(struct disk_index *index, unsigned max, struct disk_page *ret_pages)
{
	unsigned n = 0;

	pthread_mutex_lock(&index->lock);
	while (n < max && index->lost_at < index->lost_count)
		ret_pages[n++] = index->lost[index->lost_at++];
	if (index->lost && index->lost_at == index->lost_count) {
		free(index->lost);
		index->lost = NULL;
		index->lost_at = index->lost_count = index->lost_room = 0;
	}
	pthread_mutex_unlock(&index->lock);
	return n;
}

uint64_t disk_index_bytes(struct disk_index *index, uint32_t *ret_pages, bool *ret_lost)
{
	uint64_t bytes;

	pthread_mutex_lock(&index->lock);
	bytes = index->segments * sizeof(*index->segment) +
		(uint64_t)index->chunks * (CHUNK_HEADS * sizeof(uint32_t) + sizeof(void *));
	for (uint32_t i = 0; i < index->segments; i++)
		bytes += index->segment[i].room *
			 (sizeof(struct disk_index_page) + sizeof(uint16_t));
	bytes += index->lost_room * sizeof(*index->lost) +
		 INDEX_FORGOTTEN_MAX * sizeof(*index->forgotten);
	*ret_pages = index->pages;
	*ret_lost = index->lost_at < index->lost_count;
	pthread_mutex_unlock(&index->lock);
	return bytes;
}
