/* SPDX-License-Identifier: Apache-2.0 */
/* READs of pages of other hosts, and the answers of the rails. Channel thread. */
#ifndef CLIENT_READ_H
#define CLIENT_READ_H

#include <stdbool.h>
#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;

/* Begins the look-ups of the pages of a get, and READs those whose location the cache has. */
void get_begin(struct pc_batch *b);
/* Posts what waits for room on a rail, as far as there is some. */
void get_step(struct pc_batch *b);
/* Takes all answers of the rails. */
void reap_rails(struct pc_channel *ch);

/* ---- fetch.c: pages alone -------------------------------------------------------------------- */

/* Posts the pages that wait in PAGE_FETCH, as far as there is room. */
void fetch_step(struct pc_batch *b);
/*
 * Requests nothing more of the page. False: none of its ops is in flight, so the caller ends the
 * page; true: the last answer ends it.
 */
bool fetch_stop(struct pc_batch *b, uint32_t i);
/*
 * One op of the page was answered. The last answer decides the page's result. False: its bytes are
 * being copied from staging to GPU memory, and fetch_copies_end() frees the request.
 */
bool fetch_answer(struct client_request *r, uint32_t status);
enum fetch_wait { FETCH_WAIT_NOT, FETCH_WAIT_ONE, FETCH_WAIT_ALL };
/* Takes the copies that have ended, in order, `wait`: also that have not. */
void fetch_copies_end(struct pc_channel *ch, enum fetch_wait wait);

/* ---- answer.c: what a READ has ended with ---------------------------------------------------- */

/* The bytes of a page of another member that is VERIFY_DUE are here: READs its head. */
void get_verify(struct pc_batch *b, uint32_t i);
/* All READs of the page were answered, one of them with page_work.piece_status, which is no hit. */
void get_not_hit(struct pc_batch *b, uint32_t i);

#endif
