/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device whose queues and memory cannot be destroyed one by one any more is closed as a whole:
 * the kernel then takes everything back that this open of it had. Any thread asks for the device,
 * without blocking, before it calls libibverbs; one thread closes it.
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
 * The lock prefers readers, and threads that register one MR after the other overlap: without
 * `cut_wanted` they would keep dv_cut() out.
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

/* Is a file of that inode mapped here? -errno: cannot be told. */
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
 * The kernel takes the queues back when the last reference to the open file is gone, and a mapped
 * doorbell page is one: libmlx5 unmaps its own, but not the page of a thread domain that is in use.
 * What libmlx5 allocated for QPs, CQs and MRs stays allocated: it cannot be freed without them.
 */
static int cut_open(struct dv_device *device)
{
	const char *name = device->attributes.name;
	struct stat file;
	int rc;

	if (fstat(device->context->cmd_fd, &file))
		return dv_fail(-errno, "closing %s: fstat: %m", name);
	if (device->doorbells)
		munmap(device->doorbells, (size_t)sysconf(_SC_PAGESIZE));
	rc = dv_verbs_result(ibv_close_device(device->context));
	if (rc)
		return dv_fail(rc, "closing %s: ibv_close_device: %m", name);
	device->cut = true; /* there is no context any more, whatever comes now */
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
