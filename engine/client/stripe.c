/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rail an op goes to. A page goes to the rail its place names, so that pages stored in turn
 * are read in turn; when that rail is behind, or failed lately, to the least loaded one. Channel
 * thread.
 */
#include "engine/client/client.h"

/* The least loaded rail with room; rails that failed lately only when there is no other. */
static uint32_t least_loaded(
	struct pc_channel *ch, uint32_t start, uint16_t tried, uint32_t slots, uint64_t now_ns)
{
	uint32_t best = CLIENT_NONE;
	bool best_rests = true;

	for (uint32_t k = 0; k < ch->rails; k++) {
		uint32_t r = (start + k) % ch->rails;
		bool rests = ch->rail[r].rest_until_ns > now_ns;

		if (tried & 1u << r || !submit_room(ch, r, slots))
			continue;
		if (best == CLIENT_NONE || (best_rests && !rests) ||
			(best_rests == rests && ch->rail[r].bytes < ch->rail[best].bytes)) {
			best = r;
			best_rests = rests;
		}
	}
	return best;
}

uint32_t stripe_page(
	struct pc_channel *ch, uint32_t place, uint16_t tried, uint32_t slots, uint64_t now_ns)
{
	uint32_t near = place_rail(place) % ch->rails;
	uint32_t best = least_loaded(ch, near, tried, slots, now_ns);

	if (best == CLIENT_NONE || best == near)
		return best;
	if (tried & 1u << near || ch->rail[near].rest_until_ns > now_ns ||
		!submit_room(ch, near, slots))
		return best;
	return ch->rail[near].bytes > 2 * ch->rail[best].bytes + SLICE_BYTES ? best : near;
}

uint32_t stripe_bucket(struct pc_channel *ch, uint16_t tried, uint64_t now_ns)
{
	return least_loaded(ch, ch->turn++, tried, op_slots(1), now_ns);
}

bool stripe_again(const struct pc_channel *ch, uint16_t tried)
{
	unsigned tries = (unsigned)__builtin_popcount(tried);

	return tries < ch->rails && tries < RAIL_TRIES;
}
