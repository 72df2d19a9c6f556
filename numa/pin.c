/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins threads and claims cores. The file `cores` has a record of 16 bytes for each core: the pid
 * of the claiming process as text. The claim itself is an open-file-description lock on these
 * bytes, which the kernel removes when the process ends; the text only tells its pid. Start-up
 * only; any thread.
 */
#include "numa/pin.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "numa/kernel_file.h"

#define RECORD_BYTES 16 /* bytes of the record that one core has in the file `cores` */
#define PATH_BYTES 512

int pin_self(int core)
{
	cpu_set_t set;

	if (core == -1)
		return 0;
	if (core < 0 || core >= CPU_SETSIZE)
		return -EINVAL;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	return sched_setaffinity(0, sizeof(set), &set) < 0 ? -errno : 0;
}

/*
 * Opens `cores` in `dir`; with `create` it creates the directory and the file if they are missing.
 * `must_be_ours` refuses a directory of another user, because any user may create one in /tmp.
 */
static int open_in(const char *dir, bool create, bool must_be_ours)
{
	char path[PATH_BYTES];
	struct stat st;
	int fd;

	if (create && mkdir(dir, must_be_ours ? 0700 : 0755) < 0 && errno != EEXIST)
		return -errno;
	if (must_be_ours && (lstat(dir, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()))
		return -EPERM;
	if (snprintf(path, sizeof(path), "%s/cores", dir) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), 0644);
	return fd < 0 ? -errno : fd;
}

/*
 * Opens the file `cores`, which records claimed cores, in the run directory (pin.h). Returns an fd
 * or a negative errno.
 */
static int open_cores(bool create)
{
	const char *chosen = getenv("PEERCACHE_RUN_DIR"), *runtime = getenv("XDG_RUNTIME_DIR");
	char dir[PATH_BYTES];
	int fd;

	if (chosen && *chosen)
		return open_in(chosen, create, false);
	fd = open_in("/run/peercache", create, false);
	if (fd < 0 && runtime && *runtime) {
		snprintf(dir, sizeof(dir), "%s/peercache", runtime);
		fd = open_in(dir, create, false);
	}
	if (fd < 0) {
		snprintf(dir, sizeof(dir), "/tmp/peercache-cores-%u", (unsigned)geteuid());
		fd = open_in(dir, create, true);
	}
	return fd;
}

static struct flock record_lock(int core)
{
	return (struct flock){
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)core * RECORD_BYTES,
		.l_len = RECORD_BYTES,
	};
}

/* The pid of the engine that the record of `core` names; -1: none. */
static int read_holder(int fd, int core)
{
	char text[RECORD_BYTES + 1] = "";
	int pid;

	if (pread(fd, text, RECORD_BYTES, (off_t)core * RECORD_BYTES) <= 0)
		return -1;
	pid = atoi(text);
	return pid > 0 ? pid : -1;
}

int pin_claim(int core, int *ret_fd, int *ret_holder)
{
	char text[RECORD_BYTES + 1];
	struct flock lock;
	int fd, rc;

	if (core < 0 || core >= CPU_SETSIZE)
		return -EINVAL;
	lock = record_lock(core);
	fd = open_cores(true);
	if (fd < 0)
		return fd;
	if (fcntl(fd, F_OFD_SETLK, &lock) < 0) {
		rc = errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
		if (rc == -EBUSY)
			*ret_holder = read_holder(fd, core);
		goto out_close;
	}
	snprintf(text, sizeof(text), "%-15d\n", (int)getpid());
	if (pwrite(fd, text, RECORD_BYTES, (off_t)core * RECORD_BYTES) != RECORD_BYTES) {
		rc = errno ? -errno : -EIO;
		goto out_close;
	}
	*ret_fd = fd;
	return 0;
out_close:
	close(fd);
	return rc;
}

int pin_holder(int core)
{
	struct flock lock;
	int fd, holder = 0;

	if (core < 0 || core >= CPU_SETSIZE)
		return 0;
	lock = record_lock(core);
	fd = open_cores(false);
	if (fd < 0)
		return 0;
	if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK)
		holder = read_holder(fd, core);
	close(fd);
	return holder;
}

/* Does `list`, such as "2-5,8", contain `core`? */
static bool list_has(const char *list, int core)
{
	while (*list) {
		char *end;
		long low = strtol(list, &end, 10), high = low;

		if (end == list)
			return false;
		if (*end == '-')
			high = strtol(end + 1, &end, 10);
		if (core >= low && core <= high)
			return true;
		list = *end == ',' ? end + 1 : end;
	}
	return false;
}

bool pin_isolated(int core)
{
	char line[256];

	(void)kernel_file_line("/sys/devices/system/cpu/isolated", line, sizeof(line));
	return list_has(line, core);
}

void pin_near(int node, cpu_set_t *set)
{
	char path[64], line[1024];
	cpu_set_t near;

	CPU_ZERO(&near);
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	if (node < 0 || !kernel_file_line(path, line, sizeof(line)))
		return;
	for (int core = 0; core < CPU_SETSIZE; core++)
		if (CPU_ISSET((size_t)core, set) && list_has(line, core))
			CPU_SET((size_t)core, &near);
	if (CPU_COUNT(&near))
		*set = near;
}
