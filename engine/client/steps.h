/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of pages: where each begins, and where its answer goes. batch.c begins them, rail.c and
 * ctl.c take the answers, and page.c decides what comes next. Channel thread.
 */
#ifndef CLIENT_STEPS_H
#define CLIENT_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/client/rings/request.h"

struct client_request;
struct ctl_done;
struct ctl_op;
struct pc_batch;
struct pc_channel;
struct run_done;

/* ---- look.c: look-ups of keys, and READs of page heads --------------------------------------- */

/* Looks a page up, first in the cache. */
void lookup_begin(struct pc_batch *b, uint32_t i);
/* Begins the look-ups of all pages of an exists, as lookup_begin() does one by one. */
void look_all(struct pc_batch *b);
/* Asks the next owner of each page that waits to be looked up, as far as there is room. */
void lookup_step(struct pc_batch *b);
/*
 * READs the heads of the pages that wait for it, and what the peeks of a BATCH_PEEK name, as far as
 * there is room.
 */
void head_step(struct pc_batch *b);
/*
 * A run of look-ups or of heads was answered. `status`: of the pages in neither mask of `done`, for
 * heads never OP_HIT.
 */
void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

/* ---- get.c: READs of pages of other hosts ---------------------------------------------------- */

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

/* ---- set.c: storing pages -------------------------------------------------------------------- */

/* Stores and publishes pages, as far as there are credits and room. */
void set_step(struct pc_batch *b);
/* `pages`: bit i: page i of the request has ended with `status`. */
void set_answer(
	struct pc_channel *ch, const struct client_request *r, uint32_t pages, uint32_t status);

/* ---- ctl.c: requests to the control plane with one answer ------------------------------------ */

/*
 * Sends a request for page i of the batch, which gets one answer; sets its cookie. False: no room;
 * the page is again first in its queue.
 */
bool ctl_ask(struct pc_batch *b, uint32_t i, enum request_kind kind, struct ctl_op *op);
/* Sends the requests that wait, as far as there is room: about a page on disk, to remove. */
void ctl_step(struct pc_batch *b);

/* ---- rail.c, ctl.c: taking the answers ------------------------------------------------------- */

/* Takes all answers of the rails. */
void reap_rails(struct pc_channel *ch);
/* Takes all answers of the control plane. */
void reap_ctl(struct pc_channel *ch);

/* ---- clear.c: pages of a group of namespaces ------------------------------------------------- */

/* Asks the engine of this host to clear the hosts that wait, as far as there is room. */
void clear_step(struct pc_batch *b);
/* The answer about host `i`. */
void clear_answer(struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status);

#endif
