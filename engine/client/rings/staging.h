/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging region of a channel: scratch slots for buckets and page heads that are READ, and
 * staging blocks for pages with an unregistered destination. Channel thread.
 */
#ifndef CLIENT_STAGING_H
#define CLIENT_STAGING_H

#include <string.h>

#include "engine/client/constants.h"

struct staging_block {
	uint32_t offset; /* offset of the block in the staging region, bytes */
	uint32_t bytes;
	bool freed;
};

/* Allocator of the staging region: staging blocks are taken and reclaimed in the same order. */
struct staging {
	/* start of the staging region; NULL: the channel has no segment mapped */
	unsigned char *base;
	uint16_t region;
	uint32_t bytes; /* length of the staging region */
	uint32_t tail;  /* offset of the next free byte in the staging region */
	/* bytes of the staging region between the oldest block and `tail`, gaps included */
	uint32_t used;
	/* free-running numbers of the oldest staging block and of the next one */
	uint32_t first, last;
	struct staging_block block[STAGING_BLOCKS];
	/* bit per scratch slot: it is free; and the word in which the last search ended */
	uint32_t scratch_free[SCRATCH_SLOTS / 32];
	uint32_t scratch_last;
};

static inline void staging_init(
	struct staging *s, unsigned char *base, uint32_t bytes, uint16_t region)
{
	s->base = base;
	s->bytes = bytes;
	s->region = region;
	s->tail = SCRATCH_BYTES;
	s->used = 0;
	s->first = s->last = 0;
	s->scratch_last = 0;
	memset(s->scratch_free, 0xff, sizeof(s->scratch_free));
}
/* Takes a staging block. Returns its number, or CLIENT_NONE: no room at the moment. */
uint32_t staging_take(struct staging *s, uint32_t bytes);
static inline void staging_free(struct staging *s, uint32_t block)
{
	s->block[block].freed = true;
	while (s->first != s->last && s->block[s->first & (STAGING_BLOCKS - 1)].freed)
		s->used -= s->block[s->first++ & (STAGING_BLOCKS - 1)].bytes;
}

static inline uint32_t staging_offset(const struct staging *s, uint32_t block)
{
	return s->block[block].offset;
}

static inline unsigned char *staging_at(const struct staging *s, uint32_t block)
{
	return s->base + staging_offset(s, block);
}

/* Bits `at` to `at` + `count` - 1. */
static inline uint32_t scratch_bits(uint32_t at, uint32_t count)
{
	return (count < 32 ? (1u << count) - 1 : UINT32_MAX) << at;
}

/* Returns the lowest bit of `free` above which, it included, `count` bits are set; 32: none. */
static inline uint32_t scratch_find(uint32_t free, uint32_t count)
{
	uint32_t have = 1; /* every bit that is still set begins `have` set bits */

	while (free && have < count) {
		uint32_t step = have < count - have ? have : count - have;

		free &= free >> step;
		have += step;
	}
	return free ? (uint32_t)__builtin_ctz(free) : 32;
}

/* Takes `count` consecutive scratch slots. Returns the first, or CLIENT_NONE: no room. */
static inline uint32_t scratch_take(struct staging *s, uint32_t count)
{
	for (uint32_t k = 0; k < SCRATCH_SLOTS / 32; k++) {
		uint32_t word = (s->scratch_last + k) % (SCRATCH_SLOTS / 32);
		uint32_t at = scratch_find(s->scratch_free[word], count);

		if (at == 32)
			continue;
		s->scratch_free[word] &= ~scratch_bits(at, count);
		s->scratch_last = word;
		return word * 32 + at;
	}
	return CLIENT_NONE;
}

static inline void scratch_free(struct staging *s, uint32_t slot, uint32_t count)
{
	s->scratch_free[slot / 32] |= scratch_bits(slot % 32, count);
}

#endif
