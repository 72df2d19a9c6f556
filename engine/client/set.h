/* SPDX-License-Identifier: Apache-2.0 */
/* Storing and removing pages. Channel thread. */
#ifndef CLIENT_SET_H
#define CLIENT_SET_H

#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;

void set_step(struct pc_batch *b);
/* `pages`: bit i: page i of the request has ended with `status`. */
void set_answer(
	struct pc_channel *ch, const struct client_request *r, uint32_t pages, uint32_t status);
void remove_step(struct pc_batch *b);
void remove_answer(struct pc_batch *b, uint32_t i, uint32_t status);

#endif
