/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the pages of a batch of the arguments of the call. Channel thread. */
#ifndef CLIENT_PAGES_H
#define CLIENT_PAGES_H

struct pc_batch;
struct pc_channel;

/* Checks the caller's arguments for the pages of a batch. Invalid pages are done. */
void pages_init(struct pc_batch *b);
/* Pins the registered ranges that pages_init() has found: they stay registered until the unpin. */
void pages_pin(struct pc_batch *b);
void pages_unpin(struct pc_batch *b);
/* keys.c: hashes the keys of all pages of a batch that are not done. */
void keys_hash(struct pc_batch *b);

#endif
