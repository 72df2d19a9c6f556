/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executes the commands of the control plane: add and remove connections, channels and regions,
 * lose the NIC and find it again, stop the rail. Poll core only.
 */
#include "engine/rail/core.h"

/* ---- channels ------------------------------------------------------------------------------- */

static void channel_event_send(struct rail *rail, uint32_t kind, struct rail_channel *channel)
{
	struct rail_event event = {.kind = kind, .object = channel};

	rail_event_send(rail, &event);
}

/*
 * Discards the completions that are written but not published: the client has gone or is broken, so
 * its done ring is not used any more.
 */
static void channel_mute(struct rail *rail, const struct rail_channel *channel)
{
	unsigned i = 0;

	if (!rail->channel[channel->id].fresh)
		return;
	rail->channel[channel->id].fresh = 0;
	while (rail->fresh[i] != channel->id)
		i++;
	rail->fresh[i] = rail->fresh[--rail->fresh_count];
}

/* Executes RAIL_CHANNEL_ADD: the rail owns the channel from here on. */
static void channel_add(struct rail *rail, struct rail_channel *channel)
{
	struct channel_slot *slot = &rail->channel[channel->id];

	assert(channel->id < RAIL_CHANNELS_MAX && !slot->channel);
	channel->in_flight = 0;
	channel->stopping = channel->broken = false;
	slot->channel = channel;
	slot->fresh = 0;
	slot->lots_end = 0;
	slot->turn = rail->channels;
	rail->turn[rail->channels++] = (uint16_t)channel->id;
}

void channel_break(struct rail *rail, struct rail_channel *channel)
{
	if (channel->broken)
		return;
	channel->broken = true;
	channel_mute(rail, channel);
	rail_count(rail, COUNTER_rings_broken, 1);
	channel_event_send(rail, RAIL_CHANNEL_BROKEN, channel);
}

void channel_return_if_idle(struct rail *rail, struct rail_channel *channel)
{
	struct channel_slot *slot = &rail->channel[channel->id];
	uint16_t last;

	if (!channel->stopping || channel->in_flight)
		return;
	/* The last channel of turn[] takes the place of the removed one. */
	last = rail->turn[--rail->channels];
	rail->turn[slot->turn] = last;
	rail->channel[last].turn = slot->turn;
	rail->wake[channel->id / 64] &= ~(1ull << channel->id % 64);
	slot->channel = NULL;
	channel_event_send(rail, RAIL_CHANNEL_RETURNED, channel);
}

/*
 * Cancels a run of a channel that stops. Nothing more of it is posted and no completion is written.
 * If WQEs are outstanding, the run stays until they retire, with a deadline of at most `limit_ns`.
 */
static void run_stop(struct rail *rail, struct rail_run *run, uint64_t limit_ns)
{
	if (!run->outstanding) {
		run_end(rail, run, OP_CANCELLED);
		return;
	}
	run_quit(run, OP_CANCELLED);
	run_set_live(rail, run, run->deadline_ns < limit_ns ? run->deadline_ns : limit_ns);
}

/* Executes RAIL_CHANNEL_STOP. */
static void channel_stop(struct rail *rail, struct rail_channel *channel)
{
	uint64_t limit_ns = rail_now(rail) + RUN_STOP_NS;
	uint32_t id = channel->id;

	if (rail->channel[id].channel != channel || channel->stopping)
		return;
	channel->stopping = true;
	channel_mute(rail, channel);
	if (!channel->in_flight) {
		channel_return_if_idle(rail, channel);
		return;
	}
	/* When its last run ends, the channel goes back to the control plane, so the loop
	 * must not read *channel. */
	for (struct rail_run *run = run_live_from(rail, 0); run;
		run = run_live_from(rail, run->number + 1u))
		if (run->channel == id)
			run_stop(rail, run, limit_ns);
}

/* ---- regions -------------------------------------------------------------------------------- */

static void region_add(struct rail *rail, const struct rail_region *region)
{
	struct region_slot *slot = &rail->region[region->id];

	assert(region->id >= REGION_OWN_0 && region->id < REGIONS_MAX && !slot->present);
	assert(region->session && (!region->extent_shift || region->extent_lkey));
	*slot = (struct region_slot){.base = region->base,
		.length = region->length,
		.lkey = region->lkey,
		.session = region->session,
		.extent_shift = region->extent_shift,
		.present = true};
	rail->extent_lkey[region->id] = region->extent_lkey;
}

void region_return_if_unused(struct rail *rail, uint32_t id)
{
	struct region_slot *slot = &rail->region[id];
	struct rail_event event = {.kind = RAIL_REGION_RETURNED, .detail = id};

	if (!slot->dropping || slot->users)
		return;
	*slot = (struct region_slot){.present = false};
	rail->extent_lkey[id] = NULL;
	rail_event_send(rail, &event);
}

/* Executes RAIL_REGION_KEY. */
static void region_key(struct rail *rail, const struct rail_region *region)
{
	struct region_slot *slot = &rail->region[region->id];

	if (slot->present && !slot->dropping)
		slot->lkey = region->lkey;
}

static void region_drop(struct rail *rail, uint32_t id)
{
	if (id >= REGIONS_MAX || !rail->region[id].present)
		return;
	rail->region[id].dropping = true;
	/* session_region() refuses new runs that name the region */
	rail->region[id].session = 0;
	region_return_if_unused(rail, id);
}

/* ---- stop ------------------------------------------------------------------------------------ */

/* Executes RAIL_STOP: cancels the runs that wait for a connection; the others drain. */
static void rail_stop(struct rail *rail)
{
	rail->stopping = true;
	for (struct rail_run *run = run_live_from(rail, 0); run;
		run = run_live_from(rail, run->number + 1u))
		if (!run->conn)
			run_end(rail, run, OP_CANCELLED);
}

void rail_finish(struct rail *rail)
{
	struct rail_event event = {.kind = RAIL_STOPPED};

	/* After RAIL_STOP_STEPS steps with all runs free, every op that a ring held when RAIL_STOP
	 * arrived was taken and cancelled. Those of a client that takes no answers may stay. */
	if (rail->in_flight)
		return;
	if (rail->channels && rail->stop_steps < RAIL_STOP_STEPS)
		rail->stop_steps++;
	else if (!rail->stopped && !list_linked(&rail->conns) &&
		 rail->late_head == rail->late_tail &&
		 ring_ready_now(&rail->inbox.command_in) == 0 &&
		 ring_room(&rail->inbox.event_out, 1) >= 1) {
		rail_event_send(rail, &event);
		rail->stopped = true;
	}
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static void command_execute(struct rail *rail, const struct rail_command *command)
{
	switch (command->kind) {
	case RAIL_CONN_ADD: conn_add(rail, command->object); break;
	case RAIL_CONN_REFUSE: peer_refuse(rail, command->peer, command->ref); break;
	case RAIL_CONN_DROP: conn_drop(rail, command->peer, command->ref, command->object); break;
	case RAIL_CONN_RETIRE: conn_retire(rail, command->object); break;
	case RAIL_LOST: rail_lose(rail); break;
	case RAIL_FOUND: rail_find(rail); break;
	case RAIL_CHANNEL_ADD: channel_add(rail, command->object); break;
	case RAIL_CHANNEL_STOP: channel_stop(rail, command->object); break;
	case RAIL_REGION_ADD: region_add(rail, &command->region); break;
	case RAIL_REGION_KEY: region_key(rail, &command->region); break;
	case RAIL_REGION_DROP: region_drop(rail, command->region.id); break;
	case RAIL_STOP: rail_stop(rail); break;
	default: assert(false && "a command the control plane does not have");
	}
}

unsigned rail_execute_commands(struct rail *rail)
{
	struct ring_consumer *in = &rail->inbox.command_in;
	unsigned n = 0;

	while (n < RAIL_COMMAND_BURST && ring_ready(in) > 0) {
		struct rail_command command;

		memcpy(&command, ring_slot_old(in, 0), sizeof(command));
		ring_release(in, 1);
		command_execute(rail, &command);
		n++;
	}
	return n;
}
