/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ghosts of evicted pages, and what they teach. A cell contains, from its highest bit: 12 bits of
 * the time at which the page was evicted, 19 bits of the hash of its key, and whether it was in the
 * queue of used pages; 0: it is empty. In a full bucket the oldest ghost is replaced. There are
 * half as many cells again as ghosts, because pages of one prompt are evicted together: if some of
 * their ghosts were lost, the others would keep pages of no use.
 */
#include "engine/control/pages/ghost.h"

#include <stdlib.h>

#define WAYS 16u /* cells in a bucket, a cache line */
#define CELLS_MIN 1024u
#define REMEMBERED 3u /* evictions that are remembered, of the entries of the shard */
#define HASH_BITS 19  /* 12 bits are left for the time, */
#define TIME_MASK ((1u << (31 - HASH_BITS)) - 1)
#define UNIT_SHIFT 10 /* which goes round once in four times as many evictions as there are cells */
/* a ghost of the queue with fewer evictions counts for this many of the other one, at most */
#define RATIO_MAX 8u
/* pages that come back for each use of one that is here, above which old pages are kept */
#define KEEPS_LATE 8u
#define KEEPS_USED 2u    /* uses for each of those, above which no more old pages are kept */
#define KEEPS_PAGES 128u /* fewer pages that come back prove nothing */
#define KEEPS_POOLS 8u   /* evictions, in pools, after which order by last use is tried again */
#define STEP 2u /* of the weight: a whole pool of ghosts of one queue multiplies it by e^2 */

/* ---- ghosts ---------------------------------------------------------------------------------- */

/* Bits of the key that are the same for no group and no slot of the map. */
static uint32_t *bucket_of(const struct ghosts *ghosts, const struct page_key *key)
{
	return &ghosts->cell[(uint32_t)key->word[1] & (ghosts->cells - 1) & ~(uint64_t)(WAYS - 1)];
}

static uint32_t cell_make(const struct ghosts *ghosts, const struct page_key *key, bool used)
{
	uint32_t now = (uint32_t)(ghosts->clock / (ghosts->cells >> UNIT_SHIFT));
	uint32_t hash = (uint32_t)(key->word[0] >> 8) & ((1u << HASH_BITS) - 1);

	return now << (HASH_BITS + 1) | hash << 1 | used;
}

/* How long before the cell `now` the other one was made. */
static uint32_t cell_age(uint32_t cell, uint32_t now)
{
	return ((now >> (HASH_BITS + 1)) - (cell >> (HASH_BITS + 1))) & TIME_MASK;
}

static bool cell_same(uint32_t a, uint32_t b)
{
	return a && ((a ^ b) & ((1u << (HASH_BITS + 1)) - 2)) == 0;
}

/* Ghosts are lost when the table grows. A pool that grows evicts little. */
static bool ghosts_grow(struct ghosts *ghosts, uint64_t entries)
{
	uint64_t cells = ghosts->cells ? ghosts->cells : CELLS_MIN;
	uint32_t *more;

	while (cells < entries * REMEMBERED * 3 / 2)
		cells *= 2;
	if (cells == ghosts->cells)
		return true;
	more = calloc(cells, sizeof(*more));
	if (!more)
		return ghosts->cells != 0;
	free(ghosts->cell);
	ghosts->cell = more;
	ghosts->cells = cells;
	return true;
}

void ghost_put(
	struct ghosts *ghosts, const struct page_key *key, enum evicted from, uint64_t entries)
{
	uint32_t *bucket, cell, oldest = 0;

	if (from == EVICTED_NOT || !ghosts_grow(ghosts, entries))
		return;
	ghosts->clock++;
	bucket = bucket_of(ghosts, key);
	cell = cell_make(ghosts, key, from == EVICTED_USED);
	for (uint32_t i = 0; i < WAYS; i++) {
		if (!bucket[i] || cell_same(bucket[i], cell)) {
			oldest = i;
			break;
		}
		if (cell_age(bucket[i], cell) > cell_age(bucket[oldest], cell))
			oldest = i;
	}
	bucket[oldest] = cell;
}

void ghosts_tick(struct ghosts *ghosts, uint64_t second)
{
	if (second - ghosts->second > GHOST_SOON_S)
		ghosts->second = second - GHOST_SOON_S;
	while (ghosts->second < second)
		ghosts->clock_at[ghosts->second++ % GHOST_SOON_S] = ghosts->clock;
}

/* Whether a ghost of this age was put after the oldest second that is known. */
static bool ghost_is_soon(const struct ghosts *ghosts, uint32_t age)
{
	uint64_t recent = ghosts->clock - ghosts->clock_at[ghosts->second % GHOST_SOON_S];

	return (age + 1ull) * (ghosts->cells >> UNIT_SHIFT) <= recent;
}

enum evicted ghost_take(struct ghosts *ghosts, const struct page_key *key, uint64_t entries)
{
	uint32_t *bucket, now;

	if (!ghosts->cells)
		return EVICTED_NOT;
	bucket = bucket_of(ghosts, key);
	now = cell_make(ghosts, key, false);
	for (uint32_t i = 0; i < WAYS; i++) {
		uint32_t cell = bucket[i];

		if (!cell_same(cell, now))
			continue;
		bucket[i] = 0;
		if (cell_age(cell, now) > entries * REMEMBERED / (ghosts->cells >> UNIT_SHIFT))
			return EVICTED_NOT;
		ghosts->soon += ghost_is_soon(ghosts, cell_age(cell, now));
		return cell & 1 ? EVICTED_USED : EVICTED_NEW;
	}
	return EVICTED_NOT;
}

void ghosts_close(struct ghosts *ghosts)
{
	free(ghosts->cell);
	*ghosts = (struct ghosts){0};
}

/* ---- the weight of pages that were used again ------------------------------------------------ */

/*
 * Prompts that come back in turn, all of them before the first one again, are a loop. If it is
 * longer than the pool is large, order by last use evicts each page just before its use. A loop
 * shows by pages that come back, and nearly all of them late. Old pages are then kept until most of
 * what comes back is here, or as many pages as the pool has were new: these are other prompts. Nor
 * are they kept for long, because pages that come back soon may come late now, too.
 */
static void used_weight_judge(struct used_weight *weight, uint64_t pages)
{
	bool stays = weight->used <= KEEPS_USED * weight->late &&
		     weight->since < KEEPS_POOLS * pages &&
		     weight->since < pages + weight->since_late;

	if (weight->keeps ? stays
			  : weight->late <= KEEPS_LATE * weight->used + pages / 2 + KEEPS_PAGES)
		return;
	weight->keeps = !weight->keeps;
	weight->since = weight->since_late = 0;
	if (!weight->keeps) {
		weight->used = 1;
		weight->late = 0;
	}
}

void used_weight_evicted(struct used_weight *weight, enum evicted from, uint64_t pages)
{
	weight->since++;
	used_weight_judge(weight, pages);
	weight->evicted[from]++;
	if (weight->evicted[EVICTED_NEW] + weight->evicted[EVICTED_USED] <= pages)
		return;
	weight->evicted[EVICTED_NEW] /= 2;
	weight->evicted[EVICTED_USED] /= 2;
}

/*
 * A ghost of the queue with fewer evictions counts for as many as the other one has to each of its
 * own, as in ARC.
 */
void used_weight_again(struct used_weight *weight, enum evicted from, uint64_t pages)
{
	enum evicted other = from == EVICTED_NEW ? EVICTED_USED : EVICTED_NEW;
	uint64_t mine = weight->evicted[from] + 1, others = weight->evicted[other] + 1;
	uint64_t ratio = others > mine ? others / mine : 1;
	uint64_t count = ratio < RATIO_MAX ? ratio : RATIO_MAX;
	uint64_t step = weight->value * STEP * count / (pages + 1) + 1;
	uint64_t value = weight->value;

	weight->late++;
	weight->since_late++;
	if (weight->used + weight->late > pages) {
		weight->used /= 2;
		weight->late /= 2;
	}
	used_weight_judge(weight, pages);
	if (from == EVICTED_USED)
		value = value + step < USED_WEIGHT_MAX ? value + step : USED_WEIGHT_MAX;
	else
		value = value > USED_WEIGHT_MIN + step ? value - step : USED_WEIGHT_MIN;
	weight->value = (uint32_t)value;
}
