/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests numa/pin.c: claims on cores by several processes, and pinning of the calling thread to a
 * core.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "numa/kernel_file.h"
#include "numa/pin.h"
#include "tests/unit/numa/folder.h"

static void a_claim_is_exclusive_until_it_is_closed(void **state)
{
	int fd, other, holder = 0;

	/* pin_holder() creates neither the directory of claims nor the core's file. */
	assert_int_equal(pin_holder(3), 0);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(pin_holder(3), 0);
	assert_int_equal(access(dir, F_OK), -1);
	assert_int_equal(pin_claim(3, &fd, &holder), 0);
	assert_int_equal(pin_holder(3), getpid());
	assert_int_equal(pin_holder(2), 0);
	assert_int_equal(pin_holder(4), 0);
	assert_int_equal(pin_claim(3, &other, &holder), -EBUSY);
	assert_int_equal(holder, getpid());
	assert_int_equal(pin_claim(4, &other, &holder), 0);
	close(other);
	close(fd);
	assert_int_equal(pin_holder(3), 0);
	assert_int_equal(pin_claim(3, &fd, &holder), 0);
	close(fd);
}

static void impossible_cores_are_refused(void **state)
{
	int fd = -5, holder;

	assert_int_equal(pin_claim(-1, &fd, &holder), -EINVAL);
	assert_int_equal(pin_claim(1 << 20, &fd, &holder), -EINVAL);
	assert_int_equal(fd, -5);
	assert_int_equal(pin_self(-2), -EINVAL);
	assert_int_equal(pin_self(1 << 20), -EINVAL);
	assert_int_equal(pin_self(CPU_SETSIZE - 1), -EINVAL);
}

static void a_run_directory_that_cannot_be_created_is_an_error(void **state)
{
	int fd, holder;

	setenv("PEERCACHE_RUN_DIR", "/proc/nonexistent/here", 1);
	assert_int_equal(pin_claim(0, &fd, &holder), -ENOENT);
	assert_int_equal(pin_holder(0), 0);
	setenv("PEERCACHE_RUN_DIR", dir, 1);
}

static void a_pinned_thread_runs_on_its_core(void **state)
{
	cpu_set_t before, now;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(pin_self(-1), 0);
	assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
	assert_true(CPU_EQUAL(&before, &now));
	for (int core = 0; core < CPU_SETSIZE; core++) {
		if (!CPU_ISSET(core, &before))
			continue;
		assert_int_equal(pin_self(core), 0);
		assert_int_equal(sched_getcpu(), core);
	}
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

static void the_cores_near_a_node_are_left(void **state)
{
	char path[256], line[64] = "";
	cpu_set_t set, before;
	FILE *file;

	snprintf(path, sizeof(path), "mkdir -p '%s/sys/devices/system/node/node1'", dir);
	assert_int_equal(system(path), 0);
	snprintf(path, sizeof(path), "%s/sys/devices/system/node/node1/cpulist", dir);
	file = fopen(path, "we");
	assert_non_null(file);
	fputs("2-3,6\n", file);
	fclose(file);
	kernel_file_root(dir);
	CPU_ZERO(&set);
	for (size_t core = 1; core < 6; core++)
		CPU_SET(core, &set);
	before = set;
	pin_near(-1, &set); /* any node */
	assert_true(CPU_EQUAL(&set, &before));
	pin_near(0, &set); /* its cores are not known */
	assert_true(CPU_EQUAL(&set, &before));
	pin_near(1, &set);
	for (size_t core = 0; core < 8; core++)
		if (CPU_ISSET(core, &set))
			snprintf(line + strlen(line), sizeof(line) - strlen(line), "%zu ", core);
	assert_string_equal(line, "2 3 ");
	CPU_ZERO(&set);
	CPU_SET(5, &set);
	pin_near(1, &set); /* none of its cores is allowed */
	assert_true(CPU_ISSET(5, &set));
	kernel_file_root(NULL);
	snprintf(path, sizeof(path), "rm -r '%s/sys'", dir);
	assert_int_equal(system(path), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_claim_is_exclusive_until_it_is_closed),
		cmocka_unit_test(impossible_cores_are_refused),
		cmocka_unit_test(a_run_directory_that_cannot_be_created_is_an_error),
		cmocka_unit_test(a_pinned_thread_runs_on_its_core),
		cmocka_unit_test(the_cores_near_a_node_are_left),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
