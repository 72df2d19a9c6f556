/* SPDX-License-Identifier: Apache-2.0 */
/* Directories that are moved, copied or named twice, by the tools that operators use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "config/log.h"
#include "engine/disk/disk.h"
#include "engine/disk/layout.h"

#define SEGMENT_BYTES (64u * PAGE_UNIT)
#define PAGES 60u

static char folder[64];

static int setup(void **state)
{
	snprintf(folder, sizeof(folder), "disk-copy-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

/* Runs a command in the folder of the test. */
static void shell(const char *command)
{
	char line[512];

	snprintf(line, sizeof(line), "cd %s && %s", folder, command);
	assert_int_equal(system(line), 0);
}

static int teardown(void **state)
{
	char line[128];

	snprintf(line, sizeof(line), "rm -rf %s", folder);
	return system(line);
}

/* Opens the paths, which are folders of `folder`; `second` may be NULL. Returns as disk_open(). */
static int paths_open(const char *first, const char *second, struct disk **ret_disk)
{
	static char name[2][128];
	const char *const path[2] = {first, second};
	struct disk_options options = {.paths = second ? 2 : 1,
		.segment_bytes = SEGMENT_BYTES,
		.owner = "test-engine",
		.timeout_ms = 20000};

	for (unsigned i = 0; i < options.paths; i++) {
		snprintf(name[i], sizeof(name[i]), "%s/%s", folder, path[i]);
		options.path[i].directory = name[i];
		options.path[i].bytes = 12ull * SEGMENT_BYTES;
	}
	return disk_open(&options, ret_disk);
}

static struct disk *opened(const char *first, const char *second)
{
	struct disk *disk = NULL;

	assert_int_equal(paths_open(first, second, &disk), 0);
	return disk;
}

static struct page_key key_of(uint32_t number)
{
	return (struct page_key){{number * UINT64_C(0x9e3779b97f4a7c15) + 1, ~(uint64_t)number}};
}

static enum disk_status call(struct disk *disk, enum disk_op op, uint32_t number)
{
	struct disk_request request = {.op = op, .key = key_of(number)}, *finished;

	request.length = PAGE_UNIT;
	request.data = aligned_alloc(PAGE_UNIT, PAGE_UNIT);
	memset(request.data, (int)number, PAGE_UNIT);
	disk_submit(disk, &request);
	while (!(finished = disk_reap(disk))) {
		struct pollfd readable = {.fd = disk_fd(disk), .events = POLLIN};

		assert_int_not_equal(poll(&readable, 1, 30000), 0);
	}
	assert_ptr_equal(finished, &request);
	free(request.data);
	return request.status;
}

/* Closes the disk; returns how many of its pages it had. */
static unsigned closed(struct disk *disk)
{
	unsigned found = 0;
	struct disk_page page;

	for (uint32_t i = 0; i < PAGES; i++) {
		struct page_key key = key_of(i);

		found += disk_find(disk, &key, &page);
	}
	assert_int_equal(disk_close(disk), 0);
	return found;
}

/* Fills a new path, or two. */
static void fill(const char *first, const char *second)
{
	struct disk *disk;

	shell("mkdir -p one two");
	disk = opened(first, second);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(call(disk, DISK_WRITE, i), DISK_OK);
	assert_int_equal(closed(disk), PAGES);
}

static void a_path_that_is_moved_keeps_its_pages(void **state)
{
	fill("one", NULL);
	shell("mv one elsewhere && touch elsewhere/peercache-disk.path && chmod 755 elsewhere");
	assert_int_equal(closed(opened("elsewhere", NULL)), PAGES);
}

static void paths_that_change_places_keep_their_pages(void **state)
{
	fill("one", "two");
	assert_int_equal(closed(opened("two", "one")), PAGES);
	shell("mv one three && mv two one && mv three two");
	assert_int_equal(closed(opened("one", "two")), PAGES);
}

static void a_copy_beside_its_original_is_a_path_like_it(void **state)
{
	fill("one", NULL);
	shell("cp -a one copy");
	assert_int_equal(closed(opened("copy", "one")), PAGES);
	assert_int_equal(closed(opened("copy", NULL)), PAGES);
}

static void one_directory_under_two_names_is_used_once(const char *second)
{
	struct disk_report report;
	struct disk *disk = opened("one", second);

	disk_report(disk, &report);
	assert_int_equal(report.path[0].state, DISK_PATH_IN_SERVICE);
	assert_int_equal(report.path[1].state, DISK_PATH_OUT);
	assert_non_null(strstr(report.path[1].reason, "is the same directory as disk-copy-"));
	assert_non_null(strstr(report.path[1].reason, "/one; name it once"));
	assert_int_equal(closed(disk), PAGES);
}

static void one_directory_that_is_named_twice_is_used_once(void **state)
{
	fill("one", NULL);
	one_directory_under_two_names_is_used_once("one");
	shell("ln -s one link");
	one_directory_under_two_names_is_used_once("link");
	one_directory_under_two_names_is_used_once("one/../one/.");
}

static void a_directory_that_is_mounted_twice_is_used_once(void **state)
{
	char one[128], two[128];
	bool mounted;
	pid_t child;
	int status;

	fill("one", NULL);
	snprintf(one, sizeof(one), "%s/one", folder);
	snprintf(two, sizeof(two), "%s/two", folder);
	child = fork();
	if (!child) {
		mounted = unshare(CLONE_NEWNS) == 0 &&
			  mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
			  mount(one, two, NULL, MS_BIND, NULL) == 0;
		if (mounted)
			one_directory_under_two_names_is_used_once("two");
		_exit(mounted ? 0 : 77);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip(); /* this user may not mount */
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_path_that_is_moved_keeps_its_pages),
		TEST(paths_that_change_places_keep_their_pages),
		TEST(a_copy_beside_its_original_is_a_path_like_it),
		TEST(one_directory_that_is_named_twice_is_used_once),
		TEST(a_directory_that_is_mounted_twice_is_used_once),
	};

	log_level_set(LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
