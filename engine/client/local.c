/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads pages of this host's own pools: the channel's thread copies them out of the mapping. The
 * page head loaded after the copy decides, by the same rule as for a remote page. The page head
 * loaded before the copy only saves a useless copy.
 */
#include "config/likely.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/copy.h"
#include "engine/client/error.h"
#include "engine/client/local.h"
#include "engine/client/peercache.h"
#include "engine/client/session.h"

/* Returns the page head of a place in this host's pools; NULL: the place is outside the mapping. */
static const struct page_head *head_at(
	const struct client_session *session, uint32_t place, uint64_t bytes)
{
	uint64_t offset = place_offset(place);
	const struct session_rail *rail;

	if (place_rail(place) >= session->rails)
		return NULL;
	rail = &session->rail[place_rail(place)];
	if (offset >= rail->pool_bytes || bytes > rail->pool_bytes - offset)
		return NULL;
	return &rail->heads[place_unit(place)];
}

uint32_t local_length(
	const struct client_session *session, const struct page_key *key, const struct location *at)
{
	const struct page_head *shared = head_at(session, at->place, 1);

	return shared ? page_head_length(shared, key, at->generation) : 0;
}

/*
 * Copies a page of this host. Returns PC_HIT, PC_STALE, or PC_INVALID: the stored page has another
 * length.
 */
enum pc_result local_get(struct pc_channel *ch, const struct page_work *p,
	const struct pc_page *page, bool *ret_corrupt)
{
	const struct client_session *session = ch->session;
	const struct page_head *shared = head_at(session, p->at.place, p->bytes);
	const unsigned char *from;
	struct page_head head;
	uint32_t crc = 0, length;

	*ret_corrupt = false;
	length = shared ? page_head_length(shared, &p->key, p->at.generation) : 0;
	if (!length)
		return PC_STALE;
	if (unlikely(length != p->bytes)) {
		error_length(p->bytes, length);
		return PC_INVALID;
	}
	from = session->rail[place_rail(p->at.place)].pool + place_offset(p->at.place);
	if (unlikely(p->verify))
		crc = copy_scatter_crc(page->segments, page->segment_count, from);
	else
		copy_scatter(page->segments, page->segment_count, from);
	/* loads the page head after the payload; pairs with the fence of the engine, which
	 * increments the generation before it reuses the slot */
	shm_fence_load();
	head = page_head_load(shared);
	shm_fence_stream();
	if (!page_head_is(&head, &p->key, p->at.generation, p->bytes))
		return PC_STALE;
	if (unlikely(p->verify) && page_head_is_proven(&head)) {
		*ret_corrupt = head.crc != crc;
		ch->verify_counts.verified += head.crc == crc;
	}
	return *ret_corrupt ? PC_STALE : PC_HIT;
}
