/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests numa/cgroup.c. Files in a temporary folder stand in for /proc and /sys, so that each test
 * chooses the groups and how they are mounted.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "numa/cgroup.h"
#include "numa/kernel_file.h"
#include "tests/unit/numa/folder.h"

#define MIB (1024ull * 1024)
#define GIB (1024 * MIB)

static char name[CGROUP_NAME_BYTES];

static void put(const char *path, const char *content)
{
	char full[256];
	FILE *file;

	for (const char *p = path; (p = strchr(p, '/')) != NULL; p++) {
		snprintf(full, sizeof(full), "%s/%.*s", dir, (int)(p - path), path);
		mkdir(full, 0700);
	}
	snprintf(full, sizeof(full), "%s/%s", dir, path);
	file = fopen(full, "we");
	assert_non_null(file);
	fputs(content, file);
	fclose(file);
}

static uint64_t left_of(enum cgroup_limit limit, uint64_t most)
{
	uint64_t left = most;
	bool lower;

	strcpy(name, "none");
	lower = cgroup_left(limit, &left, name);
	assert_int_equal(lower, left < most);
	return left;
}

#define V1 "40 23 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
#define V2 "30 23 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n"

static int start(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'/*", dir);
	assert_int_equal(system(command), 0);
	put("proc/self/mountinfo", "23 1 8:1 / / rw - ext4 /dev/vda rw\n" V1 V2);
	put("proc/self/cgroup", "9:name=systemd:/s\n4:cpu,memory:/a/b\n0::/a/b\n");
	kernel_file_root(dir);
	return 0;
}

static int stop(void **state)
{
	kernel_file_root(NULL);
	return 0;
}

static void without_a_limit_nothing_is_lower(void **state)
{
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), GIB);
	put("sys/fs/cgroup/unified/a/memory.max", "max\n");
	put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), GIB);
	put("proc/self/cgroup", "");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), GIB);
	put("proc/self/mountinfo", "nonsense\n1 2 3\n - \n40 23 0:30 / - cgroup\n");
	put("proc/self/cgroup", "nonsense\n:\n4:memory\n0::/a\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), GIB);
}

static void limits_of_version_1_and_of_parents_apply(void **state)
{
	put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "536870912\n");
	put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1048576\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), 511 * MIB);
	assert_string_equal(name, "memory.limit_in_bytes of cgroup /a/b");
	put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "104857600\n");
	put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "209715200\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), 0);
	assert_string_equal(name, "memory.limit_in_bytes of cgroup /a");
	/* a parent without hierarchy does not count its children */
	put("sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), 511 * MIB);
}

static void memory_that_can_be_reclaimed_counts_as_unused(void **state)
{
	put("sys/fs/cgroup/unified/a/memory.max", "104857600\n");
	put("sys/fs/cgroup/unified/a/memory.current", "104857600\n");
	put("sys/fs/cgroup/unified/a/memory.stat",
		"inactive_filex 1\nfile 7\ninactive_file 20971520\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), 20 * MIB);
	/* the files are read one after the other: more to reclaim than was in use */
	put("sys/fs/cgroup/unified/a/memory.current", "10485760\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), 100 * MIB);
	put("sys/fs/cgroup/unified/a/memory.current", "104857600\n");
	put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "20971520\n");
	put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "20971520\n");
	put("sys/fs/cgroup/memory/a/b/memory.stat", "total_inactive_file 10485760\n");
	assert_int_equal(left_of(CGROUP_MEMORY, GIB), 10 * MIB);
}

static void limits_of_huge_pages_and_tasks_are_read(void **state)
{
	put("proc/self/mountinfo", V2 "41 23 0:31 / /sys/fs/cgroup/pids rw - cgroup c rw,pids\n");
	put("proc/self/cgroup", "8:pids:/p\n0::/a\n");
	put("sys/fs/cgroup/pids/p/pids.max", "10\n");
	put("sys/fs/cgroup/pids/p/pids.current", "9\n");
	assert_int_equal(left_of(CGROUP_TASKS, 100), 1);
	assert_string_equal(name, "pids.max of cgroup /p");
	put("sys/fs/cgroup/unified/a/hugetlb.2MB.max", "0\n");
	assert_int_equal(left_of(CGROUP_HUGE, GIB), 0);
	assert_string_equal(name, "hugetlb.2MB.max of cgroup /a");
}

static void limits_of_processor_time_are_read(void **state)
{
	put("proc/self/cgroup", "4:memory:/a/b\n");
	assert_false(cgroup_shown(CGROUP_CPU));
	put("proc/self/mountinfo", V2 "41 23 0:31 / /sys/fs/cgroup/cpu rw - cgroup c rw,cpu\n");
	put("proc/self/cgroup", "8:cpu:/p\n0::/a\n");
	assert_true(cgroup_shown(CGROUP_CPU));
	put("sys/fs/cgroup/cpu/p/cpu.cfs_quota_us", "-1\n");
	put("sys/fs/cgroup/unified/a/cpu.max", "max 100000\n");
	assert_int_equal(left_of(CGROUP_CPU, UINT64_MAX), UINT64_MAX);
	put("sys/fs/cgroup/cpu/p/cpu.cfs_quota_us", "50000\n");
	assert_int_equal(left_of(CGROUP_CPU, UINT64_MAX), 500);
	assert_string_equal(name, "cpu.cfs_quota_us of cgroup /p");
	put("sys/fs/cgroup/cpu/p/cpu.cfs_period_us", "10000\n");
	assert_int_equal(left_of(CGROUP_CPU, UINT64_MAX), 5000);
	put("sys/fs/cgroup/unified/a/cpu.max", "20000 100000\n");
	assert_int_equal(left_of(CGROUP_CPU, UINT64_MAX), 200);
	assert_string_equal(name, "cpu.max of cgroup /a");
	put("sys/fs/cgroup/unified/a/cpu.max", "400000 50000\n");
	assert_int_equal(left_of(CGROUP_CPU, UINT64_MAX), 5000);
	assert_string_equal(name, "cpu.cfs_quota_us of cgroup /p");
	put("sys/fs/cgroup/unified/a/cpu.max", "20000 0\n"); /* no period of the kernel */
	assert_int_equal(left_of(CGROUP_CPU, UINT64_MAX), 200);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
		TEST(without_a_limit_nothing_is_lower),
		TEST(limits_of_version_1_and_of_parents_apply),
		TEST(memory_that_can_be_reclaimed_counts_as_unused),
		TEST(limits_of_huge_pages_and_tasks_are_read),
		TEST(limits_of_processor_time_are_read),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_tree);
}
