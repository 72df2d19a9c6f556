/* SPDX-License-Identifier: Apache-2.0 */
/* Tests config/settings_file.c: accepted files, refused files and the text of each refusal. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/settings.h"

static struct settings s;
static char err[SETTINGS_ERR_BYTES];
static char path[64];

static int start(void **state)
{
	err[0] = '\0';
	return settings_default(&s);
}

/* Writes `text` to a memfd and loads it as a settings file. */
static int load_bytes(const char *text, size_t bytes)
{
	int fd = memfd_create("conf", MFD_CLOEXEC), rc;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, bytes), bytes);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	rc = settings_load(&s, path, err, sizeof(err));
	close(fd);
	return rc;
}

static int load(const char *text)
{
	return load_bytes(text, strlen(text));
}

/* Checks that the error text contains `part`, after "path:line" unless `line` is 0. */
static void assert_says(unsigned line, const char *part)
{
	char full[512];

	snprintf(full, sizeof(full), "%s:%u: %s", path, line, part);
	if (!strstr(err, line ? full : part))
		fail_msg("\"%s\" does not say \"%s\"", err, line ? full : part);
}

static void a_file_changes_only_the_settings_it_contains(void **state)
{
	assert_int_equal(
		load("# comment\n; comment\n\n[engine]\nname = n1 ; comment\npool_bytes=64M\n"
		     "[rail]\r\npolling: busy\r\n"),
		0);
	assert_string_equal(s.engine_name, "n1");
	assert_int_equal(s.engine_pool_bytes, 64u << 20);
	assert_int_equal(s.rail_polling, POLLING_BUSY);
	assert_int_equal(s.cluster_port, 31998);
	assert_int_equal(load("[cluster]\nport = 5\n"), 0);
	assert_string_equal(s.engine_name, "n1");
}

static void a_setting_given_twice_is_refused(void **state)
{
	assert_int_equal(
		load("[cluster]\nport = 1\n[rail]\nspin_us = 1\n[cluster]\nport = 1\n"), -EINVAL);
	assert_says(6, "cluster.port = 1: already given on line 2");
}

static void an_indented_setting_is_refused_not_joined(void **state)
{
	assert_int_equal(load("[engine]\nname = n\n  socket = /tmp/x\n"), -EINVAL);
	assert_says(3, "engine.name = socket = /tmp/x: this indented line would continue");
	assert_int_equal(load("[cluster]\nseeds = a:1\n  b:2\n"), -EINVAL);
	assert_says(3, "cluster.seeds = b:2: this indented line would continue");
	assert_int_equal(load("[cluster]\nport = 1\n  2\n"), -EINVAL);
	assert_int_equal(load("[engine]\nname = n,\n  socket = /tmp/x\n"), -EINVAL);
}

static void a_list_that_is_too_long_is_refused_not_truncated(void **state)
{
	char text[4096] = "[cluster]\nseeds = a:1";

	for (int i = 0; i < 20; i++) {
		strcat(text, ",\n ");
		memset(text + strlen(text), 'b', 100);
	}
	assert_int_equal(load(text), -EINVAL);
	assert_says(2, "cluster.seeds = a:1,bbb");
	assert_says(0, "wrong length; give 0 to 1023 characters");
	assert_string_equal(s.cluster_seeds, "");
}

static void a_line_that_is_too_long_is_one_problem(void **state)
{
	char text[600] = "[engine]\nname = ";

	memset(text + strlen(text), 'x', 182);
	strcat(text, "port = 5\n");
	assert_int_equal(load(text), -EINVAL);
	assert_says(2, "name = xx");
	assert_says(0, "line longer than");
	assert_null(strchr(err, '\n'));
}

static void malformed_lines_are_refused_with_their_number(void **state)
{
	assert_int_equal(load("[cluster]\nport 5\n"), -EINVAL);
	assert_says(2, "neither [section] nor key = value");
	assert_int_equal(load("port = 5\n"), -EINVAL);
	assert_says(1, "port = 5: before any [section]; did you mean cluster.port?");
	assert_int_equal(load("[nonsense]\nport = 5\n"), -EINVAL);
	assert_says(2, "nonsense.port = 5: unknown setting; did you mean cluster.port?");
	assert_int_equal(load("[cluster\nport = 5\n"), -EINVAL);
	assert_says(1, "neither [section]");
	assert_int_equal(load_bytes("[cluster]\nport = 5\0 6\n", 23), -EINVAL);
	assert_says(2, "a zero byte");
	assert_int_equal(s.cluster_port, 31998);
}

static void at_most_sixteen_problems_are_printed(void **state)
{
	char text[4096] = "[engine]\n";
	unsigned lines = 1;

	for (int i = 0; i < 20; i++)
		sprintf(text + strlen(text), "bad%d = 1\n", i);
	assert_int_equal(load(text), -EINVAL);
	for (const char *p = err; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, 17);
	assert_says(0, "\nand 4 more");
}

static void a_missing_file_is_named(void **state)
{
	assert_int_equal(settings_load(&s, "/nonexistent/a.conf", err, sizeof(err)), -ENOENT);
	assert_says(0, "/nonexistent/a.conf: cannot open: No such file");
	assert_int_equal(settings_load(&s, "/proc", err, sizeof(err)), -EIO);
}

static void every_example_loads(void **state)
{
	static const char *const names[] = {"minimal", "soft-two-nodes", "eight-rails"};
	char file[512];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		assert_int_equal(settings_default(&s), 0);
		snprintf(file, sizeof(file), "%s/config/examples/%s.conf", SOURCE_DIR, names[i]);
		if (settings_load(&s, file, err, sizeof(err)) < 0 ||
			settings_check(&s, err, sizeof(err)) < 0)
			fail_msg("%s", err);
	}
	/* Checks the settings of the last example file, eight-rails. */
	assert_string_equal(
		s.rail_devices, "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_file_changes_only_the_settings_it_contains, start),
		cmocka_unit_test_setup(a_setting_given_twice_is_refused, start),
		cmocka_unit_test_setup(an_indented_setting_is_refused_not_joined, start),
		cmocka_unit_test_setup(a_list_that_is_too_long_is_refused_not_truncated, start),
		cmocka_unit_test_setup(a_line_that_is_too_long_is_one_problem, start),
		cmocka_unit_test_setup(malformed_lines_are_refused_with_their_number, start),
		cmocka_unit_test_setup(at_most_sixteen_problems_are_printed, start),
		cmocka_unit_test_setup(a_missing_file_is_named, start),
		cmocka_unit_test_setup(every_example_loads, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
