/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rail an op goes to, decided when the rail has room for it and not before. A page goes to
 * the rail its place names, so that pages stored in turn are read in turn; when that one is behind,
 * to the one that will have moved it first: outstanding bytes over measured bandwidth. A rail that
 * the engine has taken out of use, or that failed lately, is used when there is no other. Channel
 * thread.
 *
 * A rail's bandwidth is what it moved over the time it had something to move; idle time does not
 * count, and a rail that is given little is not thought slow for it. Rails nothing is known of are
 * as fast as the fastest.
 */
#include "engine/client/client.h"

/* ---- bandwidth ------------------------------------------------------------------------------- */

static void fastest(struct pc_channel *ch)
{
	ch->rate_max = 0;
	for (uint32_t r = 0; r < ch->rails; r++)
		if (ch->rail[r].rate > ch->rate_max)
			ch->rate_max = ch->rail[r].rate;
}

/* Bytes per 1024 ns. */
static uint64_t rate_of(const struct pc_channel *ch, uint32_t rail)
{
	uint64_t rate = ch->rail[rail].rate;

	if (!rate)
		return ch->rate_max ? ch->rate_max : 1;
	if (rate < ch->rate_max / STRIPE_RATIO_MAX)
		return ch->rate_max / STRIPE_RATIO_MAX;
	return rate;
}

/* Given more little by little, until that is too much: what is known of it may have changed. */
static void trust(const struct pc_channel *ch, struct channel_rail *r)
{
	if (r->rate && r->rate < ch->rate_max)
		r->rate += (ch->rate_max - r->rate + 15) / 16;
}

/* What it moved a little at a time says how long its answers take, not how much it could move. */
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
	if (r->bytes && r->moved < STRIPE_SAMPLE_BYTES)
		return;
	r->busy_ns += now_ns - r->since_ns;
	r->since_ns = now_ns;
	/* Answers are found many at a time: those found with the last sample's took no time. */
	if (r->moved >= STRIPE_SAMPLE_BYTES && r->busy_ns >= STRIPE_SAMPLE_NS)
		reckon(ch, r);
}

/* ---- choice ---------------------------------------------------------------------------------- */

/*
 * So much may be on its way: what the rail moves while one half as fast as the fastest moves
 * STRIPE_BYTES, and no more than that; measurements of equal rails differ. Compared as products: a
 * page is weighed against every rail, and divisions would be what that costs. Bytes on their way
 * are below 2^33.
 */
static bool credit_left(const struct pc_channel *ch, uint32_t rail, const struct stripe *s)
{
	uint64_t most = s->bytes > SLICE_BYTES ? STRIPE_BYTES_BIG : STRIPE_BYTES;
	uint64_t bytes = ch->rail[rail].bytes + s->bytes;

	return bytes <= STRIPE_BYTES_MIN ||
	       (bytes <= most && bytes * ch->rate_max <= 2 * most * rate_of(ch, rail));
}

static bool room(struct pc_channel *ch, uint32_t rail, const struct stripe *s)
{
	return submit_room(ch, rail, s->slots) &&
	       (!ch->rail[rail].bytes || !s->bytes || credit_left(ch, rail, s));
}

/* When a rail would have moved this one, too. */
struct finish {
	uint64_t bytes;
	uint64_t rate;
};

static struct finish finish(const struct pc_channel *ch, uint32_t rail, const struct stripe *s)
{
	return (struct finish){ch->rail[rail].bytes + s->bytes, rate_of(ch, rail)};
}

static bool sooner(struct finish a, struct finish b)
{
	return a.bytes * b.rate < b.bytes * a.rate;
}

static uint32_t rails_out(const struct pc_channel *ch, uint16_t peer)
{
	const struct status_segment *status = ch->session ? ch->session->status : NULL;

	return status ? shm_load(&status->rails_out) | shm_load(&status->peer_rails_out[peer]) : 0;
}

static bool rests(const struct pc_channel *ch, uint32_t rail, uint32_t out, uint64_t now_ns)
{
	return out & 1u << rail || ch->rail[rail].rest_until_ns > now_ns;
}

/* The first with room to have moved it; rails that are out or rest only when there is no other. */
static uint32_t soonest(struct pc_channel *ch, const struct stripe *s, uint32_t start, uint32_t out,
	uint64_t now_ns)
{
	uint32_t best = CLIENT_NONE;
	bool best_rests = true, some_work = false;
	struct finish best_finish = {0, 1};
	uint32_t r = start;

	for (uint32_t k = 0; k < ch->rails; k++, r = r + 1 < ch->rails ? r + 1 : 0) {
		bool r_rests = rests(ch, r, out, now_ns);
		struct finish r_finish;

		if (s->tried & 1u << r)
			continue;
		some_work |= !r_rests;
		if (!room(ch, r, s))
			continue;
		r_finish = finish(ch, r, s);
		if (best == CLIENT_NONE || (best_rests && !r_rests) ||
			(best_rests == r_rests && sooner(r_finish, best_finish))) {
			best = r;
			best_rests = r_rests;
			best_finish = r_finish;
		}
	}
	/* A rail in use will have room soon. */
	return best_rests && some_work ? CLIENT_NONE : best;
}

uint32_t stripe_page(
	struct pc_channel *ch, const struct stripe *s, uint32_t place, uint64_t now_ns)
{
	uint32_t out = rails_out(ch, s->peer), near = place_rail(place) % ch->rails;
	uint32_t best = soonest(ch, s, near, out, now_ns);
	struct finish late;

	if (best == CLIENT_NONE || best == near)
		return best;
	if (s->tried & 1u << near || rests(ch, near, out, now_ns) || !room(ch, near, s))
		return best;
	late = finish(ch, best, s);
	late.bytes += SLICE_BYTES;
	return sooner(late, finish(ch, near, s)) ? best : near;
}

uint32_t stripe_small(struct pc_channel *ch, const struct stripe *s, uint64_t now_ns)
{
	return soonest(ch, s, ch->turn++ % ch->rails, rails_out(ch, s->peer), now_ns);
}

/* Rails that are in use; the first attempt was on one of the others if there was none. */
bool stripe_again(const struct pc_channel *ch, uint16_t peer, uint16_t tried)
{
	uint32_t all = (1u << ch->rails) - 1;

	return all & ~(uint32_t)tried & ~rails_out(ch, peer);
}
