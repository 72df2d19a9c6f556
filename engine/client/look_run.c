/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of look-ups: one op READs the buckets of up to RUN_PAGES_MAX keys from one owner, into
 * consecutive scratch slots. lookup.c chooses the owner of each key; a step collects the keys of
 * each owner here and posts them. The pages of a run are linked by page_work.next; the k-th of them
 * is bit k of the answer's hit mask. Channel thread.
 */
#include "engine/client/client.h"

#define EXPECT_AHEAD 6 /* buckets between the one that is prefetched and the one in use */

static_assert(LOOK_OPEN_MAX <= 32, "a bit each");

/* Puts the pages of a run back in front of their queue. */
static void requeue(struct pc_batch *b, const struct look_open *o)
{
	struct page_queue *q = &b->queue[PAGE_LOOK];

	for (uint32_t i = o->head, left = o->pages; left; left--, i = b->work[i].next)
		b->work[i].flags |= PAGE_SAME_PEER;
	b->work[o->tail].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = o->tail;
	q->head = o->head;
	b->channel->waits[waits_for_room(PAGE_LOOK)] += o->pages;
}

/* Index of the bucket of the page's key that is to be READ, in the shard of `m`. */
static uint32_t bucket_of(const struct page_work *p, const struct map_member *m)
{
	uint32_t first = dir_bucket_first(&p->key, m->bucket_bits);

	return p->flags & PAGE_SECOND ? dir_bucket_other(first, dir_tag(&p->key), m->bucket_bits)
				      : first;
}

/* Writes the turn into a line of a run of look-ups, not the first. The buckets go around it. */
static void look_line(struct ring_producer *ops, uint32_t line)
{
	uint64_t *word = ring_slot_new(ops, line);

	word[1] = ring_turn_new(OP_RING_SLOTS, ops, line);
}

/* Posts the run to `rail`, to READ into the scratch slots from `hold` on. */
static void post(struct pc_channel *ch, struct pc_batch *b, const struct look_open *o,
	uint32_t rail, uint32_t hold, uint64_t now_ns)
{
	const struct map_member *m = o->member;
	uint32_t index = request_take(ch, REQUEST_LOOK, b, o->head), i = o->head;
	struct request *r = &ch->request[index];
	struct ring_producer *ops = &ch->rail[rail].ops;
	struct run run = {.cookie = run_cookie(r->generation, index),
		.peer_ref = m->ref,
		.kind = OP_LOOKUP,
		.pages = (uint8_t)o->pages,
		.peer = m->peer,
		.region = REGION_SHARD,
		.to_region = ch->staging.region,
		.stride_or_to = hold * sizeof(struct bucket),
		/* A third of the time to the deadline: the rest is for the other owners and for
		 * the page itself. */
		.deadline_ns = now_ns + batch_share_ns(b, now_ns, 3)};

	r->rail = (uint8_t)rail;
	r->pages = (uint8_t)o->pages;
	r->hold = hold;
	if (unlikely(ch->rail[rail].unpublished))
		submit_publish(ch, rail); /* the lines of a run are the first unpublished ones */
	run_encode(&run, ring_slot_new(ops, 0));
	for (uint32_t line = run_lines(OP_LOOKUP, o->pages); --line;)
		look_line(ops, line);
	for (uint32_t k = 0; k < o->pages; k++, i = b->work[i].next) {
		struct page_work *p = &b->work[i];

		*run_bucket_new(ops, 0, k) = bucket_of(p, m);
		p->flags &= (uint8_t)~PAGE_SAME_PEER;
		p->rails_tried |= (uint16_t)(1u << rail);
		page_in_flight(b, i, index);
	}
	submit_run(ch, rail, (const struct run_header *)(const void *)ops->first,
		run_lines(OP_LOOKUP, o->pages), o->pages * (uint32_t)sizeof(struct bucket));
}

/* Posts an open run. False: no room; its pages are queued again. */
static bool close_run(
	struct pc_channel *ch, struct pc_batch *b, const struct look_open *o, uint64_t now_ns)
{
	uint32_t rail, hold = CLIENT_NONE;

	rail = stripe_small(ch,
		&(struct stripe){.peer = o->member->peer,
			.tried = o->tried,
			.slots = run_lines(OP_LOOKUP, o->pages)},
		now_ns);
	if (rail != CLIENT_NONE && ch->request_free != CLIENT_NONE)
		hold = scratch_take(&ch->staging, o->pages);
	if (hold == CLIENT_NONE) {
		requeue(b, o);
		return false;
	}
	post(ch, b, o, rail, hold, now_ns);
	return true;
}

bool look_add(struct pc_channel *ch, struct pc_batch *b, uint32_t i, const struct map_member *m,
	uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	uint32_t slot = m->peer % LOOK_OPEN_MAX, bit = 1u << slot;
	struct look_open *o = &ch->look_open[slot];
	bool room = true;

	p->peer = m->peer;
	if (ch->look_opened & bit && (o->member != m || o->tried != p->rails_tried)) {
		room = close_run(ch, b, o, now_ns);
		ch->look_opened &= ~bit;
	}
	if (!(ch->look_opened & bit)) {
		*o = (struct look_open){.member = m, .head = i, .tried = p->rails_tried};
		ch->look_opened |= bit;
	} else {
		b->work[o->tail].next = i;
	}
	o->tail = i;
	if (++o->pages < RUN_PAGES_MAX || !room)
		return room;
	ch->look_opened &= ~bit;
	return close_run(ch, b, o, now_ns);
}

void look_close_all(struct pc_channel *ch, struct pc_batch *b, bool room, uint64_t now_ns)
{
	for (; ch->look_opened; ch->look_opened &= ch->look_opened - 1) {
		const struct look_open *o = &ch->look_open[__builtin_ctz(ch->look_opened)];

		if (room)
			room = close_run(ch, b, o, now_ns);
		else
			requeue(b, o);
	}
}

void look_answer(struct pc_channel *ch, const struct request *r, const struct run_done *done,
	uint32_t status, uint64_t now_ns)
{
	const struct bucket *from = (const struct bucket *)(const void *)ch->staging.base + r->hold;
	uint32_t i = r->page, next;

	for (uint32_t k = 0; k < r->pages; k++, i = next) {
		struct bucket bucket;

		if (k + EXPECT_AHEAD < r->pages)
			__builtin_prefetch(&from[k + EXPECT_AHEAD]);
		next = r->batch->work[i].next;
		memcpy(&bucket, &from[k], sizeof(bucket));
		lookup_answer(
			ch, r->batch, i, &bucket, done->hit >> k & 1 ? OP_HIT : status, now_ns);
	}
}
