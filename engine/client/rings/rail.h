/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a rail, and what posts tell about it (rail.c). Inline is what every run uses.
 * Channel thread.
 */
#ifndef CLIENT_RAIL_H
#define CLIENT_RAIL_H

#include "config/likely.h"
#include "engine/abi/page.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/rings/submit.h"

/* What a rail with room is chosen for. */
struct stripe {
	uint16_t peer;  /* number of the peer to READ from */
	uint16_t tried; /* bit per rail on which this op has failed before */
	uint32_t slots; /* number of entries that the op takes in the op ring */
	/* bytes that the op adds to the backlog; 0: a small READ, which does not count */
	uint32_t bytes;
	/* bytes of the shortest op that it could be split into: a run's page, else `bytes` */
	uint32_t least;
};
/* Chooses the rail of a small READ; CLIENT_NONE: no rail has room. */
uint32_t stripe_small(struct pc_channel *ch, const struct stripe *s);
/* Rails, a bit each, that are out of use for READs from the peer, or rest after a failure. */
uint32_t stripe_out(struct pc_channel *ch, uint16_t peer);
/* The choice of stripe_choose() if the home rail is not known to be the best. */
uint32_t stripe_weighed(
	struct pc_channel *ch, const struct stripe *s, uint32_t out, uint32_t place);
/* True if a READ that failed on the rails of `tried` may be tried on another rail. */
bool stripe_again(const struct pc_channel *ch, uint16_t peer, uint16_t tried);
/* stripe_take() calls it when a sample of the rail's bandwidth has ended. */
void stripe_sample(struct pc_channel *ch, struct channel_rail *r);
/* An op failed on the rail, which is therefore used last for RAIL_REST_NS. */
void stripe_rest(struct pc_channel *ch, uint32_t rail);
/*
 * Recomputes the rails' weights. Called after channel_make_rings() and when a bandwidth estimate
 * changes.
 */
void stripe_weigh(struct pc_channel *ch);

static inline uint32_t stripe_all(const struct pc_channel *ch)
{
	return (1u << ch->rails) - 1;
}

/*
 * Rails that may carry the op, at once or when they have room. Rails that are out of use or rest
 * are included only when there is no other.
 */
static inline uint32_t stripe_usable(
	const struct pc_channel *ch, const struct stripe *s, uint32_t out)
{
	uint32_t rails = stripe_all(ch) & ~(uint32_t)s->tried;

	return rails & ~out ? rails & ~out : rails;
}

/* Number of rails that carry READs if those of `out` do not, at least 1. */
static inline uint32_t stripe_rails(const struct pc_channel *ch, uint32_t out)
{
	return (uint32_t)__builtin_popcount(stripe_usable(ch, &(struct stripe){.bytes = 0}, out));
}

/*
 * Fixed-point shift of a weight. `bytes * weight` fits 64 bits: bytes in flight stay below 2^33 and
 * a weight is at most STRIPE_RATIO_MAX.
 */
#define WEIGHT_SHIFT 16

/*
 * Estimated finish time of the rail's backlog plus `more` bytes. Unit: the time the fastest rail
 * takes for one byte, << WEIGHT_SHIFT.
 */
static inline uint64_t stripe_finish(const struct channel_rail *r, uint64_t more)
{
	return (r->bytes + more) * r->weight;
}

/* An idle rail takes any op that cannot be split. */
static inline bool stripe_credit(const struct channel_rail *r, const struct stripe *s)
{
	return likely(r->bytes + s->bytes <= r->credit[s->least > SLICE_BYTES]) || !s->bytes ||
	       (!r->bytes && s->bytes == s->least);
}

/* The lead, in bytes, that another rail needs over the home rail: a slice, or the whole run. */
static inline uint64_t stripe_lead(const struct stripe *s)
{
	return s->bytes > s->least && s->bytes > SLICE_BYTES ? s->bytes : SLICE_BYTES;
}

/*
 * The rail for a page, or for a run of pages, at `place`; CLIENT_NONE: no rail has room. `out`:
 * stripe_out() of the peer.
 */
static inline uint32_t stripe_choose(
	struct pc_channel *ch, const struct stripe *s, uint32_t out, uint32_t place)
{
	uint32_t home = place_rail(place);
	const struct channel_rail *r;

	if (unlikely(ch->sampled))
		stripe_weigh(ch);
	if (unlikely(home >= ch->rails))
		home %= ch->rails;
	r = &ch->rail[home];
	/* Fast path. `least` is a lower bound of every rail's backlog, so no other rail can finish
	 * a slice earlier: skip the scan. */
	if (likely(!((out | s->tried) >> home & 1) && stripe_credit(r, s) &&
		    stripe_finish(r, s->bytes) <=
			    ch->least + ((s->bytes + stripe_lead(s)) << WEIGHT_SHIFT) &&
		    submit_room(ch, home, s->slots)))
		return home;
	return stripe_weighed(ch, s, out, place);
}

/* The same for one page. */
static inline uint32_t stripe_page(struct pc_channel *ch, const struct stripe *s, uint32_t place)
{
	return stripe_choose(ch, s, stripe_out(ch, s->peer), place);
}

/*
 * The fast path of stripe_choose() for a run of `bytes` bytes, without a look at the op ring.
 * `out`: rails that the run should not take; `several`: it could be split.
 */
static inline bool stripe_home(
	const struct pc_channel *ch, uint32_t home, uint32_t out, uint32_t bytes, bool several)
{
	const struct channel_rail *r = &ch->rail[home];
	uint64_t lead = several && bytes > SLICE_BYTES ? bytes : SLICE_BYTES;

	return !ch->sampled && !(out >> home & 1) && r->bytes + bytes <= r->credit[0] &&
	       stripe_finish(r, bytes) <= ch->least + ((bytes + lead) << WEIGHT_SHIFT);
}

/* `bytes` were posted to the rail. */
static inline void stripe_give(struct pc_channel *ch, uint32_t rail, uint32_t bytes)
{
	struct channel_rail *r = &ch->rail[rail];

	if (!r->bytes) {
		r->since_ns = ch->now_ns;
		r->bursts++;
	}
	r->used = true;
	r->bytes += bytes;
}

/* The rail has answered ops for `bytes`, with or without the data. */
static inline void stripe_take(struct pc_channel *ch, uint32_t rail, uint32_t bytes)
{
	struct channel_rail *r = &ch->rail[rail];

	r->bytes -= bytes;
	r->moved += bytes;
	if (stripe_finish(r, 0) < ch->least)
		ch->least = stripe_finish(r, 0);
	if (r->bytes && r->moved < STRIPE_SAMPLE_BYTES)
		return;
	r->busy_ns += ch->now_ns - r->since_ns;
	r->since_ns = ch->now_ns;
	/* Answers are reaped in groups. A second sample from one group would have a duration of
	 * nearly 0, hence the lower limit of busy_ns. */
	if (r->moved >= STRIPE_SAMPLE_BYTES && r->busy_ns >= STRIPE_SAMPLE_NS)
		stripe_sample(ch, r);
}

#endif
