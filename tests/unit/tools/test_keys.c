/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl keys: the trace that it makes of words, which any client may write, and its end when
 * the file is full.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/mman.h>

#include "tools/ctl_keys.c"

int ctl_open(const struct ctl_run *ctl, struct pc **ret_pc)
{
	return -ENOTCONN;
}

int ctl_no_answer(const struct ctl_run *ctl, const char *why)
{
	return CTL_NO_ANSWER;
}

static struct ctl_run ctl;
static struct recording r;

static int setup(void **state)
{
	ctl = (struct ctl_run){.record = "test", .max_bytes = 1 << 20};
	r = (struct recording){.ctl = &ctl, .line = malloc(LINE_BYTES), .began_ns = now_ns()};
	r.fd = memfd_create("trace", MFD_CLOEXEC);
	return r.line && r.fd >= 0 ? 0 : -1;
}

static int teardown(void **state)
{
	free(r.line);
	return close(r.fd);
}

/* The ids of line `n` of the file; returns their number, -1: it has fewer lines. */
static int ids_of(unsigned n, uint64_t *ret, unsigned most)
{
	static char text[1 << 20];
	ssize_t bytes = pread(r.fd, text, sizeof(text) - 1, 0);
	char *line = text;
	json_object *o, *ids;
	int count;

	assert_int_equal(bytes, r.bytes);
	text[bytes] = '\0';
	assert_true(bytes == 0 || text[bytes - 1] == '\n');
	while (n-- && line)
		line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
	if (!line || !*line)
		return -1;
	*strchr(line, '\n') = '\0';
	o = json_tokener_parse(line);
	assert_true(json_object_object_get_ex(o, "hash_ids", &ids));
	assert_non_null(json_get(o, "timestamp"));
	count = (int)json_object_array_length(ids);
	for (unsigned i = 0; i < most && i < (unsigned)count; i++)
		ret[i] = (uint64_t)json_object_get_int64(json_object_array_get_idx(ids, i));
	json_object_put(o);
	return count;
}

static void equal_keys_have_equal_ids_that_another_secret_changes(void **state)
{
	const uint64_t words[] = {
		8, 3, 11, 0, 22, 2 | 5ull << ASKED_LOST_SHIFT, 22, 11, 0, 2, 1, 33};
	uint64_t a[3], b[3], c[3];

	r.secret[0] = 7;
	keys_record(&r, words, 9);
	assert_int_equal(ids_of(0, a, 3), 2); /* the invalid key is left out */
	assert_int_equal(ids_of(1, b, 3), 2);
	assert_int_equal(ids_of(2, c, 3), -1);
	assert_true(a[0] == b[1] && a[1] == b[0] && a[0] != a[1]);
	assert_true(a[0] < 1ull << ID_BITS && a[0] != 11);
	assert_int_equal(r.calls, 2);
	assert_int_equal(r.keys, 4);
	r.secret[1] = 1;
	keys_record(&r, words, 9);
	assert_int_equal(ids_of(2, c, 3), 2);
	assert_true(c[0] != a[0] && c[1] != a[1]);
}

/* Each of these is read within its bounds (the sanitizers look), and costs only its writer. */
static void what_a_client_must_not_write_is_lost(void **state)
{
	static const uint64_t words[][8] = {
		{3, 0, 1, 2}, {3, 3, 1, 2}, {3, 1 << 20, 1, 2}, {3, UINT32_MAX, 1, 2}};
	uint64_t mixed[] = {2, 9, 1, 2, 1, 77}, got[1], number = 4711;

	for (unsigned i = 0; i < 4; i++) {
		keys_record(&r, words[i], 4);
		assert_int_equal(r.lost, i + 1);
	}
	assert_int_equal(r.calls, 0);
	keys_record(&r, mixed, 6);
	assert_int_equal(r.lost, 5);
	assert_int_equal(ids_of(0, got, 1), 1);
	mixed[3] = UINT64_MAX;
	keys_record(&r, mixed, 6);
	assert_int_equal(r.calls, 1);
	for (unsigned n = 0; n < 20000; n++) {
		uint64_t random[12];

		for (unsigned i = 0; i < 12; i++) {
			number = number * 6364136223846793005u + 1442695040888963407u;
			random[i] = number >> 33 >> (number >> 59);
		}
		keys_record(&r, random, n % 13);
	}
}

static void a_full_file_ends_with_a_whole_line(void **state)
{
	const uint64_t words[] = {3, 2, 1, 2};
	uint64_t got[2];

	ctl.max_bytes = 4096;
	for (unsigned i = 0; i < 100; i++)
		keys_record(&r, words, 4);
	assert_true(r.full);
	assert_in_range(r.bytes, 3900, 4096);
	assert_int_equal(ids_of((unsigned)r.calls - 1, got, 2), 2);
	assert_int_equal(ids_of((unsigned)r.calls, got, 2), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(equal_keys_have_equal_ids_that_another_secret_changes),
		TEST(what_a_client_must_not_write_is_lost),
		TEST(a_full_file_ends_with_a_whole_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
