/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the bytes of hits with the CRC32C in their page head: of all, of a sample, or of none
 * (pc_options.verify). A page of this host is compared with the head that was loaded after its copy
 * (local.c). Of a page of another member only its rail has read the head, and under a lease not
 * even that, so the head is READ now:
 *
 *   READ of the page ~> hit, and it is due --> READ of the head (look.c) ~> same CRC: hit
 *                                                                           else: next location
 *
 * The head of one (place, generation) never changes while the page is there, so the CRC is that of
 * the page that was read. A page that is VERIFY_DUE stays it until it is done: after a mismatch, no
 * other copy and no second attempt is a hit without being compared. Channel thread.
 */
#include "config/clock.h"
#include "engine/abi/crc32c.h"
#include "engine/abi/page.h"
#include "engine/client/attach.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/peercache.h"
#include "engine/client/verify.h"

/*
 * The distance to the next hit that is compared is uniform in 1 .. 2n - 1, n on average: a fixed
 * one would compare the same pages of each batch if the batches are alike.
 */
static void choose(struct pc_channel *ch)
{
	uint32_t one_in = ch->pc->verify_one_in;

	/* xorshift64 (Marsaglia, "Xorshift RNGs", 2003) */
	ch->verify_random ^= ch->verify_random << 13;
	ch->verify_random ^= ch->verify_random >> 7;
	ch->verify_random ^= ch->verify_random << 17;
	ch->verify_left = one_in ? 1 + (uint32_t)((ch->verify_random >> 32) % (2 * one_in - 1)) : 0;
}

void verify_open(struct pc_channel *ch)
{
	ch->verify_random = (clock_monotonic_ns() ^ (uintptr_t)ch << 20) | 1;
	for (unsigned i = 0; i < 8; i++)
		choose(ch);
}

void verify_choose(struct pc_channel *ch, struct page_work *p)
{
	choose(ch);
	p->verify = VERIFY_DUE;
	p->regular = false;
}

static uint32_t crc_of(const struct pc_page *page)
{
	uint32_t crc = 0;

	for (unsigned s = 0; s < page->segment_count; s++)
		crc = crc32c(crc, page->segments[s].base, page->segments[s].bytes);
	return crc;
}

bool verify_matches(const struct pc_batch *b, uint32_t i, const struct page_head *head)
{
	if (!page_head_is_proven(head))
		return true;
	if (crc_of(&b->pages[i]) != head->crc)
		return false;
	b->channel->verify_counts.verified++;
	return true;
}
