/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a poll core without work rests. This program's sched_yield() replaces that of libc and takes
 * as long as one that lets another thread run.
 */
#include <sched.h>
#include <stdatomic.h>

#include "engine/rail/poll_core.h"
#include "tests/unit/rail/pair.h"

#define HOUR_NS 3600000000000ull
#define PATIENCE_NS 20000000000ull

static atomic_uint yields;

int sched_yield(void)
{
	uint64_t until_ns = clock_now_ns() + 20000;

	atomic_fetch_add(&yields, 1);
	while (clock_now_ns() < until_ns)
		shm_pause();
	return 0;
}

/* Its time to spin is an hour, so only the long yields can make it sleep. */
static void a_core_whose_yields_let_others_run_sleeps_at_once(void **state)
{
	const struct poll_core_options options = {.core = -1, .spin_ns = HOUR_NS};
	struct pair *p = pair_open(true, false);
	struct world *w = &p->world;
	uint64_t until_ns = clock_now_ns() + PATIENCE_NS;
	struct rail_event event;

	assert_int_equal(poll_core_start(&options, &w->rail, 1, &p->core), 0);
	while (world_counter(w, COUNTER_sleeps) < 3)
		assert_true(clock_now_ns() < until_ns);
	assert_true(atomic_load(&yields) > 0);
	world_command(w, (struct rail_command){.kind = RAIL_STOP});
	while (!rail_event_take(w->rail, &event))
		assert_true(clock_now_ns() < until_ns);
	assert_int_equal(event.kind, RAIL_STOPPED);
	pair_close(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_core_whose_yields_let_others_run_sleeps_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
