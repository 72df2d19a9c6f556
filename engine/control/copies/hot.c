/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hot pages: those that clients of several hosts use again and again. This host offers one to a
 * host that has just reported its use, which copies it and is a further holder; HOT_COPIES times,
 * as far as this host remembers. The end that copies is in drain.c. Control plane's thread only.
 */
#include "engine/control/copies/copies_inner.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/abi/map.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

#define HOT_PAGES 8192u     /* that are counted at a time; a power of two */
#define HOT_COPIES 2u       /* further holders of a page */
#define HOT_TOUCHES 4u      /* reports within HOT_MS, of two hosts at least, before each of them */
#define HOT_MS 10000u       /* a client reports a page once a second at most */
#define HOT_AGAIN_MS 60000u /* after this time its copies may have been evicted */

/* A page that other hosts have used lately. */
struct hot_page {
	uint32_t place, generation; /* generation 0: unused */
	uint32_t first;             /* ref of the host that was the first since `since_ms` */
	uint32_t given_to;          /* ref of the host that got the last offer of it */
	uint32_t since_ms, given_ms;
	uint8_t touches;
	bool several;  /* another host has, too */
	uint8_t given; /* offers of it */
};

struct hot {
	struct hot_page page[HOT_PAGES];
};

/*
 * The record of the page. NULL: another one is counted there; each use of this one makes it less
 * likely to stay.
 */
static struct hot_page *hot_find(
	struct hot *hot, uint32_t place, uint32_t generation, uint32_t now_ms)
{
	struct hot_page *h = &hot->page[map_mix(place) & (HOT_PAGES - 1)];

	if (h->place != place || h->generation != generation) {
		if (h->generation && h->touches && now_ms - h->since_ms < HOT_MS) {
			h->touches--;
			return NULL;
		}
		*h = (struct hot_page){.place = place, .generation = generation};
	}
	if (h->given && now_ms - h->given_ms >= HOT_AGAIN_MS)
		h->given = 0;
	if (!h->touches || now_ms - h->since_ms >= HOT_MS) {
		h->touches = 0;
		h->several = false;
		h->since_ms = now_ms;
	}
	return h;
}

/* Host `ref` has used the page. True: it is hot, and gets one more holder. */
static bool hot_count(struct hot *hot, const struct pool_place *page, uint32_t ref)
{
	uint32_t now_ms = (uint32_t)(net_now() / 1000000);
	struct hot_page *h = hot_find(hot, page->place, page->generation, now_ms);

	if (!h || h->given == HOT_COPIES)
		return false;
	if (!h->touches)
		h->first = ref;
	if (h->touches < HOT_TOUCHES)
		h->touches++;
	h->several |= h->first != ref;
	/* a host may report uses for a while after it has got its copy */
	if (h->touches < HOT_TOUCHES || !h->several || (h->given && h->given_to == ref))
		return false;
	h->touches = 0;
	h->given++;
	h->given_to = ref;
	h->given_ms = now_ms;
	return true;
}

bool copies_serve_touch(struct control *control, struct rpc_link *link, const Pc__Touch *touch)
{
	Pc__OfferPage page[OFFER_PAGES_MAX], *at[OFFER_PAGES_MAX];
	uint32_t ref = member_link_ref(link);
	unsigned n = 0;

	if (!control->hot || control->drained)
		return true;
	for (size_t i = 0; i < touch->n_places && n < OFFER_PAGES_MAX; i++) {
		struct pool_place is = {.place = touch->places[i]};
		const struct pool *pool = control->rail[place_rail(is.place)].pool;

		is.generation = pool_generation(pool, is.place);
		/* a copy that was made for this reason makes no others */
		if (!is.generation || pool_why(pool, is.place, is.generation) == PAGE_HOT ||
			!hot_count(control->hot, &is, ref) ||
			!offer_page_describe(control, &is, &page[n]))
			continue;
		at[n] = &page[n];
		n++;
	}
	if (n && offer_send(control, ref, OFFER_HOT, at, n))
		control->counter[COUNTER_hot_offered] += n;
	return true;
}

bool hot_spare(const struct control *control)
{
	struct copies_counts counts;
	uint64_t all = 0;

	copies_counts(control, &counts);
	for (unsigned i = 0; i < control->rails; i++)
		all += control->status->pool_bytes[i];
	return counts.hot_bytes + counts.bytes >=
	       all / 100 * (uint64_t)control->settings->copies_hot_percent;
}

int hot_open(struct control *control)
{
	if (!control->settings->copies_hot_percent)
		return 0;
	control->hot = calloc(1, sizeof(*control->hot));
	return control->hot ? 0 : -ENOMEM;
}

void hot_close(struct control *control)
{
	free(control->hot);
	control->hot = NULL;
}
