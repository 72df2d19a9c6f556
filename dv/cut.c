/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes a device as a whole (dv_cut()) when its queues and memory registrations can no longer be
 * destroyed one by one. The kernel then releases all resources of this open device file. Any thread
 * calls dv_verbs_enter(), which does not block, before it calls libibverbs; one thread closes the
 * device.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "config/log.h"
#include "dv/order.h"
#include "dv/verbs.h"

/*
 * The read-write lock prefers readers. Several threads that register one MR after another can hold
 * it without a gap, so dv_cut() would never get it; `cut_wanted` therefore refuses new readers.
 */
bool dv_verbs_enter(struct dv_device *device)
{
	if (dv_hint_load(&device->cut_wanted) || pthread_rwlock_tryrdlock(&device->gate))
		return false;
	if (!device->cut)
		return true;
	pthread_rwlock_unlock(&device->gate);
	return false;
}

void dv_verbs_leave(struct dv_device *device)
{
	pthread_rwlock_unlock(&device->gate);
}

/*
 * Does this process map the file `file`? Returns 1, 0, or a negative errno when /proc cannot be
 * read.
 */
static int mapped(const struct stat *file)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int found = 0;

	if (!maps)
		return -errno;
	while (!found && fgets(line, sizeof(line), maps)) {
		unsigned major_number, minor_number;
		uint64_t inode;

		found = sscanf(line, "%*s %*s %*s %x:%x %" SCNu64, &major_number, &minor_number,
				&inode) == 3 &&
			makedev(major_number, minor_number) == file->st_dev &&
			inode == file->st_ino;
	}
	fclose(maps);
	return found;
}

/*
 * Closes the device file. The kernel destroys the queues when the last reference to the open file
 * is gone, and every mapped doorbell page is a reference. libmlx5 unmaps its own pages, but not the
 * page of a thread domain with queues, so this unmaps it. The memory that libmlx5 allocated for
 * QPs, CQs and MRs is leaked, because only their destroy functions could free it.
 */
static int cut_open(struct dv_device *device)
{
	const char *name = device->name;
	struct stat file;
	int rc;

	if (fstat(device->context->cmd_fd, &file))
		return dv_fail(-errno, "closing %s: fstat: %m", name);
	if (device->doorbells)
		munmap(device->doorbells, (size_t)sysconf(_SC_PAGESIZE));
	device->doorbells = NULL;
	rc = dv_verbs_result(ibv_close_device(device->context));
	if (rc)
		return dv_fail(rc, "closing %s: ibv_close_device: %m", name);
	/* set before the check below: the device is closed also when a mapped page makes dv_cut()
	 * fail */
	device->cut = true;
	rc = mapped(&file);
	if (rc)
		return dv_fail(rc < 0 ? rc : -EBUSY,
			"closing %s: %m: a page of it is still mapped, so the kernel keeps its queues",
			name);
	return 0;
}

int dv_verbs_cut(struct dv_device *device)
{
	int rc;

	dv_hint_store(&device->cut_wanted, 1);
	pthread_rwlock_wrlock(&device->gate);
	if (!device->cut)
		device->cut_error = cut_open(device);
	rc = device->cut_error;
	pthread_rwlock_unlock(&device->gate);
	return rc;
}
