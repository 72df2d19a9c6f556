/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel's staging region: buckets and page heads are READ into its front, pages with an
 * unregistered destination into the rest. A staging block is freed only after its READ was
 * answered, so the block of an abandoned READ stays taken until then. Space is reclaimed in the
 * order in which it was taken, which is about the order of the answers. Channel thread.
 */
#include "config/limits.h"
#include "engine/client/constants.h"
#include "engine/client/rings/staging.h"

#define ALIGN_BYTES 64u

uint32_t staging_take(struct staging *s, uint32_t bytes)
{
	uint32_t need = (bytes + ALIGN_BYTES - 1) & ~(ALIGN_BYTES - 1);
	struct staging_block *block;
	uint32_t left, gap;

	if (bytes > s->bytes - SCRATCH_BYTES || s->last - s->first == STAGING_BLOCKS)
		return CLIENT_NONE;
	if (s->first == s->last) {
		s->tail = SCRATCH_BYTES;
		s->used = 0;
	}
	/* A staging block must be contiguous: if the end of the region is too short for it, skip
	 * that part (`gap`, which may be 0 bytes). */
	left = s->bytes - s->tail;
	gap = left < need ? left : 0;
	if ((uint64_t)s->used + gap + need > s->bytes - SCRATCH_BYTES)
		return CLIENT_NONE;
	block = &s->block[s->last & (STAGING_BLOCKS - 1)];
	block->offset = left < need ? SCRATCH_BYTES : s->tail;
	block->bytes = need + gap;
	block->freed = false;
	s->tail = block->offset + need;
	s->used += need + gap;
	return s->last++ & (STAGING_BLOCKS - 1);
}
