/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of keys (lookup.c), and runs of them (look_run.c). Channel thread. */
#ifndef CLIENT_LOOKUP_H
#define CLIENT_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

struct bucket;
struct client_request;
struct map_member;
struct page_work;
struct pc_batch;
struct pc_channel;
struct run_done;

/* Looks a page up, first in the cache. */
void lookup_begin(struct pc_batch *b, uint32_t i);
/* The same for all pages of a get. Most have a location in the cache and are READ at once. */
void lookup_get(struct pc_batch *b);
void lookup_again(struct pc_batch *b, uint32_t i);
/* Chooses the key's next owner to ask and marks it as asked. NULL: every owner was asked. */
const struct map_member *lookup_owner(struct pc_channel *ch, struct page_work *p);
/* True if the member is another host, and one that answers: see abi/owner.h. */
bool lookup_answers(const struct pc_channel *ch, const struct map_member *m);
void lookup_step(struct pc_batch *b);
void lookup_answer(struct pc_batch *b, uint32_t i, const struct bucket *bucket, uint32_t status);

/* ---- look_run.c ------------------------------------------------------------------------------ */

/* Begins the look-ups of all pages of an exists, as lookup_begin() does one by one. */
void look_all(struct pc_batch *b);
/* Adds the page to a run of look-ups at `m`. False: a run found no room and is queued again. */
bool look_add(struct pc_batch *b, uint32_t i, const struct map_member *m);
/* Posts the open runs; with `room` false, queues their pages again. */
void look_close_all(struct pc_batch *b, bool room);
void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

#endif
