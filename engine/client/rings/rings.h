/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings of a channel: the requests in flight and their cookies; requests that are written to
 * the rings, and the wake-up of those that sleep (submit.c); the choice of a rail (rail.c). Inline
 * is what every run uses. Channel thread.
 */
#ifndef CLIENT_RINGS_H
#define CLIENT_RINGS_H

#include "config/likely.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/probe.h"
#include "engine/abi/run.h"
#include "engine/client/constants.h"
#include "engine/client/rings/channel.h"

struct pc_batch;

/* ---- requests in flight ---------------------------------------------------------------------- */

enum request_kind {
	REQUEST_FREE = 0,
	REQUEST_LOOK,    /* OP_LOOKUP of buckets or page heads, on a rail's op ring */
	REQUEST_RUN,     /* OP_RUN of pages, on a rail's op ring */
	REQUEST_FETCH,   /* OP_PAGE of a page or of slices of it, on a rail's op ring */
	REQUEST_COPY,    /* a FETCH that was answered, until it is copied to GPU memory */
	REQUEST_CREDIT,  /* CTL_CREDIT on the ctl ring */
	REQUEST_PUBLISH, /* CTL_PUBLISH on the ctl ring */
	REQUEST_REMOVE,  /* CTL_REMOVE on the ctl ring */
	REQUEST_DISK,    /* CTL_PROMOTE on the ctl ring */
	REQUEST_CLEAR,   /* CTL_CLEAR on the ctl ring */
};

/*
 * A request in flight on an op ring or the ctl ring. Its cookie has 32 bits: the low half of the
 * generation, and the index in pc_channel.request.
 */
struct client_request {
	/* batch of the pages; NULL: they no longer wait for the answer */
	struct pc_batch *batch;
	union {
		/* RUN, LOOK, PUBLISH: first page; page_work.next leads to the others. Else: the
		 * page */
		uint32_t page;
		uint32_t next; /* FREE: index of the next request in the free list */
	};
	uint32_t generation;
	/* FETCH, RUN: bytes counted in channel_rail.bytes; CREDIT: length of the requested slots */
	uint32_t bytes;
	union {
		/* LOOK: number of the first scratch slot; FETCH: number of a staging
		 * block, or CLIENT_NONE */
		uint32_t hold;
		uint32_t waiting; /* PUBLISH: bit per page that was not answered yet */
	};
	uint8_t kind;
	uint8_t rail;
	uint8_t pages;  /* RUN, LOOK, PUBLISH: number of pages, at most RUN_PAGES_MAX */
	uint8_t region; /* LOOK: look_open.region */
	union {
		uint16_t left;  /* CREDIT: number of slots that no answer has told of yet */
		uint16_t slice; /* FETCH: the first one that it READs */
	};
};
static_assert(sizeof(struct client_request) == 32, "two to a cache line");

/* Takes a free request. Returns its index; CLIENT_NONE: all requests are in flight. */
static inline uint32_t request_take(
	struct pc_channel *ch, enum request_kind kind, struct pc_batch *b, uint32_t i)
{
	uint32_t index = ch->request_free;
	struct client_request *r;

	if (index == CLIENT_NONE)
		return CLIENT_NONE;
	r = &ch->request[index];
	ch->request_free = r->next;
	r->batch = b;
	r->page = i;
	r->kind = (uint8_t)kind;
	r->bytes = 0;
	r->hold = CLIENT_NONE;
	r->left = 1;
	r->pages = 1;
	return index;
}

/*
 * True if the NIC may write into the caller's memory until the request is answered. A REQUEST_COPY
 * has been: fetch_copies_end() waits for it.
 */
static inline bool request_writes_caller(const struct client_request *r)
{
	return r->kind == REQUEST_RUN || (r->kind == REQUEST_FETCH && r->hold == CLIENT_NONE);
}

static inline void request_free(struct pc_channel *ch, uint32_t index)
{
	struct client_request *r = &ch->request[index];

	r->kind = REQUEST_FREE;
	r->batch = NULL;
	r->generation++; /* an answer with the old cookie is ignored from here on */
	r->next = ch->request_free;
	ch->request_free = index;
}

static inline uint32_t request_cookie(const struct pc_channel *ch, uint32_t index)
{
	return ch->request[index].generation << 16 | index;
}

/* The request with this cookie, and its index; NULL: none in flight has it. */
static inline struct client_request *request_of(
	struct pc_channel *ch, uint64_t cookie, uint32_t *ret_index)
{
	uint32_t index = cookie & 0xffff;

	if (index >= ch->requests || ch->request[index].kind == REQUEST_FREE ||
		request_cookie(ch, index) != cookie)
		return NULL;
	*ret_index = index;
	return &ch->request[index];
}

/* ---- writing to the rings: submit.c ---------------------------------------------------------- */

static_assert(SHARE_NS_MAX < OP_SPAN_NS, "a run can say its deadline");

/*
 * True if the ctl ring has room for one op with `answers` answers, and `reserve` entries stay free.
 */
bool submit_ctl_room(struct pc_channel *ch, uint32_t answers, uint32_t reserve);
/*
 * Writes a request of `lines` ring entries, which gets `answers` answers: the caller has called
 * submit_ctl_room() with success, and has written the entries behind the first one.
 */
void submit_ctl_lines(
	struct pc_channel *ch, const struct ctl_op *op, uint32_t lines, uint32_t answers);
static inline void submit_ctl(struct pc_channel *ch, const struct ctl_op *op, uint32_t answers)
{
	submit_ctl_lines(ch, op, 1, answers);
}
/* Publishes the ctl ring in the middle of a step, so that the control plane works during copies. */
void submit_ctl_flush(struct pc_channel *ch);
/* The thread has nothing to do but wait: ends a nap of the control plane that has requests. */
void submit_ctl_hurry(struct pc_channel *ch);
/*
 * Ends a step of the channel: publishes the requests to the control plane, then wakes it and the
 * rails that sleep, behind one fence.
 */
void submit_flush(struct pc_channel *ch);

/*
 * True if the rail's op ring has `slots` free entries. Counting in_flight reserves an entry of the
 * done ring for each answer, so the rail never finds the done ring full.
 */
static inline bool submit_room(struct pc_channel *ch, uint32_t rail, uint32_t slots)
{
	struct channel_rail *r = &ch->rail[rail];
	int32_t room;

	if (r->in_flight >= DONE_RING_SLOTS)
		return false;
	room = ring_room(&r->ops, slots);
	if (unlikely(room < 0)) {
		channel_break(ch);
		return false;
	}
	return (uint32_t)room >= slots;
}

/*
 * The same without a look at the rail. False: not known, or no room: submit_room() may find some.
 */
static inline bool submit_room_now(const struct pc_channel *ch, uint32_t rail, uint32_t slots)
{
	const struct channel_rail *r = &ch->rail[rail];

	return r->in_flight < DONE_RING_SLOTS &&
	       r->ops.tail - r->ops.head_seen + slots <= OP_RING_SLOTS;
}

/* Counts a run that is published next: its answer has room, and submit_flush() wakes the rail. */
static inline void submit_told(
	struct pc_channel *ch, uint32_t rail, const struct run_header *run, uint32_t bytes)
{
	ch->rail[rail].in_flight++;
	PROBE_SUBMIT(ch->id, (uint64_t)run->cookie, rail, run->peer, bytes);
	ch->told |= 1u << rail;
	ch->moves++;
}

/*
 * Publishes an OP_PAGE. The caller has written its first line, which begins with the header `run`.
 * Writes its segments behind it if there are several.
 */
static inline void submit_page(struct pc_channel *ch, uint32_t rail, const struct run_header *run,
	const struct op_segment *segments)
{
	struct ring_producer *ops = &ch->rail[rail].ops;
	uint32_t count = op_unpack_segments(OP_PAGE, run->segments_region);

	if (count > 1)
		run_segments_new(ops, 0, segments, count);
	submit_told(ch, rail, run, (uint32_t)run->to);
	ring_publish(ops, op_page_lines(count));
}

/*
 * Publishes a run that the caller has written into the rail's op ring, with the turns of all lines
 * but the first. `lines`: their number. `bytes`: length of all its pages. If the rail sleeps,
 * submit_flush() wakes it at the end of channel_step().
 */
static inline void submit_run(struct pc_channel *ch, uint32_t rail, const struct run_header *run,
	uint32_t lines, uint32_t bytes)
{
	submit_told(ch, rail, run, bytes);
	ring_publish_turned(&ch->rail[rail].ops, OP_RING_SLOTS, sizeof(struct run_line), lines);
}

/* ---- the choice of a rail, and what posts tell about it: rail.c ------------------------------ */

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
/* An op failed on the rail, which is therefore used last for RAIL_REST_NS. */
void stripe_rest(struct pc_channel *ch, uint32_t rail);

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

/* An idle rail takes any op that cannot be split. */
static inline bool stripe_has_room(const struct channel_rail *r, const struct stripe *s)
{
	uint64_t most = s->least > SLICE_BYTES ? STRIPE_BYTES_BIG : STRIPE_BYTES;

	return likely(r->bytes + s->bytes <= most) || !s->bytes ||
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

	if (unlikely(home >= ch->rails))
		home %= ch->rails;
	r = &ch->rail[home];
	/* Fast path. `least` is a lower bound of every rail's backlog, so no other rail has one
	 * that is shorter by the lead: skip the scan. */
	if (likely(!((out | s->tried) >> home & 1) && stripe_has_room(r, s) &&
		    r->bytes <= ch->least + stripe_lead(s) && submit_room(ch, home, s->slots)))
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

	return !(out >> home & 1) && r->bytes + bytes <= STRIPE_BYTES &&
	       r->bytes <= ch->least + lead;
}

/* `bytes` were posted to the rail. */
static inline void stripe_give(struct pc_channel *ch, uint32_t rail, uint32_t bytes)
{
	ch->rail[rail].bytes += bytes;
}

/* The rail has answered ops for `bytes`, with or without the data. */
static inline void stripe_take(struct pc_channel *ch, uint32_t rail, uint32_t bytes)
{
	struct channel_rail *r = &ch->rail[rail];

	r->bytes -= bytes;
	if (r->bytes < ch->least)
		ch->least = r->bytes;
}

#endif
