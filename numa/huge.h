/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page memory: a memfd on a chosen NUMA node, on huge pages if the machine has enough of them. If
 * not, it uses small pages (with MADV_HUGEPAGE) or other nodes and logs one warning for each.
 * Start-up and control plane only, any of their threads.
 */
#ifndef NUMA_HUGE_H
#define NUMA_HUGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct huge {
	int fd; /* memfd; its name is visible in /proc/PID/fd only, there is no file in /dev/shm */
	/* start of the read-write mapping; the memory is zeroed when it is created */
	void *base;
	size_t bytes;      /* length of the mapping: the requested size rounded up to page_bytes */
	size_t page_bytes; /* bytes of one page of this memory: 4096 or 2 MiB */
};

/*
 * Allocates and maps `bytes` of page memory. `node`: the NUMA node, -1 for any; other nodes provide
 * the pages that it does not have. Returns 0, or -ENOMEM when the machine or the cgroup has less
 * memory left, or another negative errno; the reason is logged. The check subtracts memory of other
 * pools that is not touched yet. The kernel allocates each page when it is first touched or
 * registered: huge_open() touches none.
 */
int huge_open(const char *name, size_t bytes, int node, bool want_huge, struct huge *ret);
/*
 * Maps the memory of a memfd that huge_open() of another process made for a request of `bytes`, on
 * the same machine. Takes ownership of `fd`, also on failure. Returns 0; -EINVAL: the file has
 * another size; or another negative errno.
 */
int huge_adopt(int fd, size_t bytes, struct huge *ret);
/*
 * Makes the kernel allocate the pages of a part of the memory now, and charge them to this process.
 * Changes no byte; other processes may use the memory meanwhile. `from` is a multiple of
 * page_bytes; what lies behind the end is left out. Returns 0 or -errno, -ENOMEM: a limit was
 * reached.
 */
int huge_populate(const struct huge *h, size_t from, size_t bytes);
/* Bytes of the memory that the kernel has allocated, for whichever process. */
uint64_t huge_allocated(const struct huge *h);
/*
 * A number that no other memfd has as long as this one exists, in any process that it was passed
 * to. 0: `fd` is no open file.
 */
uint64_t huge_number(int fd);
/* Unmaps the memory and closes the memfd. Does nothing if `h` was closed before or is zeroed. */
void huge_close(struct huge *h);

#endif
