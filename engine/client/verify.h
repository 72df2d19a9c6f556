/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the bytes of pages with the CRC32C in their heads (verify.c). Channel thread.
 */
#ifndef CLIENT_VERIFY_H
#define CLIENT_VERIFY_H

#include "config/likely.h"
#include "engine/abi/page.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"

void verify_open(struct pc_channel *ch);
/*
 * The page is the one to compare: makes it VERIFY_DUE, so that no run contains it any more, and
 * chooses the distance to the next one.
 */
void verify_choose(struct pc_channel *ch, struct page_work *p);
/* True if this hit is one to compare; the page is then VERIFY_DUE. */
static inline bool verify_due(struct pc_channel *ch, struct page_work *p)
{
	if (likely(!ch->verify_left || --ch->verify_left))
		return p->verify != VERIFY_NOT;
	verify_choose(ch, p);
	return true;
}
/*
 * The head of a page whose bytes are here was READ: true if it has no CRC, or that of the bytes.
 */
bool verify_matches(const struct pc_batch *b, uint32_t i, const struct page_head *head);

#endif
