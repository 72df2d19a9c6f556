/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_buffer.c: the reader's snapshot is whole, its own until it takes the next, and
 * never an older one, while the writer goes on.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/control/observe/snapshot_inner.h"

#define ROUNDS 200000u

static struct snapshots *snapshots;

static void *write_all(void *argument)
{
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		struct snapshot *s = snapshots_writing(snapshots);

		s->taken_ns = i;
		s->keys = i * 3;
		s->lag_worst_ns = i * 7;
		snapshots_publish(snapshots);
	}
	return argument;
}

static void the_reader_sees_whole_snapshots_in_order(void **state)
{
	const struct snapshot *s = NULL;
	uint64_t last = 0, different = 0;
	pthread_t thread;

	snapshots = snapshots_open();
	assert_non_null(snapshots);
	assert_null(snapshots_newest(snapshots));
	assert_int_equal(pthread_create(&thread, NULL, write_all, NULL), 0);
	while (!s || s->taken_ns < ROUNDS) {
		uint64_t now;

		s = snapshots_newest(snapshots);
		if (!s)
			continue;
		now = s->taken_ns;
		for (unsigned again = 0; again < 10; again++) {
			assert_int_equal(s->taken_ns, now);
			assert_int_equal(s->keys, now * 3);
			assert_int_equal(s->lag_worst_ns, now * 7);
		}
		assert_true(now >= last);
		different += now != last;
		last = now;
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	print_message("%u published, %u seen\n", ROUNDS, (unsigned)different);
	assert_ptr_equal(snapshots_newest(snapshots), s); /* nothing new: the same one */
	snapshots_close(snapshots);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_reader_sees_whole_snapshots_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
