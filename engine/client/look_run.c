/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of look-ups: one op READs the buckets of up to RUN_PAGES_MAX keys from one owner, into
 * consecutive scratch slots. lookup.c gives the owner of each key; a step collects the keys of
 * each owner here and posts them. head.c does the same with page heads: one op READs those of up to
 * RUN_PAGES_MAX pages of one pool, each with its neighbour, and below they are buckets, too. The
 * buckets of a run are collected as they go into its lines, so
 * that a run is posted without another look at its pages. The pages are linked by page_work.next;
 * the k-th of them is bit k of the answer's hit mask. Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/look_run.h"
#include "engine/client/page.h"
#include "engine/client/request.h"
#include "engine/client/staging.h"
#include "engine/client/stripe.h"
#include "engine/client/submit.h"

#include <string.h>

static_assert(LOOK_OPEN_MAX <= 32, "a bit each");
static_assert(REGION_SHARD % LOOK_OPEN_MAX == 0, "look_at() finds the slot that add() takes");

/* Puts the pages of a run back in front of their queue. */
static void requeue(struct pc_batch *b, const struct look_open *o)
{
	bool buckets = o->region == REGION_SHARD;
	enum page_phase phase = buckets ? PAGE_LOOK : PAGE_HEAD;
	struct page_queue *q = &b->queue[phase];

	for (uint32_t i = o->head, left = o->pages; left; left--, i = b->work[i].next) {
		b->work[i].flags |= buckets ? PAGE_SAME_PEER : 0;
		b->work[i].phase = (uint8_t)phase;
	}
	b->work[o->tail].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = o->tail;
	q->head = o->head;
	b->channel->waits[waits_for_room(phase)] += o->pages;
}

/* Index of the bucket of the page's key that is to be READ, in a shard of 2^bits buckets. */
static inline uint32_t bucket_of(struct page_work *p, uint32_t bits)
{
	uint32_t bucket = dir_bucket_first(&p->key, bits);

	if (unlikely(p->flags & (PAGE_SECOND | PAGE_SAME_PEER))) {
		p->flags &= (uint8_t)~PAGE_SAME_PEER;
		if (p->flags & PAGE_SECOND)
			bucket = dir_bucket_other(bucket, dir_tag(&p->key), bits);
	}
	return bucket;
}

/* Writes the buckets of a run behind its header, and the turns of the lines after the first. */
static inline void write_buckets(const struct look_open *o, struct ring_producer *ops)
{
	const uint32_t *bucket = o->bucket, *end = bucket + o->pages;

	/* whole lines: what is behind the last bucket means nothing */
	memcpy((uint32_t *)(void *)ops->first + RUN_HEADER_BUCKETS, bucket,
		RUN_HEADER_BUCKETS * sizeof(*bucket));
	bucket += RUN_HEADER_BUCKETS;
	for (uint32_t n = 1; bucket < end; n++, bucket += RUN_LINE_BUCKETS) {
		struct op_slot *slot = (struct op_slot *)(void *)ops->slots;
		uint32_t *line = (uint32_t *)(void *)&slot[(ops->tail + n) % OP_RING_SLOTS];

		memcpy(line, bucket, 3 * sizeof(*bucket));
		line[3] = (uint32_t)(ring_turn_new(OP_RING_SLOTS, ops, n) >> 32);
		memcpy(line + 4, bucket + 3, (RUN_LINE_BUCKETS - 3) * sizeof(*bucket));
	}
}
static_assert(RING_TURN_AT / 4 == 3, "word 3 of a line has the turn in its upper half");

/* Posts the run to `rail`, to READ into the scratch slots from `hold` on. */
static void post(struct pc_batch *b, const struct look_open *o, uint32_t rail, uint32_t hold)
{
	struct pc_channel *ch = b->channel;
	const struct map_member *m = o->member;
	uint32_t index = request_take(ch, REQUEST_LOOK, b, o->head);
	struct client_request *r = &ch->request[index];
	struct ring_producer *ops = &ch->rail[rail].ops;
	struct run_header *h = (struct run_header *)(void *)ops->first;
	struct run run = {.cookie = run_cookie(r->generation, index),
		.peer_ref = m->ref,
		.kind = OP_LOOKUP,
		.pages = (uint8_t)o->pages,
		.peer = m->peer,
		.region = o->region,
		.to_region = ch->staging.region,
		.stride_or_to = hold * sizeof(struct bucket),
		/* A third of the time to the deadline: the rest is for the other owners and for
		 * the page itself. */
		.deadline_ns = page_attempt_ns(b, 3)};

	r->rail = (uint8_t)rail;
	r->pages = (uint8_t)o->pages;
	r->region = o->region;
	r->hold = hold;
	if (unlikely(ch->rail[rail].unpublished))
		submit_publish(ch, rail); /* the lines of a run are the first unpublished ones */
	run_encode(&run, h);
	write_buckets(o, ops);
	submit_run(ch, rail, h, run_lines(OP_LOOKUP, o->pages),
		o->pages * (uint32_t)sizeof(struct bucket));
}

__attribute__((noinline)) bool look_close(struct pc_batch *b, struct look_open *o)
{
	struct pc_channel *ch = b->channel;
	uint32_t rail, hold = CLIENT_NONE;

	rail = stripe_small(ch, &(struct stripe){.peer = o->member->peer,
					.tried = o->tried,
					.slots = run_lines(OP_LOOKUP, o->pages)});
	if (rail != CLIENT_NONE && ch->request_free != CLIENT_NONE)
		hold = scratch_take(&ch->staging, o->pages);
	if (hold == CLIENT_NONE)
		requeue(b, o);
	else
		post(b, o, rail, hold);
	o->pages = 0;
	return hold != CLIENT_NONE;
}

/* Adds the page to a run at `m`, to READ this bucket of the region for it: see look_add(). */
static bool add(
	struct pc_batch *b, uint32_t i, const struct map_member *m, uint8_t region, uint32_t bucket)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t slot = (m->peer + region) % LOOK_OPEN_MAX;
	struct look_open *o = &ch->look_open[slot];
	bool room = true;

	p->peer = m->peer;
	if (o->pages && (o->member != m || o->region != region || o->tried != p->rails_tried))
		room = look_close(b, o);
	if (!o->pages) {
		o->word = 0;
		o->member = m;
		o->mask = (1u << m->bucket_bits) - 1;
		o->tried = p->rails_tried;
		o->region = region;
		ch->look_opened |= 1u << slot;
	}
	if (!look_append(b, o, p, i, bucket))
		return room;
	return look_close(b, o);
}

bool look_add(struct pc_batch *b, uint32_t i, const struct map_member *m)
{
	return add(b, i, m, REGION_SHARD, bucket_of(&b->work[i], m->bucket_bits));
}

bool look_add_head(struct pc_batch *b, uint32_t i, const struct map_member *m)
{
	uint32_t place = b->work[i].at.place;

	return add(b, i, m, (uint8_t)(REGION_HEADS_0 + place_rail(place)), place_unit(place) / 2);
}

bool look_close_all(struct pc_batch *b, bool room)
{
	struct pc_channel *ch = b->channel;

	for (; ch->look_opened; ch->look_opened &= ch->look_opened - 1) {
		struct look_open *o = &ch->look_open[__builtin_ctz(ch->look_opened)];

		o->word = 0;
		if (!o->pages)
			continue;
		if (room) {
			room = look_close(b, o);
		} else {
			requeue(b, o);
			o->pages = 0;
		}
	}
	return room;
}
