/* SPDX-License-Identifier: Apache-2.0 */
/* READs of pages of other hosts, in runs or one by one. Channel thread. */
#ifndef CLIENT_GET_H
#define CLIENT_GET_H

#include <stdbool.h>
#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;
struct run_done;

/* Begins the look-ups of the pages of a get, and READs those whose location the cache has. */
void get_begin(struct pc_batch *b);
/* Posts what waits for room on a rail, as far as there is some. */
void get_step(struct pc_batch *b);
/*
 * Requests nothing more of the page. False: none of its ops is in flight, so the caller ends the
 * page; true: the last answer ends it.
 */
bool fetch_stop(struct pc_batch *b, uint32_t i);
/* One op of the page was answered. The last answer decides the page's result. */
void fetch_answer(const struct client_request *r, uint32_t status);
/*
 * A run was answered. `status` is the result of the pages in neither mask of `done`, and never
 * OP_HIT.
 */
void run_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

#endif
