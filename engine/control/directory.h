/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory as the control plane uses it: which nodes own a key, telling them about our pages,
 * serving what others tell us. Looking up is not here: that is a one-sided read by the client.
 *
 * Everything is gathered into batches per owner and sent at the end of the loop's turn.
 */
#ifndef CONTROL_DIRECTORY_H
#define CONTROL_DIRECTORY_H

#include "engine/abi/op.h"
#include "engine/abi/page.h"

struct control;

/*
 * Called exactly once, from directory_flush(), never from inside the call it answers (unless memory
 * is exhausted: OP_NO_SPACE at once); it may call any function here. OP_HIT: every owner has
 * answered and at least one has room for the entry, so the page can be found. OP_NO_SPACE: all have
 * answered, none had room. OP_TIMEOUT: the deadline came first; what is under way goes on all the
 * same. OP_CANCELLED: directory_close(), which calls back too.
 */
typedef void (*directory_done)(void *context, uint64_t cookie, enum op_status status);

/*
 * "This node has `key` at (place, generation)": to every owner (this node's own shard at once). An
 * owner that dies meanwhile is replaced by its successor in the new map. At `deadline_ns` the
 * answer is OP_TIMEOUT whatever is outstanding. done may be NULL.
 */
void directory_publish(struct control *control, const struct page_key *key, uint32_t place,
	uint32_t generation, uint64_t deadline_ns, directory_done done, void *context,
	uint64_t cookie);
/* Takes our own entry back; retried until acknowledged or the owner is dead. */
void directory_remove(
	struct control *control, const struct page_key *key, uint32_t place, uint32_t generation);
/*
 * A reader found (ref, place, generation) to be wrong: the owners drop that entry, and no newer
 * one.
 */
void directory_stale(struct control *control, const struct page_key *key, uint32_t ref,
	uint32_t place, uint32_t generation);
/* rm: every member (this one included) that holds `key` takes its page away. */
void directory_forget(struct control *control, const struct page_key *key, uint64_t deadline_ns,
	directory_done done, void *context, uint64_t cookie);
/* The page at `place` on node `ref` was read here: a hint for its eviction. */
void directory_touch(struct control *control, uint32_t ref, uint32_t place);

struct directory_counts {
	bool moving;     /* entries move to new owners after a change of the map */
	unsigned behind; /* owners that have not taken all entries of ours yet */
};
void directory_counts(const struct control *control, struct directory_counts *ret);

/* ---- from member.c --------------------------------------------------------------------------- */

struct rpc_link;

/* Off the map: what waits for it goes to its successor once directory_map_changed() is called. */
void directory_member_gone(struct control *control, uint16_t peer, uint32_t ref);
/* The member had dropped our entries: everything it owns is published to it again. */
void directory_forgotten(struct control *control, uint32_t ref);
/* What was sent over that link and not acknowledged is sent again over the next one. */
void directory_link_down(struct control *control, uint16_t peer, const struct rpc_link *link);
void directory_link_up(struct control *control, uint16_t peer);
/* Every heartbeat: a peer that acknowledges nothing is cut off, so that it is tried anew. */
void directory_tick(struct control *control, uint64_t now_ns);

#endif
