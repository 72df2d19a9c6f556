/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the rail of an op, at the time when a rail has room for it and not earlier. A page goes
 * to its home rail (the rail in its place), so that pages stored round-robin are read round-robin.
 * When the home rail has a backlog, the page goes to the rail with the earliest estimated finish
 * time: bytes in flight divided by the bandwidth estimate. A rail that the engine has taken out of
 * use, or that failed recently, is used only when there is no other. Channel thread.
 *
 * A rail's bandwidth estimate is the bytes it moved divided by the time it had bytes in flight.
 * Idle time does not count, so a rail with little work is not taken for a slow one. A rail without
 * an estimate counts as equal to the fastest.
 */
#include "engine/client/client.h"

/* ---- bandwidth ------------------------------------------------------------------------------- */

/*
 * Fixed-point shift of a weight. `bytes * weight` fits 64 bits: bytes in flight stay below 2^33 and
 * a weight is at most STRIPE_RATIO_MAX.
 */
#define WEIGHT_SHIFT 16

static void fastest(struct pc_channel *ch)
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
static uint64_t rate_of(const struct pc_channel *ch, uint32_t rail)
{
	uint64_t rate = ch->rail[rail].rate, max = ch->rate_max;

	if (!rate)
		return max ? max : 1;
	if (rate >= max - max / STRIPE_ALIKE)
		return max;
	return rate < max / STRIPE_RATIO_MAX ? max / STRIPE_RATIO_MAX : rate;
}

static uint64_t within(uint64_t bytes, uint64_t most)
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
	/* 0 is a valid lower bound of every backlog; soonest() computes a better one */
	ch->least = 0;
	for (uint32_t k = 0; k < ch->rails; k++) {
		struct channel_rail *r = &ch->rail[k];
		uint64_t rate = rate_of(ch, k), part;

		if (r->weighed == rate && r->weighed_max == max)
			continue;
		r->weighed = rate;
		r->weighed_max = max;
		r->weight = (max << WEIGHT_SHIFT) / rate;
		part = 2 * STRIPE_BYTES * rate / max;
		r->credit[0] = within(part, STRIPE_BYTES);
		r->credit[1] = within(part * (STRIPE_BYTES_BIG / STRIPE_BYTES), STRIPE_BYTES_BIG);
	}
}

/*
 * Let a slow rail's estimate drift back towards the fastest by 1/16 per sample, so that a recovered
 * rail is probed again.
 */
static void trust(const struct pc_channel *ch, struct channel_rail *r)
{
	if (r->rate && r->rate < ch->rate_max)
		r->rate += (ch->rate_max - r->rate + 15) / 16;
}

/*
 * Ends a sample of the rail. A sample made of small bursts measures latency, not bandwidth: it may
 * raise the estimate but never lower it.
 */
static void reckon(struct pc_channel *ch, struct channel_rail *r)
{
	uint64_t moved = r->moved * 1024 / (r->busy_ns + 1) + 1;
	uint64_t sample = moved < STRIPE_RATE_MAX ? moved : STRIPE_RATE_MAX;
	bool light = r->moved < (uint64_t)r->bursts * SLICE_BYTES;

	if (!light)
		r->rate = r->rate ? (3 * r->rate + sample) / 4 : sample;
	else if (r->rate && sample > r->rate)
		r->rate = sample;
	else
		trust(ch, r);
	r->moved = r->busy_ns = 0;
	r->bursts = 0;
	fastest(ch);
	for (uint32_t k = 0; k < ch->rails; k++) {
		struct channel_rail *other = &ch->rail[k];

		if (!other->used && !other->bytes)
			trust(ch, other);
		other->used = false;
	}
	ch->sampled = true;
}

/*
 * Estimated finish time of the rail's backlog plus `more` bytes. Unit: the time the fastest rail
 * takes for one byte, << WEIGHT_SHIFT.
 */
static uint64_t finish(const struct channel_rail *r, uint64_t more)
{
	return (r->bytes + more) * r->weight;
}

void stripe_give(struct pc_channel *ch, uint32_t rail, uint32_t bytes, uint64_t now_ns)
{
	struct channel_rail *r = &ch->rail[rail];

	if (!r->bytes) {
		r->since_ns = now_ns;
		r->bursts++;
	}
	r->used = true;
	r->bytes += bytes;
}

void stripe_take(struct pc_channel *ch, uint32_t rail, uint32_t bytes, uint64_t now_ns)
{
	struct channel_rail *r = &ch->rail[rail];

	r->bytes -= bytes;
	r->moved += bytes;
	if (finish(r, 0) < ch->least)
		ch->least = finish(r, 0);
	if (r->bytes && r->moved < STRIPE_SAMPLE_BYTES)
		return;
	r->busy_ns += now_ns - r->since_ns;
	r->since_ns = now_ns;
	/* Answers are reaped in groups. A second sample from one group would have a duration of
	 * nearly 0, hence the lower limit of busy_ns. */
	if (r->moved >= STRIPE_SAMPLE_BYTES && r->busy_ns >= STRIPE_SAMPLE_NS)
		reckon(ch, r);
}

/* ---- choice ---------------------------------------------------------------------------------- */

/* An idle rail takes any op that cannot be split. */
static bool credit_left(const struct channel_rail *r, const struct stripe *s)
{
	return r->bytes + s->bytes <= r->credit[s->least > SLICE_BYTES] || !s->bytes ||
	       (!r->bytes && s->bytes == s->least);
}

static uint32_t rails_out(const struct pc_channel *ch, uint16_t peer)
{
	const struct status_segment *status = ch->session ? ch->session->status : NULL;

	return status ? shm_load(&status->rails_out) | shm_load(&status->peer_rails_out[peer]) : 0;
}

/* An op failed on the rail at `now_ns`: until RAIL_REST_NS later, the rail is used last. */
void stripe_rest(struct pc_channel *ch, uint32_t rail, uint64_t now_ns)
{
	ch->rail[rail].rest_until_ns = now_ns + RAIL_REST_NS;
	ch->resting |= 1u << rail;
}

static uint32_t resting(struct pc_channel *ch, uint64_t now_ns)
{
	for (uint32_t left = ch->resting; unlikely(left != 0); left &= left - 1) {
		unsigned r = (unsigned)__builtin_ctz(left);

		if (ch->rail[r].rest_until_ns <= now_ns)
			ch->resting &= ~(1u << r);
	}
	return ch->resting;
}

static uint32_t all(const struct pc_channel *ch)
{
	return (1u << ch->rails) - 1;
}

/*
 * Rails that may carry the op, at once or when they have room. Rails that are out of use or rest
 * are included only when there is no other.
 */
static uint32_t usable(const struct pc_channel *ch, const struct stripe *s, uint32_t out)
{
	uint32_t rails = all(ch) & ~(uint32_t)s->tried;

	return rails & ~out ? rails & ~out : rails;
}

/*
 * The rail of `rails` within its in-flight budget that would finish the op first; of equal ones,
 * the first from `start` on. The loop visits all rails, because it also computes ch->least.
 */
static uint32_t soonest(
	struct pc_channel *ch, const struct stripe *s, uint32_t start, uint32_t rails)
{
	uint32_t best = CLIENT_NONE, end = ch->rails;
	uint64_t best_finish = UINT64_MAX, least = UINT64_MAX;

	for (uint32_t from = start;; from = 0, end = start) {
		for (uint32_t r = from; r < end; r++) {
			const struct channel_rail *rail = &ch->rail[r];
			uint64_t now = finish(rail, 0), then = now + s->bytes * rail->weight;

			least = now < least ? now : least;
			if (then < best_finish && rails >> r & 1 && credit_left(rail, s)) {
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

/* Like soonest(), but chooses only among rails with room in their op ring. */
static uint32_t soonest_room(
	struct pc_channel *ch, const struct stripe *s, uint32_t start, uint32_t rails)
{
	uint32_t r;

	while ((r = soonest(ch, s, start, rails)) != CLIENT_NONE && !submit_room(ch, r, s->slots))
		rails &= ~(1u << r);
	return r;
}

/* The lead, in bytes, that another rail needs over the home rail: a slice, or the whole run. */
static uint64_t lead(const struct stripe *s)
{
	return s->bytes > s->least && s->bytes > SLICE_BYTES ? s->bytes : SLICE_BYTES;
}

/* Prefer the page's home rail unless another rail's estimated finish time is earlier by lead(). */
__attribute__((noinline)) static uint32_t weighed(
	struct pc_channel *ch, const struct stripe *s, uint32_t near, uint32_t rails, bool near_may)
{
	uint32_t best = soonest_room(ch, s, near, rails);

	if (best == CLIENT_NONE || best == near || !near_may ||
		finish(&ch->rail[best], s->bytes + lead(s)) < finish(&ch->rail[near], s->bytes))
		return best;
	return submit_room(ch, near, s->slots) ? near : best;
}

uint32_t stripe_page(struct pc_channel *ch, const struct stripe *s, uint32_t place, uint64_t now_ns)
{
	uint32_t out = rails_out(ch, s->peer) | resting(ch, now_ns), rails = usable(ch, s, out);
	uint32_t near = place_rail(place);
	const struct channel_rail *r;
	bool near_may;

	if (unlikely(ch->sampled))
		stripe_weigh(ch);
	if (unlikely(near >= ch->rails))
		near %= ch->rails;
	r = &ch->rail[near];
	near_may = (rails & ~out) >> near & 1 && credit_left(r, s);
	/* Fast path. `least` is a lower bound of every rail's backlog, so no other rail can finish
	 * a slice earlier: skip the scan. */
	if (near_may &&
		finish(r, s->bytes) <=
			ch->least + ((uint64_t)(s->bytes + lead(s)) << WEIGHT_SHIFT) &&
		submit_room(ch, near, s->slots))
		return near;
	return weighed(ch, s, near, rails, near_may);
}

uint32_t stripe_small(struct pc_channel *ch, const struct stripe *s, uint64_t now_ns)
{
	uint32_t rails = usable(ch, s, rails_out(ch, s->peer) | resting(ch, now_ns));
	uint32_t next = ch->turn++ % ch->rails;

	if (unlikely(ch->sampled))
		stripe_weigh(ch);
	/* If the next rail in turn is idle, take it: the rails need not be compared. */
	if (rails >> next & 1 && !ch->rail[next].bytes && submit_room(ch, next, s->slots))
		return next;
	return soonest_room(ch, s, next, rails);
}

uint32_t stripe_rails(struct pc_channel *ch, uint16_t peer, uint64_t now_ns)
{
	uint32_t out = rails_out(ch, peer) | resting(ch, now_ns);

	return (uint32_t)__builtin_popcount(usable(ch, &(struct stripe){.peer = peer}, out));
}

/*
 * Rails in use that the op has not tried yet. Rails out of use do not count: they carry a first
 * attempt only when there is no other rail.
 */
bool stripe_again(const struct pc_channel *ch, uint16_t peer, uint16_t tried)
{
	return all(ch) & ~(uint32_t)tried & ~rails_out(ch, peer);
}
