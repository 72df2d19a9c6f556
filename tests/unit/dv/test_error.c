/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/error.c and the choice of the implementation in dv/setup.c. One thread; a second one
 * checks that each thread has its own error text.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "dv/ops.h"

static void *other_thread(void *argument)
{
	return (void *)(uintptr_t)(strcmp(dv_error(), "no error") == 0);
}

static void each_thread_has_its_own_error_text(void **state)
{
	pthread_t thread;
	void *untouched;

	assert_int_equal(dv_fail(-ENOENT, "opening %s: %m", "mlx5_9"), -ENOENT);
	assert_string_equal(dv_error(), "opening mlx5_9: No such file or directory");
	assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
	pthread_join(thread, &untouched);
	assert_non_null(untouched);
}

static void every_syndrome_has_a_text(void **state)
{
	assert_string_equal(dv_syndrome(0), "done");
	assert_string_equal(dv_syndrome(0x05), "flushed");
	assert_string_equal(dv_syndrome(0x13), "remote access error");
	assert_string_equal(dv_syndrome(0x15), "transport retries exceeded");
	assert_string_equal(dv_syndrome(0xfe), "unknown syndrome");
}

static void a_failed_open_sets_the_error_and_not_the_output(void **state)
{
	static const struct dv_options wrong[] = {
		{.name = ""},
		{.name = "soft", .link = "carrier pigeon"},
		{.name = "soft", .link = "tcp", .address = "0.0.0.0"},
		{.name = "soft", .link = "tcp", .address = "localhost"},
		{.name = "no_such_nic_0"},
	};
	struct dv_device *device = (void *)&wrong;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		dv_fail(0, "unset");
		assert_true(dv_open(&wrong[i], &device) < 0);
		assert_ptr_equal(device, &wrong);
		assert_string_not_equal(dv_error(), "unset");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_thread_has_its_own_error_text),
		cmocka_unit_test(every_syndrome_has_a_text),
		cmocka_unit_test(a_failed_open_sets_the_error_and_not_the_output),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
