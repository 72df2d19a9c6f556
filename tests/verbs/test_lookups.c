/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs see when they look for devices themselves, before they call libibverbs: access(),
 * stat(), opendir() and realpath() of /dev/infiniband and /sys/class/infiniband. Each test runs in
 * a process of its own, in which no device was looked for before.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/connectx/uverbs.h"

#define SYSFS "/sys/class/infiniband"

/* interpose.c; stat() of programs built for an older glibc, which no header declares */
int __xstat(int version, const char *path, struct stat *ret_stat);

static void devices(const char *count)
{
	setenv("SOFT_CONNECTX_DEVICES", count, 1);
	setenv("SOFT_CONNECTX_NUMA", "0,3", 1);
	uv_sysfs_prepare();
}

/* Runs `body` in a child; returns 0 if it returned. */
static int apart(void (*body)(void))
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		body();
		uv_sysfs_remove();
		_exit(0);
	}
	waitpid(child, &status, 0);
	return status;
}

/* Ends the child: cmocka's assertions report to a parent that is another process here. */
#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                 \
			uv_sysfs_remove();                                                         \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static int open_number(const char *folder, const char *file)
{
	char path[PATH_MAX + 32];
	int number = -2;
	FILE *at;

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	at = fopen(path, "re");
	if (!at)
		return -2;
	if (fscanf(at, "%d", &number) != 1)
		number = -2;
	fclose(at);
	return number;
}

static void check_access(void)
{
	devices("2");
	CHECK(access("/dev/infiniband/uverbs0", R_OK | W_OK) == 0);
	CHECK(access("/dev/infiniband/uverbs1", F_OK) == 0);
	CHECK(access("/dev/infiniband/uverbs2", F_OK) == -1 && errno == ENOENT);
	CHECK(access("/dev/infiniband/uverbs1x", F_OK) == -1);
	CHECK(access(SYSFS "/mlx5_1/ports/1/gids/0", R_OK) == 0);
	CHECK(access(SYSFS "/mlx5_2", F_OK) == -1 && errno == ENOENT);
}

static void check_stat(void)
{
	struct stat status;

	devices("2");
	CHECK(stat("/dev/infiniband/uverbs1", &status) == 0 && S_ISCHR(status.st_mode));
	CHECK(stat("/dev/infiniband/uverbs2", &status) == -1 && errno == ENOENT);
	memset(&status, 0, sizeof(status));
	CHECK(__xstat(1, "/dev/infiniband/uverbs0", &status) == 0 && S_ISCHR(status.st_mode));
	CHECK(__xstat(1, "/dev/infiniband/uverbs2", &status) == -1 && errno == ENOENT);
	CHECK(stat(SYSFS "/mlx5_0", &status) == 0 && S_ISDIR(status.st_mode));
	CHECK(stat(SYSFS "_verbs/uverbs1", &status) == 0 && S_ISDIR(status.st_mode));
}

static void check_realpath(void)
{
	char path[PATH_MAX], *found;

	devices("2");
	CHECK(realpath(SYSFS "/mlx5_1/../..", path) == path);
	CHECK(strcmp(strrchr(path, '/'), "/0000:c1:00.1") == 0);
	CHECK(open_number(path, "numa_node") == 3);
	found = realpath(SYSFS "/mlx5_0/device", NULL);
	CHECK(found && strcmp(strrchr(found, '/'), "/0000:c1:00.0") == 0);
	CHECK(open_number(found, "numa_node") == 0);
	free(found);
	CHECK(!realpath(SYSFS "/mlx5_2", NULL) && errno == ENOENT);
}

static void check_opendir(void)
{
	DIR *directory;
	struct dirent *entry;
	unsigned seen = 0;

	devices("2");
	directory = opendir(SYSFS);
	CHECK(directory);
	while ((entry = readdir(directory)))
		seen += strcmp(entry->d_name, "mlx5_0") == 0 ||
			strcmp(entry->d_name, "mlx5_1") == 0;
	closedir(directory);
	CHECK(seen == 2);
}

static void check_others(void)
{
	char path[PATH_MAX];

	devices("1");
	CHECK(access("/dev/null", R_OK | W_OK) == 0);
	CHECK(access(SYSFS "x", F_OK) == -1);
	CHECK(realpath("/proc/../dev/./null", path) == path && strcmp(path, "/dev/null") == 0);
	CHECK(!realpath("/nothing/there", path) && errno == ENOENT);
}

static void check_none(void)
{
	const char *path[] = {"/dev/infiniband/uverbs0", SYSFS, SYSFS "_verbs"};

	devices("0");
	for (unsigned i = 0; i < 3; i++)
		CHECK(access(path[i], F_OK) ==
			(int)syscall(SYS_faccessat, AT_FDCWD, path[i], F_OK));
}

static void device_nodes_are_accessible(void **state)
{
	(void)state;
	assert_int_equal(apart(check_access), 0);
}

static void device_nodes_are_character_devices(void **state)
{
	(void)state;
	assert_int_equal(apart(check_stat), 0);
}

static void realpath_finds_the_pci_device_and_its_node(void **state)
{
	(void)state;
	assert_int_equal(apart(check_realpath), 0);
}

static void the_class_lists_every_device(void **state)
{
	(void)state;
	assert_int_equal(apart(check_opendir), 0);
}

static void other_paths_are_those_of_the_machine(void **state)
{
	(void)state;
	assert_int_equal(apart(check_others), 0);
}

static void without_devices_nothing_is_replaced(void **state)
{
	(void)state;
	assert_int_equal(apart(check_none), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_nodes_are_accessible),
		cmocka_unit_test(device_nodes_are_character_devices),
		cmocka_unit_test(realpath_finds_the_pci_device_and_its_node),
		cmocka_unit_test(the_class_lists_every_device),
		cmocka_unit_test(other_paths_are_those_of_the_machine),
		cmocka_unit_test(without_devices_nothing_is_replaced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
