/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library calls by which libibverbs and libmlx5 reach a kernel. Calls for an emulated device
 * are answered here, all others become the real system call. Any thread of the program.
 *
 * The real call is made by syscall(2), not by dlsym(RTLD_NEXT): dlsym() may itself call mmap() and
 * close().
 */
#undef _FILE_OFFSET_BITS /* with it, open() and open64() are one symbol; both are needed */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/netlink.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

#define EXPORT __attribute__((visibility("default")))
#define FDS_MAX 4096
#define CDEV "/dev/infiniband/uverbs"

/*
 * Which descriptors belong to this library. Every close() of the program tests this word, so it
 * must cost only a load.
 */
static uint32_t ours[FDS_MAX];
static struct uv_context *contexts[FDS_MAX];

static bool is_ours(int fd)
{
	return fd >= 0 && fd < FDS_MAX && dv_guard_load(&ours[fd]);
}

static struct uv_context *context_of(int fd)
{
	return is_ours(fd) ? contexts[fd] : NULL;
}

/*
 * Marks a descriptor as the library's. Event channels are marked too: programs close them only by
 * close().
 */
void uv_fd_note(int fd, struct uv_context *context)
{
	if (fd < 0 || fd >= FDS_MAX)
		return;
	contexts[fd] = context;
	dv_guard_open(&ours[fd], 1);
}

static int device_index(const char *path)
{
	unsigned index;
	char more;

	if (strncmp(path, CDEV, sizeof(CDEV) - 1) != 0 ||
		sscanf(path + sizeof(CDEV) - 1, "%u%c", &index, &more) != 1)
		return -1;
	return (int)index;
}

static int open_device(unsigned index)
{
	struct uv_context *context;

	uv_sysfs_write();
	if (index >= uv_devices() || uv_device(index)->gone) {
		errno = ENOENT;
		return -1;
	}
	context = uv_context_open(index);
	if (context && context->fd < FDS_MAX) {
		uv_fd_note(context->fd, context);
		return context->fd;
	}
	if (context) {
		syscall(SYS_close, context->fd);
		(void)uv_share_left(context);
		uv_context_close(context);
	}
	errno = ENOMEM;
	return -1;
}

static int open_any(const char *path, int flags, va_list arguments)
{
	mode_t mode = 0;
	int index = device_index(path);
	char tree[PATH_MAX];

	if (index >= 0)
		return open_device((unsigned)index);
	path = uv_sysfs_path(path, tree);
	if (flags & (O_CREAT | __O_TMPFILE))
		mode = va_arg(arguments, mode_t);
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORT int open(const char *path, int flags, ...)
{
	va_list arguments;
	int fd;

	va_start(arguments, flags);
	fd = open_any(path, flags, arguments);
	va_end(arguments);
	return fd;
}

EXPORT int open64(const char *path, int flags, ...)
{
	va_list arguments;
	int fd;

	va_start(arguments, flags);
	fd = open_any(path, flags | O_LARGEFILE, arguments);
	va_end(arguments);
	return fd;
}

/*
 * First call of a device search by libibverbs without netlink and by numa/topology.c: creates the
 * device tree before they read it.
 */
EXPORT DIR *opendir(const char *path)
{
	char tree[PATH_MAX];
	DIR *directory;
	int fd;

	if (uv_sysfs_has(path))
		uv_sysfs_write();
	path = uv_sysfs_path(path, tree);
	fd = (int)syscall(
		SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_DIRECTORY, 0);
	directory = fd >= 0 ? fdopendir(fd) : NULL;
	if (fd >= 0 && !directory)
		syscall(SYS_close, fd);
	return directory;
}

/*
 * True if the path names the node of an emulated device. Programs look at it before libibverbs
 * does, so this creates the device tree.
 */
static bool is_device(const char *path)
{
	int index = device_index(path);

	if (index < 0)
		return false;
	uv_sysfs_write();
	return (unsigned)index < uv_devices() && !uv_device((unsigned)index)->gone;
}

/* libibverbs requires a character device with the number that is in sysfs. */
static void set_device(struct stat *stat, int index)
{
	stat->st_mode = S_IFCHR | 0666;
	stat->st_rdev = UV_RDEV(index);
}

/* libibverbs calls stat() on a device, to check that it may be opened, before it lists it. */
EXPORT int stat(const char *path, struct stat *ret_stat)
{
	char tree[PATH_MAX];
	bool device = is_device(path);
	int rc = (int)syscall(SYS_newfstatat, AT_FDCWD,
		device ? "/dev/null" : uv_sysfs_path(path, tree), ret_stat, 0);

	if (device && !rc)
		set_device(ret_stat, device_index(path));
	return rc;
}

EXPORT int stat64(const char *path, struct stat64 *ret_stat)
{
	/* struct stat and struct stat64 have the same layout */
	return stat(path, (struct stat *)ret_stat);
}

EXPORT int fstat(int fd, struct stat *ret_stat)
{
	int rc = (int)syscall(SYS_fstat, fd, ret_stat), index;

	if (!rc && S_ISSOCK(ret_stat->st_mode) && (index = uv_share_index(fd)) >= 0)
		set_device(ret_stat, index);
	return rc;
}

EXPORT int fstat64(int fd, struct stat64 *ret_stat)
{
	return fstat(fd, (struct stat *)ret_stat);
}

/*
 * stat() of programs that were built for a glibc before 2.33. `version` names the layout of struct
 * stat, of which 64-bit machines have one.
 */
EXPORT int __xstat(int version, const char *path, struct stat *ret_stat);
EXPORT int __xstat64(int version, const char *path, struct stat64 *ret_stat);

int __xstat(int version, const char *path, struct stat *ret_stat)
{
	(void)version;
	return stat(path, ret_stat);
}

int __xstat64(int version, const char *path, struct stat64 *ret_stat)
{
	(void)version;
	return stat64(path, ret_stat);
}

/* Programs check a device node, or its directory in /sys, before they call libibverbs. */
EXPORT int access(const char *path, int mode)
{
	char tree[PATH_MAX];

	path = is_device(path) ? "/dev/null" : uv_sysfs_path(path, tree);
	return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

/* canonicalize_file_name(path) is realpath(path, NULL) under a name that is not replaced. */
EXPORT char *realpath(const char *path, char *ret_path)
{
	char tree[PATH_MAX];
	char *found = canonicalize_file_name(uv_sysfs_path(path, tree));

	if (!found || !ret_path)
		return found;
	snprintf(ret_path, PATH_MAX, "%s", found);
	free(found);
	return ret_path;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct uv_context *context = context_of(fd);
	va_list arguments;
	void *argument;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (!context && request == RDMA_VERBS_IOCTL)
		context = uv_share_find(fd);
	if (request == RDMA_VERBS_IOCTL && (context || uv_share_index(fd) >= 0)) {
		int rc = context ? uv_ioctl(context, argument, -1) : uv_share_ioctl(fd, argument);

		if (!rc)
			return 0;
		errno = rc;
		return -1;
	}
	return (int)syscall(SYS_ioctl, fd, request, argument);
}

EXPORT void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
	struct uv_context *context = context_of(fd);

	if (!context && fd >= 0 && protection == PROT_WRITE) /* as libmlx5 maps doorbell pages */
		context = uv_share_find(fd);
	if (context)
		return uv_uar_map(context, (uint64_t)offset, length);
	return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
	return mmap(at, length, protection, flags, fd, offset);
}

EXPORT int close(int fd)
{
	struct uv_context *context = context_of(fd);
	int rc;

	if (is_ours(fd)) {
		contexts[fd] = NULL;
		dv_guard_shut(&ours[fd]);
		if (!context)
			uv_channel_close(fd);
	}
	rc = (int)syscall(SYS_close, fd);
	if (context && !uv_share_left(context))
		uv_context_close(context);
	return rc;
}

/*
 * libibverbs first asks the kernel for devices by netlink, and falls back to sysfs if that protocol
 * does not exist. This call is also the time to create the tree: programs that never use devices,
 * for example a shell, leave no files behind.
 */
EXPORT int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
		uv_sysfs_write();
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}

EXPORT int sched_yield(void)
{
	return uv_yield() ? 0 : (int)syscall(SYS_sched_yield);
}

__attribute__((constructor)) static void prepare(void)
{
	uv_sysfs_prepare();
}

__attribute__((destructor)) static void finish(void)
{
	uv_sysfs_remove();
}
