/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room call of each other. Control plane's thread only. */
#ifndef CONTROL_COPIES_INNER_H
#define CONTROL_COPIES_INNER_H

#include "engine/control/base/control.h"
#include "engine/abi/message.pb-c.h"
#include "engine/control/copies/copies.h"
#include "engine/control/pages/pages.h"

struct copy_offer; /* pages that another host has offered: drain.c */

#define OFFER_PAGES_MAX 64u
/* in the serial of an Offer: its pages were stored (storage.c), and this host is not drained */
#define OFFER_STORED (1ull << 63)
#define OFFER_HOT (1ull << 62) /* the same: hot.c; the answer is not used */

/* Describes a page as it is now. False: it has gone. */
bool offer_page_describe(
	const struct control *control, const struct pool_place *page, Pc__OfferPage *ret);
/* Sends an Offer of these pages to member `ref`. */
bool offer_send(struct control *control, uint32_t ref, uint64_t serial, Pc__OfferPage **pages,
	size_t count);

/* A copy of the offer is queued. It ends with offer_copy_ended(). */
void offer_copy_began(struct copy_offer *offer);
/* The copy of page number `page` of the offer has ended; `made`: this host has the page. */
void offer_copy_ended(struct control *control, struct copy_offer *offer, uint32_t page, bool made);
/* Bytes of copies that wait or are READ. */
uint64_t copies_taken(const struct control *control);
/* Bytes of the pools that copies can take without evicting a page. */
uint64_t copies_room(const struct control *control);

int drain_open(struct control *control);
void drain_close(struct control *control);

int hot_open(struct control *control);
void hot_close(struct control *control);
/* Copies of hot pages have their share of the pools: further ones come into free room only. */
bool hot_spare(const struct control *control);

int storage_open(struct control *control);
void storage_close(struct control *control);
unsigned storage_turn(struct control *control);
void storage_serve_offered(struct control *control, uint32_t ref, const Pc__Offered *m);
/* Fills the fields `storage_*`. */
void storage_counts(const struct control *control, struct copies_counts *ret);

#endif
