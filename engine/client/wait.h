/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for answers. Channel thread. */
#ifndef CLIENT_WAIT_H
#define CLIENT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct pc_batch;
struct pc_channel;

/*
 * Steps the channel until the batch is done (`b` NULL: until all its batches are), at most until
 * `until_ns`.
 */
void wait_for(struct pc_channel *ch, const struct pc_batch *b, uint64_t until_ns);

#endif
