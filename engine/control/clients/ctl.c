/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ctl rings of clients: takes ops, serves them and answers them. Owns struct ctl. Runs on the
 * control plane's thread only.
 *
 * Nothing in an op is trusted: each op and each page of a CTL_PUBLISH is copied once, and a place
 * is only used if the channel has the credit for it. One page's failure affects no other page.
 *
 * An op is answered at once, or later, when the owners of its keys have answered. A set is the
 * op CTL_PUBLISH: it makes pages of credits and sends their entries to the owners. When all its
 * pages have ended, it is answered with one answer for each status.
 *
 * An op is taken only if the channel's ctl_done ring has room for its answers. A client that does
 * not read its answers stops only its own channel, and a timer looks at the ring again.
 */
#include "engine/control/clients/ctl_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/copies/copies.h"
#include "engine/control/directory/directory.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"
#include "engine/rail/inbox.h"

/* pages between the one that is served and those whose cache lines are prefetched */
#define PREFETCH_FAR 8u
#define PREFETCH_NEAR 4u

/* ---- answers --------------------------------------------------------------------------------- */

void ctl_answer_write(
	struct ctl *ctl, struct ctl_channel *c, const struct ctl_done *done, uint32_t told)
{
	memcpy(ring_slot_new(&c->done, 0), done, sizeof(*done));
	ring_publish(&c->done, 1);
	c->owed -= told;
	if (!c->dirty) {
		c->dirty = true;
		ctl->dirty[ctl->dirties++] = c->id;
	}
}

void ctl_answer_now(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_done *done)
{
	struct ctl_done whole = *done;

	whole.cookie = op->cookie;
	whole.kind = op->kind;
	ctl_answer_write(ctl, c, &whole, 1);
}

static void ctl_answer_status(
	struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op, enum op_status status)
{
	ctl_answer_now(ctl, c, op, &(struct ctl_done){.status = status});
}

/* ---- answers that come later ----------------------------------------------------------------- */

uint32_t ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages)
{
	struct ctl_answer *a;
	uint32_t at;

	if (ctl->answer_free == CTL_NO_ANSWER) {
		uint32_t more = ctl->answers ? ctl->answers * 2 : 1024;

		a = realloc(ctl->answer, more * sizeof(*a));
		if (!a)
			return CTL_NO_ANSWER;
		ctl->answer = a;
		for (uint32_t i = ctl->answers; i < more; i++)
			a[i] = (struct ctl_answer){
				.next_free = i + 1 < more ? i + 1 : CTL_NO_ANSWER};
		ctl->answer_free = ctl->answers;
		ctl->answers = more;
	}
	at = ctl->answer_free;
	a = &ctl->answer[at];
	ctl->answer_free = a->next_free;
	ctl->answers_used++;
	*a = (struct ctl_answer){.cookie = op->cookie,
		.channel = c->id,
		.generation = c->generation,
		.kind = op->kind,
		.waiting = UINT32_MAX >> (CTL_PAGES_MAX - pages)};
	return at << CTL_PAGE_BITS;
}

/* The record of a page that has not ended, and the page's bit; NULL: it has. */
static struct ctl_answer *ctl_later_find(struct ctl *ctl, uint32_t later, uint32_t *ret_page)
{
	uint32_t at = later >> CTL_PAGE_BITS, page = 1u << later % CTL_PAGES_MAX;

	if (at >= ctl->answers || !(ctl->answer[at].waiting & page)) {
		log_error("publish: request %u was answered twice; the second answer is ignored",
			later);
		return NULL;
	}
	*ret_page = page;
	return &ctl->answer[at];
}

/*
 * The channel of an op; NULL: it has closed. Its id may belong to another channel now, so the
 * generation is compared.
 */
static struct ctl_channel *ctl_later_channel(struct ctl *ctl, const struct ctl_answer *a)
{
	struct ctl_channel *c = ctl->channel[a->channel];

	return c && c->generation == a->generation ? c : NULL;
}

static void ctl_later_free(struct ctl *ctl, struct ctl_answer *a)
{
	a->waiting = 0;
	a->next_free = ctl->answer_free;
	ctl->answer_free = (uint32_t)(a - ctl->answer);
	ctl->answers_used--;
}

void ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done)
{
	uint32_t page;
	struct ctl_answer *a = ctl_later_find(ctl, later, &page);
	struct ctl_channel *c = a ? ctl_later_channel(ctl, a) : NULL;
	struct ctl_done whole = *done;

	if (!a)
		return;
	whole.cookie = a->cookie;
	whole.kind = a->kind;
	if (c)
		ctl_answer_write(ctl, c, &whole, 1);
	ctl_later_free(ctl, a);
}

/* ---- credits that come back ------------------------------------------------------------------ */

/*
 * Returns an unused credit, which the caller has taken from its channel, to its pool. The client
 * must not be copying into its slot.
 */
static void ctl_give_back(struct ctl *ctl, const struct credit *credit)
{
	evict_give_back(ctl->evict, credit->place, credit->generation, credit->length);
}

static void ctl_serve_return(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op)
{
	struct credit credit;

	if (credits_take(&c->credits, op->place, op->generation, &credit))
		ctl_give_back(ctl, &credit);
	else
		ctl->control->counter[COUNTER_ops_invalid]++;
}

/* ---- CTL_PUBLISH ----------------------------------------------------------------------------- */

/* The op's deadline, shortened to CTL_DEADLINE_NS from now. */
static uint64_t ctl_deadline_ns(const struct ctl_op *op, uint64_t now_ns)
{
	uint64_t latest = now_ns + CTL_DEADLINE_NS;

	return op->deadline_ns < latest ? op->deadline_ns : latest;
}

/*
 * Acknowledges a set: all pages of a CTL_PUBLISH have ended. Writes one answer for each status with
 * the pages that ended so; OP_HIT: the owners that a set waits for have their entries.
 */
static void publish_acknowledge(struct ctl *ctl, const struct ctl_answer *a)
{
	struct ctl_channel *c = ctl_later_channel(ctl, a);

	for (unsigned k = 0; c && k < OP_STATUS_COUNT; k++) {
		const struct ctl_done done = {
			.cookie = a->cookie, .kind = a->kind, .status = k, .pages = a->ended[k]};

		if (done.pages)
			ctl_answer_write(ctl, c, &done, (uint32_t)__builtin_popcount(done.pages));
	}
}

/* A page of a CTL_PUBLISH has ended. The last one acknowledges the set. */
static void publish_page_end(struct ctl *ctl, uint32_t later, enum op_status status)
{
	uint32_t page;
	struct ctl_answer *a = ctl_later_find(ctl, later, &page);

	if (!a)
		return;
	a->waiting &= ~page;
	a->ended[status] |= page;
	if (a->waiting)
		return;
	publish_acknowledge(ctl, a);
	ctl_later_free(ctl, a);
}

/* The owners of a page's key have answered, or its deadline is over: the callback of directory. */
static void publish_owners_answered(void *context, uint64_t cookie, enum op_status status)
{
	publish_page_end(context, (uint32_t)cookie, status);
}

/* A page of a CTL_PUBLISH, copied from the ring. */
struct page_publish {
	const struct ctl_page *at;
	uint32_t length;
	uint32_t later; /* its number of ctl_later() */
	uint32_t bits;  /* PUBLISH_* */
	uint64_t deadline_ns;
};

static void publish_tell_owners(
	struct ctl *ctl, const struct page_publish *page, uint32_t place, uint32_t generation)
{
	directory_publish(ctl->control, &page->at->key,
		&(struct location){.place = place, .generation = generation},
		&(struct waiter){.deadline_ns = page->deadline_ns,
			.done = publish_owners_answered,
			.context = ctl,
			.cookie = page->later});
}

/*
 * Serves a publish of a key that this host already has with this length; the new credit is not
 * needed. The existing entry is published once more, so that the answer means the same as every
 * answer: all owners have the entry.
 */
static void publish_already(
	struct ctl *ctl, const struct page_publish *page, const struct index_entry *old)
{
	ctl->control->counter[COUNTER_pages_already]++;
	page_touched(ctl->control, old->place);
	publish_tell_owners(ctl, page, old->place, old->generation);
}

/*
 * Makes a page of a credit, which the caller has taken from its channel. pool_prove() writes CRC
 * and checksum of its head; pool_publish() then writes, behind a fence, the length and the key,
 * which make it readable. False: it cannot, and *ret_status says why.
 */
static bool publish_page_make(struct ctl *ctl, const struct page_publish *page,
	const struct credit *credit, enum op_status *ret_status)
{
	struct control *control = ctl->control;
	const struct ctl_page *at = page->at;
	struct pool *pool = control->rail[place_rail(at->place)].pool;
	struct index_entry entry = {.key = at->key,
		.place = at->place,
		.generation = at->generation,
		.length = page->length};
	struct index_entry *put;

	if (index_put(control->index, &entry, &put) < 0) {
		*ret_status = OP_NO_SPACE;
		return false;
	}
	if (page->bits & PUBLISH_CRC)
		/* fails only where pool_publish() fails too */
		pool_prove(pool, &(struct pool_proven){.key = at->key,
					 .place = at->place,
					 .generation = at->generation,
					 .length = page->length,
					 .crc = at->crc});
	if (pool_publish(pool, at->place, at->generation, &at->key, page->length) < 0) {
		index_remove(control->index, &at->key);
		*ret_status = OP_INVALID;
		return false;
	}
	ctl->evict->credits--;
	if (page->length != credit->length) {
		evict_hold(ctl->evict, place_rail(at->place), credit->length, -1);
		evict_hold(ctl->evict, place_rail(at->place), page->length, 1);
	}
	control->counter[COUNTER_pages_published]++;
	return true;
}

static void publish_page(struct ctl *ctl, struct ctl_channel *c, const struct page_publish *page)
{
	struct control *control = ctl->control;
	const struct ctl_page *at = page->at;
	const struct index_entry *old;
	enum op_status status;
	struct credit credit;
	struct pool *pool;
	uint32_t *last;
	bool first_out;

	if (!credits_take(&c->credits, at->place, at->generation, &credit)) {
		control->counter[COUNTER_ops_invalid]++;
		publish_page_end(ctl, page->later, OP_INVALID);
		return;
	}
	old = index_find(control->index, &at->key);
	if (page_key_none(&at->key) || page->length == 0 || page->length > credit.length) {
		control->counter[COUNTER_ops_invalid]++;
		ctl_give_back(ctl, &credit);
		publish_page_end(ctl, page->later, OP_INVALID);
		return;
	}
	if (old && old->length == page->length) {
		ctl_give_back(ctl, &credit);
		publish_already(ctl, page, old);
		return;
	}
	if (old)
		evict_take_away(ctl->evict, &at->key, old->place, old->generation);
	pool = control->rail[place_rail(at->place)].pool;
	last = &c->batch_last[place_rail(at->place)];
	/* a page that storage hosts are to have stays until one has READ it */
	first_out = !control->storage &&
		    (page->bits & PUBLISH_GAP || evict_keeps(ctl->evict, c->batches));
	if (!first_out)
		pool_order(pool, *last);
	if (!publish_page_make(ctl, page, &credit, &status)) {
		ctl_give_back(ctl, &credit);
		publish_page_end(ctl, page->later, status);
		return;
	}
	tier_replaced(control, &at->key, page->length);
	tier_published(control);
	if (ctl->rail[place_rail(at->place)].first)
		/*
		 * makes ctl_turn() look at the waiting credit requests: the new page can be
		 * evicted for them
		 */
		ctl->evict->rail[place_rail(at->place)].retry = true;
	publish_tell_owners(ctl, page, at->place, at->generation);
	if (!index_ends(control->index, &at->key))
		copies_stored(control, &at->key, at->place, at->generation);
	if (first_out)
		(void)pool_last(pool, at->place, at->generation);
	else
		*last = at->place;
}

/*
 * Prefetches what the pages of a publish from `i` on will read: index, directory and page head of a
 * page are in cache lines that nothing else has read lately.
 */
static void publish_prefetch_far(
	const struct control *control, const struct ctl_page *page, unsigned i)
{
	index_prefetch_chain(control->index, &page[i].key);
	shard_prefetch(control->shard, &page[i].key);
	if (place_rail(page[i].place) < control->rails)
		pool_prefetch(control->rail[place_rail(page[i].place)].pool, page[i].place);
}

/* Ends a publish for which there is no memory: its credits go back. */
static void publish_refuse(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_page *page)
{
	const struct ctl_done done = {.cookie = op->cookie,
		.kind = CTL_PUBLISH,
		.status = OP_NO_SPACE,
		.pages = UINT32_MAX >> (CTL_PAGES_MAX - op->count)};
	struct credit credit;

	for (unsigned i = 0; i < op->count; i++)
		if (credits_take(&c->credits, page[i].place, page[i].generation, &credit))
			ctl_give_back(ctl, &credit);
	ctl_answer_write(ctl, c, &done, op->count);
}

/* `page`: all pages of the op. */
static void publish_pages(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_page *page, uint64_t now_ns)
{
	const struct control *control = ctl->control;
	uint32_t later = ctl_later(ctl, c, op, op->count);

	if (later == CTL_NO_ANSWER) {
		publish_refuse(ctl, c, op, page);
		return;
	}
	if (c->batch_deadline_ns != op->deadline_ns) {
		memset(c->batch_last, 0xff, sizeof(c->batch_last));
		c->batches++;
	}
	c->batch_deadline_ns = op->deadline_ns;
	for (unsigned i = 0; i < op->count && i < PREFETCH_FAR; i++)
		publish_prefetch_far(control, page, i);
	for (unsigned i = 0; i < op->count && i < PREFETCH_NEAR; i++)
		index_prefetch_entry(control->index, &page[i].key);
	for (unsigned i = 0; i < op->count; i++) {
		if (i + PREFETCH_FAR < op->count)
			publish_prefetch_far(control, page, i + PREFETCH_FAR);
		if (i + PREFETCH_NEAR < op->count)
			index_prefetch_entry(control->index, &page[i + PREFETCH_NEAR].key);
		publish_page(ctl, c,
			&(struct page_publish){.at = &page[i],
				.length = op->length,
				.later = later + i,
				.deadline_ns = ctl_deadline_ns(op, now_ns),
				.bits = op->publish});
	}
}

/* Copies the pages of a CTL_PUBLISH, which is the ring's `at`-th entry. */
static void publish_pages_copy(const struct ring_consumer *ctl, unsigned at,
	const struct ctl_op *op, struct ctl_page ret_page[CTL_PAGES_MAX])
{
	ret_page[0] = (struct ctl_page){
		.place = op->place, .generation = op->generation, .crc = op->crc, .key = op->key};
	for (uint32_t i = 1; i < op->count; i++) {
		const struct ctl_page *line = ring_slot_old(ctl, at + ctl_page_line(i));

		memcpy(&ret_page[i], &line[ctl_page_half(i)], sizeof(ret_page[i]));
	}
}

/*
 * Serves the op CTL_PUBLISH, a copy of the `at`-th entry of the channel's ctl ring, with the
 * entries behind it. c->owed includes its pages already.
 */
static void ctl_serve_publish(struct ctl *ctl, struct ctl_channel *c, unsigned at,
	const struct ctl_op *op, uint64_t now_ns)
{
	struct ctl_page page[CTL_PAGES_MAX];

	ctl->stored_ns = now_ns;
	if (op->count < 1 || op->count > CTL_PAGES_MAX) {
		ctl->control->counter[COUNTER_ops_invalid]++;
		ctl_answer_now(ctl, c, op, &(struct ctl_done){.status = OP_INVALID, .pages = 1});
		return;
	}
	publish_pages_copy(&c->ops, at, op, page);
	publish_pages(ctl, c, op, page, now_ns);
}

/* ---- the other ops --------------------------------------------------------------------------- */

/* Serves a client's report of a stale entry. */
static void ctl_serve_stale(struct ctl *ctl, const struct ctl_op *op)
{
	directory_stale(ctl->control, &op->key,
		&(struct location){
			.ref = op->ref, .place = op->place, .generation = op->generation});
}

/* As publish_owners_answered(), for a remove. */
static void remove_owners_answered(void *context, uint64_t cookie, enum op_status status)
{
	ctl_later_answer(context, (uint32_t)cookie, &(struct ctl_done){.status = status});
}

static void ctl_serve_remove(
	struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op, uint64_t now_ns)
{
	uint32_t later = page_key_none(&op->key) ? CTL_NO_ANSWER : ctl_later(ctl, c, op, 1);

	if (later == CTL_NO_ANSWER) {
		ctl_answer_status(ctl, c, op, page_key_none(&op->key) ? OP_INVALID : OP_NO_SPACE);
		return;
	}
	directory_forget(ctl->control, &op->key,
		&(struct waiter){.deadline_ns = ctl_deadline_ns(op, now_ns),
			.done = remove_owners_answered,
			.context = ctl,
			.cookie = later});
}

/* A page of another host is to be brought here: answered when it is queued. */
static void ctl_serve_copy(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op)
{
	ctl_answer_status(ctl, c, op,
		copies_ask(ctl->control, &(struct copy_wish){.key = op->key,
						 .from = {op->ref, op->place, op->generation},
						 .length = op->length,
						 .crc = op->crc,
						 .proven = op->publish & PUBLISH_CRC,
						 .why = PAGE_PREFETCHED}));
}

static void ctl_serve_touches(struct ctl *ctl, const struct ctl_op *op)
{
	struct ctl_touches touches;

	memcpy(&touches, op, sizeof(touches));
	if (touches.count > CTL_TOUCHES_MAX)
		ctl->control->counter[COUNTER_ops_invalid]++;
	for (unsigned i = 0; touches.count <= CTL_TOUCHES_MAX && i < touches.count; i++)
		directory_touch(ctl->control, touches.page[i].ref, touches.page[i].place);
}

static void ctl_serve_op(struct ctl *ctl, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns)
{
	switch (op->kind) {
	case CTL_CREDIT:
		ctl->stored_ns = now_ns;
		op->deadline_ns = ctl_deadline_ns(op, now_ns);
		/* ctl_credit.c: slots of pool_take() at once, or after evict_refill() and limbo */
		ctl_credit(ctl, c, op, now_ns);
		break;
	case CTL_RETURN: ctl_serve_return(ctl, c, op); break;
	case CTL_TOUCH:
		if (op->ref == ctl->control->ref) {
			page_touched(ctl->control, op->place);
			tier_touched(ctl->control, op->place, op->generation);
		} else {
			directory_touch(ctl->control, op->ref, op->place);
		}
		break;
	case CTL_TOUCHES: ctl_serve_touches(ctl, op); break;
	case CTL_LIMITS: groups_serve(ctl->control, c, op); break;
	case CTL_STALE: ctl_serve_stale(ctl, op); break;
	case CTL_CORRUPT:
		scrub_read(ctl->control, op->ref,
			&(struct page_report){op->key, op->place, op->generation});
		break;
	case CTL_REMOVE: ctl_serve_remove(ctl, c, op, now_ns); break;
	case CTL_CLEAR: clear_serve(ctl->control, c, op, ctl_deadline_ns(op, now_ns)); break;
	case CTL_PROMOTE:
		if (op->count == PROMOTE_COPY) {
			ctl_serve_copy(ctl, c, op);
			break;
		}
		if (op->count == PROMOTE_PIN) {
			ctl_answer_status(ctl, c, op, pin_serve(ctl->control, op));
			break;
		}
		/* fall through */
	case CTL_WANT: promote_serve(ctl->control, c, op, now_ns); break;
	default:
		ctl->control->counter[COUNTER_ops_invalid]++;
		ctl_answer_status(ctl, c, op, OP_INVALID);
	}
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Returns the number of answers that the op may produce. */
static uint32_t ctl_op_answers(const struct ctl_op *op)
{
	switch (op->kind) {
	case CTL_CREDIT: return op->count >= 1 && op->count <= CREDITS_MAX ? op->count : 1;
	case CTL_PUBLISH: return op->count >= 1 && op->count <= CTL_PAGES_MAX ? op->count : 1;
	case CTL_RETURN:
	case CTL_TOUCH:
	case CTL_TOUCHES:
	case CTL_LIMITS:
	case CTL_STALE:
	case CTL_CORRUPT:
	case CTL_WANT: return 0;
	default: return 1;
	}
}

/* Number of ring entries of an op that was copied and not validated. */
static uint32_t ctl_op_lines(const struct ctl_op *op)
{
	return op->kind == CTL_PUBLISH && op->count <= CTL_PAGES_MAX ? ctl_lines(op->count) : 1;
}

/*
 * Takes ops from the ctl ring of one channel. Returns how many entries it took, or RING_BROKEN.
 */
static int ctl_channel_turn(struct ctl *ctl, struct ctl_channel *c, uint64_t now_ns)
{
	int32_t ready = ring_ready(&c->ops);
	unsigned n = 0;

	while (ready > 0 && n < (unsigned)ready && n < CTL_BURST) {
		struct ctl_op op;
		uint32_t answers, lines;
		int32_t room;

		memcpy(&op, ring_slot_old(&c->ops, n), sizeof(op));
		lines = ctl_op_lines(&op);
		/* all entries of an op are published together, but may be seen in part */
		if (n + lines > (unsigned)ready) {
			ready = ring_look(&c->ops, CTL_RING_SLOTS);
			if (n + lines > (unsigned)ready)
				return RING_BROKEN;
		}
		answers = ctl_op_answers(&op);
		room = ring_room(&c->done, c->owed + answers);
		if (room < 0)
			return RING_BROKEN;
		if ((uint32_t)room < c->owed + answers) {
			ctl->stalled = true;
			break;
		}
		c->owed += answers;
		if (op.kind == CTL_PUBLISH)
			ctl_serve_publish(ctl, c, n, &op, now_ns);
		else
			ctl_serve_op(ctl, c, &op, now_ns);
		n += lines;
	}
	if (n)
		ring_release(&c->ops, n);
	return (int)n;
}

static void ctl_on_timer(void *context)
{
	struct ctl *ctl = context;

	ctl->timer_ns = 0;
	for (unsigned i = 0; i < ctl->control->rails; i++)
		if (ctl->rail[i].first)
			ctl->evict->rail[i].retry = true;
}

/*
 * Returns the time at which the waiting credit requests or a full ctl_done ring must be checked
 * again. Requests: when a slot leaves limbo, at the earliest deadline of a request, and at least
 * every CTL_RETRY_NS. A full ctl_done ring: after CTL_STALL_NS.
 */
static uint64_t ctl_timer_next_ns(const struct ctl *ctl, uint64_t now_ns)
{
	uint64_t next = ctl->stalled ? now_ns + CTL_STALL_NS : UINT64_MAX;

	for (unsigned i = 0; i < ctl->control->rails; i++) {
		const struct ctl_request *r = ctl->rail[i].first;
		uint64_t at;

		if (!r)
			continue;
		at = pool_limbo_left_ns(ctl->control->rail[i].pool);
		at = now_ns + (at < CTL_RETRY_NS ? at : CTL_RETRY_NS);
		for (; r; r = r->next)
			at = r->deadline_ns < at ? r->deadline_ns : at;
		if (at < now_ns + CTL_SOON_NS)
			at = now_ns + CTL_SOON_NS;
		next = at < next ? at : next;
	}
	return next;
}

/*
 * Arms the timer for the next time at which a waiting credit request or a full ctl_done ring must
 * be checked.
 */
static void ctl_timer_arm(struct ctl *ctl, uint64_t now_ns)
{
	uint64_t next = ctl_timer_next_ns(ctl, now_ns);

	if (next == UINT64_MAX || (ctl->timer_ns && ctl->timer_ns <= next))
		return;
	/*
	 * The delay is rounded up, because a timer that fires too early would have to be armed a
	 * second time.
	 */
	next = next > now_ns ? next - now_ns : 0;
	ctl->timer_ns = now_ns + next;
	if (ctl->timer && net_timer_set(ctl->timer, next / 1000 + 1) < 0)
		ctl->timer_ns = 0;
}

unsigned ctl_turn(struct control *control)
{
	struct ctl *ctl = control->ctl;
	uint64_t now_ns = net_now();
	unsigned work = 0;

	ctl->stalled = false;
	for (unsigned i = 0; i < ctl->channels_end; i++) {
		int n = ctl->channel[i] ? ctl_channel_turn(ctl, ctl->channel[i], now_ns) : 0;

		if (n < 0) {
			control->counter[COUNTER_rings_broken]++;
			client_channel_broken(control, i);
			n = 1;
		}
		work += (unsigned)n;
	}
	for (unsigned i = 0; i < control->rails; i++) {
		if (ctl->evict->rail[i].retry) {
			ctl_pass(ctl, i, now_ns);
			work++;
		}
		/* one fence for all slots that came back in this turn, and between turns */
		pool_rest(control->rail[i].pool);
	}
	ctl_timer_arm(ctl, now_ns);
	return work;
}

void ctl_flush(struct control *control)
{
	struct ctl *ctl = control->ctl;

	/*
	 * The answers are in the rings before the flags are read. The fence pairs with that of the
	 * client, which raises client_waits and then looks at its ring once more.
	 */
	if (ctl->dirties)
		shm_fence_sleep();
	for (unsigned i = 0; i < ctl->dirties; i++) {
		struct ctl_channel *c = ctl->channel[ctl->dirty[i]];

		if (!c || !c->dirty)
			continue;
		c->dirty = false;
		if (shm_load(&c->header->client_waits) && shm_exchange(&c->header->client_waits, 0))
			client_wake(c->wake);
	}
	ctl->dirties = 0;
}

uint64_t ctl_stored_ns(const struct control *control)
{
	return control->ctl->stored_ns;
}

/* ---- channels come and go -------------------------------------------------------------------- */

void ctl_channel_open(struct control *control, struct ctl_channel *channel)
{
	struct ctl *ctl = control->ctl;

	channel->generation = ++ctl->generation;
	ctl->channel[channel->id] = channel;
	if (channel->id >= ctl->channels_end)
		ctl->channels_end = channel->id + 1;
}

void ctl_channel_close(struct control *control, struct ctl_channel *channel)
{
	struct ctl *ctl = control->ctl;
	uint64_t copying;

	if (ctl->channel[channel->id] != channel)
		return;
	ctl_requests_drop(ctl, channel);
	shm_store(&channel->header->stopped, 1);
	shm_fence_store_load(); /* pairs with the fence of slot_enter() in client/write/set.c */
	copying = shm_load_acquire64(&channel->header->copying);
	for (uint32_t i = 0; i < channel->credits.room; i++) {
		const struct credit *credit = &channel->credits.slot[i];

		if (!credit->length)
			continue;
		if (slot_name(credit->place, credit->generation) == copying)
			channel->kept = *credit;
		else
			ctl_give_back(ctl, credit);
	}
	credits_free(&channel->credits);
	ctl->channel[channel->id] = NULL;
	while (ctl->channels_end && !ctl->channel[ctl->channels_end - 1])
		ctl->channels_end--;
	for (unsigned i = 0; i < ctl->dirties; i++)
		if (ctl->dirty[i] == channel->id)
			ctl->dirty[i--] = ctl->dirty[--ctl->dirties];
}

bool ctl_channel_release(struct control *control, struct ctl_channel *channel, bool gone)
{
	struct credit *kept = &channel->kept;

	if (!kept->length)
		return true;
	/*
	 * This acquire load pairs with slot_leave() in client/write/set.c: the client has finished
	 * its stores into the slot.
	 */
	if (!gone && shm_load_acquire64(&channel->header->copying) ==
			     slot_name(kept->place, kept->generation))
		return false;
	ctl_give_back(control->ctl, kept);
	kept->length = 0;
	return true;
}

/* ---- open and close -------------------------------------------------------------------------- */

void ctl_counts(const struct control *control, struct ctl_counts *ret)
{
	const struct ctl *ctl = control->ctl;

	*ret = (struct ctl_counts){.credits = ctl->evict->credits};
	for (unsigned i = 0; i < control->rails; i++)
		for (const struct ctl_request *r = ctl->rail[i].first; r; r = r->next)
			ret->waiting++;
}

static_assert(CTL_NO_ANSWER == PAGES_NO_ANSWER, "a result of ctl_later()");
static_assert(CTL_DEADLINE_NS == PAGES_WAIT_NS_MAX, "one limit for all that waits");

int ctl_open(struct control *control)
{
	struct ctl *ctl = calloc(1, sizeof(*ctl));

	if (!ctl)
		return -ENOMEM;
	ctl->control = control;
	ctl->answer_free = CTL_NO_ANSWER;
	for (unsigned i = 0; i < RAILS_MAX; i++)
		ctl->rail[i].last = &ctl->rail[i].first;
	ctl->timer = net_timer_new(control->base, false, ctl_on_timer, ctl);
	if (!ctl->timer || evict_open(control) < 0) {
		net_timer_free(ctl->timer);
		free(ctl);
		return -ENOMEM;
	}
	ctl->evict = control->evict;
	control->ctl = ctl;
	return 0;
}

/*
 * Closes ctl.c but keeps its memory, because updates_answer() may still call back. ctl_free()
 * frees the memory.
 */
void ctl_close(struct control *control)
{
	struct ctl *ctl = control->ctl;

	if (!ctl)
		return;
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (ctl->channel[i])
			ctl_channel_close(control, ctl->channel[i]);
	net_timer_free(ctl->timer);
	ctl->timer = NULL;
}

void ctl_free(struct ctl *ctl)
{
	if (!ctl)
		return;
	evict_close(ctl->control);
	free(ctl->answer);
	free(ctl);
}
