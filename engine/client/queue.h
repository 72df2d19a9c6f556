/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every page passes through several times: the queues of its batch and its end, where its
 * segments are registered, requests with their cookies, and whether a ring has room. Channel
 * thread. Included by client.h alone.
 */
#ifndef CLIENT_QUEUE_H
#define CLIENT_QUEUE_H

/* ---- pages ----------------------------------------------------------------------------------- */

static inline void page_done(struct pc_batch *b, uint32_t i, enum pc_result result)
{
	b->work[i].phase = PAGE_DONE;
	b->results[i] = result;
	b->left--;
	b->channel->moves++;
	if (unlikely(result != PC_HIT))
		page_count(b, result);
}

static inline void page_queue(struct pc_batch *b, uint32_t i, enum page_phase phase)
{
	struct page_queue *q = &b->queue[phase];

	b->work[i].phase = (uint8_t)phase;
	if (unlikely(b->expired)) {
		page_done(b, i, PC_TIMEOUT);
		return;
	}
	b->work[i].next = CLIENT_NONE;
	if (q->head == CLIENT_NONE)
		q->head = i;
	else
		b->work[q->tail].next = i;
	q->tail = i;
	b->channel->moves++;
}

static inline bool page_waits(const struct pc_batch *b, enum page_phase phase)
{
	return b->queue[phase].head != CLIENT_NONE;
}

/* Takes the first page off a queue; CLIENT_NONE: empty. page_requeue() puts it back in front. */
static inline uint32_t page_unqueue(struct pc_batch *b, enum page_phase phase)
{
	struct page_queue *q = &b->queue[phase];
	uint32_t i = q->head;

	if (i != CLIENT_NONE)
		q->head = b->work[i].next;
	return i;
}

static inline void page_requeue(struct pc_batch *b, uint32_t i)
{
	struct page_queue *q = &b->queue[b->work[i].phase];

	b->work[i].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = i;
	q->head = i;
}

static inline void page_in_flight(struct pc_batch *b, uint32_t i, uint32_t request)
{
	b->work[i].phase = PAGE_IN_FLIGHT;
	b->work[i].request = request;
	b->channel->moves++;
}

/* p->at says where it may be. */
static inline void page_found(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns)
{
	const struct page_work *p = &b->work[i];

	if (b->kind == BATCH_GET && p->at.ref != ch->session->ref)
		page_queue(b, i, p->flags & PAGE_REGISTERED ? PAGE_FETCH : PAGE_STAGE);
	else
		page_here(ch, b, i, now_ns);
}

/* A share of the time until the batch's deadline, for an attempt that others may follow. */
static inline uint64_t batch_share_ns(const struct pc_batch *b, uint64_t now_ns, unsigned parts)
{
	return now_ns < b->deadline_ns ? (b->deadline_ns - now_ns) / parts : 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static inline bool memory_holds(const struct memory_view *m, uintptr_t base, uint64_t bytes)
{
	return base >= m->base && base - m->base < m->bytes && bytes <= m->bytes - (base - m->base);
}

/* The range that [base, base + bytes) lies in, registered with the engine now; else NULL. */
static inline const struct memory_view *memory_find(
	struct pc_channel *ch, const void *base, uint64_t bytes)
{
	const struct memory_view *last = &ch->memory[ch->memory_last];

	if (likely(ch->memory_last < ch->memories && memory_holds(last, (uintptr_t)base, bytes)))
		return last->region ? last : NULL;
	return memory_search(ch, (uintptr_t)base, bytes);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* CLIENT_NONE: all are in flight. */
static inline uint32_t request_take(
	struct pc_channel *ch, enum request_kind kind, struct pc_batch *b, uint32_t i)
{
	uint32_t index = ch->request_free;
	struct request *r;

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
	return index;
}

static inline void request_free(struct pc_channel *ch, uint32_t index)
{
	struct request *r = &ch->request[index];

	r->kind = REQUEST_FREE;
	r->batch = NULL;
	r->generation++; /* an answer that comes twice finds nothing */
	r->next = ch->request_free;
	ch->request_free = index;
}

static inline uint64_t request_cookie(const struct pc_channel *ch, uint32_t index)
{
	return (uint64_t)ch->request[index].generation << 32 | index;
}

/* The answer's place in the done ring is reserved by counting, so the rail never finds it full. */
static inline bool submit_room(struct pc_channel *ch, uint32_t rail, uint32_t slots)
{
	struct channel_rail *r = &ch->rail[rail];
	int32_t room;

	if (r->in_flight >= DONE_RING_SLOTS)
		return false;
	room = ring_room(&r->ops, r->unpublished + slots);
	if (unlikely(room < 0)) {
		channel_break(ch);
		return false;
	}
	return (uint32_t)room >= r->unpublished + slots;
}

#endif
