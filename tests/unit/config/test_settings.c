/* SPDX-License-Identifier: Apache-2.0 */
/* Tests config/settings.c: defaults, the limits of each type, names, overrides and choices. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/settings.h"

static struct settings s;
static char err[SETTINGS_ERR_BYTES];

static int start(void **state)
{
	err[0] = '\0';
	return settings_default(&s);
}

static int set(const char *text)
{
	return settings_override(&s, text, err, sizeof(err));
}

static void assert_says(const char *part)
{
	if (!strstr(err, part))
		fail_msg("\"%s\" does not say \"%s\"", err, part);
}

static void defaults_match_the_table(void **state)
{
	assert_string_equal(s.engine_socket, "/run/peercache/engine.sock");
	assert_int_equal(s.engine_pool_bytes, 1ull << 30);
	assert_true(s.engine_huge_pages);
	assert_int_equal(s.rail_gid_index, -1);
	assert_int_equal(s.rail_polling, POLLING_AUTO);
	assert_int_equal(s.log_level, LOG_INFO);
	assert_string_equal(s.engine_name, "");
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
}

static void constants_have_the_order_of_the_choices(void **state)
{
	static const struct {
		const char *text;
		size_t offset;
		int value;
	} rows[] = {
		{"rail.polling=auto", offsetof(struct settings, rail_polling), POLLING_AUTO},
		{"rail.polling=busy", offsetof(struct settings, rail_polling), POLLING_BUSY},
		{"rail.polling=adaptive", offsetof(struct settings, rail_polling),
			POLLING_ADAPTIVE},
		{"rail.validate=auto", offsetof(struct settings, rail_validate), VALIDATE_AUTO},
		{"rail.validate=lease", offsetof(struct settings, rail_validate), VALIDATE_LEASE},
		{"rail.validate=tail", offsetof(struct settings, rail_validate), VALIDATE_TAIL},
		{"rail.validate=crc", offsetof(struct settings, rail_validate), VALIDATE_CRC},
		{"soft.link=shm", offsetof(struct settings, soft_link), LINK_SHM},
		{"soft.link=tcp", offsetof(struct settings, soft_link), LINK_TCP},
		{"log.level=error", offsetof(struct settings, log_level), LOG_ERROR},
		{"log.level=warn", offsetof(struct settings, log_level), LOG_WARN},
		{"log.level=info", offsetof(struct settings, log_level), LOG_INFO},
		{"log.level=debug", offsetof(struct settings, log_level), LOG_DEBUG},
	};

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(set(rows[i].text), 0);
		assert_int_equal(*(int *)((char *)&s + rows[i].offset), rows[i].value);
	}
}

static void sizes_accept_every_unit(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"4194304", 4ull << 20},
		{"8192K", 8ull << 20},
		{"8192KiB", 8ull << 20},
		{"8M", 8ull << 20},
		{"8MiB", 8ull << 20},
		{"8 MiB", 8ull << 20},
		{"2G", 2ull << 30},
		{"2GiB", 2ull << 30},
		{"1T", 1ull << 40},
		{"1TiB", 1ull << 40},
		{"8MB", 8ull << 20},
		{"4gb", 4ull << 30},
		{"10GB", 10ull << 30},
		{"10 gib", 10ull << 30},
		{"1.5G", 3ull << 29},
		{"0.25TB", 1ull << 38},
		{"4194304B", 4ull << 20},
		{"8  MiB", 8ull << 20},
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(
			settings_set(&s, "engine", "pool_bytes", good[i].text, err, sizeof(err)),
			0);
		assert_int_equal(s.engine_pool_bytes, good[i].bytes);
	}
}

static void bad_sizes_are_refused_and_change_nothing(void **state)
{
	static const char *const bad[] = {"", "GiB", "-1", "+1", " 8M", "8MBB", "8Mi", "8MibB",
		"8 ", "8MiB x", "0x800000", "8e6", "8.M", ".5G", "1.5.5G", "8iB", "8P", "9,5M",
		"4194303", "1025G", "18446744073709551616", "99999999999999999999T", "16777217T"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (settings_set(&s, "engine", "pool_bytes", bad[i], err, sizeof(err)) != -EINVAL)
			fail_msg("\"%s\" was accepted", bad[i]);
		assert_int_equal(s.engine_pool_bytes, 1ull << 30);
		assert_says("give 4MiB to 1TiB");
	}
}

static void numbers_outside_their_range_are_refused(void **state)
{
	assert_int_equal(set("cluster.port=1"), 0);
	assert_int_equal(set("cluster.port=65535"), 0);
	assert_int_equal(s.cluster_port, 65535);
	assert_int_equal(set("cluster.port=0"), -EINVAL);
	assert_int_equal(set("cluster.port=65536"), -EINVAL);
	assert_string_equal(err, "cluster.port = 65536: out of range; give 1 to 65535");
	assert_int_equal(s.cluster_port, 65535);
	assert_int_equal(set("rail.gid_index=-1"), 0);
	assert_int_equal(set("rail.gid_index=-2"), -EINVAL);
	assert_int_equal(set("rail.gid_index=18446744073709551615"), -EINVAL);
	assert_int_equal(set("rail.gid_index=-18446744073709551615"), -EINVAL);
}

static void numbers_with_trailing_text_are_refused(void **state)
{
	static const char *const bad[] = {"", "-", "1x", "1 ", " 1", "1.0", "1e3", "--1", "0x10",
		"9223372036854775808", "-9223372036854775809", "18446744073709551617",
		"55340232221128654853"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (settings_set(&s, "cluster", "port", bad[i], err, sizeof(err)) != -EINVAL)
			fail_msg("\"%s\" was accepted", bad[i]);
		assert_int_equal(s.cluster_port, 31998);
	}
}

static void text_that_is_too_long_is_refused_not_truncated(void **state)
{
	char text[NAME_BYTES_MAX + 1];

	memset(text, 'n', sizeof(text));
	text[NAME_BYTES_MAX - 1] = '\0';
	assert_int_equal(settings_set(&s, "engine", "name", text, err, sizeof(err)), 0);
	assert_string_equal(s.engine_name, text);
	text[NAME_BYTES_MAX - 1] = 'n';
	text[NAME_BYTES_MAX] = '\0';
	assert_int_equal(settings_set(&s, "engine", "name", text, err, sizeof(err)), -EINVAL);
	assert_int_equal(strlen(s.engine_name), NAME_BYTES_MAX - 1);
	assert_int_equal(set("engine.name=a"), 0);
	assert_string_equal(s.engine_name, "a");
	assert_int_equal(set("engine.socket="), -EINVAL);
	assert_says("empty");
	assert_int_equal(set("engine.name=a\tb"), -EINVAL);
	assert_says("control characters");
}

static void paths_are_absolute_and_begin_at_home_after_a_tilde(void **state)
{
	char text[1100];

	assert_int_equal(setenv("HOME", "/home/me", 1), 0);
	assert_int_equal(set("engine.socket=~/e.sock"), 0);
	assert_string_equal(s.engine_socket, "/home/me/e.sock");
	assert_int_equal(set("disk.paths=/a b, ~ ,~/c"), 0);
	assert_string_equal(s.disk_paths, "/a b,/home/me,/home/me/c");
	assert_int_equal(set("disk.paths="), 0);
	assert_string_equal(s.disk_paths, "");
	assert_int_equal(set("engine.socket=e.sock"), -EINVAL);
	assert_says("working directory; begin it with / or ~/");
	assert_int_equal(set("disk.paths=/a,b"), -EINVAL);
	assert_says("working directory");
	assert_int_equal(set("cluster.seeds_file=./s"), -EINVAL);
	assert_int_equal(set("cluster.etcd_password_file=p"), -EINVAL);
	assert_int_equal(set("engine.socket=~you/e.sock"), -EINVAL);
	assert_says("only before a /");
	assert_int_equal(set("engine.socket=/run/${USER}.sock"), -EINVAL);
	assert_says("variables are not expanded");
	/* the length is that of the path, not of the text */
	snprintf(text, sizeof(text), "engine.socket=~/%0100d", 1);
	assert_int_equal(set(text), -EINVAL);
	assert_says("wrong length");
	assert_int_equal(setenv("HOME", "here", 1), 0);
	assert_int_equal(set("engine.socket=~/e.sock"), -EINVAL);
	assert_says("$HOME");
	assert_string_equal(s.engine_socket, "/home/me/e.sock");
}

static void what_people_write_around_a_value_is_refused(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {{"engine.socket=\"/e.sock\"", "quotes"}, {"engine.name='n1'", "quotes"},
		{"engine.name=\"n1", "quotes"}, {"engine.pool_bytes=\"1GiB\"", "quotes"},
		{"engine.name=n1 # the first", "comment"}, {"engine.name=# none", "comment"},
		{"rail.polling=busy # always", "comment"}, {"engine.socket=/e.sock;", "a ; would"}};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(set(bad[i].text), -EINVAL);
		assert_says(bad[i].says);
	}
	assert_string_equal(s.engine_name, "");
	assert_int_equal(set("engine.name=n#1"), 0);
	assert_int_equal(set("engine.socket=/it's/e"), 0);
}

static void what_was_given_is_known(void **state)
{
	assert_false(settings_given(&s, "metrics", "port"));
	assert_int_equal(set("metrics.port=99999"), -EINVAL);
	assert_false(settings_given(&s, "metrics", "port"));
	assert_int_equal(set("metrics.port=31997"), 0);
	assert_true(settings_given(&s, "metrics", "port"));
	assert_false(settings_given(&s, "metrics", "address"));
	assert_false(settings_given(&s, "metrics", "no_such"));
}

static void unknown_names_get_a_suggestion(void **state)
{
	assert_int_equal(set("rail.device=soft"), -ENOENT);
	assert_says("did you mean rail.devices?");
	assert_int_equal(set("rails.devices=soft"), -ENOENT);
	assert_says("did you mean rail.devices?");
	assert_int_equal(set("engine.seeds=a"), -ENOENT);
	assert_says("did you mean cluster.seeds?");
	assert_int_equal(set("engine.poolbytes=1G"), -ENOENT);
	assert_says("did you mean engine.pool_bytes?");
	assert_int_equal(set("zzzzzzzzzz.qqqqqqqqqqqqq=1"), -ENOENT);
	assert_says("--help");
}

/* A build without test hooks refuses their settings and names the build that has them. */
static void settings_of_tests_need_test_hooks(void **state)
{
#ifdef TEST_HOOKS
	assert_int_equal(set("test.skip_head_check=yes"), 0);
	assert_true(s.test_skip_head_check);
	assert_int_equal(set("test.head_check=yes"), -ENOENT);
	assert_says("did you mean test.skip_head_check?");
#else
	assert_int_equal(set("test.skip_head_check=yes"), -ENOENT);
	assert_says("unknown setting; this engine was built without test hooks");
	assert_says("-Dtest_hooks=true");
#endif
}

static void malformed_overrides_are_refused(void **state)
{
	static const char *const bad[] = {"", "x", "=", ".", "port=1", "cluster.port", "a=b.c"};
	char long_name[200];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(set(bad[i]), -EINVAL);
		assert_says("section.key=value");
	}
	memset(long_name, 'x', sizeof(long_name));
	long_name[100] = '.';
	long_name[198] = '=';
	long_name[199] = '\0';
	assert_int_equal(set(long_name), -EINVAL);
	assert_says("section.key=value");
	for (unsigned bytes = 63; bytes <= 64; bytes++) { /* of a section, then of a key */
		const char *says = bytes == 63 ? "unknown" : "section.key=value";
		int rc = bytes == 63 ? -ENOENT : -EINVAL;

		snprintf(long_name, sizeof(long_name), "%0*d.port=1", (int)bytes, 1);
		assert_int_equal(set(long_name), rc);
		assert_says(says);
		snprintf(long_name, sizeof(long_name), "cluster.%0*d=1", (int)bytes, 1);
		assert_int_equal(set(long_name), rc);
		assert_says(says);
	}
	/* Only the first `=` separates the setting's name from its value. */
	assert_int_equal(set("engine.name=a=b.c"), 0);
	assert_string_equal(s.engine_name, "a=b.c");
}

static void a_disk_has_room_for_its_least_number_of_whole_segments(void **state)
{
	assert_int_equal(set("disk.bytes=6MiB"), 0);
	assert_int_equal(set("disk.segment_bytes=1MiB"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	assert_int_equal(set("disk.segment_bytes=1052672"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_says("disk.bytes has not room for 6 of them");
	assert_int_equal(set("disk.bytes=12MiB"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	assert_int_equal(set("disk.segment_bytes=1052673"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
}

static void more_segments_than_an_engine_can_have_are_refused(void **state)
{
	assert_int_equal(set("disk.segment_bytes=1MiB"), 0);
	assert_int_equal(set("disk.bytes=65535MiB"), 0);
	assert_int_equal(set("disk.paths=/a"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	assert_int_equal(set("disk.bytes=65536MiB"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_says("65536 segments in 1 path(s)");
	assert_says("raise disk.segment_bytes or lower disk.bytes");
	assert_int_equal(set("disk.bytes=32768MiB"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	assert_int_equal(set("disk.paths=/a,/b"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_int_equal(set("disk.paths="), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
}

static void a_disk_of_an_engine_without_rails_is_refused(void **state)
{
	assert_int_equal(set("rail.devices=none"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	assert_int_equal(set("disk.paths=/a"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_says("disk.paths = /a: an engine with rail.devices = none keeps no pages");
}

static void dead_after_less_than_two_heartbeats_is_refused(void **state)
{
	assert_int_equal(set("cluster.dead_after_ms=999"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_says("cluster.dead_after_ms = 999");
	assert_says("raise it to 1000");
	assert_int_equal(set("cluster.dead_after_ms=1000"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
}

static void names_that_other_engines_refuse_are_refused_here(void **state)
{
	assert_int_equal(set("cluster.id=two words"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_says("cluster.id = \"two words\"");
	assert_int_equal(set("engine.name=\xc3\xa4"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_says("engine.name = ");
	assert_says("printable ASCII");
	assert_int_equal(set("cluster.id=blue-1"), 0);
	assert_int_equal(set("engine.name=host:31998"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
}

static void soft_address_must_be_an_ip_address(void **state)
{
	assert_int_equal(set("soft.address=xyz"), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_says("soft.address = xyz");
	assert_says("give one of this host");
	for (unsigned i = 0; i < 3; i++) {
		const char *good[] = {
			"soft.address=10.0.0.1", "soft.address=fd00::1", "soft.address="};

		assert_int_equal(set(good[i]), 0);
		assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	}
}

static void a_small_error_buffer_is_not_overrun(void **state)
{
	char small[8] = "aaaaaaa";

	assert_int_equal(settings_set(&s, "rail", "polling", "x", small, 4), -EINVAL);
	assert_string_equal(small, "rai");
	assert_int_equal(small[4], 'a');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(defaults_match_the_table, start),
		cmocka_unit_test_setup(constants_have_the_order_of_the_choices, start),
		cmocka_unit_test_setup(sizes_accept_every_unit, start),
		cmocka_unit_test_setup(bad_sizes_are_refused_and_change_nothing, start),
		cmocka_unit_test_setup(numbers_outside_their_range_are_refused, start),
		cmocka_unit_test_setup(numbers_with_trailing_text_are_refused, start),
		cmocka_unit_test_setup(text_that_is_too_long_is_refused_not_truncated, start),
		cmocka_unit_test_setup(settings_of_tests_need_test_hooks, start),
		cmocka_unit_test_setup(unknown_names_get_a_suggestion, start),
		cmocka_unit_test_setup(paths_are_absolute_and_begin_at_home_after_a_tilde, start),
		cmocka_unit_test_setup(what_people_write_around_a_value_is_refused, start),
		cmocka_unit_test_setup(what_was_given_is_known, start),
		cmocka_unit_test_setup(malformed_overrides_are_refused, start),
		cmocka_unit_test_setup(
			a_disk_has_room_for_its_least_number_of_whole_segments, start),
		cmocka_unit_test_setup(more_segments_than_an_engine_can_have_are_refused, start),
		cmocka_unit_test_setup(a_disk_of_an_engine_without_rails_is_refused, start),
		cmocka_unit_test_setup(dead_after_less_than_two_heartbeats_is_refused, start),
		cmocka_unit_test_setup(names_that_other_engines_refuse_are_refused_here, start),
		cmocka_unit_test_setup(soft_address_must_be_an_ip_address, start),
		cmocka_unit_test_setup(a_small_error_buffer_is_not_overrun, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
