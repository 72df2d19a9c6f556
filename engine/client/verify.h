/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the bytes of pages with the CRC32C in their heads (verify.c). Channel thread. Included
 * only by client.h.
 */
#ifndef CLIENT_VERIFY_H
#define CLIENT_VERIFY_H

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
void verify_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i,
	const struct page_head *head, uint64_t now_ns);
/* The page has other bytes than its head says: reports it and goes on to its next location. */
void verify_failed(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);

/* fetch.c: the page is a hit, and was compared if that was due. */
void fetch_verified(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
/* notice.c: reports the page to the engine, if that takes reports. */
void notice_corrupt(struct pc_channel *ch, const struct page_work *p);
/* copy.c: as copy_scatter(); returns the CRC32C of the bytes. */
uint32_t copy_scatter_crc(
	const struct pc_segment *segments, unsigned count, const unsigned char *from);

#endif
