/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of keys. Channel thread. */
#ifndef CLIENT_LOOKUP_H
#define CLIENT_LOOKUP_H

#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;
struct run_done;

/* Looks a page up, first in the cache. */
void lookup_begin(struct pc_batch *b, uint32_t i);
/* Begins the look-ups of all pages of an exists, as lookup_begin() does one by one. */
void look_all(struct pc_batch *b);
void lookup_step(struct pc_batch *b);
/* A run of look-ups was answered. */
void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

#endif
