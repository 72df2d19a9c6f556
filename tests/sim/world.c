/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time, the queue of events, timers and random numbers. One thread. Events of equal time
 * run in the order in which they were made, so a seed gives one trace.
 */
#include "tests/sim/world.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/disk.h"
#include "tests/sim/keeper.h"
#include "tests/sim/nic.h"

struct event {
	uint64_t at_ns, serial, word;
	struct thing *thing;
	world_call call;
	unsigned node;
	bool always;
};

struct net_timer {
	struct thing thing; /* first */
	unsigned node;
	bool repeats;
	uint64_t period_ns;
	uint64_t stamp; /* number of the arming that counts; events of others are void */
	uint64_t armed;
	net_call call;
	void *context;
};

struct world world;
static struct event *heap;
static size_t heap_count, heap_room;
/* events that a stopped process has not run yet */
static struct event *parked;
static size_t parked_count, parked_room;

/* ---- the queue ------------------------------------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->serial < b->serial;
}

static void push(const struct event *event)
{
	size_t at = heap_count++;

	if (heap_count > heap_room) {
		heap_room = heap_room * 2 + 1024;
		heap = realloc(heap, heap_room * sizeof(*heap));
		if (!heap)
			abort();
	}
	for (; at && before(event, &heap[(at - 1) / 2]); at = (at - 1) / 2)
		heap[at] = heap[(at - 1) / 2];
	heap[at] = *event;
}

static struct event pop(void)
{
	struct event first = heap[0], last = heap[--heap_count];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < heap_count) {
		if (child + 1 < heap_count && before(&heap[child + 1], &heap[child]))
			child++;
		if (!before(&heap[child], &last))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return first;
}

static void add(struct event event)
{
	event.serial = ++world.serial;
	if (event.at_ns < world.now_ns)
		event.at_ns = world.now_ns;
	if (event.thing)
		event.thing->events++;
	push(&event);
}

void world_at(uint64_t at_ns, unsigned node, struct thing *thing, uint64_t word, world_call call)
{
	add((struct event){
		.at_ns = at_ns, .word = word, .thing = thing, .call = call, .node = node});
}

void world_always(
	uint64_t at_ns, unsigned node, struct thing *thing, uint64_t word, world_call call)
{
	add((struct event){.at_ns = at_ns,
		.word = word,
		.thing = thing,
		.call = call,
		.node = node,
		.always = true});
}

void thing_release(struct thing *thing)
{
	if (thing->closed && thing->events == 0)
		free(thing);
}

void thing_close(struct thing *thing)
{
	thing->closed = true;
	thing_release(thing);
}

void world_trace(uint64_t word)
{
	world.trace = map_mix(world.trace ^ word);
}

void world_cut(unsigned a, unsigned b, bool lost)
{
	size_t at = (size_t)a * world.nodes + b;
	uint64_t bit = 1ull << at % 64;

	world.cut[at / 64] = lost ? world.cut[at / 64] | bit : world.cut[at / 64] & ~bit;
}

bool world_is_cut(unsigned a, unsigned b)
{
	size_t at = (size_t)a * world.nodes + b;

	return world.cut[at / 64] >> at % 64 & 1;
}

static void park(const struct event *event)
{
	if (parked_count == parked_room) {
		parked_room = parked_room * 2 + 256;
		parked = realloc(parked, parked_room * sizeof(*parked));
		if (!parked)
			abort();
	}
	parked[parked_count++] = *event;
}

/* Each event as if it had been tried every millisecond since it was due. */
void world_resume(unsigned node)
{
	size_t kept = 0;

	for (size_t i = 0; i < parked_count; i++) {
		struct event *event = &parked[i];

		if (event->node != node) {
			parked[kept++] = *event;
			continue;
		}
		event->at_ns += ((world.now_ns - event->at_ns) / SIM_MS + 1) * SIM_MS;
		push(event);
	}
	parked_count = kept;
}

static void run_one(const struct event *event)
{
	struct node *node = &world.node[event->node];

	world.now_ns = event->at_ns;
	if (!event->always && node->stopped && node->running) {
		park(event);
		return;
	}
	world.current = event->node;
	world.events++;
	world_trace(event->at_ns);
	world_trace((uint64_t)event->node << 32 | (uint32_t)event->word);
	if (event->thing)
		event->thing->events++;
	event->call(event->thing, event->word);
	if (!event->always && node->running)
		node_turn(event->node);
	if (event->thing) {
		event->thing->events -= 2;
		thing_release(event->thing);
	}
}

void world_run(uint64_t until_ns)
{
	while (heap_count && heap[0].at_ns <= until_ns) {
		struct event event = pop();

		run_one(&event);
	}
	world.now_ns = until_ns;
}

void world_open(unsigned nodes, uint64_t seed)
{
	memset(&world, 0, sizeof(world));
	world.nodes = nodes;
	world.seed = seed;
	world.random = map_mix(seed + 0x9e3779b97f4a7c15ull);
	world.now_ns = 1000 * SIM_S;
	world.driver_ns = NIC_DRIVER_NS;
	world.node = calloc(nodes, sizeof(*world.node));
	world.cut = calloc((size_t)nodes * nodes / 64 + 1, sizeof(*world.cut));
	if (!world.node || !world.cut)
		abort();
	for (unsigned i = 0; i < nodes; i++)
		world.node[i].control.shard = &world.node[i].shard;
}

void world_close(void)
{
	for (unsigned i = 0; i < world.nodes; i++)
		if (world.node[i].running)
			node_crash(i, true);
	while (heap_count) {
		struct event event = heap[--heap_count];

		if (!event.thing)
			continue;
		event.thing->events--;
		thing_release(event.thing);
	}
	pages_close();
	keeper_close();
	for (unsigned i = 0; i < world.nodes; i++)
		disks_free(i);
	nics_close();
	free(heap);
	free(parked);
	heap = parked = NULL;
	heap_room = parked_room = 0;
	free(world.node);
	free(world.cut);
	world.node = NULL;
	world.cut = NULL;
	look_close();
	views_close();
}

uint64_t world_random(void)
{
	world.random += 0x9e3779b97f4a7c15ull;
	return map_mix(world.random);
}

/* ---- time, timers, random numbers of net.h --------------------------------------------------- */

uint64_t net_now(void)
{
	const struct node *node = &world.node[world.current];
	int64_t skew = (int64_t)(world.now_ns / 1000000) * node->skew_ppm;

	return (uint64_t)((int64_t)world.now_ns + skew + node->clock_ns);
}

/* numa/clock.h: one clock of a host, which the rooms of pages and clients read too. */
uint64_t __wrap_clock_raw_ns(void);
uint64_t __wrap_clock_now_ns(void);

uint64_t __wrap_clock_raw_ns(void)
{
	return net_now();
}

uint64_t __wrap_clock_now_ns(void)
{
	return net_now();
}

uint32_t net_random(void)
{
	return (uint32_t)world_random();
}

struct net_timer *net_timer_new(struct event_base *base, bool repeats, net_call call, void *context)
{
	struct net_timer *timer = calloc(1, sizeof(*timer));

	if (!timer)
		abort();
	timer->node = base->node;
	timer->repeats = repeats;
	timer->call = call;
	timer->context = context;
	return timer;
}

void net_timer_free(struct net_timer *timer)
{
	if (!timer)
		return;
	timer->armed = 0;
	thing_close(&timer->thing);
}

static void timer_fires(struct thing *thing, uint64_t stamp)
{
	struct net_timer *timer = (struct net_timer *)(void *)thing;

	if (timer->armed != stamp || thing->closed || !world.node[timer->node].running)
		return;
	timer->armed = 0;
	if (timer->repeats)
		(void)net_timer_set(timer, timer->period_ns / 1000);
	timer->call(timer->context);
}

/* A turn of the loop takes time: code that waits for part of a microsecond in turns goes on. */
int net_timer_set(struct net_timer *timer, uint64_t us)
{
	timer->period_ns = us * 1000;
	timer->armed = ++timer->stamp;
	world_at(world.now_ns + (us ? us : 1) * 1000, timer->node, &timer->thing, timer->armed,
		timer_fires);
	return 0;
}

void net_timer_stop(struct net_timer *timer)
{
	timer->armed = 0;
}

void net_defer(struct net_timer *timer)
{
	uint64_t period_ns = timer->period_ns;

	(void)net_timer_set(timer, 0);
	timer->period_ns = period_ns;
}
