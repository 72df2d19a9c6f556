/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drain: this host is to be stopped, and its pages go to others. It offers them, the most recently
 * used first, and each member copies what it is offered into room that is free there
 * (copies.c): no host evicts a page for it. Both ends are here. Control plane's thread only.
 *
 *   host that is drained                 member
 *   Offer without pages            ->    how much room is free?
 *                                  <-    Offered: room
 *   Offer: pages                   ->    copies each of them
 *                                  <-    Offered: those that it does not have, room
 *
 * A batch goes to the member with the most room left of those that have fewer than two.
 */
#include "engine/control/copies/copies_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "config/log.h"
#include "engine/abi/message.pb-c.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

#define DRAIN_PAGES_MAX (1u << 18) /* pages that are offered, at most */
#define DRAIN_PEERS_MAX 64u
#define DRAIN_TRIES 3u               /* members that one page is offered to, at most */
#define DRAIN_OFFERS 2u              /* that one member has at a time */
#define OFFER_BYTES (1u << 20)       /* of their bytes; one page may be longer */
#define OFFERS_MAX 256u              /* of others that this engine serves at a time */
#define DRAIN_TICK_US 20000          /* between two looks at members and deadlines */
#define DRAIN_LATE_NS 15000000000ull /* an Offer without an answer for this long is given up */

/* ---- the member's end ------------------------------------------------------------------------ */

/* An Offer of another host of which copies are made. */
struct copy_offer {
	LIST_ENTRY(copy_offer) next;
	struct rpc_link *link; /* NULL: it has closed */
	uint64_t serial;
	uint32_t left; /* copies that have not ended; 1 more while the Offer is served */
	uint32_t missing;
	uint32_t page[OFFER_PAGES_MAX]; /* their numbers */
};

struct offers {
	LIST_HEAD(, copy_offer) open;
	unsigned count;
};

uint64_t copies_room(const struct control *control)
{
	uint64_t free = 0, taken = copies_taken(control);

	if (control->drained)
		return 0; /* it is to be stopped, too */

	for (unsigned i = 0; i < control->rails; i++) {
		const struct pool *pool = control->rail[i].pool;
		uint64_t all = control->status->pool_bytes[i] / 16 * 15;
		uint64_t used = pool_used_bytes(pool);

		free += all > used ? all - used : 0;
	}
	return free > taken ? free - taken : 0;
}

static void offered_send(struct control *control, struct rpc_link *link, uint64_t serial,
	const uint32_t *missing, size_t count)
{
	Pc__Offered body = PC__OFFERED__INIT;
	Pc__Message message = message_of(PC__MESSAGE__BODY_OFFERED, &body);

	body.serial = serial;
	body.room = copies_room(control);
	body.missing = (uint32_t *)(uintptr_t)missing;
	body.n_missing = count;
	(void)rpc_send(link, &message); /* what is not sent is given up by the other end */
}

static void offer_settle(struct control *control, struct copy_offer *offer)
{
	if (--offer->left)
		return;
	if (offer->link)
		offered_send(control, offer->link, offer->serial, offer->page, offer->missing);
	LIST_REMOVE(offer, next);
	control->offers->count--;
	free(offer);
}

void copies_link_down(struct control *control, const struct rpc_link *link)
{
	struct copy_offer *offer;

	if (!control->offers)
		return;
	LIST_FOREACH (offer, &control->offers->open, next)
		if (offer->link == link)
			offer->link = NULL;
}

void copies_peer_leaves(struct control *control, uint16_t peer, bool leaves)
{
	uint64_t bit = 1ull << peer % 64, *word;

	if (!control->status) /* a member without rails and clients */
		return;
	word = &control->status->map.leaving[peer / 64];
	shm_store64(word, leaves ? *word | bit : *word & ~bit);
}

bool copies_serve_heartbeat(struct control *control, struct rpc_link *link, const Pc__Heartbeat *m)
{
	copies_peer_leaves(control, link->member->record.peer, m->drained);
	return true;
}

void offer_copy_ended(struct control *control, struct copy_offer *offer, uint32_t page, bool made)
{
	if (!made)
		offer->page[offer->missing++] = page;
	offer_settle(control, offer);
}

void offer_copy_began(struct copy_offer *offer)
{
	offer->left++;
}

static bool offer_fits(const struct rpc_link *link, const Pc__Offer *m)
{
	if (m->n_pages > OFFER_PAGES_MAX)
		return false;
	for (size_t i = 0; i < m->n_pages; i++) {
		const Pc__OfferPage *page = m->pages[i];

		if ((page->key0 | page->key1) == 0 || page->bytes == 0 ||
			page->bytes > PAGE_BYTES_MAX || page->generation == 0 ||
			place_rail(page->place) >= link->member->record.rails)
			return false;
	}
	return true;
}

bool copies_serve_offer(struct control *control, struct rpc_link *link, const Pc__Offer *m)
{
	uint32_t all[OFFER_PAGES_MAX];
	struct copy_offer *offer;
	/* pages that another host's clients have stored, which this one keeps for it */
	bool keep = m->stored && control->settings->engine_role == ROLE_STORAGE;
	enum page_why why = keep ? PAGE_KEPT : m->hot ? PAGE_HOT : PAGE_DRAINED;

	if (!offer_fits(link, m))
		return false;
	if (m->hot && (!control->hot || control->drained))
		return true;
	offer = control->offers && m->n_pages && !control->drained &&
				control->offers->count < OFFERS_MAX
			? calloc(1, sizeof(*offer))
			: NULL;
	if (!offer) {
		for (uint32_t i = 0; i < m->n_pages; i++)
			all[i] = i;
		offered_send(control, link, m->serial, all, m->n_pages);
		return true;
	}
	*offer = (struct copy_offer){.link = link, .serial = m->serial, .left = 1};
	LIST_INSERT_HEAD(&control->offers->open, offer, next);
	control->offers->count++;
	for (uint32_t i = 0; i < m->n_pages; i++) {
		const Pc__OfferPage *page = m->pages[i];
		const struct copy_wish wish = {.key = {{page->key0, page->key1}},
			.from = {member_link_ref(link), page->place, page->generation},
			.length = page->bytes,
			.crc = page->crc,
			.proven = page->proven,
			.why = why,
			.spare = why == PAGE_HOT ? hot_spare(control) : !keep,
			.offer = offer,
			.page = i};

		if (copies_ask(control, &wish) != OP_HIT)
			offer->page[offer->missing++] = i;
	}
	offer_settle(control, offer);
	return true;
}

/* ---- the end that is drained ----------------------------------------------------------------- */

struct drain_page {
	struct pool_place at;
	unsigned tries;
};

struct drain_offer {
	LIST_ENTRY(drain_offer) next;
	uint64_t serial, sent_ns, bytes;
	uint32_t ref;
	unsigned pages;
	struct drain_page page[OFFER_PAGES_MAX];
	uint32_t length[OFFER_PAGES_MAX];
};

struct drain_peer {
	uint32_t ref; /* 0: it has left */
	bool asked, known;
	uint64_t room; /* without what it was offered since it said so */
	unsigned offers;
};

struct drain {
	struct control *control;
	struct net_timer *timer;
	uint64_t deadline_ns, serial;
	struct drain_page *page;
	uint32_t pages, at;
	struct drain_peer peer[DRAIN_PEERS_MAX];
	unsigned peers;
	LIST_HEAD(, drain_offer) offers;
	struct drain_counts counts;
};

static struct drain_peer *peer_find(struct drain *d, uint32_t ref)
{
	for (unsigned i = 0; i < d->peers; i++)
		if (d->peer[i].ref == ref)
			return &d->peer[i];
	return NULL;
}

/* Puts a page that was offered back in front of the others, or gives it up. */
static void page_back(struct drain *d, const struct drain_page *page)
{
	if (page->tries < DRAIN_TRIES && d->at)
		d->page[--d->at] = *page;
	else
		d->counts.unfit++;
}

static void drain_offer_end(struct drain *d, struct drain_offer *offer)
{
	struct drain_peer *peer = peer_find(d, offer->ref);

	if (peer)
		peer->offers--;
	LIST_REMOVE(offer, next);
	free(offer);
}

/* The member does not answer, or has left: its pages are offered to others. */
static void drain_offer_lose(struct drain *d, struct drain_offer *offer)
{
	struct drain_peer *peer = peer_find(d, offer->ref);

	for (unsigned i = offer->pages; i--;)
		page_back(d, &offer->page[i]);
	if (peer)
		peer->room = 0;
	drain_offer_end(d, offer);
}

bool offer_page_describe(
	const struct control *control, const struct pool_place *page, Pc__OfferPage *ret)
{
	struct pool_proven is;
	bool proven;

	if (!page_at(control, page->place, page->generation, &is, &proven))
		return false;
	*ret = (Pc__OfferPage)PC__OFFER_PAGE__INIT;
	ret->key0 = is.key.word[0];
	ret->key1 = is.key.word[1];
	ret->place = is.place;
	ret->generation = is.generation;
	ret->bytes = is.length;
	ret->proven = proven;
	ret->crc = proven ? is.crc : 0;
	return true;
}

bool offer_send(
	struct control *control, uint32_t ref, uint64_t serial, Pc__OfferPage **pages, size_t count)
{
	Pc__Offer body = PC__OFFER__INIT;
	Pc__Message message = message_of(PC__MESSAGE__BODY_OFFER, &body);
	struct rpc_link *link = member_link(control, ref);

	body.serial = serial;
	body.pages = pages;
	body.n_pages = count;
	body.stored = (serial & OFFER_STORED) != 0;
	body.hot = (serial & OFFER_HOT) != 0;
	return link && rpc_send(link, &message);
}

/* Offers the next pages to the member. False: nothing was sent. */
static bool drain_offer(struct drain *d, struct drain_peer *peer)
{
	struct drain_offer *offer = calloc(1, sizeof(*offer));
	Pc__OfferPage page[OFFER_PAGES_MAX], *at[OFFER_PAGES_MAX];
	uint32_t from = d->at;
	struct page_key key;

	if (!offer)
		return false;
	while (d->at < d->pages && offer->pages < OFFER_PAGES_MAX) {
		Pc__OfferPage *p = &page[offer->pages];

		if (!offer_page_describe(d->control, &d->page[d->at].at, p)) {
			const struct pool_place *page_is = &d->page[d->at++].at;

			/* of a group whose pages end: it is not copied */
			if (page_key_at(d->control, page_is->place, page_is->generation, &key))
				d->counts.unfit++;
			else
				d->counts.gone++;
			continue;
		}
		if (offer->bytes + p->bytes > (offer->pages ? OFFER_BYTES : peer->room))
			break;
		at[offer->pages] = p;
		offer->length[offer->pages] = p->bytes;
		offer->bytes += p->bytes;
		offer->page[offer->pages++] = d->page[d->at++];
	}
	if (!offer->pages && d->at < d->pages)
		peer->room = 0; /* not even the next page fits */
	offer->serial = ++d->serial;
	if (!offer->pages || !offer_send(d->control, peer->ref, offer->serial, at, offer->pages)) {
		for (unsigned i = offer->pages; i--;)
			d->page[--d->at] = offer->page[i];
		if (offer->pages)
			peer->known = peer->asked = false; /* it has no link now: others go on */
		free(offer);
		return d->at != from || !peer->room || !peer->known;
	}
	for (unsigned i = 0; i < offer->pages; i++)
		offer->page[i].tries++;
	offer->ref = peer->ref;
	offer->sent_ns = net_now();
	peer->room -= offer->bytes < peer->room ? offer->bytes : peer->room;
	peer->offers++;
	LIST_INSERT_HEAD(&d->offers, offer, next);
	return true;
}

/* The member with the most room that takes one more Offer; NULL: none. */
static struct drain_peer *peer_roomy(struct drain *d)
{
	struct drain_peer *best = NULL;

	for (unsigned i = 0; i < d->peers; i++) {
		struct drain_peer *p = &d->peer[i];

		if (p->ref && p->known && p->room && p->offers < DRAIN_OFFERS &&
			(!best || p->room > best->room))
			best = p;
	}
	return best;
}

static bool peers_wanted(const struct drain *d)
{
	for (unsigned i = 0; i < d->peers; i++)
		if (d->peer[i].ref && !d->peer[i].known)
			return true;
	return false;
}

static void drain_finish(struct drain *d)
{
	struct drain_counts *n = &d->counts;

	n->unfit += d->pages - d->at;
	n->left = 0;
	n->state = DRAIN_DONE;
	free(d->page);
	d->page = NULL;
	d->pages = d->at = 0;
	log_info(
		"drain: %llu pages (%.1f MiB) are copied to other hosts; %llu have no room there, or not in time; %llu were evicted meanwhile. This host can be stopped",
		(unsigned long long)n->copied, (double)n->copied_bytes / (1 << 20),
		(unsigned long long)n->unfit, (unsigned long long)n->gone);
}

static void drain_step(struct drain *d)
{
	struct drain_peer *peer;

	if (d->counts.state != DRAIN_RUNNING)
		return;
	if (net_now() < d->deadline_ns)
		while (d->at < d->pages && (peer = peer_roomy(d)))
			if (!drain_offer(d, peer))
				break;
	d->counts.left = d->pages - d->at;
	if (LIST_EMPTY(&d->offers) && (d->at == d->pages || net_now() >= d->deadline_ns ||
					      (!peer_roomy(d) && !peers_wanted(d))))
		drain_finish(d);
}

static void peers_watch(struct drain *d)
{
	uint64_t now_ns = net_now();
	struct drain_offer *offer, *next;

	for (unsigned i = 0; i < d->peers; i++) {
		struct drain_peer *p = &d->peer[i];

		if (p->ref && !member_by_ref(d->control, p->ref))
			p->ref = 0;
		if (p->ref && !p->asked)
			p->asked = offer_send(d->control, p->ref, 0, NULL, 0);
	}
	for (offer = LIST_FIRST(&d->offers); offer; offer = next) {
		next = LIST_NEXT(offer, next);
		if (!member_by_ref(d->control, offer->ref) ||
			now_ns - offer->sent_ns > DRAIN_LATE_NS || now_ns >= d->deadline_ns)
			drain_offer_lose(d, offer);
	}
}

static void drain_on_timer(void *context)
{
	struct drain *d = context;

	peers_watch(d);
	drain_step(d);
	if (d->counts.state == DRAIN_RUNNING)
		(void)net_timer_set(d->timer, DRAIN_TICK_US);
}

bool copies_serve_offered(struct control *control, struct rpc_link *link, const Pc__Offered *m)
{
	struct drain *d = control->drain;
	struct drain_peer *peer = d ? peer_find(d, member_link_ref(link)) : NULL;
	struct drain_offer *offer = NULL;
	bool missing[OFFER_PAGES_MAX] = {false};

	if (m->n_missing > OFFER_PAGES_MAX)
		return false;
	if (m->serial & OFFER_STORED)
		storage_serve_offered(control, member_link_ref(link), m);
	if (m->serial & OFFER_STORED || !peer || d->counts.state != DRAIN_RUNNING)
		return true;
	LIST_FOREACH (offer, &d->offers, next)
		if (offer->serial == m->serial && offer->ref == peer->ref)
			break;
	peer->known = true;
	peer->room = m->room;
	if (offer) {
		for (size_t i = 0; i < m->n_missing; i++)
			if (m->missing[i] < offer->pages)
				missing[m->missing[i]] = true;
		for (unsigned i = offer->pages; i--;) {
			if (missing[i]) {
				page_back(d, &offer->page[i]);
				continue;
			}
			d->counts.copied++;
			d->counts.copied_bytes += offer->length[i];
		}
		drain_offer_end(d, offer);
	}
	LIST_FOREACH (offer, &d->offers, next)
		if (offer->ref == peer->ref)
			peer->room -= offer->bytes < peer->room ? offer->bytes : peer->room;
	drain_step(d);
	return true;
}

/* The pages of all pools, the most recently used first. Returns how many; 0: none, or no memory. */
static uint32_t pages_list(const struct control *control, struct drain_page **ret)
{
	uint32_t each = DRAIN_PAGES_MAX / control->rails, count[RAILS_MAX], all = 0, n = 0;
	struct pool_place *place = malloc((size_t)each * control->rails * sizeof(*place));
	struct drain_page *page = malloc((size_t)each * control->rails * sizeof(*page));

	if (!place || !page) {
		free(place);
		free(page);
		return 0;
	}
	for (unsigned i = 0; i < control->rails; i++) {
		count[i] = pool_recent(control->rail[i].pool, each, &place[(size_t)i * each]);
		all += count[i];
	}
	for (uint32_t k = 0; n < all; k++)
		for (unsigned i = 0; i < control->rails; i++)
			if (k < count[i])
				page[n++] = (struct drain_page){.at = place[(size_t)i * each + k]};
	free(place);
	*ret = page;
	return n;
}

static void drain_peers_find(struct drain *d)
{
	const struct member_table *table = members_table(d->control);

	d->peers = 0;
	for (unsigned p = 0; p < table->peers_used && d->peers < DRAIN_PEERS_MAX; p++) {
		const struct member *member = member_table_peer(table, p);

		if (member && !member->record.self && member->record.rails)
			d->peer[d->peers++] = (struct drain_peer){.ref = member->record.ref};
	}
}

static void drain_offers_drop(struct drain *d)
{
	struct drain_offer *offer;

	while ((offer = LIST_FIRST(&d->offers)))
		drain_offer_end(d, offer);
}

void copies_drain(struct control *control, uint64_t ns)
{
	struct drain *d = control->drain;

	if (!d)
		return;
	drain_offers_drop(d);
	free(d->page);
	d->page = NULL;
	d->counts = (struct drain_counts){.state = ns ? DRAIN_RUNNING : DRAIN_NONE};
	net_timer_stop(d->timer);
	control->drained = ns != 0;
	if (!ns) {
		log_info("drain: ended by undrain");
		return;
	}
	drain_peers_find(d);
	d->pages = pages_list(control, &d->page);
	d->at = 0;
	for (unsigned i = 0; i < control->rails; i++)
		d->counts.pages += pool_pages(control->rail[i].pool);
	d->counts.left = d->pages;
	/* what is not listed is not offered */
	d->counts.unfit = d->counts.pages > d->pages ? d->counts.pages - d->pages : 0;
	d->deadline_ns = net_now() + ns;
	log_info("drain: %u pages are offered to %u hosts, for %llu s", d->pages, d->peers,
		(unsigned long long)(ns / 1000000000));
	drain_on_timer(d);
}

/* ---- open and close -------------------------------------------------------------------------- */

void drain_counts(const struct control *control, struct drain_counts *ret)
{
	*ret = control->drain ? control->drain->counts : (struct drain_counts){0};
}

int drain_open(struct control *control)
{
	struct offers *offers = calloc(1, sizeof(*offers));
	struct drain *d = calloc(1, sizeof(*d));

	control->offers = offers;
	control->drain = d;
	if (d)
		d->timer = net_timer_new(control->base, false, drain_on_timer, d);
	if (offers && d && d->timer) {
		d->control = control;
		return 0;
	}
	drain_close(control);
	return -ENOMEM;
}

void drain_close(struct control *control)
{
	struct drain *d = control->drain;
	struct copy_offer *offer;

	while (control->offers && (offer = LIST_FIRST(&control->offers->open))) {
		LIST_REMOVE(offer, next);
		free(offer);
	}
	free(control->offers);
	control->offers = NULL;
	if (d) {
		drain_offers_drop(d);
		free(d->page);
		net_timer_free(d->timer);
	}
	free(d);
	control->drain = NULL;
}
