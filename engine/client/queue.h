/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queues of a batch, the end of a page, and the look-up of registered memory. Inline because
 * every page uses them several times. Channel thread. Included only by client.h.
 */
#ifndef CLIENT_QUEUE_H
#define CLIENT_QUEUE_H

/* ---- pages ----------------------------------------------------------------------------------- */

/*
 * The i-th page of a batch, for a loop over pages. What is assumed is true; it makes the compiler
 * keep the address in a register, instead of computing it for each access.
 */
static inline struct page_work *page_at(struct pc_batch *b, uint32_t i)
{
	return __builtin_assume_aligned(&b->work[i], alignof(struct page_work));
}

static inline void page_done(struct pc_batch *b, uint32_t i, enum pc_result result)
{
	b->work[i].phase = PAGE_DONE;
	b->results[i] = result;
	b->left--;
	b->channel->moves++;
	if (unlikely(result != PC_HIT))
		page_count(b, result);
}

/*
 * True if a page in this phase waits for room on a rail. enum page_phase lists what the others wait
 * for.
 */
static inline bool waits_for_room(unsigned phase)
{
	return phase == PAGE_FETCH || phase == PAGE_STAGE;
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
	b->channel->waits[waits_for_room(phase)]++;
	b->channel->moves++;
}

static inline bool page_waits(const struct pc_batch *b, enum page_phase phase)
{
	return b->queue[phase].head != CLIENT_NONE;
}

/*
 * Removes and returns the first page of a queue; CLIENT_NONE: empty. page_requeue() puts it back in
 * front.
 */
static inline uint32_t page_unqueue(struct pc_batch *b, enum page_phase phase)
{
	struct page_queue *q = &b->queue[phase];
	uint32_t i = q->head;

	if (i == CLIENT_NONE)
		return i;
	q->head = b->work[i].next;
	b->channel->waits[waits_for_room(phase)]--;
	return i;
}

static inline void page_requeue(struct pc_batch *b, uint32_t i)
{
	struct page_queue *q = &b->queue[b->work[i].phase];

	b->work[i].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = i;
	q->head = i;
	b->channel->waits[waits_for_room(b->work[i].phase)]++;
}

static inline void page_in_flight(struct pc_batch *b, uint32_t i, uint32_t request)
{
	b->work[i].phase = PAGE_IN_FLIGHT;
	b->work[i].request = request;
	b->channel->moves++;
}

/* The phase in which a page waits to be READ from another host. */
static inline enum page_phase page_read_phase(const struct page_work *p)
{
	if (likely(p->regular))
		return PAGE_RUN;
	return p->flags & PAGE_REGISTERED ? PAGE_FETCH : PAGE_STAGE;
}

/* Continues a page whose location p->at was found: queues its READ or ends it on this host. */
static inline void page_found(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns)
{
	const struct page_work *p = &b->work[i];

	if (unlikely(place_on_disk(p->at.place)))
		disk_found(ch, b, i, now_ns);
	else if (b->kind == BATCH_GET && p->at.ref != ch->session->ref)
		page_queue(b, i, page_read_phase(p));
	else
		page_here(ch, b, i, now_ns);
}

/*
 * The time until the batch's deadline / `parts`: the limit of one attempt that others may follow.
 */
static inline uint64_t batch_share_ns(const struct pc_batch *b, uint64_t now_ns, unsigned parts)
{
	uint64_t ns = now_ns < b->deadline_ns ? b->deadline_ns - now_ns : 0;

	if (parts > 1)
		ns /= parts;
	return ns < SHARE_NS_MAX ? ns : SHARE_NS_MAX;
}

/* The time, ns, at which the batch must be stepped even if no answer comes. */
static inline uint64_t batch_due_ns(const struct pc_batch *b)
{
	if (!b->expired)
		return b->deadline_ns;
	return b->abandoned ? UINT64_MAX : b->deadline_ns + ANSWER_GRACE_NS;
}

/* ---- segments ------------------------------------------------------------------------------- */

/* Distance between the starts of the segments of a regular page; 0: it has only one. */
static inline uint64_t page_stride(const struct pc_page *page)
{
	const struct pc_segment *s = page->segments;

	return page->segment_count > 1 ? (uintptr_t)s[1].base - (uintptr_t)s[0].base : 0;
}

/* Bytes from the start of the first segment of a regular page to the end of the last one. */
static inline uint64_t page_span(const struct pc_page *page)
{
	return page_stride(page) * (page->segment_count - 1) + page->segments->bytes;
}

/* ---- used pages ------------------------------------------------------------------------------ */

/*
 * The page was read: confirms its location in the cache, and tells the control plane at most once
 * in TOUCH_NS. `now_ms`: CLOCK_MONOTONIC.
 */
static inline void notice_touch(struct pc_channel *ch, const struct page_work *p, uint32_t now_ms)
{
	struct cache_entry *e = cache_again(ch, p->cached, &p->key, &p->at, now_ms);

	if (unlikely(!e || cache_touch_due(e, now_ms)))
		notice_touch_due(ch, p, e, now_ms);
}

/* The time of a touch as cache_entry.touched_ms has it: never 0. */
static inline uint32_t notice_stamp(uint32_t now_ms)
{
	return now_ms + !now_ms;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static inline bool memory_holds(const struct memory_view *m, uintptr_t base, uint64_t bytes)
{
	uint64_t at = base - m->base; /* huge if `base` is below the range */

	return at < m->bytes && bytes <= m->bytes - at;
}

/*
 * The registered range that contains [base, base + bytes); NULL: none, or not registered with the
 * current engine.
 */
static inline const struct memory_view *memory_find(
	struct pc_channel *ch, const void *base, uint64_t bytes)
{
	const struct memory_view *last = &ch->memory[ch->memory_last];

	if (likely(ch->memory_last < ch->memories && memory_holds(last, (uintptr_t)base, bytes)))
		return last->region ? last : NULL;
	return memory_search(ch, (uintptr_t)base, bytes);
}

/* All segments of a regular page lie in `m`. */
static inline void memory_found(
	struct page_work *p, const struct pc_page *page, const struct memory_view *m)
{
	p->flags |= PAGE_REGISTERED;
	p->to = (uint64_t)m->region << OP_TO_BITS | ((uintptr_t)page->segments->base - m->base);
}

/*
 * Finds the registered ranges that the page's segments lie in, to be pinned. Sets PAGE_REGISTERED
 * if all lie in some, and page_work.to; clears `regular` if they do not lie in one. `last`: the
 * result of the call before this one, or NULL. Returns a range that is to be pinned, or NULL.
 */
static inline const struct memory_view *memory_find_page(struct pc_batch *b, struct page_work *p,
	const struct pc_page *page, const struct memory_view *last)
{
	if (unlikely(!last || !p->regular ||
		     !memory_holds(last, (uintptr_t)page->segments->base, page_span(page))))
		return memory_find_new(b, p, page, last);
	memory_found(p, page, last);
	return last;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Which attempt this is: pages of one run have made the same ones, and have as many to go. */
static inline uint32_t run_tries(const struct page_work *p)
{
	return (uint32_t)p->others << 16 | p->rails_tried;
}

/* The group of a page of the pool of rail 0 of this holder; those of the other rails follow. */
static inline uint32_t run_slot(uint32_t ref, uint32_t bytes)
{
	return (ref ^ bytes) * 0x9e3779b1u >> 27;
}

/* True if the group of the page's holder is for pages like this one. */
static inline bool run_fits(const struct run_group *g, const struct page_work *p,
	const struct pc_page *page, uint32_t tries)
{
	return p->bytes == g->bytes && page->segment_count == g->segments &&
	       !((p->to ^ g->to) >> OP_TO_BITS) && tries == g->tries &&
	       (!g->stride || page_stride(page) == g->stride);
}

/*
 * Adds a page with the location `at`, which is page_work.at, to the pages that this step plans
 * together. `slot`: run_slot(). `tries`: run_tries(), which is 0 at the first attempt. `alike`: no
 * group of the holder can be for other pages than this one, see pc_batch.alike.
 */
static inline void run_add(struct pc_channel *ch, struct pc_batch *b, uint32_t i,
	const struct location *at, uint32_t slot, uint32_t tries, bool alike, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];
	struct run_group *g;

	slot = (slot + place_rail(at->place)) % RUN_GROUPS_MAX;
	g = &ch->run_group[slot];
	p->phase = PAGE_RUN;
	/* the pool need not be compared: with one holder and length, each pool has its own slot */
	if (likely(at->ref == g->ref && (alike || likely(run_fits(g, p, &b->pages[i], tries))))) {
		b->work[g->tail].next = i;
		g->tail = i;
		g->pages++;
	} else if (likely(alike && !g->ref)) {
		/* the first page of a group that is for no others; so is what is not set here */
		ch->run_grouped |= 1u << slot;
		g->ref = at->ref;
		g->bytes = p->bytes;
		g->head = g->tail = i;
		g->pages = 1;
	} else {
		run_group_new(ch, b, i, slot, now_ns);
	}
}

#endif
