/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of one path; see device.h. The thread that uses the device submits and reaps. A
 * few threads of the device make the calls that io_uring does not: creating and removing files, and
 * everything where there is no io_uring. `lock` protects the two lists that they share with it.
 */
#include "config/text_fit.h"
#include "engine/disk/device.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config/limits.h"
#include "config/log.h"
#include "config/thread.h"
#include "numa/clock.h"
#include "numa/limit.h"

#define PREFIX "peercache-disk."
#define URING_DEPTH 128u
/* of opening and sealing a segment: one each */
static_assert(DISK_BLOCKS_FLIGHT + DISK_READS_FLIGHT + 2 <= URING_DEPTH,
	"the ring has room for all operations of a path");
#define WORKERS_MAX 8u
#define LOCK_LOOK_NS 5000000 /* between two attempts to take the lock of a dead process */

struct device_file {
	struct device device;
	char *name;
	uint32_t segment_bytes;
	int directory, lock_fd, path_fd;
	int *segment_fd; /* by number; -1: not open */
	int direct;      /* O_DIRECT, or 0 where the file system refuses it */
	bool uring;
	struct io_uring ring;
	unsigned flying; /* operations that were submitted and not reaped; the using thread's */

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct device_ios todo, done; /* under the lock */
	bool stop;                    /* under the lock */
	unsigned workers;
	pthread_t worker[WORKERS_MAX];
};

static struct device_file *device_file_of(struct device *device)
{
	return (struct device_file *)device;
}

static void segment_name(uint32_t number, char name[32])
{
	snprintf(name, 32, PREFIX "%05u", number);
}

/* The descriptor of a file, opened at its first use; -errno. */
static int file_fd(struct device_file *file, uint32_t number)
{
	char name[32];
	int fd;

	if (number == DEVICE_PATH_FILE)
		return file->path_fd;
	if (number >= DEVICE_FILES_MAX)
		return -EINVAL;
	if (file->segment_fd[number] >= 0)
		return file->segment_fd[number];
	segment_name(number, name);
	fd = openat(file->directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | file->direct);
	if (fd < 0)
		return -errno;
	file->segment_fd[number] = fd;
	return fd;
}

static int64_t segment_create(struct device_file *file, uint32_t number)
{
	char name[32];
	int fd, rc = 0;

	segment_name(number, name);
	fd = openat(file->directory, name,
		O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | file->direct, 0600);
	if (fd < 0)
		return -errno;
	if (fallocate(fd, 0, 0, file->segment_bytes))
		rc = errno == EOPNOTSUPP && !ftruncate(fd, file->segment_bytes) ? 0 : -errno;
	if (!rc && (fsync(fd) || fsync(file->directory)))
		rc = -errno;
	if (rc) {
		close(fd);
		unlinkat(file->directory, name, 0);
		return rc;
	}
	file->segment_fd[number] = fd;
	return 0;
}

static int64_t segment_unlink(struct device_file *file, uint32_t number)
{
	char name[32];

	if (number >= DEVICE_FILES_MAX)
		return -EINVAL;
	segment_name(number, name);
	if (file->segment_fd[number] >= 0)
		close(file->segment_fd[number]);
	file->segment_fd[number] = -1;
	if (unlinkat(file->directory, name, 0) && errno != ENOENT)
		return -errno;
	return fsync(file->directory) ? -errno : 0;
}

/* ---- the device's own threads ----------------------------------------------------------- */

static int64_t file_perform(struct device_file *file, const struct device_io *io)
{
	ssize_t rc = 0;
	int fd;

	if (io->op == DEVICE_CREATE)
		return segment_create(file, io->file);
	if (io->op == DEVICE_UNLINK)
		return segment_unlink(file, io->file);
	pthread_mutex_lock(&file->lock);
	fd = file_fd(file, io->file);
	pthread_mutex_unlock(&file->lock);
	if (fd < 0)
		return fd;
	if (io->op == DEVICE_READ)
		rc = preadv(fd, io->iov, (int)io->iovs, (off_t)io->offset);
	else if (io->op == DEVICE_WRITE)
		rc = pwritev(fd, io->iov, (int)io->iovs, (off_t)io->offset);
	else
		rc = fdatasync(fd);
	return rc < 0 ? -errno : rc;
}

static void *file_worker(void *argument)
{
	struct device_file *file = argument;
	struct device_io *io;

	pthread_mutex_lock(&file->lock);
	for (;;) {
		while (!(io = TAILQ_FIRST(&file->todo)) && !file->stop)
			pthread_cond_wait(&file->more, &file->lock);
		if (!io)
			break;
		TAILQ_REMOVE(&file->todo, io, next);
		pthread_mutex_unlock(&file->lock);
		io->result = file_perform(file, io);
		pthread_mutex_lock(&file->lock);
		TAILQ_INSERT_TAIL(&file->done, io, next);
		(void)eventfd_write(file->device.fd, 1);
	}
	pthread_mutex_unlock(&file->lock);
	return NULL;
}

static int workers_start(struct device_file *file, unsigned count)
{
	int rc = 0;

	while (file->workers < count && !rc) {
		rc = thread_start(&file->worker[file->workers], file_worker, file);
		file->workers += !rc;
	}
	return file->workers ? 0 : rc;
}

static void workers_stop(struct device_file *file)
{
	pthread_mutex_lock(&file->lock);
	file->stop = true;
	pthread_cond_broadcast(&file->more);
	pthread_mutex_unlock(&file->lock);
	for (unsigned i = 0; i < file->workers; i++)
		pthread_join(file->worker[i], NULL);
}

/* ---- what the device's user calls ------------------------------------------------------- */

/* A file that cannot be opened, or a ring that takes no more, is a completed operation. */
static void uring_submit(struct device_file *file, struct device_io *io)
{
	int fd = file_fd(file, io->file);
	struct io_uring_sqe *sqe = fd < 0 ? NULL : io_uring_get_sqe(&file->ring);

	if (!sqe) {
		io->result = fd < 0 ? fd : -EBUSY;
		pthread_mutex_lock(&file->lock);
		TAILQ_INSERT_TAIL(&file->done, io, next);
		pthread_mutex_unlock(&file->lock);
		(void)eventfd_write(file->device.fd, 1);
		return;
	}
	if (io->op == DEVICE_READ)
		io_uring_prep_readv(sqe, fd, io->iov, io->iovs, io->offset);
	else if (io->op == DEVICE_WRITE)
		io_uring_prep_writev(sqe, fd, io->iov, io->iovs, io->offset);
	else
		io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
	io_uring_sqe_set_data(sqe, io);
	/* An entry that the kernel does not take now stays in the ring and is taken later. */
	(void)io_uring_submit(&file->ring);
}

static void file_submit(struct device *device, struct device_io *io)
{
	struct device_file *file = device_file_of(device);

	file->flying++;
	if (file->uring &&
		(io->op == DEVICE_READ || io->op == DEVICE_WRITE || io->op == DEVICE_SYNC)) {
		uring_submit(file, io);
		return;
	}
	pthread_mutex_lock(&file->lock);
	TAILQ_INSERT_TAIL(&file->todo, io, next);
	pthread_cond_signal(&file->more);
	pthread_mutex_unlock(&file->lock);
}

static struct device_io *uring_reap(struct device_file *file)
{
	struct io_uring_cqe *cqe;
	struct device_io *io;

	if (io_uring_sq_ready(&file->ring))
		(void)io_uring_submit(&file->ring);
	if (io_uring_peek_cqe(&file->ring, &cqe))
		return NULL;
	io = io_uring_cqe_get_data(cqe);
	io->result = cqe->res;
	io_uring_cqe_seen(&file->ring, cqe);
	return io;
}

static struct device_io *file_reap(struct device *device)
{
	struct device_file *file = device_file_of(device);
	struct device_io *io;
	eventfd_t count;

	(void)eventfd_read(device->fd, &count);
	pthread_mutex_lock(&file->lock);
	io = TAILQ_FIRST(&file->done);
	if (io)
		TAILQ_REMOVE(&file->done, io, next);
	pthread_mutex_unlock(&file->lock);
	if (!io && file->uring)
		io = uring_reap(file);
	if (io)
		file->flying--;
	return io;
}

static void file_wait(struct device *device, uint64_t wait_ns)
{
	struct pollfd readable = {.fd = device->fd, .events = POLLIN};
	uint64_t ms = wait_ns / 1000000 + 1;

	(void)poll(&readable, 1, ms > 1000 ? 1000 : (int)ms);
}

static void file_free(struct device_file *file)
{
	const int fd[] = {file->device.fd, file->path_fd, file->lock_fd, file->directory};

	if (file->uring)
		io_uring_queue_exit(&file->ring);
	for (uint32_t i = 0; file->segment_fd && i < DEVICE_FILES_MAX; i++)
		if (file->segment_fd[i] >= 0)
			close(file->segment_fd[i]);
	for (unsigned i = 0; i < 4; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	pthread_mutex_destroy(&file->lock);
	pthread_cond_destroy(&file->more);
	free(file->segment_fd);
	free(file->name);
	free(file);
}

static int file_close(struct device *device)
{
	struct device_file *file = device_file_of(device);

	if (file->flying)
		return -EBUSY;
	workers_stop(file);
	/* The kernel drops the ring's reference to the lock some time after the ring. */
	(void)flock(file->lock_fd, LOCK_UN);
	file_free(file);
	return 0;
}

/* ---- opening ---------------------------------------------------------------------------- */

/* What the lock file says: the name of the engine that locked it last, and its process. */
static void owner_read(int lock_fd, char *text, size_t bytes)
{
	ssize_t n = pread(lock_fd, text, bytes - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
}

/*
 * This process's own number is one of an earlier container, in which the engine had the same:
 * disk_open() has refused a directory that is named twice.
 */
static bool owner_ended(const char *text)
{
	const char *at = strstr(text, "(pid ");
	long pid = at ? strtol(at + 5, NULL, 10) : 0;

	return pid == getpid() ||
	       (pid > 0 && pid <= INT32_MAX && kill((pid_t)pid, 0) < 0 && errno == ESRCH);
}

/*
 * A process that was killed keeps the lock until the kernel has ended its I/O. So its successor,
 * which may start at once, waits for that. So does an engine that finds no name yet: the owner has
 * only just locked the file. A lock of a process that lives is refused at once. Returns 0, or
 * -EWOULDBLOCK and what the lock file says, or another error of flock().
 */
static int lock_take(int lock_fd, uint64_t until_ns, char *text, size_t bytes)
{
	const struct timespec pause = {.tv_nsec = LOCK_LOOK_NS};

	for (;;) {
		if (flock(lock_fd, LOCK_EX | LOCK_NB) == 0)
			return 0;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		owner_read(lock_fd, text, bytes);
		if ((text[0] && !owner_ended(text)) || clock_now_ns() >= until_ns)
			return -EWOULDBLOCK;
		(void)nanosleep(&pause, NULL);
	}
}

/* Locks the directory and leaves the name of this engine for one that is refused. */
static int directory_lock(struct device_file *file, const struct device_file_options *options,
	char *reason, size_t bytes)
{
	char text[128] = "";
	int length, rc;

	file->lock_fd = openat(
		file->directory, PREFIX "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (file->lock_fd < 0) {
		text_fit(reason, bytes, "cannot create " PREFIX "lock: %s", strerror(errno));
		return -errno;
	}
	rc = lock_take(file->lock_fd, options->lock_until_ns, text, sizeof(text));
	if (rc < 0 && rc != -EWOULDBLOCK) {
		text_fit(reason, bytes, "cannot lock " PREFIX "lock: %s; use a local file system",
			strerror(-rc));
		return rc;
	}
	if (rc < 0) {
		text_fit(reason, bytes, "is used by engine %s, or its last I/O has not ended",
			text[0] ? text : "(unknown)");
		return -EBUSY;
	}
	length = snprintf(text, sizeof(text), "%s (pid %d)\n", options->owner, (int)getpid());
	if (ftruncate(file->lock_fd, 0) ||
		pwrite(file->lock_fd, text, (size_t)length, 0) != length) {
		text_fit(reason, bytes, "cannot write " PREFIX "lock: %s", strerror(errno));
		return -EIO;
	}
	return 0;
}

/* The path file, with O_DIRECT unless the file system refuses it. */
static int path_file_open(struct device_file *file, char *reason, size_t bytes)
{
	const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;

	file->direct = O_DIRECT;
	file->path_fd = openat(file->directory, PREFIX "path", flags | O_DIRECT, 0600);
	if (file->path_fd < 0 && errno == EINVAL) {
		log_info("disk %s: no O_DIRECT on this file system; the page cache is used",
			file->name);
		file->direct = 0;
		file->path_fd = openat(file->directory, PREFIX "path", flags, 0600);
	}
	if (file->path_fd < 0) {
		text_fit(reason, bytes, "cannot create " PREFIX "path: %s", strerror(errno));
		return -errno;
	}
	return 0;
}

static void uring_open(struct device_file *file, bool refused)
{
	int rc = refused ? -ECANCELED : io_uring_queue_init(URING_DEPTH, &file->ring, 0);

	if (!rc) {
		/* The ring keeps the lock until its last operation has ended, even after a kill. */
		rc = io_uring_register_files(&file->ring, &file->lock_fd, 1);
		if (!rc)
			rc = io_uring_register_eventfd(&file->ring, file->device.fd);
		if (rc)
			io_uring_queue_exit(&file->ring);
	}
	file->uring = !rc;
	if (rc && !refused)
		log_warn("disk %s: no io_uring: %s; %u threads read and write instead", file->name,
			strerror(-rc), WORKERS_MAX);
}

static struct device_file *file_new(const struct device_file_options *options)
{
	struct device_file *file = calloc(1, sizeof(*file));

	if (!file)
		return NULL;
	file->directory = file->lock_fd = file->path_fd = -1;
	file->name = strdup(options->directory);
	file->segment_fd = malloc(DEVICE_FILES_MAX * sizeof(int));
	file->segment_bytes = options->segment_bytes;
	file->device = (struct device){.name = file->name,
		.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		.submit = file_submit,
		.reap = file_reap,
		.wait = file_wait,
		.close = file_close};
	pthread_mutex_init(&file->lock, NULL);
	pthread_cond_init(&file->more, NULL);
	TAILQ_INIT(&file->todo);
	TAILQ_INIT(&file->done);
	if (file->segment_fd)
		memset(file->segment_fd, 0xff, DEVICE_FILES_MAX * sizeof(int));
	if (file->name && file->segment_fd && file->device.fd >= 0)
		return file;
	file_free(file);
	return NULL;
}

int device_file_open(const struct device_file_options *options, char *reason, size_t reason_bytes,
	struct device **ret_device)
{
	struct device_file *file = file_new(options);
	int rc;

	if (!file) {
		text_fit(reason, reason_bytes, "no memory");
		return -ENOMEM;
	}
	file->directory = open(options->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (file->directory < 0) {
		rc = -errno;
		text_fit(reason, reason_bytes, "cannot open the directory: %s", strerror(errno));
		goto fail;
	}
	rc = directory_lock(file, options, reason, reason_bytes);
	if (!rc)
		rc = path_file_open(file, reason, reason_bytes);
	if (rc)
		goto fail;
	uring_open(file, options->threads);
	rc = workers_start(file, file->uring ? 1 : WORKERS_MAX);
	if (rc) {
		text_fit(reason, reason_bytes, "cannot start a thread: %s", limit_error(rc));
		goto fail;
	}
	*ret_device = &file->device;
	return 0;
fail:
	file_free(file);
	return rc;
}
