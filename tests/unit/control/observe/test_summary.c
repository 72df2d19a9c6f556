/* SPDX-License-Identifier: Apache-2.0 */
/*
 * summary_*() of view.c: the 256 bytes that engines exchange, and the bounds of what is received.
 * Random tests print their seed and take one from the environment variable SEED.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "config/limits.h"
#include "engine/control/observe/summary_inner.h"

static uint64_t random_state;

static int seed(void **state)
{
	const char *given = getenv("SEED");

	random_state = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	print_message("SEED=%llu\n", (unsigned long long)random_state);
	return 0;
}

static uint64_t rnd(void)
{
	random_state += 0x9e3779b97f4a7c15ull;
	uint64_t z = random_state;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* ---- the layout ------------------------------------------------------------------------------ */

/* Engines of other builds read these bytes: the test fails when a field moves. */
static void the_bytes_are_as_they_are_sent(void **state)
{
	static const uint8_t head[] = {1, 2, 3, 4, 5, 3, 7, 0, 8, 0, 0xe7, 3, 100, 0, 0xf4, 1, 0xfd,
		0x7c, 0x10, 0x27, 0x15, 0xcd, 0x5b, 0x07, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x05, 0, 0,
		1, 0, 0, 0, 0, 0, 0, 0, 0x78, 0x56, 0x34, 0x12, 2, 0, 0, 0, 'p', 'o', 'o', 'l', '_',
		'f', 'u', 'l', 'l', 0};
	struct summary s = {.made = 1,
		.severity = 2,
		.flags = 3,
		.findings = 4,
		.rails = 5,
		.rails_up = 3,
		.members_up = 7,
		.members_down = 8,
		.pool_used = 999,
		.directory_used = 100,
		.hits = 500,
		.window_ms = 10000,
		.uptime_s = 123456789,
		.get_bytes_per_s = 0x056789abcdef,
		.set_bytes_per_s = 1,
		.get_pages_per_s = 0x12345678,
		.evictions_per_s = 2,
		.finding = "pool_full",
		.dashboard_port = 0x7cfd};
	struct summary got;

	s.calls[SUMMARY_GET].batches = 0xa1;
	s.calls[SUMMARY_EXISTS].us[SUMMARY_P999] = 0xa3;
	assert_memory_equal(&s, head, sizeof(head));
	assert_int_equal(((uint8_t *)&s)[72], 0xa1);
	assert_int_equal(((uint8_t *)&s)[72 + 44], 0xa3);
	assert_true(summary_decode((uint8_t *)&s, sizeof(s), &got));
	assert_memory_equal(&got, &s, sizeof(s));
}

static void a_later_version_is_read_and_its_new_fields_are_ignored(void **state)
{
	struct summary s = {.made = 9, .severity = 1, .rails = 2}, got;

	memset(s.spare, 0xff, sizeof(s.spare));
	assert_true(summary_decode((uint8_t *)&s, sizeof(s), &got));
	memset(s.spare, 0, sizeof(s.spare));
	assert_memory_equal(&got, &s, sizeof(s));
	s.made = 0;
	assert_false(summary_decode((uint8_t *)&s, sizeof(s), &got));
	s.made = 1;
	assert_false(summary_decode((uint8_t *)&s, sizeof(s) - 1, &got));
	assert_false(summary_decode((uint8_t *)&s, 0, &got));
}

/* ---- hostile bytes --------------------------------------------------------------------------- */

static void assert_bounded(const struct summary *s)
{
	size_t bytes = strnlen(s->finding, sizeof(s->finding));

	assert_true(s->made >= 1 && s->severity <= SEVERITY_CRITICAL && s->flags <= 7);
	assert_true(s->rails <= RAILS_MAX && s->rails_up <= s->rails);
	assert_true(s->members_up <= 32768 && s->members_down <= 32768);
	assert_true(s->pool_used <= 1000 && s->directory_used <= 1000);
	assert_true(s->hits == SUMMARY_NONE || s->hits <= 1000);
	assert_true(s->window_ms <= 60000);
	assert_true(s->get_bytes_per_s <= 1ull << 44 && s->set_bytes_per_s <= 1ull << 44);
	assert_true(s->get_pages_per_s <= 4000000000u && s->evictions_per_s <= 4000000000u);
	assert_true(bytes < sizeof(s->finding));
	for (size_t i = 0; i < sizeof(s->finding); i++)
		assert_true(i < bytes ? (s->finding[i] >= 'a' && s->finding[i] <= 'z') ||
						(s->finding[i] >= '0' && s->finding[i] <= '9') ||
						s->finding[i] == '_'
				      : s->finding[i] == 0);
	for (unsigned call = 0; call < SUMMARY_CALLS; call++)
		assert_true(s->calls[call].batches <= 1000000000u);
}

static void every_value_of_hostile_bytes_is_bounded(void **state)
{
	uint8_t data[SUMMARY_BYTES];
	struct summary s;
	unsigned kept = 0;

	memset(data, 0xff, sizeof(data));
	assert_true(summary_decode(data, sizeof(data), &s));
	assert_bounded(&s);
	for (unsigned round = 0; round < 200000; round++) {
		unsigned limit = (unsigned)(rnd() % 256);

		/* Small bytes too, so that some values pass unchanged */
		for (unsigned i = 0; i < sizeof(data); i++)
			data[i] = (uint8_t)(rnd() % (limit + 1));
		if (rnd() % 2)
			snprintf((char *)data + 48, SUMMARY_FINDING_BYTES, "rail%c_%u",
				(char)(rnd() % 256), (unsigned)(rnd() % 100));
		if (!summary_decode(data, sizeof(data), &s)) {
			assert_int_equal(data[0], 0);
			continue;
		}
		assert_bounded(&s);
		kept += s.finding[0] != 0;
	}
	assert_true(kept > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_bytes_are_as_they_are_sent),
		cmocka_unit_test(a_later_version_is_read_and_its_new_fields_are_ignored),
		cmocka_unit_test_setup(every_value_of_hostile_bytes_is_bounded, seed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
