/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the bytes of pages with the CRC32C in their heads (verify.c). Channel thread.
 */
#ifndef CLIENT_VERIFY_H
#define CLIENT_VERIFY_H

#include "engine/abi/page.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/likely.h"

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
/* The bytes of a page of another member that is VERIFY_DUE are here: READs its head. */
void verify_begin(struct pc_batch *b, uint32_t i);
/* The head of a page that is VERIFY_HEAD was READ with this result. */
void verify_answer(struct pc_batch *b, uint32_t i, const struct page_head *head);
/* The page has other bytes than its head says: reports it and goes on to its next location. */
void verify_failed(struct pc_batch *b, uint32_t i);

#endif
