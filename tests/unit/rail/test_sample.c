/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sampling of READ latency: one WQE at a time is timed, from its doorbell to its completion.
 */
#include "tests/unit/rail/client_world.h"

static uint64_t latencies(struct world *w, uint64_t *ret_ns_sum)
{
	uint64_t latency[LATENCY_BUCKETS];

	rail_latency(w->rail, latency, ret_ns_sum);
	return latency_count(latency);
}

static void one_read_at_a_time_is_timed(void **state)
{
	struct world *w = *state;
	uint64_t sum;

	for (unsigned i = 0; i < 8; i++) {
		page_put(w, 8 + 8 * i, 4096, 77 + i);
		page_get(w, client, i, 8 + 8 * i, 4096, 77 + i, 8192 * i);
	}
	world_settle(w);
	nic_pull(w);
	assert_int_equal(latencies(w, &sum), 0);
	clock_test_set(w->now_ns += 7000);
	while (w->wqes)
		nic_complete(w, 0, 0);
	world_settle(w); /* of all these READs one was timed; the heads are posted now */
	assert_int_equal(latencies(w, &sum), 1);
	assert_int_equal(sum, 7000);
	clock_test_set(w->now_ns += 9000);
	world_run(w);
	assert_int_equal(latencies(w, &sum), 2);
	assert_int_equal(sum, 16000);
}

static void a_read_that_failed_has_no_latency(void **state)
{
	struct world *w = *state;
	uint64_t sum;

	page_put(w, 8, 4096, 77);
	page_get(w, client, 1, 8, 4096, 77, 0);
	world_settle(w);
	nic_pull(w);
	clock_test_set(w->now_ns += 7000);
	nic_complete(w, 0, 0x13);
	world_settle(w);
	assert_int_equal(latencies(w, &sum), 0);
	assert_null(w->rail->timed); /* the next one is timed again */
}

/* Each step finds work: then one step in RAIL_SAMPLE_STEPS + 1 with a doorbell is timed. */
static void busy_steps_are_sampled_now_and_then(void **state)
{
	const unsigned steps = 4 * (RAIL_SAMPLE_STEPS + 1);
	struct world *w = *state;
	uint64_t sum, before;

	page_put(w, 8, 4096, 77);
	for (unsigned i = 0; i < steps; i++) {
		page_get(w, client, i, 8, 4096, 77, 0);
		assert_true(rail_step(w->rail, w->now_ns));
		nic_pull(w);
		assert_true(w->wqes);
		while (w->wqes)
			nic_complete(w, 0, 0);
	}
	assert_in_range(latencies(w, &sum), 3, 4);
	world_run(w); /* at its end the rail is idle */
	before = latencies(w, &sum);
	page_get(w, client, steps, 8, 4096, 77, 0);
	world_run(w);
	assert_true(latencies(w, &sum) > before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_read_at_a_time_is_timed),
		TEST(a_read_that_failed_has_no_latency),
		TEST(busy_steps_are_sampled_now_and_then),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
