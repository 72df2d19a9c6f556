/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads in virtual time: it implements engine/control/base/work.h. A call is made as a
 * whole, in one event, a while after it was submitted. One thread.
 */
#include "engine/control/base/work.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

#define CALL_NS_MAX (200 * SIM_MS) /* longest time of a call */

/* A call that was submitted and not made. */
struct made {
	struct thing thing; /* first */
	TAILQ_ENTRY(made) next;
	struct works *works;
	struct work *work;
};

struct works {
	unsigned node;
	bool driver; /* its calls are those of a NIC's driver */
	TAILQ_HEAD(, made) calls;
};

int works_open(
	struct event_base *base, const struct works_options *options, struct works **ret_works)
{
	struct works *works = calloc(1, sizeof(*works));

	if (!works)
		abort();
	works->node = base->node;
	works->driver = strcmp(options->name, "pc-connections") == 0;
	TAILQ_INIT(&works->calls);
	*ret_works = works;
	return 0;
}

/* Makes the parts that are left. */
static void call_make(struct made *made)
{
	struct work *work = made->work;
	unsigned parts = work->parts ? work->parts : 1;

	TAILQ_REMOVE(&made->works->calls, made, next);
	while (work->taken < parts)
		work->run(work, work->taken++);
	if (work->end)
		work->end(work);
	thing_close(&made->thing);
}

static void call_due(struct thing *thing, uint64_t word)
{
	struct made *made = (struct made *)(void *)thing;
	struct work *work = made->work;

	(void)word;
	if (thing->closed)
		return;
	call_make(made);
	work->done(work);
}

void work_submit(struct works *works, unsigned queue, struct work *work)
{
	struct made *made = calloc(1, sizeof(*made));

	(void)queue;
	if (!made)
		abort();
	made->works = works;
	made->work = work;
	work->taken = 0;
	TAILQ_INSERT_TAIL(&works->calls, made, next);
	world_at(world.now_ns + world_random() % (works->driver ? world.driver_ns : CALL_NS_MAX),
		works->node, &made->thing, 0, call_due);
}

unsigned works_busy(const struct works *works)
{
	const struct made *made;
	unsigned count = 0;

	TAILQ_FOREACH (made, &works->calls, next)
		count++;
	return count;
}

void works_close(struct works *works)
{
	if (!works)
		return;
	while (!TAILQ_EMPTY(&works->calls))
		call_make(TAILQ_FIRST(&works->calls));
	free(works);
}
