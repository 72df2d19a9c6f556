/* SPDX-License-Identifier: Apache-2.0 */
/* What the directory says of a key: owners and locations. Channel thread. */
#ifndef CLIENT_DIRECTORY_H
#define CLIENT_DIRECTORY_H

#include <stdbool.h>

struct bucket;
struct map_member;
struct page_work;
struct pc_batch;
struct pc_channel;

/* Chooses the key's next owner to ask and marks it as asked. NULL: every owner was asked. */
const struct map_member *directory_owner(struct pc_channel *ch, struct page_work *p);
/* True if the member is another host, and one that answers: see abi/owner.h. */
bool directory_answers(const struct pc_channel *ch, const struct map_member *m);
/* Copies the bucket's locations of the key into the page. False: the bucket has none. */
bool directory_match(const struct pc_batch *b, struct page_work *p, const struct bucket *bucket);
/* The same for the part of the directory that this host stores. */
bool directory_here(const struct pc_batch *b, struct page_work *p);

#endif
