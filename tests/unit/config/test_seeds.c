/* SPDX-License-Identifier: Apache-2.0 */
/* seeds.c: addresses as text, and what the file of seeds may hold. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/seeds.h"

static struct seed_address address[SEEDS_FILE_ADDRESSES_MAX];
static char words[64];
static unsigned lines;

static void on_bad(struct seeds_text *text, const char *word, unsigned line)
{
	assert_ptr_equal(text->context, words);
	snprintf(words, sizeof(words), "%.60s", word);
	lines = line;
}

static struct seeds_text parse(char *text)
{
	struct seeds_text ret = {.address = address, .on_bad = on_bad, .context = words};

	words[0] = '\0';
	lines = 0;
	seeds_text_parse(&ret, text, 31998);
	return ret;
}

static void one_address_is_read_in_every_spelling(void **state)
{
	static const struct {
		const char *text, *host;
		uint16_t port;
	} good[] = {{"10.0.0.1:5", "10.0.0.1", 5}, {"10.0.0.1", "10.0.0.1", 31998},
		{"[fd00::1]:5", "fd00::1", 5}, {"[fd00::1]", "fd00::1", 31998},
		{"fd00::1", "fd00::1", 31998}, {"host:65535", "host", 65535}};
	static const char *const bad[] = {"", ":5", "a:", "a:0", "a:65536", "a:5x", "a:-1",
		"[fd00::1", "[fd00::1]5", "[]:5", "fd00:::1", "a:b:c"};
	struct seed_address found;
	char text[64];

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		strcpy(text, good[i].text);
		assert_int_equal(seed_parse(text, 31998, &found), 0);
		assert_string_equal(found.host, good[i].host);
		assert_int_equal(found.port, good[i].port);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		strcpy(text, bad[i]);
		assert_int_equal(seed_parse(text, 31998, &found), -EINVAL);
	}
}

static void a_host_that_is_too_long_is_no_address(void **state)
{
	struct seed_address found;
	char text[NAME_BYTES_MAX + 1];

	memset(text, 'a', sizeof(text));
	text[NAME_BYTES_MAX] = '\0';
	assert_int_equal(seed_parse(text, 1, &found), -EINVAL);
	text[NAME_BYTES_MAX - 1] = '\0';
	assert_int_equal(seed_parse(text, 1, &found), 0);
}

static void words_and_comments_are_told_apart(void **state)
{
	char text[] = "# a comment: 1.1.1.1\r\na:1, b:2\tc  # d:4\n\n,,\nx:y:z e:5\r\n";
	struct seeds_text found = parse(text);

	assert_int_equal(found.count, 4);
	assert_string_equal(address[0].host, "a");
	assert_string_equal(address[2].host, "c");
	assert_int_equal(address[2].port, 31998);
	assert_string_equal(address[3].host, "e");
	assert_int_equal(found.bad, 1);
	assert_string_equal(words, "x:y:z");
	assert_int_equal(lines, 5);
}

static void what_does_not_fit_is_not_read(void **state)
{
	size_t bytes = 2 * (SEEDS_FILE_ADDRESSES_MAX + 10);
	char *text = malloc(bytes + 1);
	struct seeds_text found;

	for (size_t i = 0; i < bytes; i++)
		text[i] = i % 2 ? '\n' : 'a';
	text[bytes] = '\0';
	found = parse(text);
	assert_int_equal(found.count, SEEDS_FILE_ADDRESSES_MAX);
	for (size_t i = 0; i < bytes; i++)
		text[i] = i % 2 ? '\n' : ':';
	found = parse(text);
	assert_int_equal(found.bad, SEEDS_FILE_BAD_MAX);
	assert_int_equal(lines, SEEDS_FILE_BAD_MAX);
	free(text);
}

static void only_a_file_of_bounded_size_is_read(void **state)
{
	char path[] = "/tmp/peercache-seeds-XXXXXX", *text;
	int fd = mkstemp(path), own;
	struct stat st;

	assert_int_equal(write(fd, "a\0b", 3), 3);
	own = seeds_text_open(path, &st);
	assert_true(own >= 0);
	assert_int_equal(seeds_text_read(own, (size_t)st.st_size, &text), 0);
	assert_string_equal(text, "a?b");
	free(text);
	close(own);
	assert_int_equal(ftruncate(fd, (off_t)SEEDS_FILE_BYTES_MAX + 1), 0);
	assert_int_equal(seeds_text_open(path, &st), -EFBIG);
	assert_int_equal(seeds_text_open("/tmp", &st), -EISDIR);
	assert_int_equal(seeds_text_open("/dev/null", &st), -EINVAL);
	unlink(path);
	assert_int_equal(seeds_text_open(path, &st), -ENOENT);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_address_is_read_in_every_spelling),
		cmocka_unit_test(a_host_that_is_too_long_is_no_address),
		cmocka_unit_test(words_and_comments_are_told_apart),
		cmocka_unit_test(what_does_not_fit_is_not_read),
		cmocka_unit_test(only_a_file_of_bounded_size_is_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
