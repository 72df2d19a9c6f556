/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of other engines for pages on this host's disk (Promote of message.proto). A page is
 * promoted as for a client of this host; the answer names its place, from which the reader's NIC
 * READs it. It stays pinned until the reader's engine reports that it was read, or until the
 * deadline of the request, at most TIER_PIN_STEPS * TIER_PIN_NS. Control plane's thread only.
 */
#include <stdlib.h>

#include "engine/abi/message.pb-c.h"
#include "engine/control/clients/clients.h"
#include "engine/control/members/member.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/tier.h"
#include "numa/clock.h"

/* One message for several answers. */
struct tier_reply {
	struct rpc_link *link; /* NULL: the message is empty */
	unsigned pages;
	Pc__PromotedPage page[MESSAGE_PAGES_MAX];
	Pc__PromotedPage *page_at[MESSAGE_PAGES_MAX];
};

static void send_reply(struct rpc_link *link, Pc__PromotedPage **pages, size_t count)
{
	Pc__Promoted body = PC__PROMOTED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.n_pages = count;
	body.pages = pages;
	message.body_case = PC__MESSAGE__BODY_PROMOTED;
	message.promoted = &body;
	/*
	 * Not rpc_reply(): that may close the link, and callers keep pointers to it. What is not
	 * sent ends at its deadline.
	 */
	(void)rpc_send(link, &message);
}

static void page_fill(Pc__PromotedPage *page, uint64_t id, const struct ctl_done *done)
{
	*page = (Pc__PromotedPage)PC__PROMOTED_PAGE__INIT;
	page->id = id;
	switch (done->status) {
	case OP_HIT:
		page->result = PC__PROMOTE_RESULT__PROMOTE_HERE;
		page->place = done->place;
		page->generation = done->generation;
		break;
	case OP_MISS: page->result = PC__PROMOTE_RESULT__PROMOTE_GONE; break;
	case OP_INVALID: page->result = PC__PROMOTE_RESULT__PROMOTE_OTHER_LENGTH; break;
	default: page->result = PC__PROMOTE_RESULT__PROMOTE_LATE; break;
	}
}

static void reply_one(struct rpc_link *link, uint64_t id, const struct ctl_done *done)
{
	Pc__PromotedPage page, *at = &page;

	page_fill(&page, id, done);
	send_reply(link, &at, 1);
}

void tier_replies_send(struct tier *t)
{
	struct tier_reply *reply = t->reply;
	struct rpc_link *link = reply ? reply->link : NULL;

	if (!link)
		return;
	reply->link = NULL;
	send_reply(link, reply->page_at, reply->pages);
	reply->pages = 0;
}

static struct tier_reply *reply_new(void)
{
	struct tier_reply *reply = calloc(1, sizeof(*reply));

	for (unsigned i = 0; reply && i < MESSAGE_PAGES_MAX; i++)
		reply->page_at[i] = &reply->page[i];
	return reply;
}

/* Collects the answer; without memory for that it is sent alone. */
static void reply_add(
	struct tier *t, struct rpc_link *link, uint64_t id, const struct ctl_done *done)
{
	struct tier_reply *reply = t->reply;

	if (!reply)
		reply = t->reply = reply_new();
	if (!reply) {
		reply_one(link, id, done);
		return;
	}
	if (reply->link != link || reply->pages == MESSAGE_PAGES_MAX)
		tier_replies_send(t);
	reply->link = link;
	page_fill(&reply->page[reply->pages++], id, done);
}

void tier_reply(struct tier *t, const struct tier_waiter *waiter, const struct ctl_done *done)
{
	t->remote--;
	if (done->status == OP_HIT)
		t->control->counter[COUNTER_disk_hits_remote]++;
	if (waiter->link)
		reply_add(t, waiter->link, waiter->id, done);
}

void tier_replies_close(struct tier *t)
{
	free(t->reply);
	t->reply = NULL;
}

static void link_forget(struct tier_promotes *list, const struct rpc_link *link)
{
	struct tier_promote *promote;
	struct tier_waiter *waiter;

	TAILQ_FOREACH (promote, list, next)
		STAILQ_FOREACH (waiter, &promote->waiters, next)
			if (waiter->link == link)
				waiter->link = NULL;
}

void tier_link_down(struct control *control, const struct rpc_link *link)
{
	struct tier *t = control->tier;

	if (!t)
		return;
	if (t->reply && t->reply->link == link) {
		t->reply->link = NULL;
		t->reply->pages = 0;
	}
	link_forget(&t->writing, link);
	link_forget(&t->capped, link);
	link_forget(&t->wanted, link);
	link_forget(&t->reading, link);
}

/* ---- Promote --------------------------------------------------------------------------------- */

static bool promote_fits(const Pc__Promote *promote)
{
	if (promote->n_pages == 0 || promote->n_pages > MESSAGE_PAGES_MAX)
		return false;
	for (size_t i = 0; i < promote->n_pages; i++) {
		const Pc__PromotePage *page = promote->pages[i];

		if ((page->key0 | page->key1) == 0 || page->bytes > PAGE_BYTES_MAX ||
			(page->id && page->bytes == 0))
			return false;
	}
	return true;
}

static struct tier_waiter *waiter_new(
	struct tier *t, struct rpc_link *link, const Pc__PromotePage *page)
{
	uint64_t ns = (uint64_t)page->timeout_ms * 1000000;
	struct tier_waiter *waiter =
		t->remote < TIER_REMOTE_MAX ? calloc(1, sizeof(*waiter)) : NULL;

	if (!waiter)
		return NULL;
	waiter->remote = true;
	waiter->link = link;
	waiter->id = page->id;
	waiter->deadline_ns = clock_now_ns() + (ns < CTL_DEADLINE_NS ? ns : CTL_DEADLINE_NS);
	t->remote++;
	return waiter;
}

/* Serves one page. False, and the answer: it can be given at once. */
static bool serve_page(struct control *control, struct rpc_link *link, const Pc__PromotePage *page,
	struct ctl_done *ret_done)
{
	const struct page_key key = {.word = {page->key0, page->key1}};
	struct tier *t = control->tier;
	struct tier_waiter *waiter;
	struct tier_found found;

	tier_look(t, &key, &found);
	if (tier_known(control, &key, page->bytes, &found, ret_done)) {
		/* a disk that is not open yet may have the page, or one whose pages wait */
		if (ret_done->status == OP_MISS && t &&
			(t->state == TIER_OPENING || control->door_shut))
			ret_done->status = OP_TIMEOUT;
		return false;
	}
	waiter = waiter_new(t, link, page);
	if (!waiter) {
		control->counter[COUNTER_disk_refused]++;
		*ret_done = (struct ctl_done){.status = OP_TIMEOUT};
		return false;
	}
	tier_bring(t, &key, &found, waiter);
	return true;
}

bool tier_serve_promote(struct control *control, struct rpc_link *link, const Pc__Promote *promote)
{
	struct tier *t = control->tier;

	if (!promote_fits(promote))
		return false;
	for (size_t i = 0; i < promote->n_pages; i++) {
		const Pc__PromotePage *page = promote->pages[i];
		const struct page_key key = {.word = {page->key0, page->key1}};
		struct ctl_done done;

		if (page->id == 0)
			tier_hint(control, &key);
		else if (serve_page(control, link, page, &done))
			continue;
		else if (t)
			reply_add(t, link, page->id, &done);
		else
			reply_one(link, page->id, &done);
	}
	if (t)
		tier_replies_send(t);
	return true;
}
