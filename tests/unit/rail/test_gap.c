/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gaps of a poll core (engine/rail/poll_core.h): the histogram, and the sums of busy, idle and
 * software-NIC time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/rail/poll_core.h"

static void the_histogram_has_two_buckets_per_octave(void **state)
{
	assert_int_equal(gap_bucket(0), 0);
	assert_int_equal(gap_bucket_ns(0), 0);
	assert_int_equal(gap_bucket_ns(1), 64);
	assert_int_equal(gap_bucket_ns(2), 96);
	for (unsigned b = 1; b < GAP_BUCKETS; b++) {
		assert_int_equal(gap_bucket(gap_bucket_ns(b)), b);
		assert_int_equal(gap_bucket(gap_bucket_ns(b) - 1), b - 1);
	}
	assert_int_equal(gap_bucket(UINT64_MAX), GAP_BUCKETS - 1);
}

static void a_gap_is_counted_unless_the_thread_rested(void **state)
{
	struct gaps g = {.last = 0};
	uint64_t scale = clock_tick_scale;

	/* scale of the time-stamp counter at which one tick is one nanosecond */
	clock_tick_scale = 1 << 24;
	/* the first turn has no previous one, so it counts no gap */
	assert_int_equal(gap_turn(&g, 1000, true), 0);
	assert_int_equal(gap_turn(&g, 1100, true), 100);
	assert_int_equal(gap_turn(&g, 1150, false), 50);
	gap_rest(&g);
	assert_int_equal(gap_turn(&g, 900001150, true), 0);
	assert_int_equal(gap_turn(&g, 900011151, false), 10001);
	assert_int_equal(g.busy_ticks, 100);
	assert_int_equal(g.spin_ticks, 10051);
	assert_int_equal(g.bucket[gap_bucket(100)], 1);
	assert_int_equal(g.bucket[0], 1);
	assert_int_equal(g.bucket[gap_bucket(10001)], 1);
	clock_tick_scale = scale;
}

static void time_in_software_nics_is_counted_separately(void **state)
{
	struct gaps g = {.last = 1000};

	gap_nics(&g, 30);
	gap_nics(&g, 10);
	gap_turn(&g, 1100, true);
	assert_true(g.busy_ticks == 100 && g.nic_ticks == 40 && g.spin_ticks == 0);
	gap_nics(&g, 30); /* neither the software NIC nor a rail found work in this turn */
	gap_turn(&g, 1200, false);
	assert_true(g.busy_ticks == 100 && g.nic_ticks == 40 && g.spin_ticks == 70);
	gap_nics(&g, 5);
	gap_rest(&g);
	gap_turn(&g, 5000, true);
	gap_turn(&g, 5100, true);
	assert_true(g.busy_ticks == 200 && g.nic_ticks == 40);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_histogram_has_two_buckets_per_octave),
		cmocka_unit_test(a_gap_is_counted_unless_the_thread_rested),
		cmocka_unit_test(time_in_software_nics_is_counted_separately),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
