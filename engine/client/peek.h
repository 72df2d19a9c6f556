/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small READs of memory of other engines, which validate nothing, and a question to the engine of
 * this host: for pc_explain(). Channel thread.
 */
#ifndef CLIENT_PEEK_H
#define CLIENT_PEEK_H

#include "engine/abi/bucket.h"
#include "engine/abi/page.h"

struct client_request;
struct ctl_done;
struct pc_batch;
struct pc_channel;

struct peek {
	/* owner: the channel's thread; where to READ: `bytes` <= 64 from `offset` on, a multiple of
	 * OP_UNIT */
	alignas(64) uint64_t offset;
	uint32_t ref; /* map_member.ref and map_member.peer of the engine to READ from */
	uint32_t bytes;
	uint16_t peer;
	uint8_t region;
	uint8_t status; /* result, enum op_status; OP_HIT: `data` has the bytes */
	/* no READ: asks the engine of this host where it has the page of `key` (PROMOTE_LOOK) */
	bool engine;
	struct page_key key;
	/* owner: the channel's thread; written when the answer comes */
	alignas(64) union {
		struct bucket bucket;
		struct page_head head;
		struct {
			uint32_t place, generation; /* generation 0: the page is on disk */
		} here;
	} data;
};
static_assert(offsetof(struct peek, data) == 64, "a line for the request, one for the bytes");
#define PEEKS_MAX 64u
/* Posts READs that wait for room. */
void peek_step(struct pc_batch *b);
void peek_answer(struct pc_channel *ch, const struct client_request *r, uint32_t status);
/* The engine of this host has answered. */
void peek_told(struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status);

#endif
