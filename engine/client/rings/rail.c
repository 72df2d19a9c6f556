/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of the rail that carries an op.
 *
 * The rail is chosen when one has room for the op and not earlier. A page goes to its home rail
 * (the rail in its place), so that pages stored round-robin are read round-robin. When the home
 * rail has a backlog, the page goes to the rail with the earliest estimated finish time: bytes in
 * flight divided by the bandwidth estimate. A rail that the engine has taken out of use, or that
 * failed recently, is used only when there is no other.
 *
 * A rail's bandwidth estimate is the bytes it moved divided by the time it had bytes in flight.
 * Idle time does not count, so a rail with little work is not taken for a slow one. A rail without
 * an estimate counts as equal to the fastest. Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach/session.h"
#include "engine/client/constants.h"
#include "engine/client/rings/rings.h"

/* ---- bandwidth ------------------------------------------------------------------------------- */

static void stripe_fastest(struct pc_channel *ch)
{
	ch->rate_max = 0;
	for (uint32_t r = 0; r < ch->rails; r++)
		if (ch->rail[r].rate > ch->rate_max)
			ch->rate_max = ch->rail[r].rate;
}

/*
 * Returns the rail's bandwidth estimate, or a substitute if it is unknown, tiny or about that of
 * the fastest rail; bytes per 1024 ns. Estimates of identical rails are noisy; if they counted as
 * different, pages would leave their home rails for no gain. A rail that really is a little slower
 * gets less work all the same, because its backlog grows.
 */
static uint64_t stripe_rate(const struct pc_channel *ch, uint32_t rail)
{
	uint64_t rate = ch->rail[rail].rate, max = ch->rate_max;

	if (!rate)
		return max ? max : 1;
	if (rate >= max - max / STRIPE_ALIKE)
		return max;
	return rate < max / STRIPE_RATIO_MAX ? max / STRIPE_RATIO_MAX : rate;
}

static uint64_t stripe_within(uint64_t bytes, uint64_t most)
{
	if (bytes < STRIPE_BYTES_MIN)
		return STRIPE_BYTES_MIN;
	return bytes < most ? bytes : most;
}

/*
 * Recompute each rail's weight and in-flight budget; runs only when a bandwidth estimate has
 * changed, before the next choice of a rail: the answers of one step end samples of several rails.
 * The budget is proportional to the estimate and saturates at STRIPE_BYTES for any rail at least
 * half as fast as the fastest, because estimates of identical rails are noisy.
 */
void stripe_weigh(struct pc_channel *ch)
{
	uint64_t max = ch->rate_max ? ch->rate_max : 1;

	ch->sampled = false;
	/* 0 is a valid lower bound of every backlog; stripe_earliest() computes a better one */
	ch->least = 0;
	for (uint32_t k = 0; k < ch->rails; k++) {
		struct channel_rail *r = &ch->rail[k];
		uint64_t rate = stripe_rate(ch, k), part;

		if (r->weighed == rate && r->weighed_max == max)
			continue;
		r->weighed = rate;
		r->weighed_max = max;
		r->weight = (max << WEIGHT_SHIFT) / rate;
		part = 2 * STRIPE_BYTES * rate / max;
		r->credit[0] = stripe_within(part, STRIPE_BYTES);
		r->credit[1] =
			stripe_within(part * (STRIPE_BYTES_BIG / STRIPE_BYTES), STRIPE_BYTES_BIG);
	}
}

/*
 * Let a slow rail's estimate drift back towards the fastest by 1/16 per sample, so that a recovered
 * rail is probed again.
 */
static void stripe_trust(const struct pc_channel *ch, struct channel_rail *r)
{
	if (r->rate && r->rate < ch->rate_max)
		r->rate += (ch->rate_max - r->rate + 15) / 16;
}

/*
 * Ends a sample of the rail. A sample made of small bursts measures latency, not bandwidth: it may
 * raise the estimate but never lower it.
 */
__attribute__((noinline)) void stripe_sample(struct pc_channel *ch, struct channel_rail *r)
{
	uint64_t moved = r->moved * 1024 / (r->busy_ns + 1) + 1;
	uint64_t sample = moved < STRIPE_RATE_MAX ? moved : STRIPE_RATE_MAX;
	bool light = r->moved < (uint64_t)r->bursts * SLICE_BYTES;
	uint64_t before = r->rate;

	if (!light)
		r->rate = r->rate ? (3 * r->rate + sample) / 4 : sample;
	else if (r->rate && sample > r->rate)
		r->rate = sample;
	else
		stripe_trust(ch, r);
	r->moved = r->busy_ns = 0;
	r->bursts = 0;
	if (r->rate >= ch->rate_max)
		ch->rate_max = r->rate;
	else if (before == ch->rate_max)
		stripe_fastest(ch);
	for (uint32_t k = 0; k < ch->rails; k++) {
		struct channel_rail *other = &ch->rail[k];

		if (!other->used && !other->bytes)
			stripe_trust(ch, other);
		other->used = false;
	}
	ch->sampled = true;
}

/* ---- choice ---------------------------------------------------------------------------------- */

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
 * The rail of `rails` within its in-flight budget that would finish the op first; of equal ones,
 * the first from `start` on. The loop visits all rails, because it also computes ch->least.
 */
static uint32_t stripe_earliest(
	struct pc_channel *ch, const struct stripe *s, uint32_t start, uint32_t rails)
{
	uint32_t best = CLIENT_NONE, end = ch->rails;
	uint64_t best_finish = UINT64_MAX, least = UINT64_MAX;

	for (uint32_t from = start;; from = 0, end = start) {
		for (uint32_t r = from; r < end; r++) {
			const struct channel_rail *rail = &ch->rail[r];
			uint64_t now = stripe_finish(rail, 0), then = now + s->bytes * rail->weight;

			least = now < least ? now : least;
			if (then < best_finish && rails >> r & 1 && stripe_credit(rail, s)) {
				best = r;
				best_finish = then;
			}
		}
		if (end == start)
			break;
	}
	ch->least = least;
	return best;
}

/* Like stripe_earliest(), but chooses only among rails with room in their op ring. */
static uint32_t stripe_earliest_with_room(
	struct pc_channel *ch, const struct stripe *s, uint32_t start, uint32_t rails)
{
	uint32_t r;

	while ((r = stripe_earliest(ch, s, start, rails)) != CLIENT_NONE &&
		!submit_room(ch, r, s->slots))
		rails &= ~(1u << r);
	return r;
}

/* Prefer the home rail unless the estimated finish of another is earlier by stripe_lead(). */
static uint32_t stripe_weighed_rail(
	struct pc_channel *ch, const struct stripe *s, uint32_t home, uint32_t rails, bool home_may)
{
	uint32_t best = stripe_earliest_with_room(ch, s, home, rails);

	if (best == CLIENT_NONE || best == home || !home_may ||
		stripe_finish(&ch->rail[best], s->bytes + stripe_lead(s)) <
			stripe_finish(&ch->rail[home], s->bytes))
		return best;
	return submit_room(ch, home, s->slots) ? home : best;
}

uint32_t stripe_out(struct pc_channel *ch, uint16_t peer)
{
	return stripe_rails_out(ch, peer) | stripe_resting(ch);
}

__attribute__((noinline)) uint32_t stripe_weighed(
	struct pc_channel *ch, const struct stripe *s, uint32_t out, uint32_t place)
{
	uint32_t rails = stripe_usable(ch, s, out), home = place_rail(place) % ch->rails;

	return stripe_weighed_rail(ch, s, home, rails,
		(rails & ~out) >> home & 1 && stripe_credit(&ch->rail[home], s));
}

uint32_t stripe_small(struct pc_channel *ch, const struct stripe *s)
{
	uint32_t rails = stripe_usable(ch, s, stripe_out(ch, s->peer));
	uint32_t next = ch->turn++ % ch->rails;

	if (unlikely(ch->sampled))
		stripe_weigh(ch);
	/* If the next rail in turn is idle, take it: the rails need not be compared. */
	if (rails >> next & 1 && !ch->rail[next].bytes && submit_room(ch, next, s->slots))
		return next;
	return stripe_earliest_with_room(ch, s, next, rails);
}

/*
 * Rails in use that the op has not tried yet. Rails out of use do not count: they carry a first
 * attempt only when there is no other rail.
 */
bool stripe_again(const struct pc_channel *ch, uint16_t peer, uint16_t tried)
{
	return stripe_all(ch) & ~(uint32_t)tried & ~stripe_rails_out(ch, peer);
}
