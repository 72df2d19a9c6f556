/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves CTL_PUBLISH: makes pages of credits, and tells the directory of them. Nothing in an op is
 * trusted: each page is copied once, and its place is only used if the channel has the credit for
 * it. One page's failure affects no other page. Runs on the control plane's thread only.
 */
#include <string.h>

#include "engine/control/clients/ctl.h"
#include "engine/control/directory/directory.h"
#include "engine/control/pages/tier.h"

/* pages between the one that is served and those whose cache lines are prefetched */
#define PREFETCH_FAR 8u
#define PREFETCH_NEAR 4u

/* The directory_done callback of a page. */
static void on_done(void *context, uint64_t cookie, enum op_status status)
{
	ctl_later_end(context, (uint32_t)cookie, status);
}

/* A page of a CTL_PUBLISH, copied from the ring. */
struct page_publish {
	const struct ctl_page *at;
	uint32_t length;
	uint32_t later; /* its number of ctl_later() */
	uint64_t deadline_ns;
};

static void tell_directory(
	struct ctl *ctl, const struct page_publish *page, uint32_t place, uint32_t generation)
{
	directory_publish(ctl->control, &page->at->key,
		&(struct location){.place = place, .generation = generation},
		&(struct waiter){.deadline_ns = page->deadline_ns,
			.done = on_done,
			.context = ctl,
			.cookie = page->later});
}

/*
 * Serves a publish of a key that this host already has with this length; the new credit is not
 * needed. The existing entry is published once more, so that the answer means the same as every
 * answer: all owners have the entry.
 */
static void serve_already(
	struct ctl *ctl, const struct page_publish *page, const struct index_entry *old)
{
	ctl->control->counter[COUNTER_pages_already]++;
	pool_touch(ctl->control->rail[place_rail(old->place)].pool, old->place);
	tell_directory(ctl, page, old->place, old->generation);
}

/*
 * Makes a page of a credit, which the caller has taken from its channel. False: it cannot, and
 * *ret_status says why.
 */
static bool page_make(struct ctl *ctl, const struct page_publish *page, bool has_crc,
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
	if (has_crc)
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
	ctl->credits--;
	if (page->length != credit->length) {
		ctl_hold(ctl, place_rail(at->place), credit->length, -1);
		ctl_hold(ctl, place_rail(at->place), page->length, 1);
	}
	control->counter[COUNTER_pages_published]++;
	return true;
}

static void serve_page(
	struct ctl *ctl, struct ctl_channel *c, const struct page_publish *page, bool has_crc)
{
	struct control *control = ctl->control;
	const struct ctl_page *at = page->at;
	const struct index_entry *old;
	enum op_status status;
	struct credit credit;

	if (!credits_take(&c->credits, at->place, at->generation, &credit)) {
		control->counter[COUNTER_ops_invalid]++;
		ctl_later_end(ctl, page->later, OP_INVALID);
		return;
	}
	old = index_find(control->index, &at->key);
	if (page_key_none(&at->key) || page->length == 0 || page->length > credit.length) {
		control->counter[COUNTER_ops_invalid]++;
		ctl_give_back(ctl, &credit);
		ctl_later_end(ctl, page->later, OP_INVALID);
		return;
	}
	if (old && old->length == page->length) {
		ctl_give_back(ctl, &credit);
		serve_already(ctl, page, old);
		return;
	}
	if (old)
		ctl_take_away(ctl, &at->key, old->place, old->generation);
	if (!page_make(ctl, page, has_crc, &credit, &status)) {
		ctl_give_back(ctl, &credit);
		ctl_later_end(ctl, page->later, status);
		return;
	}
	tier_replaced(control, &at->key, page->length);
	tier_published(control);
	if (ctl->rail[place_rail(at->place)].first)
		/*
		 * makes ctl_turn() look at the waiting credit requests: the new page can be
		 * evicted for them
		 */
		ctl->rail[place_rail(at->place)].retry = true;
	tell_directory(ctl, page, at->place, at->generation);
}

/*
 * Prefetches what the pages of a publish from `i` on will read: index, directory and page head of a
 * page are in cache lines that nothing else has read lately.
 */
static void prefetch_far(const struct control *control, const struct ctl_page *page, unsigned i)
{
	index_prefetch_chain(control->index, &page[i].key);
	shard_prefetch(&control->shard, &page[i].key);
	if (place_rail(page[i].place) < control->rails)
		pool_prefetch(control->rail[place_rail(page[i].place)].pool, page[i].place);
}

/* Ends a publish for which there is no memory: its credits go back. */
static void ctl_refuse(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
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
	ctl_put(ctl, c, &done, op->count);
}

/* `page`: all pages of the op. */
static void serve_all(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_page *page, uint64_t now_ns)
{
	const struct control *control = ctl->control;
	uint32_t later = ctl_later(ctl, c, op, op->count);

	if (later == CTL_NO_ANSWER) {
		ctl_refuse(ctl, c, op, page);
		return;
	}
	for (unsigned i = 0; i < op->count && i < PREFETCH_FAR; i++)
		prefetch_far(control, page, i);
	for (unsigned i = 0; i < op->count && i < PREFETCH_NEAR; i++)
		index_prefetch_entry(control->index, &page[i].key);
	for (unsigned i = 0; i < op->count; i++) {
		if (i + PREFETCH_FAR < op->count)
			prefetch_far(control, page, i + PREFETCH_FAR);
		if (i + PREFETCH_NEAR < op->count)
			index_prefetch_entry(control->index, &page[i + PREFETCH_NEAR].key);
		serve_page(ctl, c,
			&(struct page_publish){.at = &page[i],
				.length = op->length,
				.later = later + i,
				.deadline_ns = ctl_deadline_ns(op, now_ns)},
			op->has_crc == 1);
	}
}

/* Copies the pages of a CTL_PUBLISH, which is the ring's `at`-th entry. */
static void pages_copy(const struct ring_consumer *ctl, unsigned at, const struct ctl_op *op,
	struct ctl_page ret_page[CTL_PAGES_MAX])
{
	ret_page[0] = (struct ctl_page){
		.place = op->place, .generation = op->generation, .crc = op->crc, .key = op->key};
	for (uint32_t i = 1; i < op->count; i++) {
		const struct ctl_page *line = ring_slot_old(ctl, at + ctl_page_line(i));

		memcpy(&ret_page[i], &line[ctl_page_half(i)], sizeof(ret_page[i]));
	}
}

void ctl_publish(struct ctl *ctl, struct ctl_channel *c, unsigned at, const struct ctl_op *op,
	uint64_t now_ns)
{
	struct ctl_page page[CTL_PAGES_MAX];

	ctl->stored_ns = now_ns;
	if (op->count < 1 || op->count > CTL_PAGES_MAX) {
		ctl->control->counter[COUNTER_ops_invalid]++;
		ctl_answer(ctl, c, op, &(struct ctl_done){.status = OP_INVALID, .pages = 1});
		return;
	}
	pages_copy(&c->ops, at, op, page);
	serve_all(ctl, c, op, page, now_ns);
}
