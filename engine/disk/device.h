/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam between the segment log and the files of one path. The engine uses the files of a
 * directory (device_file.c); tests use a simulated device that loses, tears and reorders what was
 * not synced. One thread uses a device at a time.
 *
 * An operation and all memory that it names belong to the device from submit() until reap() returns
 * it, however long that takes: a device never gives up an operation that may still move bytes.
 * Operations may complete in any order. Only a sync makes writes durable: those of the same file
 * that reap() had returned before the sync was submitted.
 */
#ifndef DISK_DEVICE_H
#define DISK_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

enum device_op {
	DEVICE_READ,
	DEVICE_WRITE,
	DEVICE_SYNC,   /* fdatasync */
	DEVICE_CREATE, /* a new segment file of zeros, preallocated; durable when reaped */
	DEVICE_UNLINK, /* durable when reaped; a file that does not exist is no error */
};

/* Number of the path file; segments are numbered from 0. */
#define DEVICE_PATH_FILE UINT32_MAX

struct device_io {
	/* owner: the device, from submit() to reap() */
	TAILQ_ENTRY(device_io) next;
	enum device_op op;
	uint32_t file;
	uint64_t offset; /* multiple of PAGE_UNIT */
	/* addresses and lengths are multiples of PAGE_UNIT */
	struct iovec *iov;
	unsigned iovs;
	/* bytes, or -errno; fewer bytes than requested at the end of a file, or on a fault */
	int64_t result;
	/* Called by device_dispatch() after the device has returned the operation. */
	void (*done)(struct device_io *io);

	/* owner: the submitter */
	TAILQ_ENTRY(device_io) flying;
	uint64_t since_ns;
	void *context;
};
TAILQ_HEAD(device_ios, device_io);

struct device {
	const char *name; /* for the log: the directory */
	/* readable when reap() may return something; -1: the caller polls */
	int fd;
	void (*submit)(struct device *device, struct device_io *io);
	/* Returns the next completed operation, or NULL. */
	struct device_io *(*reap)(struct device *device);
	/* Blocks until reap() may return something, at most `wait_ns`. */
	void (*wait)(struct device *device, uint64_t wait_ns);
	/* Frees the device. -EBUSY, and nothing freed, while operations are in flight. */
	int (*close)(struct device *device);
};

/* Calls done() of the operations that have completed; returns how many. */
static inline unsigned device_dispatch(struct device *device)
{
	struct device_io *io;
	unsigned n = 0;

	while ((io = device->reap(device))) {
		io->done(io);
		n++;
	}
	return n;
}

/*
 * ---- device_file.c: the files of a directory ---------------------------------------------------
 *
 * The files of one path as a device: io_uring with O_DIRECT, or pread and pwrite on threads.
 * Opening and closing block; the thread that uses the device may be another one than opened it.
 *
 *   DIRECTORY/peercache-disk.lock     locked by the engine that uses the directory; names it
 *   DIRECTORY/peercache-disk.path     the path file
 *   DIRECTORY/peercache-disk.00000    segments
 *
 * No other file of the directory is touched, so those of PeerCache 0.8.x stay as they are.
 */
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
