/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of one path as a device: io_uring with O_DIRECT, or pread and pwrite on threads.
 * Opening and closing block; the thread that uses the device may be another one than opened it.
 *
 *   DIRECTORY/peercache-disk.lock     locked by the engine that uses the directory; names it
 *   DIRECTORY/peercache-disk.path     the path file
 *   DIRECTORY/peercache-disk.00000    segments
 *
 * No other file of the directory is touched, so those of PeerCache 0.8.x stay as they are.
 */
#ifndef DISK_DEVICE_FILE_H
#define DISK_DEVICE_FILE_H

#include "engine/disk/device.h"

/* Segments of a path, at most; more than the index of an engine can have. */
#define DEVICE_FILES_MAX 65536u

struct device_file_options {
	const char *directory;
	uint32_t segment_bytes;
	const char *owner; /* name of this engine, for the lock file */
	bool threads;      /* no io_uring */
	/* until then it waits for the last I/O of a process that was killed */
	uint64_t lock_until_ns;
};

/*
 * Returns 0, or -errno with the reason as text: -EBUSY names the engine that has the directory.
 */
int device_file_open(const struct device_file_options *options, char *reason, size_t reason_bytes,
	struct device **ret_device);

#endif
