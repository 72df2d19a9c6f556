/* SPDX-License-Identifier: Apache-2.0 */
/* READs of pages that fit no run. Channel thread. */
#ifndef CLIENT_FETCH_H
#define CLIENT_FETCH_H

#include <stdbool.h>
#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;

/* A READ into the caller's memory has delivered the page. */
void fetch_hit(struct pc_batch *b, uint32_t i);
/* All READs of the page were answered, one of them with p->piece_status, which is no hit. */
void fetch_not_hit(struct pc_batch *b, uint32_t i);
void fetch_step(struct pc_batch *b);
/*
 * Requests nothing more of the page. False: none of its ops is in flight, so the caller ends the
 * page; true: the last answer ends it.
 */
bool fetch_stop(struct pc_batch *b, uint32_t i);
/* One op of the page was answered. The last answer decides the page's result. */
void fetch_answer(const struct client_request *r, uint32_t status);
/* The page is a hit, and was compared if that was due. */
void fetch_verified(struct pc_batch *b, uint32_t i);

#endif
