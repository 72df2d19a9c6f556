/* SPDX-License-Identifier: Apache-2.0 */
/* Calls about pages, and the channel that carries them. Channel thread. */
#ifndef CLIENT_CALL_H
#define CLIENT_CALL_H

#include "engine/client/page/batch.h"
#include "engine/client/peercache.h"

/* ---- pages.c --------------------------------------------------------------------------------- */

/*
 * Checks the caller's arguments for the pages of a batch; invalid pages are done. `pin`: pins the
 * registered ranges that the pages lie in, which stay registered until the unpin.
 */
void pages_init(struct pc_batch *b, bool pin);
void pages_unpin(struct pc_batch *b);

/* The duration that a time-out of a public call stands for. */
static inline uint64_t timeout_ns(unsigned timeout_ms)
{
	return (timeout_ms ? timeout_ms : PC_TIMEOUT_MS_DEFAULT) * 1000000ull;
}

/* ---- call.c ---------------------------------------------------------------------------------- */

/* Adds a batch to the channel; the caller sets its pages. NULL: no memory. */
struct pc_batch *batch_make(struct pc_channel *ch, enum batch_kind kind, uint32_t count,
	enum pc_result *results, uint64_t deadline_ns);
void batch_free(struct pc_batch *b);
/*
 * Does all work that needs no waiting: takes the answers, then steps every batch. False: nothing
 * moved.
 */
bool channel_step(struct pc_channel *ch);
/* Ends every page of every batch that is not done: the engine is gone. */
void channel_end_batches(struct pc_channel *ch);

/* ---- channel.c ------------------------------------------------------------------------------- */

/*
 * Called at the start of a batch. True if the channel has a session. If it has none, tries to get
 * one, for at most half of the time to the deadline.
 */
bool channel_ready(struct pc_channel *ch, uint64_t deadline_ns);
/*
 * Ends the channel's session: every page that is not done becomes PC_GONE. While a READ into the
 * caller's memory is in flight, waits first until the engine has drained the channel or has exited.
 */
void channel_lost(struct pc_channel *ch);
/*
 * For a channel with a descriptor, whenever the caller gets control: the descriptor becomes
 * readable when a batch of the channel is done or can move on.
 */
void channel_arm(struct pc_channel *ch);
/* Prints a line: this thread waits for the engine to end READs into the caller's memory. */
void channel_tell_wait(const struct pc_channel *ch);

/* ---- wait.c ---------------------------------------------------------------------------------- */

/* True if an answer of the engine waits in a ring. */
bool wait_answered(struct pc_channel *ch);
/*
 * Steps the channel until the batch is done (`b` NULL: until all its batches are), at most until
 * `until_ns`.
 */
void wait_for(struct pc_channel *ch, const struct pc_batch *b, uint64_t until_ns);

#endif
