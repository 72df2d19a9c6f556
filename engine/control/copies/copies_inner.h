/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room call of each other. Control plane's thread only. */
#ifndef CONTROL_COPIES_INNER_H
#define CONTROL_COPIES_INNER_H

#include "engine/control/base/control.h"
#include "engine/control/copies/copies.h"

struct copy_offer; /* pages that another host has offered: drain.c */

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

#endif
