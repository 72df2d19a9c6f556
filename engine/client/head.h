/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs the heads of pages of other members: of pages that a set does not store because a member
 * has them, of pages that were stale, and of those that verify.c compares. Channel thread.
 */
#ifndef CLIENT_HEAD_H
#define CLIENT_HEAD_H

#include <stdint.h>

struct client_request;
struct pc_batch;
struct pc_channel;
struct run_done;

void head_step(struct pc_batch *b);
/* A run of heads was answered. `status`: of the pages in neither mask of `done`, never OP_HIT. */
void head_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

#endif
