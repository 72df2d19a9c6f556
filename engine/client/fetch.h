/* SPDX-License-Identifier: Apache-2.0 */
/* READs of pages that fit no run. Channel thread. */
#ifndef CLIENT_FETCH_H
#define CLIENT_FETCH_H

#include <stdbool.h>
#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;

void fetch_step(struct pc_batch *b);
/*
 * Requests nothing more of the page. False: none of its ops is in flight, so the caller ends the
 * page; true: the last answer ends it.
 */
bool fetch_stop(struct pc_batch *b, uint32_t i);
/* One op of the page was answered. The last answer decides the page's result. */
void fetch_answer(const struct client_request *r, uint32_t status);

#endif
