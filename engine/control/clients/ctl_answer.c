/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers to ops of ctl rings: at once, or later, when the owners of a key have answered. Runs on
 * the control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/clients/ctl.h"

void ctl_put(struct ctl *ctl, struct ctl_channel *c, const struct ctl_done *done, uint32_t told)
{
	memcpy(ring_slot_new(&c->done, 0), done, sizeof(*done));
	ring_publish(&c->done, 1);
	c->owed -= told;
	if (!c->dirty) {
		c->dirty = true;
		ctl->dirty[ctl->dirties++] = c->id;
	}
}

void ctl_answer(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_done *done)
{
	struct ctl_done whole = *done;

	whole.cookie = op->cookie;
	whole.kind = op->kind;
	ctl_put(ctl, c, &whole, 1);
}

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
static struct ctl_answer *later_find(struct ctl *ctl, uint32_t later, uint32_t *ret_page)
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
static struct ctl_channel *later_channel(struct ctl *ctl, const struct ctl_answer *a)
{
	struct ctl_channel *c = ctl->channel[a->channel];

	return c && c->generation == a->generation ? c : NULL;
}

static void later_free(struct ctl *ctl, struct ctl_answer *a)
{
	a->waiting = 0;
	a->next_free = ctl->answer_free;
	ctl->answer_free = (uint32_t)(a - ctl->answer);
	ctl->answers_used--;
}

void ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done)
{
	uint32_t page;
	struct ctl_answer *a = later_find(ctl, later, &page);
	struct ctl_channel *c = a ? later_channel(ctl, a) : NULL;
	struct ctl_done whole = *done;

	if (!a)
		return;
	whole.cookie = a->cookie;
	whole.kind = a->kind;
	if (c)
		ctl_put(ctl, c, &whole, 1);
	later_free(ctl, a);
}

void ctl_later_end(struct ctl *ctl, uint32_t later, enum op_status status)
{
	uint32_t page;
	struct ctl_answer *a = later_find(ctl, later, &page);
	struct ctl_channel *c;

	if (!a)
		return;
	a->waiting &= ~page;
	a->ended[status] |= page;
	if (a->waiting)
		return;
	c = later_channel(ctl, a);
	for (unsigned k = 0; c && k < OP_STATUS_COUNT; k++) {
		const struct ctl_done done = {
			.cookie = a->cookie, .kind = a->kind, .status = k, .pages = a->ended[k]};

		if (done.pages)
			ctl_put(ctl, c, &done, (uint32_t)__builtin_popcount(done.pages));
	}
	later_free(ctl, a);
}
