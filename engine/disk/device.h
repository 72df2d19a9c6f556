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
	/*
	 * Inode number of the path file, and when the file system created the inode; 0: it does not
	 * tell. No call sets them, so a copy has others; a file that is renamed keeps them.
	 */
	uint64_t inode, born_ns;
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
unsigned device_dispatch(struct device *device);
/*
 * Submits an operation and waits for it; other operations that complete meanwhile are dispatched.
 * Returns result, or -ETIMEDOUT after `timeout_ns`: then the operation, and the memory that it
 * names, still belong to the device.
 */
int64_t device_call(struct device *device, struct device_io *io, uint64_t timeout_ns);

#endif
