/* SPDX-License-Identifier: Apache-2.0 */
/* numa/limit.c: the text of an error names the limit and its value. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "numa/limit.h"

static void an_error_without_a_limit_is_its_text(void **state)
{
	assert_string_equal(limit_error(ENOSPC), "No space left on device");
	assert_string_equal(limit_error(-ENOSPC), "No space left on device");
}

static void a_limit_is_named_with_its_value_and_its_remedy(void **state)
{
	static const struct {
		int error, which;
		const char *name, *remedy;
	} limits[] = {{EFBIG, RLIMIT_FSIZE, "RLIMIT_FSIZE is 123", "LimitFSIZE="},
		{-EMFILE, RLIMIT_NOFILE, "RLIMIT_NOFILE is 123", "LimitNOFILE="},
		{EAGAIN, RLIMIT_NPROC, "RLIMIT_NPROC is 123", "TasksMax="}};

	for (unsigned i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		struct rlimit before, low;
		const char *text;

		assert_int_equal(getrlimit((__rlimit_resource_t)limits[i].which, &before), 0);
		low = (struct rlimit){123, before.rlim_max};
		assert_int_equal(setrlimit((__rlimit_resource_t)limits[i].which, &low), 0);
		text = limit_error(limits[i].error);
		assert_int_equal(setrlimit((__rlimit_resource_t)limits[i].which, &before), 0);
		assert_non_null(strstr(text, strerror(abs(limits[i].error))));
		assert_non_null(strstr(text, limits[i].name));
		assert_non_null(strstr(text, limits[i].remedy));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_error_without_a_limit_is_its_text),
		cmocka_unit_test(a_limit_is_named_with_its_value_and_its_remedy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
