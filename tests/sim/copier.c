/* SPDX-License-Identifier: Apache-2.0 */
/* copier.h. One thread. */
#include "tests/sim/copier.h"

#include <stdlib.h>
#include <string.h>

#include "engine/abi/run.h"
#include "engine/control/copies/copies.h"
#include "engine/control/pages/pages_inner.h"
#include "engine/rail/rail.h"
#include "tests/sim/rail.h"
#include "tests/sim/world.h"

static struct rail_channel *channel_of[SIM_NODES_MAX][SIM_RAILS];
static uint64_t made;

/* A READ of a rail for the copier. */
struct copy_read {
	unsigned node, rail;
	uint64_t incarnation;
	struct run run;
	struct run_entry entry;
	bool right;
	unsigned char *bytes; /* of the page, when the holder's NIC read it */
};

void copier_open(unsigned node)
{
	struct control *control = &world.node[node].control;

	memset(channel_of[node], 0, sizeof(channel_of[node]));
	if (!world.copies)
		return;
	control->status->page_bytes_max = world.node[node].pages.length;
	for (unsigned i = 0; i < control->rails; i++) {
		const struct huge *memory = pool_memory(control->rail[i].pool);

		control->status->pool_bytes[i] = memory->bytes;
		control->rail[i].kick = -1;
		for (unsigned via = 0; via < control->rails; via++)
			control->rail[via].exported[REGION_POOL_0 + i] =
				(struct dv_mr){.base = memory->base, .length = memory->bytes};
	}
	if (copies_open(control) < 0)
		abort();
}

void copier_close(unsigned node)
{
	struct control *control = &world.node[node].control;

	made += control->counter[COUNTER_copies_made];
	copies_close(control);
	memset(channel_of[node], 0, sizeof(channel_of[node]));
}

void copier_channel(unsigned node, unsigned rail, struct rail_channel *channel)
{
	channel_of[node][rail] = channel;
}

uint64_t copier_made(void)
{
	uint64_t all = made;

	for (unsigned i = 0; i < world.nodes; i++)
		all += world.node[i].control.counter[COUNTER_copies_made];
	return all;
}

/* Planted mistake. */
__typeof__(copies_forget) __real_copies_forget, __wrap_copies_forget;

void __wrap_copies_forget(struct control *control, const struct page_key *key)
{
	if (world.mutant != MUTANT_LATE_COPY)
		__real_copies_forget(control, key);
}

static unsigned char *memory_at(unsigned node, uint32_t place)
{
	const struct pool *pool = world.node[node].control.rail[place_rail(place)].pool;

	return (unsigned char *)pool_memory(pool)->base + place_offset(place);
}

static bool copy_sample(void *context, unsigned holder)
{
	struct copy_read *read = context;
	uint32_t place = place_make(read->run.region - REGION_POOL_0, read->entry.unit);
	struct pool *pool = world.node[holder].control.rail[place_rail(place)].pool;
	const struct page_head *heads = pool_heads(pool)->base;

	read->right = page_head_length(&heads[read->entry.unit], &read->entry.key,
			      read->entry.generation) == read->run.page_bytes;
	memcpy(read->bytes, memory_at(holder, place), read->run.page_bytes);
	return true;
}

/* The NIC writes nothing more: the answer comes. */
static void copy_done(void *context, bool answered)
{
	struct copy_read *read = context;
	struct control *control = &world.node[read->node].control;
	struct rail_channel *channel = channel_of[read->node][read->rail];
	bool hit = answered && read->right;
	struct run_done done = {.cookie = read->run.cookie,
		.hit = hit,
		.stale = answered && !hit,
		.status = answered ? OP_HIT : OP_TIMEOUT,
		.kind = OP_PAGE};

	if (world.node[read->node].running && control->incarnation == read->incarnation &&
		channel) {
		unsigned to = (read->run.to_region - REGION_OWN_0) & (SIM_RAILS - 1);
		uint64_t offset = read->entry.to & (RUN_TO_MAX - 1);
		const struct huge *pool = pool_memory(control->rail[to].pool);

		memcpy((unsigned char *)pool->base + offset, read->bytes, read->run.page_bytes);
		memcpy(ring_slot_new(&channel->done, 0), &done, sizeof(done));
		ring_publish(&channel->done, 1);
	}
	free(read->bytes);
	free(read);
}

static void copy_read(unsigned node, unsigned rail, const struct run_line *line)
{
	struct copy_read *read = calloc(1, sizeof(*read));

	if (!read)
		abort();
	*read = (struct copy_read){.node = node,
		.rail = rail,
		.incarnation = world.node[node].control.incarnation,
		.entry = line->half[1]};
	run_decode(&line->header, net_now(), &read->run);
	read->bytes = malloc(read->run.page_bytes);
	if (!read->bytes)
		abort();
	rail_read(&(struct rail_read){.reader = node,
		.ref = read->run.peer_ref,
		.region = read->run.region,
		.sample = copy_sample,
		.done = copy_done,
		.context = read});
}

unsigned copier_turn(unsigned node)
{
	unsigned work = copies_turn(&world.node[node].control);

	for (unsigned rail = 0; rail < SIM_RAILS; rail++) {
		struct rail_channel *channel = channel_of[node][rail];

		while (channel && ring_ready(&channel->ops) > 0) {
			struct run_line line;

			memcpy(&line, ring_slot_old(&channel->ops, 0), sizeof(line));
			ring_release(&channel->ops, 1);
			copy_read(node, rail, &line);
		}
	}
	return work;
}

void copier_wish(unsigned node, uint64_t number)
{
	struct control *control = &world.node[node].control;
	const struct page_key key = node_key_of(node, number);

	for (unsigned i = 0; i < world.nodes; i++) {
		const struct node *from = &world.node[i];
		const struct index_entry *e = i != node && from->running && from->control.index
						      ? index_find(from->control.index, &key)
						      : NULL;

		if (!e)
			continue;
		world.current = node;
		(void)copies_ask(
			control, &(struct copy_wish){.key = key,
					 .from = {from->control.ref, e->place, e->generation},
					 .length = e->length,
					 .why = PAGE_PREFETCHED});
		return;
	}
}
