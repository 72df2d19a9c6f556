/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates page memory: chooses huge or small pages, checks that the machine has enough memory,
 * creates a memfd, maps it and sets its NUMA node. Start-up and control plane only, any of their
 * threads.
 */
#include "numa/huge.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <numaif.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "numa/cgroup.h"
#include "numa/limit.h"
#include "numa/memory.h"

#define SMALL_BYTES 4096u     /* bytes of a page of the default size */
#define HUGE_BYTES (2u << 20) /* bytes of a huge page */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define OPEN_MAX 64 /* open pools that the table `opened` has room for */
/* bits of the node mask that is passed to mbind(), one per NUMA node */
#define NODES_BITS 1024

/*
 * Pools that are open. The kernel counts their untouched pages neither as used memory nor as huge
 * pages of a cgroup, so the checks of a new one subtract them. Protected by `lock`.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	int fd;
	uint64_t bytes;
	uint32_t page_bytes;
} opened[OPEN_MAX]; /* table of the open pools; an unused entry has bytes = 0 */

/* Bytes that no process has touched yet, in all open pools with pages of that size. */
static uint64_t untouched_bytes(uint32_t page_bytes)
{
	uint64_t sum = 0;
	struct stat st;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < OPEN_MAX; i++) {
		uint64_t touched;

		if (!opened[i].bytes || opened[i].page_bytes != page_bytes ||
			fstat(opened[i].fd, &st) < 0)
			continue;
		touched = (uint64_t)st.st_blocks * 512;
		sum += touched < opened[i].bytes ? opened[i].bytes - touched : 0;
	}
	pthread_mutex_unlock(&lock);
	return sum;
}

static void remember(const struct huge *h)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < OPEN_MAX; i++) {
		if (!opened[i].bytes) {
			opened[i].fd = h->fd;
			opened[i].bytes = h->bytes;
			opened[i].page_bytes = (uint32_t)h->page_bytes;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

static void forget(int fd)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < OPEN_MAX; i++) {
		if (opened[i].bytes && opened[i].fd == fd)
			opened[i].bytes = 0;
	}
	pthread_mutex_unlock(&lock);
}

static unsigned long long mib(uint64_t bytes)
{
	return bytes >> 20;
}

/*
 * Does the machine have memory for `bytes` in pages of 4 KiB? Returns 0, or -ENOMEM after logging
 * the sizes.
 */
static int check_memory(const char *name, uint64_t bytes)
{
	char limit[160];
	uint64_t available = memory_available(limit, sizeof(limit)),
		 promised = untouched_bytes(SMALL_BYTES);
	uint64_t room = available > promised ? available - promised : 0;

	if (bytes <= room)
		return 0;
	log_error(
		"memory %s: %llu MiB wanted, %llu MiB available (%s; %llu MiB already promised to other pools); lower engine.pool_bytes or free memory",
		name, mib(bytes), mib(available), limit, mib(promised));
	return -ENOMEM;
}

/*
 * Are there enough huge pages: free ones, or surplus pages that the kernel may still create and for
 * which memory is available? If not, logs the reason and returns false.
 */
static bool huge_pages_suffice(const char *name, uint64_t bytes, int node)
{
	struct memory_huge huge;
	char limit[160];
	unsigned long long need = bytes / HUGE_BYTES, made;
	unsigned long long promised = untouched_bytes(HUGE_BYTES) / HUGE_BYTES;
	char touched_name[CGROUP_NAME_BYTES] = "";
	uint64_t touched = UINT64_MAX;

	memory_huge_pages(-1, &huge);
	(void)cgroup_left(CGROUP_HUGE, &touched, touched_name);
	touched /= HUGE_BYTES;
	if (need + promised > touched) {
		huge.limit = touched;
		snprintf(huge.limit_name, sizeof(huge.limit_name), "%s", touched_name);
	} else {
		promised = 0; /* a limit of reservations counts them from mmap() on */
	}
	if (need + promised > huge.limit) {
		log_warn(
			"memory %s: %llu huge pages of 2 MiB needed, %s allows %llu, and %llu of them are promised to other pools; using small pages, so reads are slower. Raise that limit",
			name, need, huge.limit_name, (unsigned long long)huge.limit, promised);
		return false;
	}
	made = need > huge.free ? need - huge.free : 0;
	if (made > huge.surplus ||
		(made && made * HUGE_BYTES > memory_available(limit, sizeof(limit)))) {
		log_warn(
			"memory %s: %llu huge pages of 2 MiB needed, %llu free; using small pages, so reads are slower. Set vm.nr_hugepages to the sum that peercache-engine --plan prints",
			name, need, (unsigned long long)huge.free);
		return false;
	}
	if (node < 0)
		return true;
	memory_huge_pages(node, &huge);
	if (need > huge.free && made == 0)
		log_warn(
			"memory %s: %llu huge pages needed on node %d, %llu free there; other nodes provide the rest. Set /sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages",
			name, need, node, (unsigned long long)huge.free, node);
	return true;
}

/*
 * Makes the kernel take pages from `node` if it has any left. The policy is MPOL_PREFERRED, not
 * MPOL_BIND: with MPOL_BIND, touching a huge page kills the process once the node has none left.
 */
static void prefer_node(const char *name, void *base, size_t bytes, int node)
{
	unsigned long mask[NODES_BITS / (8 * sizeof(unsigned long))] = {0};
	const unsigned bits = 8 * sizeof(unsigned long);

	if (node < 0)
		return;
	if (node < NODES_BITS) {
		mask[(unsigned)node / bits] = 1ul << (unsigned)node % bits;
		if (mbind(base, bytes, MPOL_PREFERRED, mask, NODES_BITS, 0) == 0)
			return;
	} else {
		errno = EINVAL;
	}
	log_warn("memory %s: cannot place it on node %d: %s; using any node", name, node,
		strerror(errno));
}

/*
 * Maps the memfd at a multiple of the huge page size. Only then can the kernel back a mapping of
 * small pages with transparent huge pages.
 */
static int map_aligned(int fd, size_t bytes, void **ret)
{
	size_t around = bytes + HUGE_BYTES;
	uintptr_t start, base;
	void *reserved, *mapped;
	int rc;

	reserved =
		mmap(NULL, around, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (reserved == MAP_FAILED)
		return -errno;
	start = (uintptr_t)reserved;
	base = (start + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1);
	mapped = mmap((void *)base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	if (mapped == MAP_FAILED) {
		rc = -errno;
		munmap(reserved, around);
		return rc;
	}
	if (base > start)
		munmap(reserved, base - start);
	if (start + around > base + bytes)
		munmap((void *)(base + bytes), start + around - base - bytes);
	*ret = mapped;
	return 0;
}

/* The memory of `h` is mapped: it enters the table, and the kernel is told of its use. */
static void pages_ready(const struct huge *h)
{
	/* Keeps the pool out of core dumps: with it, a dump would take minutes and fill the
	 * disk. */
	madvise(h->base, h->bytes, MADV_DONTDUMP);
	/* Requests transparent huge pages; if the kernel has none, small pages work too. */
	if (h->page_bytes == SMALL_BYTES)
		madvise(h->base, h->bytes, MADV_HUGEPAGE);
	remember(h);
}

/* Creates and maps a memfd with pages of `page_bytes` bytes. Returns 0 or a negative errno. */
static int open_pages(const char *name, size_t bytes, int node, size_t page_bytes, struct huge *ret)
{
	bool huge = page_bytes == HUGE_BYTES;
	struct huge h = {.bytes = bytes, .page_bytes = page_bytes};
	int rc;

	/* The code that hands the memfd to a client seals it first: a client that could shrink the
	 * file would crash every process that maps it. */
	h.fd = memfd_create(
		name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0));
	if (h.fd < 0)
		return -errno;
	/* a process of another user that was given a read-only descriptor cannot open it anew */
	if (fchmod(h.fd, 0600) < 0 || ftruncate(h.fd, (off_t)bytes) < 0) {
		rc = -errno;
		goto out_close;
	}
	rc = map_aligned(h.fd, bytes, &h.base);
	if (rc < 0)
		goto out_close;
	prefer_node(name, h.base, bytes, node);
	pages_ready(&h);
	*ret = h;
	return 0;
out_close:
	close(h.fd);
	return rc;
}

int huge_open(const char *name, size_t bytes, int node, bool want_huge, struct huge *ret)
{
	size_t huge_bytes = (bytes + HUGE_BYTES - 1) & ~(size_t)(HUGE_BYTES - 1);
	size_t small_bytes = (bytes + SMALL_BYTES - 1) & ~(size_t)(SMALL_BYTES - 1);
	int rc;

	if (bytes == 0 || huge_bytes < bytes)
		return -EINVAL;
	if (want_huge && huge_pages_suffice(name, huge_bytes, node)) {
		rc = open_pages(name, huge_bytes, node, HUGE_BYTES, ret);
		if (rc == 0)
			return 0;
		log_warn("memory %s: huge pages refused: %s; using small pages", name,
			limit_error(rc));
	}
	rc = check_memory(name, small_bytes);
	if (rc < 0)
		return rc;
	rc = open_pages(name, small_bytes, node, SMALL_BYTES, ret);
	if (rc < 0)
		log_error(
			"memory %s: cannot get %zu MiB: %s; lower engine.pool_bytes or raise the limits of the service (ulimit -v, LimitAS)",
			name, small_bytes >> 20, limit_error(rc));
	return rc;
}

int huge_adopt(int fd, size_t bytes, struct huge *ret)
{
	struct huge h = {.fd = fd, .page_bytes = SMALL_BYTES};
	struct stat st;
	int rc = fstat(fd, &st) < 0 ? -errno : 0;

	/* a file on huge pages has their size as its block size */
	if (rc == 0 && st.st_blksize >= (blksize_t)HUGE_BYTES)
		h.page_bytes = HUGE_BYTES;
	h.bytes = (bytes + h.page_bytes - 1) & ~(h.page_bytes - 1);
	if (rc == 0 && (!S_ISREG(st.st_mode) || bytes == 0 || (uint64_t)st.st_size != h.bytes))
		rc = -EINVAL;
	if (rc == 0 && fchmod(fd, 0600) < 0) /* fails if another user has made it */
		rc = -errno;
	if (rc == 0)
		rc = map_aligned(fd, h.bytes, &h.base);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	pages_ready(&h);
	*ret = h;
	return 0;
}

int huge_populate(const struct huge *h, size_t from, size_t bytes)
{
	int rc;

	if (from >= h->bytes)
		return 0;
	if (bytes > h->bytes - from)
		bytes = h->bytes - from;
	do
		rc = madvise((char *)h->base + from, bytes, MADV_POPULATE_WRITE) < 0 ? -errno : 0;
	while (rc == -EINTR || rc == -EAGAIN);
	if (rc != -EINVAL)
		return rc;
	/* a kernel before 5.14 */
	do
		rc = fallocate(h->fd, 0, (off_t)from, (off_t)bytes) < 0 ? -errno : 0;
	while (rc == -EINTR);
	return rc;
}

uint64_t huge_allocated(const struct huge *h)
{
	struct stat st;

	return fstat(h->fd, &st) < 0 ? 0 : (uint64_t)st.st_blocks * 512;
}

uint64_t huge_number(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? 0 : (uint64_t)st.st_dev << 40 ^ (uint64_t)st.st_ino;
}

void huge_close(struct huge *h)
{
	if (!h->base)
		return;
	forget(h->fd);
	munmap(h->base, h->bytes);
	close(h->fd);
	*h = (struct huge){.fd = -1};
}
