/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier with its thread over real files, by io_uring and by threads: restart, locks,
 * refusals, damage. The files are in a directory that the test makes and removes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "config/log.h"
#include "engine/abi/crc32c.h"
#include "engine/disk/disk.h"
#include "engine/disk/layout.h"

#define SEGMENT_UNITS 64u
#define PAGES 200u
#define PAGE_ROOM (3 * PAGE_UNIT)

static char directory[64];
static char captured[8192];

static struct disk_options options(bool threads)
{
	return (struct disk_options){.paths = 1,
		.path = {{.directory = directory, .bytes = 24ull * SEGMENT_UNITS * PAGE_UNIT}},
		.segment_bytes = SEGMENT_UNITS * PAGE_UNIT,
		.owner = "test-engine",
		.timeout_ms = 20000,
		.threads = threads};
}

static int setup(void **state)
{
	snprintf(directory, sizeof(directory), "disk-test-XXXXXX");
	captured[0] = '\0';
	log_test_capture(captured, sizeof(captured));
	return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state)
{
	DIR *folder = opendir(directory);
	struct dirent *entry;

	log_test_capture(NULL, 0);
	while (folder && (entry = readdir(folder)))
		if (entry->d_name[0] != '.')
			unlinkat(dirfd(folder), entry->d_name, 0);
	if (folder)
		closedir(folder);
	return rmdir(directory);
}

static struct page_key key_of(uint32_t number)
{
	return (struct page_key){{number * UINT64_C(0x9e3779b97f4a7c15) + 1, ~(uint64_t)number}};
}

static uint32_t length_of(uint32_t number)
{
	return 1 + number * 977 % PAGE_ROOM;
}

static void fill(uint8_t *data, uint32_t number)
{
	for (uint32_t i = 0; i < length_of(number); i++)
		data[i] = (uint8_t)(number * 31 + i * 7 + i / 251);
}

static enum disk_status call(struct disk *disk, struct disk_request *request)
{
	struct disk_request *finished;
	struct disk_report report;

	disk_submit(disk, request);
	disk_report(disk, &report); /* while the disk's thread makes the next one */
	assert_int_equal(report.paths, 1);
	while (!(finished = disk_reap(disk))) {
		struct pollfd readable = {.fd = disk_fd(disk), .events = POLLIN};

		assert_int_not_equal(poll(&readable, 1, 30000), 0);
	}
	assert_ptr_equal(finished, request);
	return request->status;
}

static enum disk_status put(struct disk *disk, uint32_t number)
{
	struct disk_request request = {
		.op = DISK_WRITE, .key = key_of(number), .length = length_of(number)};
	enum disk_status status;

	request.data = aligned_alloc(PAGE_UNIT, PAGE_ROOM);
	memset(request.data, 0xee, PAGE_ROOM);
	fill(request.data, number);
	status = call(disk, &request);
	free(request.data);
	return status;
}

static bool forget(struct disk *disk, uint32_t number)
{
	struct page_key key = key_of(number);

	return disk_forget(disk, &key);
}

/* True if the page is a hit; its bytes must then be right. */
static bool hit(struct disk *disk, uint32_t number)
{
	struct disk_request request = {.op = DISK_READ, .key = key_of(number)};
	static uint8_t expected[PAGE_ROOM];
	enum disk_status status;
	struct disk_page page;

	if (!disk_find(disk, &request.key, &page))
		return false;
	request.length = page.length;
	assert_int_equal(request.length, length_of(number));
	request.data = aligned_alloc(PAGE_UNIT, PAGE_ROOM);
	status = call(disk, &request);
	if (status == DISK_OK) {
		fill(expected, number);
		assert_memory_equal(request.data, expected, request.length);
	}
	free(request.data);
	return status == DISK_OK;
}

static unsigned hits(struct disk *disk)
{
	unsigned count = 0;

	for (uint32_t i = 0; i < PAGES; i++)
		count += hit(disk, i);
	return count;
}

static struct disk *reopen(struct disk *disk, bool threads)
{
	struct disk_options with = options(threads);
	struct disk *opened;

	if (disk)
		assert_int_equal(disk_close(disk), 0);
	assert_int_equal(disk_open(&with, &opened), 0);
	return opened;
}

static void write_restart_and_read(bool threads)
{
	struct disk *disk = reopen(NULL, threads);
	struct disk_report report;

	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(put(disk, i), DISK_OK);
	assert_int_equal(hits(disk), PAGES);
	assert_int_equal(put(disk, 7), DISK_EXISTS);
	assert_true(forget(disk, 7));
	assert_false(forget(disk, 7));
	assert_false(hit(disk, 7));
	disk = reopen(disk, threads);
	disk_report(disk, &report);
	assert_int_equal(report.path[0].pages_recovered, PAGES - 1);
	assert_int_equal(report.pages, PAGES - 1);
	assert_true(report.path[0].sealed > 0);
	assert_int_equal(hits(disk), PAGES - 1);
	assert_int_equal(put(disk, 7), DISK_OK);
	disk = reopen(disk, threads);
	assert_int_equal(hits(disk), PAGES);
	assert_int_equal(disk_close(disk), 0);
}

static void pages_survive_a_restart_with_io_uring(void **state)
{
	write_restart_and_read(false);
}

static void pages_survive_a_restart_with_threads(void **state)
{
	write_restart_and_read(true);
}

/* Directory entries of a warm restart rely on it. */
static void pages_keep_their_names(void **state)
{
	struct disk *disk = reopen(NULL, false);
	struct disk_page before[PAGES], after;

	for (uint32_t i = 0; i < PAGES; i++) {
		struct page_key key = key_of(i);

		assert_int_equal(put(disk, i), DISK_OK);
		assert_true(disk_find(disk, &key, &before[i]));
		assert_true(place_on_disk(before[i].place));
		assert_int_not_equal(before[i].generation, 0);
	}
	disk = reopen(disk, false);
	for (uint32_t i = 0; i < PAGES; i++) {
		struct page_key key = key_of(i);

		assert_true(disk_find(disk, &key, &after));
		assert_int_equal(after.place, before[i].place);
		assert_int_equal(after.generation, before[i].generation);
		assert_int_equal(after.length, before[i].length);
	}
	assert_int_equal(disk_close(disk), 0);
}

/* Opens the directory in another process; true if that is refused with this reason. */
static bool refused_elsewhere(const struct disk_options *options, const char *reason)
{
	pid_t child = fork();
	struct disk *disk;
	int status;

	if (!child)
		_exit(disk_open(options, &disk) != -ENODEV || !strstr(captured, reason));
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void a_second_engine_is_refused_and_told_the_owner(void **state)
{
	struct disk *disk = reopen(NULL, false);
	struct disk_options second = options(false);

	second.owner = "second";
	second.timeout_ms = 600000; /* it does not wait: the test would end by its time */
	assert_true(refused_elsewhere(&second, "is used by engine test-engine (pid "));
	assert_int_equal(put(disk, 1), DISK_OK);
	assert_int_equal(disk_close(disk), 0);
}

/* The directory is used once, under whatever names. */
static void a_directory_that_is_named_twice_is_used_once(void **state)
{
	struct disk_options twice = options(false);
	struct disk_report report;
	struct disk *disk;
	char name[96];

	snprintf(name, sizeof(name), "./%s/", directory);
	twice.paths = 2;
	twice.path[1] = twice.path[0];
	twice.path[1].directory = name;
	twice.timeout_ms = 200;
	assert_int_equal(disk_open(&twice, &disk), 0);
	disk_report(disk, &report);
	assert_int_equal(report.path[0].state, DISK_PATH_IN_SERVICE);
	assert_non_null(strstr(report.path[1].reason, "is the same directory as"));
	assert_int_equal(disk_close(disk), 0);
}

static int flock_error; /* what flock() answers in this process; 0: it locks */

int flock(int fd, int operation)
{
	errno = flock_error;
	return flock_error ? -1 : (int)syscall(SYS_flock, fd, operation);
}

static void a_lock_that_the_file_system_refuses_is_named(void **state)
{
	static const int errors[] = {ENOLCK, ENOSYS, EOPNOTSUPP};
	struct disk_options with = options(false);
	struct disk *disk;

	with.timeout_ms = 200;
	for (unsigned i = 0; i < 3; i++) {
		char expected[128];

		flock_error = errors[i];
		assert_int_equal(disk_open(&with, &disk), -ENODEV);
		flock_error = 0;
		snprintf(expected, sizeof(expected),
			"cannot lock peercache-disk.lock: %s; use a local file system",
			strerror(errors[i]));
		assert_non_null(strstr(captured, expected));
	}
}

static void pages_of_a_killed_engine_are_found(void **state)
{
	pid_t child = fork();
	struct disk *disk;
	int status;

	if (!child) {
		struct disk_options with = options(false);

		if (disk_open(&with, &disk))
			_exit(1);
		for (uint32_t i = 0; i < PAGES; i++)
			put(disk, i);
		forget(disk, 11);
		put(disk, PAGES); /* with the tombstone */
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	/* The kernel may still end the I/O of the ring, which keeps the lock: the open waits. */
	disk = reopen(NULL, false);
	assert_int_equal(hits(disk), PAGES - 1);
	assert_false(hit(disk, 11));
	assert_int_equal(disk_close(disk), 0);
}

/*
 * Locks the directory until `go` is closed. `text`, the name of the owner, is written before, or
 * if `late` some time after the lock. Returns the process that holds the lock.
 */
static pid_t hold_lock(int go[2], const char *text, bool late)
{
	char name[96], byte;
	int fd, ready[2];
	pid_t holder;

	assert_int_equal(pipe(ready), 0);
	snprintf(name, sizeof(name), "%s/peercache-disk.lock", directory);
	holder = fork();
	if (!holder) {
		close(go[1]);
		fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (flock(fd, LOCK_EX) || (!late && write(fd, text, strlen(text)) < 0))
			_exit(1);
		close(ready[1]);
		if (late) {
			usleep(50000); /* the opener looks meanwhile, or comes later */
			if (write(fd, text, strlen(text)) < 0)
				_exit(1);
		}
		(void)!read(go[0], &byte, 1);
		usleep(50000); /* the opener waits meanwhile, or comes later */
		_exit(0);
	}
	close(go[0]);
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 0);
	close(ready[0]);
	return holder;
}

static void the_lock_of_a_killed_engine_is_waited_for(void **state)
{
	struct disk_options impatient = options(false);
	struct disk *disk = NULL;
	int status;
	pid_t dead = fork();

	if (!dead)
		_exit(0);
	assert_int_equal(waitpid(dead, &status, 0), dead);
	/* In a container the successor may have the number of the engine before it. */
	for (unsigned same = 0; same < 2; same++) {
		pid_t pid = same ? getpid() : dead, holder;
		char text[64];
		int go[2];

		assert_int_equal(pipe(go), 0);
		snprintf(text, sizeof(text), "killed (pid %d)\n", (int)pid);
		holder = hold_lock(go, text, false);
		impatient.timeout_ms = 20;
		assert_int_equal(disk_open(&impatient, &disk), -ENODEV);
		assert_non_null(strstr(captured, "is used by engine killed (pid "));
		close(go[1]);
		disk = reopen(NULL, false);
		assert_int_equal(waitpid(holder, &status, 0), holder);
		assert_int_equal(status, 0);
		assert_int_equal(put(disk, same), DISK_OK);
		assert_int_equal(disk_close(disk), 0);
	}
}

/* The owner locks the file first and writes its name then. */
static void the_name_of_a_new_owner_is_waited_for(void **state)
{
	struct disk_options second = options(false);
	struct disk *disk = NULL;
	int go[2], status;
	char text[64];
	pid_t holder;

	assert_int_equal(pipe(go), 0);
	snprintf(text, sizeof(text), "quick (pid %d)\n", (int)getppid());
	holder = hold_lock(go, text, true);
	second.timeout_ms = 60000;
	assert_int_equal(disk_open(&second, &disk), -ENODEV);
	assert_non_null(strstr(captured, "is used by engine quick (pid "));
	close(go[1]);
	assert_int_equal(waitpid(holder, &status, 0), holder);
	assert_int_equal(status, 0);
}

static void another_segment_size_is_refused_with_both_values(void **state)
{
	struct disk_options with = options(false);
	struct disk *disk = reopen(NULL, false);

	assert_int_equal(put(disk, 1), DISK_OK);
	assert_int_equal(disk_close(disk), 0);
	with.segment_bytes *= 2;
	assert_int_equal(disk_open(&with, &disk), -ENODEV);
	assert_non_null(strstr(captured, "segments of 262144 bytes, not 4096 and 524288"));
	disk = reopen(NULL, false);
	assert_true(hit(disk, 1));
	assert_int_equal(disk_close(disk), 0);
}

static void another_layout_version_is_refused(void **state)
{
	struct disk_options with = options(false);
	struct disk *disk = reopen(NULL, false);
	struct disk_path_file slot;
	char name[128];
	int fd;

	assert_int_equal(disk_close(disk), 0);
	snprintf(name, sizeof(name), "%s/peercache-disk.path", directory);
	fd = open(name, O_RDWR);
	assert_int_equal(pread(fd, &slot, sizeof(slot), 0), sizeof(slot));
	/* As a later version would: magic, CRC and version keep their place. */
	slot.version = DISK_LAYOUT_VERSION + 1;
	slot.crc = 0;
	slot.crc = crc32c(0, &slot, sizeof(slot));
	assert_int_equal(pwrite(fd, &slot, sizeof(slot), 0), sizeof(slot));
	close(fd);
	assert_int_equal(disk_open(&with, &disk), -ENODEV);
	assert_non_null(strstr(captured,
		"has layout version 4, this engine 3; start the engine that wrote it, or empty"));
}

static void other_files_of_the_directory_are_left_alone(void **state)
{
	/* What PeerCache 0.8.x keeps in its disk_path. */
	static const char *const names[] = {"node_ab12.bin", "index.json", "00000.seg"};
	char name[128], text[8] = "";
	struct disk *disk;

	for (unsigned i = 0; i < 3; i++) {
		FILE *file;

		snprintf(name, sizeof(name), "%s/%s", directory, names[i]);
		file = fopen(name, "w");
		fputs("theirs", file);
		fclose(file);
	}
	disk = reopen(NULL, false);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(put(disk, i), DISK_OK);
	disk = reopen(disk, false);
	assert_int_equal(disk_close(disk), 0);
	for (unsigned i = 0; i < 3; i++) {
		FILE *file;

		snprintf(name, sizeof(name), "%s/%s", directory, names[i]);
		file = fopen(name, "r");
		assert_non_null(file);
		assert_non_null(fgets(text, sizeof(text), file));
		assert_string_equal(text, "theirs");
		fclose(file);
	}
}

static void a_removed_and_a_short_file_cost_pages_and_never_bytes(void **state)
{
	struct disk *disk = reopen(NULL, false);
	char name[128];

	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(put(disk, i), DISK_OK);
	assert_int_equal(disk_close(disk), 0);
	snprintf(name, sizeof(name), "%s/peercache-disk.00003", directory);
	assert_int_equal(unlink(name), 0);
	disk = reopen(NULL, false);
	assert_in_range(hits(disk), 1, PAGES - 1);
	assert_int_equal(disk_close(disk), 0);
	snprintf(name, sizeof(name), "%s/peercache-disk.00005", directory);
	assert_int_equal(truncate(name, 5 * PAGE_UNIT), 0);
	disk = reopen(NULL, false);
	assert_in_range(hits(disk), 0, PAGES - 1);
	assert_int_equal(put(disk, PAGES + 1), DISK_OK);
	assert_int_equal(disk_close(disk), 0);
}

static void a_directory_that_is_missing_is_named(void **state)
{
	struct disk_options with = options(false);
	struct disk *disk;

	with.path[0].directory = "no-such-directory";
	assert_int_equal(disk_open(&with, &disk), -ENODEV);
	assert_non_null(strstr(captured, "no-such-directory: cannot open the directory"));
}

int main(void)
{
#define case_of(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		case_of(pages_survive_a_restart_with_io_uring),
		case_of(pages_survive_a_restart_with_threads),
		case_of(pages_keep_their_names),
		case_of(a_second_engine_is_refused_and_told_the_owner),
		case_of(a_directory_that_is_named_twice_is_used_once),
		case_of(a_lock_that_the_file_system_refuses_is_named),
		case_of(pages_of_a_killed_engine_are_found),
		case_of(the_lock_of_a_killed_engine_is_waited_for),
		case_of(the_name_of_a_new_owner_is_waited_for),
		case_of(another_segment_size_is_refused_with_both_values),
		case_of(another_layout_version_is_refused),
		case_of(other_files_of_the_directory_are_left_alone),
		case_of(a_removed_and_a_short_file_cost_pages_and_never_bytes),
		case_of(a_directory_that_is_missing_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
