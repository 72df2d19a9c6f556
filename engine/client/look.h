/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of keys, and READs of page heads. Channel thread. */
#ifndef CLIENT_LOOK_H
#define CLIENT_LOOK_H

#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;
struct run_done;

/* Looks a page up, first in the cache. */
void lookup_begin(struct pc_batch *b, uint32_t i);
/* Begins the look-ups of all pages of an exists, as lookup_begin() does one by one. */
void look_all(struct pc_batch *b);
/* Asks the next owner of each page that waits to be looked up, as far as there is room. */
void lookup_step(struct pc_batch *b);
/* READs the heads of the pages that wait for it, as far as there is room. */
void head_step(struct pc_batch *b);
/*
 * A run of look-ups or of heads was answered. `status`: of the pages in neither mask of `done`, for
 * heads never OP_HIT.
 */
void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

#endif
