/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that clients of this host store are offered to storage hosts (engine.write_policy): members
 * whose engine.role is storage, which copy them and evict older ones for them. Each key has one
 * storage host while the members stay the same, so a page that two hosts store is kept once. What
 * it cannot take is dropped and counted: a set never waits for it. The end that copies is in
 * drain.c. Control plane's thread only.
 */
#include "engine/control/copies/copies_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "config/log.h"
#include "engine/abi/map.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

#define STORAGE_HOSTS_MAX 64u
#define STORAGE_WAITING 16384u         /* pages that one host's queue has, at most; a power of 2 */
#define STORAGE_BYTES (4u << 20)       /* of one Offer; one page may be longer */
#define STORAGE_OFFERS 2u              /* that one host has at a time */
#define STORAGE_FULL 16u               /* pages of which the second one has more */
#define STORAGE_TICK_US 50000          /* between two looks at members and deadlines */
#define STORAGE_LATE_NS 15000000000ull /* an Offer without an answer for this long is given up */

struct storage_host {
	uint32_t ref; /* 0: unused */
	uint64_t hash;
	uint8_t bits; /* weight, as placement.h has it */
	unsigned offers;
	uint32_t head, tail; /* of `queue` */
	struct pool_place *queue;
};

struct storage_offer {
	LIST_ENTRY(storage_offer) next;
	struct storage_host *host;
	uint64_t serial, sent_ns;
	unsigned pages;
	struct pool_place page[OFFER_PAGES_MAX];
	uint32_t length[OFFER_PAGES_MAX];
};

struct storage {
	struct control *control;
	struct net_timer *timer;
	uint64_t serial;
	struct storage_host host[STORAGE_HOSTS_MAX];
	LIST_HEAD(, storage_offer) offers;
};

static void storage_missed(struct storage *s, uint64_t pages)
{
	s->control->counter[COUNTER_storage_missed] += pages;
}

/* ---- which host ------------------------------------------------------------------------------ */

static struct storage_host *host_of(struct storage *s, const struct page_key *key)
{
	struct storage_host *best = NULL;
	uint64_t least = UINT64_MAX;

	for (unsigned i = 0; i < STORAGE_HOSTS_MAX; i++) {
		struct storage_host *h = &s->host[i];
		uint64_t rank =
			h->ref ? placement_rank(h->hash, h->bits, map_slot_of(key)) : UINT64_MAX;

		if (rank < least) {
			least = rank;
			best = h;
		}
	}
	return best;
}

static void host_queue(struct storage *s, const struct page_key *key, const struct pool_place *page)
{
	struct storage_host *h = host_of(s, key);

	if (!h || h->tail - h->head == STORAGE_WAITING)
		storage_missed(s, 1);
	else
		h->queue[h->tail++ % STORAGE_WAITING] = *page;
}

void copies_stored(
	struct control *control, const struct page_key *key, uint32_t place, uint32_t generation)
{
	if (control->storage)
		host_queue(control->storage, key, &(struct pool_place){place, generation});
}

/* ---- offers ---------------------------------------------------------------------------------- */

static void offer_end(struct storage_offer *offer)
{
	offer->host->offers--;
	LIST_REMOVE(offer, next);
	free(offer);
}

/* Describes pages of the queue. Those that have gone meanwhile are missed. */
static void offer_fill(struct storage *s, struct storage_host *h, struct storage_offer *offer,
	Pc__OfferPage page[OFFER_PAGES_MAX], Pc__OfferPage *ret_at[OFFER_PAGES_MAX])
{
	uint64_t bytes = 0;

	for (; h->head != h->tail && offer->pages < OFFER_PAGES_MAX; h->head++) {
		const struct pool_place *at = &h->queue[h->head % STORAGE_WAITING];
		Pc__OfferPage *p = &page[offer->pages];

		if (!offer_page_describe(s->control, at, p)) {
			storage_missed(s, 1);
			continue;
		}
		if (offer->pages && bytes + p->bytes > STORAGE_BYTES)
			break;
		bytes += p->bytes;
		offer->page[offer->pages] = *at;
		offer->length[offer->pages] = p->bytes;
		ret_at[offer->pages++] = p;
	}
}

/* Offers the next pages to the host, if it is time to. The second Offer waits until it is full. */
static bool host_offer(struct storage *s, struct storage_host *h)
{
	Pc__OfferPage page[OFFER_PAGES_MAX], *at[OFFER_PAGES_MAX];
	struct storage_offer *offer;

	if (!h->ref || h->head == h->tail || h->offers == STORAGE_OFFERS ||
		(h->offers && h->tail - h->head < STORAGE_FULL) || !member_link(s->control, h->ref))
		return false;
	offer = calloc(1, sizeof(*offer));
	if (!offer)
		return false;
	*offer = (struct storage_offer){
		.host = h, .serial = OFFER_STORED | ++s->serial, .sent_ns = net_now()};
	LIST_INSERT_HEAD(&s->offers, offer, next);
	h->offers++;
	offer_fill(s, h, offer, page, at);
	if (offer->pages && offer_send(s->control, h->ref, offer->serial, at, offer->pages))
		return true;
	storage_missed(s, offer->pages);
	offer_end(offer);
	return false;
}

unsigned storage_turn(struct control *control)
{
	struct storage *s = control->storage;
	unsigned work = 0;

	for (unsigned i = 0; s && !control->stopping && i < STORAGE_HOSTS_MAX; i++)
		work += host_offer(s, &s->host[i]);
	return work;
}

/* The storage host has the page: with that policy it makes room here before others. */
static void page_is_kept(struct storage *s, const struct pool_place *page, uint32_t length)
{
	struct control *control = s->control;

	control->counter[COUNTER_storage_pages]++;
	control->counter[COUNTER_storage_bytes] += length;
	if (control->settings->engine_write_policy == WRITE_STORAGE)
		(void)pool_yield(
			control->rail[place_rail(page->place)].pool, page->place, page->generation);
}

void storage_serve_offered(struct control *control, uint32_t ref, const Pc__Offered *m)
{
	struct storage *s = control->storage;
	bool missing[OFFER_PAGES_MAX] = {false};
	struct storage_offer *offer = NULL;

	if (s)
		LIST_FOREACH (offer, &s->offers, next)
			if (offer->serial == m->serial && offer->host->ref == ref)
				break;
	if (!offer)
		return; /* it was given up */
	for (size_t i = 0; i < m->n_missing; i++)
		if (m->missing[i] < offer->pages)
			missing[m->missing[i]] = true;
	for (unsigned i = 0; i < offer->pages; i++) {
		if (missing[i])
			storage_missed(s, 1);
		else
			page_is_kept(s, &offer->page[i], offer->length[i]);
	}
	offer_end(offer);
}

/* ---- hosts that come and go ------------------------------------------------------------------ */

/* A member that restarts keeps its ref, and may have another role or size then. */
static bool keeps(const struct control *control, const struct member *member)
{
	return member && !member->record.self && member->record.storage && member->record.rails &&
	       !map_leaving(&control->status->map, member->record.peer);
}

static void host_add(struct storage *s, const struct member *member)
{
	struct storage_host *h = NULL;

	for (unsigned i = STORAGE_HOSTS_MAX; i--;)
		if (s->host[i].ref == member->record.ref || (!h && !s->host[i].ref))
			h = &s->host[i];
	if (h && !h->queue)
		h->queue = malloc(STORAGE_WAITING * sizeof(*h->queue));
	if (!h || !h->queue)
		return;
	h->ref = member->record.ref;
	h->hash = member_hash(member);
	h->bits = member->record.bucket_bits;
}

static void page_move(struct storage *s, const struct pool_place *page)
{
	struct page_key key;

	if (page_key_at(s->control, page->place, page->generation, &key))
		host_queue(s, &key, page);
	else
		storage_missed(s, 1);
}

/* The host has left: its pages are offered to others. */
static void host_drop(struct storage *s, struct storage_host *h)
{
	struct storage_offer *offer, *next;

	h->ref = 0;
	for (offer = LIST_FIRST(&s->offers); offer; offer = next) {
		next = LIST_NEXT(offer, next);
		if (offer->host != h)
			continue;
		for (unsigned i = 0; i < offer->pages; i++)
			page_move(s, &offer->page[i]);
		offer_end(offer);
	}
	for (; h->head != h->tail; h->head++)
		page_move(s, &h->queue[h->head % STORAGE_WAITING]);
}

static void storage_on_timer(void *context)
{
	struct storage *s = context;
	const struct member_table *table = members_table(s->control);
	struct storage_offer *offer, *next;
	uint64_t now_ns = net_now();

	for (unsigned i = 0; i < STORAGE_HOSTS_MAX; i++)
		if (s->host[i].ref && !keeps(s->control, member_table_ref(table, s->host[i].ref)))
			host_drop(s, &s->host[i]);
	for (unsigned p = 0; p < table->peers_used; p++)
		if (keeps(s->control, member_table_peer(table, p)))
			host_add(s, member_table_peer(table, p));
	for (offer = LIST_FIRST(&s->offers); offer; offer = next) {
		next = LIST_NEXT(offer, next);
		if (now_ns - offer->sent_ns < STORAGE_LATE_NS)
			continue;
		storage_missed(s, offer->pages);
		offer_end(offer);
	}
	/* the loop serves storage_turn() next */
	(void)net_timer_set(s->timer, STORAGE_TICK_US);
}

void storage_counts(const struct control *control, struct copies_counts *ret)
{
	const struct storage *s = control->storage;

	ret->offers = s;
	for (unsigned i = 0; s && i < STORAGE_HOSTS_MAX; i++) {
		ret->storage_hosts += s->host[i].ref != 0;
		ret->storage_waiting += s->host[i].tail - s->host[i].head;
	}
}

/* ---- open and close -------------------------------------------------------------------------- */

int storage_open(struct control *control)
{
	struct storage *s;

	if (control->settings->engine_write_policy == WRITE_LOCAL)
		return 0;
	if (control->settings->engine_role == ROLE_STORAGE) {
		log_warn(
			"engine.write_policy has no effect: engine.role is storage, so the pages of this host's clients are at a storage host already");
		return 0;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->control = control;
	control->storage = s;
	s->timer = net_timer_new(control->base, false, storage_on_timer, s);
	return s->timer ? net_timer_set(s->timer, 0) : -ENOMEM;
}

void storage_close(struct control *control)
{
	struct storage *s = control->storage;
	struct storage_offer *offer;

	if (!s)
		return;
	while ((offer = LIST_FIRST(&s->offers)))
		offer_end(offer);
	for (unsigned i = 0; i < STORAGE_HOSTS_MAX; i++)
		free(s->host[i].queue);
	net_timer_free(s->timer);
	free(s);
	control->storage = NULL;
}
