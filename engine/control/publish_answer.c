/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers to ops of ctl rings: at once, or later, when the owners of a key have answered. Runs on
 * the control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/publish.h"

void publish_put(struct publish *p, struct publish_channel *c, const struct ctl_done *done)
{
	memcpy(ring_slot_new(&c->done, 0), done, sizeof(*done));
	ring_publish(&c->done, 1);
	c->owed--;
	if (!c->dirty) {
		c->dirty = true;
		p->dirty[p->dirties++] = c->id;
	}
}

void publish_answer(struct publish *p, struct publish_channel *c, const struct ctl_op *op,
	const struct ctl_done *done)
{
	struct ctl_done whole = *done;

	whole.cookie = op->cookie;
	whole.kind = op->kind;
	publish_put(p, c, &whole);
}

uint32_t publish_later(struct publish *p, const struct publish_channel *c, const struct ctl_op *op)
{
	struct publish_answer *a;
	uint32_t at;

	if (p->answer_free == PUBLISH_NO_ANSWER) {
		uint32_t more = p->answers ? p->answers * 2 : 1024;

		a = realloc(p->answer, more * sizeof(*a));
		if (!a)
			return PUBLISH_NO_ANSWER;
		p->answer = a;
		for (uint32_t i = p->answers; i < more; i++)
			a[i] = (struct publish_answer){
				.next_free = i + 1 < more ? i + 1 : PUBLISH_NO_ANSWER};
		p->answer_free = p->answers;
		p->answers = more;
	}
	at = p->answer_free;
	a = &p->answer[at];
	p->answer_free = a->next_free;
	p->answers_used++;
	*a = (struct publish_answer){.cookie = op->cookie,
		.channel = c->id,
		.generation = c->generation,
		.kind = op->kind,
		.used = true};
	return at;
}

/*
 * The channel may have closed meanwhile and its id may belong to another channel, so the generation
 * is compared.
 */
void publish_later_answer(struct publish *p, uint32_t later, const struct ctl_done *done)
{
	struct publish_answer *a = later < p->answers ? &p->answer[later] : NULL;
	struct publish_channel *c;

	if (!a || !a->used) {
		log_error("publish: request %u was answered twice; the second answer is ignored",
			later);
		return;
	}
	c = p->channel[a->channel];
	if (c && c->generation == a->generation) {
		struct ctl_done whole = *done;

		whole.cookie = a->cookie;
		whole.kind = a->kind;
		publish_put(p, c, &whole);
	}
	a->used = false;
	a->next_free = p->answer_free;
	p->answer_free = later;
	p->answers_used--;
}
