/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests numa/huge.c and numa/memory.c: mappings, refusals and log text. Files in a temporary folder
 * stand in for /proc and /sys, so that each test chooses how much memory the machine has.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "numa/huge.h"
#include "numa/kernel_file.h"
#include "numa/memory.h"
#include "tests/emulated.h"
#include "tests/unit/numa/folder.h"

#define MIB (1024ull * 1024)
#define HUGE_DIR "sys/kernel/mm/hugepages/hugepages-2048kB"
#define NODE_DIR "sys/devices/system/node/node0/hugepages/hugepages-2048kB"

static char text[4096];

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

/*
 * Writes the /proc, /sys and cgroup files of a machine with 8 GiB available, no cgroup limit and no
 * huge pages.
 */
static int start(void **state)
{
	log_flush();
	log_test_capture(text, sizeof(text));
	put("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n");
	put("proc/self/cgroup", "0::/\n");
	put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
	put(HUGE_DIR "/free_hugepages", "0\n");
	put(HUGE_DIR "/resv_hugepages", "0\n");
	put(HUGE_DIR "/nr_overcommit_hugepages", "0\n");
	put(HUGE_DIR "/surplus_hugepages", "0\n");
	put(NODE_DIR "/free_hugepages", "0\n");
	put("sys/fs/cgroup/a/b/memory.max", "max\n");
	put("sys/fs/cgroup/a/memory.max", "max\n");
	put("sys/fs/cgroup/a/memory.current", "0\n");
	kernel_file_root(dir);
	return 0;
}

static int stop(void **state)
{
	log_test_capture(NULL, 0);
	kernel_file_root(NULL);
	return 0;
}

static void small_pages_are_zeroed_writable_and_shared_by_fd(void **state)
{
	struct huge h;
	char byte = 0;

	assert_int_equal(huge_open("t-small", 3 * MIB + 1, -1, false, &h), 0);
	assert_int_equal(h.bytes, 3 * MIB + 4096);
	assert_int_equal(h.page_bytes, 4096);
	assert_int_equal((uintptr_t)h.base % (2 * MIB), 0);
	for (size_t i = 0; i < h.bytes; i += 4096)
		assert_int_equal(((char *)h.base)[i], 0);
	((char *)h.base)[h.bytes - 1] = 'z';
	assert_int_equal(pread(h.fd, &byte, 1, (off_t)h.bytes - 1), 1);
	assert_int_equal(byte, 'z');
	assert_true(fcntl(h.fd, F_GETFD) & FD_CLOEXEC);
	huge_close(&h);
	huge_close(&h);
	assert_int_equal(h.fd, -1);
	assert_string_equal(text, "");
}

static void a_core_dump_contains_no_pool(void **state)
{
	struct huge huge;
	bool inside = false, found = false;
	char line[512];
	FILE *maps;

	SKIP_EMULATED("it reports invented flags in /proc/self/smaps");
	assert_int_equal(huge_open("test", 4 * MIB, -1, false, &huge), 0);
	maps = fopen("/proc/self/smaps", "re");
	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		uint64_t from, to;

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2)
			inside = from <= (uintptr_t)huge.base && (uintptr_t)huge.base < to;
		if (inside && strncmp(line, "VmFlags:", 8) == 0)
			found = strstr(line, " dd") != NULL;
	}
	fclose(maps);
	assert_true(found);
	huge_close(&huge);
}

static void zero_and_overflowing_sizes_are_refused(void **state)
{
	struct huge h;

	assert_int_equal(huge_open("t-none", 0, -1, false, &h), -EINVAL);
	assert_int_equal(huge_open("t-none", SIZE_MAX, -1, false, &h), -EINVAL);
}

static void the_limit_of_a_parent_cgroup_applies(void **state)
{
	struct huge h;

	put("proc/self/cgroup", "1:name=x:/other\n0::/a/b\n");
	put("sys/fs/cgroup/a/memory.max", "1073741824\n");
	put("sys/fs/cgroup/a/memory.current", "536870912\n");
	assert_int_equal(huge_open("t-group", 513 * MIB, -1, false, &h), -ENOMEM);
	assert_non_null(
		strstr(text, "513 MiB wanted, 512 MiB available (memory.max of cgroup /a;"));
	assert_int_equal(huge_open("t-group", 512 * MIB, -1, false, &h), 0);
	huge_close(&h);
}

static void huge_pages_that_the_cgroup_does_not_allow_are_not_used(void **state)
{
	struct huge h;

	put(HUGE_DIR "/free_hugepages", "100\n");
	put("proc/self/cgroup", "0::/pod\n");
	put("sys/fs/cgroup/pod/hugetlb.2MB.max", "4194304\n");
	put("sys/fs/cgroup/pod/hugetlb.2MB.current", "2097152\n");
	assert_int_equal(huge_open("t-pod", 4 * MIB, -1, true, &h), 0);
	assert_int_equal(h.page_bytes, 4096);
	assert_non_null(strstr(
		text, "2 huge pages of 2 MiB needed, hugetlb.2MB.max of cgroup /pod allows 1,"));
	huge_close(&h);
}

static void memory_of_an_untouched_pool_is_not_available(void **state)
{
	struct huge a, b;

	assert_int_equal(huge_open("t-first", 5120 * MIB, -1, false, &a), 0);
	assert_int_equal(huge_open("t-second", 5120 * MIB, -1, false, &b), -ENOMEM);
	assert_non_null(strstr(text, "5120 MiB already promised"));
	huge_close(&a);
	assert_int_equal(huge_open("t-second", 5120 * MIB, -1, false, &b), 0);
	huge_close(&b);
}

static void too_few_huge_pages_cause_small_pages_and_one_warning(void **state)
{
	struct huge h;

	put(HUGE_DIR "/free_hugepages", "3\n");
	put(HUGE_DIR "/resv_hugepages", "1\n");
	assert_int_equal(huge_open("t-few", 6 * MIB, -1, true, &h), 0);
	assert_int_equal(h.page_bytes, 4096);
	assert_non_null(strstr(text, "t-few: 3 huge pages of 2 MiB needed, 2 free"));
	assert_non_null(strstr(text, "vm.nr_hugepages"));
	assert_null(strstr(strchr(text, '\n') + 1, "warn"));
	huge_close(&h);
}

static void a_kernel_that_refuses_huge_pages_causes_small_pages(void **state)
{
	struct huge h;

	SKIP_EMULATED("it searches page by page for room for 1 TiB, which takes half a minute");
	/* The files report more free huge pages than the kernel of this machine has. */
	put(HUGE_DIR "/free_hugepages", "1000000\n");
	assert_int_equal(huge_open("t-lie", 1000 * 1024 * MIB, -1, true, &h), -ENOMEM);
	assert_non_null(strstr(text, "t-lie: huge pages refused"));
	assert_non_null(strstr(text, "error memory t-lie: 1024000 MiB wanted"));
}

static void surplus_huge_pages_count_only_if_memory_is_available(void **state)
{
	struct huge h;

	put(HUGE_DIR "/nr_overcommit_hugepages", "100\n");
	put("proc/meminfo", "MemAvailable: 102400 kB\n");
	assert_int_equal(huge_open("t-over", 160 * MIB, -1, true, &h), -ENOMEM);
	assert_non_null(strstr(text, "t-over: 80 huge pages of 2 MiB needed"));
}

static void memory_is_placed_on_the_requested_node(void **state)
{
	unsigned long mask[16] = {0};
	struct huge h;
	int mode = -1;

	SKIP_EMULATED("it has no get_mempolicy()");
	assert_int_equal(huge_open("t-node", 2 * MIB, 0, false, &h), 0);
	assert_int_equal(get_mempolicy(&mode, mask, 8 * sizeof(mask), h.base, MPOL_F_ADDR), 0);
	assert_int_equal(mode, MPOL_PREFERRED);
	assert_int_equal(mask[0], 1);
	huge_close(&h);
	assert_string_equal(text, "");
}

/* Another user that was given a read-only descriptor must not open it anew for writing. */
static void memory_is_only_the_owner_s_to_open(void **state)
{
	struct huge h, adopted;
	struct stat st;
	int copy;

	assert_int_equal(huge_open("test", MIB, -1, false, &h), 0);
	assert_int_equal(fstat(h.fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(fchmod(h.fd, 0777), 0);
	copy = fcntl(h.fd, F_DUPFD_CLOEXEC, 0);
	assert_int_equal(huge_adopt(copy, MIB, &adopted), 0);
	assert_int_equal(fstat(h.fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	huge_close(&adopted);
	huge_close(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
		TEST(small_pages_are_zeroed_writable_and_shared_by_fd),
		TEST(a_core_dump_contains_no_pool),
		TEST(zero_and_overflowing_sizes_are_refused),
		TEST(the_limit_of_a_parent_cgroup_applies),
		TEST(huge_pages_that_the_cgroup_does_not_allow_are_not_used),
		TEST(memory_is_only_the_owner_s_to_open),
		TEST(memory_of_an_untouched_pool_is_not_available),
		TEST(too_few_huge_pages_cause_small_pages_and_one_warning),
		TEST(a_kernel_that_refuses_huge_pages_causes_small_pages),
		TEST(surplus_huge_pages_count_only_if_memory_is_available),
		TEST(memory_is_placed_on_the_requested_node),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_tree);
}
