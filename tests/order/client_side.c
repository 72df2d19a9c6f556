/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of the sleep protocol, compiled from the engine's sources (see sides.h). */
#define poll note_poll
#define write note_write
#define recv note_recv

#include "engine/client/rings/submit.c"
#include "engine/client/call/wait.c"

#include <stdlib.h>

#include "tests/order/sides.h"

struct client_side {
	struct pc_channel channel;
	struct client_session session;
	struct pc pc;
	struct channel_header header;
};

/* Stubs of other functions that the sources call; the test needs none of their effects. */
bool channel_step(struct pc_channel *ch)
{
	(void)ch;
	return false;
}

void channel_tell_wait(const struct pc_channel *ch)
{
	(void)ch;
}

bool device_busy(const struct device_copies *d)
{
	(void)d;
	return false;
}

void fetch_copies_end(struct pc_channel *ch, enum fetch_wait wait)
{
	(void)ch;
	(void)wait;
}

struct client_side *client_side_new(
	struct status_segment *status, void *ops, void *done, void *ctl, uint32_t **ret_waits)
{
	struct client_side *side = aligned_alloc(64, (sizeof(*side) + 63) & ~(size_t)63);
	struct pc_channel *ch;

	if (!side)
		abort();
	memset(side, 0, sizeof(*side));
	ch = &side->channel;
	ch->pc = &side->pc;
	ch->session = &side->session;
	ch->header = &side->header;
	ch->wake = KICK_CLIENT;
	ch->rails = 1;
	side->session.status = status;
	side->session.fd = -1;
	side->session.control_kick = KICK_CONTROL;
	side->session.rail[0].kick = KICK_RAIL;
	ring_producer_init(&ch->rail[0].ops, ops, OP_RING_SLOTS, sizeof(struct run_line));
	ring_consumer_init(&ch->rail[0].done, done, DONE_RING_SLOTS, sizeof(struct run_done));
	ring_producer_init(&ch->ctl, ctl, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_consumer_init(&ch->ctl_done, aligned_alloc(64, ring_bytes(CTL_DONE_SLOTS, 32)),
		CTL_DONE_SLOTS, sizeof(struct ctl_done));
	memset(ch->ctl_done.shared, 0, ring_bytes(CTL_DONE_SLOTS, 32));
	*ret_waits = &side->header.client_waits;
	return side;
}

void client_side_write(struct client_side *side)
{
	struct ring_producer *ops = &side->channel.rail[0].ops;
	/* The run has an unknown kind, so that the rail answers it without a NIC. */
	struct run run = {.kind = 0, .segments = 1};

	if (ring_room(ops, 1) < 1)
		abort();
	run_encode(&run, ring_slot_new(ops, 0));
}

void client_side_flush(struct client_side *side)
{
	const struct run_header *run = (const void *)side->channel.rail[0].ops.first;

	submit_run(&side->channel, 0, run, 1, 0);
	submit_flush(&side->channel);
}

void client_side_flush_ctl(struct client_side *side)
{
	struct ctl_op op = {.kind = CTL_TOUCH};

	/* the last of them publishes all */
	for (unsigned k = 0; k < FLUSH_SLOTS; k++) {
		if (!submit_ctl_room(&side->channel, 0, 0))
			abort();
		submit_ctl(&side->channel, &op, 0);
	}
}

void client_side_sleep(struct client_side *side)
{
	sleep_until(&side->channel, 0);
}

bool client_side_done(struct client_side *side)
{
	struct ring_consumer *done = &side->channel.rail[0].done;

	if (ring_ready(done) < 1)
		return false;
	ring_release(done, 1);
	return true;
}
