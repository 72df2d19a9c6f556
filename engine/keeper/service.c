/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.h: the engine's side of sd_notify(3) and sd_listen_fds(3), without libsystemd. Main
 * thread only.
 */
#include "engine/keeper/service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "config/passed_fds.h"
#include "engine/keeper/notify.h"

#define ALIVE_US_MAX 86400000000l /* longest WATCHDOG_USEC that is obeyed: a day */
#define LISTEN_FDS_START 3        /* number of the first passed descriptor: sd_listen_fds(3) */

/* A descriptor that an engine before this one stored; fd -1: it was given away. */
struct stored_fd {
	int fd;
	char name[NOTIFY_NAME_BYTES];
};

static struct {
	struct sockaddr_un notify; /* address of NOTIFY_SOCKET */
	socklen_t notify_bytes;    /* 0: no process is told anything */
	int listener;              /* passed socket of clients; -1: none, or given away */
	bool listener_stored;      /* an engine before this one stored it */
	int keeper;                /* passed read end of the keeper's pipe; -1: the same */
	struct stored_fd *stored;
	unsigned stored_count;
	bool stores;             /* the process that started this engine stores descriptors */
	uint64_t alive_every_ns; /* pause between two signs of life; 0: none is wanted */
	bool slow;               /* the process did not take the last message in time */
} service = {.listener = -1, .keeper = -1};

/* ---- telling --------------------------------------------------------------------------------- */

static void notify_address(const char *path)
{
	size_t bytes = path ? strlen(path) : 0;

	service.notify_bytes = 0;
	if (bytes == 0 || bytes >= sizeof(service.notify.sun_path) ||
		(path[0] != '/' && path[0] != '@'))
		return;
	service.notify.sun_family = AF_UNIX;
	memcpy(service.notify.sun_path, path, bytes);
	if (path[0] == '@')
		service.notify.sun_path[0] = '\0'; /* abstract socket name */
	service.notify_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
}

/*
 * Sends one message, with a descriptor unless `passed` is -1; `flags` are those of sendmsg().
 * False: it was not sent.
 */
static bool service_send(const char *text, int passed, int flags)
{
	const struct timeval wait = {.tv_sec = 1};
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(1)];
	struct iovec io = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
	struct msghdr header = {.msg_name = &service.notify,
		.msg_namelen = service.notify_bytes,
		.msg_iov = &io,
		.msg_iovlen = 1};
	bool sent;
	int fd;

	if (!service.notify_bytes)
		return false;
	fds_attach(&header, control, &passed, passed >= 0);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	/* one message may wait, the next ones not until one was taken */
	sent = sendmsg(fd, &header, MSG_NOSIGNAL | flags | (service.slow ? MSG_DONTWAIT : 0)) >= 0;
	if (sent)
		service.slow = false;
	else if (!(flags & MSG_DONTWAIT) && (!service.slow || errno != EAGAIN)) {
		service.slow = errno == EAGAIN;
		log_warn("cannot tell the process that started this engine: %s (NOTIFY_SOCKET)",
			strerror(errno));
	}
	close(fd);
	return sent;
}

void service_tell(const char *text)
{
	(void)service_send(text, -1, 0);
}

uint64_t service_alive_ns(void)
{
	return service.alive_every_ns;
}

void service_alive(void)
{
	(void)service_send("WATCHDOG=1", -1, MSG_DONTWAIT);
}

void service_extend(void)
{
	char text[64];

	snprintf(text, sizeof(text), "EXTEND_TIMEOUT_USEC=%llu",
		SERVICE_EXTEND_SECONDS * 1000000ull);
	service_tell(text);
}

/* ---- passed descriptors ---------------------------------------------------------------------- */

static bool fd_is_listener(int fd)
{
	int listens = 0;
	socklen_t bytes = sizeof(listens);

	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens;
}

static bool fd_is_pipe(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

/* Takes one passed descriptor. `name`: that of LISTEN_FDNAMES, "" without one. */
static void service_take(int fd, const char *name)
{
	struct stored_fd *stored = &service.stored[service.stored_count];

	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
		log_warn("descriptor %d of LISTEN_FDS is not open: %s", fd, strerror(errno));
		return;
	}
	if (service.keeper < 0 && !strcmp(name, SERVICE_KEEPER_NAME) && fd_is_pipe(fd)) {
		service.keeper = fd;
		return;
	}
	if (service.listener < 0 && fd_is_listener(fd)) {
		service.listener = fd;
		service.listener_stored = !strcmp(name, SERVICE_LISTENER_NAME);
		return;
	}
	stored->fd = fd;
	snprintf(stored->name, sizeof(stored->name), "%s", name);
	service.stored_count++;
}

/* Copies the name up to ':' or to the end of the list *at, and moves *at behind it. */
static void names_next(const char **at, char ret[NOTIFY_NAME_BYTES])
{
	size_t bytes = strcspn(*at, ":");

	snprintf(ret, NOTIFY_NAME_BYTES, "%.*s",
		(int)(bytes < NOTIFY_NAME_BYTES ? bytes : NOTIFY_NAME_BYTES - 1), *at);
	*at += bytes + ((*at)[bytes] == ':');
}

/* The number in the variable; -1: the variable is missing or contains no number. */
static long environment_number(const char *variable)
{
	const char *text = getenv(variable);
	char *end;
	long value;

	if (!text || !*text)
		return -1;
	errno = 0;
	value = strtol(text, &end, 10);
	return errno || *end || value < 0 ? -1 : value;
}

/* Reads WATCHDOG_USEC, which may be meant for another process. */
static void alive_open(void)
{
	long process = environment_number("WATCHDOG_PID"), us = environment_number("WATCHDOG_USEC");

	if (us > 0 && us <= ALIVE_US_MAX && (process < 0 || process == (long)getpid()))
		service.alive_every_ns = (uint64_t)us * 1000 / 4;
}

void service_open(void)
{
	const char *names = getenv("LISTEN_FDNAMES");
	long count = environment_number("LISTEN_FDS");
	char name[NOTIFY_NAME_BYTES];

	notify_address(getenv("NOTIFY_SOCKET"));
	alive_open();
	service.stores = service.notify_bytes && environment_number("FDSTORE") > 0;
	/* variables for another process were inherited through it; its descriptors are not ours */
	if (environment_number("LISTEN_PID") != (long)getpid())
		count = 0;
	if (count > SERVICE_FDS_MAX) {
		log_warn("LISTEN_FDS = %ld is ignored: this engine takes at most %d descriptors",
			count, SERVICE_FDS_MAX);
		count = 0;
	}
	if (count > 0)
		service.stored = calloc((size_t)count, sizeof(*service.stored));
	if (!service.stored)
		count = 0;
	for (int i = 0; i < count; i++) {
		name[0] = '\0';
		if (names)
			names_next(&names, name);
		service_take(LISTEN_FDS_START + i, name);
	}
	/* who passes stored descriptors stores them, whether it says so or not */
	service.stores |= service.notify_bytes && service.stored_count > 0;
	if (service.notify_bytes && !service.stores)
		log_info(
			"pages end with this process: FDSTORE is not set, so the service manager stores no memory of it; with systemd before 254 set FileDescriptorStoreMax=650 and Environment=FDSTORE=650 in the unit");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	unsetenv("FDSTORE");
}

/* Drops a stored socket that no client can reach at the path of this engine's settings. */
static int listener_drop(void)
{
	close(service.listener);
	service.listener = -1;
	service_unstore(SERVICE_LISTENER_NAME);
	return 0;
}

int service_listener(const char *path, int *ret_fd)
{
	struct sockaddr_un at = {.sun_family = AF_UNSPEC};
	socklen_t bytes = sizeof(at) - 1; /* so that sun_path ends with a zero byte */
	int type = 0;
	socklen_t type_bytes = sizeof(type);

	*ret_fd = -1;
	if (service.listener < 0)
		return 0;
	if (getsockopt(service.listener, SOL_SOCKET, SO_TYPE, &type, &type_bytes) < 0 ||
		getsockname(service.listener, (struct sockaddr *)&at, &bytes) < 0 ||
		at.sun_family != AF_UNIX || type != SOCK_SEQPACKET || strcmp(at.sun_path, path) ||
		(service.listener_stored && access(path, F_OK) < 0)) {
		if (service.listener_stored)
			return listener_drop();
		log_error(
			"clients: the listening socket that was passed to this engine (LISTEN_FDS) is not a SOCK_SEQPACKET socket at engine.socket = %s; correct engine.socket, or in a systemd socket unit ListenSequentialPacket",
			path);
		return -EINVAL;
	}
	*ret_fd = service.listener;
	service.listener = -1;
	return 0;
}

int service_keeper(void)
{
	int fd = service.keeper;

	service.keeper = -1;
	return fd;
}

/* ---- stored descriptors ---------------------------------------------------------------------- */

bool service_stores(void)
{
	return service.stores;
}

void service_store(const char *name, int fd)
{
	char text[sizeof("FDSTORE=1\nFDPOLL=0\nFDNAME=") + NOTIFY_NAME_BYTES];

	/* FDPOLL=0: a socket whose other end is closed tells the next engine that it is */
	snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	(void)service_send(text, fd, 0);
}

void service_unstore(const char *name)
{
	char text[sizeof("FDSTOREREMOVE=1\nFDNAME=") + NOTIFY_NAME_BYTES];

	if (!notify_name_valid(name, strlen(name)))
		return;
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	(void)service_send(text, -1, 0);
}

static int stored_give(struct stored_fd *stored)
{
	int fd = stored->fd;

	stored->fd = -1;
	return fd;
}

int service_stored(const char *name)
{
	for (unsigned i = 0; i < service.stored_count; i++)
		if (service.stored[i].fd >= 0 && !strcmp(service.stored[i].name, name))
			return stored_give(&service.stored[i]);
	return -1;
}

int service_stored_number(const char *prefix, uint32_t *ret_number)
{
	size_t bytes = strlen(prefix);

	for (unsigned i = 0; i < service.stored_count; i++) {
		struct stored_fd *stored = &service.stored[i];
		const char *digits = stored->name + bytes;
		unsigned long long value;
		char *end;

		if (stored->fd < 0 || strncmp(stored->name, prefix, bytes) || *digits < '1' ||
			*digits > '9' || strlen(digits) > 10)
			continue;
		value = strtoull(digits, &end, 10);
		if (*end || value > UINT32_MAX)
			continue;
		*ret_number = (uint32_t)value;
		return stored_give(stored);
	}
	return -1;
}

void service_stored_drop(void)
{
	for (unsigned i = 0; i < service.stored_count; i++) {
		struct stored_fd *stored = &service.stored[i];

		if (stored->fd < 0)
			continue;
		log_info(
			"the descriptor %s, stored by an engine before this one, has no use here: removed",
			stored->name);
		close(stored->fd);
		service_unstore(stored->name);
	}
	free(service.stored);
	service.stored = NULL;
	service.stored_count = 0;
}

int service_barrier(unsigned timeout_ms)
{
	struct pollfd p = {.events = 0};
	int ends[2], rc;
	bool sent;

	if (!service.notify_bytes)
		return 0;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	sent = service_send("BARRIER=1", ends[1], 0);
	close(ends[1]);
	if (!sent) {
		/* it takes no messages; that no write end is left open says nothing then */
		close(ends[0]);
		return -ETIMEDOUT;
	}
	p.fd = ends[0];
	/* the receiver closes its copy of the write end after it has read all messages before */
	do
		rc = poll(&p, 1, (int)timeout_ms);
	while (rc < 0 && errno == EINTR);
	close(ends[0]);
	return rc > 0 ? 0 : -ETIMEDOUT;
}
