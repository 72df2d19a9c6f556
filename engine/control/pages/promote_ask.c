/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to other engines for pages on their disks: records, messages and answers. The control
 * plane's thread only.
 */
#include "engine/control/pages/tier_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "engine/abi/message.pb-c.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"

#define ASK_CHAINS 1024u /* of the hash table; a power of two */

/* A request that waits for its answer. */
struct ask {
	TAILQ_ENTRY(ask) next;
	LIST_ENTRY(ask) same;
	const struct rpc_link *link;
	uint64_t id; /* PromotePage.id; of no other request of this engine */
	uint64_t deadline_ns;
	uint32_t later; /* number of ctl_later() */
};

struct promote {
	struct control *control;
	TAILQ_HEAD(, ask) waiting;
	LIST_HEAD(, ask) ask_of[ASK_CHAINS]; /* by id */
	unsigned count;                      /* of `waiting` */
	uint64_t id;                         /* of the last request */
	struct net_timer *tick, *send;
	bool ticking;
	/* the message that is being filled; `to` NULL: it is empty */
	struct rpc_link *to;
	unsigned pages;
	Pc__PromotePage page[MESSAGE_PAGES_MAX];
	Pc__PromotePage *page_at[MESSAGE_PAGES_MAX];
};

/* ---- requests that wait ---------------------------------------------------------------------- */

static struct ask *ask_find(const struct promote *p, uint64_t id)
{
	struct ask *ask;

	LIST_FOREACH (ask, &p->ask_of[id % ASK_CHAINS], same)
		if (ask->id == id)
			return ask;
	return NULL;
}

static void ask_free(struct promote *p, struct ask *ask)
{
	LIST_REMOVE(ask, same);
	TAILQ_REMOVE(&p->waiting, ask, next);
	p->count--;
	free(ask);
}

static void ask_end(struct promote *p, struct ask *ask, const struct ctl_done *done)
{
	if (done->status != OP_HIT)
		p->control->counter[COUNTER_disk_asks_failed]++;
	p->control->pages_events->later_answer(p->control->ctl, ask->later, done);
	ask_free(p, ask);
}

static void asks_tick_arm(struct promote *p)
{
	if (!p->ticking && p->count)
		p->ticking = net_timer_set(p->tick, PROMOTE_TICK_US) == 0;
}

static void asks_tick(void *context)
{
	struct promote *p = context;
	uint64_t now_ns = net_now();
	struct ask *ask, *next;

	p->ticking = false;
	for (ask = TAILQ_FIRST(&p->waiting); ask; ask = next) {
		next = TAILQ_NEXT(ask, next);
		if (now_ns >= ask->deadline_ns)
			ask_end(p, ask, &(struct ctl_done){.status = OP_TIMEOUT});
	}
	asks_tick_arm(p);
}

/* NULL: too many wait, or no memory. */
static struct ask *ask_new(struct promote *p)
{
	struct ask *ask = p->count < PROMOTE_ASKS_MAX ? calloc(1, sizeof(*ask)) : NULL;

	if (!ask)
		return NULL;
	ask->id = ++p->id;
	LIST_INSERT_HEAD(&p->ask_of[ask->id % ASK_CHAINS], ask, same);
	TAILQ_INSERT_TAIL(&p->waiting, ask, next);
	p->count++;
	return ask;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void asks_send(struct promote *p)
{
	Pc__Promote body = PC__PROMOTE__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct rpc_link *to = p->to;
	unsigned pages = p->pages;

	p->to = NULL;
	p->pages = 0;
	if (!to)
		return;
	body.n_pages = pages;
	body.pages = p->page_at;
	message.body_case = PC__MESSAGE__BODY_PROMOTE;
	message.promote = &body;
	if (rpc_send(to, &message))
		return;
	for (unsigned i = 0; i < pages; i++) {
		struct ask *ask = ask_find(p, p->page[i].id);

		if (ask)
			ask_end(p, ask, &(struct ctl_done){.status = OP_PEER_DOWN});
	}
}

static void asks_send_due(void *context)
{
	asks_send(context);
}

static Pc__PromotePage *asks_page_add(
	struct promote *p, struct rpc_link *to, const struct page_key *key)
{
	Pc__PromotePage *page;

	if (p->to != to || p->pages == MESSAGE_PAGES_MAX)
		asks_send(p);
	p->to = to;
	net_defer(p->send);
	page = &p->page[p->pages++];
	*page = (Pc__PromotePage)PC__PROMOTE_PAGE__INIT;
	page->key0 = key->word[0];
	page->key1 = key->word[1];
	return page;
}

/* The link to the holder; NULL: it is no member. */
static struct rpc_link *holder_link(struct control *control, uint32_t ref)
{
	return ref ? member_link(control, ref) : NULL;
}

static void ask_refuse(struct control *control, struct ctl_channel *c, const struct ctl_op *op)
{
	control->counter[COUNTER_disk_asks_failed]++;
	control->pages_events->answer(
		control->ctl, c, op, &(struct ctl_done){.status = OP_PEER_DOWN});
}

static void ask_holder(struct promote *p, struct ctl_channel *c, const struct ctl_op *op,
	struct rpc_link *link, uint64_t now_ns)
{
	struct control *control = p->control;
	uint64_t most_ns = now_ns + PAGES_WAIT_NS_MAX;
	struct ask *ask = op->length && op->length <= PAGE_BYTES_MAX ? ask_new(p) : NULL;
	Pc__PromotePage *page;

	if (!ask) {
		ask_refuse(control, c, op);
		return;
	}
	ask->later = control->pages_events->later(control->ctl, c, op, 1);
	if (ask->later == PAGES_NO_ANSWER) {
		ask_free(p, ask);
		ask_refuse(control, c, op);
		return;
	}
	ask->link = link;
	ask->deadline_ns = op->deadline_ns < most_ns ? op->deadline_ns : most_ns;
	page = asks_page_add(p, link, &op->key);
	page->id = ask->id;
	page->bytes = op->length;
	page->room = op->count == PROMOTE_ROOM;
	page->timeout_ms =
		ask->deadline_ns > now_ns ? (uint32_t)((ask->deadline_ns - now_ns) / 1000000) : 0;
	asks_tick_arm(p);
}

/* Tells where this host has the page. No page, counter or order of eviction changes. */
static void page_look_serve(struct control *control, struct ctl_channel *c, const struct ctl_op *op)
{
	const struct index_entry *e = index_find(control->index, &op->key);
	struct ctl_done done = {.status = OP_MISS};
	struct tier_found found;

	tier_look(control->tier, &op->key, &found);
	if (e) {
		done = page_here(e);
		done.why = (uint8_t)pool_why(
			control->rail[place_rail(e->place)].pool, e->place, e->generation);
	} else if (found.written || found.writing) {
		done = (struct ctl_done){.status = OP_HIT, .length = found.length};
	}
	control->pages_events->answer(control->ctl, c, op, &done);
}

void promote_serve(
	struct control *control, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns)
{
	struct promote *p = control->promote;
	struct rpc_link *link = NULL;

	if (op->kind == CTL_PROMOTE && op->count >= PROMOTE_KINDS) {
		control->counter[COUNTER_ops_invalid]++;
		control->pages_events->answer(
			control->ctl, c, op, &(struct ctl_done){.status = OP_INVALID});
		return;
	}
	if (op->kind == CTL_PROMOTE && op->count == PROMOTE_LOOK) {
		page_look_serve(control, c, op);
		return;
	}
	if (op->kind == CTL_PROMOTE && (op->ref == 0 || op->ref == control->ref)) {
		tier_serve(control, c, op, now_ns);
		return;
	}
	if (op->key.word[0] | op->key.word[1])
		link = holder_link(control, op->ref);
	if (op->kind == CTL_WANT) {
		if (op->ref == control->ref)
			tier_hint(control, &op->key);
		else if (link)
			(void)asks_page_add(p, link, &op->key);
		return;
	}
	control->counter[COUNTER_disk_asks]++;
	if (link)
		ask_holder(p, c, op, link, now_ns);
	else
		ask_refuse(control, c, op);
}

void promote_link_down(struct control *control, const struct rpc_link *link)
{
	struct promote *p = control->promote;
	struct ask *ask, *next;

	if (!p)
		return;
	if (p->to == link) {
		p->to = NULL;
		p->pages = 0;
	}
	for (ask = TAILQ_FIRST(&p->waiting); ask; ask = next) {
		next = TAILQ_NEXT(ask, next);
		if (ask->link == link)
			ask_end(p, ask, &(struct ctl_done){.status = OP_PEER_DOWN});
	}
}

static enum op_status promoted_status(uint32_t result)
{
	switch (result) {
	case PC__PROMOTE_RESULT__PROMOTE_HERE: return OP_HIT;
	case PC__PROMOTE_RESULT__PROMOTE_GONE: return OP_MISS;
	case PC__PROMOTE_RESULT__PROMOTE_OTHER_LENGTH: return OP_INVALID;
	default: return OP_TIMEOUT;
	}
}

bool promote_serve_promoted(
	struct control *control, struct rpc_link *link, const Pc__Promoted *promoted)
{
	struct promote *p = control->promote;
	uint32_t rails = link->member->record.rails;

	if (promoted->n_pages == 0 || promoted->n_pages > MESSAGE_PAGES_MAX)
		return false;
	for (size_t i = 0; i < promoted->n_pages; i++) {
		const Pc__PromotedPage *page = promoted->pages[i];

		if (page->result == PC__PROMOTE_RESULT__PROMOTE_HERE &&
			(place_rail(page->place) >= rails || page->generation == 0))
			return false;
	}
	for (size_t i = 0; i < promoted->n_pages; i++) {
		const Pc__PromotedPage *page = promoted->pages[i];
		struct ask *ask = ask_find(p, page->id);
		struct ctl_done done = {.status = promoted_status(page->result)};

		if (!ask || ask->link != link)
			continue; /* it is over: the answer is late */
		if (done.status == OP_HIT) {
			done.place = page->place;
			done.generation = page->generation;
		} else if (done.status == OP_INVALID && page->bytes <= PAGE_BYTES_MAX) {
			done.length = page->bytes;
		}
		ask_end(p, ask, &done);
	}
	return true;
}

unsigned promote_waiting(const struct control *control)
{
	return control->promote->count;
}

/* ---- open and close -------------------------------------------------------------------------- */

int promote_open(struct control *control)
{
	struct promote *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->control = control;
	TAILQ_INIT(&p->waiting);
	for (unsigned i = 0; i < MESSAGE_PAGES_MAX; i++)
		p->page_at[i] = &p->page[i];
	control->promote = p;
	p->tick = net_timer_new(control->base, false, asks_tick, p);
	p->send = net_timer_new(control->base, false, asks_send_due, p);
	if (p->tick && p->send)
		return 0;
	promote_close(control);
	return -ENOMEM;
}

void promote_close(struct control *control)
{
	struct promote *p = control->promote;
	struct ask *ask;

	if (!p)
		return;
	control->promote = NULL;
	net_timer_free(p->tick);
	net_timer_free(p->send);
	while ((ask = TAILQ_FIRST(&p->waiting)))
		ask_free(p, ask);
	free(p);
}
