/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This host's shard of the directory. The control plane's thread writes it; readers read it at any
 * time, without a lock. The two candidate buckets of a key are called its first and second bucket.
 *
 * A lock-free reader always finds a live entry, because of three rules:
 *
 * 1. Entries move in one direction only: from the first bucket of their key to the second, never
 *    back and never within a bucket. A moved entry is written to its second bucket before its cell
 *    in the first is overwritten. A reader looks at the first bucket and then at the second, so it
 *    cannot miss an entry that moves meanwhile. The table does not show whether an entry is in its
 *    first or its second bucket; `side`, which readers do not see, does.
 * 2. A bucket contains an empty entry only while every live entry whose first bucket it is lies in
 *    it, because a reader that sees an empty entry does not look at the second bucket. `away`
 *    counts the entries that lie in their second bucket instead. While it is not 0, a deleted entry
 *    becomes a tombstone. When it becomes 0, the bucket's tombstones become empty entries. So a
 *    look-up of an absent key costs one READ again, however old the shard is.
 * 3. A READ returns a bucket as it was at one moment, because a bucket is one cache line. A reader
 *    that loads the bucket until two loads agree gets the same. A single load can return half of
 *    one state and half of the next:
 *    - An entry is two words, {tag, ref} and {place, generation}. The writer clears the first word,
 *      writes the second and then writes the first. A torn entry is therefore a tombstone or, when
 *      the reader loaded the first word before the change and the second after it, the old entry's
 *      tag with the new entry's place. The page head there has another key or generation: a miss.
 *    - When a bucket fills up between the loads of two of its words, the reader can see an empty
 *      entry that is no longer there, although the entry it looks for has moved to the second
 *      bucket: a miss.
 *    A single load can be wrong only in these two ways, and never returns another key's bytes.
 *
 * Entries of two keys with the same tag and the same buckets are indistinguishable here. The page
 * head has the full key and tells the reader whether it has the right page.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/control/pages/pages_inner.h"

/* largest value of `away`; a counter that has reached it is neither incremented nor decremented */
#define AWAY_MANY UINT8_MAX

/*
 * The last of this many parts of the shard is for pages in memory: they are found faster, and
 * without an entry no reader finds them at all.
 */
#define SHARD_DISK_PARTS 4u

#define STATE_MAGIC 0x50435353u /* "PCSS" */
#define STATE_LAYOUT 2u         /* raised when a field changes its place or meaning */

/*
 * What the next process of the engine finds beside the buckets. The kernel may end this process
 * between any two stores: `busy` is 1 while buckets and side do not fit each other.
 */
struct shard_state {
	uint32_t magic, layout;
	uint32_t bits;
	uint32_t busy;
	uint64_t entries; /* shard.entries */
	uint64_t memory;  /* huge_number() of the buckets */
	uint64_t owners;  /* see shard_keep(); 0: not to be adopted */
	uint64_t spare[3];
	struct shard_side side[];
};
static_assert(sizeof(struct shard_state) == SHARD_STATE_BYTES,
	"written by one process, read by the next");
static_assert(sizeof(struct shard_side) == SHARD_SIDE_BYTES, "memory_parts() counts it");

/* The position of one entry in the table: its bucket and the index in the bucket. */
struct cell {
	uint32_t bucket;
	unsigned entry;
};

static struct dir_entry cell_load(const struct shard *shard, struct cell cell)
{
	return shard->bucket[cell.bucket].entry[cell.entry];
}

static bool cell_live(const struct shard *shard, struct cell cell)
{
	return shard->bucket[cell.bucket].entry[cell.entry].tag != 0;
}

static bool cell_second(const struct shard *shard, struct cell cell)
{
	return (shard->side[cell.bucket].second & 1u << cell.entry) != 0;
}

/*
 * Writes an entry in the order of rule 3 above, so that no reader sees an old first word with a new
 * second word. The first fence is for rule 1: an entry that was moved out of this cell is visible
 * in its second bucket before the cell changes.
 */
static void cell_store(struct shard *shard, struct cell cell, const struct dir_entry *entry)
{
	uint64_t *word = (uint64_t *)(void *)&shard->bucket[cell.bucket].entry[cell.entry];

	shm_fence_store();
	if (word[0] != 0) {
		shm_store64(&word[0], 0);
		shm_fence_store();
	}
	shm_store64(&word[1], (uint64_t)entry->generation << 32 | entry->place);
	shm_fence_store();
	shm_store64(&word[0], (uint64_t)entry->ref << 32 | entry->tag);
}
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first field is the low half");

/*
 * Writes an entry and what `side` has of it; `slot`: of the map; `second`: the bucket is the key's
 * second candidate.
 */
static void cell_fill(struct shard *shard, struct cell cell, const struct dir_entry *entry,
	uint16_t slot, bool second)
{
	struct shard_side *side = &shard->side[cell.bucket];
	uint8_t bit = (uint8_t)(1u << cell.entry);

	side->second = (uint8_t)(second ? side->second | bit : side->second & ~bit);
	side->slot[cell.entry] = slot;
	if (second) {
		struct shard_side *first =
			&shard->side[dir_bucket_other(cell.bucket, entry->tag, shard->bits)];

		if (first->away != AWAY_MANY)
			first->away++;
	}
	cell_store(shard, cell, entry);
}

/*
 * Makes the bucket's deleted entries (tombstones) empty. Requires side->away == 0: every entry that
 * has this first candidate bucket is stored in it.
 */
static void bucket_clean(struct shard *shard, uint32_t bucket)
{
	static const struct dir_entry empty;

	for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
		struct cell cell = {bucket, i};

		if (!cell_live(shard, cell))
			cell_store(shard, cell, &empty);
	}
}

static void cell_clear(struct shard *shard, struct cell cell)
{
	static const struct dir_entry tombstone = {.generation = 1};
	uint32_t tag = cell_load(shard, cell).tag;
	struct shard_side *side = &shard->side[cell.bucket];

	cell_store(shard, cell, &tombstone);
	shard->entries--;
	if (cell_second(shard, cell)) {
		uint32_t first = dir_bucket_other(cell.bucket, tag, shard->bits);

		side->second &= (uint8_t) ~(1u << cell.entry);
		if (shard->side[first].away != AWAY_MANY && --shard->side[first].away == 0)
			bucket_clean(shard, first);
	}
	if (side->away == 0)
		bucket_clean(shard, cell.bucket);
}

/* Between change_begin() and change_end() a process that ends leaves a shard that is lost. */
static void change_begin(struct shard *shard)
{
	shm_store(&shard->state->busy, 1);
	shm_fence_store();
}

static void change_end(struct shard *shard)
{
	shm_store64(&shard->state->entries, shard->entries);
	shm_fence_store();
	shm_store(&shard->state->busy, 0);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Sets the number of buckets. Returns 0 or -EINVAL: too many entries. */
static int bits_choose(struct shard *shard, uint64_t entries)
{
	shard->bits = shard_bits(entries);
	return shard->bits ? 0 : -EINVAL;
}

static size_t bucket_bytes(const struct shard *shard)
{
	return sizeof(struct bucket) << shard->bits;
}

static size_t state_bytes(const struct shard *shard)
{
	return sizeof(struct shard_state) + (sizeof(struct shard_side) << shard->bits);
}

static void shard_memory_use(struct shard *shard)
{
	shard->bucket = shard->memory.base;
	shard->state = shard->state_memory.base;
	shard->side = shard->state->side;
}

int shard_open(uint64_t entries, int numa_node, bool want_huge, struct shard *ret_shard)
{
	struct shard shard = {0};
	int rc = bits_choose(&shard, entries);

	if (rc == 0)
		rc = huge_open("peercache-shard", bucket_bytes(&shard), numa_node, want_huge,
			&shard.memory);
	if (rc < 0)
		return rc;
	rc = huge_open("peercache-shard-state", state_bytes(&shard), numa_node, false,
		&shard.state_memory);
	if (rc < 0) {
		huge_close(&shard.memory);
		return rc;
	}
	shard_memory_use(&shard);
	*shard.state = (struct shard_state){.magic = STATE_MAGIC,
		.layout = STATE_LAYOUT,
		.bits = shard.bits,
		.memory = huge_number(shard.memory.fd)};
	*ret_shard = shard;
	return 0;
}

static bool state_fits(const struct shard *shard, uint64_t owners)
{
	const struct shard_state *state = shard->state;

	return state->magic == STATE_MAGIC && state->layout == STATE_LAYOUT &&
	       state->bits == shard->bits && state->busy == 0 && state->owners == owners &&
	       state->memory == huge_number(shard->memory.fd) &&
	       state->entries <= (uint64_t)BUCKET_ENTRIES << shard->bits;
}

int shard_adopt(
	uint64_t entries, int memory_fd, int state_fd, uint64_t owners, struct shard *ret_shard)
{
	struct shard shard = {0};
	int rc = bits_choose(&shard, entries);
	int memory = huge_adopt(memory_fd, bucket_bytes(&shard), &shard.memory);
	int state = huge_adopt(state_fd, state_bytes(&shard), &shard.state_memory);

	if (rc == 0)
		rc = memory ? memory : state;
	if (rc == 0) {
		shard_memory_use(&shard);
		rc = state_fits(&shard, owners) ? 0 : -EPROTO;
	}
	if (rc < 0) {
		huge_close(&shard.memory);
		huge_close(&shard.state_memory);
		return rc == -EINVAL ? -EPROTO : rc;
	}
	shard.entries = shard.state->entries;
	*ret_shard = shard;
	return 0;
}

void shard_keep(struct shard *shard, uint64_t owners)
{
	shm_store64(&shard->state->owners, owners);
}

void shard_close(struct shard *shard)
{
	if (!shard->bucket)
		return;
	huge_close(&shard->memory);
	huge_close(&shard->state_memory);
	ghosts_close(&shard->ghosts);
	*shard = (struct shard){0};
}

/* ---- entries --------------------------------------------------------------------------------- */

/*
 * Finds the entry of (tag, ref) in a bucket that is its first or, if `second`, its second
 * candidate bucket. Six parameters: it is inlined into inserts and removes.
 */
static bool cell_find(const struct shard *shard, uint32_t bucket, bool second, uint32_t tag,
	uint32_t ref, struct cell *ret_cell)
{
	for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
		struct cell cell = {bucket, i};
		const struct dir_entry *entry = &shard->bucket[bucket].entry[i];

		if (entry->tag == tag && entry->ref == ref && cell_second(shard, cell) == second) {
			*ret_cell = cell;
			return true;
		}
	}
	return false;
}

/*
 * Finds the entry of (tag, ref) in either bucket. Reads the second, another cache line, only if an
 * entry lies there instead of in the first.
 */
static bool key_find(const struct shard *shard, uint32_t first, uint32_t tag, uint32_t ref,
	struct cell *ret_cell)
{
	return cell_find(shard, first, false, tag, ref, ret_cell) ||
	       (shard->side[first].away &&
		       cell_find(shard, dir_bucket_other(first, tag, shard->bits), true, tag, ref,
			       ret_cell));
}

/*
 * Finds a cell that is free for the writer: an empty entry or a tombstone. A bucket never has both.
 */
static bool cell_free(const struct shard *shard, uint32_t bucket, struct cell *ret_cell)
{
	for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
		struct cell cell = {bucket, i};

		if (!cell_live(shard, cell)) {
			*ret_cell = cell;
			return true;
		}
	}
	return false;
}

/*
 * Makes room in a full bucket: moves one of the entries whose first candidate bucket it is to that
 * entry's second candidate bucket, which may have to make room in the same way, at most `depth`
 * levels deep in total. Readers still see the moved entry in *ret_cell until the caller overwrites
 * that cell.
 */
static bool cell_displace(
	struct shard *shard, uint32_t bucket, unsigned depth, struct cell *ret_cell)
{
	for (unsigned level = 0; level < depth; level++) {
		for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
			struct cell cell = {bucket, i}, room;
			struct dir_entry entry = cell_load(shard, cell);
			uint16_t slot = shard->side[bucket].slot[i];
			uint32_t other = dir_bucket_other(bucket, entry.tag, shard->bits);

			if (cell_second(shard, cell))
				continue;
			if (level == 0 ? cell_free(shard, other, &room)
				       : cell_displace(shard, other, level, &room)) {
				cell_fill(shard, room, &entry, slot, true);
				*ret_cell = cell;
				return true;
			}
		}
	}
	return false;
}

/* Entries of the shard from which on it takes no more pages on disk. */
static uint64_t shard_disk_max(const struct shard *shard)
{
	return ((uint64_t)BUCKET_ENTRIES << shard->bits) / SHARD_DISK_PARTS *
	       (SHARD_DISK_PARTS - 1);
}

static int key_insert(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation)
{
	uint32_t tag = dir_tag(key), first = dir_bucket_first(key, shard->bits);
	uint32_t second = dir_bucket_other(first, tag, shard->bits);
	struct dir_entry entry = {.tag = tag, .ref = ref, .place = place, .generation = generation};
	uint16_t slot = (uint16_t)map_slot_of(key);
	struct cell cell;

	if (key_find(shard, first, tag, ref, &cell)) {
		uint64_t *word = (uint64_t *)(void *)&shard->bucket[cell.bucket].entry[cell.entry];

		shm_store64(&word[1], (uint64_t)generation << 32 | place);
		shard->side[cell.bucket].slot[cell.entry] = slot;
		return 0;
	}
	if (place_on_disk(place) && shard->entries >= shard_disk_max(shard))
		return -EDQUOT;
	for (unsigned depth = 0; depth <= 2; depth++) {
		if (depth == 0 ? cell_free(shard, first, &cell)
			       : cell_displace(shard, first, depth, &cell)) {
			cell_fill(shard, cell, &entry, slot, false);
			shard->entries++;
			return 0;
		}
		if (depth == 0 ? cell_free(shard, second, &cell)
			       : cell_displace(shard, second, depth, &cell)) {
			cell_fill(shard, cell, &entry, slot, true);
			shard->entries++;
			return 0;
		}
	}
	return -ENOSPC;
}

int shard_insert(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation)
{
	int rc;

	if (ref == 0 || generation == 0)
		return -EINVAL;
	change_begin(shard);
	rc = key_insert(shard, key, ref, place, generation);
	change_end(shard);
	return rc;
}

bool shard_remove(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation)
{
	uint32_t tag = dir_tag(key), first = dir_bucket_first(key, shard->bits);
	struct dir_entry entry;
	struct cell cell;

	if (!key_find(shard, first, tag, ref, &cell))
		return false;
	entry = cell_load(shard, cell);
	if (entry.place != place || entry.generation != generation)
		return false;
	change_begin(shard);
	cell_clear(shard, cell);
	change_end(shard);
	return true;
}

/*
 * Copies up to `max` entries with `tag` from the bucket, which is their first or, if `second`,
 * their second candidate bucket. Six parameters: it is inlined into look-ups.
 */
static unsigned bucket_find(const struct shard *shard, uint32_t bucket, bool second, uint32_t tag,
	struct dir_entry *ret, unsigned max)
{
	unsigned side = second ? shard->side[bucket].second : ~(unsigned)shard->side[bucket].second;
	unsigned n = 0;

	for (unsigned i = 0; i < BUCKET_ENTRIES && n < max; i++) {
		struct cell cell = {bucket, i};

		if (side & 1u << i && cell_load(shard, cell).tag == tag)
			ret[n++] = cell_load(shard, cell);
	}
	return n;
}

unsigned shard_find(
	const struct shard *shard, const struct page_key *key, struct dir_entry *ret, unsigned max)
{
	uint32_t tag = dir_tag(key), first = dir_bucket_first(key, shard->bits);
	unsigned n = bucket_find(shard, first, false, tag, ret, max);

	return n + bucket_find(shard, dir_bucket_other(first, tag, shard->bits), true, tag, ret + n,
			   max - n);
}

unsigned shard_sweep(struct shard *shard, uint32_t *cursor, uint32_t buckets,
	bool (*alive)(void *context, uint32_t ref), void *context)
{
	uint32_t mask = (1u << shard->bits) - 1;
	unsigned removed = 0;

	change_begin(shard);
	for (; buckets; buckets--, *cursor = (*cursor + 1) & mask)
		for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
			struct cell cell = {*cursor & mask, i};

			if (!cell_live(shard, cell) || alive(context, cell_load(shard, cell).ref))
				continue;
			cell_clear(shard, cell);
			removed++;
		}
	change_end(shard);
	return removed;
}

bool shard_yield(struct shard *shard, const struct page_key *key,
	bool (*alive)(void *context, uint32_t ref), void *context)
{
	uint32_t first = dir_bucket_first(key, shard->bits);
	uint32_t second = dir_bucket_other(first, dir_tag(key), shard->bits);

	for (unsigned i = 0; i < 2 * BUCKET_ENTRIES; i++) {
		struct cell cell = {i < BUCKET_ENTRIES ? first : second, i % BUCKET_ENTRIES};

		if (!cell_live(shard, cell) || alive(context, cell_load(shard, cell).ref))
			continue;
		change_begin(shard);
		cell_clear(shard, cell);
		change_end(shard);
		return true;
	}
	return false;
}

bool shard_displace(struct shard *shard, const struct page_key *key)
{
	uint32_t tag = dir_tag(key), first = dir_bucket_first(key, shard->bits);
	uint32_t second = dir_bucket_other(first, tag, shard->bits);
	unsigned start = (unsigned)shard->displaced;

	for (unsigned disk = 2; disk--;)
		for (unsigned i = 0; i < 2 * BUCKET_ENTRIES; i++) {
			unsigned k = (start + i) % (2 * BUCKET_ENTRIES);
			struct cell cell = {
				k < BUCKET_ENTRIES ? first : second, k % BUCKET_ENTRIES};
			struct dir_entry entry = cell_load(shard, cell);

			if (!entry.tag || entry.tag == tag || (disk && !place_on_disk(entry.place)))
				continue;
			change_begin(shard);
			cell_clear(shard, cell);
			change_end(shard);
			shard->displaced++;
			return true;
		}
	return false;
}

/* ---- what holders learn of their entries ----------------------------------------------------- */

void shard_digest(
	const struct shard *shard, uint32_t *cursor, uint32_t buckets, uint32_t ref, uint64_t *sums)
{
	uint32_t mask = (1u << shard->bits) - 1;

	for (; buckets; buckets--, *cursor = (*cursor + 1) & mask)
		for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
			const struct dir_entry *entry = &shard->bucket[*cursor & mask].entry[i];

			if (entry->tag && entry->ref == ref)
				sums[shard->side[*cursor & mask].slot[i]] += shard_entry_hash(
					entry->tag, entry->place, entry->generation);
		}
}

static bool part_wants(const struct shard_part *part, uint32_t slot)
{
	return !part->slots || part->slots[slot / 8] >> slot % 8 & 1;
}

static void part_step(const struct shard *shard, struct shard_part *part)
{
	part->entry = 0;
	part->buckets--;
	if (++part->bucket >> shard->bits)
		part->bucket = part->buckets = 0;
}

const struct dir_entry *shard_show(const struct shard *shard, struct shard_part *part, uint32_t ref)
{
	if (part->bucket >> shard->bits)
		part->bucket = part->buckets = 0;
	for (; part->buckets; part_step(shard, part))
		while (part->entry < BUCKET_ENTRIES) {
			unsigned i = part->entry++;
			const struct dir_entry *entry = &shard->bucket[part->bucket].entry[i];

			if (!entry->tag || entry->ref != ref ||
				!part_wants(part, shard->side[part->bucket].slot[i]))
				continue;
			part->first = part->bucket;
			if (shard->side[part->bucket].second & 1u << i)
				part->first =
					dir_bucket_other(part->bucket, entry->tag, shard->bits);
			return entry;
		}
	return NULL;
}
