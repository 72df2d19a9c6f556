/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lots: whose turn it is among the runs of a connection. A run posts RAIL_LOT_BYTES, then another
 * run has its turn. Poll core only; the hot path.
 */
#ifndef RAIL_LOT_H
#define RAIL_LOT_H

#include "engine/rail/core.h"

/* Bytes that a run's next lot is charged with, see RAIL_LOT_BYTES. */
static inline uint32_t run_lot_charge(const struct rail_run *run)
{
	uint32_t left = (run->header.pages - run->next) * (run->item_bytes + RAIL_READ_CHARGE);

	return left < RAIL_LOT_BYTES ? left : RAIL_LOT_BYTES;
}

/*
 * Start-time fair queueing: a lot starts at the end of its channel's previous one, or now if that
 * has passed, in a time that counts charged bytes. So lots of channels alternate, whatever the
 * number and length of each channel's runs.
 */
static inline void run_tag(struct rail *rail, struct rail_run *run)
{
	uint64_t *end = &rail->channel[run->channel].lots_end;

	run->tag = *end > rail->lots_now ? *end : rail->lots_now;
	*end = run->tag + run_lot_charge(run);
}

/* Queues a run that has payload to post at its connection, and the connection at the rail. */
static inline void run_queue(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	struct list *at = conn->runs.previous;

	run_tag(rail, run);
	while (at != &conn->runs &&
		unlikely(container_of(at, struct rail_run, pending)->tag > run->tag))
		at = at->previous;
	list_insert_before(at->next, &run->pending);
	if (!list_linked(&conn->waiting))
		list_append(&rail->waiting, &conn->waiting);
}

/* Are all runs of the connection of one channel? Then lots do not take turns. */
static inline bool conn_has_one_channel(const struct conn *conn)
{
	return conn->runs_channel != CHANNEL_NONE;
}

/* Puts the first run of the connection behind those whose turn comes before its next lot. */
static inline void conn_requeue_first(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	if (likely(conn_has_one_channel(conn))) {
		run_tag(rail, run);
		return;
	}
	list_remove(&run->pending);
	run_queue(rail, conn, run);
}

/* The first run of the connection has posted a lot: another run has its turn. */
static inline void conn_end_lot(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	if (run->tag > rail->lots_now)
		rail->lots_now = run->tag;
	if (run->next < run->header.pages)
		conn_requeue_first(rail, conn, run);
	else
		list_remove(&run->pending);
}

#endif
