/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of the scenarios of faults.c: clients on all hosts get, set and remove pages, as a cache
 * is used. The pages in use change slowly, and pools are smaller than all of them, so pages are
 * evicted all the time, and most of those are not used again. One thread.
 */
#include "tests/sim/faults.h"

#include <stdlib.h>

#include "tests/sim/run.h"
#include "tests/sim/truth.h"

#define LOAD_NS (4 * SIM_MS)    /* between two calls of a client */
#define WINDOW_NS (10 * SIM_MS) /* after which another page is in use */

static uint64_t pages, window;
static unsigned removes; /* percent of the calls */
static bool quiet_node[SIM_NODES_MAX];

/* A client that goes on with the page after an answer. */
struct goes_on {
	unsigned node;
	uint64_t number;
};

static void set_after(void *context, const struct call_result *result)
{
	struct goes_on *next = context;
	bool go = next->number < pages && !truth_busy(next->number) && result->end != CALL_GONE;

	if (go)
		truth_call(CALL_SET, next->node, next->number, NULL, NULL);
	free(next);
}

/* Get, else set: the usual call of a cache. */
static void set_if_absent(void *context, const struct call_result *result)
{
	if (result->end != CALL_HIT)
		set_after(context, result);
	else
		free(context);
}

static struct goes_on *goes_on(unsigned node, uint64_t number)
{
	struct goes_on *next = malloc(sizeof(*next));

	if (!next)
		abort();
	*next = (struct goes_on){node, number};
	return next;
}

uint64_t load_page(void)
{
	return (world.now_ns / WINDOW_NS + world_random() % window) % pages;
}

static void call_one(unsigned node)
{
	uint64_t number = load_page();
	unsigned dice = (unsigned)(world_random() % 100);

	if (dice < removes) {
		if (!truth_busy(number))
			truth_call(CALL_REMOVE, node, number, dice % 2 ? set_after : NULL,
				dice % 2 ? goes_on(node, number) : NULL);
	} else if (dice < 75) {
		truth_call(CALL_GET, node, number, set_if_absent, goes_on(node, number));
	} else if (!truth_busy(number)) {
		truth_call(CALL_SET, node, number, NULL, NULL);
	}
}

void load_set(uint64_t of_pages, uint64_t in_use, unsigned removes_percent)
{
	pages = of_pages;
	window = in_use;
	removes = removes_percent;
}

void load_none(unsigned node, bool none)
{
	quiet_node[node] = none;
}

void load_calls(void)
{
	for (unsigned i = 0; i < world.nodes; i++)
		if (world.node[i].running && !quiet_node[i]) {
			pages_limit(i);
			call_one(i);
		}
}

void load(uint64_t ns)
{
	for (uint64_t t = 0; t < ns; t += LOAD_NS) {
		load_calls();
		world_run(world.now_ns + LOAD_NS);
	}
}
