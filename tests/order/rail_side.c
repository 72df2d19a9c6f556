/* SPDX-License-Identifier: Apache-2.0 */
/* The rail's side of the sleep protocol, compiled from the engine's sources (see sides.h). */
#define ppoll note_ppoll
#define write note_write
#define read note_read
#define preadv2 note_preadv2
#define send note_send

#include "engine/rail/open.c"
#include "engine/rail/poll_core.c"

#include "tests/order/sides.h"

struct rail_side {
	struct poll_core core;
	struct rail_channel channel;
	uint32_t told; /* number of commands that the test has sent to the rail */
};

struct rail_side *rail_side_new(
	struct status_segment *status, void *ops, void *done, uint32_t *client_waits)
{
	struct rail_options options = {
		.kick = KICK_RAIL, .control_kick = KICK_CONTROL, .status = status};
	struct rail_side *side = aligned_alloc(64, (sizeof(*side) + 63) & ~(size_t)63);
	struct rail_command add = {.kind = RAIL_CHANNEL_ADD};
	struct rail *rail;

	if (!side || rail_open(&options, &rail) < 0)
		abort();
	memset(side, 0, sizeof(*side));
	poll_core_set(&side->core, &rail, 1);
	side->channel = (struct rail_channel){.wake = KICK_CLIENT, .client_waits = client_waits};
	ring_consumer_init(&side->channel.ops, ops, OP_RING_SLOTS, sizeof(struct run_line));
	ring_producer_init(&side->channel.done, done, DONE_RING_SLOTS, sizeof(struct run_done));
	add.object = &side->channel;
	if (!rail_command_send(rail, &add))
		abort();
	while (poll_turn(&side->core))
		;
	return side;
}

void rail_side_rest(struct rail_side *side)
{
	poll_sleep(&side->core, REST_SLEEP_NS);
}

void rail_side_turn(struct rail_side *side)
{
	poll_turn(&side->core);
}

void rail_side_tell(struct rail_side *side)
{
	struct rail_command nothing = {.kind = RAIL_CONN_REFUSE, .peer = 1, .ref = 1};

	if (!rail_command_send(side->core.rail[0], &nothing))
		abort();
}

bool rail_side_idle(struct rail_side *side)
{
	return poll_turn(&side->core) == 0;
}
