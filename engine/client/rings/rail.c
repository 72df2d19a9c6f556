/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of the rail that carries an op.
 *
 * The rail is chosen when one has room for the op and not earlier. A page goes to its home rail
 * (the rail in its place), so that pages stored round-robin are read round-robin. When the home
 * rail has a backlog, the page goes to the rail with the shortest one, in bytes in flight: a slow
 * rail keeps its backlog longer and so gets less work. A rail that the engine has taken out of
 * use, as it does with one that is much slower than the others, or that failed recently, is used
 * only when there is no other. Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach/session.h"
#include "engine/client/constants.h"
#include "engine/client/rings/rings.h"

static uint32_t stripe_rails_out(const struct pc_channel *ch, uint16_t peer)
{
	const struct status_segment *status = ch->session ? ch->session->status : NULL;

	return status ? shm_load(&status->rails_out) | shm_load(&status->peer_rails_out[peer]) : 0;
}

void stripe_rest(struct pc_channel *ch, uint32_t rail)
{
	ch->rail[rail].rest_until_ns = ch->now_ns + RAIL_REST_NS;
	ch->resting |= 1u << rail;
}

static uint32_t stripe_resting(struct pc_channel *ch)
{
	for (uint32_t left = ch->resting; unlikely(left != 0); left &= left - 1) {
		unsigned r = (unsigned)__builtin_ctz(left);

		if (ch->rail[r].rest_until_ns <= ch->now_ns)
			ch->resting &= ~(1u << r);
	}
	return ch->resting;
}

/*
 * The rail of `rails` with the shortest backlog that may carry the op; of equal ones, the first
 * from `start` on. The loop visits all rails, because it also computes ch->least.
 */
static uint32_t stripe_shortest(
	struct pc_channel *ch, const struct stripe *s, uint32_t start, uint32_t rails)
{
	uint32_t best = CLIENT_NONE;
	uint64_t shortest = UINT64_MAX, least = UINT64_MAX;

	for (uint32_t k = 0; k < ch->rails; k++) {
		uint32_t r = start + k < ch->rails ? start + k : start + k - ch->rails;
		const struct channel_rail *rail = &ch->rail[r];

		least = rail->bytes < least ? rail->bytes : least;
		if (rail->bytes < shortest && rails >> r & 1 && stripe_has_room(rail, s)) {
			best = r;
			shortest = rail->bytes;
		}
	}
	ch->least = least;
	return best;
}

/* Like stripe_shortest(), but chooses only among rails with room in their op ring. */
static uint32_t stripe_shortest_with_room(
	struct pc_channel *ch, const struct stripe *s, uint32_t start, uint32_t rails)
{
	uint32_t r;

	while ((r = stripe_shortest(ch, s, start, rails)) != CLIENT_NONE &&
		!submit_room(ch, r, s->slots))
		rails &= ~(1u << r);
	return r;
}

uint32_t stripe_out(struct pc_channel *ch, uint16_t peer)
{
	return stripe_rails_out(ch, peer) | stripe_resting(ch);
}

/* Prefer the home rail unless the backlog of another is shorter by stripe_lead(). */
__attribute__((noinline)) uint32_t stripe_weighed(
	struct pc_channel *ch, const struct stripe *s, uint32_t out, uint32_t place)
{
	uint32_t rails = stripe_usable(ch, s, out), home = place_rail(place) % ch->rails;
	uint32_t best = stripe_shortest_with_room(ch, s, home, rails);
	const struct channel_rail *h = &ch->rail[home];

	if (best == CLIENT_NONE || best == home || !((rails & ~out) >> home & 1) ||
		!stripe_has_room(h, s) || ch->rail[best].bytes + stripe_lead(s) < h->bytes)
		return best;
	return submit_room(ch, home, s->slots) ? home : best;
}

uint32_t stripe_small(struct pc_channel *ch, const struct stripe *s)
{
	uint32_t rails = stripe_usable(ch, s, stripe_out(ch, s->peer));
	uint32_t next = ch->turn++ % ch->rails;

	/* If the next rail in turn is idle, take it: the rails need not be compared. */
	if (rails >> next & 1 && !ch->rail[next].bytes && submit_room(ch, next, s->slots))
		return next;
	return stripe_shortest_with_room(ch, s, next, rails);
}

/*
 * Rails in use that the op has not tried yet. Rails out of use do not count: they carry a first
 * attempt only when there is no other rail.
 */
bool stripe_again(const struct pc_channel *ch, uint16_t peer, uint16_t tried)
{
	return stripe_all(ch) & ~(uint32_t)tried & ~stripe_rails_out(ch, peer);
}
